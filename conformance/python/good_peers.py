"""Well-behaved peers beside hostile ones, which must not notice anything."""

import itertools

import pytest

import mdp
import numbered


class GoodPeers:
    """A client and a worker of each kind, connected from the beginning."""

    def __init__(self, server, connected):
        self.server = server
        self.stock_worker = mdp.Worker(connected(server), b"good")
        self.stock_client = mdp.Client(connected(server))
        self.numbered_worker = numbered.Worker(connected(server), b"good too", credit=10)
        self.numbered_client = numbered.Client(connected(server))
        self.numbers = itertools.count(1)

    def work(self) -> None:
        assert self.server.process.poll() is None, f"the broker has ended: {self.server.log()}"
        for service, worker in ((b"good", self.stock_worker), (b"good too", self.numbered_worker)):
            number = next(self.numbers)
            self.stock_client.send(service, b"stock", b"")
            worker.serve(1)
            assert self.stock_client.receive(service) == [[b"stock", b""]]
            self.numbered_client.send(numbered.request(number, service, b"numbered"))
            worker.serve(1)
            assert self.numbered_client.reply() == numbered.Reply(number, 200, None, b"numbered")
            self.numbered_client.send(numbered.confirm(number))


@pytest.fixture
def good(connected):
    """A function that starts such peers: good(server)."""
    return lambda server: GoodPeers(server, connected)
