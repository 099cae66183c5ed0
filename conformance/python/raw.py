"""ZMTP 3.1 by hand on a plain socket, for bytes that no library would write."""

import contextlib
import socket
import struct

from conftest import DEADLINE_SECONDS

MORE, LONG, COMMAND = 1, 2, 4

GREETING = b"\xff" + bytes(8) + b"\x7f\3\1" + b"NULL".ljust(20, b"\0") + bytes(32)


def frame(body: bytes, flags=0) -> bytes:
    if len(body) < 256:
        return struct.pack(">BB", flags, len(body)) + body
    return header(len(body), flags) + body


def header(length: int, flags=0) -> bytes:
    """Header of a long frame whose body may never come."""
    return struct.pack(">BQ", flags | LONG, length)


def ready(kind=b"DEALER") -> bytes:
    name, value = b"Socket-Type", kind
    properties = struct.pack(">B", len(name)) + name + struct.pack(">I", len(value)) + value
    return frame(b"\5READY" + properties, COMMAND)


def message(*frames: bytes) -> bytes:
    return b"".join(frame(body, MORE) for body in frames[:-1]) + frame(frames[-1])


class Raw:
    """A connection before the greeting."""

    def __init__(self, server):
        host, _, port = server.endpoint.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), DEADLINE_SECONDS)

    def handshake(self) -> "Raw":
        self.send(GREETING + ready())
        assert len(self.receive(64)) == 64
        _flags, length = self.receive(2)
        assert self.receive(length).startswith(b"\5READY")
        return self

    def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionResetError("closed")
            data += more
        return data

    def send(self, data: bytes) -> None:
        """Sends all of it. The deadline is for each piece, as a peer may be held back for as long as others take."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.socket.send(rest) :]

    def is_closed(self) -> bool:
        """Reads and discards until the peer closes; fails if it doesn't."""
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(65_536):
                pass
        return True

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def connections(server, count: int):
    """This many connections, after the handshake."""
    raws = [Raw(server).handshake() for _ in range(count)]
    try:
        yield raws
    finally:
        for raw in raws:
            raw.close()
