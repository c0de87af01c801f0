"""An engine that lost a stage says so within 5 s, answers its clients and ends, whichever stage it is.

Two starts in `make test`; the whole matrix with STRUCTUREDLLM_FULL=1 (about half a minute a case).
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.death_watch import Watched, kill, watch
from tests.engine.engine_process import PIPELINE_STAGES, Engine, running_engine

UNHEALTHY_SECONDS = 5.0
EXIT_SECONDS = 8.0
EXIT_CODE = 70
STEP_TIMEOUT_SECONDS = 6

Deed = Callable[[Engine, Path], Callable[[], None]]

full = pytest.mark.skipif(os.environ.get("STRUCTUREDLLM_FULL") != "1", reason="STRUCTUREDLLM_FULL=1 runs it")


def raising(stage: int, method: str) -> Deed:
    return lambda _, order: lambda: _write(order, f"{stage} {method}")


def killing(title: str) -> Deed:
    return lambda engine, _: kill(engine, title)


def _write(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.rename(path)


QUICK = ("execute_model-1", "kill-0")


def _cases() -> Iterator[Any]:
    found: dict[str, tuple[Deed, str]] = {}
    for stage in range(PIPELINE_STAGES):
        rank = f"rank {stage} (pipeline stage {stage})"
        for method in ("execute_model", "sample_tokens"):
            reason = f"{rank}, {method}: ValueError: injected into {method} of stage {stage}"
            found[f"{method}-{stage}"] = raising(stage, method), reason
        found[f"kill-{stage}"] = killing(f"Worker_PP{stage}"), f"{rank} was ended by SIGKILL"
    found["kill-engine-core"] = killing("EngineCore"), "EngineCore was ended by SIGKILL"
    for name, case in found.items():
        yield pytest.param(*case, id=name, marks=[] if name in QUICK else full)


@pytest.fixture
def order(tmp_path: Path) -> Path:
    return tmp_path / "order"


def environment(order: Path, **extra: str) -> dict[str, str]:
    return {
        "STRUCTUREDLLM_PATCHES": os.environ.get("STRUCTUREDLLM_TEST_POLICY", "required"),
        "STRUCTUREDLLM_TEST_RAISE_WHEN": str(order),
        **extra,
    }


def check(seen: Watched, reason: str, name: str, *, within: float = 0.0) -> None:
    """Check that the death was noticed, told and followed by the end, `within` seconds later than usual."""
    print(f"\n{name}: {seen}; {sorted(set(seen.clients))}", *seen.last, sep="\n    ")
    assert seen.said_503 is not None
    assert seen.said_503 < UNHEALTHY_SECONDS + within
    assert set(seen.clients) <= {"error event", "HTTP 500", "HTTP 503"}, seen.clients
    assert seen.error is None or seen.error < UNHEALTHY_SECONDS + within
    assert seen.exit is not None
    assert seen.exit < EXIT_SECONDS + within
    assert seen.code == EXIT_CODE
    assert seen.left == []
    assert len(seen.words) == 1, seen.last
    assert reason in seen.words[0]


@pytest.mark.parametrize(("deed", "reason"), list(_cases()))
def test_a_lost_stage_ends_the_engine(
    deed: Deed, reason: str, order: Path, engine_env: Path, toy_model: Path, request: pytest.FixtureRequest
) -> None:
    name = f"dead-{request.node.callspec.id}"
    with running_engine(
        name, engine_env, toy_model, env=environment(order), arguments=("--async-scheduling",)
    ) as engine:
        seen = watch(engine, deed(engine, order))
        log = engine.log.read_text(errors="replace")
    check(seen, reason, name)
    if "injected" in reason:
        assert "Traceback (most recent call last)" in log
        assert "ValueError: injected into" in log


@full
def test_an_idle_engine_that_lost_a_stage_ends(order: Path, engine_env: Path, toy_model: Path) -> None:
    with running_engine(
        "dead-idle", engine_env, toy_model, env=environment(order), arguments=("--async-scheduling",)
    ) as engine:
        seen = watch(engine, kill(engine, "Worker_PP1"), clients=0)
    check(seen, "rank 1 (pipeline stage 1) was ended by SIGKILL", "dead-idle")


@full
def test_a_stage_that_hangs_ends_the_engine_after_the_step_timeout(
    order: Path, engine_env: Path, toy_model: Path
) -> None:
    """Upstream's own limit of a step (300 s by default) is the watchdog of a rank that hangs."""
    env = environment(order, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=str(STEP_TIMEOUT_SECONDS))
    with running_engine(
        "dead-hang", engine_env, toy_model, env=env, arguments=("--async-scheduling",)
    ) as engine:
        seen = watch(engine, kill(engine, "Worker_PP1", signal.SIGSTOP))
    check(seen, "engine core: TimeoutError: RPC call to", "dead-hang", within=STEP_TIMEOUT_SECONDS)


@full
def test_an_orderly_stop_is_no_death(order: Path, engine_env: Path, toy_model: Path) -> None:
    with running_engine(
        "stopped", engine_env, toy_model, env=environment(order), arguments=("--async-scheduling",)
    ) as engine:
        seen = watch(engine, lambda: engine.process.send_signal(signal.SIGTERM))
    print(f"\nstopped: {seen}; {sorted(set(seen.clients))}", *seen.last, sep="\n    ")
    assert seen.code == 0
    assert seen.words == []
