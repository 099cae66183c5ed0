"""Fetching through zmq.proxy: a ROUTER that clients connect to, and a DEALER that connects to the server or to another proxy."""

import json
import subprocess
import threading

import pytest
import zmq

from conftest import DEADLINE_SECONDS, TOW
from native_client import Client, name_of
from test_plain_dialect import MODELS, NAMES, all_at_once, one_by_one

REQ_OPTIONS = [{}, {"REQ_CORRELATE": 1}, {"REQ_CORRELATE": 1, "REQ_RELAXED": 1}]


def run_proxy(front, back) -> None:
    try:
        zmq.proxy(front, back)
    except zmq.ContextTerminated:
        front.close(0)
        back.close(0)


@pytest.fixture
def proxied():
    """A factory: proxied(SERVER, LEVELS) is the endpoint of a proxy to the server, or of the first of several in a row."""
    context = zmq.Context()

    def start(server, levels=1) -> str:
        endpoint = server.endpoint
        for _ in range(levels):
            front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
            for socket in (front, back):
                socket.linger = socket.sndhwm = socket.rcvhwm = 0
            back.connect(endpoint)
            endpoint = f"tcp://127.0.0.1:{front.bind_to_random_port('tcp://127.0.0.1')}"
            threading.Thread(target=run_proxy, args=(front, back), daemon=True).start()
        return endpoint

    yield start
    context.term()


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_dealers(serve, connected, proxied, tree, model, levels):
    root, contents = tree
    endpoint = proxied(serve(root), levels)
    for name in NAMES:
        assert model(connected(endpoint), name.encode()) == contents[name], name


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("options", REQ_OPTIONS)
def test_req_sockets(serve, connected, proxied, tree, options, levels):
    root, contents = tree
    req = connected(proxied(serve(root), levels), zmq.REQ, **options)
    for name in NAMES:
        assert one_by_one(req, name.encode()) == contents[name]
    req.send_multipart([b"fetch", b"missing"])
    assert req.recv_multipart()[0] == b"error"
    req.send_multipart([b"nonsense"])
    assert json.loads(req.recv_multipart()[1])["code"] == "bad-request"
    req.send_multipart([b"TOW1", b'{"op":"list","id":1,"path":"one"}'])
    assert json.loads(req.recv_multipart()[1])["entries"][0]["size"] == 1


@pytest.mark.parametrize("model", MODELS)
def test_a_served_file_needs_no_name(serve, connected, proxied, tree, model):
    root, contents = tree
    assert model(connected(proxied(serve(root / "big")))) == contents["big"]


def test_errors_reach_dealers(serve, connected, proxied, tree):
    dealer = connected(proxied(serve(tree[0])), PROBE_ROUTER=1)
    for request in ([b"fetch", b"missing"], [b"fetch", b"one", b"x", b"1"], [b"fetch", b"", b"0", b"1"]):
        dealer.send_multipart(request)
        assert dealer.recv_multipart()[0] == b"error"
    dealer.send_multipart([b"TOW1", b"{"])
    assert json.loads(dealer.recv_multipart()[1])["code"] == "bad-request"
    dealer.send_multipart([b"nonsense", b"", b"more"])
    # Behind what could be an envelope.
    assert dealer.recv_multipart()[:3] == [b"nonsense", b"", b"TOW1"]


def test_an_envelope_over_the_limits_is_refused(serve, connected, tree):
    dealer = connected(serve(tree[0]))
    for envelope, is_taken in ([[b"x"] * 15, True], [[b"x"] * 16, False], [[b"x" * 4096], True], [[b"x" * 4097], False]):
        dealer.send_multipart([*envelope, b"", b"fetch", b"one", b"0", b"5"])
        answer = dealer.recv_multipart()
        assert answer[: len(envelope) + 1] == [*envelope, b""]
        answer = answer[len(envelope) + 1 :]
        assert answer == [b"1"] if is_taken else json.loads(answer[1])["code"] == "bad-request"


def test_clients_of_one_proxy_at_once(serve, connected, proxied, tree):
    root, contents = tree
    endpoint = proxied(serve(root))
    dealers = [connected(endpoint) for _ in range(10)]
    all_at_once(dealers, b"big", contents["big"])
    # All use the same ids, and the credit of each is its own.
    clients = [Client(connected(endpoint)) for _ in range(10)]
    for client in clients:
        client.send(op="fetch", id=1, files=[{"path": "big"}], credit_bytes=1 << 20, chunk_bytes=1 << 20)
    for client in clients:
        answer, _ = client.control()
        assert answer["re"] == "files" and answer["files"][0]["size"] == len(contents["big"])
        assert client.socket.recv_multipart()[1] == contents["big"][: 1 << 20]
        client.send(op="cancel", id=1)
        while client.control()[0]["re"] != "cancelled":
            pass
    for client in clients:
        client.last_id = 1
        [file] = client.fetch([{"path": "big"}])
        assert file.content == contents["big"]
        assert {name_of(entry).decode() for entry in client.listing(recursive=True)} >= contents.keys()


def test_tow_get_through_proxies(serve, proxied, tree, tmp_path):
    root, contents = tree
    endpoint = proxied(serve(root), 2)
    copies = [tmp_path / f"copy-{number}" for number in range(4)]
    words = [[TOW, "get", endpoint + "/", copy] for copy in copies]
    transfers = [subprocess.Popen(command) for command in words]
    for transfer, copy in zip(transfers, copies, strict=True):
        assert transfer.wait(DEADLINE_SECONDS) == 0
        for name, content in contents.items():
            assert (copy / name).read_bytes() == content
