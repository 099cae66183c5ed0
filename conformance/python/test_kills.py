"""Brokers and workers are killed again and again under load. `tow call` checks that no reply is lost or wrong."""

import json
import os
import pathlib
import random
import tempfile
import threading
import time

import pytest
import zmq

import mdp
import numbered
from conftest import DEADLINE_SECONDS, Server, wait_until
from numbered import Reply, Request, reply, request

KILLS = int(os.environ.get("TOWPATH_KILLS", "20"))
SEED = 20
COUNT = 3000


class Loads:
    """Runs load tests until the block ends; each must succeed."""

    def __init__(self, end, servers, *arguments, count=COUNT):
        self.start = lambda: end("call", "echo", servers, "--count", count, "--json", "-q", *arguments)
        self.count = count
        self.done, self.resent, self.is_over, self.failure = 0, 0, False, None
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            while not self.is_over:
                self.one()
        except BaseException as failure:
            self.failure = failure

    def one(self) -> None:
        load = self.start()
        output, _ = load.communicate(timeout=2 * DEADLINE_SECONDS)
        assert load.returncode == 0, output
        summary = json.loads(output)
        wanted = {"requests": self.count, "replies": self.count, "failed": 0, "wrong": 0}
        assert {member: summary[member] for member in wanted} == wanted
        self.done += summary["replies"]
        self.resent += summary["resent"]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()
        if self.failure:
            raise self.failure


class Again:
    """A broker that can be killed and restarted on the same endpoint."""

    def __init__(self, log, *arguments):
        self.log, self.arguments = log, arguments
        self.server = Server(log, "broker", *arguments)
        self.endpoint = self.server.endpoint

    def kill(self) -> None:
        self.server.stop()
        assert "panicked" not in self.server.log()

    def come_again(self) -> None:
        self.server = Server(self.log, "broker", *self.arguments, bind=self.endpoint)


@pytest.fixture
def journal_path():
    """In memory, where there is such a place: a process that is killed loses nothing there, and disks differ in speed."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield pathlib.Path(path) / "journal"


@pytest.fixture
def again(tmp_path):
    brokers = []

    def start(*arguments) -> Again:
        brokers.append(Again(tmp_path / f"broker-{len(brokers)}.log", *arguments))
        return brokers[-1]

    yield start
    for broker in brokers:
        broker.server.stop()


@pytest.fixture
def busy(connected):
    """A function that waits until a broker is amid a load again: who missed it for long is slow to come again, and to kill a broker
    that nobody uses shows little."""

    def wait(broker) -> None:
        client = mdp.Client(connected(broker))
        # What the broker knew from before is ahead of this in the queue: after it, what workers hold has come since.
        assert client.ask(b"echo", b"?") == [b"?"]
        held = lambda: sum(worker["held"] for worker in json.loads(client.ask(b"mmi.workers", b"echo")[1]))
        wait_until(lambda: held() > 0, "clients have come again")
        client.socket.close(linger=0)

    return wait


def test_workers_killed_again_and_again(broker, end):
    rng = random.Random(SEED)
    server = broker("--attempts", 100)
    work = lambda dialect: end("work", "echo", [server], "--echo", "--work-time", "3ms", "--jobs", 20, "--dialect", dialect)
    dialects = ["auto", "auto", "mdp01"]
    workers = [work(dialect) for dialect in dialects]
    with Loads(end, [server], "--ahead", 60):
        for _ in range(2 * KILLS):
            time.sleep(rng.uniform(0, 0.1))
            killed = rng.randrange(len(workers))
            workers[killed].kill()
            workers[killed].wait()
            workers[killed] = work(dialects[killed])


# With a journal, the broker has much to read at its start.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("journal", [False, True], ids=["memory", "journal"])
def test_broker_killed_again_and_again(again, end, busy, journal_path, journal):
    rng = random.Random(SEED)
    broker = again(*(["--journal", journal_path] if journal else []))
    for _ in range(2):
        end("work", "echo", [broker], "--echo", "--work-time", "1ms", "--jobs", 50)
    with Loads(end, [broker], "--ahead", 50, "--clients", 2) as loads:
        for _ in range(KILLS):
            busy(broker)
            time.sleep(rng.uniform(0, 0.15))
            broker.kill()
            broker.come_again()
    # Nearly every kill met requests that had no outcome.
    assert loads.resent > 10 * KILLS


def test_one_of_two_brokers_is_always_there(again, end):
    rng = random.Random(SEED)
    brokers = [again(), again()]
    for _ in range(2):
        end("work", "echo", brokers, "--echo", "--work-time", "1ms", "--jobs", 50)
    with Loads(end, brokers, "--ahead", 50, "--clients", 2) as loads:
        for kill in range(KILLS // 2):
            time.sleep(rng.uniform(0.1, 0.4))
            brokers[kill % 2].kill()
            time.sleep(rng.uniform(0, 0.2))
            brokers[kill % 2].come_again()
    assert loads.resent > 0


@pytest.mark.parametrize("journal", [False, True], ids=["memory", "journal"])
def test_number_has_one_outcome_across_crashes(again, connected, journal_path, journal):
    """Each execution replies something else, and workers vanish amid their work. An outcome that a client has got is sent again,
    whatever happened since: with a journal always, without one by the same broker, as its epoch says."""
    rng = random.Random(SEED)
    broker = again("--attempts", 1000, *(["--journal", journal_path] if journal else []))
    is_over = threading.Event()

    def work(chance):
        # On a new connection each time: a restarted broker doesn't know the old one.
        while not is_over.is_set():
            with zmq.Context.instance().socket(zmq.DEALER) as socket:
                socket.linger, socket.rcvtimeo = 0, 100
                socket.connect(broker.endpoint)
                try:
                    worker = numbered.Worker(socket, b"dice", credit=20)
                    # Its requests run again; its last replies may have been sent or not.
                    while chance.random() < 0.98:
                        match worker.next():
                            case Request(token=token):
                                worker.send(reply(token, os.urandom(8)))
                except zmq.Again:
                    pass

    workers = [threading.Thread(target=work, args=[random.Random(seed)]) for seed in range(2)]
    for worker in workers:
        worker.start()
    name, outcomes, epochs, repeated = os.urandom(16), {}, set(), 0

    def ask(numbers, enough) -> None:
        """Asks for these on a connection of its own, until so many of them were replied to."""
        nonlocal repeated
        client = numbered.Client(connected(broker, RCVHWM=0), name=name)
        assert client.welcome.journal == journal
        epochs.add(client.welcome.epoch)
        client.send(*(request(number, b"dice") for number in numbers))
        seen = set()
        while len(seen) < enough:
            match client.next():
                case Reply(number=number, status=status, body=body):
                    assert status == 200
                    known = (None if journal else client.welcome.epoch, number)
                    repeated += known in outcomes
                    assert outcomes.setdefault(known, body) == body, f"{number} has two outcomes"
                    seen.add(number)
        client.socket.close(linger=0)

    try:
        for turn in range(KILLS // 2):
            # Earlier and new requests: a kill meets requests that are new, have run, or were answered.
            numbers = range(1, 200 * (turn + 1))
            for enough in sorted(rng.choices(numbers, k=2)):
                ask(numbers, enough)
            broker.kill()
            broker.come_again()
        for _ in range(2):
            ask(numbers, len(numbers))
    finally:
        is_over.set()
        for worker in workers:
            worker.join()
    assert len(epochs) == KILLS // 2 + 1 and repeated > len(numbers)
