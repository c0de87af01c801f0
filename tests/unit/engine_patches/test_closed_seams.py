"""The seams of p004, p005 and p006 on stand-ins; what needs tensors is tested inside the engine's
environment."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.seams import draft_gate, end_of_output, mask_rows

OPEN = [-1, -1]


class Rows(list[list[int]]):
    """A mask: rows of words; takes a list of rows as numpy does, and one row for many."""

    def __getitem__(self, key: Any) -> Any:
        get = super().__getitem__
        return Rows(get(k) for k in key) if isinstance(key, list) else get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, slice):
            value = [list(value) for _ in range(key.stop - key.start)]
        super().__setitem__(key, value)


def manager(*, diffusion: bool = False) -> Any:
    return SimpleNamespace(vllm_config=SimpleNamespace(model_config=SimpleNamespace(is_diffusion=diffusion)))


def test_open_rows_are_closed_and_counted() -> None:
    counted: list[int] = []
    mask = Rows([[1, 1], [2, 2], OPEN, OPEN, [3, 3]])
    build = mask_rows.build_grammar_bitmask(lambda *_: mask, counted.append)
    built = build(manager(), {}, ["a", "b"], {"a": [5, -1, -1]})
    assert built is mask
    assert list(built) == [[1, 1], [2, 2], [2, 2], [2, 2], [3, 3]]
    assert counted == [2]


@pytest.mark.parametrize(("drafts", "diffusion"), [({}, False), ({"a": [4]}, False), ({"a": [-1]}, True)])
def test_other_masks_are_left_alone(drafts: dict[str, list[int]], diffusion: bool) -> None:
    counted: list[int] = []
    mask = Rows([[1, 1], OPEN])
    build = mask_rows.build_grammar_bitmask(lambda *_: mask, counted.append)
    assert list(build(manager(diffusion=diffusion), {}, ["a"], drafts)) == [[1, 1], OPEN]
    assert counted == []


def test_no_mask_stays_no_mask() -> None:
    assert mask_rows.build_grammar_bitmask(lambda *_: None, print)(manager(), {}, [], {"a": [-1]}) is None


@dataclass
class GrammarOutput:
    structured_output_request_ids: list[str]
    grammar_bitmask: Rows
    num_acceptable_drafts: list[int] | None = None


def test_a_mask_that_fits_is_passed_on() -> None:
    output = GrammarOutput(["a"], Rows([[1], [2]]))
    assert draft_gate.aligned(output, {"a": 3}, {"a": 1}) is output


def test_rows_of_drafts_that_the_worker_dropped_are_dropped() -> None:
    output = GrammarOutput(["a", "b"], Rows([[1], [2], [3], [4], [5]]))
    narrowed = draft_gate.aligned(output, {"a": 2, "b": 1, "plain": 4}, {"a": 1})
    assert list(narrowed.grammar_bitmask) == [[1], [2], [4]]
    assert len(output.grammar_bitmask) == 5


def test_a_mask_that_fits_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a grammar mask of 3 rows does not fit windows .*\[\(1, 0\)\]"):
        draft_gate.aligned(GrammarOutput(["a"], Rows([[1], [2], [3]])), {"a": 1}, {})


@dataclass
class Runner:
    """What the seam sees of `GPUModelRunner`."""

    speculative_config: object | None
    execute_model_state: Any = None
    seen: list[Any] = field(default_factory=list)


def test_without_speculation_nothing_is_touched() -> None:
    runner = Runner(None, execute_model_state=object())
    sample = draft_gate.build_sample_tokens(lambda r, output: r.seen.append(output))
    update = draft_gate.build_update_states(lambda r, output: r.seen.append(output))
    sample(runner, "mask")
    update(runner, "step")
    assert runner.seen == ["mask", "step"]
    assert not hasattr(runner, draft_gate.SCHEDULED)


def test_a_stage_that_samples_nothing_passes_the_mask_by() -> None:
    runner = Runner(object())
    draft_gate.build_sample_tokens(lambda r, output: r.seen.append(output))(runner, "mask")
    assert runner.seen == ["mask"]


def test_each_target_has_its_builder() -> None:
    def sample_tokens(*_: object) -> None: ...

    assert draft_gate.build(sample_tokens).__name__ == "sample_tokens"


@dataclass
class Constraints:
    none: bool

    def all_constraints_none(self) -> bool:
        return self.none


@pytest.mark.parametrize(
    ("constraints", "ignored"),
    [(None, True), (Constraints(none=True), True), (Constraints(none=False), False)],
)
def test_ignore_eos_is_for_requests_without_a_constraint(
    constraints: Constraints | None, ignored: bool
) -> None:
    params = SimpleNamespace(ignore_eos=True, structured_outputs=constraints, seen=[])
    update = end_of_output.build_update(
        lambda p, *args, **kwargs: p.seen.append((p.ignore_eos, args, kwargs))
    )
    update(params, {"a": 1}, eos_token_id=2)
    assert params.seen == [(ignored, ({"a": 1},), {"eos_token_id": 2})]
