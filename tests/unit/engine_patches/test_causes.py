"""The causes: every one has a meaning, travels in a stop reason, and is told from other stop reasons."""

import pickle

import pytest

from structuredllm_engine_patches.guided.causes import (
    MAX_DETAIL,
    MEANINGS,
    Cause,
    Failure,
    GrammarFailureError,
    decode,
    encode,
    error_object,
    failure_of,
)


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("detail", ["", "line 3: unknown keyword", "a:b:c"])
def test_a_failure_survives_its_way(cause: Cause, detail: str) -> None:
    assert decode(encode(Failure(cause, detail))) == Failure(cause, detail)


def test_every_cause_has_a_meaning_and_only_the_clients_faults_are_4xx() -> None:
    assert set(MEANINGS) == set(Cause)
    server = {Cause.GRAMMAR_REJECTED: 500, Cause.GRAMMAR_COMPILER_UNAVAILABLE: 503}
    assert {c: m.status for c, m in MEANINGS.items() if m.status >= 500} == server
    assert {m.status for c, m in MEANINGS.items() if c not in server} == {400}


@pytest.mark.parametrize("stop_reason", [None, 2, "", "}", "structuredllm:", "structuredllm:nothing known"])
def test_other_stop_reasons_are_no_causes(stop_reason: object) -> None:
    assert decode(stop_reason) is None


def test_a_detail_is_one_bounded_line() -> None:
    failure = GrammarFailureError(Cause.GRAMMAR_COMPILE_FAILED, "a\n\tb\x00" + "c" * 5000).failure
    assert failure.detail.startswith("a b c")
    assert len(failure.detail) == MAX_DETAIL
    assert decode(encode(failure)) == failure


def test_an_error_survives_the_way_out_of_a_process() -> None:
    error = GrammarFailureError(Cause.GRAMMAR_COMPILE_TIMEOUT, "after 10 s")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own object
    assert failure_of(copy) == Failure(Cause.GRAMMAR_COMPILE_TIMEOUT, "after 10 s")


@pytest.mark.parametrize("cause", [Cause.GRAMMAR_COMPILE_TIMEOUT, Cause.GRAMMAR_COMPILER_UNAVAILABLE])
def test_the_cause_of_an_error_is_found_below_it(cause: Cause) -> None:
    error = ValueError("Failed to transform json schema into a grammar")
    error.__cause__ = GrammarFailureError(cause, "why")
    assert failure_of(error) == Failure(cause, "why")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("Regex compilation timed out after 5s. The pattern"), Cause.GRAMMAR_COMPILE_TIMEOUT),
        (TimeoutError(), Cause.GRAMMAR_COMPILE_TIMEOUT),
        (MemoryError(), Cause.GRAMMAR_COMPILE_MEMORY),
        (
            ValueError("The provided JSON schema contains features not supported by xgrammar."),
            Cause.GRAMMAR_UNSUPPORTED,
        ),
        (RuntimeError("Unimplemented keys: [patternProperties]"), Cause.GRAMMAR_UNSUPPORTED),
        (RuntimeError("EBNF parser error at line 1, column 3"), Cause.GRAMMAR_COMPILE_FAILED),
        (
            GrammarFailureError(Cause.GRAMMAR_COMPILER_UNAVAILABLE, "worker lost"),
            Cause.GRAMMAR_COMPILER_UNAVAILABLE,
        ),
    ],
)
def test_errors_of_compilations_are_classified(error: Exception, cause: Cause) -> None:
    assert failure_of(error).cause is cause


def test_the_error_object_has_openais_shape_and_the_request_id() -> None:
    found = error_object(Failure(Cause.GRAMMAR_REJECTED), "chatcmpl-1")
    assert found == {
        "message": MEANINGS[Cause.GRAMMAR_REJECTED].message,
        "type": "grammar_rejected",
        "param": None,
        "code": "grammar_rejected",
        "request_id": "chatcmpl-1",
    }
