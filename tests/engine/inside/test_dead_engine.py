"""A rank that fails or dies is noticed at once, on the real executor and the real worker processes."""

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

from structuredllm_engine_patches import patch as patching
from structuredllm_engine_patches.failure.note import VARIABLE, open_note
from structuredllm_engine_patches.installation import Installation
from structuredllm_engine_patches.patches import p011_dead_rank, p012_dead_executor
from structuredllm_engine_patches.seams.node_failure import watch_peers
from tests.engine.inside.fake_ranks import STAGES, running_ranks

NOTICED_SECONDS = 2.0
GONE_SECONDS = 4.0


@pytest.fixture(autouse=True)
def own_note(installation: Installation) -> Iterator[None]:
    """The patches hold this process's note; each test starts without a cause in it."""
    note = open_note(os.environ)
    note.remove()
    yield
    note.remove()


def others_hang(stage: int) -> dict[int, str]:
    return {rank: "hang" for rank in range(STAGES) if rank != stage}


@pytest.mark.parametrize("method", ["execute_model", "sample_tokens"])
@pytest.mark.parametrize("stage", range(STAGES))
def test_an_error_in_any_stage_is_noticed(stage: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_ranks(monkeypatch) as ranks:
        assert ranks.step({}, method).result() == STAGES - 1
        begun = time.monotonic()
        future = ranks.step({**others_hang(stage), stage: "raise"}, method)
        with pytest.raises(RuntimeError, match=r"cancelled|boom in 2"):
            future.result()
        assert time.monotonic() - begun < NOTICED_SECONDS
        if stage == STAGES - 1:
            # The engine core got the error as the answer; it ends by it and shuts down.
            try:
                raise RuntimeError("Worker failed with error 'boom in 2'")
            except RuntimeError:
                ranks.executor.shutdown()
        else:
            assert ranks.told.wait(NOTICED_SECONDS)
        assert ranks.all_gone(GONE_SECONDS)
    cause = open_note(os.environ).read()
    assert cause is not None
    assert cause.text == f"rank {stage} (pipeline stage {stage}), {method}: ValueError: boom in {stage}"


@pytest.mark.parametrize("stage", range(STAGES))
def test_a_killed_stage_is_noticed(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_ranks(monkeypatch) as ranks:
        future = ranks.step(others_hang(stage) | {stage: "hang"})
        time.sleep(0.2)
        begun = time.monotonic()
        os.kill(ranks.processes()[stage].pid, signal.SIGKILL)
        assert ranks.told.wait(NOTICED_SECONDS)
        with pytest.raises(RuntimeError, match="cancelled"):
            future.result()
        assert time.monotonic() - begun < NOTICED_SECONDS
        assert ranks.all_gone(GONE_SECONDS)
    cause = open_note(os.environ).read()
    assert cause is not None
    assert cause.text.startswith(f"rank {stage} (pipeline stage {stage}) was ended by SIGKILL")


def test_a_stage_killed_while_idle_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_ranks(monkeypatch) as ranks:
        os.kill(ranks.processes()[0].pid, signal.SIGKILL)
        assert ranks.told.wait(NOTICED_SECONDS)
        assert ranks.all_gone(GONE_SECONDS)


def test_a_utility_that_fails_leaves_the_engine_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_ranks(monkeypatch) as ranks:
        for stage in range(STAGES):
            future = ranks.step({stage: "raise"}, "utility")
            if stage == STAGES - 1:
                with pytest.raises(RuntimeError, match="boom in 2"):
                    future.result()
            else:
                assert future.result() == STAGES - 1
        assert not ranks.told.wait(NOTICED_SECONDS)
        assert ranks.step({}).result() == STAGES - 1
        assert all(process.is_alive() for process in ranks.processes())
    assert open_note(os.environ).read() is None


def test_an_orderly_shutdown_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS", "1")
    with running_ranks(monkeypatch) as ranks:
        assert ranks.step({}).result() == STAGES - 1
        ranks.executor.shutdown()
        assert ranks.all_gone(GONE_SECONDS)
        assert not ranks.told.is_set()
        assert [process.exitcode for process in ranks.processes()] == [0] * STAGES
    assert open_note(os.environ).read() is None


class TestWithoutThePatch:
    """The faults are real: the same situations on the unpatched classes."""

    @pytest.fixture(params=[p011_dead_rank.PATCH, p012_dead_executor.PATCH], ids=lambda patch: patch.id)
    def removed(self, request: Any, installation: Installation) -> Iterator[str]:
        patch = request.param
        fit = patch.fits[installation.vllm_version]
        patching.revert(patch, fit)
        yield patch.id
        patching.apply(patch, fit, installation)

    def test_nobody_is_told_in_time(self, removed: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with running_ranks(monkeypatch) as ranks:
            ranks.step({0: "hang", 1: "raise", 2: "hang"})
            assert not ranks.told.wait(NOTICED_SECONDS)


class TestNodes:
    """The message queue of a leader and of two ranks on other nodes, over TCP."""

    @pytest.fixture
    def queues(self, monkeypatch: pytest.MonkeyPatch) -> tuple[MessageQueue, list[MessageQueue]]:
        leader = MessageQueue(2, 0, connect_ip="127.0.0.1")
        followers = [MessageQueue.create_from_handle(leader.export_handle(), rank) for rank in (1, 2)]
        threads = [threading.Thread(target=queue.wait_until_ready) for queue in (leader, *followers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        return leader, followers

    def test_the_leader_misses_a_follower(self, queues: tuple[MessageQueue, list[MessageQueue]]) -> None:
        leader, followers = queues
        lost = threading.Event()
        watch_peers(leader.remote_socket, lost.set)
        leader.enqueue("step")
        assert [queue.dequeue(timeout=5) for queue in followers] == ["step", "step"]
        assert not lost.wait(0.3)
        followers.pop()
        gc.collect()
        assert lost.wait(NOTICED_SECONDS)

    def test_a_follower_misses_the_leader(self, queues: tuple[MessageQueue, list[MessageQueue]]) -> None:
        leader, followers = queues
        lost = threading.Event()
        watch_peers(followers[0].remote_socket, lost.set)
        assert not lost.wait(0.3)
        leader.remote_socket.close(linger=0)
        assert lost.wait(NOTICED_SECONDS)

    def test_a_port_scan_is_nobodys_end(self, queues: tuple[MessageQueue, list[MessageQueue]]) -> None:
        leader, _ = queues
        lost = threading.Event()
        watch_peers(leader.remote_socket, lost.set)
        port = int(leader.handle.remote_subscribe_addr.rsplit(":", 1)[1])
        for greeting in (
            b"",
            b"GET / HTTP/1.0\r\n\r\n",
            b"\xff" + bytes(200),
            b"\xff" + bytes(8) + b"\x7f\x03",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                stranger.sendall(greeting)
                time.sleep(0.1)
        assert not lost.wait(0.5)

    def test_closing_does_not_wait_for_the_watch(
        self, queues: tuple[MessageQueue, list[MessageQueue]]
    ) -> None:
        leader, followers = queues
        lost = threading.Event()
        watch_peers(leader.remote_socket, lost.set)
        context, socket_ = leader.remote_socket.context, leader.remote_socket
        closing = threading.Thread(target=lambda: (socket_.close(linger=0), context.term()), daemon=True)
        closing.start()
        closing.join(5)
        assert not closing.is_alive()
        del followers


def test_the_note_is_shared_with_child_processes(tmp_path: Path) -> None:
    assert os.environ[VARIABLE]
    assert open_note(os.environ).path == Path(os.environ[VARIABLE])
