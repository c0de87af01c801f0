"""The JSON Schema Test Suite against the gateway's validator: every required test of draft 2020-12.

The one rule that the gateway has and the suite has not: nothing is ever fetched. Groups that need another
document are therefore named here, and what the gateway does with each of them is asserted too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from structuredllm_gateway.validation.strict_json import ParsedText, parse_strict
from structuredllm_gateway.validation.validators import SchemaCompileError, ValidatorCache

_SUITE = Path(__file__).parent / "json_schema_suite" / "draft2020-12"

# Their schema refers to a document on http://localhost:1234, which the suite's own runner would serve.
_REMOTE: Mapping[str, frozenset[str]] = {
    "dynamicRef": frozenset(
        {
            "strict-tree schema, guards against misspelled properties",
            "tests for implementation dynamic anchor and reference link",
            "$ref and $dynamicAnchor are independent of order - $defs first",
            "$ref and $dynamicAnchor are independent of order - $ref first",
            "$ref to $dynamicRef finds detached $dynamicAnchor",
        }
    ),
    "refRemote": frozenset(
        {
            "remote ref",
            "fragment within remote ref",
            "anchor within remote ref",
            "ref within remote ref",
            "base URI change",
            "base URI change - change folder",
            "base URI change - change folder in subschema",
            "root ref in remote ref",
            "remote ref with ref to defs",
            "Location-independent identifier in remote ref",
            "retrieved nested refs resolve relative to their URI not $id",
            "remote HTTP ref with different $id",
            "remote HTTP ref with different URN $id",
            "remote HTTP ref with nested absolute ref",
            "$ref to $ref finds detached $anchor",
        }
    ),
}
# Its `$schema` is such a document too: a meta-schema that switches keywords off. It is not asked, so the
# keywords stay on: stricter than the suite wants, never laxer.
_REMOTE_META_SCHEMA = ("vocabulary", "schema that uses custom metaschema with with no validation vocabulary")

# Of the copy in this repository; a file that is lost by mistake must not make the suite pass.
_FILES, _TESTS = 46, 1257


@dataclass(frozen=True)
class Group:
    """One schema of the suite with its tests."""

    file: str
    description: str
    schema: Any
    tests: tuple[Mapping[str, Any], ...]

    @property
    def is_remote(self) -> bool:
        """Whether its schema refers to another document."""
        return self.description in _REMOTE.get(self.file, frozenset())


def groups(file: str = "*") -> Iterator[Group]:
    """Yield every group, file by file."""
    for path in sorted(_SUITE.glob(f"{file}.json")):
        for item in json.loads(path.read_text(encoding="utf-8")):
            yield Group(path.stem, item["description"], item["schema"], tuple(item["tests"]))


def test_the_suite_is_here_and_every_excluded_group_is_one_of_its() -> None:
    found = list(groups())
    assert len({group.file for group in found}) == _FILES
    assert sum(len(group.tests) for group in found) == _TESTS
    assert sum(group.is_remote for group in found) == sum(len(names) for names in _REMOTE.values())
    assert _REMOTE_META_SCHEMA in {(group.file, group.description) for group in found}


@pytest.mark.parametrize("file", sorted(path.stem for path in _SUITE.glob("*.json")))
def test_required(file: str) -> None:
    wrong = []
    for group in groups(file):
        if group.is_remote or (file, group.description) == _REMOTE_META_SCHEMA:
            continue
        compiled = ValidatorCache(1).compiled(group.schema)
        for test in group.tests:
            # As an answer comes: as text, through the gateway's own reading of JSON.
            parsed = parse_strict(json.dumps(test["data"], ensure_ascii=False))
            assert isinstance(parsed, ParsedText), (group.description, test["description"])
            if (compiled.violation(parsed.value) is None) is not test["valid"]:
                wrong.append((group.description, test["description"]))
    assert wrong == []


def test_what_needs_another_document_is_refused_and_named() -> None:
    for group in groups():
        if group.is_remote:
            with pytest.raises(SchemaCompileError, match="http://localhost:1234"):
                ValidatorCache(1).compiled(group.schema)


def test_a_foreign_meta_schema_is_not_asked_and_switches_nothing_off() -> None:
    (group,) = [g for g in groups() if (g.file, g.description) == _REMOTE_META_SCHEMA]
    compiled = ValidatorCache(1).compiled(group.schema)
    got = {test["description"]: compiled.violation(test["data"]) is None for test in group.tests}
    assert got == {
        "applicator vocabulary still works": False,
        "no validation: valid number": True,
        "no validation: invalid number, but it still validates": False,
    }
