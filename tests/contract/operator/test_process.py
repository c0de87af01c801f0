"""The operator as its image runs it: a process for the whole cluster, with health, metrics, a clean end."""

import asyncio
import signal
import sys

import httpx
import pytest

from structuredllm_operator.kube.client import DEPLOYMENT, KubeClient
from tests.contract.operator.conftest import as_yaml, eventually, resource, wait_condition
from tools.cluster.apiserver import ApiServer, free_ports

pytestmark = pytest.mark.timeout(180)


async def test_the_process_serves_all_namespaces_and_ends_on_sigterm(
    api: ApiServer, client: KubeClient, namespace: str
) -> None:
    liveness, metrics = free_ports(2)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "structuredllm_operator.cli",
        f"--kubeconfig={api.kubeconfig}",
        f"--liveness-port={liveness}",
        f"--metrics-port={metrics}",
        "--liveness-host=127.0.0.1",
        "--metrics-host=127.0.0.1",
    )
    try:
        api.kubectl("create", "-f", "-", stdin=as_yaml(resource(namespace)))
        await wait_condition(client, namespace, "Ready", "False", "Pending")
        assert await client.get(DEPLOYMENT, namespace, "toy-engine") is not None
        async with httpx.AsyncClient(trust_env=False) as http:

            async def healthy() -> bool:
                try:
                    return (await http.get(f"http://127.0.0.1:{liveness}/healthz")).status_code == 200
                except httpx.HTTPError:
                    return False

            await eventually("healthz", healthy)
            text = (await http.get(f"http://127.0.0.1:{metrics}/metrics")).text
        assert 'structuredllm_operator_reconcile_total{result="ok"}' in text
        assert f'structuredllm_operator_resource_ready{{name="toy",namespace="{namespace}"}} 0.0' in text
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
