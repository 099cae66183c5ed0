"""Majordomo clients and workers by hand, written from the tables of the protocols (RFC 7 and 18) and not from our code.

One thread can be all of them: each call sends one message or waits for one.
"""

import dataclasses

import zmq


@dataclasses.dataclass(frozen=True)
class Dialect:
    """Frames in front of those that all dialects have, and the bytes of commands."""

    name: str
    delimiter: list[bytes]
    client: bytes
    worker: bytes
    heartbeat: bytes
    disconnect: bytes
    # Commands with which a reply goes from a worker to the broker, and from the broker to a client: a part, the last part.
    from_worker: tuple[bytes, bytes]
    to_client: tuple[bytes, bytes] | None
    names_service: bool
    request: list[bytes]

    def __str__(self):
        return self.name


MDP01 = Dialect("0.1", [b""], b"MDPC01", b"MDPW01", b"\4", b"\5", (b"", b"\3"), None, True, [])
MDP02 = Dialect("0.2", [], b"MDPC02", b"MDPW02", b"\5", b"\6", (b"\3", b"\4"), (b"\2", b"\3"), True, [b"\1"])
MAJORTOMO = Dialect(
    "majortomo", [b""], b"MDPC02", b"MDPW02", b"\5", b"\6", (b"\3", b"\4"), (b"\3", b"\4"), False, [b"\2"]
)
DIALECTS = [MDP01, MDP02, MAJORTOMO]


class Client:
    """A client on a DEALER, or on a REQ, which makes the empty frame itself."""

    def __init__(self, socket, dialect=MDP01):
        self.socket, self.dialect = socket, dialect
        is_req = socket.type == zmq.REQ
        self.delimiter = [] if is_req else dialect.delimiter

    def send(self, service, *body) -> None:
        self.socket.send_multipart([*self.delimiter, self.dialect.client, *self.dialect.request, service, *body])

    def part(self, service) -> tuple[bool, list[bytes]]:
        """Returns whether the reply is the last one, and its frames."""
        frames = self.socket.recv_multipart()
        if self.delimiter:
            assert frames.pop(0) == b""
        assert frames.pop(0) == self.dialect.client
        command = frames.pop(0) if self.dialect.to_client else None
        if self.dialect.names_service:
            assert frames.pop(0) == service
        assert frames, "a reply of no frames"
        if command is None:
            return True, frames
        assert command in self.dialect.to_client
        return command == self.dialect.to_client[1], frames

    def receive(self, service) -> list[list[bytes]]:
        """The parts of one reply."""
        parts, is_last = [], False
        while not is_last:
            is_last, frames = self.part(service)
            parts.append(frames)
        return parts

    def ask(self, service, *body) -> list[bytes]:
        """The frames of a reply, all parts joined."""
        self.send(service, *body)
        return [frame for part in self.receive(service) for frame in part]


class Worker:
    def __init__(self, socket, service, dialect=MDP01):
        self.socket, self.service, self.dialect = socket, service, dialect
        self.ready()

    def send(self, command, *frames) -> None:
        self.socket.send_multipart([*self.dialect.delimiter, self.dialect.worker, command, *frames])

    def ready(self) -> None:
        self.send(b"\1", self.service)

    def heartbeat(self) -> None:
        self.send(self.dialect.heartbeat)

    def disconnect(self) -> None:
        self.send(self.dialect.disconnect)

    def command(self) -> tuple[bytes, list[bytes]]:
        """The next message: its command, and what follows."""
        frames = self.socket.recv_multipart()
        if self.dialect.delimiter:
            assert frames.pop(0) == b""
        assert frames.pop(0) == self.dialect.worker
        return frames[0], frames[1:]

    def request(self) -> tuple[bytes, list[bytes]]:
        """The next request, past heartbeats: the client's address, and the body."""
        command, frames = self.command()
        while command == self.dialect.heartbeat and not frames:
            command, frames = self.command()
        assert command == b"\2", f"no request but {command!r} {frames!r}"
        address, delimiter, *body = frames
        assert delimiter == b"" and body
        # Envelopes as stock workers in several languages carry them in a string.
        assert address and address.isascii() and b"\0" not in address and not address.startswith(b"@")
        return address, body

    def expect_disconnect(self) -> None:
        command, frames = self.command()
        while command == self.dialect.heartbeat and not frames:
            command, frames = self.command()
        assert (command, frames) == (self.dialect.disconnect, []), f"no DISCONNECT but {command!r} {frames!r}"

    def part(self, address, *body) -> None:
        self.send(self.dialect.from_worker[0], address, b"", *body)

    def reply(self, address, *body) -> None:
        self.send(self.dialect.from_worker[1], address, b"", *body)

    def serve(self, requests: int) -> None:
        """Echoes this many requests."""
        for _ in range(requests):
            address, body = self.request()
            self.reply(address, *body)
