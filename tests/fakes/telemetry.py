"""What the telemetry port of a fake engine answers: the /info document and the metrics text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_INFO: Mapping[str, Any] = {
    "vllm_version": "0.32.0",
    "package_version": "0.1.0",
    "policy": "required",
    "patches": [{"id": "p001-batch-queue-drain", "state": "active", "reason": ""}],
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 3,
    "data_parallel_size": 1,
    "world_size": 3,
    "async_scheduling": True,
    "model": "/models/toy",
    "structured_outputs_backend": "xgrammar",
}


def metrics_text(info: Mapping[str, Any], *, rejects: int, in_flight: int) -> str:
    """Return the metrics of the engine package in the Prometheus text format.

    Args:
        info: the /info document; its patches, version and backend become labels.
        rejects: grammar rejects so far; a fake engine counts as many stale masks.
        in_flight: completions being answered now.
    """
    backend, version = info.get("structured_outputs_backend", "xgrammar"), info.get("vllm_version", "")
    lines = ["# TYPE structuredllm_engine_patch_info gauge"]
    for patch in info.get("patches", ()):
        labels = f'id="{patch["id"]}",vllm="{version}",state="{patch["state"]}"'
        lines.append(f"structuredllm_engine_patch_info{{{labels}}} 1")
    lines += [
        "# TYPE structuredllm_engine_grammar_rejects_total counter",
        f'structuredllm_engine_grammar_rejects_total{{backend="{backend}"}} {rejects}',
        "# TYPE structuredllm_engine_stale_mask_total counter",
        f"structuredllm_engine_stale_mask_total {rejects}",
        "# TYPE structuredllm_engine_drained_batches_total counter",
        "structuredllm_engine_drained_batches_total 0",
        "# TYPE structuredllm_engine_in_flight_steps gauge",
        f"structuredllm_engine_in_flight_steps {in_flight}",
    ]
    return "\n".join(lines) + "\n"
