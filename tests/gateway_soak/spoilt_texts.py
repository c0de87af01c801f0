"""Answers whose text is not what was asked for: every way of the public reports that shows in the text.

Owns one table of functions, each named for what it does. The class is what is right for a text that the
independent judgement refuses; where a change leaves an answer (a doubled letter in a string), it must pass.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

from tests.gateway_soak.carriers import CompletionText, Spoken
from tests.gateway_soak.drafts import Draft, Kind, Table
from tests.gateway_soak.schemas import text_of, violation
from tests.gateway_soak.wires import Wire

TABLE = Table()

_AROUND = "trailing_or_leading_text"
_ANY_FAULT = ("not_json", "schema_violation", _AROUND, "empty")
_STRING_END = re.compile(r'(?<!\\)"(?=\s*[,}\]])')
_NUMBER = re.compile(r"(?<=[:\[,])(\s*)-?\d[\d.e+-]*(?=\s*[,}\]])")


def _compact(given: Draft) -> str:
    return json.dumps(given.asked.value, ensure_ascii=False)


@TABLE.text("not_json", seen_as=["vllm#45014", "vllm#44993"])
def doubled_brace(_rng: Random, text: str, _given: Draft) -> str:
    return "{" + text.lstrip()


@TABLE.text(*_ANY_FAULT, seen_as=["vllm#29379", "vllm#26292"], any_text=True)
def doubled_tokens(rng: Random, text: str, _given: Draft) -> str:
    at = rng.randrange(len(text))
    token = text[at : at + rng.randrange(1, 6)]
    return text[:at] + token + text[at:]


@TABLE.text(*_ANY_FAULT, seen_as=["vllm#26292"], any_text=True)
def lost_tokens(rng: Random, text: str, _given: Draft) -> str:
    at = rng.randrange(len(text))
    return text[:at] + text[at + rng.randrange(1, 6) :]


@TABLE.text(*_ANY_FAULT, seen_as=["vllm#45014"], any_text=True)
def other_tokens(rng: Random, text: str, _given: Draft) -> str:
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(("{{", "!!", "\n\n", '":"', "}", "]", "\u00e9", "0")) + text[at + 1 :]


@TABLE.text("not_json", "empty", seen_as=["vllm#10781", "vllm#15274"], any_text=True)
def lost_end(_rng: Random, text: str, _given: Draft) -> str:
    return text.rstrip()[:-1]


@TABLE.text(*_ANY_FAULT, seen_as=["vllm#34887"], any_text=True)
def lost_start(_rng: Random, text: str, _given: Draft) -> str:
    return text.lstrip()[2:]


@TABLE.text("not_json", "empty", seen_as=["openai-python#3263"], any_text=True)
def cut_but_called_complete(rng: Random, text: str, _given: Draft) -> str:
    return text[: rng.randrange(len(text.rstrip()))]


@TABLE.text("not_json", _AROUND, seen_as=["vllm#24509"], any_text=True)
def whole_text_twice(_rng: Random, text: str, _given: Draft) -> str:
    return text + text


@TABLE.text(_AROUND, seen_as=["vllm#29632"], any_text=True)
def text_after(rng: Random, text: str, _given: Draft) -> str:
    return text + rng.choice(("\nI hope this helps!", " }", "\n\n{}", "<|im_end|>", ";", "\u00a0"))


@TABLE.text(_AROUND, any_text=True)
def text_before(rng: Random, text: str, _given: Draft) -> str:
    return rng.choice(("Sure! Here it is:\n", "<think>hm</think>", "assistant", "json\n")) + text


@TABLE.text(_AROUND, any_text=True)
def code_fence(_rng: Random, text: str, _given: Draft) -> str:
    return f"```json\n{text}\n```"


@TABLE.text(_AROUND, "not_json", seen_as=["vllm#44006"])
def marker_of_reasoning_before(_rng: Random, text: str, _given: Draft) -> str:
    return "so the answer is</think>\n\n" + text


@TABLE.text("not_json", _AROUND, any_text=True)
def byte_order_mark_before(_rng: Random, text: str, _given: Draft) -> str:
    return "\ufeff" + text


@TABLE.text("not_json", _AROUND, any_text=True)
def foreign_white_space_before(rng: Random, text: str, _given: Draft) -> str:
    return rng.choice("\u00a0\u2003\u0085\x0b\x0c\x1f") + text


@TABLE.text("not_json")
def not_a_number(rng: Random, text: str, _given: Draft) -> str | None:
    found = list(_NUMBER.finditer(text))
    if not found:
        return None
    one = rng.choice(found)
    number = rng.choice(("NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1.", "0x1F", "1_000"))
    return text[: one.start()] + one[1] + number + text[one.end() :]


@TABLE.text("not_json", seen_as=["xgrammar#800", "xgrammar#880"])
def raw_control_character(rng: Random, text: str, _given: Draft) -> str | None:
    found = list(_STRING_END.finditer(text))
    if not found:
        return None
    at = rng.choice(found).start()
    return text[:at] + rng.choice(("\t", "\n", "\x00", "\x01", "\x1f", "\r")) + text[at:]


@TABLE.text("not_json")
def lone_surrogate(rng: Random, text: str, _given: Draft) -> str | None:
    found = list(_STRING_END.finditer(text))
    if not found:
        return None
    at = rng.choice(found).start()
    return text[:at] + rng.choice(("\\ud83d", "\\udc00", "\\ude00\\ud83d")) + text[at:]


@TABLE.text("not_json")
def bad_escape(rng: Random, text: str, _given: Draft) -> str | None:
    found = list(_STRING_END.finditer(text))
    if not found:
        return None
    at = rng.choice(found).start()
    return text[:at] + rng.choice(("\\x41", "\\u12", "\\'", "\\uzzzz", "\\ ")) + text[at:]


@TABLE.text("not_json")
def name_twice(rng: Random, _text: str, given: Draft) -> str | None:
    value: Any = given.asked.value
    if not value:
        return None
    name = rng.choice(list(value))
    again = f"{json.dumps(name)}: {json.dumps(value[name])}"
    return _compact(given)[:-1] + f", {again}}}"


@TABLE.text("not_json")
def written_as_python(_rng: Random, _text: str, given: Draft) -> str:
    return repr(given.asked.value)


@TABLE.text("not_json")
def trailing_comma(_rng: Random, _text: str, given: Draft) -> str | None:
    return _compact(given)[:-1] + ",}" if given.asked.value else None


@TABLE.text("not_json")
def comment_inside(rng: Random, text: str, _given: Draft) -> str:
    return text.replace("{", rng.choice(("{ // note\n", "{ /* note */ ", "{ # note\n")), 1)


@TABLE.text("not_json")
def bare_names(_rng: Random, _text: str, given: Draft) -> str | None:
    text = _compact(given)
    bare = re.sub(r'^\{"([a-z0-9]+)"', r"{\1", text)
    return None if bare == text else bare


@TABLE.text("not_json")
def full_width_punctuation(_rng: Random, text: str, _given: Draft) -> str:
    return text.rstrip()[:-1] + "\uff5d"


@TABLE.text("not_json", "schema_violation")
def nested_without_end(rng: Random, _text: str, _given: Draft) -> str:
    depth = rng.choice((70, 2_000, 20_000))
    return "[" * depth + "]" * rng.choice((0, depth))


@TABLE.text("not_json", "whitespace_runaway", seen_as=["vllm#38696", "xgrammar#212"])
def white_space_without_end(rng: Random, _text: str, _given: Draft) -> str:
    return '{"q":' + rng.choice((" ", "\n", "\t", " \n")) * 900


@TABLE.text("empty", seen_as=["vllm#19222"], any_text=True)
def no_text(_rng: Random, _text: str, _given: Draft) -> str:
    return ""


@TABLE.text("empty", "whitespace_runaway", any_text=True)
def only_white_space(rng: Random, _text: str, _given: Draft) -> str:
    return rng.choice((" ", "\n", "\r\n\t ", " " * 40))


@TABLE.text("schema_violation", seen_as=["vllm#56556", "vllm#45592", "xgrammar#968", "litellm#10674"])
def against_the_schema(rng: Random, _text: str, given: Draft) -> str | None:
    if given.sample is None:
        return None
    try:
        return text_of(rng, violation(rng, given.sample))
    except LookupError:
        return None


@TABLE.text("schema_violation", seen_as=["vllm#11363"], any_text=True)
def json_in_a_string(_rng: Random, text: str, _given: Draft) -> str:
    return json.dumps(text)


@TABLE.text("schema_violation", any_text=True)
def in_a_list(_rng: Random, text: str, _given: Draft) -> str:
    return f"[{text}]"


@TABLE.text("schema_violation", seen_as=["vllm#11363"])
def the_schema_itself(_rng: Random, _text: str, given: Draft) -> str | None:
    text = json.dumps(given.asked.schema)
    return None if given.asked.accepts(text) else text


@TABLE.text(
    "truncated",
    "whitespace_runaway",
    finish="length",
    kind=Kind.NAMED,
    seen_as=["openai-python#1763"],
    any_text=True,
)
def cut_by_the_token_limit(rng: Random, text: str, _given: Draft) -> str:
    return text[: rng.randrange(len(text.rstrip()))]


@TABLE.text("whitespace_runaway", finish="length", seen_as=["vllm#44619", "vllm#54497"])
def white_space_to_the_token_limit(rng: Random, _text: str, _given: Draft) -> str:
    return '{"q":' + rng.choice((" ", "\n", "\t")) * 900


@TABLE.entry(Kind.FAULT, "empty", "in_reasoning", seen_as=["vllm#50948", "vllm#19222"])
def answer_in_the_reasoning(given: Draft) -> Wire | None:
    # Where a call is only allowed, an answer without one is none's fault.
    if isinstance(given.way.carrier, CompletionText) or given.way.name == "tool strict":
        return None
    name = given.rng.choice(("reasoning", "reasoning_content"))
    text = given.choices[0].text
    return given.with_one(Spoken(given.rng.choice((None, "")), "stop", {name: text}))


@TABLE.entry(Kind.FAULT, "finish_abnormal", seen_as=["sglang#25388"])
def ended_abnormally(given: Draft) -> Wire:
    text = given.choices[0].text or ""
    cut = text[: given.rng.randrange(len(text))]
    return given.with_one(Spoken(given.rng.choice((text, cut)), given.rng.choice(("abort", "cancelled"))))


def still_an_answer(given: Draft) -> bool:
    """Whether a spoilt answer is, to the independent judgement, one that was asked for."""
    return given.spoilt is not None and all(given.asked.accepts(text or "") for text in given.spoilt)
