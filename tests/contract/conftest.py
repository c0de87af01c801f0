"""Set-up of every contract test."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest


@pytest.fixture(autouse=True)
async def closed_transports() -> AsyncIterator[None]:
    """Let closed TLS connections end before their loop does, and charge a leak to the test that made it.

    A TLS transport needs turns of the loop after its session was closed (aiohttp's, inside kopf and the
    Kubernetes client); one that a closed loop leaves behind would fail the run long after its test.
    """
    yield
    await asyncio.sleep(0.1)
    gc.collect()
