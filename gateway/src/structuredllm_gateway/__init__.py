"""OpenAI-compatible gateway that gates, validates and retries structured output."""

from importlib.metadata import version

__version__ = version("structuredllm-gateway")
