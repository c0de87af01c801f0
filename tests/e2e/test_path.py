"""The whole path on a real cluster with real engines, in the order in which a user meets it.

The tests build on each other (one engine start costs most of a minute), so they run in file order and stop
making sense after the first failure: one toy resource is unpatched, patched, killed and deleted in turn. At
most one engine of these tests runs at a time: each takes some 6 GiB.
"""

import json
import time
from typing import Any

import httpx
import pytest

from tools.demo.kubectl import Kubectl
from tools.demo.parts import (
    GATEWAY_PLAIN_SHARE,
    GATEWAY_REQUESTS,
    Bench,
    example,
    get_resource,
    run_patched,
    run_questions,
    run_unpatched,
    the_pod,
    wait_for_condition,
)
from tools.demo.resources import condition

pytestmark = pytest.mark.timeout(1200)
GATE = "structuredllm.io/StructuredReady"
# Names of their own: the gateway pools resources that serve the same name, and a demo may be up.
TOY = "e2e-toy"
SMOLLM2 = "e2e-smollm2"


def named(bench: Bench, source: str, name: str) -> dict[str, Any]:
    """Return examples/SOURCE.yaml for this cluster under another name."""
    resource = example(bench, source)
    resource["metadata"]["name"] = name
    return resource


def engine_container(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the status of the pod's engine container."""
    found: dict[str, Any] = next(c for c in pod["status"]["containerStatuses"] if c["name"] == "engine")
    return found


def pod_condition(pod: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a pod condition, {} when absent."""
    return next((c for c in pod["status"].get("conditions", []) if c["type"] == kind), {})


def test_unpatched_engine_is_rejected_and_never_ready(bench: Bench) -> None:
    seen = run_unpatched(bench, named(bench, "toy", TOY))
    assert seen.condition["reason"] == "GrammarRejected"
    assert seen.ready["status"] == "False"
    assert seen.grammar_rejects > 0
    assert "patches" in seen.condition["message"], "the message must say what to do"
    pod = the_pod(bench, TOY)
    assert engine_container(pod)["ready"], "the engine's own probe is green; only the gate tells the truth"
    assert pod_condition(pod, "Ready")["status"] == "False"


def test_gateway_refuses_a_model_without_a_serving_replica(bench: Bench, gateway: str) -> None:
    body = {"model": TOY, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    answer = httpx.post(f"{gateway}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 503, answer.text
    assert "retry-after" in answer.headers
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}


def test_patched_engine_serves_cold_structured_requests(bench: Bench, gateway: str) -> None:
    seen = run_patched(bench, named(bench, "toy", TOY), gateway)
    structured = round(GATEWAY_REQUESTS * (1 - GATEWAY_PLAIN_SHARE))
    assert seen.report.structured == structured
    assert seen.report.counts.get("valid") == structured, seen.report
    assert seen.grammar_rejects == 0
    assert seen.stale_masks == 0
    assert seen.drained_batches > 0, "the burst must have exercised the drain, or it proves nothing"
    assert pod_condition(the_pod(bench, TOY), GATE)["status"] == "True"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{not json", 400, None),
        (b'{"messages": []}', 400, "model"),
        (b'{"model": "nobody", "messages": []}', 404, "model"),
        (
            b'{"model": "e2e-toy", "messages": [], "response_format": {"type": "json_schema", "json_schema": '
            b'{"name": "x", "schema": {"type": "no-such-type"}}}}',
            400,
            "response_format",
        ),
    ],
)
def test_bad_requests_get_an_openai_error(gateway: str, body: bytes, status: int, param: str | None) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{gateway}/v1/chat/completions", content=body, headers=headers, timeout=30)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    if param is not None:
        assert str(error["param"]).lstrip("/").startswith(param)


def test_killed_container_is_gated_again(bench: Bench) -> None:
    before = engine_container(the_pod(bench, TOY))["containerID"]
    pod = the_pod(bench, TOY)["metadata"]["name"]
    bench.kubectl.run(
        "exec", "-n", bench.namespace, pod, "-c", "engine", "--", "/bin/sh", "-c", "kill -9 -1 || kill -9 1",
        check=False,
    )  # fmt: skip
    saw_ungated = False

    def gated_again() -> tuple[bool, str]:
        nonlocal saw_ungated
        current = the_pod(bench, TOY)
        gate = pod_condition(current, GATE)
        container = engine_container(current)
        identity = container.get("containerID", before)
        if pod_condition(current, "Ready").get("status") == "False":
            saw_ungated = True
        passed = (
            identity != before
            and gate.get("status") == "True"
            and gate["message"].startswith(f"[{identity}]")
        )
        return passed, f"restarts={container['restartCount']} gate={gate.get('status')} {gate.get('reason')}"

    bench.kubectl.wait("gated again", gated_again, timeout=400, say=bench.console.info)
    assert saw_ungated
    wait_for_condition(bench, TOY, "Ready", "True")


def test_operator_restart_rolls_nothing_and_repeats_no_burst(bench: Bench) -> None:
    before = the_pod(bench, TOY)
    bench.kubectl.run("rollout", "restart", "-n", "structuredllm-system", "deployment/structuredllm-operator")
    bench.kubectl.run(
        "rollout", "status", "-n", "structuredllm-system", "deployment/structuredllm-operator",
        "--timeout=120s", timeout=150,
    )  # fmt: skip
    time.sleep(15)  # long enough for the new operator's first reconcile of every resource
    after = the_pod(bench, TOY)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert pod_condition(after, GATE) == pod_condition(before, GATE)


def test_deleting_the_resource_removes_everything(bench: Bench) -> None:
    bench.kubectl.run("delete", "sllm", TOY, "-n", bench.namespace, timeout=120)

    def gone() -> tuple[bool, str]:
        left = bench.kubectl.get(
            "deployments,services,serviceaccounts,pods,poddisruptionbudgets", "-n", bench.namespace,
            "-l", f"structuredllm.io/name={TOY}",
        )  # fmt: skip
        names = [item["metadata"]["name"] for item in (left or {}).get("items", [])]
        return not names, f"left: {names}"

    bench.kubectl.wait("children gone", gone, timeout=180, say=bench.console.info)


def test_real_model_answers(bench: Bench, gateway: str) -> None:
    answers = run_questions(bench, named(bench, "smollm2", SMOLLM2), gateway)
    assert [answer.verdict for answer in answers] == ["valid"] * 3
    streamed = [answer for answer in answers if answer.question.stream]
    assert streamed
    assert all(answer.chunks > 3 for answer in streamed)
    bench.kubectl.run("delete", "sllm", SMOLLM2, "-n", bench.namespace, timeout=120)


def test_missing_model_says_why_within_a_minute_of_the_first_crash(bench: Bench) -> None:
    resource = named(bench, "toy", "missing")
    resource["spec"]["model"]["uri"] = "file:///models/no-such-model"
    bench.kubectl.apply(resource)
    crashed: list[float] = []

    def reported() -> tuple[bool, str]:
        pods = bench.kubectl.pods(bench.namespace, "missing")
        states = [engine_container(pod) for pod in pods if pod["status"].get("containerStatuses")]
        if any(s["restartCount"] or s["state"].get("terminated") for s in states) and not crashed:
            crashed.append(time.monotonic())
        entry = condition(get_resource(bench, "missing"), "WorkloadReady")
        told = entry.get("status") == "False" and "no-such-model" in entry.get("message", "")
        return told, f"{entry.get('status')} {entry.get('reason')}: {entry.get('message', '')[:120]}"

    bench.kubectl.wait("the engine's own reason", reported, timeout=300, say=bench.console.info)
    assert not crashed or time.monotonic() - crashed[0] < 60
    bench.kubectl.run("delete", "sllm", "missing", "-n", bench.namespace, timeout=120)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"spec": {"parallelism": {"pipelines": 3}}}, "unknown field"),
        ({"spec": {"engine": {"args": ["--port=1"]}}}, "--port"),
        (
            {"spec": {"engine": {"accelerator": "gpu"}, "resources": {"limits": {"nvidia.com/gpu": 2}}}},
            "tensor",
        ),
    ],
)
def test_impossible_resources_are_refused_by_name(bench: Bench, change: dict[str, Any], words: str) -> None:
    resource = named(bench, "toy", "refused")
    for section, values in change["spec"].items():
        resource["spec"].setdefault(section, {}).update(values)
    done = apply_raw(bench.kubectl, json.dumps(resource))
    assert words in done, done


def apply_raw(kubectl: Kubectl, document: str) -> str:
    """Create a document, expecting a refusal; return the server's words."""
    try:
        kubectl.run("create", "-f", "-", stdin=document)
    except Exception as error:
        return str(error)
    return "accepted"
