"""The gate's burst against an engine with LMDeploy's faults: a black box that fails is never let through."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from structuredllm_probe import BurstConfig, Verdict, run_burst
from tests.fakes.lmdeploy_engine import Fault, LmdeployEngine
from tests.fakes.modes import FakeScript

TOGETHER = FakeScript(hold_until_in_flight=2)
"""The first two requests share a batch, whatever the machine's load."""
BURST = BurstConfig(requests=16, concurrency=16, timeout_seconds=30.0, seed="1")


def schema(key: str) -> dict[str, Any]:
    """Return a schema that only its own answers satisfy."""
    return {
        "type": "object",
        "properties": {key: {"type": "integer"}},
        "required": [key],
        "additionalProperties": False,
    }


async def ask(client: httpx.AsyncClient, engine: LmdeployEngine, key: str | None) -> str:
    """Return the text of one answer, guided when there is a key."""
    body: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "x"}]}
    if key is not None:
        form = {"name": key, "schema": schema(key)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    answer = await client.post(f"{engine.url}/v1/chat/completions", json=body)
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


async def test_without_a_fault_the_burst_passes() -> None:
    async with LmdeployEngine() as engine:
        report = await run_burst(engine.url, "toy", BURST)
    assert report.verdict is Verdict.HEALTHY, report.message


@pytest.mark.parametrize("fault", [Fault.SHARED_MATCHER, Fault.SHARED_MATCHER_CRASH, Fault.STALE_GRAMMAR])
async def test_the_burst_finds_the_fault(fault: Fault) -> None:
    async with LmdeployEngine(fault, script=TOGETHER) as engine:
        report = await run_burst(engine.url, "toy", BURST)
    assert report.verdict is not Verdict.HEALTHY, report.message


async def test_each_fault_hides_from_requests_one_by_one() -> None:
    """What a smoke test sees: nothing. So the faults are those of batches, not of answers."""
    for fault in (Fault.SHARED_MATCHER, Fault.SHARED_MATCHER_CRASH, Fault.MASK_LEAK):
        async with LmdeployEngine(fault, decode_seconds=0.0) as engine, httpx.AsyncClient() as client:
            assert "a" in json.loads(await ask(client, engine, "a"))
            assert "b" in json.loads(await ask(client, engine, "b"))
            assert not (await ask(client, engine, None)).startswith("{")


async def test_a_leaked_mask_shows_only_beside_guided_requests() -> None:
    async with LmdeployEngine(Fault.MASK_LEAK) as engine, httpx.AsyncClient() as client:
        alone = await ask(client, engine, None)
    async with LmdeployEngine(Fault.MASK_LEAK, script=TOGETHER) as engine, httpx.AsyncClient() as client:
        mixed, guided = await asyncio.gather(ask(client, engine, None), ask(client, engine, "a"))
    assert not alone.startswith("{")
    assert mixed.startswith("{"), "the plain request follows the other one's grammar"
    assert "a" in json.loads(guided), "the guided one is right: a check of structured answers sees nothing"


async def test_a_stale_grammar_shows_only_beyond_the_pool() -> None:
    async with (
        LmdeployEngine(Fault.STALE_GRAMMAR, instances=2, decode_seconds=0.0) as engine,
        httpx.AsyncClient() as client,
    ):
        texts = [json.loads(await ask(client, engine, key)) for key in ("a", "b", "c")]
    assert [set(text) for text in texts] == [{"a"}, {"b"}, {"a"}]


async def test_a_crash_ends_the_engine_until_it_is_restarted() -> None:
    crashing = LmdeployEngine(Fault.SHARED_MATCHER_CRASH, script=TOGETHER)
    async with crashing as engine, httpx.AsyncClient() as client:
        pair = [ask(client, engine, key) for key in ("a", "b")]
        results = await asyncio.gather(*pair, return_exceptions=True)
        assert all(isinstance(one, httpx.HTTPError) for one in results)
        with pytest.raises(httpx.HTTPError):
            await client.get(f"{engine.url}/health")
        engine.restart()
        assert (await client.get(f"{engine.url}/health")).status_code == 200
