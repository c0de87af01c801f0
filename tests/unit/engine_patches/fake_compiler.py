"""What a fork server loads in the pool's tests: jobs that say what shall happen to their worker."""

import os
import signal
import threading
import time

from structuredllm_engine_patches.compiling.jobs import CompileJob
from structuredllm_engine_patches.compiling.worker import RunJob


def load(blob: bytes) -> RunJob:
    """Return a compiler that obeys the text of a job."""
    if blob == b"die":
        os._exit(3)

    def run(job: CompileJob) -> bytes:
        word, _, argument = job.spec.partition(" ")
        match word:
            case "echo":
                return blob + argument.encode()
            case "pid":
                return str(os.getpid()).encode()
            case "nice":
                return str(os.getpriority(os.PRIO_PROCESS, 0)).encode()
            case "policy":
                return str(os.sched_getscheduler(0)).encode()
            case "fail":
                raise ValueError(argument)
            case "spin":
                end = time.monotonic() + float(argument)
                threading.Thread(target=_spin, args=(end,), daemon=True).start()
                _spin(end)
                return b"spun"
            case "grow":
                kept = bytearray(int(argument))
                return str(len(kept)).encode()
            case "swell":
                # In pieces, so that the address space limit is not what stops it first.
                kept_pieces = []
                while True:
                    kept_pieces.append(b"x" * (16 << 20))
                    time.sleep(0.01)
            case "signal":
                os.kill(os.getpid(), getattr(signal, argument))
                time.sleep(60)
            case "big":
                return b"x" * int(argument)
            case "children":
                return " ".join(os.listdir("/proc/self/fd")).encode()
        raise AssertionError(f"unknown word {word}")

    return run


def _spin(end: float) -> None:
    while time.monotonic() < end:
        pass
