"""A lost connection is noted with its cause and does not hide what became of the other requests."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.engine.bomb_latency import Latencies, _post
from tests.engine.client import engine_client

Serve = Callable[[socket.socket], None]


@contextmanager
def server(serve: Serve) -> Iterator[str]:
    """Serve one connection after the other until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                with connection:
                    if ended.is_set():
                        return
                    serve(connection)

        ended = threading.Event()
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            socket.create_connection(listener.getsockname()).close()
            thread.join()


def reset(connection: socket.socket) -> None:
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def ask(url: str, *bodies: dict[str, object]) -> Latencies:
    async def all_of_them() -> Latencies:
        found = Latencies()
        async with engine_client(url, seconds=120) as client:
            for body in bodies:
                await _post(client, body, found)
        return found

    return asyncio.run(all_of_them())


def test_a_lost_connection_is_noted_with_its_cause() -> None:
    with server(reset) as url:
        first, second = ask(url, {"structured_outputs": {"regex": "a"}}, {"max_tokens": 4}).lost
    assert first.startswith("regex sent at ")
    assert second.startswith("schema sent at ")
    assert "ReadError" in first
    assert "ConnectionResetError" in first


def test_no_connection_is_used_twice() -> None:
    requests: list[int] = []

    def answer(connection: socket.socket) -> None:
        requests.append(0)
        while data := connection.recv(1 << 16):
            if data.rstrip().endswith(b"}"):
                requests[-1] += 1
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    with server(answer) as url:
        assert ask(url, {}, {}, {}).lost == []
    assert requests == [1, 1, 1]
