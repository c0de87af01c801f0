"""Says in one line why a pod does not run, in the words of engine, kubelet or scheduler. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from structuredllm_operator.api.conditions import Reason, truncate
from structuredllm_operator.plan.observed import Pod, Termination

PULL_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOG_PREFIX: Final = re.compile(
    r"^(\([A-Za-z0-9_]+ pid=\d+\)\s*)?"
    r"((ERROR|WARNING|INFO|CRITICAL)\s+\d\d-\d\d \d\d:\d\d:\d\d\s+)?"
    r"(\[[^\]]+:\d+\]\s*)?"
)
_ERROR: Final = re.compile(r"\b[\w.]*(Error|Exception|Mismatch|Failed)\b ?:|\berror:", re.IGNORECASE)
_GENERIC: Final = ("Engine core initialization failed", "See root cause above", "process was terminated")
_CONTINUES: Final = re.compile(r"validation errors? for \w+$|:$")

MAX_LINE: Final = 400
"""Longest line quoted from an engine, in characters."""


@dataclass(frozen=True)
class Failure:
    """Why a pod does not run. `time` is RFC 3339 text, empty when Kubernetes gives none."""

    pod: str
    reason: str
    message: str
    time: str = ""


def find_failure(pod: Pod) -> Failure | None:
    """Return why the pod does not run, or None when it runs or is merely starting."""
    if pod.terminating or pod.container_ready:
        return None
    if pod.unschedulable:
        return Failure(pod.name, Reason.UNSCHEDULABLE, f"no node takes the pod: {pod.unschedulable}")
    if pod.waiting_reason in PULL_REASONS:
        return Failure(
            pod.name,
            Reason.IMAGE_PULL_FAILED,
            f"{pod.waiting_reason}: {pod.waiting_message or 'the image cannot be pulled'}; check"
            " spec.engine.image",
        )
    if pod.last_termination is not None:
        looping = pod.waiting_reason == "CrashLoopBackOff"
        return Failure(
            pod.name,
            Reason.CRASH_LOOP if looping else Reason.ENGINE_CRASHED,
            describe_crash(pod),
            pod.last_termination.finished_at,
        )
    if pod.waiting_reason.startswith("Create") or pod.waiting_reason == "RunContainerError":
        return Failure(pod.name, Reason.PENDING, f"{pod.waiting_reason}: {pod.waiting_message}")
    return None


def describe_crash(pod: Pod) -> str:
    """Return a sentence about the last end of the engine container, with its own most telling line."""
    end = pod.last_termination
    if end is None:
        return ""
    times = f", restarted {pod.restart_count} times" if pod.restart_count > 1 else ""
    return f"the engine ended with exit code {end.exit_code}{_kind(end)}{times}: {telling_line(end.message)}"


def telling_line(text: str) -> str:
    """Return the line of a log tail that names the cause.

    That is the last line with an error, but not one that only points at another ("see root cause above"); a
    line that announces details (pydantic's "1 validation error for X") takes the next one along. Without any
    error line it is the last line; for an empty text it says where to look.
    """
    lines = [_strip(line) for line in text.splitlines()]
    lines = [line for line in lines if line]
    errors = [index for index, line in enumerate(lines) if _ERROR.search(line)]
    telling = [index for index in errors if not any(words in lines[index] for words in _GENERIC)]
    chosen = (telling or errors or [len(lines) - 1])[-1]
    if chosen < 0:
        return "it left no message; see kubectl logs --previous"
    line = lines[chosen]
    if _CONTINUES.search(line) and chosen + 1 < len(lines):
        line = f"{line} {lines[chosen + 1]}"
    return truncate(line, MAX_LINE)


def _strip(line: str) -> str:
    return _LOG_PREFIX.sub("", _ANSI.sub("", line)).strip()


def _kind(end: Termination) -> str:
    return f" ({end.reason})" if end.reason not in ("", "Error", "Completed") else ""
