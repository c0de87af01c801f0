"""Speaks to a Hugging Face hub: which files a revision has, and their bytes from an offset on.

Owns requests, time-outs, retries and what each refusal means. Wire form as in huggingface_hub 1.x (hf_api.py;
utils/_http.py for the header X-Error-Code). It must not touch the file system.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx

from structuredllm_operator.api.conditions import Reason
from structuredllm_operator.download.errors import DownloadError

TRIES: Final = 5
FIRST_WAIT_SECONDS: Final = 1.0
TIMEOUT: Final = httpx.Timeout(60.0, connect=30.0)
MAX_FILES: Final = 20_000
"""More files than any model has; a larger answer is refused."""

_T = TypeVar("_T")

_SHA256: Final = re.compile(r"^[0-9a-f]{64}$")
_SHA1: Final = re.compile(r"^[0-9a-f]{40}$")


class TryAgainError(Exception):
    """The hub was busy, or a transfer ended early."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a revision.

    Attributes:
        path: relative, with slashes.
        size: bytes.
        digest: SHA-256 of the content (64 hex digits), else git's SHA-1 of the blob (40).
    """

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Revision:
    """A commit and its files."""

    commit: str
    files: tuple[RemoteFile, ...]


class Hub:
    """One hub.

    Args:
        client: HTTP client, owned by the caller; it must follow redirects.
        endpoint: base URL without a slash at the end.
        token: access token, or empty.
        sleep: waits between tries, in seconds.
        tries: how often a request that gets no answer, 429 or 5xx is sent.
    """

    def __init__(
        self,
        client: httpx.Client,
        *,
        endpoint: str,
        token: str,
        sleep: Callable[[float], None],
        tries: int = TRIES,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._has_token = bool(token)
        self._sleep = sleep
        self._tries = tries

    def resolve(self, repo: str, revision: str) -> Revision:
        """Return the commit that a branch, tag or commit stands for, and its files.

        Raises:
            DownloadError: the hub refuses, does not know it, does not answer or answers nonsense.
        """
        url = f"{self._endpoint}/api/models/{quote(repo)}/revision/{quote(revision, safe='')}"

        def ask() -> Any:
            response = self._client.get(url, params={"blobs": "true"}, headers=self._headers, timeout=TIMEOUT)
            self._check(response, repo, revision)
            return response.json()

        try:
            return _revision(self.again(ask, f"GET {url}"))
        except (ValueError, KeyError, TypeError) as error:
            raise DownloadError(
                Reason.HUB_UNREACHABLE,
                f"GET {url}: the answer is not that of a hub ({type(error).__name__}: {error}):"
                " check HF_ENDPOINT",
            ) from error

    @contextmanager
    def open(self, repo: str, commit: str, path: str, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield (first byte, pieces). The first byte is `offset`, or 0 when the hub does not resume.

        One try: the caller knows how far it got, and asks again from there with `again`.
        """
        url = f"{self._endpoint}/{quote(repo)}/resolve/{quote(commit, safe='')}/{quote(path)}"
        # Identity: a compressed transfer could not be resumed, nor counted against the size.
        headers = {**self._headers, "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with self._client.stream("GET", url, headers=headers, timeout=TIMEOUT) as response:
            if response.status_code >= 400:
                response.read()
            if response.status_code == 416:
                yield 0, iter(())
                return
            self._check(response, repo, commit)
            # Pieces as they come: a fixed size would lose what is buffered when the transfer is cut.
            yield (offset if response.status_code == 206 else 0), response.iter_raw()

    def again(self, call: Callable[[], _T], what: str) -> _T:
        """Call until it works; between tries wait 1, 2, 4, 8 s.

        Raises:
            DownloadError: a refusal at once, HubUnreachable when all tries were used up.
        """
        for number in range(self._tries):
            try:
                return call()
            except (httpx.HTTPError, TryAgainError) as error:
                if number == self._tries - 1:
                    words = str(error) or type(error).__name__
                    raise DownloadError(
                        Reason.HUB_UNREACHABLE,
                        f"{what}: {words} ({self._tries} tries): check network policies, proxy and"
                        " HF_ENDPOINT",
                    ) from error
            self._sleep(FIRST_WAIT_SECONDS * 2.0**number)
        raise AssertionError("unreachable: tries is at least 1")

    def _check(self, response: httpx.Response, repo: str, revision: str) -> None:
        status = response.status_code
        if status < 400:
            return
        code = response.headers.get("X-Error-Code", "")
        words = " ".join(response.headers.get("X-Error-Message", response.reason_phrase).split())[:200]
        if status == 429 or status >= 500:
            raise TryAgainError(f"HTTP {status} {words}")
        if status == 404 and code == "RevisionNotFound":
            raise DownloadError(
                Reason.REVISION_NOT_FOUND,
                f"{repo} has no revision {revision!r} ({words}): correct spec.model.revision",
            )
        if status in (401, 403):
            raise DownloadError(Reason.AUTH_FAILED, self._refused(repo, status, code, words))
        if status == 404:
            raise DownloadError(
                Reason.REPOSITORY_NOT_FOUND, f"the hub has no {repo} ({words}): correct spec.model.uri"
            )
        raise DownloadError(Reason.DOWNLOAD_FAILED, f"the hub answered HTTP {status} for {repo}: {words}")

    def _refused(self, repo: str, status: int, code: str, words: str) -> str:
        said = f"the hub refuses {repo} (HTTP {status} {words})"
        if code == "GatedRepo":
            return f"{said}: accept the model's terms on the hub with the account of the token"
        if not self._has_token:
            return f"{said}: it is private or does not exist; give a token with spec.model.secretRef"
        return f"{said}: the token is wrong or may not read it; correct the Secret of spec.model.secretRef"


def _revision(body: Any) -> Revision:
    siblings = body["siblings"]
    if len(siblings) > MAX_FILES:
        raise ValueError(f"{len(siblings)} files")
    commit = str(body["sha"])
    if not _SHA1.match(commit):
        raise ValueError(f"commit {commit[:80]!r}")
    return Revision(commit, tuple(_file(one) for one in siblings))


def _file(body: Any) -> RemoteFile:
    path = str(body["rfilename"])
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path or "\0" in path:
        raise ValueError(f"file name {path[:80]!r}")
    lfs = body.get("lfs")
    size, digest = (int(lfs["size"]), str(lfs["sha256"])) if lfs else (int(body["size"]), str(body["blobId"]))
    if size < 0 or not (_SHA256.match(digest) or _SHA1.match(digest)):
        raise ValueError(f"size {size} or digest {digest[:80]!r} of {path[:80]!r}")
    return RemoteFile(path, size, digest)
