"""Records of the numbered protocol (docs/protocol/requests.md), from and to bytes. Integers are big-endian."""

from __future__ import annotations

import struct
from typing import Any, Iterable, List, Sequence, Tuple, Union

from ..errors import ProtocolError

CLIENT_HEADER, WORKER_HEADER = b"TWPC02", b"TWPW02"

# Flags of records with a body.
FRAMES, ATTACHED, PART, VOLATILE, RESENT = 1, 2, 4, 8, 16

# Kinds of records.
HELLO, REQUEST, CONFIRM, CANCEL = 0x01, 0x02, 0x03, 0x04
WELCOME, REPLY, ACCEPTED, REFUSED = 0x41, 0x42, 0x43, 0x44
READY, WORKER_REPLY, CREDIT, LEAVING, RETURN = 0x81, 0x82, 0x83, 0x84, 0x85
WORKER_WELCOME, WORKER_REQUEST, WORKER_CANCEL, LEAVE, IDENTITY = 0xC1, 0xC2, 0xC3, 0xC4, 0xC5

SERVICE_BYTES_MAX = 255
BLOCK_BYTES_MAX = 64 << 20
FRAMES_MAX = 1000
REASON_BYTES_MAX = 255
# Larger bodies are attached, so that they are not copied into a block.
ATTACH_BYTES = 4096

_SIZE = struct.Struct(">I")
_HELLO = struct.Struct(">B16sQ")
_CONFIRM = struct.Struct(">BQI")
_CANCEL = struct.Struct(">BQ")
_WELCOME = struct.Struct(">BQIQB")
_REPLY = struct.Struct(">BBQHI")
_REPLY_PART = struct.Struct(">BBQHII")
_REFUSED = struct.Struct(">BQHIB")
_WORKER_REPLY = struct.Struct(">BB16sHI")
_WORKER_REPLY_PART = struct.Struct(">BB16sHII")
_WORKER_REQUEST = struct.Struct(">BB16sHII")
_RETURN = struct.Struct(">B16sB")
_IDENTITY = struct.Struct(">B16s16s")

Bytes = Union[bytes, bytearray, memoryview]


class Frames(bytes):
    """A body of several frames as it is in a record: each a length of 4 bytes and its bytes."""


# A body as it is sent: one frame, or several.
Payload = Union[Bytes, Frames]

# A body as it arrives: one frame, or several.
Received = Union[bytes, Tuple[bytes, ...]]


def several(frames: Sequence[Bytes]) -> Frames:
    """A body of several frames. ValueError: there are none, or more than 1000."""
    if not 0 < len(frames) <= FRAMES_MAX:
        raise ValueError(f"a body has 1 to {FRAMES_MAX} frames, not {len(frames)}")
    return Frames(b"".join(piece for frame in frames for piece in (_SIZE.pack(len(frame)), frame)))


def frames_of(body: bytes) -> Tuple[bytes, ...]:
    """The frames of a body that has several."""
    found: List[bytes] = []
    at = 0
    while at < len(body):
        if at + 4 > len(body) or len(found) == FRAMES_MAX:
            raise ProtocolError("a body of several frames is malformed")
        [length] = _SIZE.unpack_from(body, at)
        at += 4 + length
        if at > len(body):
            raise ProtocolError("a frame of a body ends too late")
        found.append(body[at - length : at])
    if not found:
        raise ProtocolError("a body of several frames has none")
    return tuple(found)


def service_name(service: Union[str, bytes]) -> bytes:
    """A service's name in bytes. ValueError: it is empty, or over 255 bytes."""
    name = service.encode() if isinstance(service, str) else bytes(service)
    if not 0 < len(name) <= SERVICE_BYTES_MAX:
        raise ValueError(f"a service's name has 1 to {SERVICE_BYTES_MAX} bytes, not {len(name)}")
    return name


def hello(client: bytes, first: int) -> bytes:
    return _HELLO.pack(HELLO, client, first)


def request_layout(service: bytes) -> struct.Struct:
    """Layout of a REQUEST to a service up to its body: kind, flags, number, ttl, name's length, name, body's length."""
    return struct.Struct(f">BBQIB{len(service)}sI")


def confirm(first: int, count: int) -> bytes:
    """CONFIRM of a range, in as many records as its count takes."""
    records = b""
    while count > 0:
        part = min(count, 0xFFFFFFFF)
        records += _CONFIRM.pack(CONFIRM, first, part)
        first, count = first + part, count - part
    return records


def cancel(number: int) -> bytes:
    return _CANCEL.pack(CANCEL, number)


def ready(credit: int, service: bytes) -> bytes:
    return struct.pack(">BIB", READY, credit, len(service)) + service


def credit(count: int) -> bytes:
    return struct.pack(">BI", CREDIT, count)


def give_back(token: bytes, reason: str) -> bytes:
    """RETURN: this worker can't begin the request."""
    text = reason.encode(errors="replace")[:REASON_BYTES_MAX]
    return _RETURN.pack(RETURN, token, len(text)) + text


def worker_reply(token: bytes, status: int, part: int | None, body: Payload, flags: int = 0) -> bytes:
    """A worker's REPLY up to the bytes of its body."""
    length = 0 if flags & ATTACHED else len(body)
    if isinstance(body, Frames):
        flags |= FRAMES
    if part is None:
        return _WORKER_REPLY.pack(WORKER_REPLY, flags, token, status, length)
    return _WORKER_REPLY_PART.pack(WORKER_REPLY, flags | PART, token, status, part, length)


class _Bodies:
    """The attached frame of a message, taken by at most one record."""

    def __init__(self, attached: bytes | None) -> None:
        self.attached = attached

    def take(self, flags: int, block: bytes, at: int, length: int) -> Received:
        """The body of a record, whose own bytes begin at `at`."""
        if flags & ATTACHED:
            body = self.attached
            if length or body is None or at != len(block):
                raise ProtocolError("a body is said to be attached, and is not")
            self.attached = None
        else:
            body = block[at : at + length]
            if len(body) != length:
                raise ProtocolError("a body ends too early")
        return frames_of(body) if flags & FRAMES else body


def to_client(block: bytes, attached: bytes | None) -> List[Tuple[Any, ...]]:
    """Records from a broker to a client:

    (REPLY, number, status, part or None, body), (WELCOME, epoch, requests, bytes, journal), (ACCEPTED, first, count),
    (REFUSED, number, status, retry in ms, reason). ProtocolError: malformed.
    """
    records: List[Tuple[Any, ...]] = []
    bodies = _Bodies(attached)
    at, end = 0, len(block)
    unpack = _REPLY.unpack_from
    append = records.append
    try:
        while at < end:
            kind = block[at]
            if kind == REPLY:
                _, flags, number, status, length = unpack(block, at)
                at += 16
                if flags == 0:
                    body: Received = block[at : at + length]
                    if len(body) != length:
                        raise ProtocolError("a body ends too early")
                    append((REPLY, number, status, None, body))
                else:
                    if flags & ~(FRAMES | ATTACHED | PART):
                        raise ProtocolError(f"a reply has the flags {flags}")
                    part = None
                    if flags & PART:
                        _, _, _, _, part, length = _REPLY_PART.unpack_from(block, at - 16)
                        at += 4
                    append((REPLY, number, status, part, bodies.take(flags, block, at, length)))
                at += length
            elif kind == WELCOME:
                append(_WELCOME.unpack_from(block, at))
                at += _WELCOME.size
            elif kind == ACCEPTED:
                append(_CONFIRM.unpack_from(block, at))
                at += _CONFIRM.size
            elif kind == REFUSED:
                _, number, status, retry_ms, length = _REFUSED.unpack_from(block, at)
                at += _REFUSED.size
                reason = block[at : at + length]
                if len(reason) != length:
                    raise ProtocolError("a reason ends too early")
                append((REFUSED, number, status, retry_ms, reason.decode(errors="replace")))
                at += length
            else:
                raise ProtocolError(f"a record of the kind {kind:#x} from a broker")
    except struct.error:
        raise ProtocolError("a record ends too early") from None
    if bodies.attached is not None:
        raise ProtocolError("a frame that no record announces")
    return records


def to_worker(block: bytes, attached: bytes | None) -> List[Tuple[Any, ...]]:
    """Records from a broker to a worker:

    (WORKER_REQUEST, token, attempt, ttl in ms, body), (WORKER_CANCEL, token), (IDENTITY, token, id), (LEAVE,),
    (WORKER_WELCOME, epoch). ProtocolError: malformed.
    """
    records: List[Tuple[Any, ...]] = []
    bodies = _Bodies(attached)
    at, end = 0, len(block)
    try:
        while at < end:
            kind = block[at]
            if kind == WORKER_REQUEST:
                _, flags, token, attempt, ttl_ms, length = _WORKER_REQUEST.unpack_from(block, at)
                if flags & ~(FRAMES | ATTACHED):
                    raise ProtocolError(f"a request has the flags {flags}")
                at += 28
                records.append((WORKER_REQUEST, token, attempt, ttl_ms, bodies.take(flags, block, at, length)))
                at += length
            elif kind == IDENTITY:
                records.append(_IDENTITY.unpack_from(block, at))
                at += _IDENTITY.size
            elif kind == WORKER_CANCEL:
                records.append(struct.unpack_from(">B16s", block, at))
                at += 17
            elif kind == LEAVE:
                records.append((LEAVE,))
                at += 1
            elif kind == WORKER_WELCOME:
                records.append(struct.unpack_from(">BQ", block, at))
                at += 9
            else:
                raise ProtocolError(f"a record of the kind {kind:#x} from a broker")
    except struct.error:
        raise ProtocolError("a record ends too early") from None
    if bodies.attached is not None:
        raise ProtocolError("a frame that no record announces")
    return records


def split(message: Sequence[bytes], header: bytes) -> Tuple[bytes, bytes | None]:
    """Block and attached frame of a message. ProtocolError: it isn't of this protocol."""
    if not 2 <= len(message) <= 3 or message[0] != header:
        raise ProtocolError(f"a message begins with {message[0][:16]!r} and has {len(message)} frames; is it a broker of numbered requests?")
    return message[1], message[2] if len(message) == 3 else None


class Blocks:
    """Messages of many records each, as they are to be sent."""

    def __init__(self, header: bytes, bytes_max: int = 256 << 10) -> None:
        self._header, self._bytes_max = header, bytes_max
        self._records: List[Bytes] = []
        self._bytes = 0
        self._messages: List[List[Bytes]] = []

    def add(self, record: Bytes) -> None:
        self._records.append(record)
        self._bytes += len(record)
        if self._bytes >= self._bytes_max:
            self._end()

    def extend(self, records: Iterable[Bytes], count: int) -> None:
        """Adds pieces of records that come to `count` bytes."""
        self._records.extend(records)
        self._bytes += count
        if self._bytes >= self._bytes_max:
            self._end()

    def attach(self, record: bytes, body: Bytes) -> None:
        """Adds a record with flag ATTACHED, and ends the block."""
        self._records.append(record)
        self._end(body)

    def _end(self, *attached: Bytes) -> None:
        if self._records:
            self._messages.append([self._header, b"".join(self._records), *attached])
            self._records, self._bytes = [], 0

    def take(self) -> List[List[Bytes]]:
        """All messages; leaves none."""
        self._end()
        messages, self._messages = self._messages, []
        return messages
