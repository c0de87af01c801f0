"""A compile worker: takes jobs from its socket, one after the other, and answers each. Runs in a fork.

It trusts nothing about a job: whatever goes wrong becomes an answer or, where C++ code gives up, the end of
the process, which the pool sees.
"""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import time
from collections.abc import Callable

from structuredllm_engine_patches.compiling import frames
from structuredllm_engine_patches.compiling.jobs import CompileJob, job_of
from structuredllm_engine_patches.compiling.priority import give_way

RunJob = Callable[[CompileJob], bytes | None]
"""Does a job and returns the result's bytes, or None for `CompileResult.here`; any exception is an answer."""

MAX_ERROR_CHARACTERS = 1000
_PR_SET_PDEATHSIG = 1


def confine(parent_pid: int, memory_bytes: int, *, slow: bool) -> None:
    """Bound this process before it takes a job.

    Args:
        parent_pid: the fork server; this process dies with it.
        memory_bytes: address space that it may take on top of what it has now.
        slow: whether it runs only when nobody else wants the CPU.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)
    limit = address_space_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if slow:
        give_way()
    # When the machine runs out of memory the kernel shall take a compile worker, not the engine. In a
    # container that forbids it the limits above still hold.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def address_space_bytes() -> int:
    """Return the size of this process's address space."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def serve(connection: socket.socket, run: RunJob, max_result_bytes: int) -> None:
    """Answer jobs until the other side closes the connection."""
    reader = frames.FrameReader()
    while data := connection.recv(1 << 16):
        for header, blob in reader.feed(data):
            connection.sendall(_answer(header, blob, run, max_result_bytes))


def _answer(header: dict[str, object], blob: bytes, run: RunJob, max_result_bytes: int) -> bytes:
    started = time.perf_counter()
    answer: dict[str, object] = {"id": header["id"]}
    result: bytes | None = b""
    try:
        result = run(job_of(header, blob))
        if result is None:
            answer["here"] = True
        elif len(result) > max_result_bytes:
            raise MemoryError(f"the compiled grammar has {len(result)} bytes, more than {max_result_bytes}")
    except Exception as error:  # every failure of a job is its answer
        text = str(error) or type(error).__name__
        answer["error"] = text[:MAX_ERROR_CHARACTERS]
        answer["memory"] = isinstance(error, MemoryError) or "bad_alloc" in text
        result = b""
    answer["seconds"] = time.perf_counter() - started
    return frames.encode(answer, result or b"")
