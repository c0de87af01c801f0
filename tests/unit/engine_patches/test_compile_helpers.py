"""Weight, cache and frames of the compile pool."""

import pytest

from structuredllm_engine_patches.compiling import frames
from structuredllm_engine_patches.compiling.jobs import CompileJob, Kind, Task, from_bytes, job_of, to_bytes
from structuredllm_engine_patches.guided.compile_cache import CompileCache
from structuredllm_engine_patches.guided.lanes import LaneLimits
from structuredllm_engine_patches.guided.weight import CAP, weight_of

HEAVY = LaneLimits(fast_slots=1, slow_slots=1).heavy_weight


@pytest.mark.parametrize(
    "spec",
    [
        "(a{0,99}){0,999}",
        "((((a{1,99}){1,99}){1,99}){1,99}){1,99}",
        "a{100000}",
        '{"type":"string","maxLength": 100000}',
        '{"type":"array","minItems":100000}',
        "x" * 30_000,
    ],
)
def test_what_looks_heavy(spec: str) -> None:
    assert weight_of(spec) >= HEAVY


@pytest.mark.parametrize(
    "spec", ["", "[a-z]{1,20}", '{"type":"string","maxLength":200,"pattern":"^[a-z ]{1,20}$"}', "(a+)+b"]
)
def test_what_looks_light(spec: str) -> None:
    assert weight_of(spec) < 1000


def test_weight_is_bounded_and_quick() -> None:
    assert weight_of("a{999999999}" * 5000) == CAP
    assert weight_of("{" * 100_000 + "1" * 100_000) >= 200_000


def test_cache_drops_the_least_recently_used_by_bytes() -> None:
    cache: CompileCache[str, str] = CompileCache(max_bytes=10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", None, "C")
    assert cache.size_bytes == 8
    cache.put("a", "A2", 1)
    assert (cache.get("a"), cache.size_bytes) == ("A2", 5)
    cache.put("huge", "H", 11)
    assert (cache.get("huge"), cache.size_bytes, len(cache)) == (None, 5, 2)


def test_cache_forgets_a_value() -> None:
    cache: CompileCache[str, list[str]] = CompileCache(max_bytes=10)
    value = ["a"]
    cache.put("a", value, 4)
    cache.put("b", ["a"], 4)
    assert cache.forget(value) == "a"
    assert cache.forget(value) is None
    assert (cache.size_bytes, len(cache)) == (4, 1)


def test_cache_remembers_failures_for_a_while_and_not_too_many() -> None:
    cache: CompileCache[str, str] = CompileCache(max_bytes=1, max_failures=2, failure_seconds=60)
    error = ValueError("bomb")
    cache.put_failure("bomb", error, now=0)
    assert cache.failure("bomb", now=59) is error
    assert cache.failure("bomb", now=60) is None
    for name in "abc":
        cache.put_failure(name, error, now=0)
    assert [name for name in "abc" if cache.failure(name, now=1)] == ["b", "c"]


def test_frames_survive_any_split() -> None:
    sent: list[frames.Frame] = [({"id": 1, "x": "ä"}, b"blob"), ({"id": 2}, b""), ({}, bytes(range(256)))]
    data = b"".join(frames.encode(header, blob) for header, blob in sent)
    for size in (1, 3, 7, len(data)):
        reader = frames.FrameReader()
        found = []
        for start in range(0, len(data), size):
            found += reader.feed(data[start : start + size])
        assert found == sent


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x02\xff\xff\xff\xff{}",
        b"\x00\x00\x00\x01\x00\x00\x00\x00{",
        b"\x00\x00\x00\x02\x00\x00\x00\x00[]",
    ],
)
def test_what_is_no_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.FrameReader().feed(data)


def test_a_header_that_is_too_long_is_not_written() -> None:
    with pytest.raises(frames.FrameError):
        frames.encode({"x": "y" * (1 << 20)})


@pytest.mark.parametrize("spec", ["", '{"a":"ä\x00\n"}', "\ud800 lone", "🙂" * 3])
def test_a_job_survives_its_frame(spec: str) -> None:
    job = CompileJob(Task.COMPILE, Kind.JSON_SCHEMA, spec, '{"any_whitespace": false}')
    ((header, blob),) = frames.FrameReader().feed(frames.encode(job.header(7), to_bytes(spec)))
    assert header["id"] == 7
    assert job_of(header, blob) == job
    assert from_bytes(to_bytes(spec)) == spec
