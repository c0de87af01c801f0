"""p040 switches asynchronous scheduling off where it needs the drain and that is not in place."""

import copy
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.guided.async_rule import needs_drain
from structuredllm_engine_patches.seams.async_guard import SCHEDULER_MODULE, build_post_init, forced_off

NO_DRAIN = "p001 is skipped (unknown version)"


@dataclass
class Config:
    """The part of vLLM's configuration that the guard looks at; upstream's answer to None is `default`."""

    stages: int = 3
    asynchronous: bool | None = True
    v2: bool = False
    default: bool = True
    scheduler_config: Any = field(init=False)
    parallel_config: Any = field(init=False)
    seen: list[bool | None] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler_config = SimpleNamespace(async_scheduling=self.asynchronous)
        self.parallel_config = SimpleNamespace(pipeline_parallel_size=self.stages)

    @property
    def use_v2_model_runner(self) -> bool:
        return self.v2


def upstream(config: Config) -> None:
    setting = config.scheduler_config.async_scheduling
    config.seen.append(setting)
    config.scheduler_config.async_scheduling = config.default if setting is None else setting


def run(config: Config, why: str = NO_DRAIN) -> list[str]:
    logged: list[str] = []
    build_post_init(upstream, why_no_drain=lambda: why, log=logged.append)(config)
    return logged


@pytest.mark.parametrize("asynchronous", [True, None])
def test_off_before_upstream_looks_and_the_reason_travels(asynchronous: bool | None) -> None:
    config = Config(asynchronous=asynchronous)
    (line,) = run(config)
    assert config.seen == [False], "vLLM 0.32 refuses to start when it sees anything else"
    assert config.scheduler_config.async_scheduling is False
    assert NO_DRAIN in line
    # Copied as pickling does it, which is how the engine core gets it.
    assert NO_DRAIN in forced_off(copy.copy(config))


def test_off_again_where_upstream_or_the_platform_switched_it_on() -> None:
    config = Config()

    def switches_on(config: Config) -> None:
        config.scheduler_config.async_scheduling = True

    build_post_init(switches_on, why_no_drain=lambda: NO_DRAIN, log=lambda _: None)(config)
    assert config.scheduler_config.async_scheduling is False


@pytest.mark.parametrize(
    ("config", "why"),
    [(Config(stages=1), NO_DRAIN), (Config(asynchronous=False), NO_DRAIN), (Config(), "")],
    ids=["no pipeline", "not asked for", "drain in place"],
)
def test_untouched_where_it_is_right(config: Config, why: str) -> None:
    assert run(config, why) == []
    assert config.scheduler_config.async_scheduling is config.asynchronous
    assert forced_off(config) == ""


def test_does_not_ask_for_the_drain_where_nothing_needs_it() -> None:
    def ask() -> str:
        raise AssertionError("would import the engine core's module for nothing")

    build_post_init(upstream, why_no_drain=ask, log=lambda _: None)(Config(stages=1))


class Spacing:
    """A scheduler like that of vLLM 0.32."""

    def _update_after_schedule(self, request: Any) -> None:
        request.next_decode_eligible_step = 3


class NotSpacing:
    """A scheduler like that of vLLM 0.22, which knows the V2 runner but spaces nothing."""

    def _update_after_schedule(self, request: Any) -> None:
        request.num_output_placeholders = 1


@pytest.mark.parametrize(("scheduler", "stays"), [(Spacing, True), (NotSpacing, False), (None, False)])
def test_the_v2_runner_is_trusted_only_where_its_scheduler_spaces(
    monkeypatch: pytest.MonkeyPatch, scheduler: type | None, stays: bool
) -> None:
    module = ModuleType(SCHEDULER_MODULE)
    if scheduler is not None:
        module.AsyncScheduler = scheduler  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, SCHEDULER_MODULE, module)
    config = Config(v2=True)
    run(config)
    assert config.scheduler_config.async_scheduling is stays


@pytest.mark.parametrize(
    ("stages", "asynchronous", "spaced", "needed"),
    [
        (1, True, False, False),
        (2, True, False, True),
        (3, None, False, True),
        (3, False, False, False),
        (3, True, True, False),
    ],
)
def test_rule(stages: int, asynchronous: bool | None, spaced: bool, needed: bool) -> None:
    assert needs_drain(pipeline_stages=stages, asynchronous=asynchronous, spaced=spaced) is needed
