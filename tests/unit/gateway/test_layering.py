"""The parts that decide must not do: no I/O, clock or randomness; no other distribution anywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import structuredllm_gateway

_ROOT = Path(structuredllm_gateway.__file__).parent
_PURE = [
    "openai",
    "validation",
    "admission/admission.py",
    "admission/body_shape.py",
    "admission/expansion.py",
    "admission/keywords.py",
    "admission/patterns.py",
    "admission/requested.py",
    "admission/rules.py",
    "admission/schema_policy.py",
    "admission/expectations.py",
    "admission/schema_survey.py",
    "relay/caller.py",
    "relay/classify.py",
    "relay/closing.py",
    "relay/exchange.py",
    "relay/raw_text.py",
    "relay/repair.py",
    "relay/streams.py",
    "upstream/client.py",
    "upstream/endpoints.py",
    "upstream/kube_state.py",
    "upstream/retry.py",
    "replicas/affinity.py",
    "replicas/blame.py",
    "replicas/breaker.py",
    "replicas/budget.py",
    "replicas/replica.py",
    "replicas/report.py",
    "replicas/rules.py",
    "replicas/window.py",
    "errors.py",
    "kube_names.py",
]
_DOING = {
    *("asyncio", "time", "random", "os", "socket", "pathlib", "subprocess", "logging"),
    *("httpx", "aiohttp", "httpx_aiohttp", "kubernetes", "uvicorn", "fastapi", "starlette", "structlog"),
}


def _files(part: str) -> list[Path]:
    path = _ROOT / part
    return [path] if path.is_file() else sorted(path.glob("*.py"))


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("part", _PURE)
def test_pure_parts_import_nothing_that_does(part: str) -> None:
    files = _files(part)
    assert files
    for path in files:
        imported = {name.split(".")[0] for name in _imported(path)}
        assert not imported & _DOING, path


def test_no_other_distribution_is_imported() -> None:
    others = {"structuredllm_operator", "structuredllm_probe", "structuredllm_engine_patches"}
    for path in _ROOT.rglob("*.py"):
        # The burst is the operator's gate too: one library, behind one port.
        allowed = {"structuredllm_probe"} if path == _ROOT / "upstream" / "prober.py" else set()
        assert not {name.split(".")[0] for name in _imported(path)} & (others - allowed), path
