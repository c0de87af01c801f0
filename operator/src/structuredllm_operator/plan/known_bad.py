"""Combinations that are known to go wrong: refused where they cannot start, else warned of with the cure.

Pure. `Check = Callable[[spec, versions], Risk | None]`, in an ordered tuple; all that apply are reported. A
new rule is one function and one line in the tuple. Sources: vllm/config/vllm.py
`_get_v1_model_runner_unsupported_features` and `_get_v2_model_runner_unsupported_features` (0.32), vLLM
issue 45014, and the register of the engine patches.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from structuredllm_operator.api import conditions as api
from structuredllm_operator.api.conditions import TRUE, Condition, Reason
from structuredllm_operator.api.engine_spec import PatchPolicy
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.errors import SpecError

SUPPORTED_VLLM: Final = ("0.22.1", "0.32.0")
"""Versions that the engine patches are proven on; a test compares it with their own list."""

DEAF_NODES_VLLM: Final = ("0.22.1",)
"""Of those, the versions that patch p030 does not fit."""

RUNNER_ENV: Final = "VLLM_USE_V2_MODEL_RUNNER"
_FALSE: Final = frozenset({"0", "false"})
_DRAFT_ARGS: Final = ("--speculative-config", "--spec-method", "--spec-model", "--spec-tokens", "-sc")
_V1_METHODS: Final = ("suffix", "medusa", "mlp_speculator", "custom_class")
"""Speculative methods that only the V1 model runner of vLLM 0.32 has."""

_VLLM_IMAGE: Final = re.compile(r"vllm[^:@]*:v?(\d+\.\d+\.\d+)(?![\d.])")


@dataclass(frozen=True)
class Risk:
    """Something that is known to go wrong, and what to do about it."""

    reason: str
    message: str


Check = Callable[[StructuredLLMSpec, Sequence[str]], Risk | None]


def refuse_what_cannot_start(spec: StructuredLLMSpec) -> None:
    """Refuse what ends every engine at its start, whatever its patches.

    Raises:
        SpecError: reason KnownBadCombination.
    """
    if _stages_overlap(spec) and _drafts(spec) and _is_v1(spec):
        raise SpecError(
            Reason.KNOWN_BAD_COMBINATION,
            f"pipeline {spec.parallelism.pipeline} with speculative decoding and asynchronous scheduling"
            " does not"
            " start on vLLM's V1 model runner, which spec.engine asks for: remove the speculative arguments"
            " from"
            f" spec.engine.args, set spec.engine.asyncScheduling to false, or remove {RUNNER_ENV}",
        )


def find_risks(spec: StructuredLLMSpec, versions: Iterable[str]) -> list[Risk]:
    """Return what is known to go wrong. `versions` are those that running engines report."""
    known = sorted(set(versions))
    return [risk for check in CHECKS if (risk := check(spec, known)) is not None]


def spec_warning(risks: Sequence[Risk]) -> Condition | None:
    """Return the condition SpecWarning, None when there is nothing to warn of."""
    if not risks:
        return None
    return Condition(api.SPEC_WARNING, TRUE, risks[0].reason, "; also: ".join(risk.message for risk in risks))


def check_unpatched_pipeline(spec: StructuredLLMSpec, _: Sequence[str]) -> Risk | None:
    """Without the drain asynchronous scheduling builds masks from too few tokens."""
    if not _stages_overlap(spec) or spec.engine.patches is not PatchPolicy.DISABLED:
        return None
    return Risk(
        Reason.KNOWN_BAD_COMBINATION,
        f"pipeline {spec.parallelism.pipeline} with asynchronous scheduling and spec.engine.patches Disabled"
        " breaks structured answers on vLLM's V1 model runner (vLLM issue 45014) or does not start: set"
        " spec.engine.patches to Required, or spec.engine.asyncScheduling to false",
    )


def check_drafts_over_stages(spec: StructuredLLMSpec, _: Sequence[str]) -> Risk | None:
    """Drafts cross stages: patched, the V1 runner refuses to start; unpatched, masks and drafts part."""
    if not _drafts(spec) or spec.parallelism.pipeline == 1:
        return None
    what = f"speculative decoding with pipeline {spec.parallelism.pipeline}"
    cure = "remove the speculative arguments from spec.engine.args, or set spec.parallelism.pipeline to 1"
    if spec.engine.patches is PatchPolicy.REQUIRED:
        return Risk(
            Reason.KNOWN_BAD_COMBINATION,
            f"{what} is not proven: the patches keep refusing it with asynchronous scheduling for models that"
            f" need vLLM's V1 model runner, whose engine then does not start; {cure}",
        )
    return Risk(
        Reason.KNOWN_BAD_COMBINATION,
        f"{what} and spec.engine.patches {spec.engine.patches.value}: drafts that the grammar refused may be"
        f" taken, and structured answers break (vLLM issue 49694); {cure} or spec.engine.patches to Required",
    )


def check_engine_version(spec: StructuredLLMSpec, versions: Sequence[str]) -> Risk | None:
    """The patches fit proven versions only; what engines report counts more than an image's name."""
    found = list(versions) or _image_version(spec)
    unproven = [version for version in found if version.partition("+")[0] not in SUPPORTED_VLLM]
    if not unproven or spec.engine.patches is PatchPolicy.DISABLED:
        return None
    outcome = (
        "the engine ends at its start"
        if spec.engine.patches is PatchPolicy.REQUIRED
        else "the engine runs without them, and without asynchronous scheduling where that is unsafe"
    )
    said = "the engine reports" if versions else "spec.engine.image is called"
    return Risk(
        Reason.UNSUPPORTED_ENGINE,
        f"{said} vLLM {', '.join(unproven)}, which the engine patches do not support: {outcome}; use an"
        " image with"
        f" vLLM {' or '.join(SUPPORTED_VLLM)}",
    )


def check_lost_nodes(spec: StructuredLLMSpec, versions: Sequence[str]) -> Risk | None:
    """Without patch p030 the nodes of an engine do not notice each other's end."""
    if spec.multi_node.node_count == 1:
        return None
    deaf = [one for one in list(versions) or _image_version(spec) if one.partition("+")[0] in DEAF_NODES_VLLM]
    if not deaf and spec.engine.patches is not PatchPolicy.DISABLED:
        return None
    where = f"vLLM {deaf[0]}" if deaf else "spec.engine.patches Disabled"
    return Risk(
        Reason.KNOWN_BAD_COMBINATION,
        f"spec.multiNode with {where}: the nodes of an engine do not notice each other's end, so that"
        " requests hang"
        " after the loss of one until its group is recreated; use an image with vLLM 0.32.0 and its patches",
    )


CHECKS: Final[tuple[Check, ...]] = (
    check_unpatched_pipeline,
    check_drafts_over_stages,
    check_engine_version,
    check_lost_nodes,
)


def _stages_overlap(spec: StructuredLLMSpec) -> bool:
    return spec.parallelism.pipeline > 1 and spec.engine.async_scheduling


def _drafts(spec: StructuredLLMSpec) -> bool:
    flags = {arg.partition("=")[0].partition(".")[0].replace("_", "-") for arg in spec.engine.args}
    return not flags.isdisjoint(_DRAFT_ARGS)


def _is_v1(spec: StructuredLLMSpec) -> bool:
    """Whether the spec itself makes sure of the V1 model runner; the model may do so, too, unknown to us."""
    runner = next((one.value or "" for one in spec.engine.env if one.name == RUNNER_ENV), "")
    if runner.strip().lower() in _FALSE:
        return True
    text = " ".join(spec.engine.args)
    named = re.search(r"""(?:"method"\s*:\s*"|--spec[-_]method[= ]|\.method[= ])([a-z_]+)""", text)
    return named is not None and named.group(1) in _V1_METHODS


def _image_version(spec: StructuredLLMSpec) -> list[str]:
    """Return the version in the image's name where that speaks of vLLM, else nothing."""
    return _VLLM_IMAGE.findall(spec.engine.image.rpartition("@")[0] or spec.engine.image)
