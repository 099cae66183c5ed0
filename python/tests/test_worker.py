"""`towpath.Worker` against `tow broker` and `towpath.Client`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import towpath
from conftest import DEADLINE_SECONDS, wait_until
from towpath import Client, Worker, worker


class running:
    """A worker on a thread."""

    def __init__(self, server, service, handler, **options):
        servers = server if isinstance(server, list) else [server]
        self.worker = Worker(service, handler, connect=[server.endpoint for server in servers], **options)
        self.thread = threading.Thread(target=self.worker.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def stopped(self):
        self.worker.stop()
        self.thread.join(DEADLINE_SECONDS)
        assert not self.thread.is_alive()

    def __exit__(self, *error):
        self.stopped()


@pytest.fixture
def server(broker):
    return broker("--attempts", "2")


@pytest.fixture
def client(server):
    with Client(server.endpoint, timeout=DEADLINE_SECONDS) as client:
        yield client


def test_requests_have_what_a_handler_needs(server, client):
    seen = []

    def handler(body, request):
        seen.append((body, request.frames, request.attempt, len(request.id), request.service))
        assert 0 < request.deadline - time.time() <= DEADLINE_SECONDS
        return body.upper()

    with running(server, "upper", handler):
        assert client.call("upper", b"hello") == b"HELLO"
        assert client.call("upper", [b"a", b"b"]) == b"AB"
        assert client.call("upper", b"x" * 3_000_000) == b"X" * 3_000_000
    assert seen[:2] == [(b"hello", [b"hello"], 1, 32, "upper"), (b"ab", [b"a", b"b"], 1, 32, "upper")]


def test_replies_of_all_kinds(server, client, tmp_path):
    (tmp_path / "reply").write_bytes(b"file" * 50_000)
    replies = {b"none": None, b"path": tmp_path / "reply", b"list": [b"a", b"b"], b"parts": iter([b"1", b"2"]), b"wrong": "text"}
    with running(server, "get", lambda body, request: replies[body]):
        assert client.call("get", b"none") == b""
        assert client.call("get", b"path") == b"file" * 50_000
        assert client.call_frames("get", b"list") == [b"a", b"b"]
        assert list(client.stream("get", b"parts")) == [b"1", b"2"]
        with pytest.raises(towpath.WorkerFailed, match="TypeError: a body is bytes"):
            client.call("get", b"wrong")


def test_exceptions_of_handlers(server, client):
    attempts = []

    def handler(body, request):
        attempts.append(request.attempt)
        if body == b"later" and request.attempt == 1:
            raise towpath.RetryLater("not yet")
        if body == b"back" and len(attempts) == 1:
            raise towpath.GiveBack("no disk")
        if body == b"broken":
            raise ValueError("no such picture")
        return b"done"

    with running(server, "try", handler):
        with pytest.raises(towpath.WorkerFailed, match="ValueError: no such picture"):
            client.call("try", b"broken")
        attempts.clear()
        assert client.call("try", b"later") == b"done"
        assert attempts == [1, 2]
        attempts.clear()
        assert client.call("try", b"back") == b"done"
        assert attempts == [1, 1]


def test_jobs_run_at_the_same_time(server, client):
    together = threading.Barrier(4)

    def handler(body, request):
        together.wait(DEADLINE_SECONDS)
        return b""

    with running(server, "meet", handler, jobs=4):
        assert list(client.map("meet", [b""] * 8)) == [b""] * 8


def test_credit_makes_requests_wait_at_the_worker(server, client):
    with running(server, "echo", lambda body, request: body, credit=1000):
        bodies = [b"%d" % n for n in range(5_000)]
        assert list(client.map("echo", bodies)) == bodies
    with pytest.raises(ValueError):
        Worker("echo", lambda body, request: body, jobs=4, credit=3)


def test_cancelled_requests_are_marked(server, client):
    began, ended = threading.Event(), threading.Event()

    def handler(body, request):
        began.set()
        wait_until(lambda: request.is_cancelled, "it is cancelled")
        ended.set()

    with running(server, "long", handler):
        future = client.submit("long")
        assert began.wait(DEADLINE_SECONDS)
        assert future.cancel()
        assert ended.wait(DEADLINE_SECONDS)


def test_a_worker_that_stops_finishes_what_it_has(server, client):
    began, goes_on = threading.Event(), threading.Event()

    def handler(body, request):
        began.set()
        goes_on.wait(DEADLINE_SECONDS)
        return b"finished"

    with running(server, "slow", handler) as work:
        first = client.submit("slow")
        assert began.wait(DEADLINE_SECONDS)
        work.worker.stop()
        second = client.submit("slow")
        goes_on.set()
        assert first.result(DEADLINE_SECONDS) == b"finished"
        work.thread.join(DEADLINE_SECONDS)
    assert not second.done()


def test_a_worker_outlives_its_broker_and_serves_several(server, broker):
    other = broker()
    with running([server, other], "echo", lambda body, request: body):
        for one in (server, other):
            with Client(one.endpoint, timeout=DEADLINE_SECONDS) as client:
                assert client.call("echo", b"1") == b"1"
        server.kill()
        server.start()
        with Client(server.endpoint, timeout=DEADLINE_SECONDS) as client:
            assert client.call("echo", b"2") == b"2"


def test_a_reply_goes_over_the_next_connection(broker, tmp_path):
    server = broker("--journal", tmp_path / "journal")
    began, goes_on = threading.Event(), threading.Event()
    runs = []

    def handler(body, request):
        runs.append(request.id)
        began.set()
        goes_on.wait(DEADLINE_SECONDS)
        return b"late"

    with running(server, "late", handler, jobs=2):
        with Client(server.endpoint, timeout=DEADLINE_SECONDS) as client:
            future = client.submit("late")
            assert began.wait(DEADLINE_SECONDS)
            server.kill()
            server.start()
            goes_on.set()
            assert future.result(DEADLINE_SECONDS) == b"late"
    assert len(set(runs)) == 1


PROGRAM = """
import sys
from towpath import worker

@worker("greet", connect=sys.argv[1], jobs=2)
def greet(body, request):
    sys.stdout.write("began\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    return b"hello " + body

greet.run()
print("ended")
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGTERM ends a process of another system at once")
def test_sigterm_lets_a_worker_finish(server, client):
    command = [sys.executable, "-c", PROGRAM, server.endpoint]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        future = client.submit("greet", b"you")
        assert process.stdout.readline() == "began\n"
        process.send_signal(signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.flush()
        assert future.result(DEADLINE_SECONDS) == b"hello you"
        assert process.wait(DEADLINE_SECONDS) == 0
        assert process.stdout.read() == "ended\n"


def test_a_decorated_function_can_be_called():
    @worker("double")
    def double(body, request):
        return body * 2

    assert double(b"ab", None) == b"abab"


def test_wrong_keys_end_a_worker(broker, keys, tmp_path):
    server = broker(*keys)
    wrong = Worker("echo", lambda body, request: body, connect=server.endpoint, key=tmp_path / "eve_secret", server_key=tmp_path / "server")
    with pytest.raises(towpath.WrongKey, match="refuses our key"):
        wrong.run()
