"""The part of the spec that spreads one engine over several nodes, and the arithmetic of its workers as CEL.

Owns these fields and the rules about counts of workers. Pure, as all of `api`.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from structuredllm_operator.api.base import Model, rule


class MultiNodeBackend(StrEnum):
    """What keeps the pods of one engine together."""

    LEADER_WORKER_SET = "LeaderWorkerSet"


class MultiNodeSpec(Model):
    """Engines that span several nodes: one pod a node, in vLLM's own multi-node mode."""

    node_count: Annotated[int, Field(ge=1, le=64)] = 1
    """Pods of one engine, each on whatever node has room for it. Must divide spec.parallelism.pipeline, so
    that a stage (with all its tensor parallel workers) never spans nodes. Default: 1. Example: 3."""
    backend: MultiNodeBackend = MultiNodeBackend.LEADER_WORKER_SET
    """What keeps the pods together when nodeCount is above 1. LeaderWorkerSet: its controller must be
    installed in the cluster. Default: LeaderWorkerSet."""


POD_WORKERS: Final = (
    "(self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.data / self.multiNode.nodeCount)"
)
"""CEL on the spec: workers of one pod, which is also its number of GPUs."""

POD_WORKERS_IN_WORDS: Final = (
    "spec.parallelism.tensor x spec.parallelism.pipeline x spec.parallelism.data / spec.multiNode.nodeCount"
)

WORKER_RULES: Final = (
    rule(
        "self.parallelism.pipeline % self.multiNode.nodeCount == 0",
        "spec.multiNode.nodeCount must divide spec.parallelism.pipeline: every node holds whole pipeline"
        " stages; change one of the two",
    ),
    rule(
        "self.parallelism.data == 1 || self.multiNode.nodeCount == 1",
        "spec.parallelism.data above 1 works on one node only: set it to 1 and raise spec.replicas (the"
        " gateway spreads requests over them), or set spec.multiNode.nodeCount to 1",
    ),
    rule(
        "self.warmup.burst.concurrency > self.parallelism.pipeline * self.parallelism.data",
        "spec.warmup.burst.concurrency must be above spec.parallelism.pipeline x spec.parallelism.data: a"
        " burst that does not overfill the pipeline proves nothing; raise the concurrency",
    ),
)
"""Rules on the whole spec."""
