"""What is known to go wrong is refused where it cannot start, and warned of with the cure otherwise."""

from typing import Any

import pytest

from structuredllm_engine_patches.patches import p030_lost_node
from structuredllm_engine_patches.versions import SUPPORTED
from structuredllm_operator.plan.known_bad import DEAF_NODES_VLLM, SUPPORTED_VLLM, find_risks
from structuredllm_operator.plan.observed import EngineReport
from structuredllm_operator.plan.plan import make_plan
from structuredllm_operator.report import make_report
from tests.unit.operator.builders import info, observed, pod, raw_spec, revision, spec

DRAFTS = ['--speculative-config={"method":"eagle3","num_speculative_tokens":3}']
V1 = [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]


def engine(**more: Any) -> dict[str, Any]:
    """Return spec.engine with these fields."""
    return {"engine": {"image": "example/engine:1", **more}}


def test_the_versions_are_those_of_the_patches() -> None:
    assert SUPPORTED_VLLM == SUPPORTED
    assert set(DEAF_NODES_VLLM) == {one for one in SUPPORTED if p030_lost_node.PATCH.fit_for(one) is None}


@pytest.mark.parametrize(
    "change",
    [
        engine(args=DRAFTS, env=V1),
        engine(args=DRAFTS, env=V1, patches="Disabled"),
        engine(args=['--speculative-config={"method": "suffix"}']),
        engine(args=["--spec-method=medusa", "--spec-tokens=3"]),
        engine(args=["--speculative-config.method=suffix"]),
    ],
)
def test_what_cannot_start_is_refused(change: dict[str, Any]) -> None:
    found = make_plan(observed(raw=raw_spec(**change)), {}, 0.0)
    assert found.spec_error is not None
    assert found.spec_error.reason == "KnownBadCombination"
    assert "asyncScheduling to false" in found.spec_error.message
    assert found.apply == ()


@pytest.mark.parametrize(
    "change",
    [
        engine(args=DRAFTS, env=V1, asyncScheduling=False),
        {**engine(args=DRAFTS, env=V1), "parallelism": {"pipeline": 1}},
        engine(env=V1),
        engine(args=DRAFTS, env=[{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "1"}]),
    ],
)
def test_what_may_start_is_not_refused(change: dict[str, Any]) -> None:
    assert make_plan(observed(raw=raw_spec(**change)), {}, 0.0).spec_error is None


@pytest.mark.parametrize(
    ("change", "versions", "reason", "words"),
    [
        (engine(patches="Disabled"), [], "KnownBadCombination", "spec.engine.patches to Required"),
        (engine(args=DRAFTS), [], "KnownBadCombination", "does not start; remove the speculative"),
        (engine(args=DRAFTS, patches="Optional"), [], "KnownBadCombination", "spec.engine.patches Optional"),
        (engine(image="vllm/vllm-openai:v0.33.0"), [], "UnsupportedEngine", "is called vLLM 0.33.0"),
        (
            engine(image="ghcr.io/x/vllm-structuredllm:0.31.1-cu130@sha256:00", patches="Optional"),
            [],
            "UnsupportedEngine",
            "without asynchronous scheduling where that is unsafe",
        ),
        (
            {**engine(patches="Disabled", asyncScheduling=False), "multiNode": {"nodeCount": 3}},
            [],
            "KnownBadCombination",
            "requests hang",
        ),
        (
            {**engine(), "multiNode": {"nodeCount": 3}},
            ["0.22.1+cpu"],
            "KnownBadCombination",
            "with vLLM 0.22.1+cpu",
        ),
        (engine(patches="Optional"), ["0.33.0+cpu"], "UnsupportedEngine", "reports vLLM 0.33.0+cpu"),
    ],
)
def test_the_rest_is_warned_of(change: dict[str, Any], versions: list[str], reason: str, words: str) -> None:
    (risk,) = find_risks(spec(**change), versions)
    assert risk.reason == reason
    assert words in risk.message


@pytest.mark.parametrize(
    ("change", "versions"),
    [
        (engine(), []),
        (engine(), ["0.32.0+cpu"]),
        (engine(patches="Optional"), []),
        (engine(patches="Disabled", asyncScheduling=False), []),
        ({**engine(), "multiNode": {"nodeCount": 3}}, ["0.32.0"]),
        (engine(), ["0.22.1"]),
        ({**engine(patches="Disabled"), "parallelism": {"pipeline": 1}}, []),
        ({**engine(args=DRAFTS), "parallelism": {"pipeline": 1}}, []),
        (engine(image="example/vllm-structuredllm:0.32.0"), []),
        (engine(image="example/vllm-structuredllm:0.32.0-2"), []),
        # A number that is not vLLM's, and one that the running engine knows better.
        (engine(image="registry/engine:1.2.3"), []),
        (engine(image="registry.vllm.example:5000/engine:1.2.3"), []),
        (engine(image="example/vllm:0.99.0"), ["0.32.0"]),
    ],
)
def test_nothing_is_said_without_need(change: dict[str, Any], versions: list[str]) -> None:
    assert find_risks(spec(**change), versions) == []


def test_a_warning_is_a_condition_with_an_event_and_goes_with_its_cause() -> None:
    bad = raw_spec(**engine(patches="Disabled"))
    one = pod(revision=revision(bad))
    snapshot = observed(one, raw=bad, engines={one.uid: EngineReport(info=info(policy="disabled"))})
    first = make_report(snapshot, make_plan(snapshot, {}, 0.0), now="2026-01-01T00:00:00Z")
    (warning,) = [entry for entry in first.status["conditions"] if entry["type"] == "SpecWarning"]
    assert (warning["status"], warning["reason"]) == ("True", "KnownBadCombination")
    assert [entry["status"] for entry in first.status["conditions"] if entry["type"] == "SpecValid"] == [
        "True"
    ]
    assert ("Warning", "KnownBadCombination") in [(note.type, note.reason) for note in first.events]
    cured = observed(one, status=first.status)
    after = make_report(cured, make_plan(cured, {}, 0.0), now="2026-01-01T00:01:00Z")
    assert "SpecWarning" not in [entry["type"] for entry in after.status["conditions"]]
