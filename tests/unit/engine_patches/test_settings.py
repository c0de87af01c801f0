"""Settings from the environment."""

import pytest

from structuredllm_engine_patches.errors import SettingsError
from structuredllm_engine_patches.settings import Policy, Settings, read_settings


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
