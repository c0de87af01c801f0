"""Counters, /metrics, /info and the telemetry port."""

import json
import logging
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.seams.async_guard import ATTRIBUTE
from structuredllm_engine_patches.seams.core_telemetry import build_loop, observe, read_facts
from structuredllm_engine_patches.telemetry.exposition import EngineView, render_info, render_metrics
from structuredllm_engine_patches.telemetry.metrics import GRAMMAR_REJECTS, STALE_MASKS
from structuredllm_engine_patches.telemetry.observation import Observation, PatchState, State
from structuredllm_engine_patches.telemetry.server import MAX_CONNECTIONS, TelemetryServer, start_server

LOGGER = logging.getLogger("test")
CLOCK = iter(range(1000)).__next__
PATCHES = (PatchState("p001", State.ACTIVE), PatchState("p002", State.SKIPPED, "does not fit"))


class FakeStep:
    def __init__(self, *ids: str) -> None:
        self.num_scheduled_tokens = dict.fromkeys(ids, 1)
        self.has_structured_output_requests = bool(ids)
        self.total_num_scheduled_tokens = len(ids)
        self.scheduled_new_reqs: list[Any] = []
        self.scheduled_cached_reqs = SimpleNamespace(resumed_req_ids=set[str]())


def make_core(*, backend: str = "xgrammar", accepted: bool = True) -> Any:
    request = SimpleNamespace(
        use_structured_output=True,
        is_prefill_chunk=False,
        status=SimpleNamespace(name="RUNNING"),
    )
    return SimpleNamespace(
        vllm_config=SimpleNamespace(
            parallel_config=SimpleNamespace(
                tensor_parallel_size=2, pipeline_parallel_size=3, data_parallel_size=1, world_size=6
            ),
            scheduler_config=SimpleNamespace(async_scheduling=True),
            model_config=SimpleNamespace(model="/models/toy"),
            structured_outputs_config=SimpleNamespace(backend=backend),
        ),
        scheduler=SimpleNamespace(
            requests={"a": request},
            schedule=lambda step: step,
            update_from_output=lambda step, output: {},
            get_grammar_bitmask=lambda step: "mask",
        ),
        structured_output_manager=SimpleNamespace(accept_tokens=lambda request, tokens: accepted),
        batch_queue=[(None, FakeStep("a")), (None, FakeStep())],
        batch_queue_size=3,
    )


def make_engine_view(core: Any, observation: Observation) -> EngineView:
    facts = read_facts(core.vllm_config, vllm_version="0.32.0", package_version="0.1.0", policy="required")
    return EngineView(facts, lambda: PATCHES, observation)


def structured_request(backend: str) -> Any:
    params = SimpleNamespace(structured_outputs=SimpleNamespace(_backend=backend))
    return SimpleNamespace(sampling_params=params)


def test_info_has_the_agreed_shape() -> None:
    core = make_core()
    assert json.loads(render_info(make_engine_view(core, Observation()))) == {
        "vllm_version": "0.32.0",
        "package_version": "0.1.0",
        "policy": "required",
        "patches": [
            {"id": "p001", "state": "active", "reason": ""},
            {"id": "p002", "state": "skipped", "reason": "does not fit"},
        ],
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 3,
        "data_parallel_size": 1,
        "world_size": 6,
        "async_scheduling": True,
        "async_scheduling_forced_off": "",
        "model": "/models/toy",
        "structured_outputs_backend": "xgrammar",
    }


def test_metrics_show_rejects_by_backend_stale_masks_and_the_queue() -> None:
    core = make_core(accepted=False)
    observation = Observation()
    observe(core, observation, LOGGER, CLOCK)
    core._structuredllm_drain = SimpleNamespace(drained_batches=7)
    assert core.structured_output_manager.accept_tokens(structured_request("guidance"), [1]) is False
    assert core.structured_output_manager.accept_tokens(structured_request("brand-new"), [1]) is False
    text = render_metrics(make_engine_view(core, observation)).decode()
    for line in (
        'structuredllm_engine_patch_info{id="p001",state="active",vllm="0.32.0"} 1.0',
        'structuredllm_engine_patch_info{id="p002",state="skipped",vllm="0.32.0"} 1.0',
        'structuredllm_engine_grammar_rejects_total{backend="xgrammar"} 0.0',
        'structuredllm_engine_grammar_rejects_total{backend="guidance"} 1.0',
        'structuredllm_engine_grammar_rejects_total{backend="other"} 1.0',
        "structuredllm_engine_stale_mask_total 0.0",
        "structuredllm_engine_drained_batches_total 7.0",
        "structuredllm_engine_in_flight_steps 2.0",
        "structuredllm_engine_pipeline_slots 3.0",
        "structuredllm_engine_pipeline_slots_used 1.0",
        'structuredllm_engine_structured_requests{state="running"} 1.0',
        'structuredllm_engine_structured_requests{state="waiting_for_grammar"} 0.0',
    ):
        assert line in text.replace('vllm="0.32.0",state="active"', 'state="active",vllm="0.32.0"').replace(
            'vllm="0.32.0",state="skipped"', 'state="skipped",vllm="0.32.0"'
        ), line


def test_an_engine_that_is_not_watched_shows_no_zeros() -> None:
    core = make_core()
    facts = read_facts(core.vllm_config, vllm_version="9.9.9", package_version="0.1.0", policy="optional")
    text = render_metrics(EngineView(facts, lambda: PATCHES, None)).decode()
    assert "structuredllm_engine_topology_info" in text
    assert 'structuredllm_engine_patch_info{id="p001"' in text
    assert "stale_mask" not in text


def test_why_asynchronous_scheduling_is_off_is_in_info() -> None:
    core = make_core()
    vars(core.vllm_config)[ATTRIBUTE] = "no drain"
    assert json.loads(render_info(make_engine_view(core, Observation())))["async_scheduling_forced_off"] == (
        "no drain"
    )


@pytest.mark.parametrize(
    ("status", "structured", "rejects"),
    [("FINISHED_ERROR", True, 1), ("FINISHED_ERROR", False, 0), ("FINISHED_STOPPED", True, 0)],
)
def test_rejects_are_counted_where_the_manager_accepts_no_tokens(
    status: str, structured: bool, rejects: int
) -> None:
    """vLLM 0.22: the scheduler asks the grammar itself and stops the request with an error."""
    core = make_core()
    core.structured_output_manager = SimpleNamespace()
    core.scheduler._handle_stopped_request = lambda request: True
    observation = Observation()
    observe(core, observation, LOGGER, CLOCK)
    request = structured_request("xgrammar")
    request.use_structured_output, request.status = structured, SimpleNamespace(name=status)
    assert core.scheduler._handle_stopped_request(request) is True
    assert observation.value(GRAMMAR_REJECTS, backend="xgrammar") == rejects


def test_accepted_tokens_are_not_counted() -> None:
    core = make_core()
    observation = Observation()
    observe(core, observation, LOGGER, CLOCK)
    assert core.structured_output_manager.accept_tokens(structured_request("xgrammar"), [1]) is True
    assert observation.value(GRAMMAR_REJECTS, backend="xgrammar") == 0


def test_a_mask_built_before_the_earlier_step_was_processed_is_counted() -> None:
    core = make_core()
    observation = Observation()
    observe(core, observation, LOGGER, CLOCK)
    first, second = FakeStep("a"), FakeStep("a")
    core.scheduler.schedule(first)
    assert core.scheduler.get_grammar_bitmask(first) == "mask"
    core.scheduler.schedule(second)
    assert observation.value(STALE_MASKS) == 0
    core.scheduler.get_grammar_bitmask(second)
    assert observation.value(STALE_MASKS) == 1
    core.scheduler.update_from_output(first, None)
    core.scheduler.get_grammar_bitmask(second)
    assert observation.value(STALE_MASKS) == 1


def test_a_request_that_ended_needs_no_mask() -> None:
    core = make_core()
    observation = Observation()
    observe(core, observation, LOGGER, CLOCK)
    # Both kept: a step is known by its identity.
    first, second = FakeStep("a"), FakeStep("a")
    core.scheduler.schedule(first)
    core.scheduler.schedule(second)
    core.scheduler.requests.clear()
    core.scheduler.get_grammar_bitmask(second)
    assert observation.value(STALE_MASKS) == 0


@pytest.fixture
def server() -> Iterator[TelemetryServer]:
    made = start_server("127.0.0.1", free_port(), {"/info": ("application/json", lambda: b"{}")}, LOGGER)
    assert made is not None
    yield made
    made.shutdown()
    made.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(server: TelemetryServer, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.server_address[1]}{path}", timeout=5
        ) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_serves_known_pages_only(server: TelemetryServer) -> None:
    assert get(server, "/info?x=1") == (200, b"{}")
    assert get(server, "/") == (404, b"try /info\n")


def test_idle_connections_are_bounded_and_do_not_block_for_ever(server: TelemetryServer) -> None:
    idle = [socket.create_connection(server.server_address[:2]) for _ in range(MAX_CONNECTIONS)]  # type: ignore[arg-type]
    with socket.create_connection(server.server_address[:2]) as extra:  # type: ignore[arg-type]
        extra.settimeout(5)
        assert extra.recv(1) == b""
    for connection in idle:
        connection.close()


def test_a_taken_port_is_logged_and_not_raised(
    server: TelemetryServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert start_server("127.0.0.1", int(server.server_address[1]), {}, LOGGER) is None
    assert "cannot be bound" in caplog.text
    assert start_server("127.0.0.1", 0, {}, LOGGER) is None


def test_the_engine_is_opened_before_its_loop_starts() -> None:
    events: list[str] = []
    loop = build_loop(lambda core: events.append(f"loop {core}"), lambda core: events.append(f"open {core}"))
    loop("core")
    assert events == ["open core", "loop core"]
