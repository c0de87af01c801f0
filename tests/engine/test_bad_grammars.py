"""One bad constraint costs its own request an error and nobody else anything: the real engine, one start."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.bad_grammars import BAD_REQUEST, CASES, OK, Case, to_json
from tests.engine.bomb_latency import measure
from tests.engine.client import ONCE
from tests.engine.engine_process import MODEL_NAME, Engine, log_folder, running_engine

TIMEOUT_SECONDS = 2.0
ENVIRONMENT = {
    "STRUCTUREDLLM_PATCHES": "required",
    "STRUCTUREDLLM_COMPILE_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS),
    "STRUCTUREDLLM_COMPILE_MEMORY_BYTES": str(512 << 20),
}
RECORD = log_folder() / "bad-grammars.txt"
"""How each ended, for people."""

ANSWER_SECONDS = 8.0
"""For a request that ends at its limit: the limits of front-end and engine core one after the other, and a
second or two on a busy machine."""


@pytest.fixture(scope="module")
def engine(engine_env: Path, toy_model: Path) -> Iterator[Engine]:
    RECORD.unlink(missing_ok=True)
    with running_engine(
        "bad-grammars", engine_env, toy_model, env=ENVIRONMENT, arguments=("--async-scheduling",)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine.url, timeout=60, limits=ONCE) as made:
        yield made


def chat(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me about ann."}]
    return {"model": MODEL_NAME, "messages": messages, "max_tokens": 8, "temperature": 1.0, **more}


def send(client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    # httpx writes JSON as UTF-8, which has no lone surrogates; a client can send them all the same.
    return client.post(
        "/v1/chat/completions", content=to_json(body), headers={"content-type": "application/json"}
    )


def end_of(response: httpx.Response) -> str:
    if response.status_code == 200:
        return OK
    body = response.json()
    assert response.status_code == 400, body
    if "error" not in body:
        return BAD_REQUEST
    error = body["error"]
    assert error["message"]
    return BAD_REQUEST if error["type"] in (BAD_REQUEST, "Bad Request") else str(error["type"])


def assert_serves(client: httpx.Client, name: str) -> None:
    """A normal structured request, with a schema that nobody has sent, is answered and valid."""
    schema = {"type": "object", "properties": {"ok": {"const": name[:12]}}, "required": ["ok"]}
    body = {"type": "json_schema", "json_schema": {"name": "x", "schema": {**schema, "title": name}}}
    response = send(client, chat(response_format=body, max_tokens=60))
    assert response.status_code == 200, response.text
    assert json.loads(response.json()["choices"][0]["message"]["content"]) == {"ok": name[:12]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_grammar_harms_only_its_own_request(client: httpx.Client, case: Case) -> None:
    response = send(client, chat(**case.body))
    with RECORD.open("a") as file:
        file.write(f"{case.name}: {response.status_code} after {response.elapsed} {response.text[:200]}\n")
    assert end_of(response) in case.ends, response.text[:500]
    assert response.elapsed.total_seconds() < ANSWER_SECONDS
    assert_serves(client, case.name)


def test_in_a_stream_the_client_hears_of_it_too(client: httpx.Client) -> None:
    bad = [case for case in CASES if case.name in ("invalid regex", "pattern that explodes")]
    for case in bad:
        response = send(client, chat(**case.body, stream=True))
        if response.status_code == 200:
            events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
            assert json.loads(events[-2])["error"]["type"] in case.ends
        else:
            assert end_of(response) in case.ends
    assert len(bad) == 2


@pytest.mark.skipif(os.environ.get("STRUCTUREDLLM_FULL") != "1", reason="STRUCTUREDLLM_FULL=1 runs it")
def test_ten_bombs_fail_alone(engine: Engine) -> None:
    """What they do to the others' latency is a benchmark's business: `make soak-bombs`."""
    found = measure(engine.url, requests=60, bombs=10)
    with RECORD.open("a") as file:
        file.write(f"{found}\n")
    assert found.lost == [], found
    assert found.bomb_ends <= {"grammar_compile_timeout", "grammar_compile_memory"}, found
    assert found.bombs >= 10
    assert found.failed == 0, found


def test_nothing_was_left_behind(engine: Engine, client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    assert engine.metric("structuredllm_engine_compile_workers_busy") == 0
    assert engine.metric("structuredllm_engine_compile_workers_lost_total") >= 1
    assert engine.metric("structuredllm_engine_compile_failures_total") >= 1
    assert engine.metric("structuredllm_engine_compile_seconds_count") > 10
    assert engine.metric("structuredllm_engine_stale_mask_total") == 0
    assert "Traceback (most recent call last)" not in "".join(
        line for line in engine.log.read_text(errors="replace").splitlines() if "structuredllm" in line
    )
    workers = [pid for pid in os.listdir("/proc") if pid.isdigit() and is_compile_process(pid)]
    assert len(workers) <= 12, "two fork servers with two idle workers each, and what other tests run"


def is_compile_process(pid: str) -> bool:
    try:
        return "structuredllm_engine_patches.compiling" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
