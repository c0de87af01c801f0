"""The seams of the dead engine on stand-ins of vLLM's classes: who is told, in what order, who leaves."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.failure import death
from structuredllm_engine_patches.failure.cause import Cause, Kind
from structuredllm_engine_patches.failure.leave import EXIT_CODE, Departure
from structuredllm_engine_patches.failure.note import FailureNote
from structuredllm_engine_patches.seams import executor_failure, front_end_failure, node_failure, rank_failure

LOGGER = logging.getLogger("vllm.structuredllm_engine_patches.test")


@pytest.fixture
def note(tmp_path: Path) -> FailureNote:
    return FailureNote(tmp_path / "note")


def parallel(**extra: Any) -> SimpleNamespace:
    return SimpleNamespace(world_size=3, pipeline_parallel_size=3, **extra)


class Worker:
    """A worker whose steps fail on demand."""

    def __init__(self, **extra: Any) -> None:
        self.vllm_config = SimpleNamespace(parallel_config=parallel(**extra))
        self.fails = False

    def execute_model(self, batch: str) -> str:
        if self.fails:
            raise ValueError(f"boom in {batch}")
        return f"did {batch}"

    def add_lora(self, name: str) -> None:
        raise KeyError(name)


def upstream_execute(proc: Any, request: tuple[Any, ...]) -> None:
    """As upstream: errors are swallowed, the reply rank answers."""
    method, args, kwargs, reply_rank = request
    try:
        reply = getattr(proc.worker, method)(*args, **kwargs)
    except Exception as error:
        reply = error
    if reply_rank is None or proc.rank == reply_rank:
        proc.replies.append(reply)


class TestRank:
    def run(
        self, note: FailureNote, monkeypatch: pytest.MonkeyPatch, *, rank: int, method: str, **extra: Any
    ) -> tuple[list[str], Any]:
        left: list[str] = []
        timers: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(rank_failure, "start_timer", lambda s, action: timers.append((s, action)))
        execute = rank_failure.build_execute(upstream_execute, note, LOGGER, lambda _: left.append("now"))
        proc = SimpleNamespace(rank=rank, worker=Worker(**extra), replies=[])
        execute(proc, ("execute_model", ("one",), {}, 2))
        assert (left, timers, note.read()) == ([], [], None)
        proc.worker.fails = True
        execute(proc, (method, ("two",), {}, 2))
        assert not {"execute_model", "add_lora"} & vars(proc.worker).keys(), "nothing is left on the worker"
        for _, action in timers:
            action()
            left.append("later")
        return left, proc

    def test_an_unheard_rank_leaves_at_once(
        self, note: FailureNote, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        left, proc = self.run(note, monkeypatch, rank=1, method="execute_model")
        assert (left, proc.replies) == (["now"], [])
        text = "rank 1 (pipeline stage 1), execute_model: ValueError: boom in two"
        assert note.read() == Cause(Kind.RAISED, text)
        assert "rank 1 (pipeline stage 1) failed in execute_model (ValueError: boom in two)" in caplog.text

    def test_the_reply_rank_hands_its_error_over_first(
        self, note: FailureNote, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left, proc = self.run(note, monkeypatch, rank=2, method="execute_model")
        assert left == ["now", "later"]
        assert proc.replies[0] == "did one"
        assert isinstance(proc.replies[1], ValueError)

    def test_other_calls_end_nothing(self, note: FailureNote, monkeypatch: pytest.MonkeyPatch) -> None:
        left, proc = self.run(note, monkeypatch, rank=2, method="add_lora")
        assert (left, note.read()) == ([], None)
        assert isinstance(proc.replies[1], KeyError)

    def test_fault_tolerance_keeps_the_reply_rank(
        self, note: FailureNote, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left, _ = self.run(note, monkeypatch, rank=2, method="execute_model", enable_fault_tolerance=True)
        assert left == []


class Process:
    """A worker process; one that is stuck ends only by `kill`."""

    def __init__(self, exitcode: int | None, *, stuck: bool = False) -> None:
        self.exitcode = exitcode
        self.stuck = stuck

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.exitcode = -9


class LateProcess(Process):
    """A dead process that has its exit code a moment after its sentinel."""

    def __init__(self, exitcode: int) -> None:
        super().__init__(exitcode)
        self._asked = 0

    @property
    def exitcode(self) -> int | None:
        self._asked += 1
        return self._code if self._asked > 1 else None

    @exitcode.setter
    def exitcode(self, code: int | None) -> None:
        self._code = code


class Pipe:
    """The pipe whose end tells a worker to leave."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def close(self) -> None:
        if self._process.is_alive() and not self._process.stuck:
            self._process.exitcode = 0


def make_executor(events: list[str], processes: list[Process], *, failed: bool, callback: bool = True) -> Any:
    handles = [
        SimpleNamespace(rank=rank, proc=process, death_writer=Pipe(process))
        for rank, process in enumerate(processes)
    ]
    return SimpleNamespace(
        is_failed=failed,
        workers=handles,
        parallel_config=parallel(),
        failure_callback=(lambda: events.append("told")) if callback else None,
        response_mqs=[SimpleNamespace(shutdown=lambda: events.append("woken"))],
    )


class TestExecutor:
    @pytest.fixture
    def timers(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        found: list[float] = []
        monkeypatch.setattr(executor_failure, "start_timer", lambda seconds, _: found.append(seconds))
        return found

    def shutdown(self, events: list[str], note: FailureNote) -> Callable[[Any], None]:
        def upstream(executor: Any) -> None:
            executor.shutting_down = True
            events.append(f"tidied {[h.proc.exitcode for h in executor.workers]}")

        ticks = iter(range(1000))
        return executor_failure.build_shutdown(upstream, note, LOGGER, lambda: next(ticks) * 0.3)

    def test_tells_first_then_ends_the_stuck_ranks(
        self, note: FailureNote, timers: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        events: list[str] = []
        executor = make_executor(events, [Process(-9), Process(None), Process(None, stuck=True)], failed=True)
        self.shutdown(events, note)(executor)
        assert events == ["told", "woken", "tidied [-9, 0, -9]"]
        assert executor.failure_callback is None, "upstream calls it again otherwise"
        assert timers == [executor_failure.LEAVE_SECONDS]
        cause = note.read()
        assert cause is not None
        assert cause.text.startswith("rank 0 (pipeline stage 0) was ended by SIGKILL")
        assert cause.text in caplog.text

    def test_waits_a_moment_for_the_exit_code(self, note: FailureNote, timers: list[float]) -> None:
        events: list[str] = []
        executor = make_executor(events, [LateProcess(-9)], failed=True)
        self.shutdown(events, note)(executor)
        cause = note.read()
        assert cause is not None
        assert "SIGKILL" in cause.text

    def test_tells_without_an_exit_code_too(self, note: FailureNote, timers: list[float]) -> None:
        events: list[str] = []
        executor = make_executor(events, [Process(None)], failed=True)
        self.shutdown(events, note)(executor)
        assert events[0] == "told"

    def test_a_rank_that_left_a_note_is_believed(self, note: FailureNote, timers: list[float]) -> None:
        note.write(Cause(Kind.RAISED, "rank 1: ValueError: boom"))
        events: list[str] = []
        executor = make_executor(events, [Process(0), Process(EXIT_CODE), Process(-6)], failed=True)
        self.shutdown(events, note)(executor)
        assert note.read() == Cause(Kind.RAISED, "rank 1: ValueError: boom")

    def test_an_orderly_stop_is_upstreams(self, note: FailureNote, timers: list[float]) -> None:
        events: list[str] = []
        executor = make_executor(events, [Process(None)], failed=False)
        shutdown = self.shutdown(events, note)
        shutdown(executor)
        try:
            raise SystemExit
        except SystemExit:
            executor.shutting_down = False
            shutdown(executor)
        assert events == ["tidied [None]", "tidied [None]"]
        assert (note.read(), timers) == (None, [])

    def test_a_failing_engine_core_leaves_its_error(self, note: FailureNote, timers: list[float]) -> None:
        events: list[str] = []
        executor = make_executor(events, [Process(None, stuck=True)], failed=False)
        shutdown = self.shutdown(events, note)

        def run_engine_core() -> None:
            try:
                raise TimeoutError("RPC call to sample_tokens timed out.")
            finally:
                shutdown(executor)

        with pytest.raises(TimeoutError):
            run_engine_core()
        assert events == ["tidied [-9]"]
        text = "engine core: TimeoutError: RPC call to sample_tokens timed out."
        assert note.read() == Cause(Kind.RAISED, text)

    def test_an_engine_in_the_callers_process_is_left_alone(
        self, note: FailureNote, timers: list[float]
    ) -> None:
        events: list[str] = []
        executor = make_executor(events, [Process(None)], failed=False, callback=False)
        try:
            raise ValueError("the caller's own")
        except ValueError:
            self.shutdown(events, note)(executor)
        assert (events, note.read(), timers) == (["tidied [None]"], None, [])

    def test_a_second_shutdown_is_upstreams(self, note: FailureNote, timers: list[float]) -> None:
        events: list[str] = []
        executor = make_executor(events, [Process(None)], failed=True)
        shutdown = self.shutdown(events, note)
        shutdown(executor)
        shutdown(executor)
        assert events.count("told") == 1
        assert timers == [executor_failure.LEAVE_SECONDS]


class TestHeadlessNode:
    def monitor(self, note: FailureNote, *, failed: bool, inline: bool) -> list[int]:
        def upstream(executor: Any, inline: bool = False) -> None:
            executor.is_failed = failed

        codes: list[int] = []
        executor = SimpleNamespace(is_failed=False)
        node_failure.build_monitor(upstream, note, LOGGER, codes.append)(executor, inline=inline)
        return codes

    def test_ends_with_a_failing_code_and_the_cause(
        self, note: FailureNote, caplog: pytest.LogCaptureFixture
    ) -> None:
        note.write(Cause(Kind.LOST, "rank 1: lost its leader"))
        assert self.monitor(note, failed=True, inline=True) == [EXIT_CODE]
        assert (
            "fatal error: this node of the engine died: rank 1: lost its leader (exit code 70)" in caplog.text
        )
        assert not note.path.exists()

    @pytest.mark.parametrize(("failed", "inline"), [(False, True), (True, False), (False, False)])
    def test_says_nothing_otherwise(self, note: FailureNote, failed: bool, inline: bool) -> None:
        assert self.monitor(note, failed=failed, inline=inline) == []


class Manager:
    """The front-end's manager of engine core processes."""

    def __init__(self) -> None:
        self.manager_stopped = asyncio.Event()
        self.failed_proc_name: str | None = None

    def finished_procs(self) -> dict[str, int]:
        return {"EngineCore": -11} if self.failed_proc_name else {}


def make_server() -> tuple[Any, Any]:
    resources = SimpleNamespace(engine_manager=Manager())
    core = SimpleNamespace(resources=resources, _finalizer=SimpleNamespace(alive=True))
    client = SimpleNamespace(errored=False, engine_core=core)
    app = SimpleNamespace(state=SimpleNamespace(engine_client=client))
    return SimpleNamespace(config=SimpleNamespace(app=app), should_exit=False, events=[]), client


class TestFrontEnd:
    @pytest.fixture(autouse=True)
    def armed(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        found: list[float] = []
        monkeypatch.setattr(Departure, "arm", lambda _, seconds: found.append(seconds))
        monkeypatch.setattr(front_end_failure, "PERIOD_SECONDS", 0.001)
        monkeypatch.setattr(death, "LINGER_SECONDS", 0.05)
        return found

    async def run(
        self, note: FailureNote, happens: Callable[[Any], None], *, keep_alive: bool = False
    ) -> tuple[Any, float]:
        """Start the server, let something happen to the client, stop the server; return it and the time."""

        async def upstream(server: Any, *_: Any) -> None:
            server.events.append("upstream")

        server, client = make_server()
        await front_end_failure.build_startup(upstream, note, LOGGER, lambda: keep_alive)(server, None)
        await asyncio.sleep(0.01)
        assert not server.should_exit
        happens(client)
        await asyncio.sleep(0.02)
        begun = time.monotonic()
        await front_end_failure.build_shutdown(upstream)(server, None)
        assert server.events == ["upstream", "upstream"]
        return server, time.monotonic() - begun

    async def test_a_dead_engine_ends_the_server_after_a_moment(
        self, note: FailureNote, armed: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        def dies(client: Any) -> None:
            note.write(Cause(Kind.RAISED, "rank 1: ValueError: boom"))
            client.errored = True

        server, seconds = await self.run(note, dies)
        assert server.should_exit
        assert armed == [death.LEAVE_SECONDS]
        assert 0.01 < seconds < 1
        assert "the engine is dead: rank 1: ValueError: boom; /health answers 503" in caplog.text

    async def test_a_dead_engine_core_without_a_note_is_named(
        self, note: FailureNote, armed: list[float], caplog: pytest.LogCaptureFixture
    ) -> None:
        def dies(client: Any) -> None:
            manager = client.engine_core.resources.engine_manager
            manager.failed_proc_name = "EngineCore"
            manager.manager_stopped.set()
            client.errored = True

        await self.run(note, dies)
        assert armed == [death.LEAVE_SECONDS]
        assert "the engine is dead: EngineCore was ended by SIGSEGV" in caplog.text

    async def test_an_orderly_stop_is_no_death(self, note: FailureNote, armed: list[float]) -> None:
        def stops(client: Any) -> None:
            client.engine_core.resources.engine_manager.manager_stopped.set()
            client.errored = True

        server, seconds = await self.run(note, stops)
        assert (server.should_exit, armed) == (False, [])
        assert seconds < 0.04

    async def test_engines_started_elsewhere_are_told_from_a_stop_too(
        self, note: FailureNote, armed: list[float]
    ) -> None:
        def stops(client: Any) -> None:
            client.engine_core.resources.engine_manager = None
            client.engine_core._finalizer.alive = False
            client.errored = True

        await self.run(note, stops)
        assert armed == []

        def dies(client: Any) -> None:
            client.engine_core.resources.engine_manager = None
            client.errored = True

        await self.run(note, dies)
        assert armed == [death.LEAVE_SECONDS]

    async def test_keep_alive_is_respected(self, note: FailureNote, armed: list[float]) -> None:
        def dies(client: Any) -> None:
            client.errored = True

        server, _ = await self.run(note, dies, keep_alive=True)
        assert (server.should_exit, armed) == (False, [])

    async def test_a_server_without_an_engine_is_left_alone(self, note: FailureNote) -> None:
        async def upstream(server: Any) -> None:
            server.started = True

        server = SimpleNamespace(config=SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace())))
        await front_end_failure.build_startup(upstream, note, LOGGER, lambda: False)(server)
        await front_end_failure.build_shutdown(upstream)(server)
        assert server.started


def test_a_departure_ends_the_process_once_with_its_last_words(caplog: pytest.LogCaptureFixture) -> None:
    codes: list[int] = []
    departure = Departure(lambda: "because of this", LOGGER, codes.append)
    departure.leave()
    departure.leave()
    assert codes == [EXIT_CODE]
    assert caplog.messages == ["because of this"]
