"""Fetches one model: what is missing, a few files at a time, each from where it stopped, each checked.

Owns the order of the steps. Talks to the hub through `Hub` and to the claim through `Folder`.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final

from structuredllm_operator.api.conditions import Reason
from structuredllm_operator.download.errors import DownloadError
from structuredllm_operator.download.folder import Complete, Folder
from structuredllm_operator.download.hub import Hub, RemoteFile, Revision, TryAgainError
from structuredllm_operator.download.progress import Phase, Progress

PARALLEL_FILES: Final = 4
CHECK_TRIES: Final = 2
"""A file with a wrong checksum is fetched once more from its start, then given up."""

_OTHER_WEIGHTS: Final = (
    ".bin",
    ".pt",
    ".pth",
    ".h5",
    ".msgpack",
    ".ot",
    ".onnx",
    ".tflite",
    ".gguf",
    ".mlmodel",
)
_GIB: Final = 1 << 30


def fetch(
    hub: Hub | None,
    folder: Folder,
    progress: Progress,
    *,
    repo: str,
    revision: str,
    parallel: int = PARALLEL_FILES,
) -> Complete:
    """Return what the folder holds when it is complete.

    Args:
        hub: where to fetch from; None = offline, the folder must be complete already.
        folder: the model's folder on the claim.
        progress: told how far it is.
        repo: `org/name`.
        revision: branch, tag or commit.
        parallel: files fetched at the same time.

    Raises:
        DownloadError: the model is not complete, and why.
        OSError: the claim failed.
    """
    found = folder.complete()
    if found is not None:
        return found
    if hub is None:
        raise DownloadError(
            Reason.NOT_CACHED,
            f"spec.model.offline is set, and the claim does not hold {repo} at {revision}: fetch it once with"
            " offline false, or give a claim that holds it",
        )
    progress.enter(Phase.WAITING)
    with folder.locked():
        found = folder.complete()
        if found is not None:
            return found
        progress.enter(Phase.RESOLVING)
        resolved = hub.resolve(repo, revision)
        wanted = Revision(resolved.commit, wanted_files(resolved.files))
        if not wanted.files:
            raise DownloadError(
                Reason.MODEL_NOT_FOUND, f"{repo} has no files at {revision}: correct spec.model.uri"
            )
        _check_space(folder, wanted)
        total = sum(file.size for file in wanted.files)
        progress.start(done=total - folder.missing_bytes(wanted.files), total=total)
        _fetch_all(hub, folder, progress, repo, wanted, parallel)
        return folder.seal(wanted)


def wanted_files(files: Iterable[RemoteFile]) -> tuple[RemoteFile, ...]:
    """Return the files that an engine reads.

    With safetensors there, the same weights in other forms are left out.
    """
    all_files = tuple(files)
    if not any(file.path.endswith(".safetensors") for file in all_files):
        return all_files
    return tuple(
        file
        for file in all_files
        if not file.path.endswith(_OTHER_WEIGHTS) and not file.path.startswith("original/")
    )


def _check_space(folder: Folder, revision: Revision) -> None:
    missing, free = folder.missing_bytes(revision.files), folder.free_bytes()
    if missing > free:
        raise DownloadError(
            Reason.DISK_FULL,
            f"the claim has {free / _GIB:.1f} GiB free, the model needs {missing / _GIB:.1f} GiB more:"
            " enlarge the claim, or remove other models",
        )


def _fetch_all(
    hub: Hub, folder: Folder, progress: Progress, repo: str, revision: Revision, parallel: int
) -> None:
    stop = threading.Event()
    missing = [file for file in revision.files if not folder.has(file)]
    with ThreadPoolExecutor(max_workers=parallel) as pool:
        tasks = [
            pool.submit(_fetch_file, hub, folder, progress, repo, revision.commit, file, stop)
            for file in missing
        ]
        done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
        failed = [error for task in done if (error := task.exception()) is not None]
        if failed:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise failed[0]


def _fetch_file(
    hub: Hub,
    folder: Folder,
    progress: Progress,
    repo: str,
    commit: str,
    file: RemoteFile,
    stop: threading.Event,
) -> None:
    for _ in range(CHECK_TRIES):
        hub.again(
            lambda: _append(hub, folder, progress, repo, commit, file, stop), f"download of {file.path}"
        )
        if stop.is_set() or folder.finish(file):
            return
        progress.add(-file.size)
    raise DownloadError(
        Reason.CHECKSUM_MISMATCH,
        f"{file.path} of {repo} at {commit[:12]} arrived wrong {CHECK_TRIES} times (expected"
        f" {file.digest[:16]}...): check the proxy or mirror between the cluster and the hub",
    )


def _append(
    hub: Hub,
    folder: Folder,
    progress: Progress,
    repo: str,
    commit: str,
    file: RemoteFile,
    stop: threading.Event,
) -> None:
    part = folder.part(file)
    have = part.stat().st_size if part.exists() else 0
    if have > file.size:
        part.unlink()
        have = 0
    if have == file.size:
        part.touch()
        return
    with hub.open(repo, commit, file.path, have) as (start, pieces):
        if start < have:
            progress.add(start - have)
        with part.open("r+b" if part.exists() else "xb") as body:
            body.truncate(start)
            body.seek(start)
            for piece in pieces:
                body.write(piece)
                progress.add(len(piece))
                if stop.is_set() or body.tell() > file.size:
                    break
        if not stop.is_set() and part.stat().st_size < file.size:
            raise TryAgainError(f"{file.path} ended after {part.stat().st_size} of {file.size} bytes")
