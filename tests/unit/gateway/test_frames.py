"""The memory of frames: what is found again, what is not, and that a memory changes no answer."""

from __future__ import annotations

from typing import Any

import pytest

from structuredllm_gateway.admission.admission import Admission
from structuredllm_gateway.admission.frames import Frame, FrameMemory
from structuredllm_gateway.openai.requests import CompletionRequest
from structuredllm_gateway.openai.surface import Route
from structuredllm_gateway.settings import AdmissionSettings
from tests.fakes.fake_engine import FakeEngine
from tests.unit.gateway.support import SCHEMA, gateway, plain, pool_of, settings_with, structured

CHAT = Route.CHAT


def _frame(**more: Any) -> Frame:
    return Frame(CompletionRequest("m", False, None, **more), (), None)


def test_other_messages_are_the_same_frame_and_other_schemas_are_not() -> None:
    memory = FrameMemory(4)
    one = memory.key(structured(), CHAT)
    assert one is not None
    assert memory.key({**structured(), "messages": [], "seed": 1, "user": "u"}, CHAT) == one
    assert memory.key({**structured(), "prompt": "x" * 100_000}, CHAT) == memory.key(
        {**structured(), "prompt": "y"}, CHAT
    )
    others = [
        structured({**SCHEMA, "required": ["name"]}),
        structured(model="other"),
        {**structured(), "stream": True},
        {**structured(), "n": 2},
        {**structured(), "prompt": ["a", "b"]},
        {**structured(), "prompt": ["a"]},
        {**structured(), "prompt": [1, 2]},
        {**structured(), "ignore_eos": True},
        plain(),
    ]
    keys = {memory.key(other, CHAT) for other in others}
    assert len(keys) == len(others)
    assert one not in keys
    assert memory.key(structured(), Route.RESPONSES) != one


def test_what_a_setting_refuses_is_a_part_of_the_frame() -> None:
    limits = AdmissionSettings(refused_fields=("/metadata/x",)).limits
    memory = FrameMemory(4, Admission(limits, 4).read_fields)
    assert memory.key({**plain(), "metadata": {"x": 1}}, CHAT) != memory.key(plain(), CHAT)


def test_the_memory_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = FrameMemory(2)
    memory.keep(b"a", _frame())
    memory.keep(b"b", _frame())
    assert memory.get(b"a") is not None
    memory.keep(b"c", _frame())
    assert [memory.get(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]
    monkeypatch.setattr("structuredllm_gateway.admission.frames._MAX_BYTES", 10)
    memory.keep(b"d" * 10, _frame())
    assert len(memory) == 1


def test_some_frames_are_not_remembered() -> None:
    memory = FrameMemory(4)
    assert memory.key({"model": "m", "guided_json": {"maximum": 2**70}}, CHAT) is None
    assert memory.key({"model": "m", "guided_grammar": "x" * 70_000}, CHAT) is None
    memory.keep(None, _frame())
    memory.keep(b"a", _frame(rewritten=b"{}"))
    assert len(memory) == 0
    off = FrameMemory(0)
    off.keep(b"a", _frame())
    assert len(off) == 0


async def test_what_comes_again_is_judged_by_its_own_schema_and_its_own_shape() -> None:
    settings = settings_with(admission={"max_body_depth": 12})
    wrong = {"type": "object", "required": ["missing"]}
    async with FakeEngine() as engine, gateway(pool_of(engine), settings) as run:
        for _ in range(3):
            assert (await run.ask(structured())).status_code == 200
            assert (await run.ask(structured(wrong))).status_code in (200, 502)
            deep: Any = "x"
            for _ in range(20):
                deep = [deep]
            refused = await run.ask({**structured(), "messages": deep})
            assert refused.json()["error"]["code"] == "request_too_deep"
            missing = await run.ask(structured(model="nobody"))
            assert missing.status_code == 404
            bad = await run.ask(structured({"type": "nothing"}))
            assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_json_schema")
