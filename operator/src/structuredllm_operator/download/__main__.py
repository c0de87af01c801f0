"""Command `python -m structuredllm_operator.download`: fetch one model into a folder, then end.

Exit code 0: the model is there. 1: it is not. Either way a JSON object goes to the termination log, where the
operator reads it: `{"reason", "message"}`, or `{"commit", "sizeBytes"}`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from structuredllm_operator.download.errors import DownloadError, from_os_error
from structuredllm_operator.download.fetch import PARALLEL_FILES, fetch
from structuredllm_operator.download.folder import Folder
from structuredllm_operator.download.hub import Hub
from structuredllm_operator.download.progress import Progress, served

DEFAULT_ENDPOINT: Final = "https://huggingface.co"


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run; returns the exit code."""
    env = os.environ if environ is None else environ
    options = _options(argv)
    # Engines run as another user: what is fetched must be readable for all.
    os.umask(0o022)
    try:
        said, code = _fetch(options, env), 0
    except DownloadError as error:
        said, code = {"reason": error.reason, "message": error.message}, 1
    except OSError as error:
        failure = from_os_error(error, str(options.directory))
        said, code = {"reason": failure.reason, "message": failure.message}, 1
    text = json.dumps(said)
    print(text, file=sys.stderr if code else sys.stdout)
    if options.termination_log is not None:
        options.termination_log.write_text(text, encoding="utf-8")
    return code


def _fetch(options: argparse.Namespace, env: Mapping[str, str]) -> dict[str, Any]:
    folder = Folder(options.directory, repo=options.repo, revision=options.revision)
    progress = Progress()
    with served(progress, options.port), httpx.Client(follow_redirects=True) as client:
        endpoint = env.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_ENDPOINT
        hub = Hub(client, endpoint=endpoint, token=env.get("HF_TOKEN", "").strip(), sleep=time.sleep)
        found = fetch(
            None if options.offline else hub,
            folder,
            progress,
            repo=options.repo,
            revision=options.revision,
            parallel=options.parallel,
        )
    return {"commit": found.commit, "sizeBytes": found.size}


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m structuredllm_operator.download", description=__doc__)
    parser.add_argument("--repo", required=True, help="org/name on the hub")
    parser.add_argument("--revision", required=True, help="branch, tag or commit")
    parser.add_argument("--directory", required=True, type=Path, help="folder for the model's files")
    parser.add_argument("--offline", action="store_true", help="only check that the model is there")
    parser.add_argument("--port", type=int, default=9464, help="port of GET /progress")
    parser.add_argument("--parallel", type=int, default=PARALLEL_FILES, help="files fetched at the same time")
    parser.add_argument("--termination-log", type=Path, help="file that gets the outcome as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
