"""Majordomo clients and workers of every dialect against `tow broker`, each with each."""

import collections
import itertools
import json
import time

import pytest
import zmq

from conftest import DEADLINE_SECONDS, wait_until
from mdp import DIALECTS, MAJORTOMO, MDP01, MDP02, Client, Worker

LARGE = 5_000_000
CORRELATED = {"REQ_CORRELATE": 1, "REQ_RELAXED": 1}
CLIENTS = {
    "0.1-req": (MDP01, zmq.REQ, {}),
    "0.1-req-correlate": (MDP01, zmq.REQ, CORRELATED),
    "0.1-dealer": (MDP01, zmq.DEALER, {}),
    "0.2-dealer": (MDP02, zmq.DEALER, {}),
    "0.2-majortomo": (MAJORTOMO, zmq.DEALER, {}),
}
BODIES = {
    "one": [b"hello"],
    "empty": [b""],
    "several": [b"", b"a", b"", b"b", b""],
    "hundreds": [b"%d" % n for n in range(500)],
    "long": [bytes(70_000)],
    "large": [b"0123456789" * (LARGE // 10)],
    "large-first": [b"0123456789" * (LARGE // 10), b"", b"tail"],
    "large-among": [b"head", b"x" * LARGE, b"", b"y" * LARGE, b"tail"],
    "large-last": [b"head", b"z" * LARGE],
}


@pytest.fixture
def mdp_client(connected):
    def make(server, kind="0.1-req") -> Client:
        dialect, socket, options = CLIENTS[kind]
        return Client(connected(server, socket, **options), dialect)

    return make


@pytest.fixture
def mdp_worker(connected):
    def make(server, service=b"echo", dialect=MDP01, **options) -> Worker:
        return Worker(connected(server, **options), service, dialect)

    return make


@pytest.mark.parametrize("worker_dialect", DIALECTS, ids=str)
@pytest.mark.parametrize("kind", CLIENTS)
def test_each_client_reaches_each_worker(broker, mdp_client, mdp_worker, kind, worker_dialect):
    server = broker()
    worker = mdp_worker(server, dialect=worker_dialect)
    client = mdp_client(server, kind)
    for name, body in BODIES.items():
        client.send(b"echo", *body)
        address, request = worker.request()
        assert request == body, name
        worker.reply(address, *reversed(request))
        assert client.receive(b"echo") == [body[::-1]], name


# As a list, the lengths included, they have 1 MiB, one byte more, and much more: our ends take in what is over 1 MiB as a file.
LISTS = [[(1 << 20) - 8, 0], [(1 << 20) - 8, 1], [2 << 20, 0, 3 << 20]]


@pytest.mark.parametrize("kind", ["0.1-req", "0.2-dealer", "0.2-majortomo"])
def test_many_large_frames_reach_our_worker(broker, end, mdp_client, kind):
    server = broker()
    end("work", "echo", [server], "--echo")
    client = mdp_client(server, kind)
    for lengths in LISTS:
        body = [bytes([65 + n]) * length for n, length in enumerate(lengths)]
        client.send(b"echo", *body)
        assert client.receive(b"echo") == [body], lengths


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_many_large_frames_reach_our_client(broker, end, mdp_worker, dialect):
    server = broker()
    worker = mdp_worker(server, dialect=dialect)
    for lengths in LISTS:
        body = [bytes([65 + n]) * length for n, length in enumerate(lengths)]
        call = end("call", "echo", [server], "question", "--timeout", DEADLINE_SECONDS)
        address, request = worker.request()
        assert request == [b"question"]
        worker.reply(address, *body)
        # The frames of a reply are written one after another.
        assert call.stdout.read() == b"".join(body), lengths
        assert call.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize("options", [[], ["--busy-poll", "0"]], ids=["busy-poll", "sleeps"])
def test_batched_replies_arrive_in_order(broker, mdp_client, mdp_worker, options):
    """Of a client with much outstanding they are gathered: the last ones must not wait for others that never come."""
    server = broker(*options)
    client, worker = mdp_client(server, "0.2-dealer"), mdp_worker(server, dialect=MDP02)
    for number in range(500):
        client.send(b"echo", b"%d" % number)
    expected = itertools.count()
    for count in (1, 2, 31, 33, 100):
        for _ in range(count):
            address, body = worker.request()
            worker.part(address, b"part", *body)
            # A reply too large to be batched keeps its place.
            worker.reply(address, *body, bytes(10_000 if body[0].endswith(b"7") else 0))
        # The worker keeps one more request: nothing else happens.
        for _ in range(count):
            part, last = client.receive(b"echo")
            assert part[1] == last[0] == b"%d" % next(expected)


@pytest.mark.parametrize("last", ["small", "large"])
@pytest.mark.parametrize("worker_dialect", [MDP02, MAJORTOMO], ids=str)
@pytest.mark.parametrize("kind", CLIENTS)
def test_parts_arrive_as_parts_or_joined(broker, mdp_client, mdp_worker, kind, worker_dialect, last):
    server = broker()
    worker = mdp_worker(server, dialect=worker_dialect)
    client = mdp_client(server, kind)
    parts = [[b"1"], [b"2", b""], [b"3" * LARGE], [b"4", b"5" * LARGE], [b"6" * (LARGE if last == "large" else 1)]]
    for _ in range(2):
        client.send(b"echo", b"give me parts")
        address, _ = worker.request()
        for part in parts[:-1]:
            worker.part(address, *part)
        worker.reply(address, *parts[-1])
        received = client.receive(b"echo")
        if client.dialect == MDP01:
            assert received == [[frame for part in parts for frame in part]]
        else:
            assert received == parts


def test_dealer_has_many_requests_in_flight(broker, mdp_client, mdp_worker):
    server = broker()
    workers = [mdp_worker(server, dialect=dialect) for dialect in DIALECTS]
    clients = [mdp_client(server, kind) for kind in CLIENTS if "dealer" in kind or "majortomo" in kind]
    for number, client in itertools.product(range(300), clients):
        client.send(b"echo", b"%d" % number, client.dialect.name.encode())
    poller = zmq.Poller()
    for worker in workers:
        poller.register(worker.socket, zmq.POLLIN)
    by_socket = {worker.socket: worker for worker in workers}
    served = collections.Counter()
    while served.total() < 300 * len(clients):
        ready = poller.poll(DEADLINE_SECONDS * 1000)
        assert ready, f"nothing more after {served}"
        for socket, _ in ready:
            by_socket[socket].serve(1)
            served[socket] += 1
    # The least recently used one is next: each has its share.
    assert min(served.values()) > 250
    for client in clients:
        name = client.dialect.name.encode()
        received = [client.receive(b"echo")[0] for _ in range(300)]
        assert sorted(received) == sorted([b"%d" % n, name] for n in range(300))


def test_envelope_of_a_dealer_is_returned(broker, connected, mdp_worker):
    server = broker()
    worker = mdp_worker(server)
    dealer = connected(server)
    for envelope in ([b"7"], [b"request", b"\0\xff" * 20], [bytes([n + 1]) for n in range(10)]):
        dealer.send_multipart([*envelope, b"", b"MDPC01", b"echo", b"body"])
        worker.serve(1)
        assert dealer.recv_multipart() == [*envelope, b"", b"MDPC01", b"echo", b"body"]


def test_req_gives_up_and_asks_again(broker, mdp_client, mdp_worker):
    server = broker()
    worker = mdp_worker(server)
    client = mdp_client(server, "0.1-req-correlate")
    client.send(b"echo", b"first")
    first, _ = worker.request()
    client.send(b"echo", b"second")
    worker.reply(first, b"late")
    worker.serve(1)
    assert client.receive(b"echo") == [[b"second"]]


def test_requests_wait_for_a_worker_and_expire_without_one(broker, mdp_client, mdp_worker):
    server = broker("--request-timeout", "0.5")
    waiting, lost = mdp_client(server, "0.1-dealer"), mdp_client(server, "0.2-dealer")
    waiting.send(b"later", b"body")
    mdp_worker(server, b"later").serve(1)
    assert waiting.receive(b"later") == [[b"body"]]
    start = time.monotonic()
    [status, _reason] = lost.ask(b"nobody", b"body")
    assert status == b"408"
    assert 0.4 < time.monotonic() - start < 5


def test_mmi(broker, mdp_client, mdp_worker):
    server = broker()
    for kind in CLIENTS:
        client = mdp_client(server, kind)
        assert client.ask(b"mmi.service", b"echo") == [b"404"]
        worker = mdp_worker(server)
        wait_until(lambda: client.ask(b"mmi.service", b"echo") == [b"200"], "the worker is known")
        assert client.ask(b"mmi.nonsense", b"echo") == [b"501"]
        code, services = client.ask(b"mmi.services", b"")
        assert (code, json.loads(services)) == (b"200", ["echo"])
        worker.disconnect()
        wait_until(lambda: client.ask(b"mmi.service", b"echo") == [b"404"], "the worker is forgotten")
    # A service with requests but no worker answers 404.
    waiting = mdp_client(server, "0.1-dealer")
    for _ in range(3):
        waiting.send(b"asked-for", b"body")
    waits = lambda: [queue["waiting"] for queue in json.loads(client.ask(b"mmi.queue", b"asked-for")[1])]
    wait_until(lambda: waits() == [3], "they wait")
    assert client.ask(b"mmi.service", b"asked-for") == [b"404"]
    worker = mdp_worker(server, b"asked-for", MDP02)
    address, _ = worker.request()
    code, workers = client.ask(b"mmi.workers", b"asked-for")
    [info] = json.loads(workers)
    assert code == b"200" and (info["held"], info["credit"], info["numbered"]) == (1, 1, False)
    assert info["address"].startswith("127.0.0.1:")
    worker.reply(address, b"done")
    worker.serve(2)


def test_titanic_keeps_requests_and_replies_across_restarts(broker, mdp_client, mdp_worker, tmp_path):
    keep = ("--journal", tmp_path / "journal")
    first = broker(*keep)
    client = mdp_client(first)
    body = [b"a", b"", b"b" * LARGE]
    code, name = client.ask(b"titanic.request", b"echo", *body)
    assert code == b"200" and len(name) == 32 and int(name, 16) >= 0
    _, never_done = client.ask(b"titanic.request", b"nobody", b"x")
    assert client.ask(b"titanic.reply", name) == [b"300"]
    first.stop()  # SIGKILL: what was answered 200 is on the disk

    second = broker(*keep)
    client = mdp_client(second, "0.2-dealer")
    assert client.ask(b"titanic.reply", name) == [b"300"]
    worker = mdp_worker(second, dialect=MDP02)
    address, request = worker.request()
    assert request == body
    # Without a client to take parts, they are joined.
    worker.part(address, b"done")
    worker.reply(address, *request)
    wait_until(lambda: client.ask(b"titanic.reply", name)[0] == b"200", "the reply is there")
    assert client.ask(b"titanic.reply", name) == [b"200", b"done", *body]
    assert second.end() == 0

    third = broker(*keep)
    client = mdp_client(third, "0.2-majortomo")
    # The reply stays until it is closed.
    for _ in range(2):
        assert client.ask(b"titanic.reply", name) == [b"200", b"done", *body]
    assert client.ask(b"titanic.close", name) == [b"200"]
    assert client.ask(b"titanic.reply", name) == [b"400"]
    assert client.ask(b"titanic.close", name) == [b"200"]
    assert client.ask(b"titanic.reply", never_done) == [b"300"]
    assert third.end() == 0
    client = mdp_client(broker(*keep))
    assert client.ask(b"titanic.reply", name) == [b"400"]
    assert client.ask(b"titanic.reply", b"no name") == [b"400"]
    assert client.ask(b"titanic.request", b"no body")[0] == b"500"


def test_titanic_needs_a_journal(broker, mdp_client):
    client = mdp_client(broker())
    code, reason = client.ask(b"titanic.request", b"echo", b"body")
    assert code == b"501" and b"--journal" in reason


def test_a_stock_worker_may_be_titanic_without_a_journal(broker, mdp_client, mdp_worker, tmp_path):
    server = broker()
    client = mdp_client(server)
    worker = mdp_worker(server, b"titanic.request")
    wait_until(lambda: client.ask(b"mmi.service", b"titanic.request") == [b"200"], "the worker is known")
    client.send(b"titanic.request", b"echo", b"body")
    address, request = worker.request()
    assert request == [b"echo", b"body"]
    worker.reply(address, b"200", b"name")
    assert client.receive(b"titanic.request") == [[b"200", b"name"]]
    # With a journal the broker is Titanic itself.
    mdp_worker(broker("--journal", tmp_path / "journal"), b"titanic.request").expect_disconnect()


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_heartbeats_go_both_ways(broker, mdp_client, mdp_worker, dialect):
    server = broker("--heartbeat", "0.1")
    client = mdp_client(server)
    worker, silent = mdp_worker(server, dialect=dialect), mdp_worker(server, b"silent", dialect)
    start, received = time.monotonic(), 0
    # Longer than the timeout of a silent worker.
    while time.monotonic() - start < 1:
        assert worker.command() == (dialect.heartbeat, [])
        received += 1
        worker.heartbeat()
    assert received >= 5
    assert client.ask(b"mmi.service", b"echo") == [b"200"]
    # The silent worker gets DISCONNECT and isn't used any more.
    silent.expect_disconnect()
    assert client.ask(b"mmi.service", b"silent") == [b"404"]
    # It may register again.
    silent.ready()
    client.send(b"silent", b"body")
    silent.serve(1)
    assert client.receive(b"silent") == [[b"body"]]


def test_silent_busy_worker_keeps_its_request(broker, mdp_client, mdp_worker):
    server = broker("--heartbeat", "0.05")
    client = mdp_client(server)
    busy, other = mdp_worker(server), None
    client.send(b"echo", b"slow")
    address, _ = busy.request()
    other = mdp_worker(server)
    start = time.monotonic()
    while time.monotonic() - start < 1:  # four times the timeout of an idle one
        assert other.command() == (b"\4", [])
        other.heartbeat()
    busy.reply(address, b"done")
    assert client.receive(b"echo") == [[b"done"]]


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_requests_of_a_lost_worker_go_to_another(broker, mdp_client, mdp_worker, dialect):
    server = broker()
    client = mdp_client(server, "0.2-dealer")
    leaving, dying = mdp_worker(server, dialect=dialect), None
    client.send(b"echo", b"body")
    leaving.request()
    leaving.disconnect()
    dying = mdp_worker(server, dialect=dialect)
    dying.request()
    dying.socket.close()
    mdp_worker(server, dialect=dialect).serve(1)
    assert client.receive(b"echo") == [[b"body"]]


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_long_reply_of_a_leaving_worker_counts(broker, mdp_client, mdp_worker, dialect):
    server = broker()
    client = mdp_client(server)
    body = b"r" * LARGE
    for _ in range(5):
        worker = mdp_worker(server, dialect=dialect)
        client.send(b"echo", b"body")
        address, _ = worker.request()
        worker.reply(address, body)
        worker.disconnect()
        assert client.receive(b"echo") == [[body]]


def test_long_reply_of_an_ending_worker_counts(broker, mdp_client, mdp_worker):
    server = broker()
    client = mdp_client(server)
    body = b"r" * LARGE
    for _ in range(5):
        worker = mdp_worker(server)
        client.send(b"echo", b"body")
        address, _ = worker.request()
        worker.reply(address, body)
        worker.socket.close(linger=DEADLINE_SECONDS * 1000)
        assert client.receive(b"echo") == [[body]]
    assert client.ask(b"mmi.service", b"echo") == [b"404"]


def test_large_requests_keep_their_order(broker, mdp_client, mdp_worker):
    server = broker()
    client = mdp_client(server, "0.2-dealer")
    bodies = [b"%d" % n + b"." * (LARGE if n % 2 == 0 else 1) for n in range(8)]
    for body in bodies:
        client.send(b"echo", body)
    worker = mdp_worker(server)
    for body in bodies:
        address, request = worker.request()
        assert request == [body], f"not {body[:1]} but {request[0][:1]}"
        worker.reply(address, b"done")
