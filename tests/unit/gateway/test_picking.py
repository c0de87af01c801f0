"""Picking: least outstanding, prefix and session with bounded loads, slow start."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from structuredllm_gateway.replicas.affinity import affinity_key, hash64
from structuredllm_gateway.replicas.picking import pick_hashed, pick_least, warm_share
from structuredllm_gateway.replicas.pool import PoolRules
from structuredllm_gateway.replicas.replica import Load
from structuredllm_gateway.upstream.endpoints import EndpointState, PickPolicy
from tests.unit.gateway.replica_parts import endpoint, known, picked, pool_with
from tests.unit.gateway.support import seeded

_KEYS = [hash64(str(number).encode()) for number in range(2000)]


def test_least_outstanding_wins_and_leases_are_given_back() -> None:
    pool = pool_with("abc")
    a, b, c = pool.replicas.values()
    with a, a, b:
        assert pick_least([a, b, c], seeded()) is c
        assert pick_least([a, b], seeded()) is b
        assert pick_least([a, b], seeded(), exclude={"b"}) is a
        assert a.load.outstanding == 2
    assert a.load.outstanding == 0
    assert pick_least([], seeded()) is None
    assert pick_least([a], seeded(), exclude={"a"}) is None


def test_ties_are_broken_at_random() -> None:
    assert picked(pool_with("abc")) == {"a", "b", "c"}


def test_models_that_share_an_engine_share_its_load() -> None:
    first, second = pool_with("ab"), pool_with("ab")
    load = {url: Load() for url in ("http://a", "http://b")}
    for pool in (first, second):
        pool.update(known("a", "b"), load, 1000, warm=True)
    with first.replicas["a"]:
        assert picked(second) == {"b"}


def test_a_key_keeps_its_replica_and_keys_are_spread_evenly() -> None:
    replicas = list(pool_with("abcd").replicas.values())
    homes = [pick_hashed(replicas, key, 1.25) for key in _KEYS]
    assert homes == [pick_hashed(replicas[::-1], key, 1.25) for key in _KEYS]
    counts = Counter(home.name for home in homes if home)
    assert set(counts) == set("abcd")
    assert max(counts.values()) < 1.2 * len(_KEYS) / 4


def test_only_the_keys_of_a_replica_that_leaves_move() -> None:
    replicas = list(pool_with("abcd").replicas.values())
    for key in _KEYS:
        home = pick_hashed(replicas, key, 1.25)
        assert home is not None
        rest = [replica for replica in replicas if replica.name != "b"]
        moved = pick_hashed(rest, key, 1.25)
        assert (moved is home) == (home.name != "b")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(_KEYS[:5]), max_size=200),
    st.integers(1, 8),
    st.floats(1, 3),
)
def test_no_replica_gets_more_than_its_bounded_load(keys: list[int], count: int, factor: float) -> None:
    replicas = list(pool_with("abcdefgh"[:count]).replicas.values())
    for number, key in enumerate(keys):
        replica = pick_hashed(replicas, key, factor)
        # Somebody is always below the bound, or a hot key would find nobody.
        assert replica is not None
        replica.load.outstanding += 1
        assert replica.load.outstanding <= math.ceil(factor * (number + 1) / count)


def test_hashing_leaves_out_who_was_tried() -> None:
    replicas = list(pool_with("abc").replicas.values())
    for key in _KEYS[:50]:
        home = pick_hashed(replicas, key, 1.25)
        assert home is not None
        other = pick_hashed(replicas, key, 1.25, exclude={home.name})
        assert other is not None
        assert other is not home
    assert pick_hashed(replicas, 1, 1.25, exclude={"a", "b", "c"}) is None


def _key(policy: PickPolicy, body: dict[str, object] | bytes, **headers: str) -> int | None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    given_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return affinity_key(policy, raw, given_headers, prefix_bytes=64, session_header="x-session-id")


def test_prefix_key_is_the_start_of_the_prompt_alone() -> None:
    policy = PickPolicy.PREFIX_HASH
    system = {"role": "system", "content": "s" * 80}
    first = _key(policy, {"model": "m", "messages": [system, {"role": "user", "content": "one"}]})
    second = _key(policy, {"temperature": 0, "messages": [system, {"role": "user", "content": "two"}]})
    other = _key(policy, {"messages": [{"role": "system", "content": "another"}]})
    assert first is not None
    assert first == second != other
    assert _key(policy, {"prompt": "p"}) != _key(policy, {"prompt": "q"})
    assert _key(policy, {"input": "p"}) == _key(policy, {"prompt": "p"})
    assert _key(policy, {"model": "m"}) is None


def test_session_key_is_the_header_or_else_the_user() -> None:
    policy = PickPolicy.SESSION
    messages = [{"role": "user", "content": 'say {"user": "not this one"}'}]
    by_user = _key(policy, {"messages": messages, "user": "u-1"})
    assert by_user == _key(policy, {"user": "u-1"}) == hash64(b"u-1")
    assert _key(policy, {"user": "u-1"}, x_session_id="s") == hash64(b"s")
    assert _key(policy, {"messages": messages}) is None
    assert _key(PickPolicy.LEAST_OUTSTANDING, {"user": "u-1"}, x_session_id="s") is None


def test_key_is_the_same_in_every_process() -> None:
    assert hash64(b"session") == 0x24F89FA18D88A5B5


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300))
def test_no_body_breaks_the_search_for_a_key(body: bytes) -> None:
    for policy in PickPolicy:
        _key(policy, body)


def test_without_a_key_the_least_loaded_is_asked() -> None:
    pool = pool_with("ab", PoolRules(policy=PickPolicy.SESSION))
    with pool.replicas["a"]:
        assert picked(pool) == {"b"}


@pytest.mark.parametrize(("age", "share"), [(0, 0.1), (1, 0.1), (15, 0.5), (30, 1.0), (1e9, 1.0)])
def test_share_of_a_new_replica_grows(age: float, share: float) -> None:
    replica = pool_with("a").replicas["a"]
    replica.ready_at = 1000.0
    assert warm_share(replica, 1000 + age, 30, 0.1) == pytest.approx(share)


def test_slow_start_gives_a_new_replica_its_share_in_time() -> None:
    pool = pool_with("ab", PoolRules(slow_start_seconds=30, slow_start_least=0.1))
    gated = known("a", endpoint("b", EndpointState.GATED))
    loads = {f"http://{name}": replica.load for name, replica in pool.replicas.items()}
    pool.update(gated, loads, 1000, warm=False)
    assert picked(pool) == {"a"}
    pool.update(known("a", "b"), loads, 1010, warm=False)

    def share(now: float) -> float:
        got = [pool.pick(structured=True, key=None, now=now) for _ in range(4000)]
        return sum(replica is pool.replicas["b"] for replica in got) / len(got)

    assert share(1010) == pytest.approx(0.05, abs=0.02)
    assert share(1025) == pytest.approx(0.25, abs=0.03)
    assert share(1040) == pytest.approx(0.5, abs=0.03)


def test_a_new_replica_alone_gets_everything() -> None:
    pool = pool_with("")
    pool.update(known("a"), {"http://a": Load()}, 1000, warm=False)
    assert all(pool.pick(structured=True, key=None, now=1000) for _ in range(200))


def test_a_new_replica_is_asked_when_the_others_were_tried() -> None:
    pool = pool_with("a")
    loads = {"http://a": Load(), "http://b": Load()}
    pool.update(known("a", "b"), loads, 1000, warm=False)
    got = [pool.pick(structured=True, key=None, now=1000, exclude={"a"}) for _ in range(200)]
    assert {replica.name for replica in got if replica} == {"b"}
    assert all(got)
