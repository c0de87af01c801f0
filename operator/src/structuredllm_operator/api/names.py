"""Names of child objects and gate messages. Pure string functions."""

import re

_GATE_MESSAGE = re.compile(r"^\[(?P<container>[^\]]*)\] ?(?P<text>.*)$", re.DOTALL)


def child_name(name: str) -> str:
    """Return the name shared by the Deployment, Service, ServiceAccount and PDB of the resource `name`."""
    return f"{name}-engine"


def model_claim_name(name: str) -> str:
    """Return the name of the claim that is made for the model of the resource `name`."""
    return f"{name}-model"


def model_job_name(name: str, digest: str) -> str:
    """Return the name of the Job that fetches what `digest` stands for."""
    return f"{name}-model-{digest}"


def gate_message(container_id: str, text: str) -> str:
    """Bind a gate message to the container that it speaks of: `[containerd://abc] text`."""
    return f"[{container_id}] {text}"


def gate_container(message: str) -> str:
    """Return the containerID that a gate message is bound to, or `""` when the message has no such prefix."""
    found = _GATE_MESSAGE.match(message)
    return found.group("container") if found else ""


def gate_text(message: str) -> str:
    """Return the human part of a gate message."""
    found = _GATE_MESSAGE.match(message)
    return found.group("text") if found else message
