"""Hostile engines by real sockets: every lie is a class of error, none a hang, none a good answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import pytest

from structuredllm_gateway.errors import UpstreamConnectError, UpstreamTimeoutError
from tests.unit.gateway.raw_server import Seen, client, raw_server, read_request
from tests.unit.gateway.support import gateway, plain, pool_of, settings_with, structured
from tests.unit.gateway.test_http1_client import OK, ask

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_CHUNKED = _HEAD + b"transfer-encoding: chunked\r\n\r\n"
_BIG = b"x-big: " + b"a" * 3000 + b"\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_HEAD + b"content-length: 100\r\n\r\n{}", id="body shorter than declared"),
        pytest.param(_HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{} ", id="two lengths"),
        pytest.param(_HEAD + b"content-length: -1\r\n\r\n{}", id="negative length"),
        pytest.param(_HEAD + b"content-length: 1e3\r\n\r\n{}", id="length that is no number"),
        pytest.param(_HEAD + b"content-length: 99999999999999999999\r\n\r\n{}", id="length that overflows"),
        pytest.param(
            _HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            id="length and chunked",
        ),
        pytest.param(_HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="coding not asked for"),
        pytest.param(_CHUNKED + b"2\r\n{}\r\n", id="chunked without its end"),
        pytest.param(_CHUNKED + b"zz\r\n{}\r\n", id="chunk size no number"),
        pytest.param(_CHUNKED + b"1\r\n{}\r\n0\r\n\r\n", id="chunk size a lie"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="not HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="TLS"),
        pytest.param(b"HTTP/2.0 200 OK\r\n\r\n", id="HTTP/2"),
        pytest.param(b"HTTP/1.1 099 X\r\n\r\n", id="status below 100"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", id="upgrade"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + OK, id="interim answers without end"),
        pytest.param(_HEAD + _BIG + _BIG + b"content-length: 2\r\n\r\n{}", id="head too large, at once"),
        pytest.param([_HEAD, _BIG, _BIG, b"content-length: 2\r\n\r\n{}"], id="head too large, in parts"),
        pytest.param([_HEAD + b"x", *[b"a" * 1000] * 10], id="field name without end"),
        pytest.param(
            [
                _CHUNKED + b"2\r\n{}\r\n0\r\n",
                *[b"x: " + b"a" * 900 + b"\r\n"] * 9,
            ],
            id="trailers without end",
        ),
        pytest.param(
            [_CHUNKED + b"2;e=", *[b"a" * 1000] * 10],
            id="chunk extension without end",
        ),
        pytest.param(_HEAD + b"x: a\r\n b\r\ncontent-length: 2\r\n\r\n{}"[:30], id="head without end"),
        pytest.param(b"", id="nothing at all"),
    ],
)
async def test_lie_is_a_connect_error(answer: bytes | Sequence[bytes]) -> None:
    async with raw_server([answer], closes=True) as seen, client() as made:
        with pytest.raises(UpstreamConnectError):
            await ask(made, seen.url)
        assert made.pool.open == 0


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        _HEAD + b"content-length: 2\r\n\r\n{",
        _CHUNKED + b"1\r\n{\r\n",
    ],
)
async def test_silence_is_a_timeout_wherever_it_begins(begun: bytes) -> None:
    async with raw_server([begun]) as seen, client(silence_seconds=0.1) as made:
        with pytest.raises(UpstreamTimeoutError):
            await asyncio.wait_for(ask(made, seen.url), 1)
        assert made.pool.open == 0


async def test_bytes_that_trickle_are_no_silence() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader, Seen())
        for byte in OK:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.005)

    async with raw_server(handle) as seen, client(silence_seconds=0.15) as made:
        assert await ask(made, seen.url) == (200, b"{}")


async def test_closed_port_and_unknown_name_are_connect_errors() -> None:
    async with client() as made:
        for url in ("http://127.0.0.1:1/", "http://does-not-exist.invalid/", "http://" + "a" * 70 + ".b/"):
            with pytest.raises(UpstreamConnectError):
                await ask(made, url)
        assert made.pool.open == 0


async def test_reset_inside_a_body_is_a_connect_error() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader, Seen())
        writer.write(_HEAD + b"content-length: 100\r\n\r\n{}")
        await writer.drain()
        writer.transport.abort()

    async with raw_server(handle) as seen, client() as made:
        with pytest.raises(UpstreamConnectError):
            await ask(made, seen.url)


async def test_early_refusal_of_a_large_body_is_an_answer() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
        with contextlib.suppress(ConnectionError):
            await reader.read(1000)

    async with raw_server(handle) as seen, client() as made:
        assert await ask(made, seen.url, bytes(16_000_000)) == (413, b"{}")
        assert made.pool.open == 0


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (_HEAD + b"content-length: 100\r\n\r\n{}", "connect_error"),
        (b"garbage\r\n\r\n", "connect_error"),
        (_HEAD + _BIG * 40 + b"content-length: 2\r\n\r\n{}", "connect_error"),
        (_HEAD + b"content-length: 2\r\n\r\n{}", "upstream_5xx"),  # no choices
    ],
)
async def test_through_the_gateway_a_lie_is_a_class(answer: bytes, outcome: str) -> None:
    async with raw_server([answer], closes=True) as seen, gateway(pool_of(seen.url[:-2])) as run:
        response = await run.ask(structured())
        assert response.status_code == 502
        assert response.headers["x-structuredllm-outcome"] == outcome


async def test_client_that_leaves_is_felt_by_the_engine_within_100_ms() -> None:
    gone = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader, Seen())
        asked.set()
        await reader.read()
        gone.set()

    asked = asyncio.Event()
    settings = settings_with(limits={"max_inflight_requests": 4})
    async with raw_server(handle) as seen, gateway(pool_of(seen.url[:-2]), settings) as run:
        asking = asyncio.create_task(run.ask(plain()))
        await asyncio.wait_for(asked.wait(), 2)
        began = time.monotonic()
        asking.cancel()
        await asyncio.wait_for(gone.wait(), 2)
        assert time.monotonic() - began < 0.1
