"""Base of all models of the resource, shared types, and how CEL rules are attached.

Owns what makes a model strict (camelCase on the wire, unknown fields refused, immutable). Imports pydantic.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


def rule(
    expression: str, message: str | None = None, *, message_expression: str | None = None
) -> dict[str, str]:
    """Return one `x-kubernetes-validations` entry (CEL); the API server shows the message to the user."""
    entry = {"rule": expression}
    if message is not None:
        entry["message"] = message
    if message_expression is not None:
        entry["messageExpression"] = message_expression
    return entry


def rules(*entries: dict[str, str]) -> dict[str, Any]:
    """Return the JSON schema extra that carries CEL rules."""
    return {"x-kubernetes-validations": list(entries)}


class Model(BaseModel):
    """Base of all parts: camelCase on the wire, unknown fields refused, values immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


ShortText = Annotated[str, Field(max_length=253)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253)]
IntOrString = Annotated[
    int | str,
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}, union_mode="left_to_right"),
]
Quantities = Annotated[dict[str, IntOrString], Field(max_length=32)]


class KeySelector(Model):
    """One key of a Secret or ConfigMap in the resource's namespace."""

    name: ObjectName
    """Name of the object. Required. Example: `hf-token`."""
    key: ObjectName
    """Key inside the object. Required. Example: `token`."""
