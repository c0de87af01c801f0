"""The downloader against a fake hub: whole, resumed, checked, shared, offline; failures have reasons."""

import errno
import json
import os
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from structuredllm_operator.download import __main__ as command
from structuredllm_operator.download.errors import DownloadError, from_os_error
from structuredllm_operator.download.fetch import fetch
from structuredllm_operator.download.folder import STATE, Complete, Folder
from structuredllm_operator.download.hub import Hub
from structuredllm_operator.download.progress import Progress, served
from tests.fakes.fake_hub import COMMIT, FakeHub

WEIGHTS = bytes(range(256)) * 4000
FILES = {"config.json": b"{}", "sub/model.safetensors": WEIGHTS, "tokenizer.json": b"t" * 90}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub with a small model."""
    with FakeHub(files=dict(FILES)) as running:
        yield running


class Run:
    """One download after another into the same folder; pauses are noted, not waited for."""

    def __init__(self, hub: FakeHub, path: Path, token: str = "") -> None:
        self.hub, self.path, self.token = hub, path, token
        self.waits: list[float] = []
        self.progress = Progress()

    def __call__(self, revision: str = "main", *, offline: bool = False) -> Complete:
        self.progress = Progress()
        with httpx.Client(follow_redirects=True) as client:
            port = Hub(client, endpoint=self.hub.url, token=self.token, sleep=self.waits.append)
            folder = Folder(self.path, repo=self.hub.repo, revision=revision)
            return fetch(
                None if offline else port, folder, self.progress, repo=self.hub.repo, revision=revision
            )

    def fails(self, revision: str = "main", *, offline: bool = False) -> DownloadError:
        """Run a download that must fail."""
        with pytest.raises(DownloadError) as caught:
            self(revision, offline=offline)
        return caught.value


@pytest.fixture
def run(hub: FakeHub, tmp_path: Path) -> Run:
    """Downloads from the hub."""
    return Run(hub, tmp_path / "org--model@main")


def contents(path: Path) -> dict[str, bytes]:
    """Return the model's files, without the downloader's own."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and STATE not in file.parts
    }


def test_a_model_arrives_whole_and_is_fetched_once(hub: FakeHub, run: Run) -> None:
    found = run()
    assert contents(run.path) == FILES
    assert found == Complete(COMMIT, sum(len(body) for body in FILES.values()))
    assert run.progress.snapshot() == {
        "phase": "Downloading",
        "bytes": found.size,
        "totalBytes": found.size,
    }
    assert not (run.path / STATE / "parts").exists()
    asked = len(hub.asked)
    hub.gated = True
    assert run() == found, "a complete folder needs no hub"
    assert len(hub.asked) == asked


def test_a_cut_transfer_goes_on_where_it_stopped(hub: FakeHub, run: Run) -> None:
    hub.files = {"model.safetensors": WEIGHTS}
    hub.cut_after = [300_000]
    run()
    assert contents(run.path) == hub.files
    assert hub.asked == [("model.safetensors", ""), ("model.safetensors", "bytes=300000-")]
    assert run.waits == [1.0]


def test_a_killed_download_goes_on_in_the_next_pod(hub: FakeHub, run: Run) -> None:
    hub.files = {"model.safetensors": WEIGHTS}
    hub.cut_after = [100_000] * 5
    assert run.fails().reason == "HubUnreachable"
    hub.asked.clear()
    run()
    assert hub.asked == [("model.safetensors", "bytes=500000-")]
    assert contents(run.path) == hub.files


def test_finished_files_are_not_fetched_again_after_a_kill(hub: FakeHub, run: Run) -> None:
    run()
    (run.path / STATE / "complete.json").unlink()
    (run.path / "sub/model.safetensors").unlink()
    hub.asked.clear()
    run()
    assert hub.asked == [("sub/model.safetensors", "")]


def test_a_file_of_the_same_size_but_another_content_is_fetched(hub: FakeHub, run: Run) -> None:
    """A branch may move between two tries; a size says nothing."""
    run()
    (run.path / STATE / "complete.json").unlink()
    hub.files["tokenizer.json"] = b"u" * 90
    run()
    assert contents(run.path) == hub.files


def test_a_hub_that_cannot_resume_starts_the_file_again(hub: FakeHub, run: Run) -> None:
    hub.files = {"model.safetensors": WEIGHTS}
    hub.cut_after, hub.ignores_ranges = [300_000], True
    run()
    assert contents(run.path) == hub.files
    assert run.progress.snapshot()["bytes"] == len(WEIGHTS)


@pytest.mark.parametrize("name", ["sub/model.safetensors", "config.json"])
def test_a_wrong_checksum_is_noticed_and_the_file_fetched_again(hub: FakeHub, run: Run, name: str) -> None:
    hub.wrong = [name]
    run()
    assert contents(run.path) == FILES
    assert len([one for one in hub.asked if one[0] == name]) == 2


def test_a_checksum_that_stays_wrong_leaves_no_file(hub: FakeHub, run: Run) -> None:
    hub.wrong = ["sub/model.safetensors"] * 2
    error = run.fails()
    assert error.reason == "ChecksumMismatch"
    assert "sub/model.safetensors of org/model" in error.message
    assert "check the proxy or mirror" in error.message
    assert not (run.path / "sub/model.safetensors").exists()


def test_other_forms_of_the_weights_are_left_out(hub: FakeHub, run: Run) -> None:
    more = {"pytorch_model.bin": b"x", "original/consolidated.safetensors": b"x", "model.onnx": b"x"}
    hub.files = {**FILES, **more}
    run()
    assert contents(run.path) == FILES
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    shutil.rmtree(run.path)
    run()
    assert contents(run.path) == hub.files, "without safetensors all is fetched"


def test_a_missing_revision(run: Run) -> None:
    error = run.fails("v9")
    assert error.reason == "RevisionNotFound"
    assert "'v9'" in error.message
    assert error.message.endswith("correct spec.model.revision")


def test_revisions_with_slashes_are_asked_for_as_they_are(hub: FakeHub, run: Run) -> None:
    hub.revisions = ("refs/pr/1",)
    run("refs/pr/1")


@pytest.mark.parametrize(
    ("token", "gated", "words"),
    [
        ("", False, "give a token with spec.model.secretRef"),
        ("wrong", False, "the token is wrong or may not read it"),
        ("right", True, "accept the model's terms on the hub"),
    ],
)
def test_refused(hub: FakeHub, run: Run, token: str, gated: bool, words: str) -> None:
    hub.token, hub.gated, run.token = "right", gated, token
    error = run.fails()
    assert error.reason == "AuthFailed"
    assert words in error.message
    assert run.waits == [], "a refusal is not asked again"


def test_the_right_token_opens(hub: FakeHub, run: Run) -> None:
    hub.token = run.token = "right"
    run()


def test_an_unknown_repository(hub: FakeHub, run: Run) -> None:
    run.hub = FakeHub(repo="org/other", url=hub.url)
    assert run.fails().reason == "RepositoryNotFound"


def test_a_busy_hub_is_asked_again_then_given_up(hub: FakeHub, run: Run) -> None:
    hub.busy = 2
    run()
    assert run.waits == [1.0, 2.0]
    shutil.rmtree(run.path)
    hub.busy = 99
    error = run.fails()
    assert error.reason == "HubUnreachable"
    assert "HTTP 503 busy (5 tries)" in error.message


def test_no_connection(hub: FakeHub, run: Run) -> None:
    run.hub = FakeHub(url="http://127.0.0.1:9")
    error = run.fails()
    assert error.reason == "HubUnreachable"
    assert "check network policies, proxy and HF_ENDPOINT" in error.message


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a//b", ""])
def test_file_names_cannot_leave_the_folder(hub: FakeHub, run: Run, path: str) -> None:
    hub.files = {path: b"x"}
    assert run.fails().reason == "HubUnreachable"


def test_too_small_a_claim_is_told_before_anything_is_fetched(
    hub: FakeHub, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 19))
    error = run.fails()
    assert error.reason == "DiskFull"
    assert "enlarge the claim" in error.message
    assert hub.asked == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, "DiskFull"),
        (errno.EDQUOT, "DiskFull"),
        (errno.EACCES, "CacheNotWritable"),
        (errno.EROFS, "CacheNotWritable"),
        (errno.EIO, "DownloadFailed"),
    ],
)
def test_what_a_failed_write_means(code: int, reason: str) -> None:
    error = from_os_error(OSError(code, os.strerror(code)), "/models/cache/x")
    assert error.reason == reason
    assert os.strerror(code) in error.message


def test_offline_takes_what_is_there_and_never_asks(hub: FakeHub, run: Run) -> None:
    error = run.fails(offline=True)
    assert error.reason == "NotCached"
    run()
    hub.asked.clear()
    assert run(offline=True).commit == COMMIT
    assert hub.asked == []


def test_a_folder_with_a_missing_file_is_not_complete(run: Run) -> None:
    run()
    (run.path / "config.json").unlink()
    assert run.fails(offline=True).reason == "NotCached"


def test_two_downloads_of_one_model_do_the_work_once(hub: FakeHub, tmp_path: Path) -> None:
    runs = [Run(hub, tmp_path / "shared") for _ in range(2)]
    threads = [threading.Thread(target=one) for one in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert contents(tmp_path / "shared") == FILES
    assert sorted(name for name, _ in hub.asked) == sorted(FILES)


def test_progress_is_served() -> None:
    progress = Progress()
    progress.start(done=5, total=20)
    progress.add(5)
    with served(progress, 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress") as answer:
            assert json.load(answer) == {"phase": "Downloading", "bytes": 10, "totalBytes": 20}
        with served(progress, port) as taken:
            assert taken == 0, "a taken port does not stop a download"


@pytest.fixture
def run_command(hub: FakeHub, tmp_path: Path) -> Callable[..., tuple[int, dict[str, object]]]:
    """Run the command; returns (exit code, termination log)."""

    def start(*more: str, directory: Path | None = None, **env: str) -> tuple[int, dict[str, object]]:
        log = tmp_path / "log"
        argv = ["--repo=org/model", "--revision=main", f"--directory={directory or tmp_path / 'm'}"]
        argv += ["--port=0", f"--termination-log={log}", *more]
        code = command.main(argv, {"HF_ENDPOINT": f"{hub.url}/", **env})
        return code, json.loads(log.read_text())

    return start


def test_the_command_leaves_its_result_where_the_operator_reads_it(
    hub: FakeHub, run_command: Callable[..., tuple[int, dict[str, object]]], tmp_path: Path
) -> None:
    hub.token = "right"
    code, said = run_command(HF_TOKEN="wrong")
    assert (code, said["reason"]) == (1, "AuthFailed")
    assert "wrong" not in str(said["message"]).replace("the token is wrong", ""), "no token in a message"
    code, said = run_command(HF_TOKEN="right\n")
    assert (code, said) == (0, {"commit": COMMIT, "sizeBytes": sum(len(body) for body in FILES.values())})
    file = tmp_path / "plain"
    file.write_text("")
    code, said = run_command(directory=file / "x", HF_TOKEN="right")
    assert (code, said["reason"]) == (1, "DownloadFailed")
