"""REP and REQ of our sockets against libzmq's, by the example `echo`."""

import pathlib
import subprocess

import pytest
import zmq

from conftest import DEADLINE_SECONDS, TOW

ECHO = pathlib.Path(TOW).parent / "examples/echo"
LARGE = b"x" * 3_000_000


@pytest.fixture(scope="module", autouse=True)
def built():
    assert ECHO.exists(), "cargo build --package towpath-sockets --example echo"


@pytest.fixture(params=["tcp", "ipc"])
def echo(request, tmp_path):
    """Endpoint of our REP."""
    endpoint = "tcp://127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/echo"
    process = subprocess.Popen([ECHO, "bind", endpoint], stdout=subprocess.PIPE)
    yield process.stdout.readline().decode().strip()
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_their_req_and_dealer_at_our_rep(echo, connected):
    req = connected(echo, zmq.REQ)
    for frames in ([b"one"], [b"one", b"two"], [b""], [b"", b"x", b""], [LARGE, b"tail"]):
        req.send_multipart(frames)
        assert req.recv_multipart() == frames
    # Many requests, each with an envelope of its own.
    dealer = connected(echo, zmq.DEALER)
    for number in range(100):
        dealer.send_multipart([b"mine", b"", b"%d" % number])
    assert [dealer.recv_multipart() for _ in range(100)] == [[b"mine", b"", b"%d" % number] for number in range(100)]
    # A client that leaves without its reply and one without an envelope don't affect others.
    gone = connected(echo, zmq.REQ)
    gone.send(LARGE)
    gone.close(linger=0)
    dealer.send(b"no envelope")
    req.send(b"still there?")
    assert req.recv() == b"still there?"


def asks(endpoint, *words) -> subprocess.Popen:
    """Our REQ, with a request of these frames."""
    return subprocess.Popen([ECHO, "ask", endpoint, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def output_of(asking) -> bytes:
    """Frames of the reply, one a line."""
    out, err = asking.communicate(timeout=DEADLINE_SECONDS)
    assert asking.returncode == 0, err
    return out


@pytest.fixture
def bound(context):
    """A factory of libzmq's sockets: bound(kind, endpoint) returns one and its endpoint."""

    def make(kind, endpoint="tcp://127.0.0.1:*"):
        socket = context.socket(kind)
        socket.linger, socket.rcvtimeo, socket.sndtimeo = 0, DEADLINE_SECONDS * 1000, DEADLINE_SECONDS * 1000
        socket.bind(endpoint)
        return socket, socket.last_endpoint.decode()

    return make


@pytest.mark.parametrize("kind", [zmq.REP, zmq.ROUTER], ids=["REP", "ROUTER"])
def test_our_req_at_their_rep_and_router(bound, kind):
    socket, endpoint = bound(kind)
    for words in (["how", "far?"], ["one"], ["", "x", ""], ["x" * 100_000, "tail"]):
        asking = asks(endpoint, *words)
        frames = socket.recv_multipart()
        if kind == zmq.ROUTER:
            # Their name for it, and the end of the envelope.
            assert frames[0] and frames[1] == b""
        assert frames[2 if kind == zmq.ROUTER else 0 :] == [word.encode() for word in words]
        socket.send_multipart(frames)
        assert output_of(asking) == "".join(f"{word}\n" for word in words).encode()


def test_their_proxy_between_our_req_and_our_rep(echo, bound, connected):
    front, endpoint = bound(zmq.ROUTER)
    back = connected(echo)
    several = [asks(endpoint, "from", str(number)) for number in range(5)]
    for _ in several:
        back.send_multipart(front.recv_multipart())
    for _ in several:
        front.send_multipart(back.recv_multipart())
    assert [output_of(asking) for asking in several] == [b"from\n%d\n" % number for number in range(5)]


def test_our_req_waits_for_their_rep(bound, tmp_path):
    asking = asks(f"ipc://{tmp_path}/late", "anybody?")
    rep, _ = bound(zmq.REP, f"ipc://{tmp_path}/late")
    rep.send(rep.recv())
    assert output_of(asking) == b"anybody?\n"


def test_our_req_fails_when_their_rep_goes_without_a_reply(bound):
    rep, endpoint = bound(zmq.REP)
    asking = asks(endpoint, "will you?")
    assert rep.recv() == b"will you?"
    rep.close()
    _, err = asking.communicate(timeout=DEADLINE_SECONDS)
    assert asking.returncode == 1 and b"PeerGone" in err
