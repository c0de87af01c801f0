"""The one line of a log tail that names the cause."""

import pytest

from structuredllm_operator.plan.failures import find_failure, telling_line
from structuredllm_operator.plan.observed import Termination
from tests.unit.operator.builders import pod

MISSING_MODEL = """\
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "/venv/lib/python3.11/site-packages/vllm/config/model.py", line 1, in __post_init__
(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=7)   Value error, Invalid repository ID or local directory specified: '/models/none'
(APIServer pid=7)     For further information visit the documentation
"""

ENGINE_CORE = """\
(EngineCore pid=19) ERROR 11-30 10:58:02 [core.py:946] EngineCore failed to start.
(EngineCore pid=19) ERROR 11-30 10:58:02 [core.py:946] torch.OutOfMemoryError: CUDA out of memory.
(EngineCore pid=19) Process EngineCore:
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.
"""

DEAD_ENGINE = """\
(APIServer pid=7) ERROR 11-30 15:28:47 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: \
EngineCore encountered an issue. See stack trace (above) for the root cause.
INFO:     Finished server process [7]
(APIServer pid=7) CRITICAL 11-30 15:28:48 [leave.py:50] fatal error: the engine died: rank 0 \
(pipeline stage 0) was ended by SIGKILL (often the kernel, out of memory) (exit code 70)
resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 4 leaked shared_memory objects
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            MISSING_MODEL,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error,"
            " Invalid repository ID or local directory specified: '/models/none'",
        ),
        (ENGINE_CORE, "torch.OutOfMemoryError: CUDA out of memory."),
        (
            DEAD_ENGINE,
            "fatal error: the engine died: rank 0 (pipeline stage 0) was ended by SIGKILL (often the kernel,"
            " out of memory) (exit code 70)",
        ),
        ("\x1b[31mValueError: bad\x1b[0m\nbye", "ValueError: bad"),
        (
            "RuntimeError: Engine core initialization failed.",
            "RuntimeError: Engine core initialization failed.",
        ),
        ("one\ntwo\n", "two"),
        ("", "it left no message; see kubectl logs --previous"),
        ("vllm: error: unrecognized arguments: --nope", "vllm: error: unrecognized arguments: --nope"),
    ],
)
def test_the_telling_line(text: str, line: str) -> None:
    assert telling_line(text) == line


def test_an_endless_line_is_cut() -> None:
    assert len(telling_line("ValueError: " + "x" * 10_000)) == 400


def test_the_kernel_killing_the_engine_is_named() -> None:
    end = Termination(137, "OOMKilled", "", "2026-01-01T00:00:00Z")
    failure = find_failure(pod(container_ready=False, last_termination=end, restart_count=3))
    assert failure is not None
    assert "exit code 137 (OOMKilled), restarted 3 times" in failure.message


def test_a_pod_that_runs_or_ends_has_no_failure() -> None:
    end = Termination(1, "Error", "ValueError: x", "2026-01-01T00:00:00Z")
    assert find_failure(pod(last_termination=end)) is None
    assert find_failure(pod(terminating=True, container_ready=False, last_termination=end)) is None
