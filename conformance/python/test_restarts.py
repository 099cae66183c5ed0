"""Beside test_kills.py: clean restarts of brokers, large bodies across crashes, and replies to stock clients when
workers die."""

import random
import signal
import time

import pytest

import mdp
from conftest import DEADLINE_SECONDS, wait_until
from test_kills import SEED, Loads, again, journal_path  # noqa: F401

RESTARTS = 10


@pytest.mark.parametrize("journal", [False, True], ids=["memory", "journal"])
def test_clients_do_not_notice_clean_restarts(again, end, journal_path, journal):  # noqa: F811
    rng = random.Random(SEED)
    broker = again("--grace", 2, *(["--journal", journal_path] if journal else []))
    for _ in range(2):
        end("work", "echo", [broker], "--echo", "--work-time", "2ms", "--jobs", 50)
    with Loads(end, [broker], "--ahead", 50, "--clients", 2):
        for _ in range(RESTARTS):
            time.sleep(rng.uniform(0.1, 0.4))
            assert broker.server.end() == 0
            broker.come_again()


@pytest.mark.parametrize("dialect", mdp.DIALECTS, ids=str)
def test_stock_clients_get_an_error_when_the_broker_stops(broker, connected, dialect):
    server = broker("--grace", 1)
    worker = mdp.Worker(connected(server), b"slow")
    clients = [mdp.Client(connected(server), dialect) for _ in range(2)]
    clients[0].send(b"slow", b"with the worker")
    assert worker.request()[1] == [b"with the worker"]
    clients[1].send(b"slow", b"behind it")
    waiting = lambda: b'"waiting":1' in mdp.Client(connected(server)).ask(b"mmi.queue", b"slow")[1].replace(b" ", b"")
    wait_until(waiting, "it waits")
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in server.log(), "it stops")
    # New requests are refused; the others are answered at the end.
    assert mdp.Client(connected(server), dialect).ask(b"slow", b"x")[0] == b"503"
    assert clients[0].receive(b"slow")[0][0] == b"504"
    assert clients[1].receive(b"slow")[0][0] == b"503"
    assert server.process.wait(DEADLINE_SECONDS) == 0


def test_large_bodies_survive_crashes(again, end, journal_path):  # noqa: F811
    rng = random.Random(SEED)
    # A client may end while no broker is there to take its confirmations.
    broker = again("--journal", journal_path, "--journal-retention", 5)
    end("work", "echo", [broker], "--echo", "--jobs", 3)
    with Loads(end, [broker], "--size", "1500K", "--ahead", 6, count=60) as loads:
        for _ in range(RESTARTS):
            time.sleep(rng.uniform(0.1, 0.5))
            broker.kill()
            broker.come_again()
    assert loads.done > 0
    # Neither confirmed outcomes nor absent clients leave anything.
    left = lambda: [path for name in ("bodies", "spool") for path in (journal_path / name).rglob("*") if path.is_file()]
    wait_until(lambda: not left(), "all files are removed")


@pytest.mark.parametrize("dialect", ["auto", "mdp01", "mdp02"])
def test_stock_clients_get_one_reply_each_when_workers_die(broker, end, connected, dialect):
    rng = random.Random(SEED)
    server = broker("--attempts", 100)
    start = lambda: end("work", "echo", [server], "--echo", "--work-time", "2ms", "--jobs", 20, "--dialect", dialect)
    workers = [start() for _ in range(3)]
    clients = [mdp.Client(connected(server, RCVHWM=0, SNDHWM=0), dialect) for dialect in mdp.DIALECTS]
    count = 400
    for number in range(count):
        for client in clients:
            client.send(b"echo", b"%d" % number, b"")
    received = {client: [] for client in clients}
    until = time.monotonic() + DEADLINE_SECONDS
    while any(len(replies) < count for replies in received.values()):
        assert time.monotonic() < until, {client.dialect.name: len(replies) for client, replies in received.items()}
        killed = rng.randrange(len(workers))
        workers[killed].kill()
        workers[killed].wait()
        workers[killed] = start()
        for client in clients:
            while client.socket.poll(rng.randrange(30)):
                received[client] += client.receive(b"echo")
    for client, replies in received.items():
        assert sorted(replies) == sorted([b"%d" % number, b""] for number in range(count))
        assert not client.socket.poll(50)
