"""`python -m tools.demo up|down`: the command behind `make demo` and `make demo-down`."""

import argparse
import os
import secrets
import sys
import time
import traceback
from pathlib import Path

from tools.demo.clusters import choose_cluster
from tools.demo.console import Console, DemoError, print_failure
from tools.demo.parts import Bench, example, run_patched, run_questions, run_unpatched
from tools.demo.resources import NAMESPACE, RELEASE, SYSTEM_NAMESPACE
from tools.demo.stage import GATEWAY_SERVICE, Stage, prepare, remove
from tools.paths import repo_root

STEPS = 8


def _log() -> Path:
    return repo_root() / "build" / "demo" / "demo.log"


def up(console: Console) -> str:
    """Run the whole demo; return its machine-readable last line.

    Raises:
        DemoError: a part did not show what it must show.
    """
    build = console.log.parent
    stage: Stage = prepare(console, namespace=NAMESPACE)
    bench = Bench(stage.kubectl, console, NAMESPACE, stage.engine_image, build, secrets.token_hex(4))
    get_wide = ("get", "sllm", "-n", NAMESPACE, "-o", "wide")
    toy, smollm2 = example(bench, "toy"), example(bench, "smollm2")

    console.step("part 1: a toy model, PP=3, async scheduling, patches OFF: the cold burst must be rejected")
    unpatched = run_unpatched(bench, toy)
    console.block(stage.kubectl.run(*get_wide))
    console.info(f"StructuredReady=False, reason {unpatched.condition['reason']}:")
    console.info(f"  {unpatched.condition['message']}")
    console.info(f"the engine itself counted {unpatched.grammar_rejects} grammar rejects")
    if unpatched.ready.get("status") == "True" or unpatched.grammar_rejects == 0:
        raise DemoError("the unpatched engine was expected to be rejected and kept from Ready, and was not")

    with stage.kubectl.port_forward(
        SYSTEM_NAMESPACE, f"svc/{GATEWAY_SERVICE}", 80, build / "port-forward.log"
    ) as url:
        console.step(
            "part 2: the same resource with patches ON: 200 cold structured requests and 50 plain ones"
        )
        patched = run_patched(bench, toy, url)
        console.block(stage.kubectl.run(*get_wide))
        report = patched.report
        console.table(("answer", "count"), sorted(report.counts.items()))
        console.info(f"{report.message}  ({report.duration_seconds:.1f} s)")
        console.info(
            f"engine: {patched.grammar_rejects} grammar rejects, {patched.stale_masks} stale masks, "
            f"{patched.drained_batches} batches drained in time"
        )
        valid = report.counts.get("valid", 0)
        if valid != report.structured or patched.grammar_rejects or patched.stale_masks:
            raise DemoError(
                f"only {valid} of {report.structured} structured answers were valid: {report.message}"
            )

        console.step("part 3: SmolLM2-135M-Instruct, PP=3: three extraction questions")
        answers = run_questions(bench, smollm2, url)
    console.block(stage.kubectl.run(*get_wide))
    for answer in answers:
        how = f"streamed in {answer.chunks} chunks" if answer.question.stream else f"outcome {answer.outcome}"
        console.info(f"Q: {answer.question.text}")
        console.info(f"A: {answer.text}")
        console.info(f"   {answer.verdict} for its schema ({how}, {answer.seconds:.1f} s)")
    if any(answer.verdict != "valid" for answer in answers):
        raise DemoError("an answer of the real model does not obey its schema")

    console.step("go on by hand")
    kubectl = f"KUBECONFIG={stage.kubectl.kubeconfig} {stage.kubectl.binary}"
    service = stage.kubectl.get("svc", GATEWAY_SERVICE, "-n", SYSTEM_NAMESPACE) or {}
    if stage.cluster.name == "embedded":
        console.info(f"gateway on this machine: http://{service['spec']['clusterIP']}/v1")
    console.block(
        f"alias k='{kubectl}'\n"
        f"k get sllm -n {NAMESPACE} -o wide\n"
        f"k describe sllm toy -n {NAMESPACE}\n"
        f"k port-forward -n {SYSTEM_NAMESPACE} svc/{GATEWAY_SERVICE} 8080:80 &\n"
        "curl -s localhost:8080/v1/chat/completions -H 'content-type: application/json' -d '"
        '{"model":"smollm2","max_tokens":60,"messages":[{"role":"user","content":"Name a city as JSON."}],'
        '"response_format":{"type":"json_schema","json_schema":{"name":"c","schema":{"type":"object",'
        '"properties":{"city":{"type":"string","maxLength":20}},"required":["city"],"additionalProperties":false}}}}'
        "'"
    )
    console.info("stop and remove everything: make demo-down")
    console.info(f"the whole demo took {console.elapsed():.0f} s; log: {console.log}")
    total = report.requests + len(answers)
    return (
        f"demo: ok requests={total} valid={valid + len(answers)} "
        f"grammar_rejects_unpatched={unpatched.grammar_rejects} "
        f"grammar_rejects_patched={patched.grammar_rejects}"
    )


def down() -> None:
    """Remove the cluster that the demo made, or, on the user's own, the release and the demo's namespaces."""
    cluster = choose_cluster()
    if cluster.name == "current":
        remove(cluster)
    cluster.down()
    print("demo-down: everything that the demo set up is gone; caches stay in the user's cache folder")


def main(argv: list[str] | None = None) -> int:
    """Run `up` or `down`; print the cause and the log's place on failure."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo", description=__doc__)
    parser.add_argument("action", choices=("up", "down"))
    action = parser.parse_args(argv).action
    try:
        if action == "down":
            down()
            return 0
        console = Console(_log(), STEPS, time.monotonic)
        console.plain(f"StructuredLLM demo, release {RELEASE!r}; log: {console.log}")
        last_line = up(console)
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command again to go on, or `make demo-down`", file=sys.stderr)
        return 130
    except (DemoError, Exception) as error:
        with _log().open("a") as log:
            traceback.print_exc(file=log)
        print_failure(error, _log())
        return 1
    console.plain("\n" + last_line)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
