"""Every patch of the register is in place on the real classes."""

import importlib

import pytest

from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patch import Patch, is_applied
from structuredllm_engine_patches.registry import PATCHES
from structuredllm_engine_patches.telemetry.observation import State


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.id)
def test_is_applied(patch: Patch, installation: Installation) -> None:
    fit = patch.fit_for(installation.vllm_version)
    assert fit is not None
    importlib.import_module(fit.module)
    assert installation.state_of(patch.id) is State.ACTIVE
    assert is_applied(patch, fit)


def test_the_asynchronous_scheduler_has_both_rules_for_tokens_in_flight(installation: Installation) -> None:
    """The phases wrap what it inherits: without the rule below them a lost token would go unnoticed."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    found, layers = AsyncScheduler.schedule, []
    while hasattr(found, "__wrapped__"):
        layers.append(found.__globals__["__name__"].rpartition(".")[2])
        found = found.__wrapped__
    assert layers[:1] == ["phase_balancing"]
    assert "token_handoff" in layers
