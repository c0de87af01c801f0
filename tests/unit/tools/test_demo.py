"""The demo's pure parts: cluster choice, resource editing, progress, verdicts."""

from pathlib import Path
from typing import Any

import pytest

from tools.demo.clusters import CurrentCluster, EmbeddedCluster, choose_cluster
from tools.demo.console import Console, DemoError, print_failure
from tools.demo.kubectl import Kubectl
from tools.demo.questions import QUESTIONS, judge
from tools.demo.resources import condition, place, read_example, summary, with_patches
from tools.demo.stage import clear_interrupted_release


def resource(*conditions: dict[str, Any], generation: int = 2) -> dict[str, Any]:
    return {"metadata": {"generation": generation}, "status": {"conditions": list(conditions)}}


def entry(kind: str, status: str, seen: int = 2, **more: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "observedGeneration": seen, **more}


def test_embedded_cluster_is_the_choice_without_kind() -> None:
    assert isinstance(choose_cluster({}, docker=False), EmbeddedCluster)


def test_unknown_cluster_is_refused_with_the_choices() -> None:
    with pytest.raises(DemoError, match="current, kind or embedded"):
        choose_cluster({"DEMO_CLUSTER": "minikube"}, docker=False)


def test_kind_without_docker_says_what_it_needs() -> None:
    with pytest.raises(DemoError, match="Docker engine"):
        choose_cluster({"DEMO_CLUSTER": "kind"}, docker=False)


def test_current_cluster_needs_kubeconfig_and_registry(tmp_path: Path) -> None:
    console = Console(tmp_path / "log", 1)
    kubeconfig = tmp_path / "config"
    chosen = choose_cluster({"DEMO_CLUSTER": "current", "KUBECONFIG": str(kubeconfig)}, docker=False)
    assert isinstance(chosen, CurrentCluster)
    assert chosen.kubeconfig == kubeconfig
    with pytest.raises(DemoError, match="KUBECONFIG"):
        chosen.up(console)
    kubeconfig.write_text("")
    with pytest.raises(DemoError, match="DEMO_REGISTRY"):
        chosen.up(console)


def test_a_condition_of_an_older_generation_does_not_count() -> None:
    stale = resource(entry("Ready", "True", seen=1))
    assert condition(stale, "Ready") == {}
    assert condition(resource(entry("Ready", "True")), "Ready")["status"] == "True"


def test_summary_names_the_first_condition_that_is_not_true() -> None:
    seen = resource(
        entry("SpecValid", "True"),
        entry("WorkloadReady", "False", reason="EngineCrashed", message="no such model"),
    )
    assert summary(seen) == "WorkloadReady=False EngineCrashed: no such model"
    assert summary(None) == "SpecValid not reported yet"


@pytest.mark.parametrize("name", ["toy", "smollm2", "gpu"])
def test_examples_are_placed_without_touching_the_original(name: str) -> None:
    original = read_example(name)
    placed = place(original, namespace="n", image="i:1")
    assert placed["metadata"]["namespace"] == "n"
    assert placed["spec"]["engine"]["image"] == "i:1"
    assert with_patches(placed, "Disabled")["spec"]["engine"]["patches"] == "Disabled"
    assert placed["spec"]["engine"]["patches"] == "Required"
    assert "namespace" not in original["metadata"]


def test_judge_tells_valid_from_invalid_and_from_not_json() -> None:
    schema = QUESTIONS[2].schema
    good = '{"severity": "low", "component": "x", "customer_visible": true}'
    assert judge(good, schema) == "valid"
    assert judge("{", schema).startswith("not JSON")
    assert judge('{"severity": "none"}', schema).startswith("schema violation")


def test_wait_reports_progress_and_fails_with_the_last_words(tmp_path: Path) -> None:
    now = [0.0]
    said: list[str] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    kubectl = Kubectl(tmp_path / "kubectl", tmp_path / "config")
    with pytest.raises(DemoError, match="last seen: pending"):
        kubectl.wait(
            "ready",
            lambda: (False, "pending"),
            timeout=50,
            say=said.append,
            clock=lambda: now[0],
            sleep=sleep,
        )
    assert 2 <= len(said) <= 4, "said at the start and then every 20 s, not every second"


def test_kubectl_failure_carries_its_own_words(tmp_path: Path) -> None:
    fake = tmp_path / "kubectl"
    fake.write_text("#!/bin/sh\necho 'the server said no' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(DemoError, match="the server said no"):
        Kubectl(fake, tmp_path / "config").run("get", "pods")


def test_failure_names_cause_and_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_failure(DemoError("helm: timed out", tmp_path / "helm.log"), tmp_path / "demo.log")
    err = capsys.readouterr().err
    assert "helm: timed out" in err
    assert "helm.log" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("status", "cleared"), [("pending-upgrade", True), ("pending-install", True), ("deployed", False)]
)
def test_a_release_left_pending_is_removed_and_no_other(tmp_path: Path, status: str, cleared: bool) -> None:
    helm = tmp_path / "helm"
    helm.write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/calls\n'
        f"""[ "$1" = status ] && echo '{{"info": {{"status": "{status}"}}}}'\nexit 0\n"""
    )
    helm.chmod(0o755)
    assert clear_interrupted_release(helm, tmp_path / "config") is cleared
    calls = (tmp_path / "calls").read_text().split()
    assert calls == (["status", "uninstall"] if cleared else ["status"])
