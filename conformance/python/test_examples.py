"""The examples in other languages (`examples/`), each against the real server and broker. What can't be installed is skipped, with
the reason."""

import os
import random
import shutil
import signal
import socket
import subprocess

import pytest

from conftest import DEADLINE_SECONDS, TOW, WORKSPACE, Server, wait_until
from stacks import INSTALL_SECONDS, alone, install, install_jars, install_packages
from test_curve import Key

EXAMPLES = WORKSPACE / "examples"
BUILT = WORKSPACE / "target/examples"

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)


def go():
    install("go", "build", "-o", BUILT / "go/", "./...", folder=EXAMPLES / "go")
    return lambda name: [BUILT / "go" / name], ["go", "test", "./..."]


def c():
    make = ["make", "-s", f"OUT={BUILT / 'c'}", "CFLAGS=-O1 -Wall -Wextra -Werror"]
    install(*make, folder=EXAMPLES / "c")
    return lambda name: [BUILT / "c" / name], [*make, "check"]


def cpp():
    folder = BUILT / "cpp"
    install("cmake", "-S", EXAMPLES / "cpp", "-B", folder, "-DCMAKE_CXX_FLAGS=-O0 -Wall -Wextra -Werror", folder=EXAMPLES)
    install("cmake", "--build", folder, "--parallel", "2", folder=EXAMPLES)
    return lambda name: [folder / name], ["ctest", "--test-dir", folder, "--output-on-failure"]


def javascript():
    folder = BUILT / "javascript"
    for source in (EXAMPLES / "javascript").glob("*.mjs"):
        copy = folder / source.name
        # Another process of the tests may be running it.
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            shutil.copy(source, copy)
    install_packages(EXAMPLES / "javascript", folder)
    vectors = f"VECTORS={WORKSPACE / 'testing/vectors/numbered.txt'}"
    return lambda name: ["node", folder / f"{name}.mjs"], ["env", vectors, "node", "--test", folder / "records.test.mjs"]


def java():
    # javac writes all classes anew, while another process of the tests runs its own.
    jars, classes = BUILT / "java/jars", BUILT / "java/classes" / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    install_jars(EXAMPLES / "java", jars)
    sources = sorted((EXAMPLES / "java/src").rglob("*.java"))
    install("javac", "-Xlint:all,-serial", "-Werror", "-d", classes, "-cp", f"{jars}/*", *sources, folder=EXAMPLES)
    # Short runs need no better code.
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", f"{classes}:{jars}/*"]
    vectors = WORKSPACE / "testing/vectors/numbered.txt"
    return lambda name: [*command, f"towpath.{name.capitalize()}"], [*command, "towpath.Vectors", vectors]


BUILD = {"go": go, "c": c, "cpp": cpp, "javascript": javascript, "java": java}


@pytest.fixture(scope="session")
def built():
    """A function that gives a language's programs, and the command that checks its codec; it builds them once."""
    known = {}

    def of(language):
        if language not in known:
            (BUILT / language).mkdir(parents=True, exist_ok=True)
            with alone(BUILT / f"{language}.lock"):
                known[language] = BUILD[language]()
        return known[language]

    return of


# JeroMQ now and then connects and sends no greeting, so that a program waits for ever.
FAULTY = pytest.param("java", marks=pytest.mark.xfail(raises=subprocess.TimeoutExpired, strict=False))


@pytest.fixture(params=[FAULTY if name == "java" else name for name in BUILD])
def language(request, built):
    built(request.param)
    return request.param


class Program:
    """A running example. What it writes goes to files."""

    def __init__(self, words, folder, number, lines=None):
        self.out, self.err = folder / f"program-{number}.out", folder / f"program-{number}.err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE, stdout=out, stderr=err)
        self.process.stdin.write("".join(f"{line}\n" for line in lines or ()).encode())
        self.process.stdin.close()

    def said(self) -> str:
        return self.out.read_text() + self.err.read_text()

    def ended(self) -> int:
        return self.process.wait(DEADLINE_SECONDS)

    def succeeds(self) -> list[str]:
        """Waits for its end; returns the lines that it has printed."""
        assert self.ended() == 0, self.said()
        return self.out.read_text().splitlines()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def run(language, built, tmp_path):
    """A factory that starts a program of the language: run(NAME, *arguments, lines=LINES of its input)."""
    programs = []

    def start(name, *arguments, lines=None) -> Program:
        words = [*built(language)[0](name), *arguments]
        programs.append(Program(words, tmp_path, len(programs), lines))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


@pytest.fixture
def again(started):
    """Kills a server, and starts it again where it was, with the same arguments."""

    def start(server, *arguments) -> Server:
        server.stop()
        return started(*arguments, bind=server.endpoint)

    return start


def has_worker(server, service="upper") -> bool:
    asked = [TOW, "call", "mmi.service", service, "--connect", server.endpoint]
    return subprocess.run(asked, capture_output=True, timeout=DEADLINE_SECONDS).returncode == 0


def replies(lines, count) -> None:
    """Each number has one outcome, and it is the right one."""
    expected = [f"{number} 200 LINE {number}" for number in range(1, count + 1)]
    assert sorted(lines, key=lambda line: int(line.split()[0])) == expected


def asked(count) -> list[str]:
    return [f"line {number}" for number in range(1, count + 1)]


def test_records_are_as_in_the_vectors(language, built):
    folder, command = EXAMPLES / language, built(language)[1]
    subprocess.run(list(map(str, command)), cwd=folder, check=True, timeout=INSTALL_SECONDS)


def test_fetch(run, serve, tree, tmp_path):
    server = serve(tree[0])
    for name in ("big", "exact", "empty", "sub/folder/inner"):
        run("fetch", server.endpoint, name, tmp_path / "copy").succeeds()
        assert (tmp_path / "copy").read_bytes() == tree[1][name], name
    missing = run("fetch", server.endpoint, "missing", tmp_path / "copy")
    assert missing.ended() == 1 and "missing" in missing.said()


def test_fetch_goes_on_after_the_server_was_killed(run, started, again, tmp_path):
    content = random.Random(7).randbytes(12_000_000)
    root, copy = tmp_path / "root", tmp_path / "copy"
    root.mkdir()
    (root / "file").write_bytes(content)
    server = started("serve", root, "--bwlimit", "8M")
    fetch = run("fetch", server.endpoint, "file", copy)
    part = tmp_path / "copy.part"
    wait_until(lambda: part.exists() and part.stat().st_size >= 250_000, "a piece is there")
    server.stop()
    have = part.stat().st_size
    assert have < len(content)
    # What is there isn't fetched again.
    with open(part, "r+b") as file:
        file.write(b"marked")
    again(server, "serve", root)
    fetch.succeeds()
    assert copy.read_bytes() == b"marked" + content[6:]


def test_follow(run, started, again, tmp_path):
    root, copy, state = tmp_path / "root", tmp_path / "copy", tmp_path / "state"
    (root / "sub").mkdir(parents=True)
    copy.mkdir()
    (root / "sub/first").write_text("one")
    (root / "big").write_bytes(b"b" * 600_000)
    arguments = ["serve", root, "--watch", "--state", state, "--settle", "0.1"]
    server = started(*arguments)
    follow = run("follow", server.endpoint, "", copy)

    def content(name):
        return (copy / name).read_bytes() if (copy / name).exists() else None

    wait_until(lambda: content("sub/first") == b"one" and content("big") == b"b" * 600_000, "everything is there")
    (root / "sub/second").write_text("new")
    wait_until(lambda: content("sub/second") == b"new", "the new file is there")
    (root / "sub/first").write_text("changed")
    wait_until(lambda: content("sub/first") == b"changed", "the change is there")
    (root / "big").unlink()
    wait_until(lambda: content("big") is None, "the deleted file is gone")
    again(server, *arguments)
    (root / "sub/second").unlink()
    (root / "sub/third").write_text("after the restart")
    wait_until(lambda: content("sub/second") is None and content("sub/third") == b"after the restart", "it goes on")
    assert follow.process.poll() is None, follow.said()


def test_calls_survive_the_kill_of_the_broker(run, started, again, tmp_path):
    arguments = ["broker", "--journal", tmp_path / "journal"]
    server = started(*arguments)
    worker = run("work", server.endpoint, "upper")
    wait_until(lambda: has_worker(server), "the worker is there")
    count = 3000
    call = run("call", server.endpoint, "upper", lines=asked(count))
    wait_until(lambda: call.out.stat().st_size > 0, "the first reply is there")
    # So that it isn't done before the kill.
    worker.process.send_signal(signal.SIGSTOP)
    again(server, *arguments)
    assert call.process.poll() is None, call.said()
    worker.process.send_signal(signal.SIGCONT)
    replies(call.succeeds(), count)


def test_calls_go_to_the_other_broker(run, broker):
    first, second = broker(), broker()
    run("work", second.endpoint, "upper")
    wait_until(lambda: has_worker(second), "the worker is there")
    # The first has no worker, so everything waits there.
    call = run("call", f"{first.endpoint},{second.endpoint}", "upper", lines=asked(50))
    waits = [TOW, "call", "mmi.queue", "upper", "--connect", first.endpoint]
    wait_until(lambda: b'"waiting":50' in subprocess.run(waits, capture_output=True).stdout, "the requests wait")
    first.stop()
    replies(call.succeeds(), 50)


def test_a_connection_that_ends_in_its_handshake_is_made_again(run, broker):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_SECONDS)
        endpoint = "tcp://127.0.0.1:%d" % listener.getsockname()[1]
        worker, call = run("work", endpoint, "upper"), run("call", endpoint, "upper", lines=asked(3))
        for said in (b"", b"", b"\xff\0\0\0", b"\xff\0\0\0\0\0\0\0\1\x7f\3"):
            connection, _ = listener.accept()
            connection.sendall(said)
            connection.close()
    broker(bind=endpoint)
    replies(call.succeeds(), 3)
    assert worker.process.poll() is None, worker.said()


def test_a_request_survives_the_kill_of_its_worker(run, broker):
    server = broker()
    worker = run("work", server.endpoint, "upper")
    wait_until(lambda: has_worker(server), "the worker is there")
    worker.process.send_signal(signal.SIGSTOP)
    call = run("call", server.endpoint, "upper", lines=asked(1))
    held = [TOW, "call", "mmi.workers", "upper", "--connect", server.endpoint]
    wait_until(lambda: b'"held":1' in subprocess.run(held, capture_output=True).stdout, "the worker has the request")
    worker.kill()
    run("work", server.endpoint, "upper")
    replies(call.succeeds(), 1)


def test_large_bodies(run, broker):
    server = broker()
    run("work", server.endpoint, "upper")
    call = run("call", server.endpoint, "upper", lines=["a" * 4096, "b" * 4097, "c" * 3_000_000])
    lines = sorted(call.succeeds())
    assert lines == ["1 200 " + "A" * 4096, "2 200 " + "B" * 4097, "3 200 " + "C" * 3_000_000]


def test_keys(language, run, serve, broker, tree, tmp_path):
    server_key, alice, eve = (Key(tmp_path, name) for name in ("server", "alice", "eve"))
    authorized = tmp_path / "authorized-keys"
    authorized.write_text(f"alice {alice.public.decode()}\n")
    # The heartbeats of both sides are inside.
    secured = ["--key", server_key.secret_file, "--authorized-keys", authorized, "--heartbeat", "0.2"]
    files, requests = serve(tree[0], *secured), broker(*secured)
    right = [alice.secret_file, server_key.public_file]
    run("fetch", files.endpoint, "big", tmp_path / "copy", *right).succeeds()
    assert (tmp_path / "copy").read_bytes() == tree[1]["big"]
    run("work", requests.endpoint, "upper", *right)
    replies(run("call", requests.endpoint, "upper", *right, lines=asked(3)).succeeds(), 3)
    refused = [[eve.secret_file, server_key.public_file], [alice.secret_file, eve.public_file]]
    if language != "java":  # JeroMQ doesn't say that only one side has keys
        refused.append([])
    fetches = [run("fetch", files.endpoint, "big", tmp_path / "refused", *keys) for keys in refused]
    call = run("call", requests.endpoint, "upper", *refused[0], lines=asked(1))
    for program in [*fetches, call]:
        assert program.ended() == 1 and "refuses us" in program.said(), program.said()
    assert not (tmp_path / "refused").exists()
