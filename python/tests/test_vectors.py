"""The protocols without I/O, against what the Rust core says (`testing/vectors`)."""

from __future__ import annotations

import pytest
from conftest import WORKSPACE
from towpath._core import files, records
from towpath._core.client import ClientSession, Group
from towpath._core.worker import WorkerSession
from towpath.errors import ProtocolError


def lines(name):
    found = []
    for line in (WORKSPACE / "testing/vectors" / name).read_text().splitlines():
        message, _, says = line.partition(" = ")
        found.append((message.split(" "), says))
    assert len(found) > 100
    return found


def unhex(text):
    """Bytes from hex, or from one byte and how many of it there are."""
    if text == "-":
        return b""
    byte, star, count = text.partition("*")
    return bytes.fromhex(byte) * int(count) if star else bytes.fromhex(byte)


def hexed(data):
    return f"{data[0]:02x}*{len(data)}" if len(data) > 100 and data == data[:1] * len(data) else data.hex()


def frames(body):
    return ",".join(map(hexed, [body] if isinstance(body, bytes) else body))


def part(number):
    return "-" if number is None else str(number)


def to_client(block, attached):
    said = []
    for kind, *rest in records.to_client(block, attached):
        if kind == records.WELCOME:
            said.append("welcome {} {} {} {}".format(*rest[:3], rest[3] & 1))
        elif kind == records.REPLY:
            said.append(f"reply {rest[0]} {rest[1]} {part(rest[2])} {frames(rest[3])}")
        elif kind == records.ACCEPTED:
            said.append("accepted {} {}".format(*rest))
        else:
            said.append("refused {} {} {} {}".format(*rest[:3], hexed(rest[3].encode())))
    return "; ".join(said)


def to_worker(block, attached):
    said = []
    for kind, *rest in records.to_worker(block, attached):
        if kind == records.WORKER_WELCOME:
            said.append(f"welcome {rest[0]}")
        elif kind == records.WORKER_REQUEST:
            said.append(f"request {rest[0].hex()} {rest[1]} {rest[2]} {frames(rest[3])}")
        elif kind == records.WORKER_CANCEL:
            said.append(f"cancel {rest[0].hex()}")
        elif kind == records.IDENTITY:
            said.append(f"identity {rest[0].hex()} {rest[1].hex()}")
        else:
            said.append("leave")
    return "; ".join(said)


@pytest.mark.parametrize("kind", ["to-client", "to-worker"])
def test_records_are_decoded_as_the_core_does(kind):
    decode = {"to-client": to_client, "to-worker": to_worker}[kind]
    for (of, block, attached), says in lines("numbered.txt"):
        if of == kind:
            try:
                said = decode(unhex(block), None if attached == "-" else unhex(attached))
            except ProtocolError:
                said = "malformed"
            assert said == says, (block, attached)


class Requests(Group):
    """Requests whose outcomes nobody takes."""

    def take(self, index, status, part, body):
        pass


def body_of(text):
    found = [unhex(frame) for frame in text.split(",")]
    return found[0] if len(found) == 1 else records.several(found)


def sent_by_client(words):
    """The message of a client's session."""
    if words[0] == "hello":
        session = ClientSession(unhex(words[1]))
        session.next_number = int(words[2])
        return session.connected(0.0)[0][1:]
    if words[0] == "confirm":
        return [records.confirm(int(words[1]), int(words[2]))]
    if words[0] == "cancel":
        return [records.cancel(int(words[1]))]
    number, ttl_ms, volatile, resent = map(int, words[1:5])
    session = ClientSession(bytes(16))
    group = Requests(unhex(words[5]), [body_of(words[6] if len(words) > 6 else "")], None, bool(volatile))
    # What is left of so much time is what the broker is given.
    group.deadline = ttl_ms / 1000 + 0.05
    session.submit(group)
    welcome = [records.CLIENT_HEADER, bytes.fromhex("41" + "00" * 8 + "00000010" + "0000000010000000" + "00")]
    for _ in range(2 if resent else 1):
        session.connected(0.0)
        session.on_message(welcome, 0.0)
        [message] = session.pump(0.0)
    return message[1:]


def sent_by_worker(words):
    """The message of a worker's session, behind its READY."""
    session = WorkerSession(b"echo", 10)
    if words[0] == "ready":
        session = WorkerSession(unhex(words[2]), int(words[1]))
        session.connected(0.0)
        return session.take()[0][1:]
    if words[0] == "credit":
        return [records.credit(int(words[1]))]
    session.connected(0.0)
    session.take()
    if words[0] == "leaving":
        session.leave()
    else:
        token = unhex(words[1])
        session.on_message([records.WORKER_HEADER, bytes([0xC2, 0]) + token + bytes([0, 1]) + bytes(8)], 0.0)
        if words[0] == "return":
            session.give_back(token, unhex(words[2]).decode())
        else:
            number = None if words[3] == "-" else int(words[3])
            session.reply(token, int(words[2]), number, body_of(words[4] if len(words) > 4 else ""))
    [message] = session.take()
    return message[1:]


@pytest.mark.parametrize("kind", ["from-client", "from-worker"])
def test_records_are_made_as_the_core_does(kind):
    make = {"from-client": sent_by_client, "from-worker": sent_by_worker}[kind]
    count = 0
    for (of, block, attached), says in lines("numbered.txt"):
        if of == kind:
            expected = [unhex(block)] if attached == "-" else [unhex(block), unhex(attached)]
            assert [bytes(frame) for frame in make(says.split(" "))] == expected, says
            count += 1
    assert count >= 10


def test_headers_of_data_are_decoded_as_the_core_does():
    for (header,), says in lines("files.txt"):
        try:
            id, entries = files.pieces(unhex(header))
            said = f"{id}: " + "; ".join(" ".join(map(str, entry)) for entry in entries)
        except ProtocolError:
            said = "malformed"
        assert said == says, header
