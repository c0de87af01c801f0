"""p040: asynchronous scheduling off where nothing makes it right, on whatever version of vLLM.

Wraps `VllmConfig.__post_init__`, which derives everything else from the setting and in vLLM 0.32 refuses the
combination: so the setting is changed before upstream looks at it, and looked at once more afterwards,
because defaults and the platform have their say in between. It asks for capabilities only, as it must work
on versions of which nothing is known.
"""

import importlib
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.guided.async_rule import needs_drain

ATTRIBUTE = "_structuredllm_async_off"
"""In the configuration's `__dict__`, so that it reaches the engine core with the pickled configuration."""

SCHEDULER_MODULE = "vllm.v1.core.sched.async_scheduler"
SPACING = "next_decode_eligible_step"
"""What a scheduler that spaces the steps of a request sets on it."""

PostInit = Callable[..., None]
Question = Callable[[], str]


def build_post_init(original: PostInit, *, why_no_drain: Question, log: Callable[[str], None]) -> PostInit:
    """Return the replacement of `VllmConfig.__post_init__`.

    Args:
        original: upstream's method.
        why_no_drain: returns why the drain is not in place, empty when it is; asked only for a configuration
            that needs it.
        log: gets one sentence for each configuration that was changed.
    """

    @wraps(original)
    def post_init(config: Any, *args: Any, **kwargs: Any) -> None:
        _switch_off(config, why_no_drain, log)
        original(config, *args, **kwargs)
        _switch_off(config, why_no_drain, log)

    return post_init


def forced_off(config: Any) -> str:
    """Return why asynchronous scheduling was switched off in a configuration; empty when it was not."""
    return str(vars(config).get(ATTRIBUTE, ""))


def _switch_off(config: Any, why_no_drain: Question, log: Callable[[str], None]) -> None:
    stages = int(config.parallel_config.pipeline_parallel_size)
    asked = config.scheduler_config.async_scheduling
    # The cheap questions first: for most engines nothing has to be imported.
    if not needs_drain(pipeline_stages=stages, asynchronous=asked, spaced=False):
        return
    if not needs_drain(pipeline_stages=stages, asynchronous=asked, spaced=_spaces_steps(config)):
        return
    why = why_no_drain()
    if not why:
        return
    config.scheduler_config.async_scheduling = False
    reason = (
        f"pipeline parallelism ({stages} stages) with asynchronous scheduling would build stale masks "
        f"without the batch queue's drain, which is not in place: {why}"
    )
    vars(config)[ATTRIBUTE] = reason
    log(f"asynchronous scheduling is switched off: {reason}")


def _spaces_steps(config: Any) -> bool:
    """Return whether it is sure that the scheduler spaces the steps; in doubt the answer is the safe one."""
    try:
        if not config.use_v2_model_runner:
            return False
        scheduler = importlib.import_module(SCHEDULER_MODULE).AsyncScheduler
        return SPACING in inspect.unwrap(scheduler._update_after_schedule).__code__.co_names
    except Exception:
        # Older versions have no such property, and it may look at settings that are still to be filled in.
        return False
