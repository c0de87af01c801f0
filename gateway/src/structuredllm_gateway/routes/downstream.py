"""The client's side of a request as ASGI gives it: headers, the body, and the moment in which it goes away.

Owns the reading of the receive channel. Every request passes here, so no task and no timer is made where the
bytes are there already: `receive` is a coroutine, and its first step is made by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator, Mapping
from typing import Any, cast

from starlette.types import Message, Receive

from structuredllm_gateway.admission.limits import ClientClosedError
from structuredllm_gateway.errors import BodyTimeoutError, BodyTooLargeError

_Pending = Coroutine[Any, Any, Message]


class HeaderMap(Mapping[str, str]):
    """ASGI's raw headers by lower-case name; of those that occur twice, the first."""

    __slots__ = ("_raw",)

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        """Take the raw list; its names are lower-case already."""
        self._raw = dict(reversed(raw))

    def __getitem__(self, name: str) -> str:
        return self._raw[name.encode("latin-1")].decode("latin-1")

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field's value; the mixin would raise and catch an error for each that is missing."""
        value = self._raw.get(name.encode("latin-1"))
        return default if value is None else value.decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode("latin-1") in self._raw

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


class Downstream:
    """Reads one request, bounded in bytes and time; from then on watches for the client to go away.

    Attributes:
        gone: whether the client went away while its answer was worked on; the task was cancelled then.
    """

    __slots__ = ("_declared", "_max_bytes", "_pending", "_receive", "_task", "_timeout_seconds", "gone")

    def __init__(
        self,
        receive: Receive,
        headers: Mapping[str, str],
        task: asyncio.Task[Any],
        *,
        max_bytes: int,
        timeout_seconds: float,
    ) -> None:
        """Prepare; nothing is read yet. `task` works on the answer and is cancelled when nobody wants it."""
        self._receive = receive
        self._declared = headers.get("content-length", "")
        self._task = task
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self._pending: _Pending | None = None
        self.gone = False

    async def read(self) -> bytes:
        """Return the whole body.

        Raises:
            BodyTooLargeError: the declared or the received length is above the limit.
            BodyTimeoutError: the body did not arrive in time.
            ClientClosedError: the client went away.
        """
        if self._declared.isdigit() and int(self._declared) > self._max_bytes:
            raise self._too_large()
        pending = cast(_Pending, self._receive())
        try:
            waits_for = pending.send(None)
        except StopIteration as result:
            body = self._whole(result.value)
            if body is None:
                body = await self._collected(result.value)
        else:
            body = await self._collected(_Rest(pending, waits_for))
        self._watch()
        return body

    def stop(self) -> None:
        """Watch no longer: the answer is complete, or there will be none."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.close()

    def _whole(self, message: Message) -> bytes | None:
        """Return the body, when this message is all of it."""
        if message["type"] == "http.disconnect":
            raise ClientClosedError
        if message.get("more_body", False):
            return None
        body: bytes = message.get("body", b"")
        if len(body) > self._max_bytes:
            raise self._too_large()
        return body

    async def _collected(self, first: Message | _Rest) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._timeout_seconds):
                message = await first if isinstance(first, _Rest) else first
                while True:
                    if message["type"] == "http.disconnect":
                        raise ClientClosedError
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._max_bytes:
                        raise self._too_large()
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
                    message = await self._receive()
        except TimeoutError as error:
            raise BodyTimeoutError(
                f"The request body did not arrive within {self._timeout_seconds:g} seconds."
            ) from error

    def _watch(self) -> None:
        self._pending = cast(_Pending, self._receive())
        self._look()

    def _look(self, _: object = None) -> None:
        """Take one step of the pending `receive`; come back when what it waits for has happened."""
        pending = self._pending
        if pending is None:
            return
        try:
            waits_for = pending.send(None)
        except StopIteration as result:
            self._pending = None
            if result.value["type"] == "http.disconnect":
                self.gone = True
                self._task.cancel()
            else:
                asyncio.get_running_loop().call_soon(self._watch)
            return
        if waits_for is None:
            asyncio.get_running_loop().call_soon(self._look)
        else:
            # What a task does with a future that it is given to wait for.
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(self._look)

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"The request body is larger than {self._max_bytes} bytes, the limit here.")


class _Rest:
    """What is left of a coroutine whose first step was made by hand, to be awaited."""

    def __init__(self, pending: _Pending, waits_for: Any) -> None:
        self._pending = pending
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, Message]:
        waits_for = self._waits_for
        while True:
            try:
                try:
                    yield waits_for
                except BaseException as error:
                    waits_for = self._pending.throw(error)
                else:
                    waits_for = self._pending.send(None)
            except StopIteration as result:
                return cast(Message, result.value)
