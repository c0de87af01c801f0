"""What a client makes of the bytes it gets: an independent reader of answers, whole and streamed.

Owns the reading on the client's side (WHATWG HTML, section 9.2, for events), written for being plainly right
and not for speed. Must not import the gateway.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_VERDICT = re.compile(r"^: ?structuredllm outcome=(\w+)$")

_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass
class Heard:
    """An answer as a client knows it.

    Attributes:
        texts: the text of each choice, by index.
        finishes: why each choice ended, by index; a choice that has not ended is missing.
        error: the error object, of a body or of an event.
        done: whether OpenAI's end mark came.
        verdicts: what the gateway said in comments.
    """

    texts: dict[str, str] = field(default_factory=dict)
    finishes: dict[str, str] = field(default_factory=dict)
    error: Any = None
    done: bool = False
    verdicts: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every choice of the answer has ended, without an error."""
        return bool(self.texts) and self.texts.keys() == self.finishes.keys() and self.error is None

    def take(self, payload: Any) -> None:
        """Take one body or chunk."""
        if not isinstance(payload, dict):
            return
        if payload.get("error"):
            self.error = payload["error"]
        if payload.get("type") == "error":
            # The responses API has no end mark: its last event is the end.
            self.error, self.done = payload, True
        self._take_response(payload)
        choices = payload.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            index = str(choice.get("index", 0))
            holder = choice.get("delta") or choice.get("message") or {}
            calls = holder.get("tool_calls") or []
            arguments = "".join(call.get("function", {}).get("arguments") or "" for call in calls)
            text = arguments or holder.get("content") or choice.get("text") or ""
            # What is no text shows, and is no right answer of anything.
            self.texts[index] = self.texts.get(index, "") + (text if isinstance(text, str) else repr(text))
            if choice.get("finish_reason"):
                self.finishes[index] = choice["finish_reason"]

    def _take_response(self, payload: dict[str, Any]) -> None:
        """Take what the responses API sends: a whole one, or an event of a stream."""
        kind = payload.get("type")
        if kind == "response.output_text.delta":
            self.texts["0"] = self.texts.get("0", "") + str(payload.get("delta"))
        whole = payload.get("response") if isinstance(kind, str) else payload
        if not isinstance(whole, dict) or not whole.get("output"):
            return
        for item in whole["output"]:
            if isinstance(item, dict) and item.get("type") == "message":
                for part in item.get("content") or ():
                    # In a stream the text is there a second time; a client may use either.
                    self.texts["whole"] = str(part.get("text") if isinstance(part, dict) else part)
        if kind in _RESPONSE_ENDS:
            self.done = True
        self.finishes |= dict.fromkeys(self.texts, str(whole.get("status")))


def read_whole(body: bytes) -> Heard:
    """Read a body that is not streamed; one that is no JSON says nothing."""
    heard = Heard()
    try:
        heard.take(json.loads(body))
    except ValueError:
        heard.error = "unreadable"
    return heard


def read_stream(body: bytes) -> Heard:
    """Read an event stream, as far as it goes; an event without its blank line is none."""
    heard = Heard()
    text = body.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    data: list[str] = []
    for line in lines[:-1]:
        found = _VERDICT.match(line)
        if found:
            heard.verdicts.append(found[1])
        if line == "":
            _dispatch(heard, data)
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
    return heard


def _dispatch(heard: Heard, data: list[str]) -> None:
    if heard.done or not data:
        return  # nobody reads on after the end mark
    whole = "\n".join(data)
    if whole == "[DONE]":
        heard.done = True
        return
    try:
        heard.take(json.loads(whole))
    except ValueError:
        heard.error = "unreadable"
