"""Recognises in an engine's last words that its model is the trouble. Pure.

For engines that fetch or read the model themselves. The words are those of huggingface_hub 1.x, transformers
5.x, vLLM 0.32 and the C library; an unknown text stays an engine's crash.
"""

import re
from typing import Final

from structuredllm_operator.api.conditions import Reason

_WORDS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (Reason.DISK_FULL, re.compile(r"No space left on device|Disk quota exceeded|ENOSPC")),
    (
        Reason.REVISION_NOT_FOUND,
        re.compile(r"RevisionNotFoundError|Revision Not Found|is not a valid git identifier"),
    ),
    (
        Reason.AUTH_FAILED,
        re.compile(
            r"GatedRepoError|Cannot access gated repo|You are trying to access a gated repo"
            r"|Invalid (username or password|user token|credentials)|40[13] Client Error"
        ),
    ),
    (
        Reason.REPOSITORY_NOT_FOUND,
        re.compile(r"RepositoryNotFoundError|Repository Not Found|is not a valid model identifier"),
    ),
    (
        Reason.HUB_UNREACHABLE,
        re.compile(r"LocalEntryNotFoundError|OfflineModeIsEnabled|[Cc]ouldn't connect to .*hugging"),
    ),
    (
        Reason.MODEL_NOT_FOUND,
        re.compile(
            r"Invalid repository ID or local directory|does not appear to have a file named config\.json"
        ),
    ),
)

CURES: Final = {
    Reason.DISK_FULL: "give the node more ephemeral storage, or use spec.model.cache",
    Reason.REVISION_NOT_FOUND: "correct spec.model.revision",
    Reason.AUTH_FAILED: "correct the Secret of spec.model.secretRef, or accept the model's terms on the hub",
    Reason.REPOSITORY_NOT_FOUND: "correct spec.model.uri; a private repository needs spec.model.secretRef",
    Reason.HUB_UNREACHABLE: "check network policies and HF_ENDPOINT, or use spec.model.cache",
    Reason.MODEL_NOT_FOUND: "correct the path in spec.model",
}


def recognise(text: str) -> str | None:
    """Return the reason that an engine's last words stand for, None when they speak of something else."""
    return next((reason for reason, words in _WORDS if words.search(text)), None)
