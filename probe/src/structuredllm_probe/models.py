"""Which model to probe: reads /v1/models when the caller names none."""

from __future__ import annotations

import json
from collections.abc import Sequence

import httpx

from structuredllm_probe.config import server_root
from structuredllm_probe.errors import ModelListError

_MAX_BYTES = 1024 * 1024
_SHOWN = 20


async def only_model(base_url: str, client: httpx.AsyncClient, *, timeout_seconds: float = 10.0) -> str:
    """Return the one model that the server lists.

    Raises:
        ConfigError: the URL is unusable.
        ModelListError: the list cannot be read, is empty, or has several names.
    """
    url = f"{server_root(base_url)}/v1/models"
    body = bytearray()
    try:
        async with client.stream("GET", url, timeout=timeout_seconds) as response:
            async for part in response.aiter_bytes():
                body += part
                if len(body) > _MAX_BYTES:
                    raise ModelListError(
                        f"GET {url} answers with more than {_MAX_BYTES} bytes; give --model NAME"
                    )
            if response.status_code != 200:
                hint = (
                    "; an API key is needed: --api-key-env VAR" if response.status_code in {401, 403} else ""
                )
                raise ModelListError(f"GET {url} answered HTTP {response.status_code}{hint}")
    except httpx.HTTPError as error:
        raise ModelListError(
            f"GET {url} failed ({type(error).__name__}: {error}); check the address and that the server runs"
        ) from error
    return _choose(_names(bytes(body), url), url)


def _names(body: bytes, url: str) -> Sequence[str]:
    try:
        return [str(item["id"]) for item in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelListError(f"GET {url} did not answer with a list of models; give --model NAME") from error


def _choose(names: Sequence[str], url: str) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        raise ModelListError(f"GET {url} lists no model; give --model NAME")
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    raise ModelListError(f"GET {url} lists several models; give --model with one of: {shown}")
