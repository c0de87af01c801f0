from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from structuredllm_probe.errors import SseError
from structuredllm_probe.sse import SseParser

_LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
_TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


# Pieces whose order is free: line ends of all kinds, fields, comments, a byte order mark, odd bytes.
_STREAMS = st.lists(
    st.one_of(
        _LINE_ENDS,
        _TEXT.map(lambda text: b"data: " + text.encode()),
        st.sampled_from([b"data", b"data:", b": comment", b"event: x", b"\xef\xbb\xbf", b"\xff", b"junk"]),
    ),
    max_size=30,
).map(b"".join)


@given(_STREAMS, st.lists(st.integers(0, 400), max_size=8))
def test_any_split_gives_the_same_events(raw: bytes, cuts: list[int]) -> None:
    whole = SseParser().feed(raw)
    bounds = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    parser = SseParser()
    parts = [event for a, b in itertools.pairwise(bounds) for event in parser.feed(raw[a:b])]
    assert parts == whole
    parser = SseParser()
    assert [event for i in range(len(raw)) for event in parser.feed(raw[i : i + 1])] == whole


@given(st.lists(st.lists(_TEXT, min_size=1, max_size=3), max_size=5), _LINE_ENDS, st.booleans())
def test_events_are_read_as_written(events: list[list[str]], end: bytes, comment: bool) -> None:
    raw = b""
    for lines in events:
        raw += b": keep-alive" + end if comment else b""
        raw += b"".join(b"data: " + line.encode() + end for line in lines) + end
    assert SseParser().feed(raw) == ["\n".join(lines) for lines in events]


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\r", ["a", "b"]),
        (b"data:a\ndata:  b\n\n", ["a\n b"]),
        (b"data\n\n", [""]),
        (b": only a comment\n\n\n", []),
        (b"id: 1\nretry: 5\nevent: x\ndata: a\n\n", ["a"]),
        (b"data: unfinished\n", []),
        (b"\xef\xbb\xbfdata: bom\n\n", ["bom"]),
        (b"data: \xff\n\n", ["\ufffd"]),
        (b"", []),
    ],
)
def test_rules_of_the_format(raw: bytes, events: list[str]) -> None:
    assert SseParser().feed(raw) == events


def test_an_event_is_bounded_over_many_chunks() -> None:
    parser = SseParser(max_event_bytes=100)
    for _ in range(6):
        parser.feed(b"data: 0123456789\n")
    with pytest.raises(SseError, match="100 bytes"):
        parser.feed(b"data: 0123456789\n")


def test_a_line_without_end_is_bounded() -> None:
    with pytest.raises(SseError):
        SseParser(max_event_bytes=100).feed(b"x" * 101)


def test_keep_alive_comments_do_not_add_up() -> None:
    parser = SseParser(max_event_bytes=100)
    for _ in range(100):
        assert parser.feed(b": still here\n") == []
    assert parser.feed(b"data: a\n\n") == ["a"]
