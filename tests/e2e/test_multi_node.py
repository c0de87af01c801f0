"""One engine over three pods, for real: LeaderWorkerSet controller, vLLM's multi-node mode, the gateway.

The tests build on each other and run in file order: the group starts, loses a worker, loses its leader, is
drained by a rollout and goes. On the CPU a node has one rank, so the three pipeline stages are three pods of
some 2 GiB each. The group stays between runs until the last test (a start costs a minute and more).
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from structuredllm_probe import BurstConfig, run_burst
from tests.e2e.test_path import GATE, engine_container, pod_condition
from tools.demo.parts import Bench, example, get_resource, wait_for_condition
from tools.demo.resources import condition

pytestmark = pytest.mark.timeout(900)

NAME = "e2e-nodes"
CHILD = f"{NAME}-engine"
LWS = "leaderworkerset.sigs.k8s.io"
ENGINE = "structuredllm_engine_"
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 12}, "number": {"type": "integer"}},
    "required": ["word", "number"],
    "additionalProperties": False,
}


def three_nodes(bench: Bench) -> dict[str, Any]:
    """Return the toy example over three nodes."""
    resource = example(bench, "toy")
    resource["metadata"]["name"] = NAME
    resource["spec"]["multiNode"] = {"nodeCount": 3}
    resource["spec"]["resources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    return resource


def group(bench: Bench) -> dict[str, dict[str, Any]]:
    """Return all pods of the engine that are not being deleted, by name."""
    found = bench.kubectl.get("pods", "-n", bench.namespace, "-l", f"structuredllm.io/name={NAME}")
    items = (found or {}).get("items", [])
    return {pod["metadata"]["name"]: pod for pod in items if "deletionTimestamp" not in pod["metadata"]}


def uids(bench: Bench) -> dict[str, str]:
    """Return pod name -> uid."""
    return {name: pod["metadata"]["uid"] for name, pod in group(bench).items()}


def wait_recreated(bench: Bench, before: dict[str, str]) -> float:
    """Wait until every pod of the group is another one and the engine serves again; return the seconds."""
    began = time.monotonic()

    def recreated() -> tuple[bool, str]:
        now = uids(bench)
        kept = sorted(name for name, uid in now.items() if before.get(name) == uid)
        return len(now) == 3 and not kept, f"{len(now)} pods, kept {kept}"

    bench.kubectl.wait("group recreated as a whole", recreated, timeout=300, say=bench.console.info)
    wait_for_condition(bench, NAME, "Ready", "True")
    return time.monotonic() - began


@dataclass
class Traffic:
    """What clients of the gateway saw: (HTTP status, None or what was wrong with the answer)."""

    seen: list[tuple[int, str | None]] = field(default_factory=list)

    @property
    def wrong(self) -> list[tuple[int, str | None]]:
        """Answers that are neither right nor an error in OpenAI's shape, and calls that never ended."""
        return [one for one in self.seen if one[1] is not None]


@contextmanager
def traffic(gateway: str, clients: int = 6) -> Iterator[Traffic]:
    """Ask for structured answers all the time, from several clients at once."""
    result, over = Traffic(), threading.Event()

    def client(number: int) -> None:
        asked = 0
        while not over.is_set():
            asked += 1
            result.seen.append(ask(gateway, f"client {number}, question {asked}"))
            if result.seen[-1][0] != 200:
                over.wait(0.5)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield result
    finally:
        over.set()
        for thread in threads:
            thread.join(130)
            if thread.is_alive():
                result.seen.append((0, "a call did not end"))


def ask(gateway: str, text: str) -> tuple[int, str | None]:
    """Ask once; an answer must fit the schema, a refusal must be an error in OpenAI's shape."""
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    }
    try:
        answer = httpx.post(f"{gateway}/v1/chat/completions", json=body, timeout=120)
    except httpx.HTTPError as error:
        return 0, repr(error)
    if answer.status_code != 200:
        try:
            shaped = set(answer.json()["error"]) >= {"message", "type", "param", "code"}
        except (ValueError, KeyError, TypeError):
            shaped = False
        return answer.status_code, None if shaped else answer.text[:200]
    choice = answer.json()["choices"][0]
    if choice["finish_reason"] == "length":
        return 200, None
    found = json.loads(choice["message"]["content"])
    return 200, None if set(found) == {"word", "number"} else str(found)


def end_container(bench: Bench, pod: str) -> None:
    """Kill everything in a pod's engine container, as the kernel or a node would."""
    bench.kubectl.run(
        "exec", "-n", bench.namespace, pod, "-c", "engine", "--", "/bin/sh", "-c", "kill -9 -1 || kill -9 1",
        check=False,
    )  # fmt: skip


async def test_three_pods_are_one_replica_that_serves(bench: Bench, gateway: str) -> None:
    bench.kubectl.apply(three_nodes(bench))
    wait_for_condition(bench, NAME, "Ready", "True")
    resource = get_resource(bench, NAME)
    assert resource is not None
    status = resource["status"]
    assert [status[key] for key in ("replicas", "readyReplicas", "servingReplicas")] == [1, 1, 1]
    assert (status["engine"]["pipeline"], status["engine"]["worldSize"]) == (3, 3)
    assert condition(resource, "TopologyVerified")["status"] == "True"
    pods = group(bench)
    assert sorted(pods) == [f"{CHILD}-0", f"{CHILD}-0-1", f"{CHILD}-0-2"]
    gates = {name: pod_condition(pod, GATE).get("reason", "") for name, pod in pods.items()}
    assert gates == {f"{CHILD}-0": "BurstPassed", f"{CHILD}-0-1": "", f"{CHILD}-0-2": ""}
    assert all(engine_container(pod)["restartCount"] == 0 for pod in pods.values())

    slices = bench.kubectl.get(
        "endpointslices", "-n", bench.namespace, "-l", f"kubernetes.io/service-name={CHILD}"
    )
    targets = [
        endpoint["targetRef"]["name"]
        for item in (slices or {}).get("items", [])
        for endpoint in item.get("endpoints") or []
    ]
    assert targets == [f"{CHILD}-0"]
    service = bench.kubectl.get("service", f"{CHILD}-0", "-n", bench.namespace)
    assert service is not None
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["clusterIP"] == "None"

    config = BurstConfig(requests=60, concurrency=24, timeout_seconds=200.0, seed=f"nodes-{bench.seed}")
    report = await run_burst(gateway, NAME, config)
    assert report.counts.get("valid") == report.structured, report
    leader = f"{CHILD}-0"
    assert (
        bench.kubectl.pod_metric(bench.namespace, leader, "structuredllm_engine_grammar_rejects_total") == 0
    )
    assert bench.kubectl.pod_metric(bench.namespace, leader, ENGINE + "drained_batches_total") > 0


@pytest.mark.parametrize("victim", [f"{CHILD}-0-1", f"{CHILD}-0"], ids=["worker", "leader"])
def test_a_lost_pod_recreates_the_group_and_requests_end_cleanly(
    bench: Bench, gateway: str, victim: str
) -> None:
    before = uids(bench)
    with traffic(gateway) as clients:
        time.sleep(3)
        assert any(status == 200 for status, _ in clients.seen), clients.seen
        end_container(bench, victim)
        seconds = wait_recreated(bench, before)
        answered = sum(status == 200 for status, _ in clients.seen)
        time.sleep(5)
    bench.console.info(f"{victim} killed: serving again after {seconds:.0f} s")
    assert clients.wrong == []
    assert sum(status == 200 for status, _ in clients.seen) > answered, "it does not answer again"
    leader = group(bench)[f"{CHILD}-0"]
    gate = pod_condition(leader, GATE)
    assert gate["message"].startswith(f"[{engine_container(leader)['containerID']}]")
    last = (get_resource(bench, NAME) or {})["status"].get("lastFailure", {})
    assert last.get("pod", "").startswith(CHILD), last


def test_a_rollout_answers_what_it_has_begun(bench: Bench, gateway: str) -> None:
    """One replica, no room for a second: there is a gap, in which requests are refused, not broken off."""
    before = uids(bench)
    resource = three_nodes(bench)
    resource["spec"]["engine"]["env"].append({"name": "ROLLED", "value": bench.seed})
    with traffic(gateway, clients=4) as clients:
        time.sleep(3)
        bench.kubectl.apply(resource)
        wait_recreated(bench, before)
    assert clients.wrong == []
    broken = [status for status, _ in clients.seen if status not in (200, 503)]
    assert broken == [], "a request that had begun was not answered"


def test_deleting_the_resource_removes_everything(bench: Bench) -> None:
    bench.kubectl.run("delete", "sllm", NAME, "-n", bench.namespace, timeout=120)

    def gone() -> tuple[bool, str]:
        names = [
            f"{item['kind']}/{item['metadata']['name']}"
            for kinds, selector in (
                ("leaderworkersets,services,serviceaccounts,pods", f"structuredllm.io/name={NAME}"),
                ("statefulsets,services,pods", f"{LWS}/name={CHILD}"),
            )
            for item in (bench.kubectl.get(kinds, "-n", bench.namespace, "-l", selector) or {}).get(
                "items", []
            )
        ]
        return not names, f"left: {sorted(set(names))}"

    bench.kubectl.wait("children gone", gone, timeout=240, say=bench.console.info)
