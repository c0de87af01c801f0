"""vLLM's own manager, backend and validation with real xgrammar: bombs end at their limits, nothing stays."""

import asyncio
import dataclasses
import gc
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import xgrammar
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager, backend_xgrammar

from structuredllm_engine_patches.compiling.attempts import AttemptExecutor
from structuredllm_engine_patches.guided.causes import Cause, GrammarFailureError, failure_of
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.seams import validate_ahead
from structuredllm_engine_patches.seams.compile_pools import Role, close_pool
from structuredllm_engine_patches.settings import CompileSettings
from structuredllm_engine_patches.telemetry.metrics import COMPILE_SECONDS, COMPILE_WORKERS_LOST
from tools.models.store import ensure_model

TIMEOUT = 2.0
MEMORY = 128 << 20
PATTERN_BOMB = "^([a-z]{0,%d}){0,100}$"
"""60 characters; xgrammar needs minutes to parse it."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "age": {"type": "integer"}, "why": {"type": "string"}},
    "required": ["name", "age", "why"],
    "additionalProperties": False,
}
WIDE = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(100)}}
"""Cheaper compiled twice than sent."""

LARGE = {
    "type": "object",
    "properties": {
        f"p{n}": {"type": "object", "properties": {"s": {"type": "string", "maxLength": 200}}}
        for n in range(30)
    },
}
"""The same, and slow."""

TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [
            {"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}
        ],
    },
}
OLD_TAG = {"structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f="]}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "json": {"json": json.dumps(SCHEMA)},
    "wide": {"json": json.dumps(WIDE)},
    "large": {"json": json.dumps(LARGE)},
    "json_object": {"json_object": True},
    "regex": {"regex": r"[a-z]{2,5}(-\d+)?"},
    "choice": {"choice": ["yes", "no\nplease", 'a "b"']},
    "ebnf": {"grammar": 'root ::= "a" [b-d]{1,3} | "x"'},
    "lark": {"grammar": 'start: "a" /[b-d]{1,3}/'},
    "tag": {"structural_tag": json.dumps(TAG)},
    "old tag": {"structural_tag": json.dumps(OLD_TAG)},
}


@pytest.fixture(scope="module")
def config() -> Any:
    return EngineArgs(
        model=str(ensure_model("toy")),
        dtype="float32",
        max_model_len=1024,
        enforce_eager=True,
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
    ).create_engine_config()


@pytest.fixture(scope="module")
def limits(installation: Installation) -> Iterator[Installation]:
    """The installation with limits that a test can wait for."""
    settings = installation.settings
    for role in Role:
        close_pool(installation, role)
    installation.settings = dataclasses.replace(settings, compiling=CompileSettings(TIMEOUT, MEMORY, 2))
    yield installation
    for role in Role:
        close_pool(installation, role)
    installation.settings = settings


@pytest.fixture(scope="module")
def manager(config: Any, limits: Installation) -> Iterator[Any]:
    made = StructuredOutputManager(config)
    assert isinstance(made.executor, AttemptExecutor)
    yield made
    made.clear_backend()


def constraint(**kinds: Any) -> StructuredOutputsParams:
    made = StructuredOutputsParams(**kinds)
    made._backend = "xgrammar"
    return made


def request(name: str, **kinds: Any) -> Any:
    params = SamplingParams(max_tokens=10, structured_outputs=constraint(**kinds))
    params.update_from_generation_config({"eos_token_id": 2}, 2)
    validated = backend_xgrammar.validate_xgrammar_grammar
    if "choice" in kinds:
        validated(params)
    return Request(request_id=name, prompt_token_ids=[5], sampling_params=params, pooling_params=None)


def start(manager: Any, name: str, **kinds: Any) -> Any:
    made = request(name, **kinds)
    manager.grammar_init(made)
    return made


def grammar_of(made: Any, seconds: float = 30) -> Any:
    """Return what the scheduler would see: the grammar or its error."""
    end = time.monotonic() + seconds
    while not made.structured_output_request.is_grammar_ready:
        assert time.monotonic() < end, "neither a grammar nor an error came"
        time.sleep(0.005)
    return made.structured_output_request.grammar


def cause_of(made: Any) -> Cause:
    error = grammar_of(made)
    assert isinstance(error, Exception), "it compiled"
    return failure_of(error).cause


def bomb(number: int) -> dict[str, Any]:
    return {"json": json.dumps({"type": "string", "pattern": PATTERN_BOMB % (10000 + number)})}


def left_behind() -> tuple[int, set[str]]:
    """Return how many threads and which descriptors this process has."""
    gc.collect()
    return threading.active_count(), set(os.listdir("/proc/self/fd"))


def resident_mib() -> float:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def compile_processes() -> list[int]:
    """Return the ids of the compile processes below this one."""
    found, todo = [], [os.getpid()]
    while todo:
        pid = todo.pop()
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                children = [int(child) for child in file.read().split()]
            todo += children
            found += children
    return found


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_masks_are_those_of_a_grammar_compiled_in_process(manager: Any, config: Any, kind: str) -> None:
    remote = grammar_of(start(manager, f"same {kind}", **CONSTRAINTS[kind]))
    assert not isinstance(remote, Exception), remote
    local = local_grammar(manager, config, request(f"local {kind}", **CONSTRAINTS[kind]))
    rng = random.Random(kind)  # noqa: S311
    masks = [xgrammar.allocate_token_bitmask(1, remote.vocab_size) for _ in range(2)]
    for _ in range(60):
        for mask, grammar in zip(masks, (remote, local), strict=True):
            grammar.fill_bitmask(mask, 0)
        assert (masks[0] == masks[1]).all()
        allowed = [t for t in range(remote.vocab_size) if masks[0][0][t // 32].item() >> (t % 32) & 1]
        token = rng.choice(allowed)
        assert remote.accept_tokens("r", [token])
        assert local.accept_tokens("r", [token])
        if remote.is_terminated():
            break
    assert remote.is_terminated() == local.is_terminated()


def local_grammar(manager: Any, config: Any, made: Any) -> Any:
    """Compile with upstream's own backend and compiler, in this process."""
    upstream = object.__new__(backend_xgrammar.XgrammarBackend)
    upstream.vllm_config, upstream.tokenizer = config, manager.tokenizer
    upstream.vocab_size = config.model_config.get_vocab_size()
    backend_xgrammar.XgrammarBackend.__post_init__.__wrapped__(upstream)
    assert isinstance(upstream.compiler, xgrammar.GrammarCompiler)
    stop = made.sampling_params.all_stop_token_ids
    return upstream.compile_grammar(
        *made.structured_output_request.structured_output_key, stop_token_ids=stop
    )


def test_a_bomb_ends_at_its_time_limit_and_its_process_is_gone(manager: Any, limits: Installation) -> None:
    assert not isinstance(grammar_of(start(manager, "warm", **CONSTRAINTS["regex"])), Exception)
    before = left_behind()
    lost = limits.observation.value(COMPILE_WORKERS_LOST, reason="timeout")
    started = time.monotonic()
    bombed = start(manager, "bomb", **bomb(0))
    time.sleep(0.5)
    running = compile_processes()
    assert cause_of(bombed) is Cause.GRAMMAR_COMPILE_TIMEOUT
    assert TIMEOUT <= time.monotonic() - started < TIMEOUT + 1
    assert limits.observation.value(COMPILE_WORKERS_LOST, reason="timeout") == lost + 1
    time.sleep(0.2)
    assert set(running) - set(compile_processes()), "the process that compiled it is still there"
    assert not isinstance(grammar_of(start(manager, "next", regex="next[a-z]")), Exception)
    assert left_behind()[0] <= before[0] + 2, "a thread was left behind"
    assert len(left_behind()[1]) <= len(before[1]) + 2


def test_the_same_bomb_again_is_refused_at_once(manager: Any) -> None:
    assert cause_of(start(manager, "bomb 1", **bomb(1))) is Cause.GRAMMAR_COMPILE_TIMEOUT
    started = time.monotonic()
    assert cause_of(start(manager, "bomb 1 again", **bomb(1))) is Cause.GRAMMAR_COMPILE_TIMEOUT
    assert time.monotonic() - started < 0.5


def test_memory_is_limited(manager: Any, limits: Installation) -> None:
    own = resident_mib()
    rules = "\n".join(f'r{n} ::= "a{n}" r{n + 1} | "b"' for n in range(100_000))
    made = start(manager, "memory", grammar=f'root ::= r0\n{rules}\nr100000 ::= "z"')
    assert cause_of(made) is Cause.GRAMMAR_COMPILE_MEMORY
    assert resident_mib() - own < 64


def test_bad_grammars_fail_with_their_own_words(manager: Any) -> None:
    for number, kinds in enumerate(
        [{"regex": "foo**"}, {"grammar": "root ::= ("}, {"json": '{"$ref": "#/x"}'}]
    ):
        error = grammar_of(start(manager, f"bad {number}", **kinds))
        assert isinstance(error, GrammarFailureError)
        assert error.failure.cause is Cause.GRAMMAR_COMPILE_FAILED
        assert error.failure.detail


def test_what_compiles_well_and_then_takes_seconds_for_a_token_is_refused(manager: Any) -> None:
    made = start(manager, "runtime", regex="((([a-z]{0,20}){0,20}){0,20}){0,20}")
    assert cause_of(made) is Cause.GRAMMAR_COMPILE_TIMEOUT


def test_what_becomes_slow_later_allows_nothing_from_then_on_and_is_not_compiled_again(manager: Any) -> None:
    regex = "x{200}((([a-z]{0,20}){0,20}){0,20}){0,20}"
    grammar = grammar_of(start(manager, "later", regex=regex))
    assert not isinstance(grammar, Exception), "the worker's walk does not go so far"
    mask = xgrammar.allocate_token_bitmask(1, grammar.vocab_size)
    rng, steps = random.Random(3), 0  # noqa: S311
    while True:
        grammar.fill_bitmask(mask, 0)
        allowed = [t for t in range(grammar.vocab_size) if mask[0][t // 32].item() >> (t % 32) & 1]
        if not allowed:
            break
        assert grammar.accept_tokens("r", [rng.choice(allowed)])
        steps += 1
        assert steps < 400
    assert steps > 10
    assert cause_of(start(manager, "later again", regex=regex)) is Cause.GRAMMAR_COMPILE_TIMEOUT


def test_ten_bombs_hold_nobody_up(manager: Any) -> None:
    bombs = [start(manager, f"ten {n}", **bomb(10 + n)) for n in range(10)]
    waits: list[float] = []
    while not all(made.structured_output_request.is_grammar_ready for made in bombs):
        schema = {**SCHEMA, "$comment": f"{len(waits)}"}
        started = time.monotonic()
        assert not isinstance(
            grammar_of(start(manager, f"n{len(waits)}", json=json.dumps(schema))), Exception
        )
        waits.append(time.monotonic() - started)
        time.sleep(0.02)
    assert {cause_of(made) for made in bombs} <= {
        Cause.GRAMMAR_COMPILE_TIMEOUT,
        Cause.GRAMMAR_COMPILER_UNAVAILABLE,
    }
    waits.sort()
    assert len(waits) > 20, waits
    assert waits[len(waits) // 2] < 0.1, waits
    assert waits[-1] < TIMEOUT / 2, waits


def test_twenty_slow_compilations_leave_memory_and_threads_as_they_were(manager: Any) -> None:
    # Below their time limit: what upstream would have compiled in this process, and kept.
    def slow(number: int) -> None:
        made = start(
            manager,
            f"slow {number}",
            regex=f"(a{number + 3}|" + "|".join(f"w{n}[a-z]*" for n in range(4000)) + ")",
        )
        grammar_of(made)

    # What is kept has its own bound; here nothing is, so that all growth is a leak.
    compiler = manager.backend.compiler
    compiler._cache = type(compiler._cache)(0)
    for number in range(-3, 1):
        slow(number)
    threads, descriptors = left_behind()
    before = resident_mib()
    for number in range(1, 21):
        slow(number)
    compiler._cache = type(compiler._cache)(1 << 29)
    grown = resident_mib() - before
    assert grown < 128, f"{grown:.0f} MiB"
    after = left_behind()
    assert after[0] <= threads + 2, "at most the two threads for slow ones"
    assert len(after[1]) <= len(descriptors) + 2


def test_what_was_compiled_is_kept(manager: Any, limits: Installation) -> None:
    def compilations() -> int:
        found = limits.observation.distributions.get((COMPILE_SECONDS, ()))
        return sum(found.counts) if found else 0

    grammar_of(start(manager, "first", regex="kept[a-z]{3}"))
    time.sleep(0.1)
    count = compilations()
    assert count > 0
    again = grammar_of(start(manager, "second", regex="kept[a-z]{3}"))
    assert not isinstance(again, Exception)
    assert compilations() == count


class Llm:
    """The part of `AsyncLLM` that the validation ahead needs; parameters and validation are vLLM's own."""

    def __init__(self, config: Any, tokenizer: Any) -> None:
        from types import SimpleNamespace

        self.input_processor = SimpleNamespace(
            model_config=config.model_config,
            structured_outputs_config=config.structured_outputs_config,
            tokenizer=tokenizer,
        )
        from concurrent.futures import ThreadPoolExecutor

        setattr(self, validate_ahead.THREADS_ATTRIBUTE, ThreadPoolExecutor(2))

    async def add_request(self, request_id: str, prompt: Any, params: Any) -> str:
        self.verify(params)
        return request_id

    def verify(self, params: Any) -> None:
        made = self.input_processor
        params._validate_structured_outputs(made.model_config, made.structured_outputs_config, made.tokenizer)


async def gap_while(work: "Callable[[], Any]") -> float:
    """Return for how long at most the event loop was held up while `work()` was awaited."""
    worst, done = 0.0, False

    async def beat() -> None:
        nonlocal worst
        last = time.monotonic()
        while not done:
            await asyncio.sleep(0.005)
            worst, last = max(worst, time.monotonic() - last), time.monotonic()

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.02)
    try:
        await work()
    finally:
        done = True
        await beating
    return worst


@pytest.fixture(scope="module")
def llm(config: Any, manager: Any) -> Any:
    return Llm(config, manager.tokenizer)


def params(**kinds: Any) -> Any:
    return SamplingParams(max_tokens=5, structured_outputs=StructuredOutputsParams(**kinds))


add_request = validate_ahead.build(Llm.add_request, None)  # type: ignore[arg-type]


def test_a_bomb_holds_up_upstreams_event_loop(llm: Any) -> None:
    """The fault: the same validation as upstream calls it, with a bomb small enough to end by itself."""
    upstream = backend_xgrammar.validate_xgrammar_grammar.__wrapped__

    async def work() -> None:
        upstream(params(json=json.dumps({"type": "string", "pattern": PATTERN_BOMB % 300})))

    assert asyncio.run(gap_while(work)) > 0.2


def test_a_bomb_does_not_hold_up_the_event_loop(llm: Any) -> None:
    async def work() -> None:
        with pytest.raises(VLLMValidationError) as caught:
            await add_request(llm, "r", "prompt", params(**bomb(30)))
        assert failure_of(caught.value).cause is Cause.GRAMMAR_COMPILE_TIMEOUT

    assert asyncio.run(gap_while(work)) < TIMEOUT / 4


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_good_constraints_pass_and_are_prepared_as_upstream_does(llm: Any, kind: str) -> None:
    made = params(**CONSTRAINTS[kind])
    assert asyncio.run(add_request(llm, "r", "prompt", made)) == "r"
    assert made.structured_outputs._backend == "xgrammar"
    if kind == "choice":
        assert made.structured_outputs.grammar.startswith("root ::= ")


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({"regex": "foo**"}, "Failed to transform regex into a grammar"),
        ({"json": {"type": "array", "uniqueItems": True}}, "not supported"),
        ({"grammar": "root ::= ("}, "Invalid grammar specification"),
        ({"regex": "a\x00b"}, "NUL"),
        (
            {"structural_tag": '{"type":"structural_tag","format":{"type":"nothing"}}'},
            "Invalid structural tag",
        ),
    ],
)
def test_bad_constraints_are_refused_with_upstreams_words(
    llm: Any, kinds: dict[str, Any], words: str
) -> None:
    with pytest.raises(VLLMValidationError, match=words):
        asyncio.run(add_request(llm, "r", "prompt", params(**kinds)))


def test_a_bomb_for_guidance_ends_at_its_limit_too(limits: Installation) -> None:
    from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar

    rules = "\n".join(f'r{n}: "a{n}" r{n + 1} | "b"' for n in range(40_000))
    started = time.monotonic()
    with pytest.raises(GrammarFailureError) as caught:
        validate_guidance_grammar(params(grammar=f'start: r0\n{rules}\nr40000: "z"'))
    assert caught.value.failure.cause in (Cause.GRAMMAR_COMPILE_TIMEOUT, Cause.GRAMMAR_COMPILE_MEMORY)
    assert time.monotonic() - started < TIMEOUT + 1
    validate_guidance_grammar(params(grammar='start: "a" /[b-d]{1,3}/'))
    with pytest.raises(VLLMValidationError, match="Grammar error"):
        validate_guidance_grammar(params(grammar="start: missing"))


def test_without_an_event_loop_the_validation_waits(llm: Any) -> None:
    with pytest.raises(VLLMValidationError, match="transform regex"):
        llm.verify(params(regex="foo***"))
    llm.verify(params(regex="fo*"))
