"""What `tow call` does with a broker of which nothing tells what it speaks."""

import json
import subprocess

import pytest
import zmq

from conftest import DEADLINE_SECONDS, TOW

# (what comes before a request's service, what comes before a reply's body), in the order in which they are tried
SHAPES = {
    "0.1": ([b"", b"MDPC01"], [b"", b"MDPC01", b"echo"]),
    "majortomo": ([b"", b"MDPC02", b"\x02"], [b"", b"MDPC02", b"\x04"]),
    "0.2": ([b"MDPC02", b"\x01"], [b"MDPC02", b"\x03", b"echo"]),
}


class Silent:
    """A broker and its worker in one, which hears everything and says what it is told."""

    def __init__(self, context):
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger, self.socket.rcvtimeo = 0, DEADLINE_SECONDS * 1000
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"

    def request(self):
        """From whom, in which shape, and what."""
        peer, *frames = self.socket.recv_multipart()
        for shape, (head, _) in SHAPES.items():
            if frames[: len(head)] == head:
                assert frames[len(head)] == b"echo"
                return peer, shape, frames[len(head) + 1 :]
        raise AssertionError(frames)

    def reply(self, peer, shape, *body):
        self.socket.send_multipart([peer, *SHAPES[shape][1], *body])


@pytest.fixture
def silent(context):
    return Silent(context)


def test_a_slow_reply_of_the_first_dialect_is_taken_and_the_others_are_not_heard_of_again(silent, end):
    load = end("call", "echo", [silent], "--count", 3, "--ahead", 3, "--size", 8, "--json", "-q")
    asked = [silent.request() for _ in SHAPES]
    assert [shape for _, shape, _ in asked] == list(SHAPES)
    (peer, _, body), *_ = asked
    assert all(other == (peer, other[1], body) for other in asked)
    silent.reply(peer, "0.1", *body)
    # One that understands them all has executed it three times, and says so.
    silent.reply(peer, "majortomo", b"twice")
    silent.reply(peer, "0.2", b"thrice")
    for _ in range(2):
        peer, shape, body = silent.request()
        assert shape == "0.1"
        silent.reply(peer, shape, *body)
    summary = json.loads(load.communicate(timeout=DEADLINE_SECONDS)[0])
    assert (load.returncode, summary["replies"], summary["wrong"]) == (0, 3, 0)
    assert not silent.socket.poll(100)


@pytest.mark.parametrize("spoken", SHAPES)
def test_what_was_heard_once_is_spoken_over_connections(silent, end, spoken):
    load = end("call", "echo", [silent], "--count", 2, "--size", 8, "--timeout", 4, "--json", "-q")
    peer, shape, body = silent.request()
    while shape != spoken:
        peer, shape, body = silent.request()
    silent.reply(peer, spoken, *body)
    # The second has no reply in its time, which ends the connection: the request is over, and not asked again.
    assert silent.request()[1] == spoken
    summary = json.loads(load.communicate(timeout=DEADLINE_SECONDS)[0])
    assert (load.returncode, summary["replies"], summary["failed"]) == (1, 1, 1)


def test_a_dialect_that_is_told_is_the_only_one(silent):
    words = [TOW, "call", "echo", "x", "--connect", silent.endpoint, "--dialect", "mdp02", "--timeout", "3"]
    asking = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert silent.request()[1] == "0.2"
    assert asking.communicate(timeout=DEADLINE_SECONDS)[0] == b"" and asking.returncode == 1
    assert not silent.socket.poll(0)
