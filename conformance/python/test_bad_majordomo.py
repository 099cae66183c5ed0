"""Invalid messages of Majordomo peers: dropped, answered by a status or DISCONNECT, or the end of the connection; the broker and other
peers are not affected."""

import struct

import pytest
import zmq

from conftest import wait_until
from good_peers import good  # noqa: F401
from mdp import DIALECTS, MDP01, MDP02, Client, Worker
from raw import GREETING, MORE, Raw, connections, frame, header, message, ready

SILENCE_MS = 30

INVALID_REQUESTS = {
    "no service": [b"", b"MDPC01"],
    "an empty service": [b"", b"MDPC01", b"", b"x"],
    "a service name too long": [b"", b"MDPC01", b"s" * 256, b"x"],
    "no body": [b"", b"MDPC01", b"good"],
    "a body of 1001 frames": [b"", b"MDPC01", b"good", *[b"x"] * 1001],
    "0.2: only a header": [b"MDPC02"],
    "0.2: no service": [b"MDPC02", b"\1"],
    "0.2: an empty service": [b"MDPC02", b"\1", b"", b"x"],
    "0.2: no body": [b"MDPC02", b"\1", b"good"],
    "0.2: a broker's command": [b"MDPC02", b"\3", b"good", b"x"],
    "0.2: an unknown command": [b"MDPC02", b"\x63", b"good", b"x"],
    "0.2: an empty command": [b"MDPC02", b"", b"good", b"x"],
    "0.2: a command of two bytes": [b"MDPC02", b"\1\1", b"good", b"x"],
    "majortomo: no service": [b"", b"MDPC02", b"\2"],
    "majortomo: no body": [b"", b"MDPC02", b"\2", b"good"],
}

NOT_REQUESTS = {
    "only empty frames": [b"", b""],
    "empty frames": [b""] * 5,
    "no header": [b"", b"good", b"x"],
    "a header of the future": [b"", b"MDPC99", b"good", b"x"],
    "a header in small letters": [b"", b"mdpc01", b"good", b"x"],
    "half a header": [b"", b"MDPC0", b"good", b"x"],
    "no empty frame": [b"MDPC01", b"good", b"x"],
    "HTTP": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    "bytes": [bytes(range(256)), b"\xff" * 1000],
    "too long an envelope": [*[b"e"] * 17, b"", b"MDPC01", b"good", b"x"],
    "too large an envelope": [b"e" * 4097, b"", b"MDPC01", b"good", b"x"],
    "a worker's header behind an envelope": [b"e", b"", b"MDPW01", b"\1", b"good"],
}

# The log names them for the operator.
OTHER_DIALECTS = {
    "zproto": [b"\xaa\xa4\x01\x00\x06MDPC02\x04good"],
    "zeromq/majordomo": [b"", b"MDPC02", b"good", b"x"],
    "opencmw": [b"MDPC03", b"\1", b"good", b"c", b"t", b"x", b"", b""],
    "opencmw-cpp": [b"MDPW03", b"\1", b"good", b"c", b"t", b"x", b"", b""],
}


@pytest.fixture
def peers(broker, good):  # noqa: F811
    """A broker and well-behaved peers."""
    return good(broker())


@pytest.fixture
def once(connected):
    """A factory of DEALERs that don't reconnect."""
    return lambda server: connected(server, RECONNECT_IVL=-1)


def test_invalid_requests_are_refused(peers, once):
    for name, frames in INVALID_REQUESTS.items():
        dealer = once(peers.server)
        dealer.send_multipart(frames)
        *_, code, reason = dealer.recv_multipart()
        assert code in (b"400", b"413") and reason, name
        peers.work()


def test_what_is_no_request_is_dropped(peers, once):
    for name, frames in NOT_REQUESTS.items():
        dealer = once(peers.server)
        dealer.send_multipart(frames)
        assert not dealer.poll(SILENCE_MS), f"{name}: {dealer.recv_multipart()}"
        peers.work()


def test_req_asks_again_after_an_invalid_request(peers, connected):
    req = connected(peers.server, zmq.REQ, REQ_RELAXED=1, REQ_CORRELATE=1)
    for frames in ([b"MDPC01"], [b"MDPC01", b""], [b"MDPC01", b"good"]):
        req.send_multipart(frames)
    req.send_multipart([b"MDPC01", b"good", b"x"])
    peers.stock_worker.serve(1)
    assert req.recv_multipart() == [b"MDPC01", b"good", b"x"]
    peers.work()


@pytest.mark.parametrize("name", OTHER_DIALECTS)
def test_unknown_dialects_are_logged_by_name(peers, once, name):
    dealer = once(peers.server)
    dealer.send_multipart(OTHER_DIALECTS[name])
    wait_until(lambda: name in peers.server.log(), "the log names it")
    assert not dealer.poll(SILENCE_MS)
    peers.work()


def test_oversized_message_is_logged(peers, once):
    dealer = once(peers.server)
    dealer.send_multipart([b"", b"MDPC01", b"good", *[bytes(700 << 10)] * 100])
    wait_until(lambda: "a message of over" in peers.server.log(), "the log says why")
    peers.work()


def bad_commands(dialect) -> dict[str, list]:
    """Commands of workers, each with whether a valid READY comes before it."""
    reply = dialect.from_worker[1]
    return {
        "READY twice": (True, [b"\1", b"mine"]),
        "READY for another service": (True, [b"\1", b"other"]),
        "READY without a service": (False, [b"\1"]),
        "READY with an empty service": (False, [b"\1", b""]),
        "READY with more": (False, [b"\1", b"mine", b"more"]),
        "READY with too long a name": (False, [b"\1", b"s" * 256]),
        "READY for mmi.service": (False, [b"\1", b"mmi.service"]),
        "READY for mmi.mine": (False, [b"\1", b"mmi.mine"]),
        "no command": (False, []),
        "an empty command": (False, [b""]),
        "a command of two bytes": (False, [b"\1\1", b"mine"]),
        "an unknown command": (False, [b"\x63"]),
        "an unknown command of a worker": (True, [b"\x63"]),
        "REQUEST": (True, [b"\2", b"address", b"", b"body"]),
        "a heartbeat before READY": (False, [dialect.heartbeat]),
        "a reply before READY": (False, [reply, b"0" * 32, b"", b"body"]),
        "a reply without anything": (True, [reply]),
        "a reply without a body": (True, [reply, b"0" * 32, b""]),
        "a reply without an empty frame": (True, [reply, b"0" * 32, b"body"]),
        "a reply to nobody": (True, [reply, b"", b"", b"body"]),
        "a reply to an identity": (True, [reply, b"\0\x80\0\0\x29", b"", b"body"]),
        "a reply to an address made up": (True, [reply, b"0123456789abcdef" * 2, b"", b"body"]),
        "a reply to a long address": (True, [reply, b"a" * 5000, b"", b"body"]),
        "a reply of 1001 frames": (True, [reply, b"0" * 32, b"", *[b"x"] * 1001]),
    }


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_invalid_workers_are_disconnected(peers, once, dialect):
    for name, (is_ready, frames) in bad_commands(dialect).items():
        dealer = once(peers.server)
        head = [*dialect.delimiter, dialect.worker]
        if is_ready:
            dealer.send_multipart([*head, b"\1", b"mine"])
        dealer.send_multipart([*head, *frames])
        answer = dealer.recv_multipart()
        if answer == [*head, dialect.heartbeat]:
            answer = dealer.recv_multipart()
        assert answer == [*head, dialect.disconnect], name
        assert not dealer.poll(SILENCE_MS), f"{name}: {dealer.recv_multipart()}"
        assert peers.stock_client.ask(b"mmi.service", b"mine") == [b"404"], name
        dealer.close()
    peers.work()


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_requests_of_a_disconnected_worker_go_to_another(peers, connected, dialect):
    client = Client(connected(peers.server))
    client.send(b"mine", b"body")
    bad = Worker(connected(peers.server), b"mine", dialect)
    held, _ = bad.request()
    bad.reply(b"f" * 32, b"for somebody else")
    bad.expect_disconnect()
    Worker(connected(peers.server), b"mine").serve(1)
    assert client.receive(b"mine") == [[b"body"]]
    # Its late reply is ignored: the client has a reply.
    bad.reply(held, b"late")
    bad.expect_disconnect()
    # It may register again.
    bad.ready()
    wait_until(lambda: peers.stock_client.ask(b"mmi.service", b"mine") == [b"200"], "it is a worker again")
    assert not client.socket.poll(SILENCE_MS)
    peers.work()


def test_reply_to_another_workers_request_counts_once(peers, connected):
    client = Client(connected(peers.server))
    workers = [Worker(connected(peers.server), b"mine", dialect) for dialect in (MDP01, MDP02)]
    client.send(b"mine", b"body")
    while not (holder := next((w for w in workers if w.socket.poll(10)), None)):
        pass
    address, _ = holder.request()
    other = next(worker for worker in workers if worker is not holder)
    other.reply(address, b"by the other")
    assert client.receive(b"mine") == [[b"by the other"]]
    holder.reply(address, b"by the holder")
    assert not client.socket.poll(SILENCE_MS)
    # Both continue.
    for n in range(2):
        client.send(b"mine", b"%d" % n)
    for worker in workers:
        worker.serve(1)
    assert {client.receive(b"mine")[0][0] for _ in range(2)} == {b"0", b"1"}
    peers.work()


def test_duplicate_reply_counts_once(peers, connected):
    client = Client(connected(peers.server))
    worker = Worker(connected(peers.server), b"mine", MDP02)
    for n in range(3):
        client.send(b"mine", b"%d" % n)
    for n in range(3):
        address, body = worker.request()
        assert body == [b"%d" % n]
        for _ in range(2):
            worker.reply(address, b"reply %d" % n)
        worker.part(address, b"a part behind the last")
    assert [client.receive(b"mine") for _ in range(3)] == [[[b"reply %d" % n]] for n in range(3)]
    assert not client.socket.poll(SILENCE_MS)
    peers.work()


@pytest.mark.parametrize("first", ["client", "worker"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_peer_keeps_its_role(peers, once, dialect, first):
    dealer = once(peers.server)
    as_client = [*dialect.delimiter, dialect.client, *dialect.request, b"mine", b"body"]
    as_worker = [*dialect.delimiter, dialect.worker, b"\1", b"mine"]
    dealer.send_multipart(as_client if first == "client" else as_worker)
    dealer.send_multipart(as_worker if first == "client" else as_client)
    wait_until(lambda: "role of its first message" in peers.server.log(), "the log has it")
    assert peers.stock_client.ask(b"mmi.service", b"mine") == [b"404"]
    peers.work()


def test_bodies_over_the_limits_are_refused(peers, once):
    """Several frames are kept in memory, and have a limit; one frame goes to the disk."""
    dealer = once(peers.server)
    before = peers.server.resident_kib()
    half = bytes(33 << 20)
    dealer.send_multipart([b"", b"MDPC01", b"good", half, half], copy=False)
    assert dealer.recv_multipart()[:4] == [b"", b"MDPC01", b"good", b"413"]
    wait_until(lambda: peers.server.resident_kib() < before + 40_000, "its memory is released")
    peers.work()


def test_incomplete_bodies_hold_up_no_one(peers, connected):
    begun = b"".join(frame(body, MORE) for body in (b"", b"MDPC01", b"good")) + header(100_000_000) + b"x"
    with connections(peers.server, 100) as raws:
        for raw in raws:
            raw.send(begun)
        client = Client(connected(peers.server))
        body = b"y" * 5_000_000
        client.send(b"good", body)
        peers.stock_worker.serve(1)
        assert client.receive(b"good") == [[body]]
        peers.work()


def test_garbage_instead_of_zmtp_is_refused(peers):
    garbage = {
        "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100),
        "zeros": bytes(1000),
        "ones": b"\xff" * 1000,
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        "no READY": GREETING + message(b"", b"MDPC01", b"good", b"x"),
        "PUB": GREETING + ready(b"PUB"),
        "a READY that lies": GREETING + frame(b"\5READY\x0bSocket-Type\xff\xff\xff\xffDEALER", 4),
        "a command of 2^62 bytes": GREETING + header(1 << 62, 4),
    }
    for name, data in garbage.items():
        raw = Raw(peers.server)
        raw.send(data)
        assert raw.is_closed(), name
        peers.work()
    for data in (header(1 << 62), header((1 << 63) - 1, MORE), header((1 << 64) - 1), b"\xff" * 10, b"\x08\1x"):
        raw = Raw(peers.server).handshake()
        raw.send(data)
        assert raw.is_closed(), data
        peers.work()
    # At any point of a connection.
    whole = GREETING + ready() + message(b"", b"MDPW01", b"\1", b"mine")
    for cut in range(0, len(whole), 7):
        raw = Raw(peers.server)
        raw.send(whole[:cut])
        raw.close()
    peers.work()


def test_endless_messages_are_limited(peers):
    """They end at a limit and take no more memory than one message."""
    before = peers.server.resident_kib()
    for body in (b"", b"x", b"x" * 70_000, b"x" * 70_000):
        raw = Raw(peers.server).handshake()
        more = frame(body, MORE) * (65_536 // (len(body) + 2) + 1)
        with pytest.raises(ConnectionError):
            for _ in range(4096):
                raw.send(more)
        assert raw.is_closed()
        assert peers.server.resident_kib() < before + 130_000
        peers.work()
