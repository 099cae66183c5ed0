"""The broker's spool quota for large bodies, and its distribution."""

import json
import os
import subprocess

import pytest

import mdp
import numbered
from conftest import TOW, wait_until
from numbered import ATTACHED, Refused, Reply, confirm, reply, request
from raw import MORE, Raw, frame, header

MIB = 1 << 20
BODY = b"b" * 2_000_000


@pytest.fixture
def spooled(connected):
    """A function of a broker that returns a function for the bytes in its spool."""

    def of(server):
        client = mdp.Client(connected(server))

        def in_spool() -> int:
            code, said = client.ask(b"mmi.spool", b"")
            assert code == b"200"
            return json.loads(said)["bytes"]

        return in_spool

    return of


def received(server) -> list[int]:
    """Bytes that each connection has sent: those that the broker has read, and those that it leaves to the kernel while it waits."""
    words = [TOW, "peers", "--json", "--admin", str(server.process.pid)]
    peers = map(json.loads, subprocess.run(words, capture_output=True, check=True).stdout.splitlines())
    unread = {}
    with open("/proc/net/tcp") as sockets:
        for line in list(sockets)[1:]:
            _, _, remote, _, queues, *_ = line.split()
            # By the port of the peer.
            unread[int(remote.split(":")[1], 16)] = int(queues.split(":")[1], 16)
    return [peer["received_bytes"] + unread.get(int(peer["address"].split(":")[1]), 0) for peer in peers]


def large(client, number, body=BODY, service=b"slow") -> None:
    client.send(request(number, service, flags=ATTACHED), attached=[body])


def test_numbered_client_learns_when_to_retry(broker, connected, spooled):
    server = broker("--max-spool", "4M")
    in_spool = spooled(server)
    client = numbered.Client(connected(server))
    large(client, 1)
    large(client, 2)
    refused = client.reply()
    assert (type(refused), refused.number, refused.status) == (Refused, 2, 503)
    assert refused.retry_ms > 0 and "space" in refused.reason
    # A body that can never fit isn't to be retried: a quarter is for replies alone.
    large(client, 3, bytes(3 * MIB + 1))
    refused = client.reply()
    assert (type(refused), refused.number, refused.status, refused.retry_ms) == (Refused, 3, 413, 0)
    assert in_spool() == len(BODY)
    [queue] = json.loads(mdp.Client(connected(server)).ask(b"mmi.queue", b"slow")[1])
    assert (queue["waiting"], queue["waiting_spooled_bytes"]) == (1, len(BODY))
    # An accepted request isn't refused when it is sent again.
    client = numbered.Client(connected(server), name=client.name)
    large(client, 1)
    client.send(request(9, b"mmi.service", b"slow"))
    assert client.reply().number == 9
    # Its quota is free after its end.
    worker = numbered.Worker(connected(server), b"slow")
    worker.serve(1)
    assert client.reply() == Reply(1, 200, None, BODY)
    client.send(confirm(1))
    wait_until(lambda: in_spool() == 0, "its reply is confirmed")
    large(client, 2)
    worker.serve(1)
    assert client.reply() == Reply(2, 200, None, BODY)


def test_large_bodies_leave_descriptors_to_workers(broker, connected):
    server = broker(within=["prlimit", "--nofile=64:64"])
    client, most, body = numbered.Client(connected(server)), 24, b"b" * (MIB + 1)
    for number in range(1, 41):
        large(client, number, body)
    for number in range(most + 1, 41):
        refused = client.reply()
        assert (type(refused), refused.number, refused.status) == (Refused, number, 503)
        assert refused.retry_ms > 0 and "files" in refused.reason
    limits = json.loads(mdp.Client(connected(server)).ask(b"mmi.spool", b"")[1])
    assert (limits["files"], limits["most_files_for_requests"], limits["most_files"]) == (most, most, 32)
    # Replies have files too.
    worker = numbered.Worker(connected(server), b"slow")
    for number in range(1, most + 1):
        worker.send(reply(worker.request().token, flags=ATTACHED), attached=[body])
        assert client.reply() == Reply(number, 200, None, body)
        client.send(confirm(number))
    large(client, 25, body)
    worker.serve(1)
    assert client.reply() == Reply(25, 200, None, body)


def test_reply_over_the_quota_ends_its_request(broker, connected, spooled):
    server = broker("--max-spool", "4M")
    in_spool = spooled(server)
    client, stock = numbered.Client(connected(server)), mdp.Client(connected(server))
    worker = numbered.Worker(connected(server), b"slow", credit=10)
    old = mdp.Worker(connected(server), b"old")
    for number, body, status in [(1, bytes(3 * MIB), 507), (2, bytes(4 * MIB + 1), 413), (3, bytes(2 * MIB), 200)]:
        large(client, number)
        worker.send(reply(worker.request().token, flags=ATTACHED), attached=[body])
        outcome = client.reply()
        assert (type(outcome), outcome.number, outcome.status) == (Reply, number, status)
        assert status == 200 or b"space" in outcome.body
        client.send(confirm(number))
        stock.send(b"old", BODY)
        old.reply(old.request()[0], body)
        [answered] = stock.receive(b"old")
        assert answered == [body] if status == 200 else answered[0] == b"%d" % status
    # Requests alone can't take the last quarter.
    large(client, 4)
    large(client, 5, bytes(3 * MIB - len(BODY)))
    tokens = [worker.request().token for _ in range(2)]
    large(client, 6, bytes(1_100_000))
    assert client.reply().status == 503
    worker.send(reply(tokens[0], flags=ATTACHED), attached=[bytes(MIB)])
    assert client.reply() == Reply(4, 200, None, bytes(MIB))
    worker.send(reply(tokens[1]))
    client.reply()
    client.send(confirm(4, 2))
    wait_until(lambda: in_spool() == 0, "nothing is there any more")


def test_stock_clients_wait_for_the_quota_in_order(broker, connected, spooled):
    server = broker("--max-spool", "4M", "--heartbeat", 0.2)
    in_spool = spooled(server)
    first = numbered.Client(connected(server))
    large(first, 1)
    wait_until(lambda: in_spool() == len(BODY), "it has arrived")
    clients = [mdp.Client(connected(server)) for _ in range(4)]
    for number, client in enumerate(clients):
        client.send(b"slow", b"%d" % number + BODY)
        # The others have sent a handshake and small requests.
        wait_until(lambda: sum(count > 10_000 for count in received(server)) == number + 2, "it has begun to arrive")
    wait_until(lambda: "no space" in server.log(), "the log says so")
    # A body that can never fit is refused, and small requests pass.
    assert clients[0].socket.poll(100) == 0
    never = mdp.Client(connected(server))
    assert never.ask(b"slow", bytes(3 * MIB + 1))[0] == b"413"
    assert in_spool() == len(BODY)
    # A client leaves, which the next PING shows, and the next one gets its place.
    before = len(received(server))
    clients.pop(1).socket.close(linger=0)
    wait_until(lambda: len(received(server)) == before - 1, "it is gone")
    worker = numbered.Worker(connected(server), b"slow")
    bodies = []
    for _ in range(4):
        record = worker.request()
        bodies.append(record.body)
        worker.send(reply(record.token, record.body[:1]))
    assert bodies == [BODY, *(number + BODY for number in (b"0", b"2", b"3"))]
    assert [client.receive(b"slow") for client in clients] == [[[b"0"]], [[b"2"]], [[b"3"]]]
    wait_until(lambda: in_spool() == 0, "nothing is there any more")


def test_clients_waiting_for_the_quota_hold_up_no_one(broker, connected, spooled):
    """More clients than there are body buffers."""
    server = broker("--max-spool", "8M")
    in_spool = spooled(server)
    client = numbered.Client(connected(server))
    worker = numbered.Worker(connected(server), b"slow", credit=10)
    large(client, 1, bytes(6 * MIB))
    token = worker.request().token
    raws = [Raw(server).handshake() for _ in range(50)]
    begun = b"".join(frame(body, MORE) for body in (b"", b"MDPC01", b"slow")) + header(2_000_000)
    for raw in raws:
        raw.send(begun + bytes(100_000))
    wait_until(lambda: sum(count > 100 for count in received(server)) >= 52, "all have begun")
    wait_until(lambda: "no space" in server.log(), "they wait")
    assert in_spool() == 6 * MIB
    worker.send(reply(token, flags=ATTACHED), attached=[bytes(2 * MIB)])
    assert client.reply() == Reply(1, 200, None, bytes(2 * MIB))
    for raw in raws:
        raw.close()


def test_large_replies_wait_for_a_slow_client(broker, connected, spooled):
    """They wait on the disk, beyond the bound for a peer's backlog in memory."""
    server = broker()
    in_spool = spooled(server)
    worker = numbered.Worker(connected(server), b"slow", credit=50)
    client = mdp.Client(connected(server, RCVHWM=1))
    bodies = [bytes([number]) * 1_000_000 for number in range(40)] + [bytes([number]) * (40 << 20) for number in (1, 2, 3)]
    for _ in bodies:
        client.send(b"slow", b"")
    tokens = [worker.request().token for _ in bodies]
    for token, body in zip(tokens, bodies):
        worker.send(reply(token, flags=ATTACHED), attached=[body])
    wait_until(lambda: in_spool() == 120 << 20, "all replies have come")
    assert [client.receive(b"slow") for _ in bodies] == [[[body]] for body in bodies]
    wait_until(lambda: in_spool() == 0, "nothing is there any more")
    assert "doesn't read" not in server.log()


def test_announced_bodies_take_no_quota(broker, connected, spooled):
    server = broker("--max-spool", "4M")
    in_spool = spooled(server)
    raw = Raw(server).handshake()
    before = max(received(server))
    announced = b"".join(frame(body, MORE) for body in (b"", b"MDPC01", b"slow")) + header(2_500_000) + b"x"
    raw.send(announced)
    client = numbered.Client(connected(server))
    wait_until(lambda: max(received(server)) >= before + len(announced), "it is announced")
    large(client, 1)

    def is_taken() -> bool:
        """Sends it again as long as the body that was announced may be on its way."""
        while client.has_more(10):
            if isinstance(client.next(), Refused):
                large(client, 1)
        return in_spool() >= len(BODY)

    wait_until(is_taken, "it is taken")
    # The body arrives, and doesn't fit: it is refused in order.
    raw.send(bytes(2_499_999))
    assert b"\0\1\6MDPC01\1\4slow\1\003503" in raw.receive(40)
    # Another thread drops what had arrived of it.
    wait_until(lambda: in_spool() == len(BODY), "nothing of it is left")
    raw.close()


def test_journalled_bodies_count_for_the_quota(broker, connected, spooled, tmp_path):
    keep = ("--journal", tmp_path / "journal")
    server = broker(*keep, "--max-spool", "8M")
    client = numbered.Client(connected(server))
    for number in (1, 2):
        large(client, number)
    assert [client.next().count for _ in range(2)] == [1, 1]
    server.stop()
    server = broker(*keep, "--max-spool", "1M")
    in_spool = spooled(server)
    assert in_spool() == 2 * len(BODY)
    client = numbered.Client(connected(server), name=client.name)
    large(client, 3, bytes(MIB + 1))
    assert client.reply().status == 413
    worker = numbered.Worker(connected(server), b"slow", credit=2)
    for _ in range(2):
        worker.send(reply(worker.request().token))
    assert {client.reply(), client.reply()} == {Reply(1, 200, None, b""), Reply(2, 200, None, b"")}
    wait_until(lambda: in_spool() == 0, "nothing is there any more")


def test_default_quota_is_half_of_the_disk(broker, connected, tmp_path):
    server = broker("--spool", tmp_path / "spool")
    limits = json.loads(mdp.Client(connected(server)).ask(b"mmi.spool", b"")[1])
    assert limits["bytes"] == 0 and limits["most_for_requests"] == limits["most"] - limits["most"] // 4
    system = os.statvfs(tmp_path)
    assert 0.9 < limits["most"] / (system.f_bavail * system.f_frsize / 2) < 1.1
