"""Why a download failed, as a reason of the condition ModelReady. Imports the reasons only."""

import errno
from typing import Final

from structuredllm_operator.api.conditions import Reason

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class DownloadError(Exception):
    """The model is not there. `reason` is a condition reason; the text says what and what to do."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def from_os_error(error: OSError, where: str) -> DownloadError:
    """Return what a failed write or read of the claim means.

    Args:
        error: what the operating system said.
        where: the folder that was written.
    """
    words = error.strerror or str(error)
    if error.errno in _FULL:
        return DownloadError(
            Reason.DISK_FULL, f"the claim is full ({words}, {where}): enlarge it, or remove other models"
        )
    if error.errno in _REFUSED:
        return DownloadError(
            Reason.CACHE_NOT_WRITABLE,
            f"the claim cannot be written ({words}, {where}): allow group 65532 to write,"
            " and mount it writable",
        )
    return DownloadError(
        Reason.DOWNLOAD_FAILED, f"the claim does not work ({words}, {where}): check its volume"
    )
