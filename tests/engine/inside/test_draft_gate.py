"""Fail closed, in the V1 worker: it takes no draft that the grammar does not vouch for."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.outputs import DraftTokenIds

from structuredllm_engine_patches.seams import draft_gate, mask_rows
from tests.engine.inside.closed.worker import Runner, logits_towards
from tests.engine.inside.closed.world import SCHEMA, VOCABULARY, World, allowed

DRAFTS = 3
WORDS = VOCABULARY // 32
OPEN = np.full(WORDS, -1, dtype=np.int32)
TEMPERATURES = pytest.mark.parametrize("temperature", [0.0, 1.0])


def row(*tokens: int) -> Any:
    """Return a mask row that allows just these tokens."""
    words = np.zeros(WORDS, dtype=np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << (token % 32))
    return words.view(np.int32)


def grammar_output(rows: list[Any], ids: list[str], acceptable: list[int] | None) -> Any:
    return GrammarOutput(ids, np.stack(rows), acceptable)


@pytest.fixture
def generator() -> Any:
    return torch.Generator().manual_seed(7)


@TEMPERATURES
def test_drafts_behind_the_last_verified_one_are_refused(generator: Any, temperature: float) -> None:
    windows = {"plain": [30, 31, 32], "a": [10, 20, 21], "b": [11, 22, 23], "c": [12]}
    rows = [row(12), row(13), row(11), OPEN, OPEN, OPEN, row(10), row(40, 41), OPEN, OPEN]
    output = grammar_output(rows, ["c", "b", "a"], [1, 0, 1])
    sampled = Runner().sample(windows, logits_towards(windows, generator), output, temperature=temperature)
    assert sampled["plain"][:3] == [30, 31, 32]
    assert len(sampled["plain"]) == 4
    assert sampled["a"][0] == 10
    assert sampled["a"][1] in (40, 41)
    assert len(sampled["a"]) == 2
    assert sampled["b"] == [11]
    assert sampled["c"] == [12, 13]


@TEMPERATURES
def test_upstream_takes_drafts_through_open_rows(
    generator: Any, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that p004 cures; when this fails with a new vLLM, the patch can go."""
    monkeypatch.setattr(draft_gate, "refused_drafts", lambda _: [])
    windows = {"a": [10, 20, 21]}
    output = grammar_output([row(10), OPEN, OPEN, OPEN], ["a"], [0])
    sampled = Runner().sample(windows, logits_towards(windows, generator), output, temperature=temperature)
    assert sampled["a"][:3] == [10, 20, 21]


@TEMPERATURES
def test_a_scheduler_that_says_nothing_vouches_for_nothing(generator: Any, temperature: float) -> None:
    windows = {"a": [10, 20]}
    output = grammar_output([row(10), OPEN, OPEN], ["a"], None)
    sampled = Runner().sample(windows, logits_towards(windows, generator), output, temperature=temperature)
    assert sampled["a"] == [10]


def test_a_refused_draft_of_a_sure_drafter_is_replaced_by_a_legal_token(generator: Any) -> None:
    """Target and drafter both sure of one token: nothing is left to draw from, and token 0 came out."""
    windows = {"a": [10, 20]}
    sure = torch.zeros((1, 2, VOCABULARY))
    sure[0, 0, 10] = sure[0, 1, 20] = 1.0
    output = grammar_output([row(10), OPEN, OPEN], ["a"], [0])
    logits = logits_towards(windows, generator)
    sampled = Runner().sample(windows, logits, output, draft_probabilities=sure)
    assert sampled["a"] == [10]


def test_without_the_probabilities_cure_it_is_token_zero(
    generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_gate, "REFUSED", "somewhere_else")
    windows = {"a": [10, 20]}
    sure = torch.zeros((1, 2, VOCABULARY))
    sure[0, 0, 10] = sure[0, 1, 20] = 1.0
    output = grammar_output([row(10), OPEN, OPEN], ["a"], [0])
    runner = Runner()
    original = type(runner)._get_spec_decode_draft_probs
    monkeypatch.setattr(
        type(runner),
        "_get_spec_decode_draft_probs",
        lambda self, metadata: original.__wrapped__(self, metadata),
    )
    logits = logits_towards(windows, generator)
    assert runner.sample(windows, logits, output, draft_probabilities=sure)["a"] == [0]


@TEMPERATURES
def test_shortened_windows_do_not_shift_the_rows(generator: Any, temperature: float) -> None:
    """As the `ngram_gpu` drafter shortens them: `a` lost all of its drafts, `b` one of two."""
    windows: dict[str, list[int]] = {"b": [11], "a": []}
    rows = [row(60), OPEN, OPEN, row(11), row(61), row(62)]
    output = grammar_output(rows, ["a", "b"], [0, 2])
    sampled = Runner().sample(
        windows,
        logits_towards(windows, generator),
        output,
        temperature=temperature,
        scheduled={"a": 2, "b": 2},
    )
    assert sampled == {"b": [11, 61], "a": [60]}


def test_upstream_mixes_up_rows_of_shortened_windows(generator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_gate, "aligned", lambda output, *_: output)
    windows: dict[str, list[int]] = {"b": [11], "a": []}
    rows = [row(60), row(70), row(71), row(11), row(61), row(62)]
    output = grammar_output(rows, ["a", "b"], [2, 2])
    sampled = Runner().sample(windows, logits_towards(windows, generator), output, scheduled={"a": 2, "b": 2})
    assert sampled["b"][0] == 70, "it should have met its own row, which allows 11"


def test_a_mask_that_fits_nothing_is_not_applied(generator: Any) -> None:
    windows = {"a": [10, 20]}
    output = grammar_output([row(10), OPEN], ["a"], [2])
    with pytest.raises(ValueError, match="does not fit windows"):
        Runner().sample(windows, logits_towards(windows, generator), output)


class SpeculativeWorld(World):
    """A world whose workers check drafts of their own, as the V1 worker does with asynchronous scheduling.

    Drafts are legal for a while and then not; some never reach the scheduler. The model wants all of them.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, drafts=DRAFTS)
        self.runner = Runner()
        self.generator = torch.Generator().manual_seed(seed)
        self.proposals: dict[str, list[int]] = {}

    def before_mask(self, scheduler_output: Any) -> None:
        scheduled = scheduler_output.scheduled_spec_decode_tokens
        self.proposals = {name: self._propose(name, len(tokens)) for name, tokens in scheduled.items()}
        arrived = [name for name in self.proposals if self.rng.random() < 0.7]
        tokens = [list(self.proposals[name]) for name in arrived]
        self.scheduler.update_draft_token_ids_in_output(DraftTokenIds(arrived, tokens), scheduler_output)

    def output(self, scheduler_output: Any, grammar_output: Any) -> Any:
        if not scheduler_output.scheduled_spec_decode_tokens:
            return super().output(scheduler_output, grammar_output)
        ids = list(scheduler_output.num_scheduled_tokens)
        self.rng.shuffle(ids)
        windows = {name: self.proposals.get(name, []) for name in ids}
        logits = logits_towards(windows, self.generator)
        temperature = self.rng.choice([0.0, 1.0])
        sampled = self.runner.sample(windows, logits, self._sent(grammar_output), temperature=temperature)
        return self.answer(ids, [sampled[name] for name in ids])

    def _sent(self, grammar_output: Any) -> Any:
        """Return a copy, as the workers' processes get it."""
        if grammar_output is None:
            return None
        return dataclasses.replace(grammar_output, grammar_bitmask=grammar_output.grammar_bitmask.copy())

    def _propose(self, name: str, length: int) -> list[int]:
        request = self.scheduler.requests.get(name)
        legal = self.rng.randrange(length + 1)
        tokens: list[int] = []
        if request is not None and request.use_structured_output:
            grammar = request.structured_output_request.grammar
            mask = torch.empty((1, WORDS), dtype=torch.int32)
            while len(tokens) < legal and not grammar.is_terminated():
                grammar.fill_bitmask(mask, 0)
                tokens.append(int(self.rng.choice(list(allowed(mask[0].numpy())))))
                assert grammar.accept_tokens(name, tokens[-1:])
            if tokens:
                grammar.rollback(len(tokens))
        return tokens + [self.rng.randrange(3, VOCABULARY) for _ in range(length - len(tokens))]


def speculate(seed: int) -> SpeculativeWorld:
    world = SpeculativeWorld(seed)
    for number in range(12):
        schema = {**SCHEMA, "$comment": str(number % 3)} if number % 4 else None
        world.add(f"r{number}", schema, max_tokens=60)
    world.run()
    return world


@pytest.mark.parametrize("seed", range(4))
def test_lost_and_illegal_drafts_never_reach_a_grammar(seed: int) -> None:
    world = speculate(seed)
    assert world.rejects == 0
    for number in range(12):
        record = world.records[f"r{number}"]
        if number % 4:
            assert record.finish == "stop", (number, record)
            assert '"name":"' in world.text(f"r{number}")
        else:
            assert len(record.tokens) == 60


def test_upstream_rejects_in_the_same_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_gate, "refused_drafts", lambda _: [])
    monkeypatch.setattr(mask_rows, "open_rows", lambda _: [])
    assert sum(speculate(seed).rejects for seed in range(4)) > 0
