"""The majortomo library's client and worker against `tow broker`, as they are used in programs."""

import contextlib
import json
import subprocess
import sys
import threading
import types

import majortomo
import pytest
import zmq
from majortomo.worker import WorkerRequestsIterator

from conftest import DEADLINE_SECONDS, TOW, wait_until

LARGE = 5_000_000


@pytest.fixture
def majortomo_worker(context):
    """A function that starts a worker on a thread: majortomo_worker(server, service, function)."""

    def start(server, service, reply):
        worker = majortomo.Worker(server.endpoint, service, zmq_context=context, zmq_linger=0)
        requests = WorkerRequestsIterator(worker)

        def work():
            # The end of the test closes its socket.
            with contextlib.suppress(zmq.ZMQError):
                for request in requests:
                    reply(requests, request)

        threading.Thread(target=work, daemon=True).start()

    return start


def ask(client, service, *body):
    client.send(service, *body)
    return list(client.recv_all(timeout=DEADLINE_SECONDS))


def test_client_and_worker_of_majortomo(broker, context, majortomo_worker):
    server = broker()
    majortomo_worker(server, "echo", lambda requests, body: requests.send_reply_final(body[::-1]))
    with majortomo.Client(server.endpoint, zmq_context=context) as client:
        for body in ([b"one"], [b""], [b"a", b"", b"b"], [b"x" * LARGE], [b"x" * LARGE, b"y" * LARGE]):
            assert ask(client, "echo", *body) == [body[::-1]]
        assert ask(client, "mmi.service", b"echo") == [[b"200"]]
        assert ask(client, "mmi.service", b"nobody") == [[b"404"]]


def test_parts_are_joined(broker, context, majortomo_worker):
    server = broker()
    parts = [[b"1"], [b"2", b""], [b"3" * LARGE]]
    majortomo_worker(server, "parts", lambda requests, _: requests.send_reply_from_iterable(parts, [b"last"]))
    with majortomo.Client(server.endpoint, zmq_context=context) as client:
        for _ in range(3):
            assert ask(client, "parts", b"please") == [*parts, [b"last"]]


def test_workers_share_requests(broker, context, majortomo_worker):
    server = broker()
    reply = lambda requests, body: requests.send_reply_final([threading.current_thread().name.encode()])
    for _ in range(3):
        majortomo_worker(server, "who", reply)
    with majortomo.Client(server.endpoint, zmq_context=context) as client:
        seen = set()

        def all_seen():
            seen.add(ask(client, "who", b"?")[0][0])
            return len(seen) == 3

        wait_until(all_seen, "each worker has replied")


def test_worker_returns_to_a_restarted_broker(broker, context):
    first = broker()
    worker = majortomo.Worker(first.endpoint, "echo", heartbeat_interval=0.1, zmq_context=context, zmq_linger=0)
    worker.connect()
    first.stop()
    second = broker(bind=first.endpoint)

    def serve_one():
        while True:
            try:
                address, request = worker.wait_for_request()
                return worker.send_reply_final(address, request)
            except majortomo.error.Disconnected:
                # The new broker doesn't know the worker and makes it register again.
                worker.connect()

    thread = threading.Thread(target=serve_one, daemon=True)
    thread.start()
    with majortomo.Client(second.endpoint, zmq_context=context) as client:
        assert ask(client, "echo", b"body") == [[b"body"]]
    thread.join(DEADLINE_SECONDS)


@pytest.fixture
def their_broker(tmp_path):
    """The library's broker, at a place in the file system."""
    endpoint = f"ipc://{tmp_path}/broker"
    program = f"from majortomo.broker import Broker; Broker({endpoint!r}, heartbeat_interval=0.5).run()"
    process = subprocess.Popen([sys.executable, "-c", program])
    wait_until((tmp_path / "broker").exists, "it listens")
    yield types.SimpleNamespace(endpoint=endpoint)
    process.kill()
    process.wait()


def test_our_client_and_worker_at_their_broker(their_broker, end, context, majortomo_worker, tmp_path):
    worker = end("work", "shout", [their_broker], "--dialect", "majortomo", "--", "tr", "a-z", "A-Z")
    for body in (b"hello", b"x" * 300_000, b"y" * LARGE):
        question = tmp_path / "question"
        question.write_bytes(body)
        words = [TOW, "call", "shout", "--connect", their_broker.endpoint, "--dialect", "majortomo"]
        with open(question, "rb") as file:
            done = subprocess.run(words, stdin=file, capture_output=True, timeout=DEADLINE_SECONDS)
        assert (done.returncode, done.stdout) == (0, body.upper()), done.stderr
    with majortomo.Client(their_broker.endpoint, zmq_context=context) as client:
        assert ask(client, "shout", b"theirs") == [[b"THEIRS"]]
    # Longer than its broker waits for a heartbeat.
    end("work", "echo", [their_broker], "--dialect", "majortomo", "--echo")
    load = end("call", "echo", [their_broker], "--dialect", "majortomo", "--count", 500, "--rate", 200, "--json", "-q")
    summary = json.loads(load.communicate(timeout=DEADLINE_SECONDS)[0])
    assert (load.returncode, summary["replies"], summary["wrong"]) == (0, 500, 0)
    assert worker.poll() is None
    # Their worker, our client; parts come as they are.
    reply = lambda requests, _: requests.send_reply_from_iterable([[b"1"], [b"2"]], [b"3"])
    majortomo_worker(their_broker, "parts", reply)
    done = subprocess.run([*words[:2], "parts", "?", *words[3:]], capture_output=True, timeout=DEADLINE_SECONDS)
    assert (done.returncode, done.stdout) == (0, b"123"), done.stderr


def test_our_worker_detects_their_dialect(their_broker, end, context):
    # When it has received no heartbeat for ten seconds. Our client doesn't try, and says what to do.
    end("work", "shout", [their_broker], "--", "tr", "a-z", "A-Z")
    with majortomo.Client(their_broker.endpoint, zmq_context=context) as client:
        assert ask(client, "shout", b"theirs") == [[b"THEIRS"]]
    words = [TOW, "call", "shout", "x", "--connect", their_broker.endpoint, "--timeout", "1"]
    done = subprocess.run(words, capture_output=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 8 and b"set --dialect" in done.stderr, done.stderr
