"""p010: compile grammars in workers that can be killed.

Upstream (vLLM 0.32, `XgrammarBackend`) compiles in threads of the engine core's process: nothing can stop
one, and what it takes in time and memory is taken from everybody. The backend keeps all of its own code; its
compiler is replaced.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from types import SimpleNamespace
from typing import Any

from structuredllm_engine_patches.compiling.priority import LOWEST_NICENESS
from structuredllm_engine_patches.compiling.xgrammar_jobs import MAX_THREADS, compile_job
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.seams.compile_pools import Role, close_pool, pool_of
from structuredllm_engine_patches.seams.grammar_checks import build_validate, with_stand_ins, without_timeout
from structuredllm_engine_patches.seams.guarded_matcher import guarded
from structuredllm_engine_patches.seams.remote_compiler import RemoteCompiler, SharedJobs

Method = Callable[..., Any]

SLOW_THREADS = 2
"""For compilations that a worker has shown to end and that are cheaper repeated than sent."""

BODY_ATTRIBUTE = "_structuredllm_compile_grammar"

PROBE_GRAMMAR = 'root ::= "a"'
"""Compiled once, in process, to get at the tokenizer's data that upstream made."""


def build(original: Method, installation: Installation) -> Method:
    """Return the replacement of one of the targets."""
    match original.__name__:
        case "__post_init__":
            return _build_post_init(original, installation)
        case "compile_grammar":
            return _build_compile_grammar(original, installation)
        case "destroy":
            return _build_destroy(original, installation)
        case "validate_xgrammar_grammar":
            return build_validate(original, SharedJobs(lambda: pool_of(installation, Role.PARSE)))
    raise ValueError(f"{original!r} is not one of the targets")


def _build_post_init(original: Method, installation: Installation) -> Method:
    @wraps(original)
    def __post_init__(backend: Any) -> None:
        original(backend)
        backend.compiler = make_compiler(backend.compiler, installation)

    return __post_init__


def _build_compile_grammar(original: Method, installation: Installation) -> Method:
    @wraps(original)
    def compile_grammar(backend: Any, *args: Any, **kwargs: Any) -> Any:
        body = getattr(backend, BODY_ATTRIBUTE, None)
        if body is None:
            body = _guarded_body(original, backend, installation)
            setattr(backend, BODY_ATTRIBUTE, body)
        return body(backend, *args, **kwargs)

    return compile_grammar


def _guarded_body(original: Method, backend: Any, installation: Installation) -> Method:
    """Return upstream's own body, for one backend, with matchers that give up."""
    import xgrammar

    def on_slow(compiled: Any, seconds: float) -> None:
        installation.logger.warning("a grammar needed %.1f s for one token: its request ends", seconds)
        backend.compiler.found_slow(compiled, seconds)

    stand_in = SimpleNamespace(
        GrammarMatcher=guarded(xgrammar.GrammarMatcher, on_slow),
        StructuralTagItem=xgrammar.StructuralTagItem,
    )
    return with_stand_ins(original, xgr=stand_in, compile_regex_with_timeout=without_timeout)


def _build_destroy(original: Method, installation: Installation) -> Method:
    @wraps(original)
    def destroy(backend: Any) -> None:
        close_pool(installation, Role.COMPILE)
        backend.compiler.close()
        original(backend)

    return destroy


def make_compiler(compiler: Any, installation: Installation) -> RemoteCompiler:
    """Return the replacement of xgrammar's `GrammarCompiler`, for the same tokenizer and cache size."""
    import xgrammar

    tokenizer_info = compiler.compile_grammar(PROBE_GRAMMAR).tokenizer_info
    pool = pool_of(installation, Role.COMPILE)
    pool.load(tokenizer_info.serialize_json().encode())
    here = xgrammar.GrammarCompiler(tokenizer_info, max_threads=MAX_THREADS, cache_enabled=False)

    def deserialize(blob: bytes) -> Any:
        return xgrammar.CompiledGrammar.deserialize_json(blob.decode(), tokenizer_info)

    return RemoteCompiler(
        SharedJobs(lambda: pool),
        deserialize,
        lambda job: compile_job(here, xgrammar, job),
        ThreadPoolExecutor(SLOW_THREADS, "structuredllm-compile-slow", _lower_priority),
        compiler.cache_limit_bytes,
    )


def _lower_priority() -> None:
    """Give the calling thread, and those that it starts, the lowest niceness.

    Not less (`priority.give_way`): it holds the interpreter's lock now and then, and others wait for that.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_NICENESS)
