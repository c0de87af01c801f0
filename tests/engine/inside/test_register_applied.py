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
