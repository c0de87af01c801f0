"""The engine environment and the toy model, made once and cached (minutes on a machine that never ran
them)."""

import os
from pathlib import Path

import pytest

from structuredllm_engine_patches.versions import SUPPORTED
from tools.engine_env import ensure_engine_env
from tools.models.store import ensure_model

collect_ignore = ["inside"]
"""Those run in the engine's environment, not in this one."""


@pytest.fixture(scope="session")
def engine_env() -> Path:
    """The CPU's, or the one that `make evidence-gpu` made."""
    given = os.environ.get("STRUCTUREDLLM_TEST_ENVIRONMENT")
    return Path(given) if given else ensure_engine_env()


@pytest.fixture(scope="session")
def old_engine_env() -> Path:
    """The environment of the oldest supported vLLM."""
    return ensure_engine_env(SUPPORTED[0])


@pytest.fixture(scope="session")
def toy_model(engine_env: Path) -> Path:
    given = os.environ.get("STRUCTUREDLLM_TEST_MODEL")
    return Path(given) if given else ensure_model("toy")
