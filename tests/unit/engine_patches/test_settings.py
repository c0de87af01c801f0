"""Settings from the environment."""

import pytest

from structuredllm_engine_patches.errors import SettingsError
from structuredllm_engine_patches.settings import CompileSettings, Phases, Policy, Settings, read_settings


def test_defaults() -> None:
    assert read_settings({}) == Settings(Policy.REQUIRED, "0.0.0.0", 9464)


def test_reads_all() -> None:
    found = read_settings(
        {
            "STRUCTUREDLLM_PATCHES": " Optional ",
            "STRUCTUREDLLM_TELEMETRY_PORT": "0",
            "STRUCTUREDLLM_TELEMETRY_HOST": "::1",
        }
    )
    assert found == Settings(Policy.OPTIONAL, "::1", 0)


@pytest.mark.parametrize("value", ["requird", "on", "1"])
def test_unknown_policy_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match=f"STRUCTUREDLLM_PATCHES='{value}'.*required, optional, disabled"):
        read_settings({"STRUCTUREDLLM_PATCHES": value})


@pytest.mark.parametrize("value", ["http", "-1", "65536", "94.64", "٩"])
def test_bad_port_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="STRUCTUREDLLM_TELEMETRY_PORT"):
        read_settings({"STRUCTUREDLLM_TELEMETRY_PORT": value})


def test_compile_limits() -> None:
    assert read_settings({}).compiling == CompileSettings(10.0, 1 << 30, None)
    found = read_settings(
        {
            "STRUCTUREDLLM_COMPILE_TIMEOUT_SECONDS": " 2.5 ",
            "STRUCTUREDLLM_COMPILE_MEMORY_BYTES": "134217728",
            "STRUCTUREDLLM_COMPILE_WORKERS": "4",
        }
    )
    assert found.compiling == CompileSettings(2.5, 128 << 20, 4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STRUCTUREDLLM_COMPILE_TIMEOUT_SECONDS", "0"),
        ("STRUCTUREDLLM_COMPILE_TIMEOUT_SECONDS", "10s"),
        ("STRUCTUREDLLM_COMPILE_TIMEOUT_SECONDS", "nan"),
        ("STRUCTUREDLLM_COMPILE_TIMEOUT_SECONDS", "inf"),
        ("STRUCTUREDLLM_COMPILE_MEMORY_BYTES", "1000"),
        ("STRUCTUREDLLM_COMPILE_MEMORY_BYTES", "1GiB"),
        ("STRUCTUREDLLM_COMPILE_WORKERS", "0"),
        ("STRUCTUREDLLM_COMPILE_WORKERS", "65"),
        ("STRUCTUREDLLM_COMPILE_WORKERS", "-1"),
    ],
)
def test_bad_compile_limits_are_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}='{value}' .*: set "):
        read_settings({name: value})


def test_phases_are_off_unless_switched_on() -> None:
    assert read_settings({}).phases is Phases.OFF
    assert read_settings({"STRUCTUREDLLM_PHASES": " AUTO "}).phases is Phases.AUTO
    assert read_settings({"STRUCTUREDLLM_PHASES": "on"}).phases is Phases.ON
    with pytest.raises(
        SettingsError, match="STRUCTUREDLLM_PHASES='yes' is not known: set one of auto, on, off"
    ):
        read_settings({"STRUCTUREDLLM_PHASES": "yes"})
