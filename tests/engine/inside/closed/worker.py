"""The V1 worker's sampling: `GPUModelRunner.sample_tokens` and all that it calls until the tokens are there.

Real: the runner's methods, `apply_grammar_bitmask`, the metadata of the windows and the rejection sampler
(with vLLM's CPU kernels). Fake: the model, whose logits the test gives.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner

from tests.engine.inside.closed.world import VOCABULARY

LAST_TOKEN = 5
"""Stands before every window; its id does not matter."""


def expand(
    output: Any, values: Any, ends: Any, replace_from: int, replace_to: int, MAX_NUM_TOKENS: int = 0
) -> None:
    """Write each request's value once per token, as the GPU's kernel does.

    The CPU's (0.32) writes floats to a copy: temperatures would stay whatever the memory held.
    """
    counts = torch.diff(ends, prepend=torch.zeros(1, dtype=ends.dtype))
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    output.copy_(torch.repeat_interleave(replaced, counts))


# As a worker does when it starts: the CPU's versions of the sampler's kernels.
cpu_triton_utils._expand_kernel_impl = expand
current_platform.register_triton_kernel_overrides()


class SampledError(Exception):
    """Ends `sample_tokens` where its tokens are known."""

    def __init__(self, token_ids: Any) -> None:
        super().__init__()
        self.token_ids = token_ids


class Runner(GPUModelRunner):  # type: ignore[misc]
    """A V1 runner with only what sampling needs."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.speculative_config = SimpleNamespace(use_ngram_gpu=lambda: False)
        self.use_async_scheduling = True
        self.kv_connector_output = None
        self.execute_model_state = None
        self.sampler = Sampler()
        self.rejection_sampler = RejectionSampler(self.sampler)
        self.arange_np = np.arange(4096, dtype=np.int64)
        self._arange_scratch = np.empty(4096, dtype=np.int64)
        self._draft_probs = None
        self._draft_prob_req_ids: list[str] | None = None
        self._draft_token_req_ids = None

    def _update_states_after_model_execute(self, output_token_ids: Any, scheduler_output: Any) -> None:
        raise SampledError(output_token_ids)

    def sample(
        self,
        windows: Mapping[str, Sequence[int]],
        logits: Any,
        grammar_output: Any,
        *,
        temperature: float = 1.0,
        draft_probabilities: Any = None,
        scheduled: Mapping[str, int] | None = None,
    ) -> dict[str, list[int]]:
        """Return the tokens that a step samples for each request.

        Args:
            windows: the worker's own copy of the drafts, by request, in the order of its batch.
            logits: `[sum of 1 + drafts, vocabulary]`.
            grammar_output: what the engine core sent.
            temperature: 0 is greedy.
            draft_probabilities: `[requests, drafts, vocabulary]` of a drafter that has any.
            scheduled: the windows' lengths as scheduled, where the worker shortened them.
        """
        lengths = {request_id: len(drafts) for request_id, drafts in windows.items()}
        self._prepare(windows, temperature)
        self._draft_probs = draft_probabilities
        self._draft_prob_req_ids = None if draft_probabilities is None else list(windows)
        self._note_windows({**lengths, **(scheduled or {})})
        placeholders = {request_id: [-1] * length for request_id, length in lengths.items() if length}
        metadata = None
        if placeholders:
            drafts = np.array(list(lengths.values()), dtype=np.int32)
            metadata = self._calc_spec_decode_metadata(drafts, np.cumsum(drafts + 1, dtype=np.int32))
        self.execute_model_state = ExecuteModelState(
            SimpleNamespace(scheduled_spec_decode_tokens=placeholders),
            logits.clone(),
            metadata,
            *[None] * 7,
        )
        try:
            self.sample_tokens(grammar_output)
        except SampledError as sampled:
            rows = sampled.token_ids.tolist()
        return {
            request_id: [token for token in row if token != -1]
            for request_id, row in zip(windows, rows, strict=True)
        }

    def _prepare(self, windows: Mapping[str, Sequence[int]], temperature: float) -> None:
        ids = [token for drafts in windows.values() for token in (LAST_TOKEN, *drafts)]
        self.input_ids = SimpleNamespace(gpu=torch.tensor(ids, dtype=torch.int32))
        requests = len(windows)
        self.input_batch = SimpleNamespace(
            req_ids=list(windows),
            sampling_metadata=SamplingMetadata(
                temperature=torch.full((requests,), temperature) if temperature else None,
                all_greedy=temperature == 0,
                all_random=temperature > 0,
                top_p=None,
                top_k=None,
                generators={},
                max_num_logprobs=None,
                no_penalties=True,
                prompt_token_ids=None,
                frequency_penalties=torch.zeros(requests),
                presence_penalties=torch.zeros(requests),
                repetition_penalties=torch.ones(requests),
                output_token_ids=[[] for _ in range(requests)],
                allowed_token_ids_mask=None,
                bad_words_token_ids={},
                logitsprocs=LogitsProcessors(),
            ),
            update_async_output_token_ids=lambda: None,
        )

    def _note_windows(self, lengths: Mapping[str, int]) -> None:
        """Run the real `_update_states`, as the patch notes the windows' lengths there, up to its first
        line."""
        output = SimpleNamespace(scheduled_spec_decode_tokens={r: [-1] * n for r, n in lengths.items()})
        with pytest.raises(AttributeError, match="finished_req_ids"):
            self._update_states(output)


def logits_towards(windows: Mapping[str, Sequence[int]], generator: Any) -> Any:
    """Return random logits that want exactly the drafts, `[sum of 1 + drafts, vocabulary]`."""
    rows = sum(1 + len(drafts) for drafts in windows.values())
    logits = torch.randn((rows, VOCABULARY), generator=generator)
    start = 0
    for drafts in windows.values():
        for position, token in enumerate(drafts):
            logits[start + position, token] += 50.0
        start += 1 + len(drafts)
    return logits
