"""The stand-ins for xgrammar's compiler and parser: what they ask the pool, keep, share and remember."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.compiling.attempts import RESULTS
from structuredllm_engine_patches.compiling.jobs import CompileJob, CompileResult, Kind, Task
from structuredllm_engine_patches.guided.causes import Cause, GrammarFailureError
from structuredllm_engine_patches.seams import validate_ahead
from structuredllm_engine_patches.seams.grammar_checks import (
    build_validate,
    build_validate_guidance,
    with_stand_ins,
)
from structuredllm_engine_patches.seams.remote_compiler import RemoteCompiler, SharedJobs


class Pool:
    """Settles a job at once as `outcome` says, or leaves it to the test."""

    def __init__(self) -> None:
        self.jobs: list[CompileJob] = []
        self.futures: list[Future[CompileResult]] = []
        self._asked = threading.Semaphore(0)
        self.outcome: Callable[[CompileJob], Any] | None = lambda job: CompileResult(job.spec.encode(), 0.0)

    async def asked_for(self, jobs: int) -> None:
        for _ in range(jobs):
            assert await asyncio.to_thread(self._asked.acquire, timeout=5)

    def submit(self, job: CompileJob) -> "Future[CompileResult]":
        self.jobs.append(job)
        future: Future[CompileResult] = Future()
        self.futures.append(future)
        self._asked.release()
        if self.outcome is not None:
            result = self.outcome(job)
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        return future


@dataclass(eq=False)
class Grammar:
    text: str
    memory_size_bytes: int = 10


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def jobs(pool: Pool, now: list[float]) -> SharedJobs:
    return SharedJobs(lambda: pool, clock=lambda: now[0])  # type: ignore[arg-type,return-value]


@pytest.fixture
def compiler(jobs: SharedJobs) -> Iterator[RemoteCompiler]:
    made = RemoteCompiler(
        jobs,
        lambda blob: Grammar(blob.decode()),
        lambda job: Grammar(f"{job.spec} here {threading.current_thread().name[:4]}"),
        ThreadPoolExecutor(1, "slow"),
        cache_bytes=25,
    )
    yield made
    made.close()


def test_every_kind_is_sent_with_its_options(compiler: RemoteCompiler, pool: Pool) -> None:
    tag = SimpleNamespace(begin="<a>", schema_="{}", end="</a>")
    compiler.compile_json_schema("{}", any_whitespace=False, separators=(",", ":"))
    compiler.compile_grammar("ebnf")
    compiler.compile_lark("lark")
    compiler.compile_regex("regex")
    compiler.compile_structural_tag("tag")
    compiler.compile_structural_tag([tag], ["<a>"])
    assert {job.task for job in pool.jobs} == {Task.COMPILE}
    assert [(job.kind, job.spec, json.loads(job.options)) for job in pool.jobs] == [
        (Kind.JSON_SCHEMA, "{}", {"any_whitespace": False, "separators": [",", ":"]}),
        (Kind.EBNF, "ebnf", {}),
        (Kind.LARK, "lark", {}),
        (Kind.REGEX, "regex", {}),
        (Kind.STRUCTURAL_TAG, "tag", {}),
        (
            Kind.STRUCTURAL_TAG_TRIGGERS,
            '{"tags": [{"begin": "<a>", "schema": "{}", "end": "</a>"}], "triggers": ["<a>"]}',
            {},
        ),
    ]


def test_a_grammar_is_compiled_once_while_it_is_kept(compiler: RemoteCompiler, pool: Pool) -> None:
    first = compiler.compile_regex("a")
    assert compiler.compile_regex("a") is first
    compiler.compile_regex("b")
    compiler.compile_regex("c")
    assert len(pool.jobs) == 3
    assert compiler.compile_regex("a") is not first


@pytest.mark.parametrize(("seconds", "thread"), [(0.01, "Main"), (1.0, "slow")])
def test_what_is_cheaper_compiled_than_sent_is_compiled_here(
    compiler: RemoteCompiler, pool: Pool, seconds: float, thread: str
) -> None:
    pool.outcome = lambda job: CompileResult(b"", seconds, here=True)
    made = compiler.compile_regex("a")
    assert made.text == f"a here {thread}"
    assert compiler.compile_regex("a") is made
    assert len(pool.jobs) == 1


def test_a_grammar_that_was_sent_counts_with_all_of_its_bytes(compiler: RemoteCompiler, pool: Pool) -> None:
    compiler.compile_regex("x" * 20)
    compiler.compile_regex("y" * 20)
    compiler.compile_regex("x" * 20)
    assert len(pool.jobs) == 3


def test_equal_jobs_under_way_are_one(jobs: SharedJobs, pool: Pool) -> None:
    pool.outcome = None
    job = CompileJob(Task.COMPILE, Kind.REGEX, "a")
    assert jobs.start(job) is jobs.start(job)
    pool.futures[0].set_result(CompileResult(b"", 0))
    jobs.start(job)
    assert len(pool.jobs) == 2


@pytest.mark.parametrize(
    ("cause", "runs"),
    [
        (Cause.GRAMMAR_COMPILE_TIMEOUT, 1),
        (Cause.GRAMMAR_COMPILE_MEMORY, 1),
        (Cause.GRAMMAR_COMPILE_FAILED, 1),
        (Cause.GRAMMAR_COMPILER_UNAVAILABLE, 2),
    ],
)
def test_a_bomb_sent_again_costs_nothing(
    compiler: RemoteCompiler, pool: Pool, now: list[float], cause: Cause, runs: int
) -> None:
    pool.outcome = lambda job: GrammarFailureError(cause)
    for _ in range(2):
        with pytest.raises(GrammarFailureError) as caught:
            compiler.compile_regex("bomb")
        assert caught.value.failure.cause is cause
    assert len(pool.jobs) == runs
    now[0] = 61
    with pytest.raises(GrammarFailureError):
        compiler.compile_regex("bomb")
    assert len(pool.jobs) == runs + 1


xgr = SimpleNamespace(
    Grammar=None, StructuralTagItem=lambda **kw: SimpleNamespace(schema_=kw.pop("schema"), **kw)
)


def compile_regex_with_timeout(fn: Callable[[str], Any], pattern: str) -> Any:
    raise AssertionError("starts a thread")


def validate_xgrammar_grammar(params: Any) -> None:
    """Upstream's control flow."""
    constraint = params.structured_outputs
    try:
        if constraint.regex:
            compile_regex_with_timeout(xgr.Grammar.from_regex, constraint.regex)
        if constraint.json:
            xgr.Grammar.from_json_schema(constraint.json)
        if constraint.tags:
            tags = [xgr.StructuralTagItem(begin="<", schema="{}", end=">")]
            xgr.Grammar.from_structural_tag(tags, ["<"])
    except Exception as error:
        raise ValueError(f"Failed to transform: {error}") from error


def params_of(regex: str = "", json: Any = None, tags: bool = False) -> Any:
    return SimpleNamespace(structured_outputs=SimpleNamespace(regex=regex, json=json, tags=tags))


@pytest.fixture
def validate(jobs: SharedJobs) -> Callable[[Any], None]:
    return build_validate(validate_xgrammar_grammar, jobs)


def test_upstreams_body_runs_with_the_stand_ins(validate: Callable[[Any], None], pool: Pool) -> None:
    validate(params_of("a", {"type": "object"}, tags=True))
    validate(params_of("a", {"type": "object"}, tags=True))
    assert [(job.task, job.kind) for job in pool.jobs] == [
        (Task.PARSE, Kind.REGEX),
        (Task.PARSE, Kind.JSON_SCHEMA),
        (Task.PARSE, Kind.STRUCTURAL_TAG_TRIGGERS),
    ]
    assert validate.__name__ == "validate_xgrammar_grammar"
    assert validate.__wrapped__ is validate_xgrammar_grammar  # type: ignore[attr-defined]


def test_a_bad_grammar_keeps_upstreams_message_and_others_their_cause(
    validate: Callable[[Any], None], pool: Pool
) -> None:
    pool.outcome = lambda job: GrammarFailureError(Cause.GRAMMAR_COMPILE_FAILED, "EBNF line 1")
    with pytest.raises(ValueError, match=r"^Failed to transform: EBNF line 1$"):
        validate(params_of("a"))
    pool.outcome = lambda job: GrammarFailureError(Cause.GRAMMAR_COMPILE_TIMEOUT)
    with pytest.raises(ValueError, match="longer") as caught:
        validate(params_of("b"))
    assert isinstance(caught.value.__cause__, GrammarFailureError)


llguidance = SimpleNamespace(LLMatcher=None)


def validate_guidance_grammar(grammar: str) -> None:
    """Upstream's control flow."""
    error = llguidance.LLMatcher.validate_grammar(grammar, None)
    if error:
        raise ValueError(f"Grammar error: {error}")


def test_guidances_validation_runs_in_the_pool_too(jobs: SharedJobs, pool: Pool) -> None:
    validate = build_validate_guidance(validate_guidance_grammar, jobs)
    validate("good")
    assert [(job.task, job.kind, job.spec) for job in pool.jobs] == [(Task.PARSE, Kind.GUIDANCE, "good")]
    pool.outcome = lambda job: GrammarFailureError(Cause.GRAMMAR_COMPILE_FAILED, "no start")
    with pytest.raises(ValueError, match=r"^Grammar error: no start$"):
        validate("bad")
    pool.outcome = lambda job: GrammarFailureError(Cause.GRAMMAR_COMPILE_TIMEOUT)
    with pytest.raises(GrammarFailureError):
        validate("bomb")


def test_only_plain_functions_get_stand_ins() -> None:
    with pytest.raises(TypeError, match="another patch"):
        with_stand_ins(print)


class Llm:
    """The part of `AsyncLLM` that the seam touches."""

    def __init__(self, validate: Callable[[Any], None]) -> None:
        self.input_processor = SimpleNamespace(
            model_config="model", structured_outputs_config="config", tokenizer="tokenizer"
        )
        self.added: list[str] = []
        self.validate = validate

    async def add_request(self, request_id: str, prompt: Any, params: Any, priority: int = 0) -> str:
        if params is not None and params.structured_outputs is not None:
            self.validate(params)
        self.added.append(request_id)
        return f"{request_id} {priority}"


def request(validate: Callable[[Any], None], regex: str) -> Any:
    params = params_of(regex)
    params._validate_structured_outputs = lambda *config: validate(params)
    return params


@pytest.fixture
def llm(validate: Callable[[Any], None]) -> Llm:
    made = Llm(validate)
    setattr(made, validate_ahead.THREADS_ATTRIBUTE, ThreadPoolExecutor(1))
    return made


add_request = validate_ahead.build(Llm.add_request, None)  # type: ignore[arg-type]


async def test_many_wait_for_their_verdict_and_the_loop_goes_on(
    llm: Llm, validate: Callable[[Any], None], pool: Pool
) -> None:
    pool.outcome = None
    waiting = [
        asyncio.create_task(add_request(llm, f"r{n}", "prompt", request(validate, f"regex {n}")))
        for n in range(5)
    ]
    await pool.asked_for(5)
    assert await add_request(llm, "plain", "prompt", None, priority=3) == "plain 3"
    assert llm.added == ["plain"]
    pool.futures[0].set_exception(GrammarFailureError(Cause.GRAMMAR_COMPILE_TIMEOUT))
    for future in pool.futures[1:]:
        future.set_result(CompileResult(b"", 0))
    with pytest.raises(ValueError, match="longer"):
        await waiting[0]
    assert await asyncio.gather(*waiting[1:]) == ["r1 0", "r2 0", "r3 0", "r4 0"]
    assert sorted(llm.added) == ["plain", "r1", "r2", "r3", "r4"]
    assert len(pool.jobs) == 5, "upstream's own validation finds the verdict"
    assert RESULTS.get() is None


async def test_on_the_loop_a_grammar_without_a_verdict_passes_for_now(
    validate: Callable[[Any], None], pool: Pool
) -> None:
    validate(params_of("unknown"))
    assert pool.jobs == []


async def test_a_caller_that_leaves_disturbs_nobody(
    llm: Llm, validate: Callable[[Any], None], pool: Pool
) -> None:
    pool.outcome = None
    leaving = asyncio.create_task(add_request(llm, "leaving", "prompt", request(validate, "same")))
    await pool.asked_for(1)
    staying = asyncio.create_task(add_request(llm, "staying", "prompt", request(validate, "same")))
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    pool.outcome = lambda job: CompileResult(b"", 0)
    pool.futures[0].set_result(CompileResult(b"", 0))
    assert await staying == "staying 0"
    assert llm.added == ["staying"]
