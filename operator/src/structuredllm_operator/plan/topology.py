"""Compares what an engine reports with what the spec asks for. Pure.

`Check = Callable[[spec, info], Finding | None]`, in an ordered tuple; the first finding wins. A new rule is
one function and one line in the tuple.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from structuredllm_operator.api.conditions import FALSE, TRUE, UNKNOWN, Reason
from structuredllm_operator.api.engine_spec import PatchPolicy
from structuredllm_operator.api.labels import TELEMETRY_PORT
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.plan.observed import EngineInfo, EngineReport
from structuredllm_operator.plan.parallelism import workers


@dataclass(frozen=True)
class Finding:
    """Result for one engine. `status` is True, False or Unknown, as in conditions."""

    status: str
    reason: str
    message: str


Check = Callable[[StructuredLLMSpec, EngineInfo], Finding | None]

SETTLED: Final = frozenset({"active", "elsewhere", "not-needed", "unavailable"})
"""States of a patch on a version of vLLM that the patch package supports.

One of the front-end or of a worker is elsewhere: it is checked there, such a process does not start without.
"""

_PATCH_CURE: Final = (
    "use an image with the structuredllm engine patches for its vLLM version (spec.engine.image),"
    " or set spec.engine.patches to Optional"
)


def verify(spec: StructuredLLMSpec, report: EngineReport | None) -> Finding:
    """Judge one engine whose container is ready. `None` means that it was not asked yet."""
    if report is None:
        return Finding(UNKNOWN, Reason.NOT_REPORTED, "the engine was not asked yet")
    if report.info is None:
        if report.refused and spec.engine.patches is PatchPolicy.REQUIRED:
            return Finding(
                FALSE,
                Reason.PATCH_MISSING,
                f"the engine is up, but nothing listens on its telemetry port {TELEMETRY_PORT}: the image"
                " lacks the"
                f" engine patches; {_PATCH_CURE}",
            )
        return Finding(
            UNKNOWN, Reason.NOT_REPORTED, f"the engine did not report its topology: {report.detail}"
        )
    for check in CHECKS:
        finding = check(spec, report.info)
        if finding is not None:
            return finding
    return Finding(TRUE, Reason.VERIFIED, _describe(report.info))


def check_patches(spec: StructuredLLMSpec, info: EngineInfo) -> Finding | None:
    """Every patch that the engine knows is in place when the policy requires them.

    Those that the package knowingly leaves out of a supported version count: it is proven as it is.
    """
    if spec.engine.patches is not PatchPolicy.REQUIRED:
        return None
    if info.policy != PatchPolicy.REQUIRED.value.lower():
        return Finding(
            FALSE,
            Reason.PATCH_MISSING,
            f"the engine runs with patch policy {info.policy!r}, but spec.engine.patches is Required:"
            f" the image overrides it; {_PATCH_CURE}",
        )
    missing = [patch for patch in info.patches if patch.state not in SETTLED]
    if missing or not info.patches:
        named = (
            ", ".join(f"{patch.id} ({patch.reason or patch.state})" for patch in missing) or "none is known"
        )
        return Finding(
            FALSE,
            Reason.PATCH_MISSING,
            f"vLLM {info.vllm_version} runs without required patches: {named}; {_PATCH_CURE}",
        )
    return None


def check_world_size(spec: StructuredLLMSpec, info: EngineInfo) -> Finding | None:
    """The engine runs as many workers as the spec says, split in the same way (cf. KServe issue 6044)."""
    wanted = (spec.parallelism.tensor, spec.parallelism.pipeline, workers(spec))
    found = (info.tensor, info.pipeline, info.world_size)
    if wanted == found:
        return None
    return Finding(
        FALSE,
        Reason.WORLD_SIZE_MISMATCH,
        f"the spec asks for tensor x pipeline = {wanted[0]} x {wanted[1]} (world size {wanted[2]}), the"
        " engine runs"
        f" {found[0]} x {found[1]} (world size {found[2]}): look for an entry point or an argument in the"
        " image or in"
        " spec.engine.args/env that overrides the parallelism",
    )


def check_async(spec: StructuredLLMSpec, info: EngineInfo) -> Finding | None:
    """Async scheduling is as the spec says; vLLM switches it off by itself where it thinks it unsafe.

    With optional patches, an engine that went without asynchronous scheduling for want of one does as it was
    told; the message of the verified topology says why.
    """
    if spec.engine.async_scheduling == info.async_scheduling:
        return None
    if info.async_forced_off and spec.engine.patches is PatchPolicy.OPTIONAL:
        return None
    words = {True: "on", False: "off"}
    return Finding(
        FALSE,
        Reason.ASYNC_MISMATCH,
        f"spec.engine.asyncScheduling is {words[spec.engine.async_scheduling]}, but the engine runs with it"
        f" {words[info.async_scheduling]}{_because(info)}: set it to {str(info.async_scheduling).lower()}, or"
        " use an image whose patches allow it",
    )


CHECKS: Final[tuple[Check, ...]] = (check_patches, check_world_size, check_async)


def _because(info: EngineInfo) -> str:
    return f" ({info.async_forced_off})" if info.async_forced_off else ""


def _describe(info: EngineInfo) -> str:
    active = ", ".join(patch.id for patch in info.patches if patch.state == "active") or "none"
    return (
        f"vLLM {info.vllm_version}, tensor {info.tensor} x pipeline {info.pipeline}, world size"
        f" {info.world_size},"
        f" async scheduling {'on' if info.async_scheduling else 'off'}{_because(info)},"
        f" active patches: {active}"
    )
