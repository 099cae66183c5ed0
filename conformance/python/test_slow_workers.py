"""Workers that take too long, or die over a request."""

import time

import pytest
import zmq

import mdp
import numbered
from conftest import monitor_of
from numbered import reply

KINDS = {"stock": mdp.Worker, "numbered": numbered.Worker}


@pytest.fixture
def worker(connected):
    return lambda server, kind, **options: KINDS[kind](connected(server, **options), b"slow")


@pytest.mark.parametrize("kind", KINDS)
def test_busy_timeout_ends_a_request(broker, connected, worker, kind):
    server = broker("--busy-timeout", "0.4")
    client = mdp.Client(connected(server))
    slow = worker(server, kind, RECONNECT_IVL=-1)
    monitor = monitor_of(slow.socket, zmq.EVENT_DISCONNECTED)
    client.send(b"slow", b"body")
    start = time.monotonic()
    slow.request()
    # A stock worker gets DISCONNECT, a numbered one's connection ends.
    if kind == "stock":
        slow.expect_disconnect()
    else:
        assert monitor.poll(5000)
    assert 0.3 < time.monotonic() - start < 5
    worker(server, kind).serve(1)
    assert client.receive(b"slow") == [[b"body"]]


@pytest.mark.parametrize("gone", ["client gone", "expired"])
def test_busy_timeout_holds_for_requests_without_a_client(broker, connected, worker, gone):
    expiry = 0.2 if gone == "expired" else 60
    server = broker("--busy-timeout", 0.5, "--heartbeat", 0.1, "--request-timeout", expiry)
    client = mdp.Client(connected(server))
    slow = worker(server, "stock")
    client.send(b"slow", b"body")
    slow.request()
    if gone == "expired":
        assert client.receive(b"slow")[0][0] == b"504"
    else:
        client.socket.close(linger=0)
    slow.expect_disconnect()


@pytest.mark.parametrize("kind", KINDS)
def test_request_that_kills_workers_is_given_up(broker, connected, worker, kind):
    server = broker("--attempts", "3")
    client = mdp.Client(connected(server, zmq.DEALER), mdp.MDP02)
    client.send(b"slow", b"poison")
    for _ in range(3):
        dying = worker(server, kind)
        dying.request()
        dying.socket.close(linger=0)
    [[status, reason]] = client.receive(b"slow")
    assert status == b"502" and b"attempt 3" in reason
    # A numbered client gets the same; other requests of the service continue.
    asking = numbered.Client(connected(server))
    asking.send(numbered.request(1, b"slow", b"good"))
    worker(server, kind).serve(1)
    assert asking.reply() == numbered.Reply(1, 200, None, b"good")


def test_worker_learns_attempt_and_time_left(broker, connected, worker):
    server = broker()
    asking = numbered.Client(connected(server))
    asking.send(numbered.request(1, b"slow", b"body", ttl_ms=20_000))
    for attempt in range(1, 4):
        one = worker(server, "numbered")
        record = one.request()
        assert record.attempt == attempt and 10_000 < record.ttl_ms <= 20_000
        if attempt < 3:
            one.socket.close(linger=0)
    one.send(reply(record.token, b"done"))
    assert asking.reply().body == b"done"


def test_slow_worker_holds_up_only_its_requests(broker, connected, worker):
    """A slow worker holds up only its requests, and a service without workers no other service."""
    server = broker()
    asking = numbered.Client(connected(server))
    slow = worker(server, "numbered")
    asking.send(*(numbered.request(number, b"slow", b"%d" % number) for number in range(1, 1001)))
    asking.send(numbered.request(1001, b"nobody", b""))
    held = slow.request()
    fast = numbered.Worker(connected(server), b"slow", credit=50)
    fast.serve(999)
    assert {asking.reply().number for _ in range(999)} == set(range(2, 1001))
    slow.send(reply(held.token, b"at last"))
    assert asking.reply() == numbered.Reply(1, 200, None, b"at last")
