"""Which NVIDIA GPUs this machine has, as its driver's own tool tells."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
QUERY_TIMEOUT_SECONDS = 60


class NoGpuError(RuntimeError):
    """There is none that can be used; the message says what was tried and what to do."""


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: the driver's name for it.
        memory_mib: its memory.
        driver: version of the driver.
    """

    name: str
    memory_mib: int
    driver: str


def ask_driver() -> str:
    """Return the driver's list.

    Raises:
        OSError: there is no such tool.
        subprocess.SubprocessError: it failed or did not answer.
    """
    done = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_TIMEOUT_SECONDS, check=True)
    return done.stdout


def find_gpus(ask: Callable[[], str] = ask_driver) -> Sequence[Gpu]:
    """Return the machine's GPUs.

    Raises:
        NoGpuError: it has none.
    """
    try:
        found = [_gpu(line) for line in ask().splitlines() if line.strip()]
    except OSError as error:
        raise NoGpuError(f"`{QUERY[0]}` cannot be run ({error.strerror}): no NVIDIA driver here") from None
    except subprocess.SubprocessError as error:
        raise NoGpuError(f"`{' '.join(QUERY)}` failed: {error}") from None
    except ValueError as error:
        raise NoGpuError(f"`{QUERY[0]}` said something else than a list of GPUs: {error}") from None
    if not found:
        raise NoGpuError(f"`{QUERY[0]}` lists no GPU")
    return found


def _gpu(line: str) -> Gpu:
    name, memory, driver = (part.strip() for part in line.split(","))
    return Gpu(name, int(memory), driver)
