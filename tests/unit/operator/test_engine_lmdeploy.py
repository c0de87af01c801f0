"""LMDeploy: rendered as its own parser takes it, refused where it cannot, and never below its floor."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from structuredllm_operator.errors import SpecError
from structuredllm_operator.plan.engine_lmdeploy import FLOOR, OWNED_ARGS, build_args, build_command
from structuredllm_operator.plan.plan import make_plan
from structuredllm_operator.report import make_report
from tests.unit.operator.builders import observed, passed_gate, pod, raw_spec, revision, spec
from tests.unit.operator.test_workload import children

GOLDEN = Path(__file__).parent / "golden" / "lmdeploy.json"
FULL = {
    "model": {"uri": "hf://org/model", "revision": "abc", "secretRef": {"name": "hf-token", "key": "token"}},
    "engine": {
        "type": "lmdeploy",
        "image": "example/lmdeploy:0.16.0",
        "args": ["--session-len=8192"],
        "env": [{"name": "TM_LOG_LEVEL", "value": "INFO"}],
    },
    "parallelism": {"tensor": 2},
    "replicas": 2,
}
ENGINE = {"type": "lmdeploy", "image": "example/lmdeploy:0.16.0"}
# Options of `lmdeploy serve api_server` in 0.16.0, read in lmdeploy/cli/serve.py and utils.py.
KNOWN = {"--backend", "--model-name", "--server-name", "--server-port", "--tp", "--async", "--revision"}


def raw(**changes: Any) -> dict[str, Any]:
    """Return a small valid spec of an LMDeploy engine."""
    return raw_spec(**{"engine": ENGINE, "parallelism": {"tensor": 1}, **changes})


def test_children_are_as_in_the_golden_file() -> None:
    """A difference here restarts every LMDeploy engine on upgrade: change the file only on purpose."""
    assert children(FULL) == json.loads(GOLDEN.read_text())


def test_only_options_that_the_release_at_the_floor_knows() -> None:
    args = build_args(spec(**{**FULL, "engine": ENGINE}), "toy")
    assert {arg.partition("=")[0] for arg in args[1:]} == KNOWN


def test_the_installed_packages_own_parser_takes_the_arguments() -> None:
    """Runs where LMDeploy is installed, that is, on a machine with a GPU."""
    pytest.importorskip("lmdeploy", reason="LMDeploy is not installed here (it has no CPU build)")
    from lmdeploy.cli.cli import CLI  # type: ignore[import-not-found]
    from lmdeploy.cli.serve import SubCliServe  # type: ignore[import-not-found]

    SubCliServe.add_parsers()
    parsed = CLI.parser.parse_args(["serve", "api_server", *build_args(spec(**FULL), "toy")])
    assert (parsed.model_path, parsed.backend, parsed.tp, parsed.server_port) == (
        "org/model",
        "turbomind",
        2,
        8000,
    )
    options = SubCliServe.subparsers.choices["api_server"].format_help()
    assert all(owned in options for owned in OWNED_ARGS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parallelism": {"pipeline": 2}}, "LMDeploy has no pipeline parallelism: set it to 1"),
        ({"parallelism": {"tensor": 2, "data": 2}}, "for vLLM only"),
        ({"parallelism": {"tensor": 3}}, "takes 1, 2, 4, 8, ... only"),
        ({"engine": {**ENGINE, "accelerator": "cpu"}}, "needs a GPU"),
        ({"structuredOutput": {"backend": "guidance"}}, "has xgrammar only"),
        ({"engine": {**ENGINE, "args": ["--tp=4"]}}, "--tp stands for --tp"),
        ({"engine": {**ENGINE, "args": ["--server_port", "1"]}}, "--server-port stands for --server-port"),
        ({"engine": {**ENGINE, "args": ["--back=pytorch"]}}, "--back stands for --backend"),
        ({"engine": {**ENGINE, "args": ["--api-keys", "x"]}}, "--api-keys"),
    ],
)
def test_what_lmdeploy_cannot_do_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        children(raw(**change))
    assert words in caught.value.message


@pytest.mark.parametrize("arg", ["--session-len=1", "--cache-max-entry-count=0.5", "--max-batch-size=8"])
def test_other_arguments_are_the_users(arg: str) -> None:
    assert children(raw(engine={**ENGINE, "args": [arg]}))


def start(tmp_path: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Run the container's command with a package of this version and a command that shows its arguments."""
    info = tmp_path / f"lmdeploy-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lmdeploy\nVersion: {version}\n")
    command = tmp_path / "lmdeploy"
    command.write_text('#!/bin/sh\necho "$@"\n')
    command.chmod(0o755)
    env = {"PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = [sys.executable, *build_command()[1:], "org/model", "--tp=2"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("version", ["0.16.0", "0.16.0.post1", "0.18.0", "1.0"])
def test_a_version_from_the_floor_on_starts(tmp_path: Path, version: str) -> None:
    done = start(tmp_path, version)
    assert (done.returncode, done.stdout) == (0, "serve api_server org/model --tp=2\n"), done.stderr


@pytest.mark.parametrize("version", ["0.15.0", "0.12.2", "0.9.2.post1"])
def test_a_version_below_the_floor_says_why_it_does_not(tmp_path: Path, version: str) -> None:
    done = start(tmp_path, version)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: LMDeploy {version} has known faults of guided decoding, 0.16.0 is")
    assert FLOOR == (0, 16, 0)


def test_the_gate_alone_decides_for_an_engine_that_does_not_report_itself() -> None:
    """No patches and no topology to verify: absent, not False; a burst is due all the same."""
    body = raw()
    cold = pod(revision=revision(body))
    plan = make_plan(observed(cold, raw=body, engines={}), {}, 0.0)
    assert [order.pod_uid for order in plan.bursts] == [cold.uid]
    warm = pod(revision=revision(body), gate=passed_gate(), ready=True)
    snapshot = observed(warm, raw=body, engines={})
    report = make_report(snapshot, make_plan(snapshot, {}, 0.0), now="2026-01-01T00:00:00Z")
    kinds = {one["type"]: one["status"] for one in report.status["conditions"]}
    assert "TopologyVerified" not in kinds
    assert kinds["Ready"] == "True"
