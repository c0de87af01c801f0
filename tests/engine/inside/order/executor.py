"""The fake executor: no model, no processes. Steps are sampled when asked, results arrive when awaited."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from tests.engine.inside.order.scenario import Shape
from tests.engine.inside.order.workers import Row, Workers


def make_layers(shape: Shape) -> dict[str, Any]:
    """Return the KV cache of each layer: attention, and in a hybrid a Mamba layer with pages of that size."""
    block_size = 16 if shape.hybrid else 4
    attention = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float32)
    if not shape.hybrid:
        return {"attention": attention}
    mamba = MambaSpec(
        block_size=block_size,
        shapes=((attention.page_size_bytes // 4,),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
        num_speculative_blocks=shape.draft_tokens,
    )
    return {"attention": attention, "mamba": mamba}


def block_count(shape: Shape) -> int:
    """Return the number of KV cache blocks."""
    return max(shape.blocks // 2, 12) if shape.hybrid else shape.blocks


class AwaitedFuture(Future[Any]):
    """A finished result that tells when somebody waits for it."""

    def __init__(self, value: Any, on_await: Callable[[], None]) -> None:
        super().__init__()
        self.set_result(value)
        self._on_await = on_await

    def result(self, timeout: float | None = None) -> Any:
        """Return the result."""
        self._on_await()
        return super().result(timeout)


@dataclass(frozen=True)
class Running:
    """A step between its forward pass and its sampling."""

    rows: Sequence[Row]
    structured: bool


class FakeExecutor:
    """What an engine core asks of its executor.

    Args:
        shape: the engine.
        workers: what the stages know.
        on_await: called when the engine core waits for a step's result, before it gets it.
    """

    def __init__(self, shape: Shape, workers: Workers, on_await: Callable[[], None]) -> None:
        self._shape = shape
        self._layers = make_layers(shape)
        self._workers = workers
        self._on_await = on_await
        self._running: Running | None = None
        self._drafts: DraftTokenIds | None = None

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Run the forward pass of a step; `sample_tokens` gives its result unless it is empty."""
        rows = self._workers.execute(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return self._answer(ModelRunnerOutput(req_ids=[], req_id_to_index={}), non_block)
        assert self._running is None, "a step was executed before the step before it was sampled"
        self._running = Running(rows, scheduler_output.has_structured_output_requests)
        return self._answer(None, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Sample the step whose forward pass ran last."""
        running, self._running = self._running, None
        assert running is not None, "a step was sampled before its forward pass"
        sampled = self._workers.sample(running.rows, grammar_output)
        ids = [row.request_id for row in running.rows]
        # One slot, overwritten by each step, as in both runners.
        self._drafts = (
            DraftTokenIds(ids, self._workers.proposals(running.rows)) if running.structured else None
        )
        index = {request_id: number for number, request_id in enumerate(ids)}
        output = ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=sampled)
        return self._answer(output, non_block)

    def take_draft_token_ids(self) -> Any:
        """Return the drafts of the step that was sampled last."""
        return self._drafts

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        """Return the layers' caches."""
        return [self._layers]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Return the usual layout."""
        return [["LBNHC"]]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        """There is no cache to lay out."""

    def determine_available_memory(self) -> list[int]:
        """Return the bytes that the wanted number of blocks takes."""
        return [sum(layer.page_size_bytes for layer in self._layers.values()) * block_count(self._shape)]

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        """There is no cache to make."""

    def compile_or_warm_up_model(self) -> None:
        """There is no model to compile."""

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Answer a call to all workers that concerns none of them."""
        return []

    def shutdown(self) -> None:
        """Nothing to end."""

    def _answer(self, value: Any, non_block: bool) -> Any:
        return AwaitedFuture(value, self._on_await) if non_block else value
