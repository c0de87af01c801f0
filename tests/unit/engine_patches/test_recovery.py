"""When a refused token is recovered from, what is undone, and that a grammar is asked once a token."""

import dataclasses
import enum
import logging
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.guided.grammar_state import state_of
from structuredllm_engine_patches.guided.recovery import MAX_RECOVERIES, Situation, obstacle
from structuredllm_engine_patches.seams.recovery import build_accept, build_update

FINE = Situation(
    recoveries=0,
    grammar="XgrammarGrammar",
    delivered=5,
    speculates=False,
    draws_from_seed=False,
    resumable=False,
    has_prompt_logprobs=False,
    has_connector=False,
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recoveries": MAX_RECOVERIES}, "3 times before"),
        ({"grammar": "OutlinesGrammar"}, "cannot be set back"),
        ({"speculates": True}, "drafts"),
        ({"draws_from_seed": True}, "seed"),
        ({"resumable": True}, "session"),
        ({"has_prompt_logprobs": True}, "prompt logprobs"),
        ({"has_connector": True}, "connector"),
    ],
)
def test_whatever_cannot_be_undone_is_an_obstacle(change: dict[str, Any], words: str) -> None:
    assert obstacle(FINE) == ""
    assert words in obstacle(dataclasses.replace(FINE, **change))


def test_a_seeded_request_can_start_over_before_its_first_token() -> None:
    assert obstacle(dataclasses.replace(FINE, draws_from_seed=True, delivered=0)) == ""


class Status(enum.IntEnum):
    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3
    FINISHED_ERROR = 4


class XgrammarGrammar:
    """Takes 1, 2, 3, ... in order; counts how often it was asked."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.asked = 0
        self.broken = False

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        self.asked += 1
        for token in tokens:
            if self.broken or token != len(self.taken) + 1:
                return False
            self.taken.append(token)
        return True

    def reset(self) -> None:
        self.taken = []


@dataclass
class Request:
    request_id: str = "r"
    status: Status = Status.RUNNING
    output_token_ids: list[int] = field(default_factory=list)
    resumable: bool = False
    drop_stale_output: bool = False
    num_preemptions: int = 0
    structured_output_request: Any = None
    sampling_params: Any = field(
        default_factory=lambda: SimpleNamespace(
            prompt_logprobs=None, sampling_type=SimpleNamespace(name="GREEDY")
        )
    )

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)


@dataclass
class Scheduler:
    running: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    prev_step_scheduled_req_ids: set[str] = field(default_factory=set)
    finished_req_ids: set[str] = field(default_factory=set)
    use_v2_model_runner: bool = False
    num_spec_tokens: int = 0
    connector: Any = None
    structured_output_manager: Any = field(default_factory=lambda: SimpleNamespace(reasoner_cls=None))

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        assert request not in self.running
        request.status = Status.PREEMPTED
        request.drop_stale_output = drop_stale_output
        request.num_preemptions += 1
        self.waiting.insert(0, request)


@dataclass
class Bench:
    """The scheduler's part of one request, as `update_from_output` goes through it."""

    scheduler: Scheduler = field(default_factory=Scheduler)
    grammar: XgrammarGrammar = field(default_factory=XgrammarGrammar)
    asks_once: bool = True
    recovered: int = 0

    def __post_init__(self) -> None:
        self.request = self.new_request()
        self.update = build_update(
            self.take, asks_once=lambda: self.asks_once, count=self.count, logger=logging.getLogger("x")
        )
        self.accept = build_accept(
            lambda manager, request, tokens: request.structured_output_request.grammar.accept_tokens(
                request.request_id, tokens
            )
        )

    def new_request(self) -> Request:
        request = Request(structured_output_request=SimpleNamespace(grammar=self.grammar))
        self.scheduler.running.append(request)
        self.scheduler.prev_step_scheduled_req_ids.add(request.request_id)
        return request

    @staticmethod
    def take(scheduler: Scheduler, request: Request, tokens: list[int]) -> tuple[list[int], bool]:
        request.output_token_ids.extend(tokens)
        return tokens, False

    def count(self) -> None:
        self.recovered += 1

    def step(self, *tokens: int) -> str:
        """Give the request sampled tokens; says what became of them, as upstream would decide."""
        taken, stopped = self.update(self.scheduler, self.request, list(tokens))
        if taken and not self.accept(None, self.request, taken):
            return "rejected"
        return "stopped" if stopped else f"took {taken}"


def test_accepted_tokens_are_asked_for_once_and_taken() -> None:
    bench = Bench()
    assert [bench.step(1), bench.step(2)] == ["took [1]", "took [2]"]
    assert bench.grammar.asked == 2
    assert bench.grammar.taken == bench.request.output_token_ids == [1, 2]
    assert bench.recovered == 0


def test_a_refused_token_is_never_part_of_the_request_and_its_steps_are_dropped() -> None:
    bench = Bench()
    bench.step(1)
    assert bench.step(7) == "took []"
    request, scheduler = bench.request, bench.scheduler
    assert request.output_token_ids == bench.grammar.taken == [1]
    assert scheduler.running == []
    assert scheduler.waiting == [request]
    assert request.status is Status.PREEMPTED
    assert request.drop_stale_output
    assert scheduler.prev_step_scheduled_req_ids == set()
    assert scheduler.finished_req_ids == set()
    assert bench.recovered == 1


def test_a_refused_first_token_lets_the_request_start_over() -> None:
    bench = Bench()
    assert bench.step(7) == "took []"
    assert bench.request.status is Status.WAITING
    assert bench.scheduler.finished_req_ids == {"r"}
    second = Bench(Scheduler(use_v2_model_runner=True))
    assert second.step(7) == "took []"
    assert second.request.status is Status.PREEMPTED
    assert second.scheduler.finished_req_ids == set()


def test_after_three_recoveries_the_refusal_stands() -> None:
    bench = Bench()
    bench.step(1)
    for _ in range(MAX_RECOVERIES):
        assert bench.step(7) == "took []"
        bench.request.status = Status.RUNNING
        bench.scheduler.running = [bench.request]
    asked = bench.grammar.asked
    assert bench.step(7) == "rejected"
    assert bench.grammar.asked == asked + 1
    assert bench.recovered == MAX_RECOVERIES


def test_output_still_delivered_after_a_preemption_is_void_from_the_refused_token_on() -> None:
    bench = Bench()
    bench.step(1)
    bench.scheduler.running = []
    bench.scheduler.waiting = [bench.request]
    bench.request.status = Status.PREEMPTED
    assert bench.step(7) == "took []"
    assert bench.request.drop_stale_output
    assert bench.scheduler.waiting == [bench.request]
    assert bench.request.num_preemptions == 0


def test_a_grammar_that_refuses_its_own_history_ends_the_request() -> None:
    bench = Bench()
    bench.step(1)
    bench.grammar.broken = True
    assert bench.step(2) == "rejected"
    assert bench.scheduler.running == [bench.request]
    assert bench.recovered == 0


@pytest.mark.parametrize("what", ["drafts", "reasoning", "no verdict patch"])
def test_where_the_grammar_cannot_be_asked_first_upstream_decides(what: str) -> None:
    bench = Bench(asks_once=what != "no verdict patch")
    if what == "reasoning":
        bench.scheduler.structured_output_manager.reasoner_cls = object
    tokens = (1, 2) if what == "drafts" else (1,)
    assert bench.step(*tokens) == f"took {list(tokens)}"
    assert bench.grammar.asked == 1
    assert bench.step(9) == ("took []" if what == "drafts" else "rejected")


def test_plain_requests_are_left_alone() -> None:
    bench = Bench()
    bench.request.structured_output_request = None
    assert bench.update(bench.scheduler, bench.request, [9]) == ([9], False)


def test_a_dead_end_takes_no_token_and_stops() -> None:
    bench = Bench()
    bench.step(1)
    state_of(bench.request.structured_output_request).dead_end = True
    assert bench.step(2) == "stopped"
    assert bench.request.status is Status.FINISHED_ERROR
    assert bench.request.output_token_ids == [1]
