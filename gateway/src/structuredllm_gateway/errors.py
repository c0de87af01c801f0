"""The gateway's errors, each with what a client is told.

    GatewayError
    ├── RequestError             the client's fault, nothing was sent upstream
    │   ├── SchemaRejectedError  the requested schema cannot be used
    │   ├── ModelNotFoundError
    │   ├── BodyTooLargeError
    │   └── BodyTimeoutError
    ├── OverloadedError          shed by the concurrency limit
    ├── NoEndpointError          the model is known, no replica serves it
    ├── UpstreamError            a replica failed
    │   ├── UpstreamConnectError
    │   ├── UpstreamTimeoutError
    │   ├── UpstreamStatusError  it answered with an error of its own
    │   └── UpstreamStreamError  it failed inside a stream
    │       ├── StreamAbortedError   it broke off, or ended too early
    │       └── StreamEmptyError     it ended before it began
    └── StructuredOutputError    the answer is not what the client asked for
    SettingsError                the configuration cannot work (start-up only)

Owns the classes; must not import I/O. Type names follow OpenAI's API reference.
"""

from __future__ import annotations

from structuredllm_gateway.validation.outcomes import Outcome


class GatewayError(Exception):
    """Anything that ends a request with an error answer.

    Attributes:
        status: HTTP status when no byte was sent yet.
        type: OpenAI's `error.type`.
        code: OpenAI's `error.code`, always a string.
        outcome: the class the request is counted in.
        param: field name or JSON pointer in the request (or the answer), when one is at fault.
        retry_after_seconds: value of `Retry-After`; None = no such header.
    """

    status = 500
    type = "server_error"
    code = "internal_error"
    outcome = Outcome.UPSTREAM_5XX

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        """Build the error; `code` overrides the class's own."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code
        self.retry_after_seconds = retry_after_seconds


class RequestError(GatewayError):
    """The request cannot be served as it is."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"
    outcome = Outcome.REQUEST_REJECTED


class SchemaRejectedError(RequestError):
    """The requested schema is not a JSON Schema that can be compiled here; `param` is its JSON pointer."""

    code = "invalid_json_schema"
    outcome = Outcome.SCHEMA_REJECTED


class ModelNotFoundError(RequestError):
    """No StructuredLLM or static endpoint serves the model."""

    status = 404
    type = "not_found_error"
    code = "model_not_found"


class BodyTooLargeError(RequestError):
    """The body is above the limit; it was not read to its end."""

    status = 413
    code = "request_too_large"


class BodyTimeoutError(RequestError):
    """The client did not send its body in time."""

    status = 408
    code = "request_timeout"


class OverloadedError(GatewayError):
    """Too many requests in flight."""

    status = 503
    type = "service_unavailable_error"
    code = "overloaded"
    outcome = Outcome.OVERLOADED


class NoEndpointError(GatewayError):
    """The model is known but no replica is serving."""

    status = 503
    type = "service_unavailable_error"
    code = "no_serving_replica"
    outcome = Outcome.NO_ENDPOINT


class UpstreamError(GatewayError):
    """A replica failed."""

    status = 502
    code = "upstream_error"


class UpstreamConnectError(UpstreamError):
    """No connection, or it broke before the answer was complete and before the client got a byte."""

    code = "upstream_unreachable"
    outcome = Outcome.CONNECT_ERROR


class UpstreamTimeoutError(UpstreamError):
    """The replica did not answer within the try's or the request's deadline."""

    status = 504
    code = "upstream_timeout"
    outcome = Outcome.TIMEOUT


class UpstreamStatusError(UpstreamError):
    """The replica answered with an error status; status, type and message are passed on."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type_: str,
        outcome: Outcome,
        code: str,
        param: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        """Build from what the replica said; the shape is normalised by the caller."""
        super().__init__(message, param=param, code=code, retry_after_seconds=retry_after_seconds)
        self.status = status
        self.type = type_
        self.outcome = outcome


class UpstreamStreamError(UpstreamError):
    """The replica's stream failed: an error event, or bytes that cannot be read."""

    code = "upstream_stream_error"
    outcome = Outcome.STREAM_ERROR


class StreamAbortedError(UpstreamStreamError):
    """The replica's stream broke off, or ended before its answer was complete."""

    code = "upstream_stream_aborted"
    outcome = Outcome.STREAM_ABORTED


class StreamEmptyError(UpstreamStreamError):
    """The replica's stream ended without any part of an answer."""

    code = "upstream_stream_empty"
    outcome = Outcome.STREAM_EMPTY


class StructuredOutputError(GatewayError):
    """The answer does not satisfy what the client asked for; `param` is the JSON pointer in the answer.

    `raw` is the start of the answer's text where the client asked for it, else None.
    """

    status = 502
    code = "structured_output_failed"

    def __init__(
        self, message: str, *, outcome: Outcome, param: str | None = None, raw: str | None = None
    ) -> None:
        """Build for one of the fault classes of the validation."""
        super().__init__(message, param=param)
        self.outcome = outcome
        self.raw = raw


class SettingsError(Exception):
    """The configuration cannot work; the message names the setting and what to do."""
