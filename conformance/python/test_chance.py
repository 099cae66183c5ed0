"""Random messages of all protocols on many connections that come and go: the broker continues, and
well-behaved peers notice nothing."""

import os
import random
import time

import pytest
import zmq

import numbered
from good_peers import good  # noqa: F401
from numbered import ATTACHED, CLIENT, MANY, WORKER

SECONDS = 2
CONNECTIONS = 40
SERVICES = [b"chance", b"other", b"x" * 255]
SERVICES += [b"mmi.service", b"mmi.queue", b"mmi.workers", b"titanic.request", b"titanic.reply"]
NUMBERS = [0, 1, 2, 3, 4, 5, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


class Chance:
    """Makes random messages, also from what it has received."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tokens = [bytes(16), os.urandom(16)]
        self.addresses = [b"a", b"0" * 32]
        self.names = [bytes([n]) * 16 for n in range(3)]

    def received(self, frames) -> None:
        """Remembers tokens and numbers to send back."""
        if frames[0] == WORKER and len(frames) > 1 and len(frames[1]) >= 18 and frames[1][0] == 0xC2:
            self.tokens = [*self.tokens[-10:], frames[1][2:18]]
        self.addresses = [*self.addresses[-10:], *(frame for frame in frames if len(frame) == 32)]

    def some(self, options):
        return self.random.choice(options)

    def body(self) -> bytes:
        return self.random.randbytes(self.some([0, 1, 60, 5000, 70_000]))

    def stock(self) -> list[bytes]:
        header = self.some([b"MDPC01", b"MDPW01", b"MDPC02", b"MDPW02"])
        frames = [header]
        if header != b"MDPC01":
            frames.append(bytes([self.some([1, 1, 1, 2, 3, 3, 4, 4, 5, 6])]))
        if header.startswith(b"MDPC") or frames[1] == b"\1":
            frames.append(self.some(SERVICES))
        if header.startswith(b"MDPC"):
            frames += [self.body() for _ in range(self.some([1, 1, 1, 2, 5]))]
        elif frames[1] in (b"\3", b"\4"):
            frames += [self.some(self.addresses), b"", self.body()]
        return [b"", *frames] if self.random.random() < 0.6 else frames

    def record(self) -> bytes:
        number, count = self.some(NUMBERS), self.some([0, 1, 2, 100, 0xFFFF_FFFF])
        flags = self.some([0, 0, 0, MANY, ATTACHED, 4, 8, 255])
        return self.some(
            [
                lambda: numbered.hello(self.some(self.names), number),
                lambda: numbered.request(number, self.some(SERVICES), self.body(), flags, count),
                lambda: numbered.request(number, self.some(SERVICES), [self.body(), b""], 0, count),
                lambda: numbered.confirm(number, count),
                lambda: numbered.cancel(number),
                lambda: numbered.ready(count, self.some(SERVICES)),
                lambda: numbered.reply(self.some(self.tokens), self.body(), self.some([0, 200, 65_535]), None, flags),
                lambda: numbered.reply(self.some(self.tokens), self.body(), 200, count),
                lambda: numbered.credit(count),
                lambda: numbered.LEAVING,
            ]
        )()

    def records(self) -> list[bytes]:
        is_client = self.random.random() < 0.5
        first = numbered.hello(self.some(self.names)) if is_client else numbered.ready(3, b"chance")
        records = [first] * (self.random.random() < 0.5) + [self.record() for _ in range(self.some([1, 1, 3]))]
        block = b"".join(records)
        return [CLIENT if is_client else WORKER, block, *([self.body()] if self.random.random() < 0.1 else [])]

    def message(self) -> list[bytes]:
        frames = self.stock() if self.random.random() < 0.5 else self.records()
        if self.random.random() < 0.2:
            at = self.random.randrange(len(frames))
            damage = self.some(["cut", "drop", "twice", "flip", "empty"])
            if damage == "cut":
                frames[at] = frames[at][: self.random.randrange(len(frames[at]) + 1)]
            elif damage == "drop" and len(frames) > 1:
                del frames[at]
            elif damage == "twice":
                frames.insert(at, frames[at])
            elif damage == "flip" and frames[at]:
                data = bytearray(frames[at])
                data[self.random.randrange(min(len(data), 100))] ^= 1 << self.random.randrange(8)
                frames[at] = bytes(data)
            elif damage == "empty":
                frames[at] = b""
        return frames


@pytest.mark.parametrize("journal", [False, True], ids=["memory", "journal"])
def test_random_messages_disturb_no_one(broker, good, context, tmp_path, journal):  # noqa: F811
    seed = int(os.environ.get("SEED", "7"))
    short = ["--heartbeat", 0.5, "--request-timeout", 1, "--absent-timeout", 1, "--busy-timeout", 1, "--attempts", 3]
    peers = good(broker(*short, *(["--journal", tmp_path / "journal"] if journal else [])))
    chance, sockets = Chance(seed), []
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for _ in range(100):
            if len(sockets) < CONNECTIONS:
                socket = context.socket(zmq.DEALER)
                # Closed at once, while the broker ends the connection over what it was sent, libzmq 4.3.5 aborts the process
                # (session_base.cpp: it can't read the rest of a message any more that it has begun to send).
                socket.linger, socket.reconnect_ivl, socket.sndhwm = 300, -1, 100
                socket.connect(peers.server.endpoint)
                sockets.append(socket)
            socket = chance.some(sockets)
            try:
                socket.send_multipart(chance.message(), zmq.NOBLOCK)
                while True:
                    chance.received(socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                pass
            if chance.random.random() < 0.05:
                sockets.remove(socket)
                socket.close()
        peers.work()
        peers.stock_worker.heartbeat()
    for socket in sockets:
        socket.close()
    peers.work()
    assert peers.server.end() == 0
