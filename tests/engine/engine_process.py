"""Start and end one real `vllm serve` on the CPU with three pipeline stages."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.warm_start import Process, warm_server
from tools.engine_env import pins_digest, requirements_file
from tools.paths import repo_root

STARTUP_TIMEOUT_SECONDS = 600.0
STOP_TIMEOUT_SECONDS = 20.0
MODEL_NAME = "toy"
PIPELINE_STAGES = 3
KEPT = ("VLLM_BATCH_INVARIANT",)
"""Variables of the engine that come from outside, where it runs on a GPU."""

ARGUMENTS = (
    "--served-model-name", MODEL_NAME,
    "--host", "127.0.0.1",
    "--distributed-executor-backend", "mp",
    # float32: answers at temperature 0 do not depend on the batch. Small prefill chunks: batches are mixed.
    "--dtype", "float32",
    "--max-num-batched-tokens", "64",
    "--max-model-len", "1024",
    "--max-num-seqs", "32",
    "--no-enable-prefix-caching",
    "--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}',
    "--compilation-config", '{"mode":0,"cudagraph_mode":"NONE"}',
)  # fmt: skip


class EngineStartError(RuntimeError):
    """The engine ended or did not answer in time; the message has the tail of its log."""


class ConnectionLostError(AssertionError):
    """An engine lost a connection; the message has its state and the tail of its log."""


@dataclass(frozen=True)
class Engine:
    """A running engine.

    Attributes:
        url: base of the OpenAI-compatible port.
        telemetry_url: base of the telemetry port.
        log: file with everything that its processes printed.
        process: the front-end, whose session all of its processes share.
    """

    url: str
    telemetry_url: str
    log: Path
    process: Process

    @property
    def session(self) -> int:
        """Id of the session that all of its processes belong to."""
        return self.process.pid

    def info(self) -> dict[str, object]:
        """Return /info."""
        found: dict[str, object] = (
            httpx.get(f"{self.telemetry_url}/info", timeout=10).raise_for_status().json()
        )
        return found

    def metrics(self) -> str:
        """Return /metrics."""
        return httpx.get(f"{self.telemetry_url}/metrics", timeout=10).raise_for_status().text

    def metric(self, name: str) -> float:
        """Return the sum of a metric of the telemetry port over its labels."""
        return metric_of(self.telemetry_url, name)

    def served_metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric of vLLM's own over its samples with these labels."""
        return metric_of(self.url, name, **labels)


def metric_of(url: str, name: str, **labels: str) -> float:
    """Return the sum of a metric at `url`/metrics over its samples with these labels.

    Raises:
        AssertionError: there is no such sample.
    """
    text = httpx.get(f"{url}/metrics", timeout=10).raise_for_status().text
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert samples, f"{name} {labels} is not in {url}/metrics"
    return sum(sample.value for sample in samples)


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def log_folder() -> Path:
    """Return (and create) the folder of the engines' logs."""
    folder = repo_root() / "build" / "test-engine"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def engine_environment(extra: Mapping[str, str], *, stages: int = PIPELINE_STAGES) -> dict[str, str]:
    """Return the process environment of an engine: ours without settings of the product, then `extra`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or not name.startswith(("STRUCTUREDLLM_", "VLLM_"))
    }
    cpus = sorted(os.sched_getaffinity(0))
    return {
        **kept,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cpus[rank % len(cpus)]) for rank in range(stages)),
        "VLLM_NO_USAGE_STATS": "1",
        # As the operator sets it: the client's side closes idle connections first.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "HF_HUB_OFFLINE": "1",
        "STRUCTUREDLLM_TEST_CPU_ASYNC": "1",
        "STRUCTUREDLLM_TEST_FORK": "1",
        "OMP_NUM_THREADS": "1",
        "STRUCTUREDLLM_TELEMETRY_HOST": "127.0.0.1",
        **extra,
    }


def pretended_version(folder: Path, version: str) -> dict[str, str]:
    """Return the environment in which the installed vLLM says that it is another version.

    Args:
        folder: where the metadata that is found first is written.
        version: without the local part, which stays that of a CPU build.
    """
    metadata = folder / f"vllm-{version}+cpu.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


@contextmanager
def running_engine(
    name: str,
    environment: Path,
    model: Path,
    *,
    env: Mapping[str, str],
    arguments: Sequence[str],
    stages: int = PIPELINE_STAGES,
) -> Iterator[Engine]:
    """Run an engine for the length of the block; all of its processes are gone afterwards.

    Args:
        name: of its log.
        environment: what `tools.engine_env` built.
        model: folder of the model.
        env: additional environment variables.
        arguments: additional arguments; they win over ours.
        stages: pipeline stages.

    Raises:
        EngineStartError: it did not come up.
        ConnectionLostError: the block lost a connection.
    """
    port, telemetry_port = free_port(), free_port()
    log = log_folder() / f"{name}.log"
    command = [
        "serve", str(model), *ARGUMENTS, "--port", str(port),
        "--pipeline-parallel-size", str(stages), *arguments,
    ]  # fmt: skip
    full_env = engine_environment({**env, "STRUCTUREDLLM_TELEMETRY_PORT": str(telemetry_port)}, stages=stages)
    process = _start(environment, command, full_env, log)
    engine = Engine(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{telemetry_port}", log, process)
    try:
        _wait_until_healthy(process, engine)
        yield engine
    except httpx.TransportError as error:
        state = "runs" if process.poll() is None else f"ended with {process.returncode}"
        raise ConnectionLostError(f"{error!r}; the engine {state}; {log}:\n{tail(log)}") from error
    finally:
        stop_group(process)


def _start(environment: Path, command: Sequence[str], env: Mapping[str, str], log: Path) -> Process:
    """Start `vllm`, from what is imported already where only arguments and settings differ."""
    usual = engine_environment({})
    same_program = env.get("PYTHONPATH") == usual.get("PYTHONPATH") and env["STRUCTUREDLLM_TEST_FORK"] == "1"
    if same_program and environment.name == pins_digest(requirements_file().read_bytes()):
        return warm_server(environment, usual, log_folder() / "warm-server.log").start(command, env, log)
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(environment / "bin" / "vllm"), *command],
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_until_healthy(process: Process, engine: Engine) -> None:
    deadline = time.monotonic() + STARTUP_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EngineStartError(
                f"vllm serve ended with {process.returncode}; {engine.log}:\n{tail(engine.log)}"
            )
        try:
            if httpx.get(f"{engine.url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise EngineStartError(
        f"not healthy after {STARTUP_TIMEOUT_SECONDS:.0f} s; {engine.log}:\n{tail(engine.log)}"
    )


def stop_group(process: Process) -> None:
    """End a process and everything in its process group."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_TIMEOUT_SECONDS)


def tail(path: Path, characters: int = 3000) -> str:
    """Return the end of a log."""
    return path.read_text(errors="replace")[-characters:]
