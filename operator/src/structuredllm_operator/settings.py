"""Settings of the operator: one model for environment, command line and `--help`.

Each field is `STRUCTUREDLLM_OPERATOR_<FIELD>` in the environment and `--<field>` (with dashes) on the
command line.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    TEXT = "text"


class LogLevel(StrEnum):
    """Least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"


class Settings(BaseSettings):
    """Kubernetes operator that runs gated, patched vLLM engines for structured output."""

    model_config = SettingsConfigDict(
        env_prefix="STRUCTUREDLLM_OPERATOR_",
        cli_prog_name="structuredllm-operator",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        use_attribute_docstrings=True,
        extra="forbid",
        frozen=True,
    )

    namespaces: str = ""
    """Namespaces to serve, with commas between; empty for all (needs a ClusterRole)."""
    kubeconfig: str = ""
    """Path of a kubeconfig; empty for the pod's own service account."""
    gateway_url: str = ""
    """Base URL of the gateway for status.url; empty for the engine's own Service."""
    gateway_metrics_url: str = ""
    """Base URL of the gateways' metrics port; all addresses of its host are asked which pods are quarantined.
    Empty: none is asked, and there is no condition Quarantined."""
    resync_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Seconds after which a resource is looked at without an event: the bound on how long drift lasts."""
    workers: Annotated[int, Field(ge=1, le=64)] = 4
    """Resources reconciled at the same time."""
    max_concurrent_bursts: Annotated[int, Field(ge=1, le=256)] = 4
    """Cold structured bursts under way at the same time, over all resources."""
    burst_jitter_seconds: Annotated[float, Field(ge=0, le=60)] = 1.0
    """Longest random pause before a burst, so that pods that start together are not hit together."""
    request_timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 30.0
    """Time-out of one call to the API server."""
    info_timeout_seconds: Annotated[float, Field(gt=0, le=60)] = 3.0
    """Time-out of one call to an engine's telemetry port."""
    downloader_image: str = ""
    """Image that fetches models to cache claims, the operator's own. Empty: a resource with spec.model.cache
    stays not ready and says so."""
    downloader_image_pull_policy: str = "IfNotPresent"
    """When that image is pulled: Always, IfNotPresent or Never."""
    metrics_host: str = "0.0.0.0"  # noqa: S104 (scraped from other pods)
    """Address on which /metrics listens."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 9090
    """Port of /metrics; 0 for none."""
    liveness_host: str = "0.0.0.0"  # noqa: S104 (probed by the kubelet)
    """Address on which /healthz listens."""
    liveness_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of /healthz; 0 for none."""
    log_level: LogLevel = LogLevel.INFO
    """debug, info or warning."""
    log_format: LogFormat = LogFormat.JSON
    """json or text."""

    def namespace_list(self) -> list[str]:
        """Return the namespaces to serve; empty for all."""
        return [part.strip() for part in self.namespaces.split(",") if part.strip()]
