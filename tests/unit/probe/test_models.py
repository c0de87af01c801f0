from __future__ import annotations

import httpx
import pytest

from structuredllm_probe.errors import ModelListError
from structuredllm_probe.models import only_model
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.modes import FakeScript


async def test_the_only_model_is_chosen() -> None:
    async with FakeEngine(model="llama") as engine, httpx.AsyncClient(trust_env=False) as client:
        assert await only_model(engine.url, client) == "llama"


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        (FakeScript(models=("a", "b")), "one of: a, b"),
        (FakeScript(models=tuple(f"m{i}" for i in range(99))), r"m19, \.\.\.$"),
        (FakeScript(api_key="k"), "HTTP 401; an API key is needed: --api-key-env VAR"),
    ],
)
async def test_no_choice_is_an_error_that_helps(script: FakeScript, hint: str) -> None:
    async with FakeEngine(script=script) as engine, httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(ModelListError, match=hint):
            await only_model(engine.url, client)


@pytest.mark.parametrize(
    ("body", "hint"),
    [(b"{}", "--model"), (b"nope", "--model"), (b'{"data": []}', "no model"), (b"[1]", "--model")],
)
async def test_odd_lists(body: bytes, hint: str) -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=body))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(ModelListError, match=hint):
            await only_model("http://engine", client)


async def test_a_huge_list_is_not_read() -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=b"x" * (2 * 1024 * 1024)))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(ModelListError, match="more than"):
            await only_model("http://engine", client)
