"""The bounds of the connection pool: per origin, in all, who waits, who is told."""

from __future__ import annotations

import asyncio

import pytest

from structuredllm_gateway.errors import UpstreamConnectError
from structuredllm_gateway.upstream.http1 import Http1Client
from structuredllm_gateway.upstream.http1_pool import Origin
from tests.unit.gateway.raw_server import Seen, client, raw_server, read_request
from tests.unit.gateway.support import until
from tests.unit.gateway.test_http1_client import OK, ask


class _Gate:
    """An engine that answers when told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.seen = Seen()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader, self.seen)
            await self.open.wait()
            writer.write(OK)


def _asks(made: Http1Client, url: str, count: int) -> list[asyncio.Task[tuple[int, bytes]]]:
    return [asyncio.create_task(ask(made, url)) for _ in range(count)]


async def test_no_more_connections_than_allowed_and_the_others_wait_their_turn() -> None:
    gate = _Gate()
    async with raw_server(gate) as seen, client(max_per_origin=2, max_waiters=3) as made:
        asking = _asks(made, seen.url, 5)
        await until(lambda: len(gate.seen.requests) == 2 and made.pool.waiting == 3)
        with pytest.raises(UpstreamConnectError, match="3 requests wait"):
            await ask(made, seen.url)
        gate.open.set()
        assert await asyncio.gather(*asking) == [(200, b"{}")] * 5
        assert (seen.connections, made.pool.open, made.pool.waiting) == (2, 2, 0)


async def test_wait_for_a_connection_has_a_deadline() -> None:
    gate = _Gate()
    async with raw_server(gate) as seen, client(max_per_origin=1, wait_seconds=0.05) as made:
        first = asyncio.create_task(ask(made, seen.url))
        await until(lambda: gate.seen.requests)
        with pytest.raises(UpstreamConnectError, match="free in time"):
            await ask(made, seen.url)
        gate.open.set()
        assert await first == (200, b"{}")
        assert (made.pool.open, made.pool.waiting) == (1, 0)


async def test_idle_connection_makes_room_for_another_origin() -> None:
    async with raw_server([OK]) as one, raw_server([OK]) as two, client(max_connections=1) as made:
        for seen in (one, two, one, two):
            assert await ask(made, seen.url) == (200, b"{}")
            assert made.pool.open == 1
        assert (one.connections, two.connections) == (2, 2)


async def test_those_who_wait_for_another_origin_get_the_room_that_becomes_free() -> None:
    gate = _Gate()
    async with raw_server(gate) as one, raw_server([OK]) as two, client(max_connections=1) as made:
        first = asyncio.create_task(ask(made, one.url))
        await until(lambda: gate.seen.requests)
        second = asyncio.create_task(ask(made, two.url))
        await until(lambda: made.pool.waiting)
        gate.open.set()
        assert list(await asyncio.gather(first, second)) == [(200, b"{}")] * 2
        assert made.pool.open == 1


async def test_who_stops_waiting_takes_nothing_along() -> None:
    async with raw_server([OK]) as seen, client(max_per_origin=1) as made:
        pool, origin = made.pool, Origin("127.0.0.1", int(seen.url.split(":")[2][:-2]))
        connection = await pool.make(origin)
        first, second = (asyncio.create_task(pool.make(origin)) for _ in range(2))
        await until(lambda: pool.waiting == 2)
        pool.give_back(connection)
        # It has just been given to the first, which is cancelled before it knows.
        first.cancel()
        assert await asyncio.wait_for(second, 1) is connection
        assert (pool.open, pool.waiting) == (1, 0)


async def test_who_stops_waiting_gives_back_the_right_to_open() -> None:
    async with raw_server([OK]) as seen, client(max_per_origin=1) as made:
        pool, origin = made.pool, Origin("127.0.0.1", int(seen.url.split(":")[2][:-2]))
        connection = await pool.make(origin)
        first, second = (asyncio.create_task(pool.make(origin)) for _ in range(2))
        await until(lambda: pool.waiting == 2)
        connection.abort()
        first.cancel()
        assert await asyncio.wait_for(second, 1) is not connection
        assert (pool.open, pool.waiting) == (1, 0)


async def test_connection_that_fails_lets_the_next_one_try() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader, Seen())

    async with raw_server(handle) as seen, client(max_per_origin=1) as made:
        results = await asyncio.gather(*_asks(made, seen.url, 4), return_exceptions=True)
        assert [type(result) for result in results] == [UpstreamConnectError] * 4
        assert (seen.connections, made.pool.open) == (4, 0)


async def test_close_tells_those_who_wait_and_forgets_all() -> None:
    gate = _Gate()
    async with raw_server(gate) as seen, client(max_per_origin=1) as made:
        asking = _asks(made, seen.url, 2)
        await until(lambda: gate.seen.requests and made.pool.waiting)
        await made.aclose()
        with pytest.raises(UpstreamConnectError, match="shutting down"):
            await asking[1]
        with pytest.raises(UpstreamConnectError, match="shutting down"):
            await ask(made, seen.url)
        assert made.pool.open == 0
        asking[0].cancel()
