"""Known denial-of-service inputs of structured output: refused by a named rule, or the engine's business.

One row per public report. `None` as the rule: the request passes admission, and the second text says who
bounds it; the engine's side of those rows is tested in tests/engine.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from structuredllm_gateway.admission.admission import Admission
from structuredllm_gateway.admission.schema_policy import admit
from structuredllm_gateway.errors import RequestError
from structuredllm_gateway.openai.requests import parse_completion_request
from structuredllm_gateway.settings import AdmissionSettings
from structuredllm_gateway.validation.validators import ValidatorCache
from tests.unit.gateway.support import plain, structured


def _nested(keyword: str, levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {keyword: [schema, {"type": "string"}]}
    return schema


def _tree(levels: int) -> dict[str, Any]:
    if levels == 0:
        return {"type": "integer"}
    return {"oneOf": [_tree(levels - 1), _tree(levels - 1)]}


_CASES: list[tuple[str, dict[str, Any], str | None, str]] = [
    ("CVE-2025-29770 flood of unique schemas", structured({"const": 1}), None, "bounded caches, see below"),
    ("CVE-2025-32381 flood of unique schemas", structured({"const": 2}), None, "bounded caches, see below"),
    ("CVE-2025-48942 invalid schema", structured({"type": "objekt"}), "invalid_json_schema", ""),
    ("CVE-2025-48942 schema of a wrong kind", plain(guided_json="{"), "invalid_json_schema", ""),
    ("CVE-2025-48943 invalid regex", structured({"pattern": "foo**("}), "invalid_json_schema", ""),
    (
        "CVE-2025-48944 tools with a pattern that kills a worker",
        plain(
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"pattern": "(" * 2000}}}],
            tool_choice="auto",
        ),
        "pattern_too_long",
        "",
    ),
    ("CVE-2025-48887 expression of a tool parser", plain(tools=[]), None, "no parser of ours uses one"),
    (
        "CVE-2025-57809 left recursion",
        plain(structured_outputs={"grammar": 'root ::= root "a"'}),
        None,
        "engine",
    ),
    (
        "CVE-2026-25048 30,000 brackets, as a grammar",
        plain(structured_outputs={"grammar": "root ::= " + "(" * 30_000}),
        "grammar_too_deep",
        "",
    ),
    (
        "CVE-2026-25048 30,000 brackets, as an expression",
        plain(structured_outputs={"regex": "(" * 30_000}),
        "regex_too_long",
        "",
    ),
    (
        "CVE-2026-25048 brackets below the length",
        plain(structured_outputs={"regex": "(" * 4_000}),
        "pattern_too_deep",
        "",
    ),
    ("CVE-2026-55574 (a+)+b", plain(structured_outputs={"regex": "(a+)+b"}), None, "engine's compile limit"),
    (
        "CVE-2026-55574 repetition of repetition",
        plain(structured_outputs={"regex": "((((a{99}){99}){99}){99}"}),
        "pattern_expands_too_far",
        "",
    ),
    (
        "PYSEC-2026-3933 same, by the older field",
        plain(guided_regex="(a{999}){999}"),
        "pattern_expands_too_far",
        "",
    ),
    (
        "CVE-2026-105757 empty value",
        plain(structured_outputs={"regex": ""}),
        None,
        "engine's own request error",
    ),
    (
        "many patterns, each just small enough: seconds to compile, here too",
        structured({"patternProperties": {f"^(a{{1,99}}|b{i}){{1,50}}$": {} for i in range(100)}}),
        "patterns_expand_too_far",
        "",
    ),
    ("many lists", plain(x=[[] for _ in range(100_000)]), "request_too_many_values", ""),
    ("CVE-2025-61620 chat_template", plain(chat_template="{% for %}"), "field_refused", ""),
    (
        "CVE-2025-62426 chat_template_kwargs.tokenize",
        plain(chat_template_kwargs={"tokenize": False}),
        "field_refused",
        "",
    ),
    ("CVE-2026-34756 astronomical n", plain(n=10**9), "too_many_choices", ""),
    (
        "xgrammar: 10,000 enum strings",
        structured({"enum": [str(i) for i in range(10_000)]}),
        "schema_too_many_enum_values",
        "",
    ),
    ("vllm 54003: nested oneOf", structured(_tree(10)), "schema_too_many_branches", ""),
    ("vllm: 64 levels", structured(_nested("anyOf", 40)), "schema_too_deep", ""),
    ("xgrammar 652: 40,000 rules", structured({"prefixItems": [{}] * 40_000}), "schema_too_large", ""),
    ("outlines-core 96: recursion", structured({"items": {"$ref": "#"}}), None, "recursion is allowed"),
    (
        "anthropic 1185: definitions used again and again",
        structured(
            {
                "$defs": {f"d{i}": {"prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 6} for i in range(12)}
                | {"d12": {}},
                "$ref": "#/$defs/d0",
            }
        ),
        "schema_expands_too_far",
        "",
    ),
    ("external reference", structured({"$ref": "http://169.254.169.254/x"}), "invalid_json_schema", ""),
]


def _refusal(body: dict[str, Any]) -> RequestError | None:
    raw = json.dumps(body).encode()
    admission = Admission(AdmissionSettings().limits, 8)
    try:
        request = parse_completion_request(raw, inspect=lambda whole: void(admission.check(raw, whole)))
        admit(request.structure, ValidatorCache(4))
    except RequestError as error:
        return error
    return None


def void(_: object) -> None:
    """Drop a value."""


@pytest.mark.parametrize(("report", "body", "rule", "otherwise"), _CASES, ids=[case[0] for case in _CASES])
def test_bomb_is_refused_by_its_rule_and_at_once(
    report: str, body: dict[str, Any], rule: str | None, otherwise: str
) -> None:
    started = time.process_time()
    error = _refusal(body)
    assert (error.code if error else None) == rule
    assert error is None or error.status == 400
    assert time.process_time() - started < 1
    assert (rule is None) is bool(otherwise), report


def test_a_flood_of_unique_schemas_fills_no_memory() -> None:
    admission, cache = Admission(AdmissionSettings().limits, 16), ValidatorCache(16)
    for number in range(200):
        body = structured({"const": number})
        request = parse_completion_request(json.dumps(body).encode())
        admission.check(b"", body)
        admit(request.structure, cache)
    assert len(admission._passed) == 16
    assert len(cache) == 16
