"""Remembers for a short time which optional kinds the cluster serves, so that not every look asks.

Owns the memory only; `KubeClient.serves` asks.
"""

from collections.abc import Callable
from typing import Final

from structuredllm_operator.kube.client import Kind, KubeClient

KEEP_SECONDS: Final = 15.0
"""A CRD that is installed or removed is noticed after this time at the latest."""


class ServedKinds:
    """Which kinds are served.

    Args:
        client: the API server.
        monotonic: seconds that never go back.
    """

    def __init__(self, client: KubeClient, *, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._monotonic = monotonic
        self._known: dict[Kind, tuple[float, bool]] = {}

    async def has(self, kind: Kind) -> bool:
        """Return whether the cluster serves the kind.

        Raises:
            KubeError: it was not asked lately and could not be asked now.
        """
        now = self._monotonic()
        known = self._known.get(kind)
        if known is not None and now - known[0] < KEEP_SECONDS:
            return known[1]
        answer = await self._client.serves(kind)
        self._known[kind] = (now, answer)
        return answer
