"""What an engine reports is compared with the spec, and the sentence says what to change."""

from typing import Any

import pytest

from structuredllm_operator.plan.observed import EngineReport, PatchState
from structuredllm_operator.plan.topology import verify
from tests.unit.operator.builders import info, spec


@pytest.mark.parametrize(
    ("changes", "status", "reason", "words"),
    [
        ({}, "True", "Verified", "active patches: p001"),
        (
            {"patches": (PatchState("p001", "active"), PatchState("p020", "elsewhere", "front-end"))},
            "True",
            "Verified",
            "active patches: p001",
        ),
        ({"patches": (PatchState("p001", "skipped", "no fit"),)}, "False", "PatchMissing", "p001 (no fit)"),
        ({"patches": (PatchState("p001", "disabled", "by env"),)}, "False", "PatchMissing", "p001 (by env)"),
        (
            {"patches": (PatchState("p001", "active"), PatchState("p002", "not-needed", "no fault"))},
            "True",
            "Verified",
            "active patches: p001",
        ),
        ({"patches": (PatchState("p001", "unavailable", "no cure"),)}, "True", "Verified", "patches: none"),
        ({"patches": ()}, "False", "PatchMissing", "none is known"),
        ({"policy": "optional"}, "False", "PatchMissing", "'optional'"),
        ({"pipeline": 1, "world_size": 1}, "False", "WorldSizeMismatch", "1 x 1 (world size 1)"),
        ({"tensor": 3, "pipeline": 1}, "False", "WorldSizeMismatch", "3 x 1"),
        ({"async_scheduling": False}, "False", "AsyncMismatch", "asyncScheduling"),
        (
            {"async_scheduling": False, "async_forced_off": "no drain"},
            "False",
            "AsyncMismatch",
            "runs with it off (no drain)",
        ),
    ],
)
def test_verify(changes: dict[str, Any], status: str, reason: str, words: str) -> None:
    finding = verify(spec(), EngineReport(info=info(**changes)))
    assert (finding.status, finding.reason) == (status, reason)
    assert words in finding.message


@pytest.mark.parametrize("policy", ["Optional", "Disabled"])
def test_patches_are_not_checked_when_they_are_not_required(policy: str) -> None:
    loose = spec(engine={"image": "i", "patches": policy})
    assert verify(loose, EngineReport(info=info(policy="disabled", patches=()))).status == "True"
    assert verify(loose, EngineReport(refused=True)).status == "Unknown"


def test_no_answer_is_unknown_but_a_closed_port_is_a_missing_package() -> None:
    assert verify(spec(), None).reason == "NotReported"
    assert verify(spec(), EngineReport(detail="timed out")).status == "Unknown"
    assert verify(spec(), EngineReport(refused=True)).reason == "PatchMissing"


def test_async_scheduling_that_an_optional_patch_would_need_may_be_off() -> None:
    loose = spec(engine={"image": "i", "patches": "Optional"})
    off = {"policy": "optional", "async_scheduling": False}
    finding = verify(loose, EngineReport(info=info(**off, async_forced_off="no drain")))
    assert (finding.status, finding.reason) == ("True", "Verified")
    assert "async scheduling off (no drain)" in finding.message
    assert verify(loose, EngineReport(info=info(**off))).reason == "AsyncMismatch"
