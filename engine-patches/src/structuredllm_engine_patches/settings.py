"""Settings from the environment of the engine process. Pure: takes the mapping, imports nothing of vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from structuredllm_engine_patches.errors import SettingsError

PATCHES_VARIABLE = "STRUCTUREDLLM_PATCHES"
TELEMETRY_PORT_VARIABLE = "STRUCTUREDLLM_TELEMETRY_PORT"
TELEMETRY_HOST_VARIABLE = "STRUCTUREDLLM_TELEMETRY_HOST"
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


@dataclass(frozen=True)
class Settings:
    """Settings of one engine process.

    Attributes:
        policy: what to do with the patches.
        telemetry_host: address that the telemetry port binds.
        telemetry_port: TCP port of /metrics and /info; 0 switches the port off.
    """

    policy: Policy
    telemetry_host: str
    telemetry_port: int


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
    return Settings(policy=policy, telemetry_host=host, telemetry_port=int(port_text))
