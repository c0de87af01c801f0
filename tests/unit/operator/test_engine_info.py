"""The telemetry port's answer, and what each way of not answering means."""

import json
from collections.abc import Callable

import httpx
import pytest

from structuredllm_operator.engine_info import HttpEngineInfo
from tests.fakes.telemetry import DEFAULT_INFO
from tests.unit.operator.builders import pod


def source(answer: Callable[[httpx.Request], httpx.Response]) -> HttpEngineInfo:
    """Return the source over a scripted transport."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return HttpEngineInfo(client, timeout_seconds=1.0)


async def test_an_answer_is_read_and_asked_for_once_per_container() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, content=json.dumps({**DEFAULT_INFO, "new_field": 1}))

    engines = source(answer)
    first = await engines.fetch(pod())
    assert first.info is not None
    assert (first.info.pipeline, first.info.world_size, first.info.patches[0].state) == (3, 3, "active")
    assert await engines.fetch(pod()) == first
    await engines.fetch(pod(container_id="containerd://new"))
    assert asked == ["http://10.0.0.1:9464/info"] * 2


async def test_a_closed_port_is_refused_and_asked_again() -> None:
    asked = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        raise httpx.ConnectError("refused", request=request)

    engines = source(answer)
    assert (await engines.fetch(pod())).refused
    await engines.fetch(pod())
    assert asked == 2


@pytest.mark.parametrize("content", ["", "[]", '{"vllm_version": "1"}', "x" * 100_000])
async def test_a_bad_answer_says_nothing_about_patches(content: str) -> None:
    report = await source(lambda _: httpx.Response(200, content=content)).fetch(pod())
    assert report.info is None
    assert not report.refused
    assert len(report.detail) < 400


async def test_a_time_out_or_an_error_says_nothing_about_patches() -> None:
    def late(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("late", request=request)

    assert not (await source(late).fetch(pod())).refused
    assert not (await source(lambda _: httpx.Response(503)).fetch(pod())).refused


async def test_ipv6_addresses_are_bracketed() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(404)

    await source(answer).fetch(pod(ip="fd00::1"))
    assert asked == ["http://[fd00::1]:9464/info"]
