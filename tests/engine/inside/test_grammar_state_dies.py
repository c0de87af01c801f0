"""After finish, abort, preemption and reuse of an id no grammar state survives."""

import gc
import json
import weakref
from typing import Any

import jsonschema
import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.request import RequestStatus

from tests.engine.inside.closed.world import SCHEMA, World

OTHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["lima", "oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def is_valid(world: World, name: str, schema: Any) -> bool:
    try:
        jsonschema.validate(json.loads(world.text(name)), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def references(world: World, name: str) -> list[Any]:
    """Return weak references to all that a request's grammar state consists of."""
    request = world.scheduler.requests[name]
    grammar = request.structured_output_request.grammar
    return [weakref.ref(o) for o in (request, request.structured_output_request, grammar)]


def alive(found: list[Any]) -> list[str]:
    gc.collect()
    return [type(o()).__name__ for o in found if o() is not None]


def test_it_is_gone_when_the_request_finished() -> None:
    world = World()
    found = []
    for number in range(8):
        world.add(f"r{number}", SCHEMA)
        found += references(world, f"r{number}")
    world.run()
    assert all(is_valid(world, f"r{n}", SCHEMA) for n in range(8))
    assert alive(found) == []
    assert world.scheduler.requests == {}


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_it_is_gone_when_the_request_was_aborted(steps: int) -> None:
    world = World()
    world.add("a", SCHEMA)
    world.add("b", SCHEMA)
    found = references(world, "a")
    for _ in range(steps):
        world.step()
    grammar = world.grammar("a")
    taken = grammar.num_processed_tokens
    world.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    world.run()
    assert grammar.num_processed_tokens == taken, (
        "a step in flight was fed to the grammar of an aborted request"
    )
    del grammar
    assert alive(found) == []
    assert is_valid(world, "b", SCHEMA)


def test_a_compilation_that_is_aborted_leaves_nothing() -> None:
    world = World()
    request = world.add("a", SCHEMA)
    assert request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    found = references(world, "a")
    del request
    world.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    world.step()
    assert alive(found) == []


def test_it_continues_after_a_preemption() -> None:
    """Few blocks: requests are preempted in mid-answer and go on where their grammar stands."""
    world = World(seed=5, blocks=24, running=12)
    schema = {"type": "string", "pattern": "^[a-z]{70,90}$"}
    for number in range(12):
        world.add(f"r{number}", schema if number % 3 else None, prompt=20, max_tokens=110)
    requests = list(world.scheduler.requests.values())
    found = [weakref.ref(r.structured_output_request.grammar) for r in requests if r.use_structured_output]
    world.run(steps=4000)
    preempted = [r.request_id for r in requests if r.num_preemptions and r.use_structured_output]
    assert preempted
    assert world.rejects == 0
    for number in range(12):
        record = world.records[f"r{number}"]
        assert record.finish == ("stop" if number % 3 else "length")
        if number % 3:
            assert is_valid(world, f"r{number}", schema), world.text(f"r{number}")
    requests.clear()
    del preempted
    assert alive(found) == []


def test_an_id_that_comes_again_gets_a_grammar_of_its_own() -> None:
    world = World()
    for schema in (SCHEMA, OTHER, None, SCHEMA):
        world.add("a", schema, max_tokens=30 if schema is None else 120)
        if schema is not None:
            assert world.grammar("a").num_processed_tokens == 0
        world.run()
        record = world.records["a"]
        if schema is None:
            assert len(record.tokens) == 30
        else:
            assert is_valid(world, "a", schema), world.text("a")
    assert world.rejects == 0


def test_an_id_that_comes_again_after_an_abort_gets_a_grammar_of_its_own() -> None:
    world = World()
    world.add("a", SCHEMA)
    world.step()
    world.step()
    world.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    while world.flying:
        world.land()
    world.add("a", OTHER)
    world.run()
    assert is_valid(world, "a", OTHER)
    assert world.rejects == 0


def test_ids_of_requests_in_flight_are_never_the_same() -> None:
    """What keeps a step in flight from meeting a later request with the same id: the front-end's suffix."""
    ids = set()
    for _ in range(100):
        request = EngineCoreRequest(
            request_id="same",
            prompt_token_ids=[1],
            mm_features=None,
            sampling_params=SamplingParams(),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        InputProcessor.assign_request_id(request)
        assert request.external_req_id == "same"
        ids.add(request.request_id)
    assert len(ids) == 100
