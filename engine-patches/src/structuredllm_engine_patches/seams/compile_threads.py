"""p025: keep the threads that ask for compiled grammars free.

Upstream (vLLM 0.32, `StructuredOutputManager`) has as many as half the CPUs, and each waits for its
compilation. With p010 they need not: a request whose grammar is not there yet is attempted anew later.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from structuredllm_engine_patches.compiling.attempts import AttemptExecutor
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.seams.compile_pools import Role, close_pool, pool_of

Init = Callable[..., None]


def build(original: Init, installation: Installation) -> Init:
    """Return the replacement of `StructuredOutputManager.__init__`."""

    @wraps(original)
    def __init__(manager: Any, *args: Any, **kwargs: Any) -> None:
        original(manager, *args, **kwargs)
        if hasattr(manager, "executor"):
            # Started now, its fork server is up long before the first request.
            pool_of(installation, Role.COMPILE)
            manager.executor = AttemptExecutor(
                manager.executor, before_shutdown=lambda: close_pool(installation, Role.COMPILE)
            )

    return __init__
