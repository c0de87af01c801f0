"""A real engine core (vLLM 0.32) on the fake executor, one a scenario.

Real: `EngineCore` with its batch queue, the scheduler with its KV cache manager, the
`StructuredOutputManager`, and the patches on them. Fake: the executor, the grammars, and when they are
compiled.
"""

import copy
import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine import core as core_module
from vllm.v1.request import Request

from structuredllm_engine_patches.seams import core_telemetry
from structuredllm_engine_patches.telemetry.observation import Observation
from tests.engine.inside.order.executor import FakeExecutor, block_count, make_layers
from tests.engine.inside.order.grammar import FakeBackend, FakeGrammar
from tests.engine.inside.order.scenario import MAX_MODEL_LENGTH, Plan, Shape
from tests.engine.inside.order.tokens import END
from tests.engine.inside.order.workers import Workers

MODEL = Path(__file__).parent / "model"
logger = logging.getLogger(__name__)


class V1Config(VllmConfig):  # type: ignore[misc]
    """A configuration under the V1 runner's rules, whatever the platform has."""

    use_v2_model_runner = False


class V2Config(VllmConfig):  # type: ignore[misc]
    """A configuration under the V2 runner's rules; the CPU platform has no such runner."""

    use_v2_model_runner = True


@cache
def _base_config(draft_tokens: int) -> Any:
    speculation = {"method": "ngram", "num_speculative_tokens": draft_tokens, "prompt_lookup_max": 2}
    return EngineArgs(
        model=str(MODEL),
        skip_tokenizer_init=True,
        max_model_len=MAX_MODEL_LENGTH,
        max_num_batched_tokens=MAX_MODEL_LENGTH,
        max_num_seqs=8,
        enable_prefix_caching=False,
        async_scheduling=False,
        enforce_eager=True,
        speculative_config=speculation if draft_tokens else None,
    ).create_engine_config()


def make_config(shape: Shape, *, synchronous: bool) -> Any:
    """Return the `VllmConfig` of an engine.

    Made from one that vLLM validated, and then changed: it refuses some combinations that the rules are
    still to be held in (V1 with stages and speculation), and needs devices for more than one stage.
    """
    config = copy.copy(_base_config(shape.draft_tokens))
    config.__class__ = V2Config if shape.v2 else V1Config
    for name in ("scheduler_config", "parallel_config", "cache_config"):
        setattr(config, name, copy.copy(getattr(config, name)))
    config.scheduler_config.async_scheduling = not synchronous
    config.scheduler_config.max_num_batched_tokens = shape.budget
    config.scheduler_config.max_num_scheduled_tokens = None
    config.scheduler_config.max_num_seqs = shape.running
    config.parallel_config.pipeline_parallel_size = 1 if synchronous else shape.stages
    config.cache_config.block_size = make_layers(shape)["attention"].block_size
    config.cache_config.num_gpu_blocks_override = block_count(shape)
    config.cache_config.enable_prefix_caching = shape.hybrid
    config.cache_config.mamba_cache_mode = "align" if shape.hybrid else "none"
    return config


def make_core(
    shape: Shape,
    workers: Workers,
    on_await: Callable[[], None],
    observation: Observation,
    *,
    synchronous: bool = False,
) -> Any:
    """Return an engine core that is ready for requests, observed as in production."""
    config = make_config(shape, synchronous=synchronous)

    def executor(_: Any) -> FakeExecutor:
        return FakeExecutor(shape, workers, on_await)

    # It would walk through all of torch at each engine, and keep what belongs to the engine for ever.
    with patch.object(core_module, "freeze_gc_heap", lambda: None):
        core = core_module.EngineCore(config, executor, log_stats=False)
    core.structured_output_manager.backend = FakeBackend()
    if not shape.in_process:
        core.output_queue = queue.SimpleQueue()
    core_telemetry.observe(core, observation, logger, clock=lambda: 0.0)
    return core


def make_request(core: Any, number: int, plan: Plan) -> tuple[Any, Callable[[], None]]:
    """Return vLLM's request for a plan, and what ends the compilation of its grammar.

    The compilation itself is another subject: the scheduler sees its future only.
    """
    answer = plan.answer
    constraint = StructuredOutputsParams(regex=str(number)) if answer.structured else None
    request = Request(
        request_id=request_id(number),
        prompt_token_ids=answer.prompt_tokens,
        sampling_params=SamplingParams(
            max_tokens=answer.limit, stop_token_ids=[END], structured_outputs=constraint
        ),
        pooling_params=None,
        client_index=client_of(number),
        arrival_time=float(number),
        block_hasher=core.request_block_hasher,
    )
    future: Future[Any] = Future()
    if answer.structured:
        request.structured_output_request.grammar = future

    def finish() -> None:
        if plan.compile_fails:
            future.set_exception(ValueError("does not compile"))
        else:
            future.set_result(FakeGrammar(answer))

    return request, finish


def request_id(number: int) -> str:
    """Return the id of a request."""
    return f"r{number}"


def client_of(number: int) -> int:
    """Return the index of the front-end process that sent a request."""
    return number % 2
