"""Emulated stage times, and a record of when each stage worked.

STRUCTUREDLLM_TEST_STAGE_MS=60             a forward pass of a pipeline stage takes so many milliseconds ...
STRUCTUREDLLM_TEST_STAGE_MS_PER_TOKEN=2    ... and so many more per token of the step
STRUCTUREDLLM_TEST_STAGE_FILE=PATH         both numbers from a file's text ("60 2"), read anew when it changes
STRUCTUREDLLM_TEST_TIMELINE=FOLDER         stage N appends its forward passes to FOLDER/stage-N.bin
STRUCTUREDLLM_TEST_NO_SPIN=1               processes that wait for a message sleep instead of spinning

The time is that of the whole forward pass: what the CPU needed for the real one is filled up by sleeping. It
begins after the stage's inputs have arrived, so all dependencies between stages stay real. vLLM's processes
spin for a second after each message; with more processes than cores those that wait take the cores from the
one that works.
"""

import os
import struct
import time
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

MARK = "__structuredllm_test_stages__"
LONGEST_SLEEP_MS = 5

RECORD = struct.Struct("<ddI")
"""Begin and end of a forward pass (seconds, monotonic clock of the machine), and its tokens."""


class StageTime:
    """How long a forward pass takes: from the environment, or from a file that may change at any time."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._fixed = float(environ.get("STRUCTUREDLLM_TEST_STAGE_MS", "0"))
        self._per_token = float(environ.get("STRUCTUREDLLM_TEST_STAGE_MS_PER_TOKEN", "0"))
        name = environ.get("STRUCTUREDLLM_TEST_STAGE_FILE", "")
        self._file = Path(name) if name else None
        self._read_at = 0

    @property
    def wanted(self) -> bool:
        """Return whether anything is emulated at all."""
        return self._file is not None or self._fixed > 0 or self._per_token > 0

    def seconds(self, tokens: int) -> float:
        """Return the time of a forward pass over `tokens` tokens."""
        if self._file is not None:
            changed = self._file.stat().st_mtime_ns
            if changed != self._read_at:
                self._fixed, self._per_token = (float(part) for part in self._file.read_text().split())
                self._read_at = changed
        return (self._fixed + self._per_token * tokens) / 1000


class Timeline:
    """Appends the records of this process's stage; its file is opened at the first one."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: int | None = None

    def add(self, begin: float, end: float, tokens: int) -> None:
        """Write one forward pass."""
        if self._file is None:
            from vllm.distributed.parallel_state import get_pp_group

            path = Path(self._folder) / f"stage-{get_pp_group().rank_in_group}.bin"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._file, RECORD.pack(begin, end, tokens))


def install(environ: Mapping[str, str]) -> None:
    """Emulate what `environ` asks for; once in a process."""
    if environ.get("STRUCTUREDLLM_TEST_NO_SPIN") == "1":
        _sleep_instead_of_spinning()
    stage_time = StageTime(environ)
    folder = environ.get("STRUCTUREDLLM_TEST_TIMELINE", "")
    if not stage_time.wanted and not folder:
        return
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    original = GPUModelRunner._model_forward
    if hasattr(original, MARK):
        return
    timeline = Timeline(folder) if folder else None

    @wraps(original)
    def model_forward(
        self: Any, input_ids: Any = None, positions: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        begin = time.monotonic()
        output = original(self, input_ids, positions, *args, **kwargs)
        tokens = int(positions.shape[-1])
        end = begin + stage_time.seconds(tokens)
        left = end - time.monotonic()
        if left > 0:
            time.sleep(left)
        else:
            end = time.monotonic()
        if timeline is not None:
            # Not the moment of waking up: what a busy machine oversleeps is no work of the stage.
            timeline.add(begin, end, tokens)
        return output

    setattr(model_forward, MARK, True)
    GPUModelRunner._model_forward = model_forward


def _sleep_instead_of_spinning() -> None:
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    original = SpinCondition.wait
    if hasattr(original, MARK):
        return

    @wraps(original)
    def wait(self: Any, timeout_ms: int | None = None) -> None:
        busy_loop_s = self.busy_loop_s
        if time.monotonic() <= self.last_read + busy_loop_s:
            # Short: a notification may be lost while nobody was waiting for it.
            timeout_ms = LONGEST_SLEEP_MS if timeout_ms is None else min(timeout_ms, LONGEST_SLEEP_MS)
            self.busy_loop_s = -1.0
        try:
            original(self, timeout_ms)
        finally:
            self.busy_loop_s = busy_loop_s

    setattr(wait, MARK, True)
    SpinCondition.wait = wait
