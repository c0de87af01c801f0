"""The end of a structured answer: extra stop ids, min_tokens, ignore_eos, the end inside a window, trailing
text."""

import inspect
import json
from typing import Any

import pytest
import torch
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.logits_processor.interface import BatchUpdate

from tests.engine.inside.closed.world import END, SCHEMA, VOCABULARY, World, allowed

WORDS = VOCABULARY // 32
TEXT: dict[str, Any] = {"type": "string", "pattern": "^[a-z ]{1,12}$"}
NO_LIMIT = 0


@pytest.fixture(scope="module")
def world() -> World:
    return World(drafts=3)


def token_of(world: World, text: str) -> int:
    (token,) = world.manager.tokenizer.encode(text, add_special_tokens=False)
    return int(token)


def mask_of(grammar: Any) -> set[int]:
    row = torch.empty((1, WORDS), dtype=torch.int32)
    grammar.fill_bitmask(row, 0)
    return set(allowed(row[0].numpy()).tolist())


@pytest.mark.parametrize("schema", [SCHEMA, TEXT, {"type": "integer"}, {"enum": ["a", "ab", "abc"]}])
@pytest.mark.parametrize("stops", [["<|endoftext|>"], ["a"], ["e", "t", "a"], ["the"]])
def test_extra_stop_ids_are_allowed_at_the_end_only(world: World, schema: Any, stops: list[str]) -> None:
    """Also ids that are legal inside strings: the mask must not offer what the grammar then refuses, nor end
    the answer in mid-string."""
    ids = {world.manager.tokenizer.convert_tokens_to_ids(text) for text in stops}
    for seed in range(12):
        world.rng.seed(seed)
        request = world.make("a", schema, stop_token_ids=sorted(ids))
        grammar = request.structured_output_request.grammar
        tokens: list[int] = []
        while not grammar.is_terminated() and len(tokens) < 200:
            offered = mask_of(grammar)
            if not offered:
                # No way on without a token that the client made a stop: the answer cannot be given.
                break
            if offered & (ids | {END}):
                assert (ids | {END}) <= offered, "one stop id is offered and another is not"
                text = world.manager.tokenizer.decode(tokens)
                json.loads(text)
            tokens.append(world.rng.choice(sorted(offered)))
            assert grammar.accept_tokens("a", tokens[-1:]), (tokens, offered & ids)
        assert not (set(tokens[:-1]) & ids)


def test_an_extra_stop_id_ends_the_request_like_the_end_token() -> None:
    world = World(seed=1)
    extra = 0
    for number in range(12):
        world.add(f"r{number}", SCHEMA, stop_token_ids=[extra])
    world.run()
    ends = {world.records[f"r{n}"].tokens[-1] for n in range(12)}
    assert ends == {END, extra}
    for number in range(12):
        record = world.records[f"r{number}"]
        assert record.finish == "stop"
        assert record.stop_reason == (extra if record.tokens[-1] == extra else None)
        json.loads(world.manager.tokenizer.decode(record.tokens[:-1]))
    assert world.rejects == 0


@pytest.mark.parametrize("sampling", [{}, {"ignore_eos": True}, {"min_tokens": 100, "ignore_eos": True}])
def test_the_request_ends_where_its_grammar_ends(sampling: dict[str, Any]) -> None:
    world = World(seed=2)
    for number in range(6):
        world.add(f"r{number}", SCHEMA, **sampling)
    world.add("plain", None, max_tokens=110, **sampling)
    world.run()
    for number in range(6):
        record = world.records[f"r{number}"]
        assert record.finish == "stop"
        assert record.tokens.count(END) == 1
        assert record.tokens[-1] == END
        assert set(json.loads(world.text(f"r{number}"))) == {"name", "ok"}
    assert world.rejects == 0


def test_ignore_eos_stays_for_requests_without_a_constraint(world: World) -> None:
    assert world.make("a", None, ignore_eos=True).sampling_params.eos_token_id is None
    assert world.make("a", SCHEMA, ignore_eos=True).sampling_params.eos_token_id == END


def test_upstream_goes_on_after_the_end_with_ignore_eos(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that p006 cures; when this fails with a new vLLM, the patch can go."""
    patched = SamplingParams.update_from_generation_config
    monkeypatch.setattr(SamplingParams, "update_from_generation_config", inspect.unwrap(patched))
    world = World(seed=2)
    world.add("a", SCHEMA, ignore_eos=True)
    world.run()
    record = world.records["a"]
    assert record.finish == "length"
    assert len(record.tokens) == 120
    with pytest.raises(json.JSONDecodeError):
        json.loads(world.text("a"))


def processed(world: World, rows: list[tuple[Any, int, bool]]) -> Any:
    """Return logits after vLLM's min_tokens processor.

    Args:
        rows: for each request what its mask allows (None: everything), its min_tokens and whether it has a
            constraint.
    """
    processor = MinTokensLogitsProcessor(world.config, torch.device("cpu"), False)
    logits = torch.zeros((len(rows), VOCABULARY))
    added: list[Any] = []
    for number, (offered, minimum, constrained) in enumerate(rows):
        constraint = StructuredOutputsParams(json="{}") if constrained else None
        params = SamplingParams(min_tokens=minimum, max_tokens=200, structured_outputs=constraint)
        params.update_from_generation_config({}, END)
        added.append((number, params, [], []))
        if offered is not None:
            forbidden = torch.ones(VOCABULARY, dtype=torch.bool)
            forbidden[list(offered)] = False
            logits[number, forbidden] = -float("inf")
    processor.update_state(BatchUpdate(batch_size=len(rows), removed=[], added=added, moved=[]))
    return processor.apply(logits)


def test_min_tokens_does_not_forbid_the_last_legal_token(world: World) -> None:
    """In 0.32 upstream does this itself; 0.22 samples from an empty row here."""
    logits = processed(world, [({END}, 50, True), ({END, 7}, 50, True), (None, 50, False), ({END}, 0, True)])
    finite = [torch.isfinite(row).nonzero().flatten().tolist() for row in logits]
    assert finite[0] == [END]
    assert finite[1] == [7]
    assert END not in finite[2]
    assert finite[3] == [END]


def test_the_end_inside_a_window(world: World) -> None:
    """A window with the end and drafts behind it: valid up to the end, no reject, nothing kept behind it."""
    request = world.make("a", {"const": True})
    grammar = request.structured_output_request.grammar
    true = token_of(world, "true")
    assert world.manager.validate_tokens(request, [true, END, 9]) == [true, END]
    assert grammar.num_processed_tokens == 0
    assert not grammar.is_terminated()
    assert grammar.accept_tokens("a", [true, END, 9, 9])
    assert grammar.is_terminated()
    assert grammar.accept_tokens("a", [9])
    assert world.manager.validate_tokens(request, [9, 9]) == []


def test_tokens_behind_the_end_never_leave_the_scheduler() -> None:
    """A step that sampled the end and a token behind it, as speculative decoding does."""
    world = World(drafts=3)
    true = token_of(world, "true")
    world.add("a", {"const": True})
    first = world.scheduler.schedule()
    world.scheduler.get_grammar_bitmask(first)
    world.flying.append((first, world.answer(["a"], [[true]])))
    world.land()
    second = world.scheduler.schedule()
    world.scheduler.get_grammar_bitmask(second)
    assert second.scheduled_spec_decode_tokens["a"] == [-1, -1, -1]
    world.flying.append((second, world.answer(["a"], [[END, 9, 9]])))
    world.land()
    record = world.records["a"]
    assert record.tokens == [true, END]
    assert record.finish == "stop"
    assert world.rejects == 0
    assert not world.scheduler.has_unfinished_requests()
