"""The errors of the probe: one tree. A fault of the probed engine is never an error, it is a verdict."""

from __future__ import annotations


class ProbeError(Exception):
    """Base class: the probe could not do its work. The message says what, where and what to do."""


class ConfigError(ProbeError, ValueError):
    """A setting or an argument is out of range."""


class ModelListError(ProbeError):
    """The model to probe could not be chosen from /v1/models."""


class SseError(ProbeError):
    """A server-sent event is larger than the parser may hold."""
