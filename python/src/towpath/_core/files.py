"""Operations of the files protocol (docs/protocol/files.md), without a socket, file, thread or clock.

An operation is fed with messages and returns what has happened; `take` has the messages to send. All of an operation's messages go over
one connection, on which nothing else happens meanwhile but the end of an earlier, cancelled operation.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple, Union

from ..errors import ProtocolError, files_error

CONTROL, DATA = b"TOW1", b"TOWD"
END, ZSTD, HOLE = 1, 2, 4

PATH_BYTES_MAX, NAME_BYTES_MAX = 4096, 255
JSON_BYTES_MAX = 1 << 20
FETCH_FILES_MAX = 4096
RANGES_MAX = 1024
CHUNK_BYTES, CHUNK_BYTES_MAX = 1 << 20, 4 << 20
DATA_ENTRIES_MAX = 1024
PIECE_COST_LEAST = 256
_ENTRIES_MAX = 4096
_HEADER = struct.Struct(">4sBBHI")
_ENTRY = struct.Struct(">IB3sQQQ")

Buffer = Union[bytes, memoryview]
Message = List[Buffer]


@dataclass(frozen=True)
class Entry:
    """A file, directory or link of a server.

    path: from the root, with `/`; bytes that aren't UTF-8 are surrogates, as of os.fsdecode. type: `file`, `dir`, `link`, `other`, or `error`
    for something that the server couldn't read (`message` says why). size: bytes. mtime_ns: nanoseconds since 1970. mode: permission bits.
    target: of a link. digest: BLAKE3, 64 hex digits, if it was asked for.
    """

    path: str
    type: str
    size: int = 0
    mtime_ns: int = 0
    mode: int = 0
    target: str | None = None
    digest: str | None = None
    message: str | None = None

    @property
    def name(self) -> str:
        """The last name of the path."""
        return self.path.rpartition("/")[2]

    @property
    def mtime(self) -> float:
        """Seconds since 1970."""
        return self.mtime_ns / 1e9

    @property
    def is_dir(self) -> bool:
        return self.type == "dir"


def clean(path: str) -> str:
    """A caller's path without slashes around it. ValueError: it could leave the root, or is too long."""
    path = path.strip("/")
    if path == ".":
        return ""
    problem = path_problem(path)
    if path and problem:
        raise ValueError(f"{path!r}: {problem}")
    return path


def path_problem(path: str) -> str | None:
    """Why this is no path below a root; None: it is one, and not the root itself."""
    encoded = path.encode("utf-8", "surrogateescape")
    if len(encoded) > PATH_BYTES_MAX:
        return f"a path has at most {PATH_BYTES_MAX} bytes"
    for name in encoded.split(b"/"):
        if name in (b"", b".", b"..") or b"\0" in name:
            return "a name is empty, `.` or `..`, or has a NUL"
        if len(name) > NAME_BYTES_MAX:
            return f"a name has at most {NAME_BYTES_MAX} bytes"
    return None


def path_member(path: str, name: str = "path") -> Dict[str, str]:
    """A path as a member of JSON."""
    try:
        path.encode()
        return {name: path}
    except UnicodeEncodeError:
        return {f"{name}_b64": base64.b64encode(path.encode("utf-8", "surrogateescape")).decode()}


def path_of(members: Dict[str, Any], name: str = "path") -> str:
    """A path of a server. ProtocolError: it isn't one below a root."""
    path = _text(members, name)
    if path is None:
        raise ProtocolError(f"an entry has no {name}")
    problem = path_problem(path)
    if problem:
        raise ProtocolError(f"a path of the server, {path!r}: {problem}")
    return path


def _text(members: Dict[str, Any], name: str) -> str | None:
    encoded = members.get(f"{name}_b64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True).decode("utf-8", "surrogateescape")
        except (ValueError, TypeError):
            raise ProtocolError(f"{name}_b64 isn't base64") from None
    value = members.get(name)
    if value is not None and not isinstance(value, str):
        raise ProtocolError(f"{name} isn't text")
    return value


def number(members: Dict[str, Any], name: str, default: int | None = None) -> int:
    """A member that is a number from 0. ProtocolError: it isn't."""
    value = members.get(name, default)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ProtocolError(f"{name} isn't a number from 0, but {value!r:.100}")
    return value


def time_ns(members: Dict[str, Any]) -> int:
    value = members.get("mtime", [0, 0])
    if not (isinstance(value, list) and len(value) == 2 and all(type(part) is int and abs(part) < 1 << 62 for part in value)):
        raise ProtocolError(f"mtime isn't two numbers, but {value!r:.100}")
    return int(value[0]) * 10**9 + int(value[1])


def digest_of(members: Dict[str, Any]) -> str | None:
    digest = members.get("digest")
    if digest is not None and (not isinstance(digest, str) or len(digest) != 64 or digest.strip("0123456789abcdef")):
        raise ProtocolError(f"a digest has 64 hex digits, and this is {digest!r:.100}")
    return digest


def entry_of(members: Dict[str, Any]) -> Entry:
    """An entry of a listing or a change. ProtocolError: malformed."""
    if not isinstance(members, dict) or not isinstance(members.get("type"), str):
        raise ProtocolError("an entry has no type")
    return Entry(
        path=path_of(members),
        type=members["type"],
        size=number(members, "size", 0),
        mtime_ns=time_ns(members),
        mode=number(members, "mode", 0),
        target=_text(members, "target"),
        digest=digest_of(members),
        message=str(members["message"]) if "message" in members else None,
    )


def request(op: str, **members: Any) -> Message:
    """A control message."""
    return [CONTROL, json.dumps({"op": op, **members}, separators=(",", ":")).encode()]


def control(message: Sequence[Buffer]) -> Dict[str, Any]:
    """The object of a control message. ProtocolError: it is none."""
    if len(message) < 2 or bytes(message[0]) != CONTROL or len(message[1]) > JSON_BYTES_MAX:
        raise ProtocolError(f"a message begins with {bytes(message[0][:16])!r}; is it a file server?")
    try:
        answer = json.loads(bytes(message[1]))
    except ValueError:
        raise ProtocolError("a control message isn't JSON") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("re"), str):
        raise ProtocolError("a control message isn't an answer")
    return answer


def pieces(header: bytes) -> Tuple[int, List[Tuple[int, int, int, int, int]]]:
    """Id and entries of the header of a data message: n, flags, offset, length, body's length. ProtocolError: malformed."""
    if len(header) < _HEADER.size or header[:4] != DATA:
        raise ProtocolError("the header of a data message is too short")
    _, version, reserved, count, id = _HEADER.unpack_from(header)
    if version != 1 or reserved or not 0 < count <= DATA_ENTRIES_MAX or len(header) != _HEADER.size + _ENTRY.size * count:
        raise ProtocolError("the header of a data message is malformed")
    entries = []
    for n, flags, zeros, offset, length, body_length in _ENTRY.iter_unpack(header[_HEADER.size :]):
        is_sound = zeros == b"\0\0\0" and n < FETCH_FILES_MAX and offset + length < 1 << 63 and (length or flags & END)
        encoding = flags & ~END
        if encoding == HOLE:
            is_sound = is_sound and body_length == 0
        elif encoding == ZSTD:
            is_sound = is_sound and 0 < body_length <= length <= CHUNK_BYTES_MAX
        else:
            is_sound = is_sound and encoding == 0 and body_length == length <= CHUNK_BYTES_MAX
        if not is_sound:
            raise ProtocolError("a piece is malformed")
        entries.append((n, flags, offset, length, body_length))
    return id, entries


class Credit:
    """Bytes that the server of one connection may send: granted, and not used yet."""

    def __init__(self) -> None:
        self.left = 0

    def used(self, body_bytes: int) -> None:
        self.left -= max(body_bytes, PIECE_COST_LEAST)

    def grant(self, window: int) -> List[Message]:
        """Raises the credit to `window`, once half of it is used."""
        if self.left > window // 2:
            return []
        missing, self.left = window - self.left, window
        return [request("credit", bytes=missing)]


class Operation:
    """One operation. `id`: unique on its connection for as long as that lasts."""

    def __init__(self, id: int, path: str = "") -> None:
        self.id = id
        self.is_over = False
        self._path = path
        self._out: List[Message] = []

    def take(self) -> List[Message]:
        """Messages to send now."""
        out, self._out = self._out, []
        return out

    def feed(self, message: Sequence[Buffer]) -> List[Any]:
        """Takes a message. FilesError: the server's; the operation is over. ProtocolError: the connection is useless."""
        if bytes(message[0][:4]) == DATA:
            return self._on_data(message)
        answer = control(message)
        if answer["re"] == "error" and answer.get("id", self.id) == self.id:
            self.is_over = True
            raise files_error(str(answer.get("code")), str(answer.get("message")), self._path)
        if answer.get("id") != self.id:
            return []
        return self._on_answer(answer, message)

    def _on_data(self, message: Sequence[Buffer]) -> List[Any]:
        raise ProtocolError("a data message that answers nothing")

    def _on_answer(self, answer: Dict[str, Any], message: Sequence[Buffer]) -> List[Any]:
        raise NotImplementedError


class Ask(Operation):
    """An operation with one answer, which is what happens."""

    def __init__(self, id: int, op: str, members: Dict[str, Any]) -> None:
        super().__init__(id, str(members.get("path", "")))
        self._out.append(request(op, id=id, **members))

    def _on_answer(self, answer: Dict[str, Any], message: Sequence[Buffer]) -> List[Any]:
        self.is_over = True
        return [(answer, list(message[2:]))]


class List_(Operation):
    """A listing: entries as they come. `base`, after the first page: what the path is."""

    def __init__(self, id: int, *, path: str | None, glob: str | None, recursive: bool, digest: bool, follow_links: str | None) -> None:
        super().__init__(id, path or glob or "")
        members: Dict[str, Any] = {"glob": glob} if glob is not None else path_member(path or "")
        if recursive:
            members["recursive"] = True
        if digest:
            members["digest"] = True
        if follow_links:
            members["follow_links"] = follow_links
        self._out.append(request("list", id=id, **members))
        self.base = ""
        self.own = Entry("", "dir")

    def _on_answer(self, answer: Dict[str, Any], message: Sequence[Buffer]) -> List[Any]:
        entries = answer.get("entries")
        if answer["re"] != "list" or not isinstance(entries, list) or len(entries) > _ENTRIES_MAX:
            raise ProtocolError("a page of a listing is malformed")
        if not self.base:
            self.base = str(answer.get("base", "dir"))
            own = answer.get("dir")
            if isinstance(own, dict):
                self.own = Entry(self._path, "dir", mode=number(own, "mode", 0), mtime_ns=time_ns(own))
        self.is_over = not answer.get("more")
        if not self.is_over:
            self._out.append(request("more", id=self.id))
        return [entry_of(entry) for entry in entries]


    def entry(self, first: Entry | None) -> Entry:
        """The entry of the path itself, once `first` has come, or the listing is over. NotFound: there is none."""
        if self.base == "dir":
            return self.own
        if first is None:
            raise files_error("not-found", "no such file", self._path)
        return first


def stat_of(id: int, path: str, digest: bool, follow_links: bool) -> List_:
    """The listing that a path's own entry is found by."""
    return List_(id, path=path, glob=None, recursive=False, digest=digest, follow_links="path" if follow_links else None)


@dataclass(frozen=True)
class Metadata:
    """Metadata of a file in a fetch."""

    n: int
    size: int
    mtime_ns: int
    mode: int
    digest: str | None


@dataclass(frozen=True)
class Piece:
    """A range of a file; a hole has no data. `data` may be memory of the message, which lives as long as it does."""

    n: int
    offset: int
    length: int
    data: Buffer | None


@dataclass(frozen=True)
class Digest:
    """The digest of a file, if its metadata didn't have it."""

    n: int
    digest: str


@dataclass(frozen=True)
class Ended:
    """The end of a file: complete and unchanged if `error` is None."""

    n: int
    error: Exception | None


class _File:
    """What is expected of a file."""

    __slots__ = ("path", "ranges", "size", "position", "range", "is_over")

    def __init__(self, path: str, ranges: Sequence[Tuple[int, int]] | None) -> None:
        self.path = path
        self.ranges = ranges
        self.size = -1
        # Where the next piece begins, and the range that it is in.
        self.position = ranges[0][0] if ranges else 0
        self.range = 0
        self.is_over = False

    def take(self, offset: int, length: int) -> None:
        """Checks that a piece is the next one that was asked for."""
        if self.size < 0 or self.is_over or offset + length > self.size:
            raise ProtocolError(f"{self.path}: a piece that belongs nowhere")
        if self.ranges is None:
            if offset != self.position:
                raise ProtocolError(f"{self.path}: pieces out of order")
        else:
            while self.range < len(self.ranges) and self.position == sum(self.ranges[self.range]):
                self.range += 1
                self.position = self.ranges[self.range][0] if self.range < len(self.ranges) else -1
            if self.range == len(self.ranges) or offset != self.position or offset + length > sum(self.ranges[self.range]):
                raise ProtocolError(f"{self.path}: a piece that wasn't asked for")
        self.position = offset + length

    @property
    def is_complete(self) -> bool:
        """Whether all that was asked for, and exists, has come."""
        if self.ranges is None:
            return self.position == self.size
        rest = [(o, n) for o, n in self.ranges[self.range :] if o < self.size]
        return not rest or (len(rest) == 1 and self.position == min(sum(rest[0]), self.size))


class Fetch(Operation):
    """Contents of files: `Metadata`, `Piece`, `Digest` and `Ended`, in order for each file, files in the order asked for.

    files: paths, with ranges (offset, length) that ascend, or None for all. digest: `now`, `later` or `none`.
    """

    def __init__(
        self, id: int, credit: Credit, files: Sequence[Tuple[str, Sequence[Tuple[int, int]] | None]], *, window: int, digest: str = "later"
    ) -> None:
        super().__init__(id, files[0][0] if len(files) == 1 else "")
        if not 0 < len(files) <= FETCH_FILES_MAX:
            raise ValueError(f"a fetch has 1 to {FETCH_FILES_MAX} files")
        self._files = [_File(path, ranges) for path, ranges in files]
        self._credit = credit
        self.window = window
        asked: List[Dict[str, Any]] = []
        for path, ranges in files:
            asked.append(path_member(path) if ranges is None else {**path_member(path), "ranges": [list(pair) for pair in ranges]})
        self._out.append(request("fetch", id=id, chunk_bytes=CHUNK_BYTES, digest=digest, files=asked))
        self._out += credit.grant(window)

    def _on_data(self, message: Sequence[Buffer]) -> List[Any]:
        id, entries = pieces(bytes(message[0]))
        if len(entries) != len(message) - 1:
            raise ProtocolError("a data message has another number of bodies than its header says")
        events: List[Any] = []
        for (n, flags, offset, length, body_length), body in zip(entries, message[1:]):
            self._credit.used(body_length)
            if len(body) != body_length or flags & ZSTD:
                raise ProtocolError("a body that its header doesn't announce")
            if id != self.id:
                # Of a fetch that was cancelled.
                continue
            if n >= len(self._files) or (length > CHUNK_BYTES and not flags & HOLE):
                raise ProtocolError("a piece that wasn't asked for")
            file = self._files[n]
            file.take(offset, length)
            if length:
                events.append(Piece(n, offset, length, None if flags & HOLE else body))
            if flags & END:
                events.append(self._end(n))
        self._out += self._credit.grant(self.window)
        return events

    def _end(self, n: int, error: Exception | None = None) -> Ended:
        file = self._files[n]
        if file.is_over:
            raise ProtocolError(f"{file.path}: it ends twice")
        if error is None and not file.is_complete:
            raise ProtocolError(f"{file.path}: it ends before all of it has come")
        file.is_over = True
        return Ended(n, error)

    def _index(self, members: Dict[str, Any]) -> int:
        n = number(members, "n")
        if n >= len(self._files):
            raise ProtocolError(f"there is no file {n} in this fetch")
        return n

    def _on_answer(self, answer: Dict[str, Any], message: Sequence[Buffer]) -> List[Any]:
        kind = answer["re"]
        if kind == "files":
            files = answer.get("files")
            if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
                raise ProtocolError("metadata is malformed")
            return [self._metadata(file) for file in files]
        if kind == "digest":
            digest = digest_of(answer)
            if digest is None:
                raise ProtocolError("a digest is missing")
            return [Digest(self._index(answer), digest)]
        if kind == "end":
            return [self._end(self._index(answer))]
        if kind == "void":
            n = self._index(answer)
            return [self._end(n, files_error(str(answer.get("code")), str(answer.get("message")), self._files[n].path))]
        if kind == "done":
            if not all(file.is_over for file in self._files):
                raise ProtocolError("a fetch is done before its files are")
            self.is_over = True
        return []

    def _metadata(self, members: Dict[str, Any]) -> Any:
        n = self._index(members)
        file = self._files[n]
        error = members.get("error")
        if isinstance(error, dict):
            return self._end(n, files_error(str(error.get("code")), str(error.get("message")), file.path))
        if file.size >= 0:
            raise ProtocolError(f"{file.path}: metadata comes twice")
        file.size = number(members, "size")
        return Metadata(n, file.size, time_ns(members), number(members, "mode", 0), digest_of(members))

    def cancel(self) -> List[Message]:
        """Ends it: nothing more of it counts."""
        if self.is_over:
            return []
        self.is_over = True
        return [request("cancel", id=self.id)]


class Push(Operation):
    """Sends a file: asks for ranges to read by `wants`, and happens to be pushed: the server's answer."""

    def __init__(self, id: int, path: str, members: Dict[str, Any]) -> None:
        super().__init__(id, path)
        self._size = int(members["size"])
        self._out.append(request("push", id=id, **path_member(path), **members))
        self._have: Dict[int, int] = {}
        self._chunk = 0
        self._credit = 0
        self._at = 0

    def _on_answer(self, answer: Dict[str, Any], message: Sequence[Buffer]) -> List[Any]:
        kind = answer["re"]
        if kind == "pushed":
            self.is_over = True
            return [answer]
        if kind == "push":
            have = answer.get("have")
            if not isinstance(have, list) or len(have) > RANGES_MAX:
                raise ProtocolError("the ranges that the server has are malformed")
            for pair in have:
                if not (isinstance(pair, list) and len(pair) == 2 and all(type(part) is int and part >= 0 for part in pair)):
                    raise ProtocolError("a range that the server has is malformed")
                self._have[pair[0]] = pair[1]
            self._chunk = number(answer, "chunk_bytes")
            self._credit += number(answer, "credit_bytes", 0)
            if not 4096 <= self._chunk <= 1 << 20:
                raise ProtocolError(f"a chunk of {self._chunk} bytes")
        elif kind == "credit":
            self._credit += number(answer, "bytes")
        return []

    def wants(self) -> Tuple[int, int] | None:
        """Offset and length of the piece that may be sent now."""
        if self._chunk == 0:
            return None
        self._at += self._have.pop(self._at, 0)
        end = min([start for start in self._have if start > self._at] + [self._size])
        length = min(end - self._at, self._chunk, self._credit)
        if length <= 0 or self._credit < PIECE_COST_LEAST:
            return None
        return self._at, length

    @property
    def sent(self) -> int:
        """Bytes of the file that the server has, or has been sent."""
        return self._at

    def piece(self, data: Buffer) -> Message:
        """The message with the piece that `wants` named."""
        length = len(data)
        header = _HEADER.pack(DATA, 1, 0, 1, self.id) + _ENTRY.pack(0, 0, b"", self._at, length, length)
        self._at += length
        self._credit -= max(length, PIECE_COST_LEAST)
        return [header, data]
