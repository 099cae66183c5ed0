"""Invalid numbered requests: the connection ends, or they are ignored. Others notice nothing."""

import os
import struct

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

import mdp
from conftest import DEADLINE_SECONDS, monitor_of, wait_until
from good_peers import good  # noqa: F401
from numbered import ATTACHED, CLIENT, LEAVING, MANY, WORKER, Client, Refused, Reply, Worker
from numbered import cancel, confirm, credit, hello, ready, reply, request, sized
from raw import Raw, message

ME = b"0123456789abcdef"
TOKEN = b"t" * 16
SILENCE_MS = 30


@pytest.fixture
def peers(broker, good):  # noqa: F811
    return good(broker())


@pytest.fixture
def expect_end(peers, connected):
    """A function that sends messages on a new connection and expects the broker to close it."""

    def expect(name, *messages):
        dealer = connected(peers.server, RECONNECT_IVL=-1)
        monitor = monitor_of(dealer, zmq.EVENT_DISCONNECTED)
        for frames in messages:
            dealer.send_multipart(frames)
        assert monitor.poll(DEADLINE_SECONDS * 1000), f"{name}: the connection goes on; log: {peers.server.log()}"
        assert recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED
        dealer.close()
        peers.work()

    return expect


GREETED = [CLIENT, hello(ME)]
READY = [WORKER, ready(1, b"mine")]
SEVERAL = request(1, b"none", [b"a", b"b"])

OF_CLIENTS = {
    "a request before HELLO": [[CLIENT, request(1, b"none")]],
    "a confirmation before HELLO": [[CLIENT, confirm(1)]],
    "a cancellation before HELLO": [[CLIENT, cancel(1)]],
    "HELLO twice": [GREETED, GREETED],
    "HELLO twice in a block": [[CLIENT, hello(ME) + hello(ME)]],
    "HELLO as another": [GREETED, [CLIENT, hello(b"f" * 16)]],
    "no block": [[CLIENT]],
    "too many frames": [[*GREETED, b"", b""]],
    "a body that nobody announced": [[*GREETED, b"body"]],
    "a body behind a request that has one": [[CLIENT, hello(ME) + request(1, b"none", b"x"), b"body"]],
    "an announced body that isn't there": [[CLIENT, hello(ME) + request(1, b"none", flags=ATTACHED)]],
    "an attached body in the middle": [
        [CLIENT, hello(ME) + request(1, b"none", flags=ATTACHED) + request(2, b"none"), b"body"]
    ],
    "a body here and there": [[CLIENT, hello(ME) + request(1, b"none", b"here", flags=ATTACHED), b"there"]],
    "frames that don't add up": [[CLIENT, hello(ME) + request(1, b"none", b"\0\0\0\xffabc", flags=MANY)]],
    "a list of no frames": [[CLIENT, hello(ME) + request(1, b"none", b"", flags=MANY)]],
    "a list of too many frames": [[CLIENT, hello(ME) + request(1, b"none", [b""] * 1001)]],
    "attached frames that don't add up": [
        [CLIENT, hello(ME) + request(1, b"none", flags=MANY | ATTACHED), sized(b"one") + b"more"]
    ],
    "an empty service": [[CLIENT, hello(ME) + request(1, b"")]],
    "a body of 4 GiB that isn't there": [[CLIENT, hello(ME) + request(1, b"none")[:-4] + b"\xff\xff\xff\xff"]],
    "a service that is longer than the block": [[CLIENT, hello(ME) + struct.pack(">BBQIB", 2, 0, 1, 0, 255) + b"none"]],
    "a worker's header": [GREETED, READY],
    "a stock request": [GREETED, [b"", b"MDPC01", b"none", b"x"]],
    "behind a stock request": [[b"", b"MDPC01", b"none", b"x"], GREETED],
    "a worker's record": [[CLIENT, hello(ME) + ready(1, b"mine")]],
    "a broker's record": [[CLIENT, hello(ME) + b"\x41" + bytes(21)]],
}

OF_WORKERS = {
    "a reply before READY": [[WORKER, reply(TOKEN, b"x")]],
    "credit before READY": [[WORKER, credit(1)]],
    "leaving before READY": [[WORKER, LEAVING]],
    "READY twice": [READY, READY],
    "READY for two services": [READY, [WORKER, ready(1, b"other")]],
    "READY for mmi.": [[WORKER, ready(1, b"mmi.service")]],
    "READY for titanic.": [[WORKER, ready(1, b"titanic.request")]],
    "READY for nothing": [[WORKER, ready(1, b"")]],
    "no block": [[WORKER]],
    "a client's header": [READY, GREETED],
    "a client's record": [[WORKER, ready(1, b"mine") + hello(ME)]],
    "a body that nobody announced": [[*READY, b"body"]],
    "an announced body that isn't there": [[WORKER, ready(1, b"mine") + reply(TOKEN, flags=ATTACHED)]],
    "a lying length": [[WORKER, ready(1, b"mine") + reply(TOKEN)[:-4] + b"\xff\xff\xff\xff"]],
    "frames that don't add up": [[WORKER, ready(1, b"mine") + reply(TOKEN, b"\0\0\0\xffabc", flags=MANY)]],
}


def test_invalid_clients_are_disconnected(expect_end):
    for name, messages in OF_CLIENTS.items():
        expect_end(name, *messages)


def test_invalid_workers_are_disconnected(expect_end):
    for name, messages in OF_WORKERS.items():
        expect_end(name, *messages)


def ends(peers, data) -> bool:
    """True if the broker closes a connection on which this is sent."""
    raw = Raw(peers.server).handshake()
    raw.send(data)
    is_closed = raw.is_closed()
    raw.close()
    return is_closed


def test_truncated_records_are_refused(peers):
    """Every non-empty proper prefix of every record ends the connection."""
    for header, first, records in (
        (CLIENT, hello(ME), [hello(ME), request(1, b"none", b"body"), SEVERAL, confirm(1), cancel(1)]),
        (WORKER, ready(1, b"mine"), [ready(1, b"mine"), reply(TOKEN, b"body"), reply(TOKEN, b"x", part=3), credit(7)]),
    ):
        for record in records:
            for cut in range(1, len(record)):
                assert ends(peers, message(header, first + record[:cut])), f"{record} cut at {cut}"
    peers.work()


def test_unknown_record_kinds_are_refused(peers):
    known = {CLIENT: {1, 2, 3, 4}, WORKER: {0x81, 0x82, 0x83, 0x84}}
    for header, first in ((CLIENT, hello(ME)), (WORKER, ready(1, b"mine"))):
        for kind in set(range(256)) - known[header]:
            assert ends(peers, message(header, first + bytes([kind]) + bytes(40))), f"{kind:#x}"
        peers.work()
    assert "unknown kind" in peers.server.log()


def test_unknown_flags_and_number_zero(peers):
    flagged = bytearray(request(1, b"none", b"body"))
    flagged[1] |= 128
    for record, why in ((bytes(flagged), "unknown flags"), (request(0, b"none", b"body"), "number 0")):
        assert ends(peers, message(CLIENT, hello(ME) + record))
        assert why in peers.server.log()
    peers.work()


def test_extreme_numbers(peers, connected):
    top = (1 << 64) - 1
    client = Client(connected(peers.server))
    for first, count in [(1 << 63, 0xFFFF_FFFF), (top, 0xFFFF_FFFF), (top, 1), (0, 0), (top - 3, 2), (1 << 62, 1)]:
        client.send(confirm(first, count), cancel(first))
        peers.work()
    # Confirmed numbers are over.
    client.send(request(1 << 63, b"good", b"never"), request(5, b"good", b"x"))
    assert client.reply()[:2] == (1 << 63, 409)
    peers.stock_worker.serve(1)
    assert client.reply() == Reply(5, 200, None, b"x")
    client = Client(connected(peers.server), first=top)
    client.send(request(top - 1, b"good", b"never"), request(top, b"good", b"the last"))
    assert client.reply()[:2] == (top - 1, 409)
    peers.stock_worker.serve(1)
    assert client.reply() == Reply(top, 200, None, b"the last")
    client.send(confirm(top, 1))
    peers.work()
    worker = Worker(connected(peers.server), b"mine", credit=0xFFFF_FFFF)
    worker.send(credit(0), credit(0xFFFF_FFFF))
    client = Client(connected(peers.server))
    client.send(request(1, b"mine", b"x", ttl_ms=0xFFFF_FFFF))
    worker.serve(1)
    assert client.reply() == Reply(1, 200, None, b"x")
    peers.work()


def test_gaps_in_numbers_are_limited(peers, connected):
    """Gaps are allowed and remembered, up to a limit."""
    before = peers.server.resident_kib()
    client = Client(connected(peers.server, RECONNECT_IVL=-1))
    monitor = monitor_of(client.socket, zmq.EVENT_DISCONNECTED)
    client.send(*(request(n, b"good", b"%d" % n) for n in (10, 1_000_000, 5, 1 << 60)))
    peers.stock_worker.serve(4)
    assert {client.reply().number for _ in range(4)} == {5, 10, 1_000_000, 1 << 60}
    client.socket.SNDTIMEO = 0
    either = zmq.Poller()
    either.register(client.socket, zmq.POLLOUT)
    either.register(monitor, zmq.POLLIN)
    for start in range(0, 600_000, 4000):
        # The broker may close the connection before everything is sent.
        if monitor in dict(either.poll(DEADLINE_SECONDS * 1000)):
            break
        try:
            client.send(*(confirm(2 * n) for n in range(start, start + 4000)))
        except zmq.Again:
            break  # Ended in between, which the monitor reports.
    assert monitor.poll(DEADLINE_SECONDS * 1000)
    assert peers.server.resident_kib() < before + 100_000
    peers.work()


def test_replies_with_foreign_tokens_are_ignored(peers, connected):
    client = Client(connected(peers.server))
    worker, other = (Worker(connected(peers.server), b"mine", credit=1) for _ in range(2))
    client.send(request(1, b"mine", b"1"), request(2, b"mine", b"2"))
    first, second = worker.request(), other.request()
    random = [reply(os.urandom(16), b"x") for _ in range(100)]
    changed = [reply(bytes([*first.token[:n], first.token[n] ^ 1, *first.token[n + 1 :]]), b"x") for n in range(16)]
    other.send(*random, *changed, reply(bytes(16), b"x"), reply(b"\xff" * 16, b"x", part=0))
    assert not client.socket.poll(SILENCE_MS)
    other.send(reply(second.token, b"done"), reply(second.token, b"twice"))
    worker.send(reply(first.token, b"done"), reply(first.token, b"twice"))
    assert sorted([client.reply(), client.reply()]) == [Reply(n, 200, None, b"done") for n in (1, 2)]
    assert not client.socket.poll(SILENCE_MS)
    peers.work()


@pytest.mark.parametrize("kind", ["stock", "numbered"])
def test_replies_from_before_a_restart_are_ignored(broker, connected, kind):
    """A restarted broker counts from the beginning: old tokens of its workers must not fit by chance."""
    first = broker()
    kinds = {"stock": mdp.Worker, "numbered": Worker}
    make = lambda at: kinds[kind](connected(at), b"mine")

    def held(worker):
        return worker.request()[0] if kind == "stock" else worker.request().token

    def answer(worker, token, body):
        worker.reply(token, body) if kind == "stock" else worker.send(reply(token, body))

    before = Client(connected(first))
    before.send(request(1, b"mine", b"before"))
    old = held(make(first))
    first.stop()
    second = broker(bind=first.endpoint)
    after = Client(connected(second))
    after.send(request(1, b"mine", b"after"))
    worker = make(second)
    new = held(worker)
    answer(worker, old, b"the reply from before")
    if kind == "stock":
        worker.expect_disconnect()
        worker = make(second)
        new = held(worker)
    answer(worker, new, b"the reply")
    assert after.reply() == Reply(1, 200, None, b"the reply")


def test_number_of_services_is_limited(peers, connected):
    client = Client(connected(peers.server))
    before = peers.server.resident_kib()
    count, block = 150_000, 1000
    for start in range(0, count, block):
        client.send(*(request(n + 1, b"service %d" % n) for n in range(start, start + block)))
    # Requests over the limit are refused, the others wait.
    client.send(request(count + 1, b"mmi.service", b"good"))
    refused = 0
    while isinstance(record := client.reply(), Refused):
        assert record.status == 503 and record.retry_ms > 0 and "services" in record.reason
        refused += 1
    assert record == Reply(count + 1, 200, None, b"200")
    # A client may have three times what it leaves for others: 67,500 of the 90,000 that clients may name.
    assert 80_000 < refused < 85_000
    assert peers.server.resident_kib() < before + 150_000
    peers.work()
    # Workers may still register.
    late = Worker(connected(peers.server), b"one more")
    client.send(request(count + 2, b"one more"))
    late.serve(1)
    assert client.reply().status == 200
    # A service is forgotten with its last request.
    client.send(confirm(1, count))
    client.send(request(count + 3, b"another"))
    Worker(connected(peers.server), b"another").serve(1)
    assert client.reply().status == 200
    peers.work()


def test_second_connection_of_a_client_takes_over(peers, connected):
    """The old connection ends, and each request is answered once."""
    first = Client(connected(peers.server, RECONNECT_IVL=-1))
    monitor = monitor_of(first.socket, zmq.EVENT_DISCONNECTED)
    first.send(request(1, b"good", b"x"))
    second = Client(connected(peers.server), name=first.name)
    assert monitor.poll(DEADLINE_SECONDS * 1000)
    second.send(request(1, b"good", b"x"))
    peers.stock_worker.serve(1)
    assert second.reply() == Reply(1, 200, None, b"x")
    assert not second.socket.poll(SILENCE_MS)
    wait_until(lambda: "took over" in peers.server.log(), "the log has it")
    peers.work()
