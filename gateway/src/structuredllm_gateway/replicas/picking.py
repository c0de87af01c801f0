"""Which of a model's replicas gets a request.

Owns the choice: least outstanding requests, or the key's replica by rendezvous hashing with bounded loads
(Mirrokni et al., https://arxiv.org/abs/1608.01350): a key stays where it is when others come and go, and no
replica holds more than `load_factor` times its fair share. One or two passes over the replicas, nothing
allocated for those that are not retried. Pure but for the injected randomness.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

from structuredllm_gateway.replicas.replica import Replica

_MASK = 2**64 - 1
_NOBODY: frozenset[str] = frozenset()


def pick_least(
    replicas: Sequence[Replica], rng: random.Random, exclude: Collection[str] = _NOBODY
) -> Replica | None:
    """Return a replica with the fewest outstanding requests; ties are broken at random.

    Random ties keep several gateways from all asking the same replica first.
    """
    if len(replicas) == 1 and not exclude:
        return replicas[0]
    least = -1
    best: list[Replica] = []
    for replica in replicas:
        if exclude and replica.endpoint.name in exclude:
            continue
        load = replica.load.outstanding
        if least < 0 or load < least:
            least, best = load, [replica]
        elif load == least:
            best.append(replica)
    if len(best) < 2:
        return best[0] if best else None
    return rng.choice(best)


def pick_hashed(
    replicas: Sequence[Replica],
    key: int,
    load_factor: float,
    exclude: Collection[str] = _NOBODY,
) -> Replica | None:
    """Return the key's replica, or its next one while that is above its bounded load.

    Args:
        replicas: those that may get it.
        key: 64 bits, see `affinity`.
        load_factor: bound on a replica's load as a multiple of the mean, >= 1.
        exclude: names that were tried before.
    """
    total = count = 0
    for replica in replicas:
        if replica.endpoint.name not in exclude:
            total += replica.load.outstanding
            count += 1
    if not count:
        return None
    # The request itself counts, so that the bound is never below one.
    bound = math.ceil(load_factor * (total + 1) / count)
    best: Replica | None = None
    best_score = -1
    for replica in replicas:
        if replica.load.outstanding >= bound or replica.endpoint.name in exclude:
            continue
        score = _mixed(key ^ replica.seed)
        if score > best_score:
            best, best_score = replica, score
    return best


def warm_share(replica: Replica, now: float, seconds: float, least: float) -> float:
    """Return how much of its fair share a replica may get now, `least` to 1, growing over `seconds`."""
    age = now - replica.ready_at
    return 1.0 if age >= seconds else max(least, age / seconds)


def _mixed(value: int) -> int:
    """Spread 64 bits (the finaliser of splitmix64, https://prng.di.unimi.it/splitmix64.c)."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
