"""Cluster access for both clients in the process: kopf's watchers and our `KubeClient`.

Owns where credentials come from: a kubeconfig file, or the pod's service account.
"""

import kopf
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from structuredllm_operator.errors import ConfigError


async def load_configuration(kubeconfig: str | None) -> Configuration:
    """Return the access data of the kubeconfig file, or of the pod's own service account when it is None.

    Raises:
        ConfigError: it is missing or unusable.
    """
    configuration = Configuration()
    try:
        if kubeconfig is None:
            kube_config.load_incluster_config(client_configuration=configuration)
        else:
            await kube_config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    except (kube_config.ConfigException, OSError) as error:
        place = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account"
        cure = (
            "give a readable file with --kubeconfig" if kubeconfig else "run in a pod, or give --kubeconfig"
        )
        raise ConfigError(f"no access to a cluster through {place}: {error}; {cure}") from error
    return configuration


async def connection_info(kubeconfig: str | None) -> kopf.ConnectionInfo:
    """Return the same access for kopf. Called again by kopf when a token has expired.

    Raises:
        kopf.PermanentError: as ConfigError above.
    """
    try:
        configuration = await load_configuration(kubeconfig)
    except ConfigError as error:
        raise kopf.PermanentError(str(error)) from error
    scheme, _, token = str(configuration.api_key.get("BearerToken", "")).rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme or None,
        token=token.strip() or None,
    )
