"""The plain dialect with stock pyzmq sockets: the three ways to fetch a file, and each frame of the answers."""

import subprocess
import sys

import pytest
import zmq

from conftest import DEADLINE_SECONDS, WORKSPACE

CHUNK = 250_000
NAMES = ["empty", "one", "exact", "big", "sub/folder/inner", "sub/Grüße"]


def whole_at_once(dealer, *path: bytes) -> bytes:
    """Asks once; chunks come until an empty one."""
    dealer.send_multipart([b"fetch", *path])
    chunks = []
    while True:
        [chunk] = dealer.recv_multipart()
        if not chunk:
            break
        chunks.append(chunk)
    assert all(len(chunk) == CHUNK for chunk in chunks[:-1])
    return b"".join(chunks)


def one_by_one(socket, *path: bytes, chunk_size=CHUNK) -> bytes:
    """Asks for a chunk after the last one, until one is short."""
    content = b""
    while True:
        socket.send_multipart([b"fetch", *path, b"%d" % len(content), b"%d" % chunk_size])
        [chunk] = socket.recv_multipart()
        content += chunk
        if len(chunk) < chunk_size:
            return content


def ten_ahead(dealer, *path: bytes, chunk_size=CHUNK, ahead=10) -> bytes:
    """Keeps ten requests in flight; the answers come in their order."""
    content, asked, credit = b"", 0, ahead
    while True:
        while credit:
            dealer.send_multipart([b"fetch", *path, b"%d" % asked, b"%d" % chunk_size])
            asked += chunk_size
            credit -= 1
        [chunk] = dealer.recv_multipart()
        credit += 1
        content += chunk
        if len(chunk) < chunk_size:
            break
    for _ in range(ahead - credit):
        assert dealer.recv_multipart() == [b""], "past the end there is nothing"
    return content


def all_at_once(dealers, name: bytes, content: bytes) -> None:
    """Several dealers ask for a whole file before any of them reads."""
    for dealer in dealers:
        dealer.send_multipart([b"fetch", name])
    for dealer in dealers:
        received = b""
        while chunk := dealer.recv():
            received += chunk
        assert received == content


MODELS = [whole_at_once, one_by_one, ten_ahead]


@pytest.mark.parametrize("model", MODELS)
def test_models_on_a_served_file(serve, connected, tree, model):
    root, contents = tree
    for name in ("empty", "one", "exact", "big"):
        dealer = connected(serve(root / name))
        assert model(dealer) == contents[name], name
        # The connection continues, and the file may be named.
        assert model(dealer, name.encode()) == contents[name], name


@pytest.mark.parametrize("model", MODELS)
def test_models_below_a_served_directory(serve, connected, tree, model):
    root, contents = tree
    dealer = connected(serve(root))
    for name in NAMES:
        assert model(dealer, name.encode()) == contents[name], name


@pytest.mark.parametrize("chunk_size", [1, 255, 256, 65_536, 1 << 20, 16 << 20])
def test_chunk_sizes(serve, connected, tree, chunk_size):
    root, contents = tree
    dealer = connected(serve(root))
    name = "many/49" if chunk_size < 65_536 else "big"
    assert ten_ahead(dealer, name.encode(), chunk_size=chunk_size) == contents[name]


def test_replies_to_requests_in_flight_come_in_order(serve, connected, tree):
    root, contents = tree
    dealer = connected(serve(root), RCVHWM=0, SNDHWM=0)
    big = contents["big"]
    for offset in range(0, 4_000_000, 1000):
        dealer.send_multipart([b"fetch", b"big", b"%d" % offset, b"1000"])
    for offset in range(0, 4_000_000, 1000):
        assert dealer.recv_multipart() == [big[offset : offset + 1000]], offset


def test_errors_are_two_frames(serve, connected, tree):
    root, _ = tree
    dealer = connected(serve(root))
    for request in ([b"fetch", b"missing"], [b"fetch"], [b"fetch", b"sub"], [b"fetch", b"one", b"x", b"1"]):
        dealer.send_multipart(request)
        word, reason = dealer.recv_multipart()
        assert word == b"error"
        assert reason.decode()


@pytest.mark.parametrize("options", [{}, {"REQ_CORRELATE": 1}, {"REQ_CORRELATE": 1, "REQ_RELAXED": 1}])
def test_req_sockets(serve, connected, tree, options):
    root, contents = tree
    req = connected(serve(root), zmq.REQ, **options)
    for name in NAMES:
        assert one_by_one(req, name.encode()) == contents[name]
    req.send_multipart([b"fetch", b"missing"])
    assert req.recv_multipart()[0] == b"error"


def test_receive_high_water_mark_of_two(serve, connected, tree):
    root, contents = tree
    server = serve(root)
    for model in (whole_at_once, ten_ahead):
        dealer = connected(server, RCVHWM=2)
        assert model(dealer, b"big") == contents["big"]


def test_libzmq_max_message_size(serve, connected, tree):
    root, contents = tree
    server = serve(root)
    dealer = connected(server, MAXMSGSIZE=CHUNK)
    assert whole_at_once(dealer, b"big") == contents["big"]
    assert ten_ahead(dealer, b"big") == contents["big"]
    small = connected(server, MAXMSGSIZE=1000)
    assert ten_ahead(small, b"sub/folder/inner", chunk_size=1000) == contents["sub/folder/inner"]


def test_probe_router_is_ignored(serve, connected, tree):
    root, contents = tree
    dealer = connected(serve(root), PROBE_ROUTER=1)
    dealer.send_multipart([b"fetch", b"one"])
    assert dealer.recv_multipart() == [b"1"]
    assert dealer.recv_multipart() == [b""]


def test_router_socket_as_client(serve, context, tree):
    root, contents = tree
    server = serve(root)
    router = context.socket(zmq.ROUTER)
    router.rcvtimeo = DEADLINE_SECONDS * 1000
    router.connect_routing_id = b"tow"
    router.connect(server.endpoint)
    router.send_multipart([b"tow", b"fetch", b"one", b"0", b"10"])
    assert router.recv_multipart() == [b"tow", b"1"]


def test_many_clients_at_once(serve, connected, tree):
    root, contents = tree
    server = serve(root)
    dealers = [connected(server, RCVHWM=2) for _ in range(50)]
    all_at_once(dealers, b"big", contents["big"])


def test_whole_file_is_queued_without_memory(serve, connected, tmp_path):
    source = tmp_path / "sparse"
    with open(source, "wb") as file:
        file.truncate(1 << 30)
    server = serve(source)
    first = connected(server)
    first.send_multipart([b"fetch", b"0", b"1000000"])
    first.recv()
    before = server.resident_kib()
    dealers = [connected(server, RCVHWM=1) for _ in range(10)]
    for dealer in dealers:
        dealer.send_multipart([b"fetch"])
        assert len(dealer.recv()) == CHUNK
    assert server.resident_kib() < before + 16 * 1024


def test_client_of_the_readme(serve, tree, tmp_path):
    root, contents = tree
    server = serve(root)
    script = WORKSPACE / "examples/fetch.py"
    for name in ("big", "empty", "sub/folder/inner"):
        copy = tmp_path / "copy"
        command = [sys.executable, script, server.endpoint, name, copy]
        subprocess.run(command, check=True, timeout=DEADLINE_SECONDS)
        assert copy.read_bytes() == contents[name]
    refused = subprocess.run(
        [sys.executable, script, server.endpoint, "missing", tmp_path / "none"],
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    assert refused.returncode == 1
    assert refused.stderr


def test_the_readme_shows_this_client():
    client = (WORKSPACE / "examples/fetch.py").read_text()
    lines = [line for line in client.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 10
    assert client in (WORKSPACE / "README.md").read_text(), "the README shows another client than the one tested"
