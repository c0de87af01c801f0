"""A scriptable fake engine over real sockets: the OpenAI-compatible API plus the engine telemetry port.

Owns the server and its record of what it received. The wire shapes are in `answers`, the modes in `modes`. It
must not import any product package. Usable as a library (`async with FakeEngine(...)`) and as a command
(`python -m tests.fakes.fake_engine --mode cold-reject --port 8000`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.fakes import answers
from tests.fakes.modes import FakeScript, Mode
from tests.fakes.replies import StreamedAnswer, bad_request, close, forever, unauthorized
from tests.fakes.telemetry import DEFAULT_INFO, metrics_text

_MAX_BODY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Received:
    """One completion request as it arrived: path, headers (lower-case names), parsed body."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


class FakeEngine:
    """One fake engine replica.

    Attributes:
        received: every completion request with a JSON object body, in order of arrival.
        in_flight: completions being answered now.
        max_in_flight: the most completions that were ever in flight at once.
        rejects: grammar rejects sent so far.
        disconnects: completions whose client went away before the answer ended.
        info: what /info answers; may be changed while running.
    """

    def __init__(
        self,
        mode: Mode | str = Mode.HEALTHY,
        host: str = "127.0.0.1",
        port: int = 0,
        telemetry_port: int | None = 0,
        model: str = "toy",
        info: Mapping[str, Any] | None = None,
        script: FakeScript | None = None,
    ) -> None:
        """Prepare; nothing listens before `start()`.

        Port 0 = a free port; `telemetry_port` None = no telemetry. 127.x.y.z hosts take fixed ports such as
        8000 and 9464, one engine per address, like pod IPs.
        """
        self.mode = Mode(mode)
        self.host = host
        self.model = model
        self.script = script or FakeScript()
        self.info: dict[str, Any] = dict(DEFAULT_INFO if info is None else info)
        self.received: list[Received] = []
        self.in_flight = 0
        self.max_in_flight = 0
        self.rejects = 0
        self.disconnects = 0
        self.port = port
        self.telemetry_port = telemetry_port
        self._seen_schemas: set[str] = set()
        self._ids = itertools.count(1)
        self._door = asyncio.Event()
        self._runners: list[web.AppRunner] = []

    @property
    def url(self) -> str:
        """Base URL of the API port, without /v1 and without a slash at the end."""
        return f"http://{self.host}:{self.port}"

    @property
    def telemetry_url(self) -> str:
        """Base URL of the telemetry port."""
        return f"http://{self.host}:{self.telemetry_port}"

    @property
    def requests(self) -> list[Mapping[str, Any]]:
        """The bodies of `received`."""
        return [item.body for item in self.received]

    def set_mode(self, mode: Mode | str) -> None:
        """Change the mode for requests that arrive from now on."""
        self.mode = Mode(mode)

    async def start(self) -> None:
        """Listen. Ports chosen by the system are kept, so it can start again at the same address."""
        api = web.Application(client_max_size=_MAX_BODY_BYTES)
        api.router.add_get("/health", self._health)
        api.router.add_get("/v1/models", self._models)
        api.router.add_post("/v1/chat/completions", self._completions)
        api.router.add_post("/v1/completions", self._completions)
        telemetry = web.Application()
        telemetry.router.add_get("/info", self._info)
        telemetry.router.add_get("/metrics", self._metrics)
        self.port = await self._listen(api, self.port)
        if self.telemetry_port is not None:
            self.telemetry_port = await self._listen(telemetry, self.telemetry_port)

    async def stop(self) -> None:
        """Close all connections and stop listening; hanging answers end. Harmless when stopped."""
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _listen(self, app: web.Application, port: int) -> int:
        # handler_cancellation: a client that goes away ends a hanging handler, as vLLM aborts such requests.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.05)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, self.host, port).start()
        bound: int = runner.addresses[0][1]
        return bound

    async def _health(self, request: web.Request) -> web.StreamResponse:
        if self.mode is Mode.DEAD:
            return close(request)
        return web.Response(status=200)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if self.mode is Mode.DEAD:
            return close(request)
        if not self._authorized(request):
            return unauthorized()
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "fake"} for name in self._model_names()
        ]
        return web.json_response({"object": "list", "data": data})

    async def _info(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(self.info)

    async def _metrics(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=metrics_text(self.info, rejects=self.rejects, in_flight=self.in_flight))

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        if not self._authorized(request):
            return unauthorized()
        try:
            body = await request.json()
        except ValueError:
            return bad_request("the body is not JSON")
        if not isinstance(body, dict):
            return bad_request("the body must be a JSON object")
        number = len(self.received)
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(request.path, headers, body))
        mode = self.script.per_request[number] if number < len(self.script.per_request) else self.mode
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            if self.in_flight >= self.script.hold_until_in_flight:
                self._door.set()
            await self._door.wait()
            return await self._answer(request, body, mode)
        except answers.BadRequestError as error:
            return bad_request(str(error))
        except (asyncio.CancelledError, ConnectionError):
            self.disconnects += 1
            raise
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request, body: Mapping[str, Any], mode: Mode) -> web.StreamResponse:
        names = self._model_names()
        if body.get("model") not in names:
            message = f"The model `{body.get('model')}` does not exist; served: {', '.join(names)}."
            return web.json_response(answers.error_body(message, "NotFoundError", 404, "model"), status=404)
        schema = answers.schema_of(body)
        streamed = body.get("stream") is True
        match mode:
            case Mode.DEAD:
                return close(request)
            case Mode.DEAD_MID_STREAM if not streamed:
                return close(request)
            case Mode.BAD_REQUEST:
                return bad_request("this fake engine refuses every request")
            case Mode.OVERLOADED:
                error = answers.error_body("The engine is overloaded.", "ServiceUnavailableError", 503)
                return web.json_response(error, status=503, headers={"Retry-After": "1"})
            case Mode.PLAIN_500:
                return web.Response(status=500, text="upstream failure")
            case Mode.UNSTRUCTURED_500 if schema is None:
                return web.Response(status=500, text="upstream failure")
            case Mode.HANG:
                await forever()
            case Mode.HANG_MID_STREAM if not streamed:
                await forever()
            case Mode.SLOW:
                await asyncio.sleep(self.script.delay_seconds)
        text, finish = answers.text_for(schema, mode)
        rejected = schema is not None and self._rejects(schema, mode)
        chat = request.path.endswith("/chat/completions")
        ident, count = f"fake-{next(self._ids)}", _choices(body)
        if streamed:
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            answer = StreamedAnswer(chat, ident, body["model"], text, finish, count, usage, rejected)
            return await answer.send(request, self.script, mode)
        if rejected:
            return web.json_response(dict(answers.reject_body(self.script)), status=500)
        whole = answers.completion(
            chat=chat, ident=ident, model=body["model"], text=text, finish=finish, n=count
        )
        return web.json_response(whole)

    def _rejects(self, schema: Mapping[str, Any], mode: Mode) -> bool:
        key = json.dumps(schema, sort_keys=True)
        unseen = key not in self._seen_schemas
        self._seen_schemas.add(key)
        limit = self.script.rejects
        cold = mode is Mode.COLD_REJECT and unseen and (limit is None or self.rejects < limit)
        if cold or mode is Mode.ALWAYS_REJECT:
            self.rejects += 1
            return True
        return False

    def _model_names(self) -> tuple[str, ...]:
        return self.script.models or (self.model,)

    def _authorized(self, request: web.Request) -> bool:
        key = self.script.api_key
        return key is None or request.headers.get("Authorization") == f"Bearer {key}"


def _choices(body: Mapping[str, Any]) -> int:
    n = body.get("n", 1)
    if not isinstance(n, int) or not 1 <= n <= 16:
        raise answers.BadRequestError("n must be an integer from 1 to 16")
    return n


async def _serve(options: argparse.Namespace) -> None:
    script = FakeScript(rejects=options.rejects, delay_seconds=options.delay)
    engine = FakeEngine(
        options.mode, options.host, options.port, options.telemetry_port, options.model, script=script
    )
    async with engine:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        print(json.dumps({"url": engine.url, "telemetry_url": engine.telemetry_url}), flush=True)
        await stopped.wait()


def main() -> None:
    """Run a fake engine until SIGINT or SIGTERM; the first line on stdout is JSON with its URLs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.fake_engine", description=main.__doc__)
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], default=Mode.HEALTHY.value)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--telemetry-port", type=int, default=0)
    parser.add_argument("--model", default="toy")
    parser.add_argument(
        "--rejects", type=int, default=8, help="how many cold schemas mode cold-reject rejects"
    )
    parser.add_argument("--delay", type=float, default=0.2, help="seconds before an answer in mode slow")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
