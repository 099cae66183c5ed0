"""Bodies from what callers pass, and replies for them."""

from __future__ import annotations

import mmap
import os
from typing import IO, Any, Sequence, Union

from ._core import records
from ._core.records import Payload, Received

# One frame (bytes, a buffer, a path or an open file), or a list of frames.
Body = Union[bytes, bytearray, memoryview, "os.PathLike[str]", IO[bytes], Sequence[bytes]]


def payload(body: Body) -> Payload:
    """A body as it is sent. Files are mapped, not read. str isn't accepted, since its encoding would be a guess.

    A buffer must not be changed before the request has its outcome: it may be sent again.
    """
    if type(body) is bytes:
        return body
    if isinstance(body, (bytes, bytearray)):
        return bytes(body) if len(body) < 64 << 10 else memoryview(body)
    if isinstance(body, memoryview):
        return body.cast("B") if body.contiguous else body.tobytes()
    if isinstance(body, str):
        raise TypeError("a body is bytes, not str: encode it")
    if isinstance(body, os.PathLike):
        with open(body, "rb") as file:
            return _mapped(file)
    if hasattr(body, "read"):
        return _mapped(body)
    if isinstance(body, (list, tuple)):
        return records.several(body)
    raise TypeError(f"a body is bytes, a file, or a list of bytes, not {type(body).__name__}")


def _mapped(file: Any) -> Payload:
    """Content of an open file, from where it is."""
    try:
        at, size = file.seek(0, os.SEEK_CUR), os.fstat(file.fileno()).st_size
    except (AttributeError, OSError):
        at, size = 0, 0
    # A pipe, a special file or a buffer has no size.
    if size <= at:
        return bytes(file.read())
    return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))[at:]


def joined(body: Received) -> bytes:
    """A reply as one bytes object."""
    return body if isinstance(body, bytes) else b"".join(body)


def frames(body: Received) -> list[bytes]:
    return [body] if isinstance(body, bytes) else list(body)
