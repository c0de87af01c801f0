"""The register of patches: lists them, in the order of application."""

from structuredllm_engine_patches.patches import (
    p001_batch_queue_drain,
    p002_allow_v1_pp_async,
    p003_telemetry,
)

PATCHES = (
    p001_batch_queue_drain.PATCH,
    p002_allow_v1_pp_async.PATCH,
    p003_telemetry.PATCH,
)
