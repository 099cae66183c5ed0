"""Numbered requests against `tow broker`: the examples of the guide, and the promises of numbers."""

import json
import subprocess
import sys

import pytest
import zmq

import mdp
from conftest import DEADLINE_SECONDS, TOW, WORKSPACE, wait_until
from numbered import ATTACHED, MANY, Accepted, Cancel, Client, Leave, Refused, Reply, Worker
from numbered import cancel, confirm, credit, reply, request, sized

EXAMPLES = WORKSPACE / "examples"
LARGE = 5_000_000


@pytest.fixture
def example():
    """A function that starts an example: example(NAME, *arguments)."""
    processes = []

    def start(name, *arguments, **options):
        command = [sys.executable, EXAMPLES / name, *arguments]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def client(connected):
    return lambda server, **options: Client(connected(server), **options)


@pytest.fixture
def worker(connected):
    return lambda server, service=b"echo", **options: Worker(connected(server), service, **options)


def test_examples(broker, example):
    server = broker()
    worker = example("work.py", server.endpoint, "shout")
    lines = ["hello", "", "x" * 10_000, *(f"line {n}" for n in range(500))]
    client = example("call.py", server.endpoint, "shout")
    output, _ = client.communicate("\n".join(lines).encode(), timeout=DEADLINE_SECONDS)
    assert client.returncode == 0 and worker.poll() is None
    assert sorted(output.decode().splitlines()) == sorted(f"{n} 200 {line.upper()}" for n, line in enumerate(lines, 1))
    command = [TOW, "call", "mmi.queue", "shout", "--connect", server.endpoint]
    unconfirmed = lambda: json.loads(subprocess.check_output(command))[0]["unconfirmed"]
    wait_until(lambda: unconfirmed() == 0, "the client has confirmed what it has")


@pytest.mark.parametrize("name", ["call.py", "work.py"])
def test_guide_shows_the_examples(name):
    assert (EXAMPLES / name).read_text() in (WORKSPACE / "docs/guide/requests.md").read_text()


def test_example_client_recognises_parts(broker, example, worker):
    server = broker()
    working = worker(server, b"parts")
    client = example("call.py", server.endpoint, "parts")
    client.stdin.write(b"hello")
    client.stdin.close()
    client.stdin = None
    token = working.request().token
    working.send(reply(token, b"one", part=0), reply(token, b"two", part=1), reply(token, b"end"))
    output, _ = client.communicate(timeout=DEADLINE_SECONDS)
    assert client.returncode == 0
    assert output.decode().splitlines() == ["1 200 one", "1 200 two", "1 206 end"]


def test_example_client_splits_large_messages(broker, example):
    server = broker()
    example("work.py", server.endpoint, "shout")
    client = example("call.py", server.endpoint, "shout")
    output, _ = client.communicate(b"\n".join([b"x" * 2_000_000] * 35), timeout=DEADLINE_SECONDS)
    assert client.returncode == 0
    assert output.count(b" 200 X") == 35 and len(output) > 70_000_000


def test_examples_survive_a_restart_of_the_broker(broker, example, tmp_path):
    keep = ("--journal", tmp_path / "journal")
    first = broker(*keep)
    client = example("call.py", first.endpoint, "shout")
    client.stdin.write(b"\n".join(b"line %d" % n for n in range(100)))
    client.stdin.close()
    client.stdin = None
    wait_until(lambda: "\n" in first.log() or first.resident_kib() > 0, "it runs")
    first.stop()
    second = broker(*keep, bind=first.endpoint)
    example("work.py", second.endpoint, "shout")
    output, _ = client.communicate(timeout=DEADLINE_SECONDS)
    assert sorted(output.decode().splitlines()) == sorted(f"{n + 1} 200 LINE {n}" for n in range(100))


def test_numbered_and_stock_peers_work_together(broker, connected, client, worker):
    server = broker()
    bodies = [[b"one"], [b""], [b"several", b"", b"frames"], [b"l" * LARGE], [b"a" * LARGE, b"", b"b" * LARGE]]
    numbered = client(server)
    stock_worker = mdp.Worker(connected(server), b"stock", mdp.MDP01)
    for number, body in enumerate(bodies, 1):
        if len(body) == 1 and len(body[0]) < 5000:
            numbered.send(request(number, b"stock", body[0]))
        elif len(body) == 1:
            numbered.send(request(number, b"stock", flags=ATTACHED), attached=body)
        else:
            several = b"".join(map(sized, body))
            numbered.send(request(number, b"stock", flags=ATTACHED | MANY), attached=[several])
        stock_worker.serve(1)
        outcome = numbered.reply()
        assert (outcome.number, outcome.status, outcome.part) == (number, 200, None)
        assert (outcome.body if isinstance(outcome.body, list) else [outcome.body]) == body
    numbered_worker = worker(server, b"numbered")
    stock = mdp.Client(connected(server, zmq.REQ))
    for body in bodies:
        stock.send(b"numbered", *body)
        record = numbered_worker.request()
        assert (record.body if isinstance(record.body, list) else [record.body]) == body
        frames = body[::-1]
        if len(frames) == 1:
            numbered_worker.send(reply(record.token, flags=ATTACHED), attached=frames)
        else:
            several = b"".join(map(sized, frames))
            numbered_worker.send(reply(record.token, flags=ATTACHED | MANY), attached=[several])
        assert stock.receive(b"numbered") == [frames]


def test_number_is_executed_once(broker, client, worker):
    server = broker()
    first = client(server)
    first.send(request(1, b"echo", b"one"), request(2, b"echo", b"two"))
    workers = worker(server, credit=10)
    workers.serve(1)
    assert first.reply() == Reply(1, 200, None, b"one")
    # On a new connection of the client outcomes are sent again; a request at a worker isn't dispatched again.
    second = client(server, name=first.name)
    second.send(request(1, b"echo", b"one"), request(2, b"echo", b"two"), request(3, b"echo", b"three"))
    assert second.reply() == Reply(1, 200, None, b"one")
    workers.serve(2)
    assert [second.reply().number for _ in range(2)] == [2, 3]
    # A confirmed number is forgotten, and still not run again.
    second.send(confirm(1, 3), request(2, b"echo", b"two"), request(4, b"echo", b"four"))
    workers.serve(1)
    refused = second.reply()
    assert (type(refused), refused.number, refused.status) == (Refused, 2, 409)
    assert second.reply() == Reply(4, 200, None, b"four")


def test_parts_and_cancelling(broker, client, worker):
    server = broker()
    asking, working = client(server), worker(server, credit=2)
    asking.send(request(1, b"echo"), request(2, b"echo"))
    first, second = working.request(), working.request()
    for part in range(3):
        working.send(reply(first.token, b"part %d" % part, part=part))
        assert asking.reply() == Reply(1, 200, part, b"part %d" % part)
    working.send(reply(first.token, b"last", status=500))
    assert asking.reply() == Reply(1, 500, None, b"last")
    asking.send(cancel(2))
    outcome = asking.reply()
    assert (outcome.number, outcome.status) == (2, 499)
    assert working.next() == Cancel(second.token)
    working.send(reply(second.token, b"too late"))
    asking.send(request(3, b"echo", b"go on"))
    working.serve(1)
    assert asking.reply() == Reply(3, 200, None, b"go on")


def test_credit(broker, client, worker):
    server = broker()
    asking, working = client(server), worker(server, credit=3)
    asking.send(*(request(n, b"echo", b"%d" % n) for n in range(1, 21)))
    held = [working.request() for _ in range(3)]
    assert not working.has_more(100)
    working.send(credit(5))
    held += [working.request() for _ in range(2)]
    assert not working.has_more(100)
    # A reply returns one credit.
    working.send(reply(held.pop().token))
    held.append(working.request())
    working.send(credit(0), *(reply(record.token) for record in held))
    assert [asking.reply().status for _ in range(6)] == [200] * 6
    assert not working.has_more(100)
    working.send(credit(100))
    working.serve(14)
    assert sorted(asking.reply().number for _ in range(14)) == list(range(7, 21))


def test_journal_acknowledges_and_keeps_requests(broker, client, worker, tmp_path):
    keep = ("--journal", tmp_path / "journal")
    first = broker(*keep)
    asking = client(first)
    assert asking.welcome.journal == 1
    asking.send(*(request(n, b"echo", b"%d" % n) for n in range(1, 101)), request(101, b"echo", b"volatile", flags=8))
    accepted = set()
    while len(accepted) < 100:
        record = asking.next()
        assert isinstance(record, Accepted)
        accepted |= set(range(record.first, record.first + record.count))
    assert accepted == set(range(1, 101))
    first.stop()
    second = broker(*keep)
    working = worker(second, credit=1000)
    working.serve(100)
    again = client(second, name=asking.name)
    assert again.welcome.epoch != asking.welcome.epoch
    again.send(*(request(n, b"echo", b"%d" % n) for n in range(1, 102)))
    working.serve(1)
    # An outcome that becomes durable while it is requested again may be sent twice.
    statuses = {}
    while len(statuses) < 101:
        reply = again.reply()
        assert statuses.setdefault(reply.number, reply.status) == 200
    assert set(statuses) == set(range(1, 102))
    assert not working.has_more(100)


def test_stopping_broker_announces_it(broker, client, worker):
    server = broker("--grace", "20")
    asking, working = client(server), worker(server)
    asking.send(request(1, b"echo", b"body"))
    record = working.request()
    server.process.terminate()
    assert working.next() == Leave()
    working.send(reply(record.token, b"done"))
    assert asking.reply() == Reply(1, 200, None, b"done")
    assert server.process.wait(DEADLINE_SECONDS) == 0


def test_parts_of_a_reply_to_a_stock_client(broker, connected, worker):
    server = broker()
    working = worker(server)
    for kind, dialect in ((zmq.REQ, mdp.MDP01), (zmq.DEALER, mdp.MDP02)):
        stock = mdp.Client(connected(server, kind), dialect)
        stock.send(b"echo", b"body")
        record = working.request()
        working.send(reply(record.token, b"one", part=0))
        working.send(reply(record.token, part=1, flags=ATTACHED), attached=[b"2" * LARGE])
        working.send(reply(record.token, flags=ATTACHED), attached=[b"3" * LARGE])
        parts = stock.receive(b"echo")
        assert [frame for part in parts for frame in part] == [b"one", b"2" * LARGE, b"3" * LARGE]
        assert len(parts) == (1 if dialect == mdp.MDP01 else 3)
