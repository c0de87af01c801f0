"""p026: validate a request's grammar before it is given to the engine, off the event loop.

Upstream (vLLM 0.32, `AsyncLLM.add_request`) validates in the middle of `process_inputs`, on the API server's
event loop: while a grammar is parsed no other request is served. Here the same validation runs before, as an
attempt in a thread (see `compiling.attempts`); upstream's own then finds every result.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any

from structuredllm_engine_patches.compiling.attempts import MAX_ATTEMPTS, RESULTS, Wanted, attempt
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.seams.compile_pools import Role, close_pool, pool_of

Method = Callable[..., Any]
AsyncMethod = Callable[..., Awaitable[Any]]

THREADS_ATTRIBUTE = "_structuredllm_validation_threads"
THREADS = 4


def build(original: Method, installation: Installation) -> Method:
    """Return the replacement of one of the targets."""
    match original.__name__:
        case "__init__":
            return _build_init(original, installation)
        case "add_request":
            return _build_add_request(original)
        case "shutdown":
            return _build_shutdown(original, installation)
    raise ValueError(f"{original!r} is not one of the targets")


def _build_init(original: Method, installation: Installation) -> Method:
    @wraps(original)
    def __init__(llm: Any, *args: Any, **kwargs: Any) -> None:
        # Afterwards: the engine core's process may be made by a fork of this one.
        original(llm, *args, **kwargs)
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="structuredllm-validate")
        setattr(llm, THREADS_ATTRIBUTE, threads)
        pool_of(installation, Role.PARSE)

    return __init__


def _build_shutdown(original: Method, installation: Installation) -> Method:
    @wraps(original)
    def shutdown(llm: Any, *args: Any, **kwargs: Any) -> Any:
        close_pool(installation, Role.PARSE)
        threads = getattr(llm, THREADS_ATTRIBUTE, None)
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        return original(llm, *args, **kwargs)

    return shutdown


def _build_add_request(original: AsyncMethod) -> AsyncMethod:
    @wraps(original)
    async def add_request(
        llm: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if getattr(params, "structured_outputs", None) is None:
            return await original(llm, request_id, prompt, params, *args, **kwargs)
        results: dict[Hashable, Future[Any]] = {}
        await validate(llm, params, results)
        token = RESULTS.set(results)
        try:
            return await original(llm, request_id, prompt, params, *args, **kwargs)
        finally:
            # A generator that is closed from elsewhere ends in another context.
            with contextlib.suppress(ValueError):
                RESULTS.reset(token)

    return add_request


async def validate(llm: Any, params: Any, results: "dict[Hashable, Future[Any]]") -> None:
    """Validate the constraint of sampling parameters; `results` then has what upstream's validation needs.

    Raises:
        VLLMValidationError: whatever upstream's validation raises.
    """
    processor = llm.input_processor
    threads = getattr(llm, THREADS_ATTRIBUTE)

    def once() -> "Future[Any] | None":
        try:
            attempt(
                lambda: params._validate_structured_outputs(
                    processor.model_config, processor.structured_outputs_config, processor.tokenizer
                ),
                results,
            )
        except Wanted as wanted:
            return wanted.future
        return None

    loop = asyncio.get_running_loop()
    for _ in range(MAX_ATTEMPTS):
        wanted = await loop.run_in_executor(threads, once)
        if wanted is None:
            return
        await _end_of(wanted)
    raise RuntimeError(f"a constraint was not validated after {MAX_ATTEMPTS} attempts")


async def _end_of(future: "Future[Any]") -> None:
    """Wait until a future has ended, however; a caller that is cancelled leaves it alone, it is shared."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell(_: "Future[Any]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(tell)
    await ended.wait()
