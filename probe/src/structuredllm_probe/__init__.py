"""Cold structured burst: proves or disproves structured output on any OpenAI-compatible server."""

from structuredllm_probe.burst import run_burst
from structuredllm_probe.config import BurstConfig
from structuredllm_probe.errors import ConfigError, ProbeError
from structuredllm_probe.verdict import BurstReport, Verdict

__all__ = ["BurstConfig", "BurstReport", "ConfigError", "ProbeError", "Verdict", "run_burst"]
