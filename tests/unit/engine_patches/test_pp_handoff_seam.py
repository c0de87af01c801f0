"""The hand-off's seam on a stand-in for the runner: left out on both sides, or on neither."""

from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.seams import pp_handoff


class Runner:
    """What upstream's three methods do, as far as it matters."""

    def __init__(self) -> None:
        self.broadcasts = 0
        self.receives = 0
        self.bookkeeping = 0
        self.input_batch = SimpleNamespace(prev_sampled_token_ids="of the step before")
        self.all_chunks = False
        self.fails = False

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        return scheduler_output, intermediate_tensors

    def _is_all_reqs_chunked_prefill(self) -> bool:
        return self.all_chunks

    def _pp_broadcast_prev_sampled_token_ids(self, sampled_token_ids: Any) -> None:
        if not self._is_all_reqs_chunked_prefill():
            self.broadcasts += 1

    def _pp_receive_prev_sampled_token_ids_to_input_batch(self) -> None:
        if not self._is_all_reqs_chunked_prefill():
            self.receives += 1
        self.input_batch.prev_sampled_token_ids = "never written"
        self.bookkeeping += 1
        if self.fails:
            raise RuntimeError("in the bookkeeping")


METHODS = (
    "execute_model",
    "_pp_broadcast_prev_sampled_token_ids",
    "_pp_receive_prev_sampled_token_ids_to_input_batch",
)


@pytest.fixture
def runner() -> Any:
    patched = type("Patched", (Runner,), {name: pp_handoff.build(getattr(Runner, name)) for name in METHODS})
    return patched()


def step(runner: Any, *, on_the_cpu: bool) -> None:
    output = SimpleNamespace()
    if on_the_cpu:
        setattr(output, pp_handoff.IDS_ARE_ON_THE_CPU, True)
    assert runner.execute_model(output, "tensors") == (output, "tensors")
    runner._pp_broadcast_prev_sampled_token_ids("ids")
    runner._pp_receive_prev_sampled_token_ids_to_input_batch()


def test_without_the_word_everything_is_upstreams(runner: Any) -> None:
    step(runner, on_the_cpu=False)
    assert (runner.broadcasts, runner.receives, runner.bookkeeping) == (1, 1, 1)
    assert runner.input_batch.prev_sampled_token_ids == "never written"


def test_with_it_neither_side_runs_but_the_bookkeeping_does(runner: Any) -> None:
    step(runner, on_the_cpu=True)
    assert (runner.broadcasts, runner.receives, runner.bookkeeping) == (0, 0, 1)
    assert runner.input_batch.prev_sampled_token_ids is None


def test_the_word_holds_for_its_step_only(runner: Any) -> None:
    step(runner, on_the_cpu=True)
    step(runner, on_the_cpu=False)
    assert (runner.broadcasts, runner.receives, runner.bookkeeping) == (1, 1, 2)
    assert runner._is_all_reqs_chunked_prefill() is False


def test_an_error_leaves_no_shadow(runner: Any) -> None:
    runner.fails = True
    with pytest.raises(RuntimeError, match="bookkeeping"):
        step(runner, on_the_cpu=True)
    assert "_is_all_reqs_chunked_prefill" not in vars(runner)
