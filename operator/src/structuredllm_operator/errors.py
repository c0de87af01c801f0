"""Errors of the operator, in one tree.

    OperatorError
    ├── SpecError            the resource cannot be rendered; permanent until its spec changes
    ├── ConfigError          the operator itself is set up wrongly; ends the process
    └── KubeError            the API server answered with an error
        ├── NotFoundError    404
        ├── ConflictError    409
        ├── ForbiddenError   401, 403: RBAC; retried slowly, named in the log
        └── TransientError   429, 5xx, connection and time-out errors; retried with backoff

Owns classification; imports nothing of the package.
"""


class OperatorError(Exception):
    """Base of all errors raised on purpose by this package."""


class SpecError(OperatorError):
    """The spec cannot be rendered. `reason` is a condition reason, the text names field and cure."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class ConfigError(OperatorError):
    """The operator's settings or its cluster access are unusable."""


class KubeError(OperatorError):
    """A Kubernetes API call failed.

    Args:
        message: what was being done to which object, and the server's words.
        status: HTTP status, 0 when there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(KubeError):
    """The object does not exist (404)."""


class ConflictError(KubeError):
    """A precondition (uid, resourceVersion) did not hold (409)."""


class ForbiddenError(KubeError):
    """The operator's account may not do this (401, 403)."""


class TransientError(KubeError):
    """The call may work later: throttled, server error, or no connection."""
