"""The text of a refused answer, for clients that ask for it.

Owns the request header that asks, and the cut. Pure: must not import I/O. The text is the client's answer;
it is never logged and never sent unasked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from structuredllm_gateway.openai.answers import Choice

HEADER = "x-structuredllm-include-raw"
_CUT = "... (cut)"


def wanted_chars(headers: Mapping[str, str], max_chars: int) -> int:
    """Return how many characters of a refused answer the client gets: `max_chars`, or 0 unless it asks."""
    return max_chars if headers.get(HEADER, "").strip().lower() in ("1", "true", "yes") else 0


def raw_text(choices: Sequence[Choice], index: int | None, max_chars: int) -> str | None:
    """Return the start of the text (or the calls' arguments) of the choice at fault; None when unwanted."""
    if max_chars <= 0:
        return None
    at_fault = next((choice for choice in choices if choice.index == index), None)
    text = "" if at_fault is None else at_fault.text or "\n".join(c.arguments for c in at_fault.tool_calls)
    # A lone surrogate is a fault of the answer, and cannot be written in the error's own JSON.
    shown = text[:max_chars].encode("utf-8", "replace").decode()
    return shown if len(text) <= max_chars else shown + _CUT
