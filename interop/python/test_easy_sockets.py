"""The easy interface's REP and REQ against libzmq's sockets, by the example that both sides could have."""

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
    """Where our REP answers."""
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
    # As many as it likes, behind an envelope of its own.
    dealer = connected(echo, zmq.DEALER)
    for number in range(100):
        dealer.send_multipart([b"mine", b"", b"%d" % number])
    assert [dealer.recv_multipart() for _ in range(100)] == [[b"mine", b"", b"%d" % number] for number in range(100)]
    # One that goes without its reply, and one without an envelope, cost the others nothing.
    gone = connected(echo, zmq.REQ)
    gone.send(LARGE)
    gone.close(linger=0)
    dealer.send(b"no envelope")
    req.send(b"still there?")
    assert req.recv() == b"still there?"


@pytest.mark.parametrize("kind", [zmq.REP, zmq.ROUTER], ids=["REP", "ROUTER"])
def test_our_req_at_their_rep_and_router(context, kind):
    socket = context.socket(kind)
    socket.linger, socket.rcvtimeo = 0, DEADLINE_SECONDS * 1000
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    words = ["how", "far?"]
    asking = subprocess.Popen([ECHO, "ask", f"tcp://127.0.0.1:{port}", *words], stdout=subprocess.PIPE)
    frames = socket.recv_multipart()
    assert frames[-3:] == [b"", b"how", b"far?"] if kind == zmq.ROUTER else frames == [b"how", b"far?"]
    socket.send_multipart(frames)
    assert asking.communicate(timeout=DEADLINE_SECONDS)[0] == b"how\nfar?\n"
    assert asking.returncode == 0
