"""What a client is told that may not ask: 401, 403 and 429 in OpenAI's shape.

Owns the classes; must not import I/O. Types and codes follow OpenAI's API, whose clients act on them.
"""

from __future__ import annotations

from collections.abc import Mapping

from structuredllm_gateway.errors import GatewayError
from structuredllm_gateway.validation.outcomes import Outcome


class KeyRefusedError(GatewayError):
    """A request is refused for its key. `reason` is the metric label, `headers` go into the answer."""

    reason = "refused"
    outcome = Outcome.REQUEST_REJECTED

    def __init__(
        self, message: str, *, headers: Mapping[str, str] | None = None, param: str | None = None
    ) -> None:
        """Build with further headers of the answer."""
        super().__init__(message, param=param)
        self.headers: Mapping[str, str] = headers or {}


class UnknownKeyError(KeyRefusedError):
    """No key, or none that is known."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    reason = "unknown_key"

    def __init__(self, message: str) -> None:
        """Build with the challenge that HTTP asks for."""
        super().__init__(message, headers={"www-authenticate": "Bearer"})


class ForbiddenError(KeyRefusedError):
    """The key is known but may not do this."""

    status = 403
    type = "permission_error"
    code = "forbidden"
    reason = "forbidden"


class ModelForbiddenError(ForbiddenError):
    """The key is not for this model."""

    code = "model_not_allowed"
    reason = "model_not_allowed"


class RateLimitedError(KeyRefusedError):
    """The key has used its allowance; `type` says of what: requests, tokens or concurrency."""

    status = 429
    code = "rate_limit_exceeded"
    outcome = Outcome.OVERLOADED

    def __init__(self, message: str, *, of: str, headers: Mapping[str, str]) -> None:
        """Build for one allowance."""
        super().__init__(message, headers=headers)
        self.type = of
        self.reason = f"rate_{of}"
