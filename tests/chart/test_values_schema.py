"""values.schema.json and the README's table follow from values.yaml, and nothing in it is unexplained."""

import json

import jsonschema_rs
import pytest
import yaml

from tests.chart.support import CHART
from tools import gen_values_schema as gen


def test_committed_files_are_what_the_generator_writes() -> None:
    for path, text in gen.outputs(CHART).items():
        assert path.read_text() == text, "run python -m tools.gen_values_schema"


def test_defaults_satisfy_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema_rs.meta.validate(schema)
    jsonschema_rs.validator_for(schema).validate(values)


def test_objects_are_closed_unless_their_schema_says_otherwise() -> None:
    (key,) = gen.read_values("# Outer.\nouter:\n  # Inner.\n  inner: 1\n")
    assert key.schema["additionalProperties"] is False
    assert key.schema["properties"]["inner"] == {"description": "Inner.", "type": "integer"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: 1\n", "a: write a comment"),
        ("# A.\na: {}\n", "a: an empty object"),
        ("# A.\na:\n  # B.\n  b: []\n", "a.b: a list"),
        ("# A.\n# @schema {oops\na: 1\n", "a: @schema is not JSON"),
    ],
)
def test_a_key_that_tells_too_little_is_named(text: str, named: str) -> None:
    with pytest.raises(gen.CommentError, match=named):
        gen.read_values(text)
