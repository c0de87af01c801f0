"""The gateway against its own OpenAPI document: requests drawn from it, right and wrong, and their answers.

Every documented operation is asked; what comes must be documented (status, content type, schema), and
nothing may be a failure of the gateway itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from structuredllm_gateway.routes.documents import ERROR_SCHEMA
from tests.unit.gateway.in_process import AnsweringUpstream, InProcess, Reply

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
# What clients send beyond the document: it passes to the engine, or is refused with a reason.
_WORDS = (
    *("n", "messages", "prompt", "input", "text", "tools", "tool_choice", "type", "function", "strict"),
    *("json_schema", "schema", "json", "regex", "choice", "grammar", "structural_tag", "json_object"),
    *("guided_json", "guided_regex", "guided_choice", "format", "name", "parameters", "auto", "required"),
    *("none", "max_tokens", "stream_options", "ignore_eos", "echo", "background", "enum", "const", "anyOf"),
    *("$ref", "#/$defs/a", "$defs", "properties", "items", "pattern", "additionalProperties"),
)
_LIKELY = st.recursive(
    st.sampled_from(_WORDS) | _JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4),
    max_leaves=12,
)
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")


@dataclass(frozen=True)
class Asked:
    """A gateway, its document, and the loop it is asked in."""

    gateway: InProcess
    document: Mapping[str, Any]
    runner: asyncio.Runner

    def send(self, method: str, path: str, body: bytes, content_type: str = "application/json") -> Reply:
        return self.runner.run(self.gateway.send(method, path, body, content_type))

    @property
    def operations(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        return [
            (method.upper(), path, operation)
            for path, item in self.document["paths"].items()
            for method, operation in item.items()
        ]


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    gateway = InProcess(upstream=AnsweringUpstream())
    with asyncio.Runner() as runner:
        yield Asked(gateway, json.loads(json.dumps(gateway.app.openapi())), runner)


def _drawn_from(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return values for a documented schema: of the documented type mostly, of any sometimes."""
    match schema.get("type"):
        case "object" if schema.get("properties"):
            fields = {name: _drawn_from(inner) for name, inner in schema["properties"].items()}
            if "model" in fields:
                fields["model"] = st.sampled_from(["toy", "toy", "toy", "other"])
            required = {name: fields.pop(name) for name in schema.get("required", ())}
            documented = st.fixed_dictionaries(required, optional=fields)
            more = st.dictionaries(st.sampled_from(_WORDS), _LIKELY, max_size=3)
            return st.builds(lambda one, other: {**other, **one}, documented, more)
        case "object":
            return st.dictionaries(st.sampled_from(_WORDS), _LIKELY, max_size=4)
        case "array":
            return st.lists(_LIKELY, max_size=3)
        case "boolean":
            return st.booleans()
        case "string":
            return st.text(max_size=20)
    return _JSON


def _conforms(operation: Mapping[str, Any], reply: Reply) -> None:
    responses = operation["responses"]
    found = responses.get(str(reply.status)) or responses.get(f"{reply.status // 100}XX")
    assert found is not None, f"HTTP {reply.status} is not documented: {reply.body[:300]!r}"
    content = found.get("content", {})
    kind = reply.headers["content-type"].partition(";")[0]
    if content:
        assert kind in content, f"{kind} is not documented for HTTP {reply.status}"
        if kind == "application/json":
            Draft202012Validator(content[kind]["schema"]).validate(json.loads(reply.body))
    if reply.status >= 500:
        _is_no_failure_of_the_gateway(reply)


def _is_no_failure_of_the_gateway(reply: Reply) -> None:
    """The engine here answers `{}`, so the one thing that may be wrong is that an answer does not fit."""
    assert json.loads(reply.body)["error"]["code"] == "structured_output_failed", reply.body


def test_the_document_names_every_route_and_the_shape_of_errors(asked: Asked) -> None:
    Draft202012Validator.check_schema(dict(ERROR_SCHEMA))
    paths = asked.document["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model_id}"} <= paths.keys()
    for method, path, operation in asked.operations:
        assert operation.get("summary"), (method, path)
        if path.startswith("/v1/"):
            for kind in ("4XX", "5XX"):
                schema = operation["responses"][kind]["content"]["application/json"]["schema"]
                assert schema == ERROR_SCHEMA, (method, path)
        if method == "POST":
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            assert body["additionalProperties"] is True, path
            assert "model" in body["required"], path


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_requests_as_documented(asked: Asked, data: st.DataObject) -> None:
    method, path, operation = data.draw(st.sampled_from(asked.operations))
    for parameter in operation.get("parameters", ()):
        assert parameter["in"] == "path"
        value = data.draw(st.just("toy") | st.text(max_size=20))
        path = path.replace(f"{{{parameter['name']}}}", value)
    body = b""
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = json.dumps(data.draw(_drawn_from(schema))).encode()
    _conforms(operation, asked.send(method, path, body))


@settings(max_examples=200, deadline=None)
@given(
    st.data(),
    st.binary(max_size=40) | st.builds(lambda value: json.dumps(value).encode(), _JSON | _LIKELY),
    st.sampled_from(["application/json", "text/plain", "", "application/json; charset=utf-16"]),
)
def test_requests_that_are_none(asked: Asked, data: st.DataObject, body: bytes, content_type: str) -> None:
    method, path, operation = data.draw(st.sampled_from([o for o in asked.operations if o[0] == "POST"]))
    reply = asked.send(method, path, body, content_type)
    _conforms(operation, reply)
    assert reply.status < 500


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(_METHODS), st.text(max_size=20) | st.sampled_from(["v1", "v1/", "v1/models/", "docs"]))
def test_other_routes_and_methods_get_an_error_in_the_same_shape(
    asked: Asked, method: str, path: str
) -> None:
    reply = asked.send(method, "/" + path, b"{}")
    assert reply.status < 500
    if reply.status >= 400:
        Draft202012Validator(dict(ERROR_SCHEMA)).validate(json.loads(reply.body))


def test_other_methods_of_every_route_are_refused_in_the_same_shape(asked: Asked) -> None:
    for _, path, _ in asked.operations:
        known = {method.upper() for method in asked.document["paths"][path]}
        for method in set(_METHODS) - known - {"HEAD"}:
            reply = asked.send(method, path.replace("{model_id}", "toy"), b"{}")
            assert reply.status == 405, (method, path)
            assert json.loads(reply.body)["error"]["code"] == "method_not_allowed"
