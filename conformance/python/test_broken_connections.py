"""Stock peers whose connection stalls, breaks, or is closed on one side: what was asked and done isn't lost with it."""

import socket
import struct

import pytest
import zmq

import mdp
from conftest import wait_until
from raw import COMMAND, MORE, GREETING, Raw, connections, frame, message
from relay import TO_CLIENT, TO_SERVER, Relay

SERVICE = b"echo"


def ended(server) -> None:
    """Waits for as long as a peer that says nothing may stay."""
    with connections(server, 1) as [silent]:
        assert silent.is_closed()


def frames_until_closed(raw: Raw) -> list[tuple[int, bytes]]:
    """All frames with their flags, until the other side ends."""
    data = b""
    while more := raw.socket.recv(65_536):
        data += more
    frames = []
    while data:
        size = 9 if data[0] & 2 else 2
        length = struct.unpack(">Q", data[1:9])[0] if size == 9 else data[1]
        frames.append((data[0], data[size : size + length]))
        data = data[size + length :]
    return frames


def commands(raw: Raw) -> list[bytes]:
    """The commands that come before the other side ends."""
    return [body for flags, body in frames_until_closed(raw) if flags & COMMAND]


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT])
def test_a_stalled_stock_client_gets_its_reply(broker, connected, direction):
    server = broker("--heartbeat", "0.1s")
    worker = mdp.Worker(connected(server), SERVICE)
    with Relay(server) as relay:
        client = mdp.Client(connected(relay.endpoint))
        client.send(SERVICE, b"one")
        address, _ = worker.request()
        relay.stall(direction)
        ended(server)
        worker.heartbeat()
        worker.reply(address, b"late")
        # Its own message meanwhile arrives as well.
        client.send(SERVICE, b"two")
        relay.go_on()
        assert client.receive(SERVICE) == [[b"late"]]
        worker.serve(1)
        assert client.receive(SERVICE) == [[b"two"]]
        assert relay.connections == 1


def test_pings_of_the_broker_set_no_deadline(broker, connected):
    server = broker("--heartbeat", "0.1s")
    with Relay(server) as relay:
        client = mdp.Client(connected(relay.endpoint))
        assert client.ask(b"mmi.service", SERVICE) == [b"404"]
        received = relay.received[TO_CLIENT]
        wait_until(lambda: received.count(b"\4PING") > 3, "PINGs come")
        assert received.count(b"\4PING\0\0") == received.count(b"\4PING")


def test_the_end_of_a_stock_client_that_waits_is_logged(broker, connected):
    server = broker()
    worker = mdp.Worker(connected(server), SERVICE)
    socket = connected(server)
    client = mdp.Client(socket)
    for number in range(3):
        client.send(SERVICE, b"%d" % number)
    worker.request()
    # Answered behind the others: the broker has taken all.
    client.send(b"mmi.service", SERVICE)
    assert client.receive(b"mmi.service") == [[b"200"]]
    socket.close()
    wait_until(lambda: "are given up" in server.log(), "it is logged")
    [line] = [line for line in server.log().splitlines() if "are given up" in line]
    assert "WARN" in line and "requests=3" in line and "address=127.0.0.1" in line, line


@pytest.mark.parametrize("dialect", mdp.DIALECTS, ids=str)
def test_a_reply_over_a_new_connection_counts(broker, connected, dialect):
    server = broker()
    client = mdp.Client(connected(server), dialect)
    with Relay(server) as relay:
        worker = mdp.Worker(connected(relay.endpoint, RECONNECT_IVL=10), SERVICE, dialect)
        client.send(SERVICE, b"once")
        address, body = worker.request()
        relay.reset()
        # libzmq connects again, and doesn't report it.
        wait_until(lambda: relay.connections == 2, "the worker is connected again")
        worker.reply(address, *body)
        assert client.receive(SERVICE) == [[b"once"]]
        worker.expect_disconnect()
        worker.ready()
        client.send(SERVICE, b"another")
        address, body = worker.request()
        assert body == [b"another"], "what is done is done again"
        worker.reply(address, *body)
        assert client.receive(SERVICE) == [[b"another"]]


@pytest.mark.parametrize("service", [b"mmi.service", SERVICE])
def test_a_client_that_has_closed_its_side_gets_its_replies(broker, connected, service):
    server = broker()
    worker = mdp.Worker(connected(server), SERVICE)
    raw = Raw(server).handshake()
    raw.send(b"".join(message(b"", b"MDPC01", service, b"%d" % number) for number in range(20)))
    raw.socket.shutdown(socket.SHUT_WR)
    if service == SERVICE:
        worker.serve(20)
    frames = [(flags & MORE, body) for flags, body in frames_until_closed(raw) if not flags & COMMAND]
    code = [b"404"] * 20 if service != SERVICE else [b"%d" % number for number in range(20)]
    assert frames == [
        frame for body in code for frame in [(1, b""), (1, b"MDPC01"), (1, service), (0, body)]
    ]
    assert "used up its attempts" not in server.log()


def test_a_worker_that_has_closed_its_side_is_gone(broker, connected):
    server = broker()
    client = mdp.Client(connected(server))
    with connections(server, 1) as [raw]:
        raw.send(message(b"", b"MDPW01", b"\1", SERVICE))
        client.send(SERVICE, b"again")
        while raw.receive(1) != b"n":  # the last byte of the request
            pass
        worker = mdp.Worker(connected(server), SERVICE)
        raw.socket.shutdown(socket.SHUT_WR)
        worker.serve(1)
        assert client.receive(SERVICE) == [[b"again"]]
        assert raw.is_closed()


@pytest.mark.parametrize("kind", ["serve", "broker"])
def test_every_ping_is_answered(started, tmp_path, kind):
    server = started(*(["serve", tmp_path] if kind == "serve" else ["broker"]))
    raw = Raw(server).handshake()
    contexts = [b"%d" % number for number in range(1_000)]
    raw.send(b"".join(frame(b"\4PING\0\0" + context, COMMAND) for context in contexts))
    raw.socket.shutdown(socket.SHUT_WR)
    pongs = [body for body in commands(raw) if body.startswith(b"\4PONG")]
    assert pongs == [b"\4PONG" + context for context in contexts]


@pytest.mark.parametrize("password", [b"secret", b"wrong"])
def test_a_hasty_plain_client_sees_the_verdict(broker, tmp_path, password):
    passwords = tmp_path / "passwords"
    passwords.write_text("ada:secret\n")
    passwords.chmod(0o600)
    raw = Raw(broker("--plain-passwords", passwords))
    metadata = b"\x0bSocket-Type\0\0\0\6DEALER"
    hello = frame(b"\5HELLO\3ada" + bytes([len(password)]) + password, COMMAND)
    raw.send(GREETING.replace(b"NULL\0", b"PLAIN") + hello + frame(b"\x08INITIATE" + metadata, COMMAND))
    raw.socket.shutdown(socket.SHUT_WR)
    assert len(raw.receive(64)) == 64
    said = commands(raw)
    if password == b"secret":
        assert said[0] == b"\7WELCOME" and said[1].startswith(b"\5READY")
    else:
        assert said == [b"\5ERROR\x03400"]


@pytest.mark.parametrize("dialect", mdp.DIALECTS, ids=str)
def test_invalid_requests_are_answered(broker, connected, dialect):
    server = broker()
    for kind in [zmq.DEALER, zmq.REQ]:
        client = mdp.Client(connected(server, kind), dialect)
        for service, body, code in [
            (SERVICE, [b""] * 1_001, b"413"),
            (SERVICE, [], b"400"),
            (b"s" * 256, [b"x"], b"400"),
            (b"", [b"x"], b"400"),
        ]:
            status, reason = client.ask(service, *body)
            assert (status, bool(reason)) == (code, True)
        assert client.ask(b"mmi.service", SERVICE) == [b"404"]
