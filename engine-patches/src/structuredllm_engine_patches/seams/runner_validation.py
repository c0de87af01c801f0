"""p002: lift upstream's refusal of pipeline + asynchronous scheduling on the V1 model runner.

Only that entry of the list of unsupported features, only while the cures (p001, p045) are in place in this
process, and not together with speculative decoding, whose draft checks on the V1 runner have open faults of
their own.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

REFUSED_FEATURE = "pipeline parallelism with async scheduling"

Features = Callable[[Any], list[str]]


def build_features(original: Features, *, is_cured: Callable[[], bool]) -> Features:
    """Return the replacement of `VllmConfig._get_v1_model_runner_unsupported_features`.

    Args:
        original: upstream's method.
        is_cured: asked at each call where upstream refuses, not before.
    """

    @wraps(original)
    def unsupported_features(config: Any) -> list[str]:
        features = original(config)
        if REFUSED_FEATURE not in features or config.speculative_config is not None or not is_cured():
            return features
        return [feature for feature in features if feature != REFUSED_FEATURE]

    return unsupported_features
