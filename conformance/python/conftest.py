"""Fixtures: a `tow serve` or `tow broker` that ends with the test, a zmq context, and files to serve."""

import itertools
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest
import zmq

WORKSPACE = pathlib.Path(__file__).parents[2]
TOW = os.environ.get("TOW", WORKSPACE / "target/debug/tow")
DEADLINE_SECONDS = 30

# In CI nothing may be skipped.
IN_CI = os.environ.get("CI") == "true"


def cannot_test(why: str) -> None:
    """Skips the test because something is missing; fails it in CI."""
    if IN_CI:
        pytest.fail(f"{why}, and in CI that may not be skipped", pytrace=False)
    pytest.skip(why)


class Server:
    """A running `tow serve` or `tow broker`. Its log goes to a file, so that it never blocks."""

    def __init__(self, log, command, *arguments, bind="tcp://127.0.0.1:0", within=()):
        self.log_path = log
        words = [*within, TOW, command, "--bind", bind, *map(str, arguments)]
        with open(log, "ab") as stderr:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr)
        line = self.process.stdout.readline().decode()
        if not line.startswith({"serve": "serving ", "broker": "broker "}[command]) or " on " not in line:
            self.stop()
            raise AssertionError(f"no line with the endpoint but {line!r}; log: {self.log()}")
        self.endpoint = line.rstrip("\n").rpartition(" on ")[2]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def resident_kib(self) -> int:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))

    def end(self) -> int:
        """Sends SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(DEADLINE_SECONDS)
        self.process.stdout.close()
        return status

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def started(tmp_path):
    """A factory that starts servers: started(COMMAND, *arguments, bind=ENDPOINT)."""
    servers = []

    def start(*arguments, **options) -> Server:
        server = Server(tmp_path / f"server-{len(servers)}.log", *arguments, **options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        assert server.process.poll() in (None, 0, -9), f"the server ended by itself: {server.log()}"
        assert "panicked" not in server.log()
        server.stop()


@pytest.fixture
def end(tmp_path):
    """A factory that starts `tow work` or `tow call`: end("work", SERVICE, servers, *arguments)."""
    processes = []

    def start(command, service, servers, *arguments) -> subprocess.Popen:
        connect = [word for server in servers for word in ("--connect", server.endpoint)]
        with open(tmp_path / f"{command}-{len(processes)}.log", "wb") as log:
            words = [TOW, command, service, *connect, *map(str, arguments)]
            processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def serve(started):
    """A factory that starts `tow serve`: serve(path, *arguments, bind=ENDPOINT)."""
    return lambda path, *arguments, **options: started("serve", path, *arguments, **options)


@pytest.fixture
def broker(started):
    """A factory that starts `tow broker`: broker(*arguments, bind=ENDPOINT)."""
    return lambda *arguments, **options: started("broker", *arguments, **options)


@pytest.fixture
def small(broker):
    """A broker with little memory, and a function that returns how many bytes it has grown by."""
    server = broker("--max-memory", "32M")
    before = server.resident_kib()
    return server, lambda: (server.resident_kib() - before) * 1024


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


@pytest.fixture
def connected(context):
    """A factory of sockets: connected(server, kind, OPTION=value...)."""

    def make(server, kind=zmq.DEALER, **options) -> zmq.Socket:
        socket = context.socket(kind)
        socket.linger = 0
        socket.rcvtimeo = socket.sndtimeo = DEADLINE_SECONDS * 1000
        for name, value in options.items():
            socket.set(getattr(zmq, name), value)
        socket.connect(server if isinstance(server, str) else server.endpoint)
        return socket

    return make


@pytest.fixture
def tree(tmp_path):
    """A folder to serve, with random files of many sizes, and their contents."""
    rng = random.Random(4)
    root = tmp_path / "served"
    contents = {
        "empty": b"",
        "one": b"1",
        "exact": rng.randbytes(500_000),  # two whole chunks of 250,000
        "big": rng.randbytes(5 * (1 << 20) + 12_345),
        "sub/folder/inner": rng.randbytes(70_000),
        "sub/Grüße": "not only ASCII".encode(),
        **{f"many/{n}": rng.randbytes(n * 97) for n in range(50)},
    }
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root, contents


MONITORS = itertools.count()


def monitor_of(socket: zmq.Socket, events: int = zmq.EVENT_ALL) -> zmq.Socket:
    """Where a socket reports its events. pyzmq would name it by the socket's descriptor, and that of a socket which has just been
    closed may come again before libzmq has freed its name."""
    return socket.get_monitor_socket(events, f"inproc://monitor-{next(MONITORS)}")


def is_idle(server) -> bool:
    """True if it takes next to no processor time for a while."""

    def ticks() -> int:
        with open(f"/proc/{server.process.pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(0.3)
    return ticks() - before <= 3


def wait_until(condition, what: str) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < DEADLINE_SECONDS, f"waited in vain until {what}"
        time.sleep(0.01)
