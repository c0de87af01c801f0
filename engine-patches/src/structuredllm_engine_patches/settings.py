"""Settings from the environment of the engine process. Pure: takes the mapping, imports nothing of vLLM."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from structuredllm_engine_patches.errors import SettingsError

PATCHES_VARIABLE = "STRUCTUREDLLM_PATCHES"
TELEMETRY_PORT_VARIABLE = "STRUCTUREDLLM_TELEMETRY_PORT"
TELEMETRY_HOST_VARIABLE = "STRUCTUREDLLM_TELEMETRY_HOST"
COMPILE_TIMEOUT_VARIABLE = "STRUCTUREDLLM_COMPILE_TIMEOUT_SECONDS"
COMPILE_MEMORY_VARIABLE = "STRUCTUREDLLM_COMPILE_MEMORY_BYTES"
COMPILE_WORKERS_VARIABLE = "STRUCTUREDLLM_COMPILE_WORKERS"
PHASES_VARIABLE = "STRUCTUREDLLM_PHASES"
DEFAULT_TELEMETRY_PORT = 9464
DEFAULT_TELEMETRY_HOST = "0.0.0.0"  # noqa: S104 - scraped from outside the pod


class Policy(StrEnum):
    """What to do with the patches."""

    REQUIRED = "required"
    """A patch that does not fit stops the engine (default: a silent fault is worse than none running)."""

    OPTIONAL = "optional"
    """A patch that does not fit is skipped, logged and shown in /info."""

    DISABLED = "disabled"
    """No patch is applied; telemetry runs."""


class Phases(StrEnum):
    """Whether decodes are spread over the pipeline's phases."""

    AUTO = "auto"
    """Wherever it fits, while it is measured to be faster."""

    ON = "on"
    """Wherever it fits, whatever it costs: to compare, and to test."""

    OFF = "off"
    """Never: the batch queue's drain alone keeps the masks right (default)."""


@dataclass(frozen=True)
class CompileSettings:
    """Limits of the compilation of grammars.

    Attributes:
        timeout_seconds: time that one compilation may take, 0.1 to 3,600.
        memory_bytes: memory that one compilation may take, 64 MiB or more.
        workers: compilations that are expected to be quick and run at a time, 1 to 64; those that turn out
            not to be go on beside them, see `guided.lanes`. None: by the number of CPUs.
    """

    timeout_seconds: float = 10.0
    memory_bytes: int = 1 << 30
    workers: int | None = None


@dataclass(frozen=True)
class Settings:
    """Settings of one engine process.

    Attributes:
        policy: what to do with the patches.
        telemetry_host: address that the telemetry port binds.
        telemetry_port: TCP port of /metrics and /info; 0 switches the port off.
        compiling: limits of the compilation of grammars.
        phases: whether decodes are spread over the pipeline's phases.
    """

    policy: Policy
    telemetry_host: str
    telemetry_port: int
    compiling: CompileSettings = CompileSettings()
    phases: Phases = Phases.OFF


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the settings.

    Raises:
        SettingsError: a variable has a value that means nothing; the message names it and the values that do.
    """
    text = environ.get(PATCHES_VARIABLE, "").strip().lower() or Policy.REQUIRED.value
    try:
        policy = Policy(text)
    except ValueError:
        choices = ", ".join(p.value for p in Policy)
        raise SettingsError(f"{PATCHES_VARIABLE}={text!r} is not a policy: set one of {choices}") from None
    port_text = environ.get(TELEMETRY_PORT_VARIABLE, "").strip() or str(DEFAULT_TELEMETRY_PORT)
    if not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise SettingsError(
            f"{TELEMETRY_PORT_VARIABLE}={port_text!r} is not a port: set 1 to 65535, or 0 for none"
        )
    host = environ.get(TELEMETRY_HOST_VARIABLE, "").strip() or DEFAULT_TELEMETRY_HOST
    return Settings(
        policy=policy,
        telemetry_host=host,
        telemetry_port=int(port_text),
        compiling=_read_compile_settings(environ),
        phases=_read_phases(environ),
    )


def _read_compile_settings(environ: Mapping[str, str]) -> CompileSettings:
    defaults = CompileSettings()
    timeout_text = environ.get(COMPILE_TIMEOUT_VARIABLE, "").strip() or str(defaults.timeout_seconds)
    try:
        timeout = float(timeout_text)
    except ValueError:
        timeout = math.nan
    if not 0.1 <= timeout <= 3600:
        raise SettingsError(
            f"{COMPILE_TIMEOUT_VARIABLE}={timeout_text!r} is not a time limit: set 0.1 to 3600 (seconds)"
        )
    memory = _whole_number(environ, COMPILE_MEMORY_VARIABLE, 64 << 20, 1 << 40, "bytes, 1073741824 is 1 GiB")
    workers = _whole_number(environ, COMPILE_WORKERS_VARIABLE, 1, 64, "processes")
    return CompileSettings(timeout, memory or defaults.memory_bytes, workers)


def _whole_number(environ: Mapping[str, str], name: str, least: int, most: int, unit: str) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise SettingsError(f"{name}={text!r} is out of its range: set {least} to {most} ({unit})")
    return int(text)


def _read_phases(environ: Mapping[str, str]) -> Phases:
    text = environ.get(PHASES_VARIABLE, "").strip().lower() or Phases.OFF.value
    try:
        return Phases(text)
    except ValueError:
        choices = ", ".join(p.value for p in Phases)
        raise SettingsError(f"{PHASES_VARIABLE}={text!r} is not known: set one of {choices}") from None
