"""Dead letters: requests that kill every worker that has them."""

import json
import subprocess

import pytest

import mdp
import numbered
from conftest import DEADLINE_SECONDS, TOW, wait_until
from test_kills import again, journal_path  # noqa: F401

BODIES = {"small": b"poison", "spooled": b"p" * 3_000_000}


def waiting(connected, server, service):
    """Requests that wait for a service, in or out of a worker's hands."""
    status, queue = mdp.Client(connected(server)).ask(b"mmi.queue", service)
    assert status == b"200"
    return sum(of["unconfirmed"] for of in json.loads(queue))


def call(server, service, body, *options):
    words = [TOW, "call", service, "--connect", server.endpoint, *options]
    return subprocess.run(words, input=body, capture_output=True, timeout=DEADLINE_SECONDS)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_it_waits_for_a_worker_of_another_service_over_crashes(again, end, connected, journal_path, tmp_path, body):  # noqa: F811
    server = again("--journal", journal_path, "--attempts", 2)
    # Each kills the worker that started it.
    workers = [end("work", "deadly", [server], "--", "sh", "-c", "kill -9 $PPID") for _ in range(2)]
    asked = call(server, "deadly", body)
    assert asked.returncode == 8 and b"502" in asked.stderr and b"dlq.deadly" in asked.stderr, asked.stderr
    assert [worker.wait(DEADLINE_SECONDS) for worker in workers] == [-9, -9]
    assert "dlq.deadly" in server.server.log()
    server.kill()
    server.come_again()
    assert waiting(connected, server, b"aside.deadly") == 1
    # A worker that fails on it doesn't lose it.
    failing = end("work", "aside.deadly", [server], "--", "sh", "-c", f"echo >> {tmp_path}/tried; exit 1")
    wait_until((tmp_path / "tried").exists, "it was tried")
    failing.kill()
    end("work", "dlq.deadly", [server], "--", "sh", "-c", f"cat > {tmp_path}/copy && mv {tmp_path}/copy {tmp_path}/kept")
    wait_until((tmp_path / "kept").exists, "it is looked at")
    assert (tmp_path / "kept").read_bytes() == body
    wait_until(lambda: waiting(connected, server, b"aside.deadly") == 0, "it is no longer kept")
    assert server.server.end() == 0
    server.come_again()
    assert waiting(connected, server, b"aside.deadly") == 0


def test_what_is_kept_may_be_asked_for_again_by_a_pipe(again, end, connected, journal_path):  # noqa: F811
    server = again("--journal", journal_path, "--attempts", 1)
    client = numbered.Client(connected(server))
    dying = numbered.Worker(connected(server), b"deadly", credit=100)
    client.send(*(numbered.request(number, b"deadly", b"%d" % number) for number in range(1, 101)))
    assert {dying.request().body for _ in range(100)} == {b"%d" % number for number in range(1, 101)}
    dying.socket.close(linger=0)
    assert [client.reply().status for _ in range(100)] == [502] * 100
    mended = numbered.Worker(connected(server), b"deadly", credit=100)
    end("work", "dlq.deadly", [server], "--", TOW, "call", "--volatile", "deadly", "--connect", server.endpoint)
    got = []
    for _ in range(100):
        request = mended.request()
        got.append(request.body)
        mended.send(numbered.reply(request.token, b"done"))
    assert sorted(got) == sorted(b"%d" % number for number in range(1, 101))
    wait_until(lambda: waiting(connected, server, b"dlq.deadly") == 0, "none is kept any longer")


def test_without_a_journal_nothing_is_kept(broker, connected):
    server = broker("--attempts", 1)
    client = numbered.Client(connected(server))
    dying = numbered.Worker(connected(server), b"deadly")
    client.send(numbered.request(1, b"deadly", b"body"))
    dying.request()
    dying.socket.close(linger=0)
    reply = client.reply()
    assert reply.status == 502 and b"dlq" not in reply.body
    assert waiting(connected, server, b"aside.deadly") == 0
    wait_until(lambda: "used up its attempts" in server.log(), "the log says so")
