"""Memory that --max-memory bounds beside bodies."""

import json
import os

import zmq

import mdp
from conftest import is_idle, wait_until
from numbered import CLIENT, confirm, hello, request
from raw import Raw, message

MIB = 1 << 20


def test_envelopes_count_as_memory(small, connected):
    server, more = small
    sockets = [connected(server, SNDHWM=10) for _ in range(8)]
    frames = [*[b"e" * 255] * 16, b"", b"MDPC01", b"nobody", b"x"]
    sent = 0
    for asking in sockets:
        # Until the broker stops reading.
        while sent < 100_000 and asking.poll(200, zmq.POLLOUT):
            asking.send_multipart(frames)
            sent += 1
    assert 5_000 < sent < 100_000
    assert more() < 3 * 32 * MIB
    assert mdp.Client(connected(server)).ask(b"mmi.service", b"nobody") == [b"404"]


def test_one_byte_frames_count_as_memory(small, connected):
    server, more = small
    asking = mdp.Client(connected(server))
    raws = [Raw(server).handshake() for _ in range(5)]
    for raw in raws:
        # More than the broker reads.
        raw.send(message(b"", b"MDPC01", b"nobody", *[b"x"] * 900) * 120)
    # Over the limit, clients get one error and aren't read, which takes no memory.
    wait_until(lambda: is_idle(server), "nothing is left to do")
    [service] = json.loads(asking.ask(b"mmi.queue", b"nobody")[1])
    assert service["waiting_bytes"] > 10 * MIB
    assert more() < 1.3 * service["waiting_bytes"]
    assert asking.ask(b"mmi.service", b"nobody") == [b"404"]
    for raw in raws:
        raw.close()


def test_gaps_between_confirmations_are_bounded(small, connected):
    server, more = small
    ranges = [range(at, at + 1000) for at in range(1, 10_000, 1000)]
    gaps = [message(CLIENT, b"".join(confirm(2 * number) for number in numbers)) for numbers in ranges]
    ended, raws = 0, []
    for _ in range(100):
        raw = Raw(server).handshake()
        raws.append(raw)
        raw.send(message(CLIENT, hello(os.urandom(16))))
        try:
            raw.send(b"".join(gaps) + message(CLIENT, request(1, b"mmi.service", b"x")))
            said = b""
            # An answer, or a refusal.
            while not said.endswith((b"404", b"the broker has all that it can hold")):
                said += raw.receive(1)
        except OSError:
            ended += 1
    # One and a half times the memory for requests.
    assert ended > 20
    assert more() < 3 * 32 * MIB
    for raw in raws:
        raw.close()
    assert "numbers that were never requested" in server.log()
