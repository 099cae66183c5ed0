"""Peers of a cell on pyzmq, which go from broker to broker: `peers.py mdp|worker|numbered ENDPOINT...`.

A client asks until SIGTERM, then waits for what is outstanding, and prints how much that was. It fails if anything has two outcomes, or
another one's. They share no code with Towpath: RFC 7/MDP, and docs/protocol/requests.md.
"""

import itertools
import os
import random
import signal
import struct
import sys
import threading
import time

import zmq

SERVICE = b"mark"
OVER = threading.Event()


class Brokers:
    """A DEALER to one broker at a time."""

    def __init__(self, endpoints):
        self.endpoints = itertools.cycle(endpoints)
        self.context = zmq.Context()
        self.socket = None

    def next(self):
        if self.socket:
            self.socket.close(linger=0)
        self.socket = self.context.socket(zmq.DEALER)
        # Before the handshake is done nothing can be sent.
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.connect(next(self.endpoints))

    def send(self, *frames):
        try:
            self.socket.send_multipart(list(frames), zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def receive(self, ms):
        return self.socket.recv_multipart() if self.socket.poll(ms) else None


def mdp(brokers):
    """A client of Majordomo 0.1: one request at a time; without a reply in time it goes to the next broker and asks again."""
    answered = 0
    brokers.next()
    while not OVER.is_set():
        body = b"stock %d" % answered
        while True:
            if brokers.send(b"", b"MDPC01", SERVICE, body) and (frames := brokers.receive(4000)):
                assert frames[:3] == [b"", b"MDPC01", SERVICE], frames
                if frames[3] == b"mark":
                    assert frames[5] == body, f"{frames} for {body}"
                    answered += 1
                    time.sleep(0.005)
                    break
                time.sleep(0.2)
            time.sleep(0.02)
            brokers.next()
            # The handshake.
            brokers.socket.poll(200, zmq.POLLOUT)
    return answered


def worker(brokers):
    """A worker of Majordomo 0.1. Each reply says which execution it is of."""
    executions, last_word = 0, 0.0
    while True:
        now = time.monotonic()
        if now > last_word + 2:
            brokers.next()
            brokers.socket.poll(200, zmq.POLLOUT)
            brokers.send(b"", b"MDPW01", b"\1", SERVICE)
            last_word = beat = now
        if now > beat + 0.4:
            brokers.send(b"", b"MDPW01", b"\4")
            beat = now
        frames = brokers.receive(100)
        if frames is None:
            continue
        last_word = time.monotonic()
        assert frames[:2] == [b"", b"MDPW01"], frames
        if frames[2] == b"\2":
            executions += 1
            execution = b"%d of %d" % (executions, os.getpid())
            brokers.send(b"", b"MDPW01", b"\3", frames[3], b"", b"mark", execution, *frames[5:])
        elif frames[2] == b"\5":
            last_word = 0.0


class Numbered:
    """A client of numbered requests that confirms late, and asks again what it has an outcome of: that must be the same."""

    def __init__(self, brokers):
        self.brokers = brokers
        self.name = os.urandom(16)
        self.asked, self.outcomes, self.accepted, self.again = {}, {}, set(), {}
        self.lowest = 1
        self.asked_again = 0

    def request(self, number):
        body = b"numbered %d" % number
        return struct.pack(">BBQIB", 2, 0, number, 0, len(SERVICE)) + SERVICE + struct.pack(">I", len(body)) + body

    def connect(self):
        self.brokers.next()
        if not self.brokers.socket.poll(300, zmq.POLLOUT):
            return False
        numbers = sorted(self.asked) + random.sample(sorted(self.outcomes), min(5, len(self.outcomes)))
        first = min([*self.asked, *self.outcomes, self.lowest])
        self.asked_again += len(numbers) - len(self.asked)
        records = [struct.pack(">B16sQ", 1, self.name, first), *map(self.request, sorted(numbers))]
        self.again.clear()
        return self.brokers.send(b"TWPC02", b"".join(records))

    def take(self, frames):
        header, block = frames
        assert header == b"TWPC02"

        def take(layout):
            nonlocal block
            size = struct.calcsize(">" + layout)
            values, block = struct.unpack(">" + layout, block[:size]), block[size:]
            return values

        def take_bytes(length):
            nonlocal block
            taken, block = block[:length], block[length:]
            return taken

        while block:
            [kind] = take("B")
            if kind == 0x41:
                take("QIQB")
            elif kind == 0x42:
                flags, number, status = take("BQH")
                assert flags & ~1 == 0, flags
                body = take_bytes(*take("I"))
                self.on_outcome(number, (status, body))
            elif kind == 0x43:
                first, count = take("QI")
                self.accepted.update(range(first, first + count))
            elif kind == 0x44:
                number, status, retry_ms, length = take("QHIB")
                reason = take_bytes(length)
                assert retry_ms, f"{number} is refused: {status} {reason}"
                if number in self.asked:
                    self.again[number] = time.monotonic() + retry_ms / 1000
                else:
                    # It was sent again before its outcome came.
                    assert not self.outcomes.get(number), f"{number} is refused, but was accepted: {status} {reason}"
            else:
                raise AssertionError(f"a record of the kind {kind:#x}")

    def on_outcome(self, number, outcome):
        if number in self.asked:
            if outcome[0] == 200:
                assert outcome[1].endswith(b"numbered %d" % number), outcome
            del self.asked[number]
            # Without ACCEPTED it is kept by that broker alone.
            self.outcomes[number] = outcome if number in self.accepted else None
        elif number in self.outcomes and self.outcomes[number]:
            known = self.outcomes[number]
            assert outcome == known, f"{number} has two outcomes: {known}, then {outcome}"

    def confirm(self):
        done = sorted(self.outcomes)[:-20]
        for number in done:
            del self.outcomes[number]
        return b"".join(struct.pack(">BQI", 3, number, 1) for number in done)

    def run(self):
        last, over, silent_until = 0, False, 0.0
        while not over or self.asked:
            over = over or OVER.is_set()
            now = time.monotonic()
            if now > silent_until or random.random() < 0.01:
                silent_until = now + (2 if self.connect() else 0)
                continue
            records = [self.confirm()]
            while len(self.asked) < 10 and not over:
                last += 1
                self.asked[last] = True
                self.lowest = last + 1
                records.append(self.request(last))
            for number in [number for number, at in self.again.items() if at < now]:
                del self.again[number]
                records.append(self.request(number))
            if block := b"".join(records):
                self.brokers.send(b"TWPC02", block)
            if frames := self.brokers.receive(20):
                # An empty block shows that the broker is there.
                self.take(frames)
                silent_until = time.monotonic() + 2
        return {"outcomes": last, "accepted": len(self.accepted), "asked_again": self.asked_again}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: OVER.set())
    role, endpoints = sys.argv[1], sys.argv[2:]
    random.seed(os.getpid())
    random.shuffle(endpoints)
    brokers = Brokers(endpoints)
    print({"mdp": mdp, "worker": worker, "numbered": lambda brokers: Numbered(brokers).run()}[role](brokers))
