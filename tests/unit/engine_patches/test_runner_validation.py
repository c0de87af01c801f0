"""p002 lifts one refusal, only while its faults are cured and without speculative decoding."""

from types import SimpleNamespace
from typing import Any

import pytest

from structuredllm_engine_patches.seams.runner_validation import REFUSED_FEATURE, build_features


def upstream(config: Any) -> list[str]:
    return [*config.features]


@pytest.mark.parametrize(
    ("features", "speculative", "cured", "expected"),
    [
        ([REFUSED_FEATURE, "diffusion models"], None, True, ["diffusion models"]),
        ([REFUSED_FEATURE], None, False, [REFUSED_FEATURE]),
        ([REFUSED_FEATURE], object(), True, [REFUSED_FEATURE]),
        (["diffusion models"], None, True, ["diffusion models"]),
        ([], None, True, []),
    ],
)
def test_lifts_only_that_refusal(
    features: list[str], speculative: object, cured: bool, expected: list[str]
) -> None:
    method = build_features(upstream, is_cured=lambda: cured)
    assert method(SimpleNamespace(features=features, speculative_config=speculative)) == expected


def test_does_not_ask_for_the_cures_where_nothing_is_refused() -> None:
    def ask() -> bool:
        raise AssertionError("would import the engine core's module for nothing")

    method = build_features(upstream, is_cured=ask)
    assert method(SimpleNamespace(features=["x"], speculative_config=None)) == ["x"]
