"""Requests with integers that no 64 bits hold: every digit counts, and nothing fails."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from structuredllm_gateway.validation import exact_json
from structuredllm_gateway.validation.validators import ValidatorCache
from tests.unit.gateway.in_process import InProcess
from tests.unit.gateway.support import structured

_BOUND = 10**25


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, _BOUND, -_BOUND])
def test_integers_keep_every_digit(number: int) -> None:
    for text in (json.dumps({"a": [number]}), json.dumps({"a": [number]}).encode()):
        assert exact_json.loads(text) == {"a": [number]}
    assert json.loads(exact_json.dumps({"a": number})) == {"a": number}


@given(st.recursive(st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_what_is_written_is_read_again(value: object) -> None:
    assert exact_json.loads(exact_json.dumps(value)) == value
    assert exact_json.loads(exact_json.dumps(value, sorted_names=True)) == value


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": NaN, "b": 1000000000000000000000}',
        b'"\\ud800" 1000000000000000000000',
        b"[1000000000000000000000,]",
        b'"\xff1000000000000000000000"',
    ],
)
def test_it_is_no_laxer_than_orjson(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        exact_json.loads(text)


def test_what_python_cannot_read_is_as_orjson_reads_it() -> None:
    deep = b"[" * 1000 + b"1" * 20 + b"]" * 1000
    inner = exact_json.loads(deep)  # deeper than Python's parser goes
    while isinstance(inner, list):
        (inner,) = inner
    assert inner == int(b"1" * 20)


def test_schemas_that_differ_in_one_digit_are_two() -> None:
    cache = ValidatorCache(4)
    first, second = cache.compiled({"const": _BOUND}), cache.compiled({"const": _BOUND + 1})
    assert first.key != second.key
    assert first.violation(_BOUND) is None
    assert first.violation(_BOUND + 1) is not None


@pytest.mark.parametrize(
    ("number", "status"), [(_BOUND, 200), (_BOUND + 3, 200), (_BOUND + 4, 502), (_BOUND - 1, 502)]
)
async def test_an_answer_at_a_long_bound_is_judged_exactly(number: int, status: int) -> None:
    schema = {"type": "integer", "minimum": _BOUND, "maximum": _BOUND + 3}
    choice = {"index": 0, "message": {"content": str(number)}, "finish_reason": "stop"}
    gateway = InProcess()
    gateway.upstream.content_type = "application/json"
    reply = await gateway.ask(structured(schema), [json.dumps({"choices": [choice]}).encode()])
    assert reply.status == status, reply.body
