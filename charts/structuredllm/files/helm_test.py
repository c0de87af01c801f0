# ruff: noqa: INP001 - a script that the chart hands to `python -c`, not a package
"""What `helm test` runs inside the gateway's image: is the gateway there, and does it list models?

Uses the standard library only. The argument is the gateway's base URL. Exits with 1 and one sentence when
the gateway does not answer as it should; an empty list of models is fine, a fresh installation has none, and
so is the request for an API key.
"""

import json
import sys
import time
import urllib.error
import urllib.request

ATTEMPTS = 10
PAUSE_SECONDS = 3.0


def read(url: str) -> bytes | None:
    """Return the body behind `url`, with retries while the Service's endpoints settle; None = needs a key."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - the chart gives http
                return bytes(response.read(1_000_000))
        except (urllib.error.URLError, OSError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == 401:
                return None
            print(f"attempt {attempt} of {ATTEMPTS}: {url}: {error}", flush=True)
            if attempt < ATTEMPTS:
                time.sleep(PAUSE_SECONDS)
    raise SystemExit(f"{url} did not answer: look at the gateway's pods and their logs")


def main(base_url: str) -> None:
    """Check /health and /v1/models below `base_url`."""
    read(f"{base_url}/health")
    print("/health: answers")
    body = read(f"{base_url}/v1/models")
    if body is None:
        print("/v1/models: asks for an API key")
        return
    try:
        models = [model["id"] for model in json.loads(body)["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"/v1/models is not a list of models ({error!r}): {body[:200]!r}") from error
    print(f"/v1/models: {len(models)} models {models}")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
