"""Messages of `tow call` and `tow work` to a broker of unknown dialect."""

import subprocess

import pytest
import zmq

from conftest import DEADLINE_SECONDS, TOW

REQUESTS = {
    "auto": [b"", b"MDPC01", b"echo", b"x"],
    "mdp01": [b"", b"MDPC01", b"echo", b"x"],
    "mdp02": [b"MDPC02", b"\x01", b"echo", b"x"],
    "majortomo": [b"", b"MDPC02", b"\x02", b"echo", b"x"],
}


@pytest.fixture
def silent(context):
    """A broker that only listens."""
    socket = context.socket(zmq.ROUTER)
    socket.linger, socket.rcvtimeo = 0, DEADLINE_SECONDS * 1000
    socket.bind("tcp://127.0.0.1:*")
    return socket


@pytest.mark.parametrize("dialect", REQUESTS)
def test_client_asks_once_and_suggests_a_dialect(silent, dialect):
    """Some brokers end when asked in another dialect, and some replies are slow."""
    words = [TOW, "call", "echo", "x", "--connect", silent.last_endpoint, "--timeout", "3", "--dialect", dialect]
    asking = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert silent.recv_multipart()[1:] == REQUESTS[dialect]
    output, why = asking.communicate(timeout=DEADLINE_SECONDS)
    assert (asking.returncode, output) == (8, b"") and b"--dialect" in why, why
    while silent.poll(0):
        # A worker that nobody asks for, to see whether it gets heartbeats.
        assert dialect == "auto" and silent.recv_multipart()[1:3] == [b"", b"MDPW02"]


def test_client_says_that_the_broker_speaks_majortomo(silent):
    words = [TOW, "call", "echo", "x", "--connect", silent.last_endpoint]
    asking = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert silent.recv_multipart()[1:] == REQUESTS["auto"]
    worker, *ready = silent.recv_multipart()
    assert ready[:3] == [b"", b"MDPW02", b"\x01"]
    silent.send_multipart([worker, b"", b"MDPW02", b"\x05"])
    output, why = asking.communicate(timeout=DEADLINE_SECONDS)
    assert (asking.returncode, output) == (6, b"") and b"--dialect majortomo" in why, why


def test_worker_alternates_between_mdp_and_majortomo(silent):
    process = subprocess.Popen([TOW, "work", "echo", "--echo", "--connect", silent.last_endpoint])
    try:
        said = []
        while len(said) < 2:
            _, *frames = silent.recv_multipart()
            if frames[-1] == b"echo":
                said.append(frames)
        assert said == [[b"", b"MDPW01", b"\x01", b"echo"], [b"", b"MDPW02", b"\x01", b"echo"]]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("size", [2 << 20, 8 << 20])
def test_large_reply_counts_though_the_broker_ends_after_it(context, size):
    """The reply has arrived and is being written to the client's disk."""
    body = bytes(range(256)) * (size // 256)
    for _ in range(5):
        broker = context.socket(zmq.ROUTER)
        # Queued messages are sent before the connection ends.
        broker.linger = broker.rcvtimeo = DEADLINE_SECONDS * 1000
        broker.bind("tcp://127.0.0.1:*")
        words = [TOW, "call", "echo", "x", "--connect", broker.last_endpoint, "--timeout", "10", "--dialect", "mdp01"]
        asking = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        client, *_ = broker.recv_multipart()
        broker.send_multipart([client, b"", b"MDPC01", b"echo", body])
        broker.close()
        output, why = asking.communicate(timeout=DEADLINE_SECONDS)
        assert asking.returncode == 0 and output == body, (len(output), why)
