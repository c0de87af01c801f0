"""A fake executor that remembers what was computed from what, as the V1 runner (vLLM 0.32) does.

A position's key-value entry is the token that was really fed there, stored by block and offset; the next
token is a function of the entries that a request reads through its own block table. An entry computed from a
refused token, a block that another request has taken over, or a token that a worker believes in and the
scheduler does not: each changes the text. How a worker learns its tokens follows `GPUModelRunner` on a stage
that is not the last: sampled ids are handed over from the step right before, everything else comes from the
scheduler.
"""

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from structuredllm_test_cpu_async.refusals import plan_of
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput

BLOCK_SIZE = 4
VOCABULARY = 320
LAYER = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32)
PLACE_HOLDER = -1


class LateFuture(Future[Any]):
    """A result that is there as soon as somebody waits for it, and not before: the batch queue fills up."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.set_result(value)

    def done(self) -> bool:
        """Say that it is not there yet."""
        return False


@dataclass
class Held:
    """What a worker knows of a request."""

    prompt: list[int]
    blocks: list[int]
    outputs: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """Return all tokens; place holders where one was sampled and not told."""
        return self.prompt + self.outputs


@dataclass(frozen=True)
class Row:
    """One request in a step: what its last position attends to, and whether it samples."""

    request_id: str
    context: tuple[int, ...]
    samples: bool


class KvExecutor:
    """What an engine core asks of its executor.

    Args:
        memory: bytes for key-value blocks.
        synchronous: sampled tokens are known to the worker at once, nothing is handed over.
    """

    def __init__(self, memory: int, *, synchronous: bool) -> None:
        self._memory = memory
        self._synchronous = synchronous
        self._held: dict[str, Held] = {}
        self._batch: set[str] = set()
        self._handed_over: dict[str, int] = {}
        self._entries: dict[tuple[int, int], int] = {}
        self._masks: dict[str, int] = {}
        self._rows: list[Row] = []

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Run the forward pass of a step."""
        self._learn(scheduler_output)
        self._rows = list(self._forward(scheduler_output))
        empty = ModelRunnerOutput(req_ids=[], req_id_to_index={})
        return self._answer(None if self._rows else empty, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Sample the step whose forward pass ran last."""
        masks = {} if grammar_output is None else self._masks_of(grammar_output)
        sampled: list[list[int]] = []
        self._handed_over = {}
        for row in self._rows:
            if not row.samples:
                sampled.append([])
                continue
            token = self._sample(row, masks.get(row.request_id))
            sampled.append([token])
            self._handed_over[row.request_id] = token
            self._held[row.request_id].outputs.append(token if self._synchronous else PLACE_HOLDER)
        ids = [row.request_id for row in self._rows]
        index = {request_id: number for number, request_id in enumerate(ids)}
        output = ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=sampled)
        return self._answer(output, non_block)

    def _learn(self, step: Any) -> None:
        """Follow `GPUModelRunner._update_states`."""
        for request_id in step.finished_req_ids:
            self._held.pop(request_id, None)
            self._leave(request_id)
        cached = step.scheduled_cached_reqs
        for request_id in self._batch - (set(step.num_scheduled_tokens) - cached.resumed_req_ids):
            self._leave(request_id)
        for new in step.scheduled_new_reqs:
            assert new.req_id not in self._held, "a new request whose state was never freed"
            self._held[new.req_id] = Held(list(new.prompt_token_ids), list(new.block_ids[0]))
            self._batch.add(new.req_id)
        for number, request_id in enumerate(cached.req_ids):
            held = self._held[request_id]
            known, blocks = cached.num_output_tokens[number], cached.new_block_ids[number]
            if self._synchronous:
                del held.outputs[known:]
            if request_id in cached.resumed_req_ids:
                held.blocks = list(blocks[0])
            elif blocks is not None:
                held.blocks.extend(blocks[0])
            if request_id not in self._batch:
                if known > 0 and not self._synchronous:
                    held.outputs = list(cached.all_token_ids[request_id][-known:])
                self._batch.add(request_id)

    def _leave(self, request_id: str) -> None:
        self._batch.discard(request_id)
        self._handed_over.pop(request_id, None)

    def _forward(self, step: Any) -> Iterator[Row]:
        computed = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        cached = step.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, count in step.num_scheduled_tokens.items():
            held, start = self._held[request_id], computed[request_id]
            tokens, end = held.tokens, start + count
            if request_id in self._handed_over:
                tokens[end - 1] = self._handed_over[request_id]
            for position in range(start, end):
                assert tokens[position] != PLACE_HOLDER, f"{request_id}: no token for position {position}"
                self._entries[self._place(held, position)] = tokens[position]
            context = tuple(self._entries[self._place(held, position)] for position in range(end))
            yield Row(request_id, context, end >= len(tokens))

    @staticmethod
    def _place(held: Held, position: int) -> tuple[int, int]:
        return held.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE

    @staticmethod
    def _masks_of(grammar_output: Any) -> dict[str, Any]:
        bits = np.unpackbits(grammar_output.grammar_bitmask.view(np.uint8), axis=1, bitorder="little")
        ids = grammar_output.structured_output_request_ids
        return {request_id: bits[row, :VOCABULARY].astype(bool) for row, request_id in enumerate(ids)}

    def _sample(self, row: Row, allowed: Any) -> int:
        seed = zlib.crc32(np.array(row.context, dtype=np.int64).tobytes())
        scores = np.random.default_rng(seed).random(VOCABULARY)
        if allowed is None:
            return int(scores.argmax())
        self._masks[row.request_id] = self._masks.get(row.request_id, 0) + 1
        if plan_of(row.request_id)(self._masks[row.request_id]) and not allowed.all():
            allowed = ~allowed
        scores[~allowed] = -1
        return int(scores.argmax())

    @staticmethod
    def _answer(value: Any, non_block: bool) -> Any:
        return LateFuture(value) if non_block else value

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        """Return one attention layer."""
        return [{"layer": LAYER}]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Return the usual layout."""
        return [["LBNHC"]]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        """There is no cache to lay out."""

    def determine_available_memory(self) -> list[int]:
        """Return the bytes that the wanted number of blocks takes."""
        return [self._memory]

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        """There is no cache to make."""

    def compile_or_warm_up_model(self) -> None:
        """There is no model to compile."""

    def collective_rpc(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Answer a call to all workers that concerns none of them."""
        return []

    def shutdown(self) -> None:
        """Nothing to end."""
