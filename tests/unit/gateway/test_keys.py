"""Keys as values: the file's format, hashes, buckets, and whom the gatekeeper lets pass. No I/O."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structuredllm_gateway.keys.buckets import Bucket, duration_text
from structuredllm_gateway.keys.errors import (
    ForbiddenError,
    KeyRefusedError,
    ModelForbiddenError,
    RateLimitedError,
    UnknownKeyError,
)
from structuredllm_gateway.keys.gatekeeper import Gatekeeper, Grant
from structuredllm_gateway.keys.hashing import digest_of, hash_key_command
from structuredllm_gateway.keys.table import KeyFileError, KeyTable, read_table
from structuredllm_gateway.relay.caller import Caller
from structuredllm_gateway.upstream.endpoints import ValidationMode

KEY = "sllm-a-key-for-tests-only-0123456789"
OTHER_KEY = "sllm-another-key-for-tests-9876543210"


def entry(name: str = "team", key: str = KEY, **more: Any) -> dict[str, Any]:
    return {"name": name, "sha256": digest_of(key.encode()).hex(), **more}


def table(*entries: Mapping[str, Any]) -> KeyTable:
    return read_table(json.dumps({"keys": entries}).encode())


def bearer(key: str = KEY) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (b"authorization", f"Bearer {key}".encode())]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def keeper(*entries: Mapping[str, Any], clock: Clock | None = None) -> Gatekeeper:
    known = table(*entries)
    return Gatekeeper(lambda: known, clock=clock or Clock(), assumed_tokens=50)


def test_yaml_and_json_say_the_same() -> None:
    text = f"""
    keys:
      - name: team
        sha256: [{digest_of(KEY.encode()).hex()}, {digest_of(OTHER_KEY.encode()).hex()}]
        models: ["toy*"]
        requests_per_minute: 60
        validation: observe
    """
    found = read_table(text.encode())
    assert set(found.by_digest) == {digest_of(KEY.encode()), digest_of(OTHER_KEY.encode())}
    read = found.by_digest[digest_of(KEY.encode())]
    assert (read.requests_per_minute, read.validation) == (60, ValidationMode.OBSERVE)
    assert read.caller == Caller("team", ValidationMode.OBSERVE)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "/"),
        (b"{", "neither JSON nor YAML"),
        (b"keys: [\xff\xfe]", "neither JSON nor YAML"),
        (b"[" * 20_000, "neither JSON nor YAML"),
        (b'{"keys": [{"name": "a"}]}', "/keys/0/sha256"),
        (b'{"keys": [{"name": "a", "sha256": "abc"}]}', "hash-key"),
        (b'{"keys": [{"name": "a b", "sha256": "abc"}]}', "/keys/0/name"),
        (json.dumps({"keys": [entry(token=1)]}).encode(), "/keys/0/token"),
        (json.dumps({"keys": [entry(requests_per_minute=0)]}).encode(), "/keys/0/requests_per_minute"),
        (json.dumps({"keys": [entry(), entry(key=OTHER_KEY)]}).encode(), "two entries"),
        (json.dumps({"keys": [entry("a"), entry("b")]}).encode(), "one hash"),
        (b"#" * (1024 * 1024 + 1), "larger"),
    ],
)
def test_a_bad_file_is_named_and_never_quoted(content: bytes, said: str) -> None:
    with pytest.raises(KeyFileError) as caught:
        read_table(content)
    assert said in str(caught.value)
    assert digest_of(KEY.encode()).hex() not in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_an_error(content: bytes) -> None:
    try:
        read_table(content)
    except KeyFileError:
        return


def test_hash_key_reads_a_key_or_makes_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert hash_key_command(["--name", "team"], source=io.StringIO(KEY + "\n")) == 0
    assert json.loads(capsys.readouterr().out) == entry()
    assert hash_key_command(["--new"], token=lambda _size: "x" * 43) == 0
    captured = capsys.readouterr()
    made = captured.err.strip().rsplit(" ", 1)[1]
    assert json.loads(captured.out)["sha256"] == digest_of(made.encode()).hex()
    assert made not in captured.out
    assert hash_key_command([], source=io.StringIO("password\n")) == 2
    assert hash_key_command(["--help"]) == 2
    assert "usage" in capsys.readouterr().err


def test_a_bucket_fills_evenly_and_never_above_a_minute() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.level -= 60
    bucket.refill(1.0)
    assert bucket.remaining == 1
    assert bucket.seconds_until(2) == pytest.approx(1.0)
    bucket.refill(1000.0)
    assert (bucket.remaining, bucket.reset_seconds) == (60, 0.0)
    bucket.level -= 50
    bucket.change(10, 1000.0)
    assert bucket.remaining == 0


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 100)), max_size=30))
def test_no_more_passes_than_the_first_minute_and_the_rate_allow(steps: list[tuple[float, int]]) -> None:
    bucket, now, passed = Bucket(60, now=0.0), 0.0, 0
    for wait, wanted in steps:
        now += wait
        bucket.refill(now)
        if bucket.level >= wanted:
            bucket.level -= wanted
            passed += wanted
    assert passed <= 60 + now + 1e-6


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0121, "13ms"), (6.5, "6.5s"), (72, "1m12s"), (60, "1m0s")]
)
def test_durations_read_like_openai_s(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Basic " + KEY.encode())],
        [(b"authorization", KEY.encode())],
        [(b"authorization", b"Bearer " + KEY.encode() + b"x")],
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"authorization", b"Bearer " + digest_of(KEY.encode()).hex().encode())],
        [(b"x-api-key", KEY.encode())],
    ],
)
def test_what_is_not_a_known_key_is_a_401(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(UnknownKeyError) as caught:
        keeper(entry()).enter(headers, counted=True)
    assert caught.value.headers == {"www-authenticate": "Bearer"}


def test_without_a_table_everyone_passes_unlimited() -> None:
    grant = Gatekeeper(None, clock=Clock()).enter([], counted=True)
    assert type(grant) is Grant
    grant.admit("any", b"{}")
    grant.close(None)
    assert grant.headers() == {}


def test_models_are_globs() -> None:
    grant = keeper(entry(models=["toy-*", "org/model"])).enter(bearer(), counted=True)
    grant.admit("toy-1", b"{}")
    grant.admit("org/model", b"{}")
    with pytest.raises(ModelForbiddenError) as caught:
        grant.admit("Toy-1", b"{}")
    assert (caught.value.status, caught.value.param, caught.value.code) == (403, "model", "model_not_allowed")


def test_requests_a_minute_are_counted_and_told() -> None:
    clock = Clock()
    gate = keeper(entry(requests_per_minute=2), clock=clock)
    for left in ("1", "0"):
        grant = gate.enter(bearer(), counted=True)
        assert grant.headers()["x-ratelimit-remaining-requests"] == left
        grant.close(None)
    with pytest.raises(RateLimitedError) as caught:
        gate.enter(bearer(), counted=True)
    error = caught.value
    assert (error.status, error.type, error.code) == (429, "requests", "rate_limit_exceeded")
    assert error.headers["retry-after"] == "30"
    assert error.headers["retry-after-ms"] == "30000"
    assert error.headers["x-ratelimit-limit-requests"] == "2"
    assert error.headers["x-ratelimit-reset-requests"] == "1m0s"
    gate.enter(bearer(), counted=False)
    clock.now += 30
    gate.enter(bearer(), counted=True)


def test_requests_at_a_time_are_given_back() -> None:
    gate = keeper(entry(concurrent_requests=1))
    first = gate.enter(bearer(), counted=True)
    with pytest.raises(RateLimitedError) as caught:
        gate.enter(bearer(), counted=True)
    assert caught.value.type == "concurrency"
    first.close(0)
    gate.enter(bearer(), counted=True)


def test_tokens_are_reserved_by_the_maximum_and_settled_by_the_usage() -> None:
    clock = Clock()
    gate = keeper(entry(tokens_per_minute=100), clock=clock)
    first = gate.enter(bearer(), counted=True)
    first.admit("toy", b'{"max_tokens": 80}')
    second = gate.enter(bearer(), counted=True)
    with pytest.raises(RateLimitedError) as caught:
        second.admit("toy", b'{"max_completion_tokens":80}')
    assert caught.value.type == "tokens"
    second.close(0)
    first.close(10)
    assert gate.enter(bearer(), counted=True).headers()["x-ratelimit-remaining-tokens"] == "90"
    third = gate.enter(bearer(), counted=True)
    third.admit("toy", b"{}")  # 50 assumed
    third.close(150)  # far more than reserved: the bucket is in debt
    with pytest.raises(RateLimitedError):
        gate.enter(bearer(), counted=True).admit("toy", b'{"max_tokens":1}')
    clock.now += 60
    gate.enter(bearer(), counted=True).admit("toy", b'{"max_tokens":1}')


def test_a_request_above_a_whole_minute_waits_for_a_full_bucket() -> None:
    gate = keeper(entry(tokens_per_minute=100))
    gate.enter(bearer(), counted=True).admit("toy", b'{"max_tokens":100000}')
    with pytest.raises(RateLimitedError) as caught:
        gate.enter(bearer(), counted=True).admit("toy", b'{"max_tokens":100000}')
    assert caught.value.headers["retry-after"] == "60"


def test_new_keys_keep_what_was_used_and_forget_who_is_gone() -> None:
    tables = [table(entry(requests_per_minute=2))]
    gate = Gatekeeper(lambda: tables[0], clock=Clock())
    gate.enter(bearer(), counted=True)
    tables[0] = table(entry(key=OTHER_KEY, requests_per_minute=3))
    with pytest.raises(UnknownKeyError):
        gate.enter(bearer(), counted=True)
    assert gate.enter(bearer(OTHER_KEY), counted=True).headers()["x-ratelimit-remaining-requests"] == "1"
    tables[0] = table()
    with pytest.raises(UnknownKeyError):
        gate.enter(bearer(OTHER_KEY), counted=True)


def test_debug_routes_need_a_key_for_them_or_the_same_host() -> None:
    gate = keeper(entry("a"), entry("b", OTHER_KEY, debug=True))
    gate.check_debug(bearer(OTHER_KEY), "10.0.0.9")
    for headers, wanted in (([], UnknownKeyError), (bearer(), ForbiddenError)):
        with pytest.raises(wanted):
            gate.check_debug(headers, "127.0.0.1")
    without = Gatekeeper(None, clock=Clock())
    without.check_debug([], "127.0.0.1")
    for client in ("10.0.0.9", None):
        with pytest.raises(KeyRefusedError):
            without.check_debug([], client)
