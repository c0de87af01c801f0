"""What the async path needs on the CPU: the scheduler setting, inert streams and events, first-use tensors.

The CPU executes in order, so an event is always done and a stream never has to be waited for.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import generators, hybrid

MARK = "_structuredllm_test"


class DoneEvent:
    """Stands in for an accelerator event: whatever it records has already happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept and ignore the options of the real class."""

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Return at once."""

    def wait(self, *args: Any, **kwargs: Any) -> None:
        """Return at once."""

    def query(self) -> bool:
        """Say that the work is done."""
        return True


class InertStream:
    """Stands in for an accelerator stream: all work is done in program order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept and ignore the options of the real class."""
        self.device = torch.device("cpu")

    def wait_stream(self, *args: Any, **kwargs: Any) -> None:
        """Return at once."""

    def synchronize(self) -> None:
        """Return at once."""


def install() -> None:
    """Apply all of it once in this process."""
    if getattr(torch, MARK, False):
        return
    setattr(torch, MARK, True)
    _stub_streams_and_events()
    _complete_the_runner_placeholders()
    _keep_async_scheduling()
    _make_intermediate_tensors_on_first_use()
    generators.install()
    hybrid.install()


def _stub_streams_and_events() -> None:
    @contextlib.contextmanager
    def stream(_: object) -> Iterator[None]:
        yield

    torch.Event = DoneEvent
    torch.cuda.Event = DoneEvent
    torch.cuda.current_stream = lambda *args, **kwargs: InertStream()
    torch.cuda.stream = stream


def _complete_the_runner_placeholders() -> None:
    """Give the runner whole stand-ins while it is made: those of vLLM 0.22 can only record, not wait."""
    import vllm.v1.worker.cpu_model_runner as runner

    @contextlib.contextmanager
    def torch_cuda_wrapper() -> Iterator[None]:
        event, stream = torch.Event, torch.cuda.Stream
        torch.Event, torch.cuda.Stream = DoneEvent, InertStream
        try:
            yield
        finally:
            torch.Event, torch.cuda.Stream = event, stream

    runner._torch_cuda_wrapper = torch_cuda_wrapper


def _keep_async_scheduling() -> None:
    """Undo the platform's "async scheduling is not required on CPU": what was asked for stays."""
    from vllm.platforms.cpu import CpuPlatform

    original: Callable[..., None] = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked
        if os.environ.get("STRUCTUREDLLM_TEST_FORK") == "1":
            # The platform wants each process to import vLLM anew. Forked ones share what the first imported:
            # on two cores five processes start in a third of the time and a third of the memory.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _make_intermediate_tensors_on_first_use() -> None:
    """Without a compile warm-up the receive buffers of a later pipeline stage are never made."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner.sync_and_gather_intermediate_tensors

    def sync_and_gather_intermediate_tensors(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.intermediate_tensors is None:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
        return original(self, *args, **kwargs)

    GPUModelRunner.sync_and_gather_intermediate_tensors = sync_and_gather_intermediate_tensors
