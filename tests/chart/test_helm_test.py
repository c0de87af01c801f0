"""The script of `helm test`, against a small real HTTP server."""

import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType

import pytest

from tests.chart.support import CHART

MODELS = b'{"object": "list", "data": [{"id": "toy"}]}'


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("helm_test", CHART / "files" / "helm_test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    return module


@contextmanager
def server(answers: dict[str, Callable[[], tuple[int, bytes]]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[self.path]()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=lambda: http.serve_forever(poll_interval=0.01))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


@pytest.mark.parametrize("body", [MODELS, b'{"object": "list", "data": []}'])
def test_passes_with_models_and_without(script: ModuleType, body: bytes) -> None:
    with server({"/health": lambda: (200, b"{}"), "/v1/models": lambda: (200, body)}) as url:
        script.main(url)


def test_passes_where_a_key_is_asked_for(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with server({"/health": lambda: (200, b"{}"), "/v1/models": lambda: (401, b"{}")}) as url:
        script.main(url)
    assert "asks for an API key" in capsys.readouterr().out


def test_waits_for_endpoints_that_settle(script: ModuleType) -> None:
    states = iter([(503, b""), (503, b""), (200, b"{}")])
    with server({"/health": lambda: next(states), "/v1/models": lambda: (200, MODELS)}) as url:
        script.main(url)


@pytest.mark.parametrize(
    ("health", "models", "words"),
    [
        ((500, b""), (200, MODELS), "did not answer"),
        ((200, b"{}"), (200, b"<html>"), "not a list of models"),
        ((200, b"{}"), (200, b'{"data": [1]}'), "not a list of models"),
    ],
)
def test_fails_with_a_sentence(
    script: ModuleType, health: tuple[int, bytes], models: tuple[int, bytes], words: str
) -> None:
    with (
        server({"/health": lambda: health, "/v1/models": lambda: models}) as url,
        pytest.raises(SystemExit, match=words),
    ):
        script.main(url)
