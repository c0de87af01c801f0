"""Runs a burst: plans, sends with the asked concurrency, stops at the deadline, reports.

Owns the tasks and the client of a burst: when `run_burst` returns or is cancelled, no task of it runs on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import httpx

from structuredllm_probe.classify import Result, result_of
from structuredllm_probe.config import BurstConfig, server_root
from structuredllm_probe.exchange import Exchange
from structuredllm_probe.plan import PlannedRequest, plan_burst
from structuredllm_probe.verdict import BurstReport, report_of

_CONNECT_SECONDS = 10.0

Progress = Callable[[int, int], None]


async def run_burst(
    base_url: str,
    model: str,
    config: BurstConfig,
    *,
    client: httpx.AsyncClient | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> BurstReport:
    """Send a cold structured burst to an OpenAI-compatible server and judge the answers.

    Args:
        base_url: address of the server, with or without /v1 at the end.
        model: the served model's name.
        config: what to send, and the limit of the whole burst in seconds.
        client: used and left open; it must allow `config.concurrency` + 1 connections. None: an own client
            that ignores proxy settings of the environment, as pod addresses need.
        progress: called with (answered, all) after each answer.
        clock: seconds, for the report's duration only.

    Returns:
        The report; every trouble with the server is in it, not raised.

    Raises:
        ConfigError: the URL is unusable.
    """
    root = server_root(base_url)
    if client is not None:
        return await _run(root, model, config, client, progress, clock)
    limits = httpx.Limits(
        max_connections=config.concurrency + 1, max_keepalive_connections=config.concurrency
    )
    async with httpx.AsyncClient(limits=limits, trust_env=False) as own:
        return await _run(root, model, config, own, progress, clock)


async def _run(
    root: str,
    model: str,
    config: BurstConfig,
    client: httpx.AsyncClient,
    progress: Progress | None,
    clock: Callable[[], float],
) -> BurstReport:
    planned = plan_burst(model, config)
    started = clock()
    sender = _Sender(root, client, config, planned, progress)
    results, health_answered = await sender.send_all()
    return report_of(
        results,
        duration_seconds=clock() - started,
        timeout_seconds=config.timeout_seconds,
        health_answered=health_answered,
    )


class _Sender:
    """Sends the planned requests with a fixed number of workers."""

    def __init__(
        self,
        root: str,
        client: httpx.AsyncClient,
        config: BurstConfig,
        planned: tuple[PlannedRequest, ...],
        progress: Progress | None,
    ) -> None:
        self._root = root
        self._client = client
        self._config = config
        self._planned = planned
        self._progress = progress
        # Only connecting has a limit of its own; the deadline of the burst bounds everything else.
        self._timeout = httpx.Timeout(None, connect=min(_CONNECT_SECONDS, config.timeout_seconds))
        self._exchanges: dict[int, Exchange] = {}
        self._results: dict[int, Result] = {}
        self._health_answered = False

    async def send_all(self) -> tuple[list[Result], bool]:
        """Return one result per planned request, in order, and whether /health answered."""
        waiting = iter(self._planned)
        health = asyncio.create_task(self._ask_health())
        workers = [
            asyncio.create_task(self._work(waiting))
            for _ in range(min(self._config.concurrency, len(self._planned)))
        ]
        try:
            await asyncio.wait(
                workers, timeout=self._config.timeout_seconds, return_when=asyncio.FIRST_EXCEPTION
            )
        finally:
            for task in (*workers, health):
                task.cancel()
            ended = await asyncio.gather(*workers, health, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome
        return [self._result(request) for request in self._planned], self._health_answered

    async def _work(self, waiting: Iterator[PlannedRequest]) -> None:
        url = f"{self._root}/v1/chat/completions"
        for request in waiting:
            exchange = Exchange(request)
            self._exchanges[request.index] = exchange
            answer = await exchange.run(self._client, url, self._timeout)
            self._results[request.index] = result_of(answer, request.schema)
            if self._progress is not None:
                self._progress(len(self._results), len(self._planned))

    async def _ask_health(self) -> None:
        """Tell an engine that hangs from an address where nothing is; any status counts as an answer."""
        try:
            async with self._client.stream("GET", f"{self._root}/health", timeout=self._timeout):
                self._health_answered = True
        except httpx.HTTPError:
            return

    def _result(self, request: PlannedRequest) -> Result:
        result = self._results.get(request.index)
        if result is not None:
            return result
        # Cancelled at the deadline, or no worker came to it: it is as late as the others.
        exchange = self._exchanges.get(request.index, Exchange(request))
        return result_of(exchange.late_answer(), request.schema)
