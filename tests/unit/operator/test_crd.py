"""The schema is structural, and says default, bounds and meaning of every field."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import Field

from structuredllm_operator.api.base import Model
from structuredllm_operator.api.crd import build_crd, structural_schema
from tools import gen_crd

FORBIDDEN = {"$ref", "$defs", "title", "const", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems"}


def walk(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema node."""
    if isinstance(node, dict):
        yield path, node
        for key, value in node.get("properties", {}).items():
            yield from walk(value, f"{path}.{key}")
        for key in ("items", "additionalProperties"):
            yield from walk(node.get(key), f"{path}[]")


def root() -> dict[str, Any]:
    """Return the schema of the only version."""
    (version,) = build_crd()["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def test_every_node_is_structural() -> None:
    for path, node in walk(root()):
        assert not FORBIDDEN & set(node), path
        assert ("type" in node) != bool(node.get("x-kubernetes-int-or-string")), path
        assert node.get("additionalProperties") is not False, path
        assert node.get("default", "none") is not None, f"{path}: the server drops a null default"


def test_every_field_is_described() -> None:
    for path, node in walk(root()):
        if path and not path.endswith("[]") and path != ".metadata":
            assert node.get("description"), path


def test_strings_lists_and_maps_of_the_spec_are_bounded() -> None:
    for path, node in walk(root()["properties"]["spec"]):
        kind = node.get("type")
        if kind == "string":
            assert "maxLength" in node or "enum" in node, path
        if kind == "array":
            assert "maxItems" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path


def test_defaults_are_in_the_schema() -> None:
    spec = root()["properties"]["spec"]["properties"]
    assert spec["warmup"]["default"]["burst"] == {"requests": 24, "concurrency": 24}
    assert spec["parallelism"]["default"] == {"tensor": 1, "pipeline": 1, "data": 1}
    assert "default" not in spec["model"]["properties"]["revision"]


def test_a_union_that_cannot_be_expressed_is_an_error() -> None:
    class Bad(Model):
        value: int | str | None = Field(default=None)

    with pytest.raises(ValueError, match="union of 2 types"):
        structural_schema(Bad)


def test_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert gen_crd.main(["--check"]) == 0, capsys.readouterr().out


def test_the_manifest_holds_nothing_that_helm_would_expand() -> None:
    assert "{{" not in gen_crd.render_crd()
