"""libzmq's connections: heartbeats, PLAIN, reconnecting, routing ids, endpoints."""

import time
from contextlib import suppress

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from conftest import DEADLINE_SECONDS, monitor_of, wait_until
from relay import TO_CLIENT, TO_SERVER, Relay
from test_plain_dialect import ten_ahead, whole_at_once

HEARTBEAT = {"HEARTBEAT_IVL": 50, "HEARTBEAT_TIMEOUT": 1000, "HEARTBEAT_TTL": 2000}


def events(monitor, until=None, seconds=DEADLINE_SECONDS) -> list[int]:
    """Events of a socket until a wanted one, or for this many seconds."""
    seen, end = [], time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not monitor.poll(max(1, int(left * 1000))):
            break
        seen.append(recv_monitor_message(monitor)["event"])
        if until and seen[-1] in until:
            break
    return seen


def test_heartbeats_keep_an_idle_connection(serve, connected, tree):
    root, contents = tree
    dealer = connected(serve(root), **HEARTBEAT)
    monitor = monitor_of(dealer)
    assert ten_ahead(dealer, b"big") == contents["big"]
    # Twice the timeout: without our PONGs libzmq would have disconnected.
    assert zmq.EVENT_DISCONNECTED not in events(monitor, seconds=2)
    assert whole_at_once(dealer, b"big") == contents["big"]


def test_heartbeats_reach_a_client_that_reads_slowly(serve, connected, tree):
    root, contents = tree
    dealer = connected(serve(root), RCVHWM=4, **HEARTBEAT)
    monitor = monitor_of(dealer)
    received = b""
    for offset in range(0, len(contents["big"]), 250_000):
        dealer.send_multipart([b"fetch", b"big", b"%d" % offset, b"250000"])
        received += dealer.recv()
        time.sleep(0.1)
    assert received == contents["big"]
    assert zmq.EVENT_DISCONNECTED not in events(monitor, seconds=0.1)


def test_libzmq_answers_heartbeats_of_the_server(serve, connected, tree):
    root, _ = tree
    with Relay(serve(root, "--heartbeat", "0.5")) as way:
        dealer = connected(way.endpoint)
        monitor = monitor_of(dealer)
        assert whole_at_once(dealer, b"one") == b"1"
        # One more interval than may pass without an answer. A PING's TTL is 0: a client of the plain dialect couldn't ask again.
        for direction, command in ((TO_CLIENT, b"\x04PING\x00\x00"), (TO_SERVER, b"\x04PONG")):
            received = way.received[direction]
            wait_until(lambda received=received, command=command: received.count(command) > 5, f"{command} was sent")
        assert zmq.EVENT_DISCONNECTED not in events(monitor, seconds=0.1)
        assert whole_at_once(dealer, b"one") == b"1"


@pytest.fixture
def passwords(tmp_path):
    path = tmp_path / "passwords"
    path.write_text("ada:lovelace\ngrace:hop:per\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(("user", "password"), [(b"ada", b"lovelace"), (b"grace", b"hop:per")])
def test_plain_admits_users_with_the_password(serve, connected, tree, passwords, user, password):
    root, contents = tree
    server = serve(root, "--plain-passwords", passwords)
    dealer = connected(server, PLAIN_USERNAME=user, PLAIN_PASSWORD=password)
    assert whole_at_once(dealer, b"big") == contents["big"]
    req = connected(server, zmq.REQ, PLAIN_USERNAME=user, PLAIN_PASSWORD=password)
    req.send_multipart([b"fetch", b"one", b"0", b"10"])
    assert req.recv() == b"1"


@pytest.mark.parametrize(
    "credentials",
    [
        {"PLAIN_USERNAME": b"ada", "PLAIN_PASSWORD": b"wrong"},
        {"PLAIN_USERNAME": b"nobody", "PLAIN_PASSWORD": b"lovelace"},
        {},
    ],
)
def test_plain_refuses_others(serve, context, tree, passwords, credentials):
    root, _ = tree
    server = serve(root, "--plain-passwords", passwords)
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    for name, value in credentials.items():
        dealer.set(getattr(zmq, name), value)
    monitor = monitor_of(dealer)
    dealer.connect(server.endpoint)
    dealer.send_multipart([b"fetch", b"one"])
    refusals = {
        zmq.EVENT_HANDSHAKE_FAILED_AUTH,
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        zmq.EVENT_DISCONNECTED,
    }
    seen = events(monitor, until=refusals | {zmq.EVENT_HANDSHAKE_SUCCEEDED})
    assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in seen
    assert refusals & set(seen)
    assert not dealer.poll(200)
    assert "lovelace" not in server.log()


def test_plain_client_is_refused_by_an_open_server(serve, context, tree):
    root, _ = tree
    server = serve(root)
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.plain_username, dealer.plain_password = b"ada", b"lovelace"
    dealer.connect(server.endpoint)
    # libzmq doesn't send to a connection that was refused, and doesn't reconnect.
    with suppress(zmq.Again):
        dealer.send_multipart([b"fetch", b"one"], zmq.NOBLOCK)
    assert not dealer.poll(1000)
    wait_until(lambda: "handshake failed" in server.log(), "the refusal is said")


def test_ipc(serve, connected, tree, tmp_path):
    root, contents = tree
    server = serve(root, bind=f"ipc://{tmp_path}/socket")
    dealer = connected(server)
    assert whole_at_once(dealer, b"big") == contents["big"]
    assert ten_ahead(dealer, b"big") == contents["big"]


def test_ipv6(serve, connected, tree):
    root, contents = tree
    server = serve(root, bind="tcp://[::1]:0")
    dealer = connected(server, IPV6=1)
    assert whole_at_once(dealer, b"big") == contents["big"]


def test_several_endpoints(serve, connected, tree, tmp_path):
    root, contents = tree
    server = serve(root, "--bind", f"ipc://{tmp_path}/second")
    for endpoint in (server.endpoint, f"ipc://{tmp_path}/second"):
        assert whole_at_once(connected(endpoint), b"exact") == contents["exact"]


def test_libzmq_reconnects_to_a_restarted_server(serve, connected, tree):
    root, contents = tree
    first = serve(root)
    dealer = connected(first, RECONNECT_IVL=10)
    assert whole_at_once(dealer, b"exact") == contents["exact"]
    first.stop()
    serve(root, bind=first.endpoint)
    assert whole_at_once(dealer, b"exact") == contents["exact"]


def test_routing_id_is_handed_over_to_the_newer_connection(serve, connected, context, tree):
    root, contents = tree
    server = serve(root)
    old = connected(server, IDENTITY=b"the-same", RECONNECT_IVL=-1)
    assert whole_at_once(old, b"one") == b"1"
    # libzmq's own ROUTER would ignore the newer connection, and a returning client would wait for ever.
    new = connected(server, IDENTITY=b"the-same")
    assert whole_at_once(new, b"exact") == contents["exact"]
    assert "routing id" in server.log()


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.SUB, zmq.PUSH, zmq.PULL, zmq.PAIR, zmq.REP])
def test_incompatible_socket_types_are_refused(serve, context, connected, tree, kind):
    root, _ = tree
    server = serve(root)
    socket = context.socket(kind)
    socket.linger = 0
    monitor = monitor_of(socket)
    socket.connect(server.endpoint)
    refused = {zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL}
    assert refused & set(events(monitor, until=refused))
    # Others are not affected.
    assert whole_at_once(connected(server), b"one") == b"1"
