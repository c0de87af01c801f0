"""From observed state to a Plan: which children, which deletions, which gate conditions, which bursts. Pure.

The same input gives the same Plan; applying a Plan and planning again changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from structuredllm_operator.api.conditions import Reason
from structuredllm_operator.api.engine_spec import EngineType
from structuredllm_operator.api.labels import (
    API_VERSION,
    ENV_PLUGINS,
    KIND,
    OWNED_ENV,
    TEMPLATE_HASH_ANNOTATION,
)
from structuredllm_operator.api.names import child_name
from structuredllm_operator.api.v1alpha1 import StructuredLLMSpec
from structuredllm_operator.errors import SpecError
from structuredllm_operator.plan.engine_args import refused_abbreviation
from structuredllm_operator.plan.gate import BurstOrder, GateDecision, GateRun, GateWrite, RunKey, decide
from structuredllm_operator.plan.known_bad import refuse_what_cannot_start
from structuredllm_operator.plan.leader_worker_set import KIND as GROUPS
from structuredllm_operator.plan.leader_worker_set import build_leader_worker_set, is_multi_node
from structuredllm_operator.plan.model_cache import Downloader
from structuredllm_operator.plan.model_ready import ModelDecision, decide_model
from structuredllm_operator.plan.observed import Manifest, Observed
from structuredllm_operator.plan.pdb import build_pdb
from structuredllm_operator.plan.service import build_service
from structuredllm_operator.plan.serviceaccount import build_service_account
from structuredllm_operator.plan.topology import Finding, verify
from structuredllm_operator.plan.workload import build_deployment


@dataclass(frozen=True)
class Ref:
    """A child object to delete."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Plan:
    """What to do now, and what report.py needs to know about why.

    `spec` is None when it is invalid (`spec_error` says why) or the children's names are taken
    (`conflicts`); then no child is touched. `missing_kind` is a kind that the spec needs and the cluster
    does not have; what runs already stays. `look_again_seconds` is None when only an event can change
    something.
    """

    spec: StructuredLLMSpec | None = None
    spec_error: SpecError | None = None
    conflicts: tuple[str, ...] = ()
    missing_kind: str = ""
    revision: str = ""
    apply: tuple[Manifest, ...] = ()
    delete: tuple[Ref, ...] = ()
    topology: Mapping[str, Finding] = field(default_factory=dict)
    gate_writes: tuple[GateWrite, ...] = ()
    bursts: tuple[BurstOrder, ...] = ()
    look_again_seconds: float | None = None
    model: ModelDecision = field(default_factory=ModelDecision)


WORKLOAD_KINDS: Final = frozenset({"Deployment", "LeaderWorkerSet"})
"""Kinds that make engine pods: left as they are while the model is not there."""


def make_plan(
    observed: Observed,
    runs: Mapping[RunKey, GateRun],
    now: float,
    downloader: Downloader | None = None,
) -> Plan:
    """Return the Plan.

    Args:
        observed: what was read.
        runs: the gate runner's knowledge.
        now: its monotonic clock, in seconds.
        downloader: the image that fetches models, None when there is none.
    """
    if observed.deleting:
        # Owner references and garbage collection do it; making children now would fight it (NIM operator
        # issue 594).
        return Plan()
    try:
        spec = parse_spec(observed.spec)
        apply = build_children(observed, spec)
    except SpecError as error:
        decisions = _decide_gates(observed, None, {}, runs, now)
        return Plan(spec_error=error, gate_writes=_writes(decisions))
    taken = tuple(child.kind for child in observed.children if not child.owned)
    if taken:
        return Plan(spec=spec, conflicts=taken)
    missing = GROUPS if is_multi_node(spec) and not observed.groups_served else ""
    findings = {
        pod.uid: verify(spec, observed.engines.get(pod.uid))
        for pod in observed.pods
        if pod.live_container and spec.engine.reports_itself
    }
    decisions = _decide_gates(observed, spec, findings, runs, now)
    model = decide_model(observed, spec, owner_reference(observed.name, observed.uid), downloader)
    seconds = (model.look_again_seconds, *(decision.look_again_seconds for decision in decisions))
    waits = [one for one in seconds if one is not None]
    return Plan(
        spec=spec,
        missing_kind=missing,
        revision=revision_of(apply),
        apply=tuple(child for child in with_model(apply, model) if child["kind"] != missing),
        delete=(
            *(Ref("Job", observed.namespace, job) for job in model.delete),
            *(() if missing else _surplus(observed, apply)),
        ),
        model=model,
        topology=findings,
        gate_writes=_writes(decisions),
        bursts=tuple(decision.start for decision in decisions if decision.start is not None),
        look_again_seconds=min(waits, default=None),
    )


def parse_spec(raw: Mapping[str, Any]) -> StructuredLLMSpec:
    """Return the typed spec.

    Raises:
        SpecError: what the API server should have refused (a resource stored under an older CRD), or what
            CEL cannot express; the message names the field and the cure.
    """
    try:
        spec = StructuredLLMSpec.model_validate(_without_nulls(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(["spec", *(str(part) for part in first["loc"])])
        raise SpecError(Reason.INVALID_SPEC, f"{path}: {first['msg']}; correct the field") from error
    vllm = spec.engine.type is EngineType.VLLM
    abbreviation = refused_abbreviation(list(spec.engine.args)) if vllm else None
    if abbreviation is not None:
        raise SpecError(
            Reason.INVALID_SPEC,
            f"spec.engine.args: {abbreviation[0]} stands for {abbreviation[1]}, which the operator sets:"
            " remove it and"
            " use the field of the spec",
        )
    for variable in spec.engine.env:
        if variable.name in OWNED_ENV or (variable.name == ENV_PLUGINS and variable.value_from is not None):
            raise SpecError(
                Reason.INVALID_SPEC, f"spec.engine.env: {variable.name} is set by the operator: remove it"
            )
    refuse_what_cannot_start(spec)
    return spec


def build_children(observed: Observed, spec: StructuredLLMSpec) -> tuple[Manifest, ...]:
    """Return the children in the order in which they are applied."""
    owner = owner_reference(observed.name, observed.uid)
    where = (observed.name, observed.namespace, owner)
    children = (
        build_service_account(*where),
        build_service(*where),
        build_pdb(spec, *where),
        (build_leader_worker_set if is_multi_node(spec) else build_deployment)(spec, *where),
    )
    return tuple(child for child in children if child is not None)


def with_model(children: tuple[Manifest, ...], model: ModelDecision) -> tuple[Manifest, ...]:
    """Return what to apply: the account before the Job that uses it, no workload before its model."""
    kept = [child for child in children if not (model.held and child["kind"] in WORKLOAD_KINDS)]
    return (*kept[:1], *model.apply, *kept[1:])


def owner_reference(name: str, uid: str) -> Manifest:
    """Return the controller reference of the resource, by which garbage collection finds its children."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def revision_of(apply: tuple[Manifest, ...]) -> str:
    """Return the template hash of the Deployment or LeaderWorkerSet among the children."""
    for child in apply:
        template = child.get("spec", {}).get("template")
        if child["kind"] == GROUPS:
            template = child["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        if template is not None:
            return str(template["metadata"]["annotations"][TEMPLATE_HASH_ANNOTATION])
    return ""


def _without_nulls(value: Any) -> Any:
    """Drop nulls: the API stores `revision: null` as written, and it means the same as leaving it out."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [_without_nulls(child) for child in value]
    return value


def _surplus(observed: Observed, apply: tuple[Manifest, ...]) -> tuple[Ref, ...]:
    wanted = {child["kind"] for child in apply}
    return tuple(
        Ref(kind=child.kind, namespace=observed.namespace, name=child_name(observed.name))
        for child in observed.children
        if child.kind not in wanted
    )


def _decide_gates(
    observed: Observed,
    spec: StructuredLLMSpec | None,
    findings: Mapping[str, Finding],
    runs: Mapping[RunKey, GateRun],
    now: float,
) -> list[GateDecision]:
    return [
        decide(observed, spec, pod, findings[pod.uid] if pod.uid in findings else verify_nothing(), runs, now)
        for pod in observed.pods
    ]


def verify_nothing() -> Finding:
    """Return the finding for a pod whose engine cannot be asked yet."""
    return Finding("Unknown", Reason.NOT_REPORTED, "the engine is not up yet")


def _writes(decisions: list[GateDecision]) -> tuple[GateWrite, ...]:
    return tuple(decision.write for decision in decisions if decision.write is not None)
