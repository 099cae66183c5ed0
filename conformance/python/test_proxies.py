"""Clients of the broker behind libzmq's proxy, a ROUTER and a DEALER: it puts the id of each client before what that sends."""

import threading

import pytest
import zmq

import mdp
from conftest import wait_until

CLIENTS = {
    "0.1-req": (mdp.MDP01, zmq.REQ, {}),
    "0.1-req-correlate": (mdp.MDP01, zmq.REQ, {"REQ_CORRELATE": 1, "REQ_RELAXED": 1}),
    "0.1-dealer": (mdp.MDP01, zmq.DEALER, {}),
    "0.2-dealer": (mdp.MDP02, zmq.DEALER, {}),
    "0.2-majortomo": (mdp.MAJORTOMO, zmq.DEALER, {}),
}


@pytest.fixture
def proxied(context, connected):
    """A factory of endpoints: proxied(server, hops) leads to the server through so many proxies."""
    running = []

    def make(server, hops=1) -> str:
        endpoint = server.endpoint
        for _ in range(hops):
            front, back, control, controlled = (
                context.socket(kind) for kind in (zmq.ROUTER, zmq.DEALER, zmq.PAIR, zmq.PAIR)
            )
            back.connect(endpoint)
            endpoint = f"tcp://127.0.0.1:{front.bind_to_random_port('tcp://127.0.0.1')}"
            controlled.bind(f"inproc://proxy-{len(running)}")
            control.connect(f"inproc://proxy-{len(running)}")
            thread = threading.Thread(target=zmq.proxy_steerable, args=(front, back, None, controlled))
            thread.start()
            running.append((control, thread))
        return endpoint

    yield make
    for control, thread in running:
        control.send(b"TERMINATE")
        thread.join()


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("kind", CLIENTS)
def test_clients_behind_a_proxy_are_answered(broker, connected, proxied, kind, hops):
    server = broker()
    worker = mdp.Worker(connected(server), b"echo")
    dialect, socket, options = CLIENTS[kind]
    endpoint = proxied(server, hops)
    clients = [mdp.Client(connected(endpoint, socket, **options), dialect) for _ in range(3)]
    for body in [[b"hello"], [b""], [b"a", b"", b"b"], [bytes(100_000)], [bytes(3 << 20)]]:
        for number, client in enumerate(clients):
            client.send(b"echo", b"%d" % number, *body)
        worker.serve(len(clients))
        for number, client in enumerate(clients):
            assert client.receive(b"echo") == [[b"%d" % number, *body]]
    assert clients[0].ask(b"mmi.service", b"echo") == [b"200"]
    # What is wrong with one client's request is that client's alone.
    assert clients[1].ask(b"echo")[0] == b"400"
    assert clients[2].ask(b"mmi.service", b"nobody") == [b"404"]


@pytest.mark.parametrize("kind", CLIENTS)
def test_titanic_behind_a_proxy(broker, connected, proxied, tmp_path, kind):
    server = broker("--journal", tmp_path / "journal")
    worker = mdp.Worker(connected(server), b"echo")
    dialect, socket, options = CLIENTS[kind]
    client = mdp.Client(connected(proxied(server), socket, **options), dialect)
    code, name = client.ask(b"titanic.request", b"echo", b"Hello world")
    assert code == b"200"
    worker.serve(1)
    wait_until(lambda: client.ask(b"titanic.reply", name) != [b"300"], "the reply is there")
    assert client.ask(b"titanic.reply", name) == [b"200", b"Hello world"]
    assert client.ask(b"titanic.close", name) == [b"200"]


def test_a_worker_behind_a_proxy_is_distinguished(broker, connected, proxied):
    server = broker()
    worker = mdp.Worker(connected(proxied(server)), b"echo")
    wait_until(lambda: "connect workers to the broker itself" in server.log(), "the log says what to do")
    worker.socket.close()
