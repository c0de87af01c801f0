"""Answers that the server gives before there is a request for the app: whole HTTP/1.1 messages.

Owns their bytes, in OpenAI's shape; pure, must not import I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from structuredllm_gateway.errors import GatewayError
from structuredllm_gateway.openai.errors import error_bytes, openai_type


def refusal(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Return one answer after which the connection is closed."""
    error = GatewayError(message, code=code)
    error.status, error.type = status, openai_type(status)
    body = error_bytes(error)
    fields = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **(headers or {}),
    }
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in fields.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


MALFORMED = refusal(400, "malformed_request", "The request is not HTTP/1.1 as RFC 9112 has it.")
HEADER_TIMEOUT = refusal(408, "request_timeout", "The request's header did not arrive in time.")
BODY_TIMEOUT = refusal(408, "request_timeout", "The request's body did not arrive in time.")
NO_ROOM = refusal(
    503, "too_many_connections", "The gateway has as many connections as it takes.", {"retry-after": "1"}
)


def header_too_large(limit: int) -> bytes:
    """Return the answer to a header above `limit` bytes."""
    return refusal(
        431, "header_too_large", f"The request's header is larger than {limit} bytes, the limit here."
    )


def body_too_large(limit: int) -> bytes:
    """Return the answer to a body above `limit` bytes on a route that reads none."""
    return refusal(
        413, "request_too_large", f"The request's body is larger than {limit} bytes, the limit here."
    )
