"""How long the engine core's loop needs to fill the masks of a step and to accept its tokens.

Runs in the engine's environment: vLLM's own `StructuredOutputManager` with real xgrammar on a real
vocabulary (SmolLM2, 49,152 tokens). How grammars are compiled does not matter
here, so that is upstream's. The stage must not wait for it: what is done for one step has to fit into one
stage's time. Each batch is measured as upstream fills it and with p043's threads, on equal grammars and
tokens. Prints one result line.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structuredllm_engine_patches.seams.mask_threads import build_grammar_bitmask, worker_count
from tools.bench.engine.drive import RESULT_MARK, quantile

Fill = Callable[[Any, dict[str, Any], list[str], dict[str, list[int]]], Any]

REQUESTS = 128
STEPS = 40
SEED = 16


def schema_of(number: int) -> dict[str, Any]:
    """Return a schema as people write them: free text, numbers, choices and a list."""
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 5, "maxLength": 60},
            "kind": {"type": "string", "enum": ["person", "place", f"thing{number % 16}"]},
            "score": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,12}$"}, "minItems": 8},
        },
        "required": ["name", "kind", "score", "tags"],
        "additionalProperties": False,
    }


def make_requests(manager: Any, count: int) -> dict[str, Any]:
    """Return requests whose grammars are compiled."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.request import Request

    requests = {}
    for number in range(count):
        structured = StructuredOutputsParams(json=json.dumps(schema_of(number)))
        structured._backend = "xgrammar"
        request = Request(
            request_id=f"r{number}",
            prompt_token_ids=[1, 2, 3],
            sampling_params=SamplingParams(max_tokens=200, structured_outputs=structured),
            pooling_params=None,
        )
        manager.grammar_init(request)
        requests[request.request_id] = request
    for request in requests.values():
        while request.structured_output_request.grammar is None:
            time.sleep(0.005)
        grammar = request.structured_output_request.grammar
        if isinstance(grammar, BaseException):
            raise RuntimeError(f"{request.request_id}: {grammar!r} {grammar.__cause__!r}")
    return requests


def run(manager: Any, fill: Fill, requests: dict[str, Any], size: int) -> dict[str, float]:
    """Return percentiles in milliseconds over the steps of batches of `size` requests, taken in turn."""
    import numpy as np

    chooser = random.Random(SEED)  # noqa: S311 - wants repeatable texts
    names = list(requests)
    fills, accepts = [], []
    for step in range(STEPS):
        batch = [names[(step * size + n) % len(names)] for n in range(size)]
        begin = time.perf_counter()
        masks = fill(manager, requests, batch, {})
        filled = time.perf_counter()
        tokens = []
        for row in masks[:size]:
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            tokens.append(int(chooser.choice(allowed)))
        chosen = time.perf_counter()
        for name, token in zip(batch, tokens, strict=True):
            if not manager.accept_tokens(requests[name], [token]):
                raise RuntimeError(f"an allowed token was rejected: {name} {token}")
        accepts.append(time.perf_counter() - chosen)
        fills.append(filled - begin)
    both = sorted(fill + accept for fill, accept in zip(fills, accepts, strict=True))
    fills.sort()
    accepts.sort()
    return {
        "fill_p50_ms": round(1000 * quantile(fills, 0.5), 3),
        "fill_p99_ms": round(1000 * quantile(fills, 0.99), 3),
        "accept_p50_ms": round(1000 * quantile(accepts, 0.5), 3),
        "accept_p99_ms": round(1000 * quantile(accepts, 0.99), 3),
        "both_p50_ms": round(1000 * quantile(both, 0.5), 3),
        "both_p99_ms": round(1000 * quantile(both, 0.99), 3),
    }


async def main(plan: dict[str, Any]) -> None:
    """Measure whole batches, and the shares that phases make of them."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.structured_output import StructuredOutputManager

    config = EngineArgs(**plan["engine_args"]).create_engine_config()
    manager = StructuredOutputManager(config)
    upstream = StructuredOutputManager.grammar_bitmask
    result: dict[str, Any] = {"structured_requests": REQUESTS, "vocabulary": plan["vocabulary"]}
    for name, size in (
        ("all", REQUESTS),
        ("pp2", -(-REQUESTS // 2)),
        ("pp3", -(-REQUESTS // 3)),
        ("pp4", 32),
    ):
        result[f"step_of_{name}"] = {
            "requests": size,
            "workers": worker_count(len(os.sched_getaffinity(0))),
            "upstream": run(manager, upstream, make_requests(manager, REQUESTS), size),
            "patched": run(manager, build_grammar_bitmask(upstream), make_requests(manager, REQUESTS), size),
        }
    print(RESULT_MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
