"""The front-end's validation of grammars, with the parsing done in the compile pool.

Upstream (vLLM 0.32, `validate_xgrammar_grammar`) parses every request's grammar with xgrammar's `Grammar`,
on the API server's event loop. Its body stays; only the `xgr` that it sees is this module's stand-in.

On an event loop nothing is waited for: the verdict is there (see `seams.validate_ahead`), or the grammar
passes for now. That is so for structural tags, which are looked at while the request is still being read;
they are validated with everything else when the request is given to the engine.
"""

import json
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from types import FunctionType, SimpleNamespace
from typing import Any

from structuredllm_engine_patches.compiling.attempts import is_on_event_loop, known_result, result_of
from structuredllm_engine_patches.compiling.jobs import CompileJob, CompileResult, Kind, Task
from structuredllm_engine_patches.guided.causes import Cause, GrammarFailureError
from structuredllm_engine_patches.seams.remote_compiler import WAIT_SECONDS, SharedJobs, older_tags

Validate = Callable[[Any], None]

MAX_ACCEPTED = 1024
"""Grammars that are known to be good."""


class GrammarChecks:
    """Stands in for xgrammar's `Grammar`, and llguidance's `LLMatcher`, where only their errors matter.

    Args:
        jobs: runs and shares the jobs.
    """

    def __init__(self, jobs: SharedJobs) -> None:
        self._jobs = jobs
        self._accepted: OrderedDict[CompileJob, None] = OrderedDict()

    def from_json_schema(self, schema: Any) -> None:
        """Check a JSON schema."""
        self._check(Kind.JSON_SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))

    def from_regex(self, regex: str) -> None:
        """Check a regular expression."""
        self._check(Kind.REGEX, regex)

    def from_ebnf(self, ebnf: str) -> None:
        """Check EBNF."""
        self._check(Kind.EBNF, ebnf)

    def from_lark(self, lark: str) -> None:
        """Check Lark's language."""
        self._check(Kind.LARK, lark)

    def from_structural_tag(self, tag: Any, triggers: list[str] | None = None) -> None:
        """Check a structural tag, in its present or its older form."""
        if triggers is None:
            self._check(Kind.STRUCTURAL_TAG, tag)
        else:
            self._check(Kind.STRUCTURAL_TAG_TRIGGERS, older_tags(tag, triggers))

    def validate_grammar(self, grammar: str, tokenizer: Any) -> str:
        """Check a grammar of llguidance and return what is wrong with it, as its `LLMatcher` does."""
        if tokenizer is not None:
            # Only Mistral's tokenizers are given here: their special tokens are known in this process only.
            import llguidance

            return str(llguidance.LLMatcher.validate_grammar(grammar, tokenizer))
        try:
            self._check(Kind.GUIDANCE, grammar)
        except ValueError as error:
            return str(error)
        return ""

    def _check(self, kind: Kind, spec: str) -> None:
        job = CompileJob(Task.PARSE, kind, spec)
        if job in self._accepted:
            return
        if is_on_event_loop():
            known = known_result(job)
            if known is None:
                return
            _raise_failure(known)
        else:
            try:
                result_of(job, lambda: self._jobs.start(job), WAIT_SECONDS)
            except GrammarFailureError as error:
                raise _plain(error) from error
        self._accepted[job] = None
        while len(self._accepted) > MAX_ACCEPTED:
            self._accepted.popitem(last=False)


def _raise_failure(known: "Future[CompileResult]") -> None:
    error = known.exception()
    if isinstance(error, GrammarFailureError):
        raise _plain(error) from error
    if error is not None:
        raise error


def _plain(error: GrammarFailureError) -> Exception:
    """Return xgrammar's own words for a grammar that is wrong; upstream says what was done with it."""
    failure = error.failure
    if failure.cause in (Cause.GRAMMAR_COMPILE_FAILED, Cause.GRAMMAR_UNSUPPORTED) and failure.detail:
        return ValueError(failure.detail)
    return error


def with_stand_ins(original: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """Return a copy of a function that sees these names instead of its module's.

    Raises:
        TypeError: `original` is not a plain function.
    """
    if not isinstance(original, FunctionType):
        raise TypeError(f"{original!r} is not a plain function: another patch has replaced it")
    copy = FunctionType(
        original.__code__,
        {**original.__globals__, **names},
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    copy.__kwdefaults__ = original.__kwdefaults__
    copy.__dict__.update(original.__dict__)
    copy.__doc__, copy.__module__, copy.__qualname__ = (
        original.__doc__,
        original.__module__,
        original.__qualname__,
    )
    copy.__dict__["__wrapped__"] = original
    return copy


def without_timeout(function: Callable[[str], Any], pattern: str) -> Any:
    """Stand in for upstream's `compile_regex_with_timeout`, whose thread goes on after its timeout."""
    return function(pattern)


def build_validate(original: Validate, jobs: SharedJobs) -> Validate:
    """Return the replacement of `validate_xgrammar_grammar`."""
    module = original.__globals__["xgr"]
    stand_in = SimpleNamespace(
        Grammar=GrammarChecks(jobs), StructuralTagItem=_Late(lambda: module.StructuralTagItem)
    )
    return with_stand_ins(original, xgr=stand_in, compile_regex_with_timeout=without_timeout)


def build_validate_guidance(original: Validate, jobs: SharedJobs) -> Validate:
    """Return the replacement of `validate_guidance_grammar`."""
    return with_stand_ins(original, llguidance=SimpleNamespace(LLMatcher=GrammarChecks(jobs)))


class _Late:
    """Looks a class up when it is first called: upstream loads xgrammar lazily."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._find()(*args, **kwargs)
