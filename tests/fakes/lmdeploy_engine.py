"""A fake LMDeploy: the three faults that its guided decoding had before 0.12.2, as the engine made them.

From the project's pull request 4167: ranks and requests shared one matcher (mixed answers, segmentation
faults); rows of requests without a grammar kept the mask of another request of the batch; pooled request
objects kept the grammar of the request before. Each fault shows only when it can: two guided requests in one
batch, a guided and a plain one in one batch, more requests than pooled objects. Owns these faults; the
sockets are `fake_engine`'s. Its script's `hold_until_in_flight` makes sure that requests share a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiohttp import web

from tests.fakes import answers
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import Mode
from tests.fakes.replies import StreamedAnswer, close

Schema = Mapping[str, Any]


class Fault(StrEnum):
    """What is wrong with the guided decoding."""

    NONE = "none"
    SHARED_MATCHER = "shared-matcher"  # guided requests of one batch follow the grammar of the last to come
    SHARED_MATCHER_CRASH = "shared-matcher-crash"  # two guided requests in one batch: the process dies
    MASK_LEAK = "mask-leak"  # a plain request in one batch with a guided one follows that one's grammar
    STALE_GRAMMAR = "stale-grammar"  # a pooled request object keeps the first grammar that it ever had


@dataclass
class Pooled:
    """One request object of the engine's free list."""

    grammar: Schema | None = None


@dataclass
class Row:
    """One request of the batch: its own grammar, and those of the rows that it was decoded with."""

    grammar: Schema | None
    met: list[Schema | None] = field(default_factory=list)


class LmdeployEngine(FakeEngine):
    """One fake LMDeploy replica, without telemetry port.

    Args:
        fault: what is wrong.
        instances: pooled request objects; more requests wait.
        decode_seconds: how long a request is part of the batch.
        more: as for FakeEngine.
    """

    def __init__(
        self,
        fault: Fault | str = Fault.NONE,
        *,
        instances: int = 8,
        decode_seconds: float = 0.02,
        **more: Any,
    ) -> None:
        super().__init__(**{"telemetry_port": None, **more})
        self.fault = Fault(fault)
        self.crashes = 0
        self._decode_seconds = decode_seconds
        self._pool = deque(Pooled() for _ in range(instances))
        self._free = asyncio.Semaphore(instances)
        self._batch: list[Row] = []
        self._shared: Schema | None = None

    def restart(self) -> None:
        """Come back as a new container would: nothing is remembered."""
        self._pool = deque(Pooled() for _ in self._pool)
        self._shared = None
        self.set_mode(Mode.HEALTHY)

    async def _answer(self, request: web.Request, body: Mapping[str, Any], mode: Mode) -> web.StreamResponse:
        if mode is not Mode.HEALTHY or body.get("model") not in self._model_names():
            return await super()._answer(request, body, mode)
        async with self._free:
            pooled = self._pool.popleft()
            try:
                grammar = await self._decode(pooled, answers.schema_of(body))
            finally:
                self._pool.append(pooled)
        if self.mode is Mode.DEAD:
            return close(request)
        text, finish = answers.text_for(grammar, Mode.HEALTHY)
        chat = request.path.endswith("/chat/completions")
        if body.get("stream") is True:
            answer = StreamedAnswer(chat, "fake", body["model"], text, finish, 1, usage=False, rejected=False)
            return await answer.send(request, self.script, mode)
        whole = answers.completion(
            chat=chat, ident="fake", model=body["model"], text=text, finish=finish, n=1
        )
        return web.json_response(whole)

    async def _decode(self, pooled: Pooled, wanted: Schema | None) -> Schema | None:
        """Be part of the batch for a while; return the grammar that the answer follows in the end."""
        if self.fault is not Fault.STALE_GRAMMAR or pooled.grammar is None:
            pooled.grammar = wanted
        row = Row(pooled.grammar)
        for other in self._batch:
            other.met.append(row.grammar)
            row.met.append(other.grammar)
        if row.grammar is not None:
            self._shared = row.grammar
        self._batch.append(row)
        try:
            await asyncio.sleep(self._decode_seconds)
        finally:
            self._batch.remove(row)
        return self._followed(row)

    def _followed(self, row: Row) -> Schema | None:
        guided_met = [grammar for grammar in row.met if grammar is not None]
        if not guided_met:
            return row.grammar
        if self.fault is Fault.MASK_LEAK and row.grammar is None:
            return guided_met[-1]
        if row.grammar is None:
            return None
        if self.fault is Fault.SHARED_MATCHER:
            return self._shared
        if self.fault is Fault.SHARED_MATCHER_CRASH:
            self.crashes += 1
            self.set_mode(Mode.DEAD)
        return row.grammar
