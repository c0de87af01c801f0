"""Messages between the pool, its fork server and its workers: a JSON header and a blob, with their lengths.

Pure; bounded on both sides, so that neither a wild length nor a huge result can fill the reader's memory.
"""

import json
import struct
from typing import Any

_LENGTHS = struct.Struct(">II")
MAX_HEADER_BYTES = 1 << 20
MAX_BLOB_BYTES = 1 << 30

Frame = tuple[dict[str, Any], bytes]


class FrameError(ValueError):
    """The bytes are not a frame, or one that is too long."""


def encode(header: dict[str, Any], blob: bytes = b"") -> bytes:
    """Return the bytes of a frame.

    Raises:
        FrameError: header or blob is longer than a reader takes.
    """
    text = json.dumps(header).encode()
    if len(text) > MAX_HEADER_BYTES or len(blob) > MAX_BLOB_BYTES:
        raise FrameError(f"a frame of {len(text)} + {len(blob)} bytes is longer than a reader takes")
    return _LENGTHS.pack(len(text), len(blob)) + text + blob


class FrameReader:
    """Puts frames together from pieces of a stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take a piece and return the frames that it completes.

        Raises:
            FrameError: the stream is not one of frames; give it up.
        """
        self._buffer += data
        frames: list[Frame] = []
        while len(self._buffer) >= _LENGTHS.size:
            header_length, blob_length = _LENGTHS.unpack_from(self._buffer)
            if header_length > MAX_HEADER_BYTES or blob_length > MAX_BLOB_BYTES:
                raise FrameError(f"lengths {header_length} and {blob_length} are too large")
            start, middle = _LENGTHS.size, _LENGTHS.size + header_length
            end = middle + blob_length
            if len(self._buffer) < end:
                break
            try:
                header = json.loads(self._buffer[start:middle])
            except ValueError as error:
                raise FrameError(f"a header is not JSON: {error}") from None
            if not isinstance(header, dict):
                raise FrameError("a header is not a JSON object")
            frames.append((header, bytes(self._buffer[middle:end])))
            del self._buffer[:end]
        return frames
