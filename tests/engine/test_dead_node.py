"""The nodes of a multi-node engine end together: leader and follower as two `vllm serve` on one machine.

All with STRUCTUREDLLM_FULL=1 only (two processes and about a minute a case); the sockets' part of it is in
`inside/test_dead_engine.py`. On the CPU a node has one rank, so the pipeline has two stages here.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.engine.death_watch import kill, session, watch
from tests.engine.engine_process import (
    ARGUMENTS,
    Engine,
    engine_environment,
    free_port,
    log_folder,
    running_engine,
    stop_group,
)
from tests.engine.test_dead_engine import EXIT_CODE, check, environment, full, raising

NOTICED_SECONDS = 5.0


@dataclass(frozen=True)
class Nodes:
    """A leader and its follower.

    Attributes:
        leader: the engine.
        follower: front-end process of the headless node.
        log: the follower's log.
    """

    leader: Engine
    follower: "subprocess.Popen[bytes]"
    log: Path

    def kill_node(self, leader_process: int) -> None:
        """Kill all processes of one node at once, as the end of its pod does."""
        for pid in session(leader_process):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def running_nodes(name: str, engine_env: Path, model: Path, order: Path) -> Iterator[Nodes]:
    cpus = sorted(os.sched_getaffinity(0))
    common = ["--pipeline-parallel-size", "2", "--nnodes", "2", "--master-addr", "127.0.0.1"]
    common += ["--master-port", str(free_port()), "--async-scheduling"]
    env = environment(order, VLLM_HOST_IP="127.0.0.1")
    log = log_folder() / f"{name}-follower.log"
    vllm = str(engine_env / "bin" / "vllm")
    command = [vllm, "serve", str(model), *ARGUMENTS, *common, "--node-rank", "1", "--headless"]
    with log.open("wb") as output:
        follower = subprocess.Popen(
            command,
            env=engine_environment({**env, "VLLM_CPU_OMP_THREADS_BIND": str(cpus[-1])}),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with running_engine(
            f"{name}-leader",
            engine_env,
            model,
            env={**env, "VLLM_CPU_OMP_THREADS_BIND": str(cpus[0])},
            arguments=[*common, "--node-rank", "0"],
        ) as leader:
            yield Nodes(leader, follower, log)
    finally:
        stop_group(follower)


@pytest.fixture
def order(tmp_path: Path) -> Path:
    return tmp_path / "order"


def follower_ends(nodes: Nodes, begun: float, name: str) -> str:
    """Wait for the follower's end and return its last lines."""
    code = nodes.follower.wait(30)
    seconds = time.monotonic() - begun
    last = nodes.log.read_text(errors="replace").splitlines()[-6:]
    print(f"\n{name}: follower ended after {seconds:.2f} s with {code}", *last, sep="\n    ")
    assert seconds < NOTICED_SECONDS
    assert code == EXIT_CODE
    words = [line for line in last if "fatal error: this node of the engine died" in line]
    assert len(words) == 1, last
    time.sleep(1)
    assert session(nodes.follower.pid) == {}
    return words[0]


@full
@pytest.mark.parametrize("title", ["all", "EngineCore"])
def test_a_node_that_lost_its_leader_ends(title: str, order: Path, engine_env: Path, toy_model: Path) -> None:
    name = f"node-leader-{title}"
    with running_nodes(name, engine_env, toy_model, order) as nodes:
        begun = time.monotonic()
        if title == "all":
            nodes.kill_node(nodes.leader.process.pid)
        else:
            kill(nodes.leader, title)()
        words = follower_ends(nodes, begun, name)
    assert "rank 1 (pipeline stage 1)" in words
    assert "leader" in words


@full
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_a_leader_that_lost_a_node_ends(how: str, order: Path, engine_env: Path, toy_model: Path) -> None:
    name = f"node-follower-{how}"
    with running_nodes(name, engine_env, toy_model, order) as nodes:
        deed: Callable[[], None] = partial(nodes.kill_node, nodes.follower.pid)
        if how == "raise":
            deed = raising(1, "sample_tokens")(nodes.leader, order)
        seen = watch(nodes.leader, deed)
        if how == "raise":
            nodes.follower.wait(30)
            last = nodes.log.read_text(errors="replace").splitlines()[-6:]
            print(f"\nfollower ended with {nodes.follower.returncode}", *last, sep="\n    ")
            assert nodes.follower.returncode == EXIT_CODE
            assert any("injected into sample_tokens of stage 1" in line for line in last)
    check(seen, "", name)


@full
def test_an_idle_leader_that_lost_a_node_ends(order: Path, engine_env: Path, toy_model: Path) -> None:
    with running_nodes("node-idle", engine_env, toy_model, order) as nodes:
        seen = watch(nodes.leader, lambda: nodes.kill_node(nodes.follower.pid), clients=0)
    check(seen, "the connection to a rank on another node broke", "node-idle")
