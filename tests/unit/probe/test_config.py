from __future__ import annotations

from typing import Any

import pytest

from structuredllm_probe.config import BurstConfig, server_root
from structuredllm_probe.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests", 0),
        ("requests", 10_001),
        ("concurrency", 0),
        ("concurrency", 1_025),
        ("plain_share", 1.0),
        ("plain_share", -0.1),
        ("stream_share", 1.1),
        ("timeout_seconds", 0.0),
        ("timeout_seconds", float("nan")),
        ("timeout_seconds", 3_601.0),
        ("max_tokens", 0),
        ("seed", ""),
    ],
)
def test_out_of_range_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        BurstConfig(**{"seed": "s", field: value})


@pytest.mark.parametrize("url", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"])
def test_server_root_accepts_the_usual_forms(url: str) -> None:
    assert server_root(url) == "http://h:8000"


def test_server_root_keeps_a_path_prefix() -> None:
    assert server_root("https://h/models/a/v1") == "https://h/models/a"


@pytest.mark.parametrize(
    "url", ["", "h:8000", "ftp://h", "http://", "http://h:port", "http://h?x=1", "http://[::1"]
)
def test_server_root_refuses_what_is_no_http_url(url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        server_root(url)
