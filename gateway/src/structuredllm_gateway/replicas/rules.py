"""From the settings to the rules of the pools.

Owns that translation; pure.
"""

from __future__ import annotations

from structuredllm_gateway.replicas.breaker import QuarantineRules
from structuredllm_gateway.replicas.pool import PoolRules
from structuredllm_gateway.settings import QuarantineScope, Settings


def pool_rules(settings: Settings) -> PoolRules:
    """Return the rules that hold for every model."""
    routing, quarantine, retries = settings.routing, settings.quarantine, settings.retries
    rules = QuarantineRules(
        consecutive=quarantine.consecutive_failures,
        ratio=quarantine.failure_ratio,
        window_seconds=quarantine.window_seconds,
        min_requests=quarantine.min_requests,
        base_seconds=quarantine.base_seconds,
        max_seconds=quarantine.max_seconds,
        covers_plain=quarantine.scope is QuarantineScope.ALL,
        max_share=quarantine.max_share,
    )
    return PoolRules(
        policy=routing.policy,
        load_factor=routing.load_factor,
        slow_start_seconds=routing.slow_start_seconds,
        slow_start_least=routing.slow_start_least,
        quarantine=rules if quarantine.enabled else None,
        retry_ratio=retries.budget_ratio,
        retry_min_per_second=retries.budget_min_per_second,
    )
