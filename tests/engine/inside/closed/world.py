"""vLLM's own scheduler, structured-output manager and xgrammar, with a sampler that obeys the mask.

Real: `AsyncScheduler` with its KV cache manager, `StructuredOutputManager`, xgrammar and the patches on
them. Fake: the model. A step's output is kept in flight for one step, as on one stage with asynchronous
scheduling.
"""

import copy
import json
import random
import time
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from tools.models.store import ensure_model

END = 2
"""The toy model's end token."""

VOCABULARY = 2048
BLOCK_SIZE = 16
COMPILE_SECONDS = 60.0

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["ann", "bob"]}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


@cache
def _base_config(drafts: int) -> Any:
    speculation = {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 2}
    return EngineArgs(
        model=str(ensure_model("toy")),
        dtype="float32",
        max_model_len=1024,
        max_num_batched_tokens=4096,
        max_num_seqs=256,
        enable_prefix_caching=False,
        async_scheduling=False,
        enforce_eager=True,
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
        speculative_config=speculation if drafts else None,
    ).create_engine_config()


def make_config(*, drafts: int = 0, blocks: int = 4000, running: int = 256) -> Any:
    """Return a `VllmConfig` with asynchronous scheduling and windows of 1 + `drafts` tokens.

    Made from one that vLLM validated and then changed: the drafters that it allows together with
    asynchronous scheduling need models of their own.
    """
    config = copy.copy(_base_config(drafts))
    for name in ("scheduler_config", "cache_config"):
        setattr(config, name, copy.copy(getattr(config, name)))
    config.scheduler_config.async_scheduling = True
    config.scheduler_config.max_num_seqs = running
    config.cache_config.block_size = BLOCK_SIZE
    config.cache_config.num_gpu_blocks = blocks
    return config


def allowed(row: Any) -> Any:
    """Return the ids of the tokens that a mask row (`[words]` of int32) allows."""
    bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:VOCABULARY])


def is_open(row: Any) -> bool:
    """Whether a mask row allows everything."""
    return bool((np.asarray(row) == -1).all())


@dataclass
class Record:
    """What came out for one request."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    stop_reason: Any = None


class World:
    """One engine core without model and processes.

    Attributes:
        records: what came out, by request id.
        rejects: how often a grammar refused sampled tokens.
        flying: steps that were sampled and not given to the scheduler yet.
    """

    def __init__(self, seed: int = 0, **config: Any) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a test's choices
        self.config = make_config(**config)
        self.manager: Any = StructuredOutputManager(self.config)
        layer = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=self.config.model_config.dtype
        )
        blocks = self.config.cache_config.num_gpu_blocks
        self.scheduler: Any = AsyncScheduler(
            vllm_config=self.config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], layer)]),
            structured_output_manager=self.manager,
            block_size=BLOCK_SIZE,
        )
        self.records: dict[str, Record] = {}
        self.rejects = 0
        self.flying: deque[tuple[Any, Any]] = deque()
        self._count_rejects()

    def add(self, request_id: str, schema: Any = None, *, prompt: int = 5, **sampling: Any) -> Any:
        """Add a request; its grammar, if it has a schema, is compiled when this returns."""
        request = self.make(request_id, schema, prompt=prompt, **sampling)
        self.records[request_id] = Record()
        self.scheduler.add_request(request)
        return request

    def make(self, request_id: str, schema: Any = None, *, prompt: int = 5, **sampling: Any) -> Any:
        """Return vLLM's request, with its parameters prepared as the front-end does."""
        constraint = None
        if schema is not None:
            constraint = StructuredOutputsParams(json=json.dumps(schema))
            constraint._backend = "xgrammar"
        params = SamplingParams(**{"max_tokens": 120, **sampling}, structured_outputs=constraint)
        params.update_from_generation_config({"eos_token_id": END}, END)
        request = Request(
            request_id=request_id,
            prompt_token_ids=[self.rng.randrange(3, VOCABULARY) for _ in range(prompt)],
            sampling_params=params,
            pooling_params=None,
        )
        if schema is not None:
            self.manager.grammar_init(request)
            deadline = time.monotonic() + COMPILE_SECONDS
            while not request.structured_output_request.is_grammar_ready:
                assert time.monotonic() < deadline, "the grammar did not compile"
                time.sleep(0.001)
        return request

    def step(self) -> Any:
        """Schedule a step, land the one before it, build the mask, sample; return the scheduler's output."""
        scheduler_output = self.scheduler.schedule()
        while self.flying:
            self.land()
        self.before_mask(scheduler_output)
        grammar_output = self.scheduler.get_grammar_bitmask(scheduler_output)
        if scheduler_output.total_num_scheduled_tokens:
            self.flying.append((scheduler_output, self.output(scheduler_output, grammar_output)))
        return scheduler_output

    def land(self) -> None:
        """Give the oldest output in flight to the scheduler."""
        for outputs in self.scheduler.update_from_output(*self.flying.popleft()).values():
            for output in outputs.outputs:
                record = self.records[output.request_id]
                record.tokens += output.new_token_ids
                if output.finish_reason is not None:
                    record.finish = str(output.finish_reason)
                    record.stop_reason = output.stop_reason

    def run(self, steps: int = 2000) -> None:
        """Step until nothing is left to do.

        Raises:
            AssertionError: it took more steps than that.
        """
        for _ in range(steps):
            if not self.scheduler.has_unfinished_requests() and not self.flying:
                return
            self.step()
        raise AssertionError(f"not done after {steps} steps")

    def before_mask(self, scheduler_output: Any) -> None:
        """Do what an engine core does to a deferred step before it asks for the mask."""

    def output(self, scheduler_output: Any, grammar_output: Any) -> Any:
        """Return what the workers answer, with tokens drawn from the mask."""
        ids = list(scheduler_output.num_scheduled_tokens)
        masks = {}
        if grammar_output is not None:
            constrained = grammar_output.structured_output_request_ids
            masks = dict(zip(constrained, grammar_output.grammar_bitmask.copy(), strict=True))
        sampled: list[list[int]] = []
        for request_id in ids:
            request = self.scheduler.requests.get(request_id)
            if request is not None and request.is_prefill_chunk:
                sampled.append([])
            else:
                sampled.append([self.draw(masks.get(request_id))])
        return self.answer(ids, sampled)

    def answer(self, ids: list[str], sampled: list[list[int]]) -> Any:
        """Return the workers' output for sampled tokens."""
        index = {request_id: number for number, request_id in enumerate(ids)}
        return ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=sampled)

    def draw(self, row: Any) -> int:
        """Return a token that a mask row allows; any but the end token without a row."""
        if row is None:
            return self.rng.randrange(3, VOCABULARY)
        choices = allowed(row)
        assert len(choices), "a mask without any token"
        return int(choices[self.rng.randrange(len(choices))])

    def grammar(self, request_id: str) -> Any:
        """Return vLLM's grammar object of a live request."""
        return self.scheduler.requests[request_id].structured_output_request.grammar

    def text(self, request_id: str) -> str:
        """Return the text of what came out, without the end token."""
        tokens = self.records[request_id].tokens
        return str(self.manager.tokenizer.decode([t for t in tokens if t != END]))

    def _count_rejects(self) -> None:
        accept_tokens = self.manager.accept_tokens

        def accept_and_count(request: Any, tokens: list[int]) -> bool:
            accepted: bool = accept_tokens(request, tokens)
            self.rejects += not accepted
            return accepted

        self.manager.accept_tokens = accept_and_count
