"""How much of the machine compilations may take: CPUs that there are, and the priority of what takes long."""

import contextlib
import math
import os
from pathlib import Path

LOWEST_NICENESS = 19
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""Of a container: microseconds of CPU time that it has in a period, or `max`, and the period."""


def give_way(thread: int = 0) -> None:
    """Let a thread, and those that it starts, run only when nobody else wants the CPU.

    The lowest niceness alone is not enough: a thread with it still gets a share, and may finish its turn when
    another one wakes up, which delays each message between an engine's processes. Where the kernel does not
    let us choose the policy (a seccomp filter), the niceness is what remains.

    Args:
        thread: its id; 0 for the calling thread.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, LOWEST_NICENESS)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def usable_cpus(limit: Path = CPU_LIMIT) -> int:
    """Return how many CPUs this process has: those it may run on, or what its container's limit allows.

    A container that has used up its CPU time stands still as a whole, whatever the priorities in it.
    """
    cpus = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = limit.read_text().split()
        cpus = min(cpus, math.ceil(int(quota) / int(period)))
    return max(1, cpus)


def compile_threads(cpus: int) -> int:
    """Return the threads of one compilation: with `slow_compilations` at most half of many CPUs."""
    return max(1, min(8, cpus // 8))


def slow_compilations(cpus: int) -> int:
    """Return how many compilations that take long run at a time; with two a bomb holds up nobody."""
    return max(2, min(4, cpus // 4))
