"""The engine environment and the toy model, made once and cached (minutes on a machine that never ran
them)."""

from pathlib import Path

import pytest

from structuredllm_engine_patches.versions import SUPPORTED
from tools.engine_env import ensure_engine_env
from tools.models.store import ensure_model

collect_ignore = ["inside"]
"""Those run in the engine's environment, not in this one."""


@pytest.fixture(scope="session")
def engine_env() -> Path:
    return ensure_engine_env()


@pytest.fixture(scope="session")
def old_engine_env() -> Path:
    """The environment of the oldest supported vLLM."""
    return ensure_engine_env(SUPPORTED[0])


@pytest.fixture(scope="session")
def toy_model(engine_env: Path) -> Path:
    return ensure_model("toy")
