"""The command structuredllm-probe: arguments, progress, output, exit code. All else is in the library."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence

import httpx

from structuredllm_probe.burst import Progress, run_burst
from structuredllm_probe.config import BurstConfig, server_root
from structuredllm_probe.errors import ConfigError, ProbeError
from structuredllm_probe.models import only_model
from structuredllm_probe.render import as_object, as_text
from structuredllm_probe.verdict import BurstReport, Verdict

EXIT_CODES: Mapping[Verdict, int] = {Verdict.HEALTHY: 0, Verdict.FAULTY: 1, Verdict.UNKNOWN: 2}
_EXIT_UNKNOWN = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 healthy, 1 faulty, 2 could not tell (also: wrong usage)."""
    options = _parser().parse_args(argv)
    try:
        config = BurstConfig(
            requests=options.requests,
            concurrency=options.concurrency,
            timeout_seconds=options.timeout,
            max_tokens=options.max_tokens,
            seed=options.seed or secrets.token_hex(6),
        )
        headers = _auth_headers(options.api_key_env, os.environ)
        url = server_root(options.url)
        model, report = asyncio.run(_probe(url, options.model, config, headers))
    except ProbeError as error:
        print(f"structuredllm-probe: {error}", file=sys.stderr)
        return _EXIT_UNKNOWN
    except KeyboardInterrupt:
        print("structuredllm-probe: interrupted, no verdict", file=sys.stderr)
        return _EXIT_UNKNOWN
    if options.json:
        print(json.dumps(as_object(report, url=url, model=model, seed=config.seed)))
    else:
        print(as_text(report, url=url, model=model, seed=config.seed))
    return EXIT_CODES[report.verdict]


async def _probe(
    url: str, model: str | None, config: BurstConfig, headers: Mapping[str, str]
) -> tuple[str, BurstReport]:
    limits = httpx.Limits(max_connections=config.concurrency + 1)
    async with httpx.AsyncClient(limits=limits, headers=headers) as client:
        name = model or await only_model(url, client, timeout_seconds=min(10.0, config.timeout_seconds))
        return name, await run_burst(url, name, config, client=client, progress=_progress())


def _progress() -> Progress | None:
    """Return a printer of progress on a terminal, None elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{done} of {total} requests answered", end=end, file=sys.stderr, flush=True)

    return show


def _auth_headers(variable: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    if variable is None:
        return {}
    key = environment.get(variable, "").strip()
    if not key:
        raise ConfigError(f"--api-key-env {variable}: the environment variable is not set or empty")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"--api-key-env {variable}: the value has characters that no HTTP header may carry")
    return {"Authorization": f"Bearer {key}"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="structuredllm-probe",
        description="Send a cold structured burst to an OpenAI-compatible server and judge the answers.",
        epilog="Exit codes: 0 healthy, 1 faulty, 2 could not tell.",
    )
    parser.add_argument(
        "url", metavar="URL", help="server address, e.g. http://localhost:8000 (/v1 may follow)"
    )
    parser.add_argument(
        "--model", metavar="NAME", help="served model; default: the only one /v1/models lists"
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--requests", type=int, default=24, metavar="N", help="all requests (default 24)")
    parser.add_argument(
        "--concurrency",
        type=int,
        default=24,
        metavar="N",
        help="in flight at once; keep above PP (default 24)",
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="whole burst, seconds (default 120)"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=96, metavar="N", help="per structured answer (default 96)"
    )
    parser.add_argument(
        "--seed", metavar="X", help="repeat the requests of an earlier burst; default: random"
    )
    parser.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    return parser


if __name__ == "__main__":
    sys.exit(main())
