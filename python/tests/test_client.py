"""`towpath.Client` against `tow broker` and `tow work`: results, errors by status, and faults."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

import pytest
import towpath
from conftest import DEADLINE_SECONDS, wait_until
from test_worker import running
from towpath import Client
from towpath._wake import Wake


@pytest.fixture
def echo(broker, work):
    """A broker with an echo worker."""
    server = broker()
    work("echo", [server], "--echo")
    return server


@pytest.fixture
def client(echo):
    with Client(echo.endpoint, timeout=DEADLINE_SECONDS) as client:
        yield client


def test_bodies_of_all_kinds_come_back(client, tmp_path):
    (tmp_path / "body").write_bytes(b"file" * 50_000)
    assert client.call("echo", b"") == b""
    for body in (b"hello", bytearray(b"array"), memoryview(b"view"), b"x" * 5_000_000, bytearray(b"y" * 100_000)):
        assert client.call("echo", body) == bytes(body)
    assert client.call("echo", tmp_path / "body") == b"file" * 50_000
    with open(tmp_path / "body", "rb") as file:
        file.seek(100_000)
        assert client.call("echo", file) == b"file" * 25_000
    assert client.call_frames("echo", [b"a", b"", b"c"]) == [b"a", b"", b"c"]
    assert client.call_frames("mmi.service", b"echo")[0] == b"200"
    for wrong in ("text", 5, []):
        with pytest.raises((TypeError, ValueError)):
            client.call("echo", wrong)
    for service in ("", "x" * 256):
        with pytest.raises(ValueError):
            client.call(service)


def test_map_keeps_order_and_takes_bodies_as_replies_come(client):
    taken = 0

    def bodies():
        nonlocal taken
        for taken in range(1, 5_001):
            yield b"%d" % taken

    replies = client.map("echo", bodies(), ahead=100)
    assert next(replies) == b"1"
    assert taken <= 150
    assert list(replies) == [b"%d" % n for n in range(2, 5_001)]
    assert list(client.map("echo", [])) == []


def test_errors_are_classes_by_status(broker, work):
    server = broker("--attempts", "1")
    work("fail", [server], "--", "sh", "-c", "echo broken >&2; exit 3")
    with Client(server.endpoint, timeout=DEADLINE_SECONDS) as client:
        with pytest.raises(towpath.WorkerFailed, match="broken") as failed:
            client.call("fail")
        assert failed.value.status == 500
        # Whether the broker's word comes before our own deadline, a busy machine decides.
        with pytest.raises((towpath.Expired, towpath.TimedOut)):
            client.call("nobody", timeout=0.2)
        with pytest.raises(TimeoutError):
            client.submit("nobody", timeout=0.2).result()
        with pytest.raises(towpath.NoSuchService):
            client.call("mmi.nothing")
        outcomes = list(client.map("fail", [b"1", b"2"], return_errors=True))
        assert [type(outcome) for outcome in outcomes] == [towpath.WorkerFailed] * 2
        with pytest.raises(towpath.WorkerFailed):
            list(client.map("fail", [b"1"]))


def all_of(replies):
    try:
        list(replies)
    except towpath.TowpathError:
        pass


def waiting(client, service):
    queues = json.loads(client.call_frames("mmi.queue", service)[1])
    return sum(queue["waiting"] for queue in queues)


def test_requests_without_a_broker_are_logged_once_and_expire(caplog):
    # Nobody listens at a port that was just given back.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with Client(endpoint) as client:
        waits = client.submit("upper")
        wait_until(lambda: "no broker for" in caplog.text, "it is logged")
        assert endpoint in caplog.text
        with pytest.raises(towpath.Expired):
            client.call("upper", timeout=3)
        assert caplog.text.count("no broker for") == 1
        waits.cancel()


def test_cancelled_futures_end_their_requests(echo, client):
    futures = [client.submit("nobody", b"%d" % n) for n in range(10)]
    wait_until(lambda: waiting(client, b"nobody") == 10, "all are queued")
    assert all(future.cancel() for future in futures)
    wait_until(lambda: waiting(client, b"nobody") == 0, "the broker has none of them")
    replies = client.map("nobody", (b"x" for _ in range(100)), ahead=20, return_errors=True)
    thread = threading.Thread(target=all_of, args=(replies,), daemon=True)
    thread.start()
    wait_until(lambda: waiting(client, b"nobody") == 20, "the first ones are queued")
    client.close()
    thread.join(DEADLINE_SECONDS)
    with Client(echo.endpoint, timeout=DEADLINE_SECONDS) as other:
        wait_until(lambda: waiting(other, b"nobody") == 0, "the closed client's requests have ended")


def test_a_full_client_waits_for_space(client, monkeypatch):
    monkeypatch.setattr("towpath.client.OUTSTANDING_MAX", 10)
    futures = [client.submit("nobody") for _ in range(10)]
    wait_until(lambda: client._engine.session.outstanding == 10, "all are taken")
    with pytest.raises(towpath.Timeout):
        client.submit("echo", timeout=0.1)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(client.submit("echo", b"1").result()), daemon=True)
    thread.start()
    wait_until(lambda: client._waiting_for_space, "it waits")
    assert futures[0].cancel()
    thread.join(DEADLINE_SECONDS)
    assert replies == [b"1"]


def test_callbacks_of_futures_may_submit(client):
    later = []
    first = client.submit("echo", b"1")
    first.add_done_callback(lambda future: later.append(client.submit("echo", future.result() + b"2")))
    wait_until(lambda: later and later[0].done(), "the second has its outcome")
    assert later[0].result() == b"12"


def test_replies_in_parts_are_streamed_or_joined(broker):
    server = broker()
    with running(server, "parts", lambda body, request: iter([b"one", b"two", b"three"])):
        with Client(server.endpoint, timeout=DEADLINE_SECONDS) as client:
            assert list(client.stream("parts")) == [b"one", b"two", b"three"]
            assert client.call("parts") == b"onetwothree"
            assert client.submit("parts").result() == b"onetwothree"
            assert list(client.map("parts", [b""] * 3)) == [b"onetwothree"] * 3


def test_requests_survive_a_kill_of_the_broker(broker, work, tmp_path):
    server = broker("--journal", tmp_path / "journal")
    with Client(server.endpoint, timeout=DEADLINE_SECONDS) as client:
        futures = [client.submit("echo", b"%d" % n) for n in range(2_000)]
        wait_until(lambda: waiting(client, b"echo") == 2_000, "all are queued")
        server.kill()
        futures += [client.submit("echo", b"%d" % n) for n in range(2_000, 2_100)]
        server.start()
        work("echo", [server], "--echo")
        assert [future.result(DEADLINE_SECONDS) for future in futures] == [b"%d" % n for n in range(2_100)]


def test_fails_over_to_the_next_broker(broker, work):
    first, second = broker(), broker()
    work("echo", [second], "--echo")
    with Client([first.endpoint, second.endpoint], timeout=DEADLINE_SECONDS) as client:
        future = client.submit("echo", b"hello")
        wait_until(lambda: waiting(client, b"echo") == 1, "the first broker has it")
        first.kill()
        assert future.result(DEADLINE_SECONDS) == b"hello"


def unsettled(client, service):
    """Requests of a service that wait at a broker, and outcomes that nobody has confirmed."""
    queues = json.loads(client.call_frames("mmi.queue", service)[1])
    return sum(queue["waiting"] + queue["unconfirmed"] for queue in queues)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_broker_that_was_left_is_given_the_outcomes(broker, work, is_closed, tmp_path):
    first, second = broker("--journal", tmp_path / "journal"), broker()
    work("echo", [second], "--echo")
    client = Client([first.endpoint, second.endpoint], timeout=DEADLINE_SECONDS)
    futures = [client.submit("echo", b"%d" % n) for n in range(5)]
    wait_until(lambda: waiting(client, b"echo") == 5, "the first broker has them")
    first.kill()
    assert [future.result(DEADLINE_SECONDS) for future in futures] == [b"%d" % n for n in range(5)]
    first.start()
    with Client(first.endpoint, timeout=DEADLINE_SECONDS) as other:
        if is_closed:
            client.close()
        wait_until(lambda: unsettled(other, b"echo") == 0, "the first broker has none of them")
    client.close()


def test_a_stalled_broker_is_left(broker, work):
    first, second = broker(), broker()
    work("echo", [second], "--echo")
    with Client([first.endpoint, second.endpoint], timeout=DEADLINE_SECONDS) as client:
        future = client.submit("echo", b"hello")
        wait_until(lambda: waiting(client, b"echo") == 1, "the first broker has it")
        first.pause()
        try:
            assert future.result(DEADLINE_SECONDS) == b"hello"
        finally:
            first.resume()


def test_nobody_answers():
    with Client("127.0.0.1:1", timeout=0.3) as client:
        with pytest.raises(towpath.Expired, match="127.0.0.1:1"):
            client.call("echo", b"hello")
    with pytest.raises(towpath.Closed):
        client.call("echo")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_a_forked_process_uses_the_client_as_its_own(client):
    assert client.call("echo", b"before") == b"before"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run here.
        try:
            os.write(writer, client.call("echo", b"child"))
        finally:
            os._exit(0)
    assert client.call("echo", b"parent") == b"parent"
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 100) == b"child"
    os.close(reader)
    assert client.call("echo", b"after") == b"after"


INTERRUPTED = """
import os, signal, sys, threading, time
from towpath import Client

client = Client(sys.argv[1], timeout=30)
other = Client(sys.argv[1], timeout=30)

def interrupt():
    while b'"waiting":1,' not in other.call_frames("mmi.queue", b"nobody")[1]:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

future = client.submit("nobody-else")
threading.Thread(target=interrupt).start()
try:
    client.call("nobody")
except KeyboardInterrupt:
    print("interrupted")
while b'"waiting":1,' in other.call_frames("mmi.queue", b"nobody")[1]:
    time.sleep(0.01)
print(client.call("echo", b"goes on"), future.done())
"""


@pytest.mark.skipif(os.name != "posix", reason="this system sends itself no signals")
def test_a_call_that_is_interrupted_is_cancelled_and_the_client_goes_on(echo):
    command = [sys.executable, "-c", INTERRUPTED, echo.endpoint]
    done = subprocess.run(command, timeout=DEADLINE_SECONDS, capture_output=True, text=True)
    assert done.stdout == "interrupted\nb'goes on' False\n", done.stderr


def test_many_threads_share_a_client(client):
    results = {}

    def calls(name):
        results[name] = all(client.call("echo", b"%d-%d" % (name, n)) == b"%d-%d" % (name, n) for n in range(100))

    threads = [threading.Thread(target=calls, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert results == dict.fromkeys(range(8), True)


def test_keys(broker, work, keys, tmp_path):
    server = broker(*keys)
    served = ["--key", tmp_path / "alice_secret", "--server-key", tmp_path / "server"]
    work("echo", [server], "--echo", *map(str, served))
    right = {"key": tmp_path / "alice_secret", "server_key": tmp_path / "server"}
    with Client(server.endpoint, timeout=DEADLINE_SECONDS, **right) as client:
        assert client.call("echo", b"secret") == b"secret"
    wrong = [
        ({**right, "key": tmp_path / "eve_secret"}, "refuses our key"),
        ({**right, "server_key": tmp_path / "eve"}, "its own key isn't the one in server_key"),
        ({"server_key": tmp_path / "server"}, "refuses our key"),
    ]
    for options, why in wrong:
        with Client(server.endpoint, timeout=DEADLINE_SECONDS, **options) as client:
            with pytest.raises(towpath.WrongKey, match=why):
                client.call("echo", b"secret")
    with Client(server.endpoint, timeout=2) as client:
        with pytest.raises(towpath.TowpathError, match="server_key="):
            client.call("echo", b"secret")
    (tmp_path / "eve_secret").chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        Client(server.endpoint, **{**right, "key": tmp_path / "eve_secret"})


def test_keys_for_a_server_without(broker, keys, tmp_path):
    server = broker()
    with Client(server.endpoint, timeout=DEADLINE_SECONDS, server_key=tmp_path / "server") as client:
        with pytest.raises(towpath.WrongKey, match="leave out server_key="):
            client.call("echo")


def test_a_wake_that_was_cleared_too_soon_ends_one_wait_only():
    wake = Wake()
    wake.set()
    assert list(wake.wait([], 0)) == [wake._reader.fileno()]
    reader = wake._reader

    class Interrupted:
        """Another thread's wake, and an interrupt, come right after the bytes were taken."""

        def recv(self, size):
            reader.recv(size)
            wake.set()
            raise KeyboardInterrupt

        fileno = reader.fileno

    wake._reader = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        wake.clear()
    wake._reader = reader
    # The second wake isn't lost, and ends one wait only.
    assert list(wake.wait([], 0)) == [reader.fileno()]
    wake.clear()
    assert list(wake.wait([], 0)) == []
    wake.close()


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_wake_amid_a_clear_does_not_silence_the_next(comes_first):
    wake = Wake()
    reader = wake._reader

    class Beside:
        """Another thread's wake comes right before or after the bytes are taken."""

        def recv(self, size):
            if comes_first:
                wake.set()
            taken = reader.recv(size)
            if not comes_first:
                wake.set()
            return taken

        fileno = reader.fileno

    wake.set()
    assert list(wake.wait([], 0)) == [reader.fileno()]
    wake._reader = Beside()
    wake.clear()
    wake._reader = reader
    assert list(wake.wait([], 0)) == []
    wake.set()
    assert list(wake.wait([], 0)) == [reader.fileno()]
    wake.close()
