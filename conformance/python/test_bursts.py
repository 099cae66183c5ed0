"""More messages for one peer than its connection should hold."""

import signal
import threading

import mdp
import numbered
from conftest import wait_until
from numbered import ATTACHED, Reply, reply, request
from raw import connections, message
from test_faults import stats  # noqa: F401

BODY = b"b" * 900_000
MIB = 1 << 20


def test_new_worker_gets_a_long_queue(broker, connected, stats):  # noqa: F811
    """The worker gets each request once, and isn't taken for a slow consumer."""
    server = broker()
    about = stats(server)
    clients = [numbered.Client(connected(server)) for _ in range(2)]
    for client in clients:
        for number in range(1, 111):
            client.send(request(number, b"long", flags=ATTACHED), attached=[BODY])
    wait_until(lambda: about.unconfirmed(b"long") == 220, "all have arrived")
    worker = numbered.Worker(connected(server), b"long", credit=4096)
    for _ in range(220):
        record = worker.request()
        assert record.attempt == 1 and record.body == BODY
        worker.send(reply(record.token, b"done"))
    for client in clients:
        assert {client.reply() for _ in range(110)} == {Reply(number, 200, None, b"done") for number in range(1, 111)}
    assert "doesn't read" not in server.log()


def test_returning_client_gets_many_outcomes(broker, connected, stats):  # noqa: F811
    server = broker()
    about = stats(server)
    client = numbered.Client(connected(server))
    client.send(*(request(number, b"long") for number in range(1, 201)))
    worker = numbered.Worker(connected(server), b"long", credit=4096)
    tokens = [worker.request().token for _ in range(200)]
    client.socket.close(linger=0)
    for token in tokens:
        worker.send(reply(token, flags=ATTACHED), attached=[BODY])
    wait_until(lambda: about.held(b"long") == 0, "all have an outcome")
    again = numbered.Client(connected(server), name=client.name)
    # Like clients that reconnect after a timeout: each gets its outcomes, without filling the broker's memory.
    for _ in range(20):
        again.send(*(request(number, b"long") for number in range(1, 201)))
    before = server.resident_kib()
    waiting = set(range(1, 201))
    while waiting:
        outcome = again.reply()
        assert outcome.body == BODY
        if outcome.number in waiting:
            waiting.remove(outcome.number)
            again.send(numbered.confirm(outcome.number))
    assert server.resident_kib() < before + 200_000
    assert "doesn't read" not in server.log()


def test_stock_client_that_reads_late_gets_all_replies(broker, connected, stats):  # noqa: F811
    """270 MB of replies, of which the client reads nothing before the last one."""
    server = broker()
    about = stats(server)
    client = mdp.Client(connected(server, RCVHWM=1, RCVBUF=65_536))
    for number in range(300):
        client.send(b"long", b"%d" % number)
    worker = numbered.Worker(connected(server), b"long", credit=4096)
    for _ in range(300):
        record = worker.request()
        worker.send(reply(record.token, flags=ATTACHED), attached=[BODY])
    wait_until(lambda: about.held(b"long") == 0, "all replies have come")
    assert [client.receive(b"long") for _ in range(300)] == [[[BODY]]] * 300
    assert "doesn't read" not in server.log()


def test_stopping_broker_delivers_replies(broker, connected):
    server = broker("--grace", 60)
    client = mdp.Client(connected(server, RCVHWM=1, RCVBUF=65_536))
    for _ in range(60):
        client.send(b"long", b"please")
    worker = numbered.Worker(connected(server), b"long", credit=4096)
    for _ in range(60):
        record = worker.request()
        worker.send(reply(record.token, flags=ATTACHED), attached=[BODY])
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in server.log(), "it is stopping")
    assert [client.receive(b"long") for _ in range(60)] == [[[BODY]]] * 60
    assert server.process.wait(60) == 0


def test_burst_over_the_memory_limit_is_answered(small, connected, end):
    """160 MB from stock clients, which don't resend: the broker reads what fits, and all are answered."""
    server, more = small
    end("work", "e", [server], "--echo")
    clients = [mdp.Client(connected(server)) for _ in range(200)]
    body = b"b" * 400_000
    for _ in range(2):
        for client in clients:
            client.send(b"e", body)
    peak = 0
    for _ in range(2):
        for client in clients:
            assert client.receive(b"e") == [[body]]
            peak = max(peak, more())
    assert peak < 3 * 32 * MIB
    assert "used up its attempts" not in server.log() and "misbehaves" not in server.log()


def test_clients_stopped_in_a_message_hold_up_no_one(small, connected, end):
    server, more = small
    end("work", "e", [server], "--echo")
    half = message(b"", b"MDPC01", b"e", BODY)[: len(BODY) // 2]
    with connections(server, 60) as raws:
        sending = [threading.Thread(target=raw.send, args=(half,), daemon=True) for raw in raws]
        for thread in sending:
            thread.start()
        asking = mdp.Client(connected(server))
        for _ in range(3):
            assert asking.ask(b"mmi.service", b"e") == [b"200"]
            assert asking.ask(b"e", BODY) == [BODY]
        assert more() < 3 * 32 * MIB
    for thread in sending:
        thread.join()
