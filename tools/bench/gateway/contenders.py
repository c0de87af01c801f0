"""The gateways that are compared: how each is installed, configured and started.

Owns one description per gateway. One that cannot run here is missing with a reason, never left out in
silence. Each has its own environment below build/bench/venvs, so that none sees another's dependencies.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.bench.gateway.errors import MissingError
from tools.bench.gateway.load import KEY
from tools.engine_env import EngineEnvError, find_uv
from tools.paths import repo_root

OURS = "structuredllm"
DIRECT = "direct"
VLLM_ROUTER = "vllm-router"
LITELLM = "litellm"


@dataclass(frozen=True)
class Place:
    """Where one gateway runs: its port, a second one for its metrics, the engine's, a folder of its own."""

    port: int
    metrics_port: int
    engine_port: int
    folder: Path

    @property
    def engine_url(self) -> str:
        """Base URL of the engine."""
        return f"http://127.0.0.1:{self.engine_port}"


@dataclass(frozen=True)
class Start:
    """A command and its environment."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """One gateway.

    Attributes:
        name: in the results.
        start: returns how it is started; raises MissingError when it cannot be here.
        package: requirement that its environment is made of, None = nothing to install.
        program: name of the program in that environment.
        start_seconds: how long it may take to answer.
        highest_rate: highest rate worth trying with it; a gateway that is far below is not drowned.
        note: what a reader must know of the comparison.
    """

    name: str
    start: Callable[[Place], Start]
    package: str | None = None
    program: str = ""
    start_seconds: float = 20.0
    highest_rate: float = 20_000.0
    note: str = ""


def venv_of(name: str) -> Path:
    """Return the folder of a contender's environment."""
    return repo_root() / "build" / "bench" / "venvs" / name


def installed(contender: Contender) -> Path:
    """Return the program of a contender, installing it when it is not there.

    Raises:
        MissingError: it cannot be installed.
    """
    package = contender.package or ""
    target = venv_of(contender.name)
    program, stamp = target / "bin" / contender.program, target / ".package"
    if program.exists() and stamp.exists() and stamp.read_text() == package:
        return program
    shutil.rmtree(target, ignore_errors=True)
    try:
        uv = find_uv()
        for command in (
            [uv, "venv", "--quiet", "--python", sys.executable, str(target)],
            [uv, "pip", "install", "--quiet", "--python", str(target), package],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode:
                raise MissingError(f"{package} cannot be installed: {done.stderr.strip()[-300:]}")
    except (EngineEnvError, OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{package} cannot be installed: {error}") from error
    if not program.exists():
        raise MissingError(f"{package} has no program {contender.program}")
    stamp.write_text(package)
    return program


def _ours(place: Place) -> Start:
    """Everything on: keys, admission, validation in Enforce, metrics, a log line a request, picking."""
    keys = place.folder / "keys.json"
    entry = {"name": "bench", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}
    keys.write_text(json.dumps({"keys": [entry]}))
    prefix = "STRUCTUREDLLM_GATEWAY_"
    return Start(
        [sys.executable, "-m", "structuredllm_gateway.cli"],
        {
            f"{prefix}SERVER__HOST": "127.0.0.1",
            f"{prefix}SERVER__PORT": str(place.port),
            f"{prefix}SERVER__METRICS_PORT": str(place.metrics_port),
            f"{prefix}SERVER__DRAIN_DELAY_SECONDS": "0",
            f"{prefix}DISCOVERY__MODE": "static",
            f"{prefix}DISCOVERY__STATIC_ENDPOINTS": json.dumps([{"model": "m", "url": place.engine_url}]),
            f"{prefix}VALIDATION__DEFAULT_MODE": "Enforce",
            f"{prefix}AUTH__MODE": "keys",
            f"{prefix}AUTH__KEYS_FILE": str(keys),
            f"{prefix}WARMUP__POLICY": "Disabled",
        },
    )


def _nginx(place: Place) -> Start:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise MissingError("nginx is not installed (Debian: apt-get install nginx)")
    folder = place.folder
    paths = "".join(
        f"{name}_temp_path {folder}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
        "events { worker_connections 4096; }\n"
        f"http {{ access_log off; keepalive_requests 10000000; {paths}\n"
        f" upstream engine {{ server 127.0.0.1:{place.engine_port}; keepalive 512;"
        " keepalive_requests 10000000; }\n"
        f" server {{ listen 127.0.0.1:{place.port}; location / {{ proxy_pass http://engine;"
        ' proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }\n'
    )
    return Start([program, "-p", str(folder), "-c", str(config)])


def _vllm_router(place: Place) -> Start:
    options = ["--policy", "round_robin", "--host", "127.0.0.1", "--port", str(place.port)]
    metrics = ["--prometheus-port", str(place.metrics_port)]
    return Start([str(installed(VLLM)), "--worker-urls", place.engine_url, *options, *metrics])


def _smg(place: Place) -> Start:
    options = ["--host", "127.0.0.1", "--port", str(place.port), "--disable-tokenizer-autoload"]
    metrics = ["--prometheus-port", str(place.metrics_port)]
    return Start([str(installed(SMG)), "launch", "--worker-urls", place.engine_url, *options, *metrics])


def _litellm(place: Place) -> Start:
    config = place.folder / "litellm.yaml"
    model = {"model": "openai/m", "api_base": f"{place.engine_url}/v1", "api_key": "x"}
    content = {
        "model_list": [{"model_name": "m", "litellm_params": model}],
        "litellm_settings": {"callbacks": [], "num_retries": 0},
    }
    config.write_text(json.dumps(content))  # JSON is YAML
    return Start(
        [
            str(installed(LITE)),
            *("--config", str(config), "--host", "127.0.0.1", "--port", str(place.port)),
            *("--num_workers", "1"),
        ],
        {
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    )


VLLM = Contender(
    VLLM_ROUTER,
    _vllm_router,
    package="vllm-router==0.1.17",
    program="vllm-router",
    note="no key, no validation; its log line per request is on by default",
)
SMG = Contender("smg", _smg, package="smg==1.13.0", program="smg", note="no key, no validation")
LITE = Contender(
    LITELLM,
    _litellm,
    # Later versions need parts that are not published; 1.82.7, 1.82.8 and 1.107.0 were compromised.
    package="litellm[proxy]==1.106.12",
    program="litellm",
    start_seconds=60.0,
    highest_rate=400.0,
    note="no key, no validation",
)
NGINX = Contender("nginx", _nginx, note="a plain proxy: no key, no validation, no log line")
STRUCTUREDLLM = Contender(
    OURS,
    _ours,
    start_seconds=30.0,
    note="keys, admission, validation (Enforce), metrics, a log line a request, picking",
)
CONTENDERS: tuple[Contender, ...] = (STRUCTUREDLLM, VLLM, NGINX, SMG, LITE)
