"""Peers that don't read: the broker holds little for them, and serves the others."""

import collections
import os
import socket
import time

import zmq

import mdp
import numbered
from conftest import DEADLINE_SECONDS, is_idle, wait_until
from numbered import CLIENT, confirm, hello, request
from raw import Raw, connections, message

MIB = 1 << 20


def test_unread_large_replies_are_bounded(small, connected, end):
    server, more = small
    size = 900_000
    end("work", "large", [server], "--jobs", 4, "--", "head", "-c", size, "/dev/zero")
    ask = message(b"", b"MDPC01", b"large", b"")
    reader = mdp.Client(connected(server))
    with connections(server, 80) as raws:
        for raw in raws:
            # Each backlog is small beside socket buffers; only their sum is too large.
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            raw.send(ask * 10)
        peak = 0
        begin = time.monotonic()
        while "more waits for all peers" not in server.log() or not is_idle(server):
            # Clients that read are served meanwhile.
            assert [len(frame) for frame in reader.ask(b"large", b"")] == [size]
            peak = max(peak, more())
            assert time.monotonic() - begin < DEADLINE_SECONDS, f"{peak / MIB:.0f} MiB at most: {server.log()}"
    assert 8 * MIB < peak < 4 * 32 * MIB
    assert server.log().count("a peer misbehaves") < 80


def test_unread_listings_are_bounded(broker, connected):
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


def test_repeated_outcomes_are_bounded(small, connected, end):
    server, more = small
    end("work", "echo", [server], "--echo")
    asking = mdp.Client(connected(server))
    with connections(server, 150) as raws:
        for raw in raws:
            raw.send(message(CLIENT, hello(os.urandom(16)) + request(1, b"echo", b"x" * 4_000)))
            raw.receive(4_000)
        for raw in raws:
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            raw.send(message(CLIENT, request(1, b"echo") * 1_300))
        wait_until(lambda: is_idle(server), "nothing is left to do")
        assert more() < 3 * 32 * MIB
        assert asking.ask(b"mmi.service", b"echo") == [b"200"]


def test_unread_acceptances_are_bounded(broker, tmp_path):
    server = broker("--max-memory", "32M", "--journal", tmp_path / "journal")
    before = server.resident_kib()
    again = message(CLIENT, (request(1, b"nobody") + request(3, b"nobody")) * 1_500)
    with connections(server, 4) as raws:
        for raw in raws:
            raw.send(message(CLIENT, hello(os.urandom(16)) + request(1, b"nobody") + request(3, b"nobody")))
            raw.socket.setblocking(False)
        ends = {raw.socket: memoryview(b"") for raw in raws}
        begin = quiet = time.monotonic()
        # Until the broker reads none of them.
        while time.monotonic() - quiet < 1:
            assert time.monotonic() - begin < DEADLINE_SECONDS, "they are read without end"
            for end, left in ends.items():
                try:
                    left = left or memoryview(again)
                    ends[end] = left[end.send(left) :]
                    quiet = time.monotonic()
                except BlockingIOError:
                    pass
            time.sleep(0.001)
        assert server.resident_kib() - before < 3 * 32 * 1024


def test_unread_parts_are_bounded(small, connected):
    server, more = small
    worker = connected(server, SNDHWM=4)
    worker.send_multipart([b"MDPW02", b"\1", b"large"])
    peak = 0
    with connections(server, 20) as raws:
        for raw in raws:
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            raw.send(message(CLIENT, hello(os.urandom(16)) + request(1, b"large", b"x")))
            command = []
            while command[1:2] != [b"\2"]:
                command = worker.recv_multipart()
            # In memory, since it has several frames.
            worker.send_multipart([b"MDPW02", b"\3", command[2], b"", *[bytes(900_000)] * 10], copy=False)
            worker.send_multipart([b"MDPW02", b"\4", command[2], b"", b"end"])
            peak = max(peak, more())
        wait_until(lambda: is_idle(server), "nothing is left to do")
    assert max(peak, more()) < 4 * 32 * MIB
    assert "more waits for all peers" in server.log()


def zeros(server, connected, requests: int):
    """A client that has asked for so much and read nothing, a worker with credit for it all, and a function that lets it reply to all
    that it has, with 90,000 bytes each; it returns how many that were."""
    worker = numbered.Worker(connected(server), b"zeros", credit=10_000)
    client = numbered.Client(connected(server, RCVHWM=1))
    client.send(*(request(number, b"zeros") for number in range(1, requests + 1)))

    def work(ms: int) -> int:
        done = 0
        while worker.has_more(ms if done == 0 else 0):
            worker.send(numbered.reply(worker.request().token, bytes(90_000)))
            done += 1
        return done

    return client, work


def take_all(client, work, left: set, more) -> collections.Counter:
    """Confirms one outcome after another; returns how they ended."""
    ends = collections.Counter()
    while left:
        work(0)
        if client.has_more(10):
            reply = client.reply()
            assert reply.status == 507 or (reply.status, len(reply.body)) == (200, 90_000)
            left.remove(reply.number)
            client.send(confirm(reply.number))
            ends[reply.status] += 1
        assert more() < 64 * MIB
    return ends


def test_unread_replies_to_a_numbered_client_are_bounded(small, connected, end):
    server, more = small
    end("work", "echo", [server], "--echo")
    reader = mdp.Client(connected(server))
    client, work = zeros(server, connected, 2_000)
    done = 0
    while now := work(1_000):
        done += now
    # More than fits the memory, but not all.
    assert 32 * MIB < done * 90_000 and done < 2_000
    assert more() < 48 * MIB
    for _ in range(20):
        assert reader.ask(b"echo", b"hello") == [b"hello"]
    ends = take_all(client, work, set(range(1, 2_001)), more)
    assert "there is no space for a reply" in server.log()
    # Unforeseen replies didn't fit. The others waited.
    assert 0 < ends[507] < done


def test_slow_numbered_client_loses_nothing(small, connected):
    server, more = small
    client, work = zeros(server, connected, 1)
    assert work(10_000) == 1 and client.reply().status == 200
    client.send(confirm(1), *(request(number, b"zeros") for number in range(2, 1_002)))
    done = 0
    while now := work(1_000):
        done += now
    assert 20 < done < 500
    assert take_all(client, work, set(range(2, 1_002)), more) == {200: 1_000}
