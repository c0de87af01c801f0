"""The demo's three parts, each a function that returns what it saw, so that the tests can assert it.

Owns the order of events in each part; talks to the cluster through `Kubectl` and to the gateway by URL.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structuredllm_probe import BurstConfig, BurstReport, run_burst
from tools.demo.console import Console, DemoError
from tools.demo.kubectl import Kubectl
from tools.demo.questions import Answer, ask_all
from tools.demo.resources import condition, place, read_example, summary, with_patches

ENGINE_READY_SECONDS = 600.0
GATEWAY_REQUESTS = 250
GATEWAY_PLAIN_SHARE = 0.2
GATEWAY_CONCURRENCY = 64


@dataclass(frozen=True)
class Bench:
    """What every part needs.

    Attributes:
        kubectl: the cluster.
        console: where to print.
        namespace: where the resources live.
        image: engine image reference that the nodes have.
        build: folder for logs.
        seed: makes this run's schemas differ from every earlier run's.
    """

    kubectl: Kubectl
    console: Console
    namespace: str
    image: str
    build: Path
    seed: str


@dataclass(frozen=True)
class Unpatched:
    """What part 1 saw: the condition that keeps Ready away, and the engine's own count of rejects."""

    condition: Mapping[str, str]
    ready: Mapping[str, str]
    grammar_rejects: int


@dataclass(frozen=True)
class Patched:
    """What part 2 saw: the report of the burst through the gateway, and the engine's own counters."""

    report: BurstReport
    grammar_rejects: int
    stale_masks: int
    drained_batches: int


def get_resource(bench: Bench, name: str) -> dict[str, Any] | None:
    """Return the StructuredLLM `name` as the API server has it."""
    return bench.kubectl.get("structuredllm", name, "-n", bench.namespace)


def wait_for_condition(
    bench: Bench, name: str, kind: str, status: str, reasons: tuple[str, ...] = ()
) -> None:
    """Wait until condition `kind` of the current generation has `status` (and one of `reasons`).

    Raises:
        DemoError: it did not come to that within ENGINE_READY_SECONDS.
    """

    def check() -> tuple[bool, str]:
        resource = get_resource(bench, name)
        entry = condition(resource, kind)
        met = entry.get("status") == status and (not reasons or entry.get("reason") in reasons)
        return met, summary(resource)

    bench.kubectl.wait(f"{name} {kind}={status}", check, timeout=ENGINE_READY_SECONDS, say=bench.console.info)


def the_pod(bench: Bench, name: str) -> dict[str, Any]:
    """Return the only live engine pod of `name`."""
    pods = bench.kubectl.pods(bench.namespace, name)
    if len(pods) != 1:
        raise DemoError(f"expected one engine pod of {name}, found {len(pods)}")
    return pods[0]


def run_unpatched(bench: Bench, resource: dict[str, Any]) -> Unpatched:
    """Part 1: patches off; the cold structured burst is rejected and the resource stays not Ready."""
    name = resource["metadata"]["name"]
    bench.kubectl.apply(with_patches(resource, "Disabled"))
    wait_for_condition(bench, name, "StructuredReady", "False", ("GrammarRejected",))
    seen = get_resource(bench, name)
    pod = the_pod(bench, name)
    rejects = bench.kubectl.pod_metric(
        bench.namespace, pod["metadata"]["name"], "structuredllm_engine_grammar_rejects_total"
    )
    return Unpatched(
        condition=condition(seen, "StructuredReady"),
        ready=condition(seen, "Ready"),
        grammar_rejects=int(rejects),
    )


def run_patched(bench: Bench, resource: dict[str, Any], gateway: str) -> Patched:
    """Part 2: the same resource with patches on becomes Ready and serves cold structured requests."""
    name = resource["metadata"]["name"]
    bench.kubectl.apply(with_patches(resource, "Required"))
    wait_for_condition(bench, name, "Ready", "True")
    config = BurstConfig(
        requests=GATEWAY_REQUESTS,
        concurrency=GATEWAY_CONCURRENCY,
        plain_share=GATEWAY_PLAIN_SHARE,
        timeout_seconds=300.0,
        seed=f"gateway-{bench.seed}",
    )
    report = asyncio.run(run_burst(gateway, name, config))
    pod = the_pod(bench, name)["metadata"]["name"]

    def metric(key: str) -> int:
        return int(bench.kubectl.pod_metric(bench.namespace, pod, f"structuredllm_engine_{key}"))

    return Patched(
        report=report,
        grammar_rejects=metric("grammar_rejects_total"),
        stale_masks=metric("stale_mask_total"),
        drained_batches=metric("drained_batches_total"),
    )


def run_questions(bench: Bench, resource: dict[str, Any], gateway: str) -> list[Answer]:
    """Part 3: a real small model answers three extraction questions, one of them streamed."""
    name = resource["metadata"]["name"]
    bench.kubectl.apply(resource)
    wait_for_condition(bench, name, "Ready", "True")
    return ask_all(gateway, name)


def example(bench: Bench, name: str) -> dict[str, Any]:
    """Return examples/NAME.yaml placed in the bench's namespace with its image."""
    return place(read_example(name), namespace=bench.namespace, image=bench.image)
