"""The register of patches: lists them, in the order of application."""

from structuredllm_engine_patches.patches import (
    p001_batch_queue_drain,
    p002_allow_v1_pp_async,
    p003_telemetry,
    p007_error_causes,
    p008_recover,
    p009_dead_end,
    p020_error_reason,
    p021_error_serving,
    p022_error_handler,
    p023_error_responses,
    p024_verdict_once,
    p040_async_guard,
    p046_validation_causes,
)

PATCHES = (
    p001_batch_queue_drain.PATCH,
    p002_allow_v1_pp_async.PATCH,
    p003_telemetry.PATCH,
    p007_error_causes.PATCH,
    p008_recover.PATCH,
    p009_dead_end.PATCH,
    p020_error_reason.PATCH,
    p021_error_serving.PATCH,
    p022_error_handler.PATCH,
    p023_error_responses.PATCH,
    p024_verdict_once.PATCH,
    p040_async_guard.PATCH,
    p046_validation_causes.PATCH,
)
