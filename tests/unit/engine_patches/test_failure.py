"""Which failures end an engine, what is said of them, and who is believed. Pure parts and the note."""

from pathlib import Path

import pytest

from structuredllm_engine_patches.failure import death
from structuredllm_engine_patches.failure.cause import (
    MAX_TEXT,
    Cause,
    Kind,
    decode,
    encode,
    ended,
    raised,
    rank_name,
    root_cause,
)
from structuredllm_engine_patches.failure.note import MAX_BYTES, VARIABLE, FailureNote, open_note
from structuredllm_engine_patches.failure.peers import MAX_STRANGERS, Event, Peers
from structuredllm_engine_patches.failure.verdict import Verdict, judge


@pytest.mark.parametrize("method", ["execute_model", "sample_tokens", "execute_dummy_batch"])
@pytest.mark.parametrize(
    ("rank", "reply_rank", "fault_tolerant", "expected"),
    [
        (0, 2, False, Verdict.LEAVE),
        (1, 2, False, Verdict.LEAVE),
        (2, 2, False, Verdict.LEAVE_AFTER_REPLY),
        (1, None, False, Verdict.LEAVE_AFTER_REPLY),
        (1, 2, True, Verdict.LEAVE),
        (2, 2, True, Verdict.GO_ON),
    ],
)
def test_a_failed_step_ends_its_rank(
    method: str, rank: int, reply_rank: int | None, fault_tolerant: bool, expected: Verdict
) -> None:
    verdict = judge(method, rank=rank, reply_rank=reply_rank, fault_tolerant=fault_tolerant)
    assert verdict is expected


@pytest.mark.parametrize("method", ["add_lora", "take_draft_token_ids", "check_health", "nonsense", b"code"])
@pytest.mark.parametrize("reply_rank", [None, 0, 2])
def test_any_other_failed_call_ends_nothing(method: object, reply_rank: int | None) -> None:
    assert judge(method, rank=0, reply_rank=reply_rank, fault_tolerant=False) is Verdict.GO_ON


@pytest.mark.parametrize(
    ("rank", "world_size", "stages", "stage"), [(0, 3, 3, 0), (2, 3, 3, 2), (5, 8, 4, 2), (7, 8, 2, 1)]
)
def test_a_rank_is_called_by_its_stage(rank: int, world_size: int, stages: int, stage: int) -> None:
    assert rank_name(rank, world_size=world_size, stages=stages) == f"rank {rank} (pipeline stage {stage})"


def test_causes_are_one_bounded_line() -> None:
    cause = raised("rank 1 (pipeline stage 1), execute_model", ValueError("two\nlines " + "x" * 5000))
    assert cause.text.startswith("rank 1 (pipeline stage 1), execute_model: ValueError: two lines x")
    assert len(cause.text) == MAX_TEXT
    assert "\n" not in encode(cause)
    assert decode(encode(cause)) == [cause]
    assert ended("rank 0", -9) == Cause(
        Kind.ENDED, "rank 0 was ended by SIGKILL (often the kernel, out of memory)"
    )
    assert ended("rank 0", -99).text == "rank 0 was ended by signal 99"
    assert ended("rank 0", 3).text == "rank 0 ended with exit code 3"


def test_the_first_domino_is_believed() -> None:
    boom = raised("rank 1", ValueError("boom"))
    late = raised("engine core", RuntimeError("Executor failed."))
    broken = raised("rank 0", RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1"))
    killed = ended("rank 2", -9)
    assert (boom.kind, broken.kind, killed.kind) == (Kind.RAISED, Kind.LOST, Kind.ENDED)
    assert root_cause([]) is None
    assert root_cause([broken]) == broken
    assert root_cause([broken, killed]) == killed
    assert root_cause([broken, killed, boom, late]) == boom


def test_half_written_lines_are_left_out() -> None:
    good = ended("rank 0", -9)
    assert decode(f'nonsense\n{{"kind": "other", "text": "x"}}\n[]\n{encode(good)}\n{{"kind": "ra') == [good]


def test_the_note_is_shared_by_the_environment_and_leaves_nothing_when_all_is_well(tmp_path: Path) -> None:
    environ = {VARIABLE: str(tmp_path / "note")}
    writer, reader = open_note(environ), open_note(environ)
    assert reader.read() is None
    assert list(tmp_path.iterdir()) == []
    writer.write(raised("rank 0", OSError("Connection reset by peer")))
    writer.write(ended("rank 1", -11))
    assert reader.read() == ended("rank 1", -11)
    assert (tmp_path / "note").stat().st_mode & 0o077 == 0
    reader.remove()
    reader.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_first_process_names_the_note() -> None:
    environ: dict[str, str] = {}
    first = open_note(environ)
    assert open_note(environ).path == first.path
    assert open_note({}).path != first.path
    assert not first.path.exists()


def test_a_note_that_cannot_be_written_or_is_huge_does_no_harm(tmp_path: Path) -> None:
    FailureNote(tmp_path / "no" / "folder").write(ended("rank 0", -9))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    FailureNote(link).write(ended("rank 0", -9))
    assert not (tmp_path / "elsewhere").exists()
    huge = FailureNote(tmp_path / "huge")
    huge.write(ended("rank 1", -9))
    with huge.path.open("ab") as file:
        file.write(b"x" * (2 * MAX_BYTES))
    assert huge.read() == ended("rank 1", -9)


def test_a_peer_that_goes_is_missed() -> None:
    assert Peers().is_lost(Event.GONE, 14)


def test_strangers_end_nobodys_engine() -> None:
    peers = Peers()
    # Port scans, one after the other and two at a time, on numbers that are used again.
    scans = [(Event.CAME, 20), (Event.GONE, 20), (Event.CAME, 20), (Event.CAME, 21), (Event.GONE, 20)]
    assert not any(peers.is_lost(event, connection) for event, connection in scans)
    assert peers.is_lost(Event.GONE, 14), "a peer, while a stranger is connected"
    assert not peers.is_lost(Event.GONE, 21)
    assert peers.is_lost(Event.GONE, 20), "the number of a stranger that is gone already"


def test_the_memory_of_strangers_is_bounded() -> None:
    peers = Peers()
    assert not any(peers.is_lost(Event.CAME, number) for number in range(2 * MAX_STRANGERS))
    assert not peers.is_lost(Event.GONE, 0)
    assert peers.is_lost(Event.GONE, MAX_STRANGERS + 1)


@pytest.mark.parametrize(
    ("errored", "failed_process", "stopping", "expected"),
    [
        (False, "", False, False),
        (True, "", False, True),  # the engine core reported its death and is still tidying up
        (True, "EngineCore", False, True),
        (True, "EngineCore", True, True),  # seen by the monitor of its process, which then stops the rest
        (True, "", True, False),  # an orderly stop
        (False, "", True, False),
    ],
)
def test_a_stop_is_no_death(errored: bool, failed_process: str, stopping: bool, expected: bool) -> None:
    assert death.is_dead(death.EngineState(errored, failed_process, stopping)) is expected


def test_the_server_answers_a_moment_longer() -> None:
    assert death.linger_left(seen_at=10.0, now=10.25) == death.LINGER_SECONDS - 0.25
    assert death.linger_left(seen_at=10.0, now=99.0) == 0.0
    assert death.LINGER_SECONDS < death.LEAVE_SECONDS
