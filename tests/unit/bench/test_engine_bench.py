"""Timelines, shares, ratios and the picture, from records made here."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tools.bench.engine.cases import PROFILES, Case, Kind
from tools.bench.engine.picture import draw
from tools.bench.engine.report import render
from tools.bench.engine.summary import summarize
from tools.bench.engine.timeline import RECORD, Pass, between, busy_shares, read_stages


def test_records_are_read_and_half_a_record_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "stage-0.bin").write_bytes(RECORD.pack(1.0, 2.0, 7) + RECORD.pack(3.0, 4.0, 8)[:5])
    assert read_stages(tmp_path, 2) == [[Pass(1.0, 2.0, 7)], []]


def test_shares_are_of_the_time_between_first_and_last_pass() -> None:
    stages = [[Pass(0, 1, 1), Pass(2, 3, 1)], [Pass(1, 2, 1), Pass(3, 4, 1)]]
    assert busy_shares(stages) == [0.5, 0.5]
    assert busy_shares(between(stages, 1.5, 3.0)) == pytest.approx([2 / 3, 1 / 3])
    assert busy_shares([[], []]) == [0.0, 0.0]


def test_summary_takes_the_worst_case_and_leaves_out_faulty_ones() -> None:
    results = [
        _result("sync", "structured", 48, 100.0),
        _result("sync", "structured", 16, 100.0),
        _result("sync", "unstructured", 48, 100.0),
        _result("async-patched", "structured", 48, 190.0),
        _result("async-patched", "structured", 16, 140.0),
        _result("async-patched", "unstructured", 48, 200.0, digest="other"),
        _result("async-upstream", "structured", 48, 999.0, state="faulty"),
        _result("async-upstream", "unstructured", 48, 100.0),
    ]
    found = summarize(results)
    assert found["structured_over_unstructured"] == 0.95
    assert found["structured_async_over_sync"] == 1.4
    assert found["unstructured_async_over_upstream"] == 2.0
    assert found["stage_time_used"] == 0.6
    assert found["upstream_faulty_cases"] == 1
    assert found["failed_cases"] == []
    assert found["same_tokens"]["cases"] == 4
    assert found["same_tokens"]["different"] == ["async-patched PP=3 a+b*tokens burst 48 unstructured"]


def test_a_faulty_case_of_our_own_arm_is_a_failure() -> None:
    (failed,) = summarize([_result("async-patched", "structured", 48, 1.0, state="faulty")])["failed_cases"]
    assert failed.startswith("async-patched PP=3 a+b*tokens burst 48 structured")


def test_the_drain_alone_has_its_own_figures() -> None:
    results = [
        _result("sync", "structured", 48, 100.0),
        _result("async-drain", "structured", 48, 99.0),
        _result("async-drain", "unstructured", 48, 110.0),
    ]
    found = summarize(results)
    assert found["structured_async_over_sync"] is None
    assert found["phases_off"]["structured_async_over_sync"] == 0.99
    assert found["phases_off"]["structured_over_unstructured"] == 0.9


def test_the_quick_profile_compares_what_the_goals_are_about() -> None:
    assert [arm.name for arm in PROFILES["quick"].arms(3)] == ["sync", "async-drain", "async-patched"]
    assert len(PROFILES["full"].arms(3)) == 4
    assert "async-drain" not in [arm.name for arm in PROFILES["full"].arms(2)]


def test_profiles_have_both_kinds_of_every_case_and_names_are_unique() -> None:
    for profile in PROFILES.values():
        cases = list(profile.cases())
        assert len({case.name for case in cases}) == len(cases)
        assert _without_kind(cases, Kind.PLAIN) == _without_kind(cases, Kind.STRUCTURED)


def test_picture_is_well_formed_and_shows_the_tokens() -> None:
    stages = [[Pass(0, 0.1, 16), Pass(0.1, 0.2, 17)], [Pass(0.1, 0.2, 16)]]
    root = ElementTree.fromstring(draw("a < b", ["note"], stages, 0.0, 0.5))  # noqa: S314 - made here
    texts = [element.text for element in root.iter() if element.text]
    assert {"16", "17", "a < b", "note", "stage 1"} <= set(texts)


def _without_kind(cases: list[Case], kind: Kind) -> list[str]:
    return [case.name.replace(case.kind.value, "") for case in cases if case.kind is kind]


def _result(
    arm: str, kind: str, requests: int, rate: float, state: str = "right", digest: str = "same"
) -> dict[str, Any]:
    return {
        "pipeline": 3,
        "arm": arm,
        "stage_time": "a+b*tokens",
        "arrival": "burst",
        "requests": requests,
        "kind": kind,
        "case": f"a+b*tokens burst {requests} {kind}",
        "tokens_per_second": rate,
        "stage_time_used": [0.5, 0.6],
        "state": state,
        "digest": digest,
        "inter_token_p50_ms": 90.0,
        "inter_token_p99_ms": 120.0,
        "answers": 4,
        "wrong": 0 if state == "right" else 3,
        "errors": [],
    }


def test_the_page_has_a_row_for_each_case_and_names_faulty_ones() -> None:
    found = {
        "profile": "quick",
        "machine": {
            "cpus": 2,
            "cpu": "x",
            "load_at_start": (0.1, 0.2, 0.3),
            "vllm": "0.32.0",
            "started": "t",
        },
        "summary": {"structured_async_over_sync": 1.5, "details": {}, "stage_time_used": None},
        "cases": [
            _result("sync", "structured", 48, 100.0),
            _result("async-upstream", "structured", 48, 9.0, state="faulty"),
            _result("async-patched", "structured", 48, 150.0),
        ],
        "mask_fill": {
            "structured_requests": 128,
            "step_of_pp3": {
                "requests": 43,
                "workers": 2,
                **{
                    way: {f"{part}_{q}_ms": ms for part in ("fill", "accept", "both") for q in ("p50", "p99")}
                    for way, ms in (("upstream", 2.0), ("patched", 1.0))
                },
            },
        },
    }
    page = render(found)
    row = next(line for line in page.splitlines() if line.startswith("| a+b*tokens burst 48 structured"))
    assert "| faulty: 3 of 4 wrong |" in row
    assert row.endswith("| 1.50 |")
    assert "| structured_async_over_sync | 1.5 |" in page
    assert "| pp3 | 43 | upstream | 2.0 / 2.0 | 2.0 / 2.0 | 2.0 / 2.0 |" in page
    assert "| pp3 | 43 | patched, 2 threads | 1.0 / 1.0 | 1.0 / 1.0 | 1.0 / 1.0 |" in page
