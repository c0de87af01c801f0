"""A thin port to one cluster through kubectl: apply, get, wait with progress, port-forward.

Owns subprocess calls of kubectl and nothing else. The demo shows what a user can type, so it uses the user's
tool rather than a client library.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.demo.console import DemoError

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class Kubectl:
    """kubectl bound to one kubeconfig.

    Args:
        binary: path of kubectl.
        kubeconfig: file that names the cluster.
    """

    def __init__(self, binary: Path, kubeconfig: Path) -> None:
        self.binary = binary
        self.kubeconfig = kubeconfig

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def run(self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120) -> str:
        """Run kubectl; return stdout.

        Raises:
            DemoError: kubectl failed (its own words are the message) or took longer than `timeout` seconds.
        """
        try:
            done = subprocess.run(
                (str(self.binary), *arguments),
                input=stdin,
                capture_output=True,
                text=True,
                env=self._environment(),
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"kubectl {' '.join(arguments[:3])} gave no answer in {timeout:.0f} s") from error
        if check and done.returncode != 0:
            raise DemoError(
                f"kubectl {' '.join(arguments[:3])}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> str:
        """Apply objects, server-side, with the demo's field manager; return kubectl's words."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self.run(
            "apply", "--server-side", "--field-manager=structuredllm-demo", "--force-conflicts", "-f", "-",
            stdin=json.dumps(listing),
        )  # fmt: skip

    def get(self, *arguments: str) -> dict[str, Any] | None:
        """Return the object or list as parsed JSON; None when it does not exist."""
        out = self.run("get", *arguments, "-o", "json", "--ignore-not-found")
        if not out.strip():
            return None
        parsed: dict[str, Any] = json.loads(out)
        return parsed

    def pods(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """Return the engine pods of the StructuredLLM `name` that are not being deleted."""
        found = self.get(
            "pods", "-n", namespace, "-l", f"structuredllm.io/name={name},app.kubernetes.io/component=engine"
        )
        items: list[dict[str, Any]] = (found or {}).get("items", [])
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def pod_metric(self, namespace: str, pod: str, metric: str) -> float:
        """Return the sum over labels of a metric on the pod's telemetry port, through the API server."""
        text = self.run("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/{pod}:9464/proxy/metrics")
        pattern = re.compile(rf"^{re.escape(metric)}(?:\{{[^}}]*\}})? (\S+)$", re.MULTILINE)
        return sum(float(value) for value in pattern.findall(text))

    def wait(
        self,
        what: str,
        check: Callable[[], tuple[bool, str]],
        *,
        timeout: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> float:
        """Poll `check` until it is true; say its text when it changes and every 20 s.

        Returns:
            Seconds waited.

        Raises:
            DemoError: not true within `timeout` seconds; the message ends with the last text.
        """
        began = said = clock()
        last = ""
        while True:
            done, text = check()
            now = clock()
            if text != last or now - said > 20:
                say(f"waiting for {what}; now {text}  ({now - began:.0f} s)")
                last, said = text, now
            if done:
                return now - began
            if now - began > timeout:
                raise DemoError(f"{what} not reached within {timeout:.0f} s; last seen: {text}")
            sleep(1.0)

    @contextmanager
    def port_forward(self, namespace: str, target: str, port: int, log: Path) -> Iterator[str]:
        """Forward a free local port to `target`:`port`; yield the base URL; ends the process after.

        Raises:
            DemoError: the forward was not up within 30 s.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as stderr:
            process = subprocess.Popen(
                (str(self.binary), "port-forward", "-n", namespace, target, f":{port}"),
                stdout=subprocess.PIPE, stderr=stderr, text=True, env=self._environment(),
            )  # fmt: skip
            try:
                line = process.stdout.readline() if process.stdout else ""
                match = _FORWARDING.search(line)
                if match is None:
                    raise DemoError(f"port-forward to {target} did not start: {log.read_text().strip()}", log)
                yield f"http://127.0.0.1:{match.group(1)}"
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(10)
                if process.stdout:
                    process.stdout.close()
