"""Runs requests on a real engine core (vLLM 0.32, V1 rules) with real xgrammar and the fake executor."""

import copy
import gc
import json
import logging
import queue
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import xgrammar as xgr
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from structuredllm_engine_patches.seams import core_telemetry
from structuredllm_engine_patches.telemetry.observation import Observation
from tests.engine.inside.recovery.kv_executor import LAYER, VOCABULARY, KvExecutor

END = 256
MISSING_BYTE = 0x07
"""No token has it: a grammar that needs it comes to a dead end there."""
MAX_STEPS = 3000
MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "eos_token_id": END,
}
PIECES = ['{"', '":', '", "', '"}', "true", "false", "ann", "bob", "name", "age", "ok", "why"]


@dataclass(frozen=True)
class Shape:
    """How an engine is set up.

    Attributes:
        stages: pipeline stages.
        asynchronous: asynchronous scheduling.
        blocks: key-value blocks of 4 tokens; few of them force preemptions.
        budget: tokens a step; few of them cut prompts into chunks.
        prefix_caching: blocks of equal prefixes are shared.
    """

    stages: int = 3
    asynchronous: bool = True
    blocks: int = 400
    budget: int = 64
    prefix_caching: bool = True


@dataclass
class Client:
    """What came out of the engine core for one request."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    stop_reason: Any = None


class V1Config(VllmConfig):  # type: ignore[misc]
    """A configuration under the V1 runner's rules, whatever the platform has."""

    use_v2_model_runner = False


@cache
def _base_config() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL_CONFIG))
        return EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            max_model_len=128,
            max_num_batched_tokens=128,
            max_num_seqs=8,
            async_scheduling=False,
            enforce_eager=True,
        ).create_engine_config()


@cache
def compiler() -> xgr.GrammarCompiler:
    """Return a compiler for a vocabulary of all bytes but one, an end token and a few words."""
    words = (
        [bytes([byte]) if byte != MISSING_BYTE else b"<none>" for byte in range(256)]
        + [b"</s>"]
        + [piece.encode() for piece in PIECES]
    )
    words += [f"<unused{n}>".encode() for n in range(VOCABULARY - len(words))]
    info = xgr.TokenizerInfo(words, vocab_type=xgr.VocabType.RAW, stop_token_ids=[END])
    return xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)


class Backend:
    """vLLM's backend interface over `compiler`; xgrammar's matchers behind vLLM's own class."""

    def compile_grammar(self, request_type: Any, spec: str, stop_token_ids: Any = None) -> XgrammarGrammar:
        """Compile a JSON schema, or a grammar in EBNF."""
        made = compiler()
        compiled = made.compile_json_schema(spec) if spec.startswith("{") else made.compile_grammar(spec)
        return XgrammarGrammar(matcher=xgr.GrammarMatcher(compiled), vocab_size=VOCABULARY, ctx=compiled)

    def allocate_token_bitmask(self, rows: int) -> Any:
        """Return the masks of a batch."""
        return xgr.allocate_token_bitmask(rows, VOCABULARY)

    def destroy(self) -> None:
        """Nothing to free."""


class Engine:
    """One engine core.

    Attributes:
        observation: what its telemetry counts.
        clients: by request id.
        preemptions: how often the scheduler preempted, recoveries included.
    """

    def __init__(self, shape: Shape) -> None:
        config = copy.copy(_base_config())
        config.__class__ = V1Config
        for name in ("scheduler_config", "parallel_config", "cache_config"):
            setattr(config, name, copy.copy(getattr(config, name)))
        config.scheduler_config.async_scheduling = shape.asynchronous
        config.scheduler_config.max_num_batched_tokens = shape.budget
        config.scheduler_config.max_num_scheduled_tokens = None
        config.parallel_config.pipeline_parallel_size = shape.stages
        config.cache_config.block_size = LAYER.block_size
        config.cache_config.num_gpu_blocks_override = shape.blocks
        config.cache_config.enable_prefix_caching = shape.prefix_caching
        memory = LAYER.page_size_bytes * shape.blocks

        def executor(_: Any) -> KvExecutor:
            return KvExecutor(memory, synchronous=not shape.asynchronous)

        self.core = EngineCore(config, executor, log_stats=False)
        gc.unfreeze()
        self.core.structured_output_manager.backend = Backend()
        self.core.structured_output_manager.executor = ThreadPoolExecutor(1)
        self.core.output_queue = queue.SimpleQueue()
        self.observation = Observation()
        core_telemetry.observe(self.core, self.observation, logging.getLogger("test"), clock=lambda: 0.0)
        self.clients: dict[str, Client] = {}
        self.preemptions = 0
        self._count_preemptions()

    def _count_preemptions(self) -> None:
        preempt = self.core.scheduler._preempt_request

        def preempt_and_count(*args: Any, **kwargs: Any) -> None:
            self.preemptions += 1
            preempt(*args, **kwargs)

        self.core.scheduler._preempt_request = preempt_and_count

    def add(self, request_id: str, prompt: list[int], constraint: Any = None, **params: Any) -> None:
        """Send a request; `constraint` is a JSON schema, a grammar in EBNF, or None."""
        outputs = None
        if constraint is not None:
            outputs = (
                StructuredOutputsParams(grammar=constraint)
                if isinstance(constraint, str)
                else StructuredOutputsParams(json=json.dumps(constraint))
            )
            outputs._backend = "xgrammar"
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=SamplingParams(
                **{"max_tokens": 40, "temperature": 0.0, "stop_token_ids": [END], **params},
                structured_outputs=outputs,
            ),
            pooling_params=None,
            arrival_time=float(len(self.clients)),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self.clients[request_id] = Client()
        made, _ = self.core.preprocess_add_request(request)
        self.core.add_request(made)

    def run(self) -> Mapping[str, Client]:
        """Step until every request has ended."""
        for _ in range(MAX_STEPS):
            if not (self.core.scheduler.has_requests() or self.core.batch_queue):
                return self.clients
            outputs, _ = self.core.step_fn()
            while not self.core.output_queue.empty():
                self._deliver(self.core.output_queue.get_nowait()[1])
            for group in (outputs or {}).values():
                self._deliver(group)
        raise AssertionError(f"not done after {MAX_STEPS} steps: {self.clients}")

    def _deliver(self, group: Any) -> None:
        for output in group.outputs:
            client = self.clients[output.request_id]
            assert client.finish is None, "output after the end"
            client.tokens.extend(output.new_token_ids)
            if output.finish_reason is not None:
                client.finish, client.stop_reason = str(output.finish_reason), output.stop_reason
