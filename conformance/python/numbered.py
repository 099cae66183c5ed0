"""Towpath's numbered requests by hand, from their tables: records in blocks, and both ends on a DEALER.

As in mdp.py, each call sends one message or waits for one.
"""

import collections
import os
import struct

CLIENT, WORKER = b"TWPC02", b"TWPW02"
MANY, ATTACHED, PARTIAL, VOLATILE = 1, 2, 4, 8

Welcome = collections.namedtuple("Welcome", "epoch requests_max bytes_max journal", defaults=(None, None, None))
Reply = collections.namedtuple("Reply", "number status part body")
Accepted = collections.namedtuple("Accepted", "first count")
Refused = collections.namedtuple("Refused", "number status retry_ms reason")
Request = collections.namedtuple("Request", "token attempt ttl_ms body")
Cancel = collections.namedtuple("Cancel", "token")
Leave = collections.namedtuple("Leave", "")


def hello(client: bytes, first=1) -> bytes:
    return struct.pack(">B16sQ", 0x01, client, first)


def request(number, service, body=b"", flags=0, ttl_ms=0) -> bytes:
    flags, body = flattened(flags, body)
    return struct.pack(">BBQIB", 0x02, flags, number, ttl_ms, len(service)) + service + sized(body)


def confirm(first, count=1) -> bytes:
    return struct.pack(">BQI", 0x03, first, count)


def cancel(number) -> bytes:
    return struct.pack(">BQ", 0x04, number)


def ready(credit, service) -> bytes:
    return struct.pack(">BIB", 0x81, credit, len(service)) + service


def reply(token, body=b"", status=200, part=None, flags=0) -> bytes:
    flags, body = flattened(flags | (0 if part is None else PARTIAL), body)
    head = struct.pack(">BB16sH", 0x82, flags, token, status)
    return head + (b"" if part is None else struct.pack(">I", part)) + sized(body)


def credit(count) -> bytes:
    return struct.pack(">BI", 0x83, count)


LEAVING = b"\x84"


def sized(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def flattened(flags, body) -> tuple[int, bytes]:
    """A body of several frames as the list of them that goes into a record."""
    return (flags | MANY, b"".join(map(sized, body))) if isinstance(body, list) else (flags, body)


def frames(body: bytes) -> list[bytes]:
    """The frames of a body that is a list."""
    found = []
    while body:
        [length] = struct.unpack(">I", body[:4])
        found.append(body[4 : 4 + length])
        body = body[4 + length :]
    return found


class Records:
    """Parses the records of a message."""

    def __init__(self, message):
        _header, self.block, *attached = message
        self.attached = attached

    def take(self, layout):
        size = struct.calcsize(">" + layout)
        values = struct.unpack(">" + layout, self.block[:size])
        self.block = self.block[size:]
        return values

    def take_bytes(self, length) -> bytes:
        assert len(self.block) >= length, "a record ends too early"
        body, self.block = self.block[:length], self.block[length:]
        return body

    def body(self, flags):
        [length] = self.take("I")
        body = self.take_bytes(length)
        if flags & ATTACHED:
            assert not body and not self.block, "an attached body in the middle of a block"
            body = self.attached.pop(0)
        return frames(body) if flags & MANY else body

    def one(self):
        [kind] = self.take("B")
        if kind == 0x41:
            return Welcome(*self.take("QIQB"))
        if kind == 0x42:
            flags, number, status = self.take("BQH")
            [part] = self.take("I") if flags & PARTIAL else [None]
            return Reply(number, status, part, self.body(flags))
        if kind == 0x43:
            return Accepted(*self.take("QI"))
        if kind == 0x44:
            number, status, retry_ms, length = self.take("QHIB")
            return Refused(number, status, retry_ms, self.take_bytes(length).decode())
        if kind == 0xC1:
            return Welcome(*self.take("Q"))
        if kind == 0xC2:
            flags, token, attempt, ttl_ms = self.take("B16sHI")
            return Request(token, attempt, ttl_ms, self.body(flags))
        if kind == 0xC3:
            return Cancel(*self.take("16s"))
        assert kind == 0xC4, f"a record of the kind {kind:#x}"
        return Leave()

    def all(self) -> list:
        found = []
        while self.block:
            found.append(self.one())
        assert not self.attached, "a frame that no record announces"
        return found


class Peer:
    def __init__(self, socket, header):
        self.socket, self.header = socket, header
        self.records = collections.deque()

    def send(self, *records, attached=()) -> None:
        self.socket.send_multipart([self.header, b"".join(records), *attached])

    def has_more(self, ms: int) -> bool:
        """True if a record is there or arrives within this many milliseconds."""
        return bool(self.records) or bool(self.socket.poll(ms))

    def next(self):
        """The next record."""
        while not self.records:
            message = self.socket.recv_multipart()
            assert message[0] == self.header
            self.records.extend(Records(message).all())
        return self.records.popleft()


class Client(Peer):
    def __init__(self, socket, name=None, first=1):
        super().__init__(socket, CLIENT)
        self.name = name or os.urandom(16)
        self.send(hello(self.name, first))
        self.welcome = self.next()
        assert isinstance(self.welcome, Welcome)

    def reply(self):
        """The next reply, skipping ACCEPTED records."""
        while not isinstance(record := self.next(), (Reply, Refused)):
            assert isinstance(record, Accepted), record
        return record


class Worker(Peer):
    def __init__(self, socket, service, credit=1):
        super().__init__(socket, WORKER)
        self.send(ready(credit, service))
        self.welcome = self.next()
        assert isinstance(self.welcome, Welcome)

    def request(self):
        record = self.next()
        assert isinstance(record, Request), record
        return record

    def serve(self, requests: int) -> None:
        """Echoes this many requests."""
        for _ in range(requests):
            record = self.request()
            self.send(reply(record.token, record.body))
