"""The compiler of vLLM's xgrammar backend, replaced by one whose work is done in the compile pool.

Upstream (vLLM 0.32, `XgrammarBackend`) calls `compile_*` of xgrammar's `GrammarCompiler` and makes a matcher
of the result; this one has the same methods and returns xgrammar's own `CompiledGrammar`. It has come out of
a worker as JSON, or it is compiled here after a worker has shown that it can be: some grammars are a hundred
times slower to send than to compile again (`xgrammar_jobs.transfer_seconds`). What was compiled is kept, as
xgrammar's compiler keeps it, within the same limit.
"""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from structuredllm_engine_patches.compiling.attempts import result_of
from structuredllm_engine_patches.compiling.jobs import CompileJob, CompileResult, Kind, Task
from structuredllm_engine_patches.compiling.pool import CompilePool
from structuredllm_engine_patches.guided.causes import Cause, GrammarFailureError
from structuredllm_engine_patches.guided.compile_cache import CompileCache

WAIT_SECONDS = 3600.0
"""Where a caller cannot be attempted anew it waits; the pool ends every job long before this."""

QUICK_SECONDS = 0.05
"""A compilation that took a worker longer is repeated in threads of its own."""

LASTING = (Cause.GRAMMAR_COMPILE_FAILED, Cause.GRAMMAR_COMPILE_TIMEOUT, Cause.GRAMMAR_COMPILE_MEMORY)
"""Causes that the same grammar would meet again."""


class SharedJobs:
    """Lets equal jobs share one run, and remembers those that failed.

    Args:
        pool: returns what runs the jobs.
        clock: seconds.
    """

    def __init__(self, pool: Callable[[], CompilePool], clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[CompileJob, Future[CompileResult]] = {}
        self._failures: CompileCache[CompileJob, None] = CompileCache(max_bytes=0)

    def start(self, job: CompileJob) -> "Future[CompileResult]":
        """Return the future of the job's run, which may have been started for somebody else."""
        with self._lock:
            error = self._failures.failure(job, self._clock())
            if error is not None:
                failed: Future[CompileResult] = Future()
                failed.set_exception(error)
                return failed
            future = self._running.get(job)
            if future is not None:
                return future
            future = self._running[job] = self._pool().submit(job)
        future.add_done_callback(lambda done: self._ended(job, done))
        return future

    def remember(self, job: CompileJob, error: GrammarFailureError) -> None:
        """Refuse the job for a while."""
        with self._lock:
            self._failures.put_failure(job, error, self._clock())

    def _ended(self, job: CompileJob, done: "Future[CompileResult]") -> None:
        error = done.exception()
        with self._lock:
            del self._running[job]
            if isinstance(error, GrammarFailureError) and error.failure.cause in LASTING:
                self._failures.put_failure(job, error, self._clock())


class RemoteCompiler:
    """Stands in for xgrammar's `GrammarCompiler`.

    Args:
        jobs: runs and shares the jobs.
        deserialize: makes a `CompiledGrammar` of a result's bytes.
        compile_here: makes one of a job, in this process.
        slow_threads: for those that take long.
        cache_bytes: bound of the kept grammars.
    """

    def __init__(
        self,
        jobs: SharedJobs,
        deserialize: Callable[[bytes], Any],
        compile_here: Callable[[CompileJob], Any],
        slow_threads: Executor,
        cache_bytes: int,
    ) -> None:
        self._jobs = jobs
        self._deserialize = deserialize
        self._compile_here = compile_here
        self._slow_threads = slow_threads
        self._lock = threading.Lock()
        self._cache: CompileCache[CompileJob, Any] = CompileCache(cache_bytes)
        self._here: dict[CompileJob, Future[Any]] = {}

    def compile_json_schema(
        self, schema: str, *, any_whitespace: bool = True, separators: tuple[str, str] | None = None
    ) -> Any:
        """Return the compiled grammar of a JSON schema."""
        options = {"any_whitespace": any_whitespace, "separators": separators}
        return self._compile(Kind.JSON_SCHEMA, schema, json.dumps(options))

    def compile_grammar(self, ebnf: str) -> Any:
        """Return the compiled grammar of EBNF."""
        return self._compile(Kind.EBNF, ebnf)

    def compile_lark(self, lark: str) -> Any:
        """Return the compiled grammar of Lark's language."""
        return self._compile(Kind.LARK, lark)

    def compile_regex(self, regex: str) -> Any:
        """Return the compiled grammar of a regular expression."""
        return self._compile(Kind.REGEX, regex)

    def compile_structural_tag(self, tag: Any, triggers: list[str] | None = None) -> Any:
        """Return the compiled grammar of a structural tag, in its present or its older form."""
        if triggers is None:
            return self._compile(Kind.STRUCTURAL_TAG, tag)
        return self._compile(Kind.STRUCTURAL_TAG_TRIGGERS, older_tags(tag, triggers))

    def close(self) -> None:
        """End the threads."""
        self._slow_threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, kind: Kind, spec: str, options: str = "{}") -> Any:
        job = CompileJob(Task.COMPILE, kind, spec, options)
        kept = self._kept(job)
        if kept is not None:
            return kept
        result = result_of(job, lambda: self._jobs.start(job), WAIT_SECONDS)
        if result.here and result.seconds > QUICK_SECONDS:
            # In a thread that the other requests do not need.
            return result_of(("here", job), lambda: self._start_here(job), WAIT_SECONDS)
        with self._lock:
            # Of several requests that waited for one run, the first makes the grammar for all.
            kept = self._cache.get(job)
            if kept is None:
                kept = self._compile_here(job) if result.here else self._deserialize(result.blob)
                # One that was sent has a copy of its automaton for each rule, which xgrammar does not count.
                self._cache.put(job, kept, max(kept.memory_size_bytes, len(result.blob)))
        return kept

    def found_slow(self, compiled: Any, seconds: float) -> None:
        """Note that a grammar that came from here turned out to be slow when it was used."""
        with self._lock:
            job = self._cache.forget(compiled)
        if job is not None:
            detail = f"Working out what may follow a token took {seconds:.1f} s."
            self._jobs.remember(job, GrammarFailureError(Cause.GRAMMAR_COMPILE_TIMEOUT, detail))

    def _kept(self, job: CompileJob) -> Any:
        with self._lock:
            return self._cache.get(job)

    def _start_here(self, job: CompileJob) -> "Future[Any]":
        with self._lock:
            future = self._here.get(job)
            if future is None:
                future = self._here[job] = self._slow_threads.submit(self._compile_slowly, job)
        return future

    def _compile_slowly(self, job: CompileJob) -> Any:
        try:
            made = self._compile_here(job)
            with self._lock:
                self._cache.put(job, made, made.memory_size_bytes)
        finally:
            with self._lock:
                del self._here[job]
        return made


def older_tags(tags: list[Any], triggers: list[str]) -> str:
    """Return the spec of the older form of structural tags from xgrammar's `StructuralTagItem`s."""
    parts = [{"begin": tag.begin, "schema": tag.schema_, "end": tag.end} for tag in tags]
    return json.dumps({"tags": parts, "triggers": triggers})
