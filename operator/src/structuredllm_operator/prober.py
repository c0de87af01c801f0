"""Sends a burst with the probe library. Owns the mapping between the library's types and ours."""

import httpx

from structuredllm_operator.plan.gate import BurstOrder, BurstResult
from structuredllm_probe import BurstConfig, Verdict, run_burst


class Prober:
    """Sends cold structured bursts over one HTTP client, which the caller owns."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def __call__(self, order: BurstOrder) -> BurstResult:
        """Send one burst to a pod and return what it found."""
        config = BurstConfig(
            requests=order.requests,
            concurrency=order.concurrency,
            timeout_seconds=order.timeout_seconds,
            seed=order.seed,
        )
        report = await run_burst(order.base_url, order.model, config, client=self._client)
        passed = report.verdict is Verdict.HEALTHY
        return BurstResult(passed, report.reason, report.message, verdict=report.verdict.value)
