"""A `tow serve` or `tow broker` that ends with the test, and helpers that wait for conditions."""

from __future__ import annotations

import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import pytest

# Without what only some systems have.
if os.environ.get("TOWPATH_BARE"):
    sys.modules["fcntl"] = None
    for module, name in [(os, "register_at_fork"), (os, "O_NOFOLLOW"), (select, "poll"), (select, "epoll"), (signal, "SIGUSR1")]:
        if hasattr(module, name):
            delattr(module, name)

WORKSPACE = pathlib.Path(__file__).parents[2]
TOW = os.environ.get("TOW", str(WORKSPACE / "target/debug/tow"))
DEADLINE_SECONDS = 30


class Server:
    """A running `tow serve` or `tow broker`. Its log goes to a file, so that it never blocks."""

    def __init__(self, log, command, *arguments, bind="tcp://127.0.0.1:0"):
        self.log_path, self.command, self.arguments = log, command, arguments
        self.process = None
        self.start(bind)

    def start(self, bind=None):
        words = [TOW, self.command, "--bind", bind or self.endpoint, *map(str, self.arguments)]
        with open(self.log_path, "ab") as stderr:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stderr)
        line = self.process.stdout.readline().decode()
        assert " on " in line, f"no line with the endpoint but {line!r}; log: {self.log()}"
        self.endpoint = line.rstrip("\n").rpartition(" on ")[2]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def started(tmp_path):
    servers = []

    def start(*arguments, **options) -> Server:
        servers.append(Server(tmp_path / f"server-{len(servers)}.log", *arguments, **options))
        return servers[-1]

    yield start
    for server in servers:
        assert "panicked" not in server.log()
        if server.process.returncode is None:
            server.kill()


@pytest.fixture
def broker(started):
    """A factory that starts `tow broker`."""
    return lambda *arguments, **options: started("broker", *arguments, **options)


@pytest.fixture
def serve(started):
    """A factory that starts `tow serve`."""
    return lambda path, *arguments, **options: started("serve", path, *arguments, **options)


@pytest.fixture
def work(tmp_path):
    """A factory that starts `tow work`: work(SERVICE, servers, *arguments)."""
    processes = []

    def start(service, servers, *arguments):
        connect = [word for server in servers for word in ("--connect", server.endpoint)]
        with open(tmp_path / f"work-{len(processes)}.log", "wb") as log:
            processes.append(subprocess.Popen([TOW, "work", service, *connect, *arguments], stderr=log))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def keys(tmp_path):
    """Key files of a server, of a client that it admits, and of one that it doesn't, and the arguments of the server."""
    for name in ("server", "alice", "eve"):
        subprocess.run([TOW, "key", "new", tmp_path / name], check=True, capture_output=True)
    public = subprocess.run([TOW, "key", "show", tmp_path / "alice"], check=True, capture_output=True, text=True).stdout
    (tmp_path / "authorized").write_text(f"alice {public.split()[-1]}\n")
    return ["--key", tmp_path / "server_secret", "--authorized-keys", tmp_path / "authorized"]


def wait_until(condition, what: str) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < DEADLINE_SECONDS, f"waited in vain until {what}"
        time.sleep(0.01)
