"""The objects that the demo applies: the files of examples/, with the images that were just built.

Owns reading examples/ and replacing what only this machine knows. PURE but for reading files.
"""

import copy
from pathlib import Path
from typing import Any

import yaml

from tools.paths import repo_root

NAMESPACE = "structuredllm-demo"
SYSTEM_NAMESPACE = "structuredllm-system"
RELEASE = "structuredllm"


def read_example(name: str, *, folder: Path | None = None) -> dict[str, Any]:
    """Return the single document of examples/NAME.yaml."""
    path = (folder or repo_root() / "examples") / f"{name}.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def place(resource: dict[str, Any], *, namespace: str, image: str) -> dict[str, Any]:
    """Return a copy of a StructuredLLM in `namespace` that runs `image`."""
    placed = copy.deepcopy(resource)
    placed["metadata"]["namespace"] = namespace
    placed["spec"]["engine"]["image"] = image
    return placed


def with_patches(resource: dict[str, Any], policy: str) -> dict[str, Any]:
    """Return a copy of a StructuredLLM with another patch policy (Required, Optional, Disabled)."""
    changed = copy.deepcopy(resource)
    changed["spec"]["engine"]["patches"] = policy
    return changed


def condition(resource: dict[str, Any] | None, kind: str) -> dict[str, str]:
    """Return the condition `kind` of a StructuredLLM, or {} while it has none for its generation."""
    if resource is None:
        return {}
    generation = resource["metadata"].get("generation")
    for entry in resource.get("status", {}).get("conditions", []):
        if entry["type"] == kind and entry.get("observedGeneration") == generation:
            found: dict[str, str] = entry
            return found
    return {}


def summary(resource: dict[str, Any] | None) -> str:
    """Return one line on where a StructuredLLM stands: its first condition that is not True."""
    order = ("SpecValid", "WorkloadReady", "TopologyVerified", "StructuredReady", "Ready")
    for kind in order:
        entry = condition(resource, kind)
        if not entry:
            return f"{kind} not reported yet"
        if entry["status"] != "True":
            words = entry.get("message", "")
            return f"{kind}={entry['status']} {entry.get('reason', '')}: {words[:160]}"
    return "Ready=True"
