"""Processes that vanish, hang, are slow, or have a full disk: `tow broker` with clients and workers of both kinds."""

import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
import zmq

import mdp
import numbered
from conftest import DEADLINE_SECONDS, cannot_test, wait_until
from good_peers import good  # noqa: F401
from numbered import ATTACHED, Accepted, Refused, Reply, confirm, reply, request

OUTSTANDING = 10_000
SILENCE_MS = 30


class Statistics:
    """The broker's statistics."""

    def __init__(self, client):
        self.client = client

    def about(self, what, argument=b""):
        code, said = self.client.ask(what, argument)
        assert code == b"200"
        return json.loads(said)

    def unconfirmed(self, service) -> int:
        """Requests of a service that the broker holds."""
        return sum(queue["unconfirmed"] for queue in self.about(b"mmi.queue", service))

    def waiting(self, service) -> int:
        return sum(queue["waiting"] for queue in self.about(b"mmi.queue", service))

    def workers(self, service) -> int:
        return len(self.about(b"mmi.workers", service))

    def held(self, service) -> int:
        """Requests that workers have."""
        return sum(worker["held"] for worker in self.about(b"mmi.workers", service))


@pytest.fixture
def stats(connected):
    return lambda server: Statistics(mdp.Client(connected(server), mdp.MDP02))


def stop(process):
    """Stops a process and waits until it has stopped."""
    os.kill(process.pid, signal.SIGSTOP)
    status = pathlib.Path(f"/proc/{process.pid}/status")
    wait_until(lambda: "State:\tT" in status.read_text(), "it has stopped")


def go_on(process):
    os.kill(process.pid, signal.SIGCONT)


def test_stock_client_vanishes(broker, connected, good, stats):  # noqa: F811
    peers = good(broker())
    server, about = peers.server, stats(peers.server)
    before = server.resident_kib()
    worker = numbered.Worker(connected(server), b"slow", credit=100)
    client = mdp.Client(connected(server))
    for number in range(OUTSTANDING):
        client.send(b"slow", b"%d" % number + bytes(1000))
    held = [worker.request() for _ in range(100)]
    wait_until(lambda: about.waiting(b"slow") == OUTSTANDING - 100, "all have arrived")
    client.socket.close(linger=0)
    wait_until(lambda: about.unconfirmed(b"slow") == 0, "its requests are forgotten")
    # The worker's requests are cancelled, and it serves others.
    assert {worker.next().token for _ in held} == {record.token for record in held}
    worker.send(*(reply(record.token, b"too late") for record in held))
    other = mdp.Client(connected(server))
    other.send(b"slow", b"after")
    worker.serve(1)
    assert other.receive(b"slow") == [[b"after"]]
    assert server.resident_kib() < before + 40_000
    peers.work()


def test_back_pressured_stock_client_vanishes(broker, connected, stats):
    # No PING is involved: what it sends fits into the kernel's buffers, so the broker sees the end of the connection.
    server = broker("--max-waiting", "10", "--heartbeat", "600")
    about = stats(server)
    client = mdp.Client(connected(server))
    for number in range(100):
        client.send(b"slow", b"%d" % number)
    wait_until(lambda: about.waiting(b"slow") >= 10, "the queue is full")
    client.socket.close(linger=0)
    # Long before they expire. Requests still unread are dropped.
    wait_until(lambda: about.unconfirmed(b"slow") == 0, "its requests are forgotten")
    other = mdp.Client(connected(server))
    other.send(b"slow", b"after")
    numbered.Worker(connected(server), b"slow", credit=1).serve(1)
    assert other.receive(b"slow") == [[b"after"]]


def test_numbered_client_vanishes_and_returns(broker, connected, good, stats):  # noqa: F811
    peers = good(broker("--absent-timeout", "2"))
    server, about = peers.server, stats(peers.server)
    worker = numbered.Worker(connected(server), b"slow", credit=100)
    client = numbered.Client(connected(server))
    everything = [request(number, b"slow", b"%d" % number) for number in range(1, OUTSTANDING + 1)]
    client.send(*everything)
    held = [worker.request() for _ in range(100)]
    client.socket.close(linger=0)
    # The broker continues without the client.
    worker.send(*(reply(record.token, record.body) for record in held))
    worker.serve(OUTSTANDING // 2 - 100)
    again = numbered.Client(connected(server), name=client.name)
    again.send(*everything)
    worker.serve(OUTSTANDING // 2)
    replies = set()
    # Outcomes between HELLO and the request may come twice.
    while len(replies) < OUTSTANDING:
        replies.add(again.reply())
    assert replies == {Reply(number, 200, None, b"%d" % number) for number in range(1, OUTSTANDING + 1)}
    # After the absent timeout everything is forgotten.
    again.socket.close(linger=0)
    wait_until(lambda: about.unconfirmed(b"slow") == 0, "it is forgotten")
    peers.work()


@pytest.mark.parametrize("kind", ["stock", "numbered"])
def test_client_does_not_read(broker, connected, good, kind):  # noqa: F811
    """Replies of 64 KiB to small requests: 1.3 GB in all."""
    peers = good(broker())
    server = peers.server
    socket = connected(server, RCVHWM=1, RCVBUF=65_536)
    body = b"r" * 65_536
    if kind == "stock":
        client = mdp.Client(socket)
        for _ in range(20_000):
            client.send(b"long", b"please")
    else:
        client = numbered.Client(socket)
        client.send(*(request(number, b"long", b"please") for number in range(1, 20_001)))
    worker = numbered.Worker(connected(server), b"long", credit=10)
    served, most = 0, 0
    while worker.has_more(1000):
        record = worker.request()
        worker.send(reply(record.token, flags=ATTACHED), attached=[body])
        served += 1
        if served % 100 == 0:
            most = max(most, server.resident_kib())
            peers.work()
    # The worker gets no more requests than replies fit the client's backlog.
    assert 10 <= served < 5000
    assert most < 260_000
    peers.work()
    # When the client reads again, it gets everything.
    for _ in range(served):
        if kind == "stock":
            assert client.receive(b"long")[0][0] == body
        else:
            # Confirm only received outcomes: others would be forgotten.
            outcome = client.reply()
            assert outcome.body == body
            client.send(confirm(outcome.number, 1))
    assert worker.has_more(DEADLINE_SECONDS * 1000)


def test_worker_does_not_read(broker, connected, stats):
    """A worker that doesn't read holds up only its requests; another one does the rest."""
    server = broker("--heartbeat", "0.3")
    about = stats(server)
    client = numbered.Client(connected(server))
    slow = numbered.Worker(connected(server, RCVHWM=1, RCVBUF=65_536), b"mine", credit=1000)
    for number in range(1, 201):
        client.send(request(number, b"mine", flags=ATTACHED), attached=[b"b" * 500_000])
    wait_until(lambda: about.unconfirmed(b"mine") == 200, "all have arrived")
    held = about.held(b"mine")
    assert held < 200, "it was given all, whether or not it reads"
    other = numbered.Worker(connected(server), b"mine", credit=1)
    other.serve(200 - held)
    slow.socket.close(linger=0)
    other.serve(held)
    assert {client.reply().number for _ in range(200)} == set(range(1, 201))


@pytest.mark.parametrize("dialect", ["auto", "mdp01"])
def test_worker_hangs(broker, connected, end, stats, dialect):
    server = broker("--heartbeat", "0.1")
    about = stats(server)
    hanging = end("work", "echo", [server], "--echo", "--dialect", dialect)
    wait_until(lambda: about.workers(b"echo") == 1, "it is there")
    stop(hanging)
    client = mdp.Client(connected(server))
    client.send(b"echo", b"body")
    # With or without a request: it doesn't answer PING and is disconnected.
    wait_until(lambda: about.workers(b"echo") == 0, "it is given up")
    other = numbered.Worker(connected(server), b"echo")
    other.serve(1)
    assert client.receive(b"echo") == [[b"body"]]
    other.socket.close(linger=0)
    go_on(hanging)
    wait_until(lambda: about.workers(b"echo") == 1, "it has come again")
    assert client.ask(b"echo", b"once more") == [b"once more"]
    assert not client.socket.poll(50)


def test_broker_hangs(broker, connected, end):
    server = broker("--heartbeat", "0.1")
    end("work", "echo", [server], "--echo")
    client = numbered.Client(connected(server))
    client.send(request(1, b"echo", b"before"))
    assert client.reply().body == b"before"
    stock = mdp.Client(connected(server))
    stop(server.process)
    client.send(request(2, b"echo", b"meanwhile"))
    stock.send(b"echo", b"meanwhile")
    time.sleep(1)  # ten intervals: all sides have missed all of each other
    go_on(server.process)
    assert stock.receive(b"echo") == [[b"meanwhile"]]
    again = client if client.has_more(1000) else numbered.Client(connected(server), name=client.name)
    again.send(request(2, b"echo", b"meanwhile"))
    assert again.reply() == Reply(2, 200, None, b"meanwhile")


def test_client_hangs(broker, connected, end, stats):
    """A load test is stopped twice for longer than the heartbeat timeout."""
    server = broker("--heartbeat", "0.1")
    about = stats(server)
    end("work", "echo", [server], "--echo", "--work-time", "1ms", "--jobs", 10)
    load = end("call", "echo", [server], "--count", 4000, "--ahead", 50, "--json", "-q")
    for _ in range(2):
        wait_until(lambda: about.unconfirmed(b"echo") > 0, "it asks")
        stop(load)
        time.sleep(0.7)
        go_on(load)
    summary = json.loads(load.communicate(timeout=DEADLINE_SECONDS)[0])
    assert (load.returncode, summary["replies"], summary["failed"]) == (0, 4000, 0)


@pytest.mark.parametrize("kind", ["stock", "numbered"])
def test_broker_drains_while_workers_are_busy(broker, connected, kind):
    for grace, is_done in (("20", True), ("0.3", False)):
        server = broker("--grace", grace)
        client = mdp.Client(connected(server))
        client.send(b"slow", b"body")
        if kind == "stock":
            worker = mdp.Worker(connected(server), b"slow")
            address, _ = worker.request()
            answer = lambda: worker.reply(address, b"done")
        else:
            worker = numbered.Worker(connected(server), b"slow")
            record = worker.request()
            answer = lambda: worker.send(reply(record.token, b"done"))
        start = time.monotonic()
        server.process.terminate()
        wait_until(lambda: "stopping" in server.log(), "it stops")
        if is_done:
            answer()
            assert client.receive(b"slow") == [[b"done"]]
        assert server.process.wait(DEADLINE_SECONDS) == 0
        took = time.monotonic() - start
        assert took < 5 if is_done else 0.25 < took < 10


def test_second_signal_ends_a_draining_broker(broker, connected):
    server = broker("--grace", 600)
    client = mdp.Client(connected(server))
    client.send(b"slow", b"body")
    worker = numbered.Worker(connected(server), b"slow")
    worker.request()
    server.process.terminate()
    wait_until(lambda: "stopping" in server.log(), "it stops")
    # Two signals at once count as one.
    wait_until(lambda: server.process.poll() is not None or server.process.terminate(), "it ends")
    assert server.process.returncode == 0


def in_small_memory(directory, size) -> list:
    """Words that run a command which has so much space in this directory, and no more: root may mount it, others may in a user
    namespace of their own."""
    script = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    for flags in ((), ("--user", "--map-root-user")):
        words = ["unshare", *flags, "--mount", "sh", "-c", script, str(directory)]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    cannot_test("no small file system can be mounted here, neither by unshare --mount nor in a user namespace")


def test_disk_is_full(broker, connected, tmp_path):
    directory = tmp_path / "small"
    directory.mkdir()
    within = in_small_memory(directory, 6 << 20)
    server = broker("--journal", directory / "journal", within=within)
    seen = pathlib.Path(f"/proc/{server.process.pid}/root{directory}")
    client = numbered.Client(connected(server))
    stock = mdp.Client(connected(server))

    def put(numbers, body) -> dict:
        """Outcome of requests: accepted or refused."""
        client.send(*(request(number, b"later", body) for number in numbers))
        fates = {}
        while len(fates) < len(numbers):
            record = client.next()
            match record:
                case Accepted():
                    fates |= dict.fromkeys(range(record.first, record.first + record.count), "accepted")
                case Refused():
                    assert record.status == 507 and record.retry_ms > 0 and "journal" in record.reason
                    fates[record.number] = "refused"
        return fates

    fates = put(range(1, 101), b"x" * 1000)
    assert set(fates.values()) == {"accepted"}
    filler = seen / "filler"
    with open(filler, "wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    # The request that finds the disk full is refused at once if no worker had it; the next ones aren't tried for a while.
    client.send(request(101, b"later", flags=ATTACHED), attached=[b"y" * 900_000])
    refused = client.next()
    assert (type(refused), refused.number, refused.status) == (Refused, 101, 507)
    wait_until(lambda: "can't be written" in server.log(), "it has noticed")
    fates |= put(range(102, 112), b"z" * 1000)
    # Volatile requests continue.
    volatile = numbered.Worker(connected(server), b"volatile")
    stock.send(b"volatile", b"body")
    volatile.serve(1)
    assert stock.receive(b"volatile") == [[b"body"]]
    # After a crash, accepted requests are there.
    stop(server.process)
    shutil.copytree(seen / "journal", tmp_path / "copy")
    go_on(server.process)
    # With space again, it recovers by itself.
    filler.unlink()
    later = itertools.count(112)

    def is_taken() -> bool:
        number = next(later)
        return put([number], b"y" * 900_000)[number] == "accepted"

    wait_until(is_taken, "large ones are taken again")
    # Small requests accepted meanwhile had space.
    expected = [b"x" * 1000] * 100 + [b"z" * 1000 for number in range(102, 112) if fates[number] == "accepted"]
    copy = broker("--journal", tmp_path / "copy")
    worker = numbered.Worker(connected(copy), b"later", credit=1000)
    assert [worker.request().body for _ in expected] == expected
    assert not worker.socket.poll(SILENCE_MS)


@pytest.mark.parametrize("journal", [False, True])
def test_disk_is_too_small_for_a_body(broker, connected, tmp_path, journal):
    """A large body that doesn't fit is refused or fails; the connection continues."""
    directory = tmp_path / "small"
    directory.mkdir()
    within = in_small_memory(directory, 8 << 20)
    keep = ("--journal", directory / "journal") if journal else ("--spool", directory)
    server = broker(*keep, "--max-spool", "1000M", within=within)
    client = numbered.Client(connected(server))
    worker = numbered.Worker(connected(server), b"echo", credit=10)
    fits, too_large = b"f" * 2_000_000, b"l" * 20_000_000
    number = 0
    for _ in range(3):
        number += 1
        client.send(request(number, b"echo", flags=ATTACHED), attached=[too_large])
        refused = client.reply()
        assert (type(refused), refused.number, refused.status) == (Refused, number, 507)
        client.send(request(number, b"echo", b"small"))
        worker.serve(1)
        assert client.reply() == Reply(number, 200, None, b"small")
        number += 1
        client.send(request(number, b"echo", flags=ATTACHED), attached=[fits])
        record = worker.request()
        assert record.body == fits
        worker.send(reply(record.token, flags=ATTACHED), attached=[too_large])
        failed = client.reply()
        assert (failed.number, failed.status) == (number, 507)
        client.send(confirm(1, number))
    # A stock client gets the error in a body.
    stock = mdp.Client(connected(server))
    assert stock.ask(b"echo", too_large)[0] == b"507"
    assert stock.ask(b"mmi.service", b"echo") == [b"200"]
