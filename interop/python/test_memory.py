"""What counts as memory of the broker's, beside bodies: --max-memory bounds it all."""

import json
import os
import socket
import time

import pytest
import zmq

import mdp
from conftest import DEADLINE_SECONDS, wait_until
from numbered import CLIENT, confirm, hello, request
from raw import Raw, connections, message

MIB = 1 << 20


@pytest.fixture
def small(broker):
    """A broker with little memory, and a function that says how much more than at its start it has, in octets."""
    server = broker("--max-memory", 32)
    before = server.resident_kib()
    return server, lambda: (server.resident_kib() - before) * 1024


def test_envelopes(small, connected):
    server, more = small
    sockets = [connected(server, SNDHWM=10) for _ in range(8)]
    frames = [*[b"e" * 255] * 16, b"", b"MDPC01", b"nobody", b"x"]
    sent = 0
    for asking in sockets:
        # Until it isn't read any more.
        while sent < 100_000 and asking.poll(200, zmq.POLLOUT):
            asking.send_multipart(frames)
            sent += 1
    assert 5_000 < sent < 100_000
    assert more() < 3 * 32 * MIB
    assert mdp.Client(connected(server)).ask(b"mmi.service", b"nobody") == [b"404"]


def test_frames_of_an_octet(small, connected):
    server, more = small
    asking = mdp.Client(connected(server))
    raws = [Raw(server).handshake() for _ in range(5)]
    for raw in raws:
        # So much that it isn't all read.
        raw.send(message(b"", b"MDPC01", b"nobody", *[b"x"] * 900) * 120)
    # Where there is no room for more they are told so once, and not read: that costs nothing.
    wait_until(lambda: is_idle(server), "nothing is left to do")
    [service] = json.loads(asking.ask(b"mmi.queue", b"nobody")[1])
    assert service["waiting_bytes"] > 10 * MIB
    assert more() < 1.3 * service["waiting_bytes"]
    assert asking.ask(b"mmi.service", b"nobody") == [b"404"]
    for raw in raws:
        raw.close()


def is_idle(server) -> bool:
    def ticks() -> int:
        with open(f"/proc/{server.process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(0.3)
    return ticks() - before <= 3


def test_long_lists_that_nobody_reads(broker, connected):
    server = broker()
    raw = Raw(server).handshake()
    raw.send(b"".join(message(b"", b"MDPC01", b"%0200d" % number, b"x") for number in range(9_000)))
    asking = mdp.Client(connected(server))
    wait_until(lambda: len(asking.ask(b"mmi.queue", b"")[1]) > 9_000 * 200, "all services are listed")
    before = server.resident_kib()
    raws = [Raw(server).handshake() for _ in range(100)]
    for other in raws:
        other.send(message(b"", b"MDPC01", b"mmi.queue", b"") * 50)
    begin = time.monotonic()
    for _ in range(5):
        assert mdp.Client(connected(server)).ask(b"mmi.service", b"nobody") == [b"404"]
    assert time.monotonic() - begin < DEADLINE_SECONDS
    assert server.resident_kib() < before + 300_000
    for other in [raw, *raws]:
        other.close()


def test_large_replies_that_nobody_reads(small, connected, end):
    server, more = small
    size = 900_000
    end("work", "large", [server], "--jobs", 4, "--", "head", "-c", size, "/dev/zero")
    ask = message(b"", b"MDPC01", b"large", b"")
    reader = mdp.Client(connected(server))
    with connections(server, 80) as raws:
        for raw in raws:
            # What waits for each is little, beside what its socket takes: only the sum is too much.
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            raw.send(ask * 10)
        peak = 0
        begin = time.monotonic()
        while "more waits for all peers" not in server.log() or not is_idle(server):
            # Whoever reads is served meanwhile.
            assert [len(frame) for frame in reader.ask(b"large", b"")] == [size]
            peak = max(peak, more())
            assert time.monotonic() - begin < DEADLINE_SECONDS, f"{peak / MIB:.0f} MiB at most: {server.log()}"
    assert 32 * MIB < peak < 4 * 32 * MIB
    assert server.log().count("a peer misbehaves") < 80


def test_gaps_between_confirmations(small, connected):
    server, more = small
    ranges = [range(at, at + 1000) for at in range(1, 10_000, 1000)]
    gaps = [message(CLIENT, b"".join(confirm(2 * number) for number in numbers)) for numbers in ranges]
    ended = 0
    for _ in range(100):
        raw = Raw(server).handshake()
        raw.send(message(CLIENT, hello(os.urandom(16))))
        try:
            raw.send(b"".join(gaps) + message(CLIENT, request(1, b"mmi.service", b"x")))
            said = b""
            while b"404" not in said:
                said += raw.receive(1)
        except OSError:
            ended += 1
        raw.close()
    assert ended > 20
    assert more() < 3 * 32 * MIB
    assert "numbers that were never asked for" in server.log()
