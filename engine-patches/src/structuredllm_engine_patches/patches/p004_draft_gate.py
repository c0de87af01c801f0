"""p004: the V1 worker takes only drafts that the grammar vouches for."""

from collections.abc import Callable
from typing import Any

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Fit, Patch, Process, Unfit
from structuredllm_engine_patches.seams import draft_gate

RUNNER = "vllm.v1.worker.gpu_model_runner"


def _build(original: Callable[..., Any], _: Installation) -> Callable[..., Any]:
    return draft_gate.build(original)


PATCH = Patch(
    id="p004-draft-gate",
    title="Refuse drafts in the V1 worker that the grammar refused or never saw",
    processes=(Process.WORKER,),
    fits={
        "0.32.0": Fit(
            targets=(
                f"{RUNNER}:GPUModelRunner._update_states",
                f"{RUNNER}:GPUModelRunner.sample_tokens",
                f"{RUNNER}:GPUModelRunner._get_spec_decode_draft_probs",
            ),
            fingerprints={
                f"{RUNNER}:GPUModelRunner._update_states": "c1887d29258e7318",
                f"{RUNNER}:GPUModelRunner.sample_tokens": "6f8a7f4715597334",
                f"{RUNNER}:GPUModelRunner._get_spec_decode_draft_probs": "21caceeb197999ef",
                f"{RUNNER}:GPUModelRunner._sample": "0b4f2fcb83de17c3",
                "vllm.v1.structured_output.utils:apply_grammar_bitmask": "e2d91f0c22ca6b75",
                "vllm.v1.sample.rejection_sampler:RejectionSampler.forward": "32d7d4722a3a9d96",
                "vllm.v1.sample.rejection_sampler:rejection_sample": "e04418ee0b6acd60",
                "vllm.v1.spec_decode.ngram_proposer_gpu:update_scheduler_for_invalid_drafts": (
                    "91d2c41a8a052319"
                ),
                "vllm.v1.core.sched.output:GrammarOutput": "9c99606ffb887b7c",
            },
        ),
    },
    unfit={
        "0.22.1": Unfit(
            "drafts are not checked there; combine no speculative decoding with structured output",
            needed=True,
        )
    },
    why=(
        "With asynchronous scheduling and speculative decoding the V1 worker checks its own copy of the "
        "drafts. The scheduler marks those that the grammar refused, or that it never received, in its copy "
        "only, leaves the mask rows behind them open and says how many drafts it vouches for; nothing in "
        "the V1 worker reads that number. It takes drafts through the open rows: a token that breaks the "
        "grammar (an anonymous 500) or an answer that is cut short. The `ngram_gpu` drafter also shortens "
        "windows in the worker, so that requests meet each other's mask rows."
    ),
    upstream="https://github.com/vllm-project/vllm/issues/49694",
    upstream_change=(
        "In the V1 runner's `sample_tokens`, set the draft ids from `GrammarOutput.num_acceptable_drafts` on "
        "to -1 before the rejection sampler, and send the windows' lengths with the mask so that "
        "`apply_grammar_bitmask` does not take them from an output that the worker has shortened."
    ),
    remove_when="the V1 runner honours `num_acceptable_drafts`, or goes",
    build=_build,
)
