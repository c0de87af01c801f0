"""Turns the pydantic models into a CustomResourceDefinition with a structural schema.

Pure: models in, plain dict out. Pydantic's JSON schema is not a structural schema, so references are inlined,
`anyOf [X, null]` becomes X, and keywords that the API server forbids or that mean nothing to it are dropped.
Source of the rules: Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions",
section "Specifying a structural schema".
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from structuredllm_operator.api.base import rule
from structuredllm_operator.api.labels import GROUP, KIND, PLURAL, VERSION
from structuredllm_operator.api.status import StructuredLLMStatus
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec

Schema = dict[str, Any]

_DROPPED: Final = (
    "title",
    "$defs",
    "uniqueItems",
    "const",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "examples",
)

ROOT_RULES: Final = (
    rule(
        "size(self.metadata.name) <= 40",
        "metadata.name must have at most 40 characters, so that child names fit: shorten it",
    ),
    rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must start with a letter and hold only a-z, 0-9 and '-', because a Service is"
        " named after it",
    ),
)

COLUMNS: Final = (
    ("Model", "string", ".spec.model.uri", "Where the model comes from", 0),
    ("TP", "integer", ".spec.parallelism.tensor", "Tensor parallel size", 0),
    ("PP", "integer", ".spec.parallelism.pipeline", "Pipeline parallel size", 0),
    ("Serving", "integer", ".status.servingReplicas", "Pods that passed the gate", 0),
    ("Desired", "integer", ".spec.replicas", "Pods asked for", 0),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether all asked for serve", 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why, or why not", 0),
    ("Age", "date", ".metadata.creationTimestamp", "Time since creation", 0),
    ("URL", "string", ".status.url", "Where clients send requests", 1),
)


def build_crd() -> Schema:
    """Return the CustomResourceDefinition of `StructuredLLM` as a plain dict, the same on every call."""
    root: Schema = {
        "description": "A vLLM engine for structured output that serves only after it proved itself.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Version of this schema: {GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"Always {KIND}."},
            "metadata": {"type": "object"},
            "spec": structural_schema(StructuredLLMSpec),
            "status": structural_schema(StructuredLLMStatus),
        },
        "x-kubernetes-validations": list(ROOT_RULES),
    }
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [_column(*column) for column in COLUMNS],
        "schema": {"openAPIV3Schema": root},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["sllm"],
                "categories": ["structuredllm"],
            },
            "versions": [version],
        },
    }


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model: no references or nulls, only keywords that the API takes."""
    raw = model.model_json_schema(by_alias=True)
    return _convert(raw, raw.get("$defs", {}))


def _convert(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    merged = _inline(node, defs)
    if merged.get("x-kubernetes-int-or-string"):
        kept: Schema = {key: merged[key] for key in ("default",) if merged.get(key) is not None}
        if "description" in merged:
            kept["description"] = " ".join(str(merged["description"]).split())
        return {
            **kept,
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
        }
    result: Schema = {}
    for key, value in merged.items():
        if key in _DROPPED:
            continue
        if key == "properties":
            result[key] = {name: _convert(child, defs) for name, child in value.items()}
        elif key == "items":
            result[key] = _convert(value, defs)
        elif key == "additionalProperties":
            if isinstance(value, Mapping):
                result[key] = _convert(value, defs)
        elif key == "description":
            result[key] = " ".join(str(value).split())
        else:
            result[key] = value
    _convert_default(result)
    return result


def _inline(node: Mapping[str, Any], defs: Mapping[str, Any]) -> Schema:
    """Replace `$ref` and nullable unions by what they stand for; keywords beside them win."""
    current = dict(node)
    while True:
        if "$ref" in current:
            target = defs[str(current.pop("$ref")).rsplit("/", 1)[-1]]
        elif "anyOf" in current and {"type": "null"} in current["anyOf"]:
            branches = [branch for branch in current.pop("anyOf") if branch != {"type": "null"}]
            if len(branches) != 1:
                raise ValueError(
                    f"cannot express a union of {len(branches)} types in a structural schema: {branches}"
                )
            target = branches[0]
        else:
            return current
        current = {**target, **current}


def _convert_default(schema: Schema) -> None:
    """Drop null defaults; give objects one made of the defaults below.

    The API server checks rules against an object's own default before it fills in the nested ones, so `{}`
    would not do.
    """
    if "default" not in schema:
        return
    if schema["default"] is None:
        del schema["default"]
    elif "properties" in schema:
        children = schema["properties"].items()
        schema["default"] = {name: child["default"] for name, child in children if "default" in child}


def _column(name: str, kind: str, path: str, description: str, priority: int) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path, "description": description}
    if priority:
        column["priority"] = priority
    return column
