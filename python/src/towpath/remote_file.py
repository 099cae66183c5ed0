"""A file of a server as an ordinary file object."""

from __future__ import annotations

import io
from collections import deque
from typing import Any, Deque, Tuple

import blake3

from ._core.files import CHUNK_BYTES, Buffer, Digest, Ended, Fetch, Metadata, Piece
from ._files_link import Connection, Connections
from .errors import Changed, ConnectFailed, VerifyFailed, WrongKey

WINDOW_FIRST, WINDOW_LAST = 256 << 10, 8 << 20
# A seek ahead by at most so many bytes reads what is between.
SKIP_BYTES_MAX = 1 << 20


class RemoteFile(io.RawIOBase):
    """A file that is read from a server, seekable. It is for one thread at a time.

    All that is read is of the version that was opened: `Changed`, if the file has become another one. A file that is read from its beginning
    to its end, without a seek, is verified at the end by its digest (VerifyFailed); other reads aren't. A lost connection is replaced once; the
    next loss without a byte between is raised (ConnectFailed). size: bytes. mtime_ns: nanoseconds
    since 1970. timeout: seconds without anything from the server, then `Timeout`.
    """

    def __init__(self, connections: Connections, path: str, timeout: float | None) -> None:
        super().__init__()
        self.name = path
        self._connections, self._timeout = connections, timeout
        self._connection: Connection | None = None
        self._fetch: Fetch | None = None
        # Received bytes that weren't read yet, from `_buffered_at` on.
        self._buffers: Deque[Tuple[int, Buffer | None]] = deque()
        self._buffered_at = 0
        self._at = 0
        self._window = WINDOW_FIRST
        self._hasher: Any = blake3.blake3()
        self._hashed = 0
        self._digest: str | None = None
        found = next(event for event in connections.run(self._look, timeout) if isinstance(event, (Metadata, Ended)))
        if isinstance(found, Ended):
            raise found.error or Changed("changed", "no metadata", path)
        self.size, self.mtime_ns = found.size, found.mtime_ns

    def _look(self, connection: Connection) -> Fetch:
        return Fetch(connection.next_id(), connection.credit, [(self.name, [])], window=0, digest="none")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to a position, which may be past the end."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise ValueError(f"a position before the beginning: {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads until the buffer is full, or to the end of the file. The number of bytes that were read."""
        if self.closed:
            raise ValueError("the file is closed")
        with memoryview(buffer) as given, given.cast("B") as view:
            wanted = min(len(view), max(0, self.size - self._at))
            done = 0
            lost_at = -1
            while done < wanted:
                try:
                    done += self._take(view[done:wanted])
                except WrongKey:
                    raise
                except ConnectFailed:
                    self._drop()
                    if lost_at == done:
                        raise
                    lost_at = done
        return done

    def readall(self) -> bytes:
        """All bytes from here to the end."""
        rest = bytearray(max(0, self.size - self._at))
        self.readinto(rest)
        return bytes(rest)

    def _take(self, view: memoryview) -> int:
        """Moves some bytes at the position into a view."""
        if self._fetch is None or not 0 <= self._at - self._buffered_at <= SKIP_BYTES_MAX:
            self._begin()
        while not self._buffers or self._at >= self._buffered_at + self._buffers[0][0]:
            if self._buffers:
                self._buffered_at += self._buffers.popleft()[0]
            else:
                self._receive()
        length, data = self._buffers[0]
        skip = self._at - self._buffered_at
        count = min(length - skip, len(view))
        view[:count] = bytes(count) if data is None else data[skip : skip + count]
        self._verify(view[:count])
        self._at += count
        return count

    def _begin(self) -> None:
        """Asks for everything from the position on; credit limits how much of it comes."""
        if self._connection is None:
            self._connection = self._connections.take(self._timeout)
        elif self._fetch is not None:
            self._connection.send_all(self._fetch.cancel())
            self._window = WINDOW_FIRST
        self._buffers.clear()
        self._buffered_at = self._at
        ranges = None if self._at == 0 else [(self._at, self.size - self._at)]
        self._fetch = Fetch(self._connection.next_id(), self._connection.credit, [(self.name, ranges)], window=self._window)
        self._connection.send_all(self._fetch.take())

    def _receive(self) -> None:
        """Takes one message."""
        assert self._connection is not None and self._fetch is not None
        for event in self._fetch.feed(self._connection.receive(self._timeout)):
            if isinstance(event, Piece):
                self._buffers.append((event.length, event.data))
                # Who goes on reading gets more at a time.
                self._window = self._fetch.window = min(self._window * 2, WINDOW_LAST)
            elif isinstance(event, Metadata):
                self._digest = event.digest
                if (event.size, event.mtime_ns) != (self.size, self.mtime_ns):
                    raise Changed("changed", "the file was replaced while it was open", self.name)
            elif isinstance(event, Digest):
                self._digest = event.digest
            elif isinstance(event, Ended) and event.error is not None:
                raise event.error
        self._connection.send_all(self._fetch.take())

    def _verify(self, data: memoryview) -> None:
        """Hashes what is read from the beginning on, and compares at the end."""
        if self._hasher is None or self._at != self._hashed:
            self._hasher = None
            return
        self._hasher.update(data)
        self._hashed += len(data)
        if self._hashed == self.size:
            assert self._fetch is not None
            while self._digest is None and not self._fetch.is_over:
                self._receive()
            if self._digest != self._hasher.hexdigest():
                raise VerifyFailed(f"{self.name}: the content isn't that of its digest")

    def _drop(self) -> None:
        """Gives the connection back, or closes it, unless everything has come."""
        if self._connection is not None:
            self._connections.put(self._connection, self._fetch is None or self._fetch.is_over)
        self._connection = self._fetch = None

    def close(self) -> None:
        """Ends reading."""
        if not self.closed:
            self._drop()
        super().close()

    def __repr__(self) -> str:
        return f"<RemoteFile {self.name!r}, {getattr(self, 'size', '?')} bytes, chunks of {CHUNK_BYTES}>"
