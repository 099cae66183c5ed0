"""ZeroMQ stacks in other languages fetch files from `tow serve` and are both ends of `tow broker`; more of them fetch files in
test_examples.py. What can't be installed is skipped, with the reason; in CI one of those that announce ZMTP 3.0, as no other library
here does, must be there."""

import shutil
import subprocess
import time

import pytest

from conftest import IN_CI, WORKSPACE
from stacks import INSTALL_SECONDS, install, install_jars, install_packages
from test_curve import Key

FETCH_SECONDS = 60
# Of what JeroMQ does.
ATTEMPTS = 4
SOURCES = WORKSPACE / "conformance"
INSTALLED = WORKSPACE / "target/conformance"
EXAMPLES = WORKSPACE / "examples"
EXAMPLES_BUILT = WORKSPACE / "target/examples"

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)


@pytest.fixture(scope="session")
def jeromq():
    jars = EXAMPLES_BUILT / "java/jars"
    install_jars(EXAMPLES / "java", jars)
    return ["java", "-cp", f"{jars}/*", SOURCES / "java/Majordomo.java"]


@pytest.fixture(scope="session")
def go_zeromq():
    program = INSTALLED / "go/fetch"
    install("go", "build", "-o", program, ".", folder=SOURCES / "go")
    return [program]


@pytest.fixture(scope="session")
def zeromq_js():
    folder = EXAMPLES_BUILT / "javascript"
    folder.mkdir(parents=True, exist_ok=True)
    install_packages(EXAMPLES / "javascript", folder)
    # Modules are looked for beside the program.
    shutil.copy(SOURCES / "node/majordomo.mjs", folder)
    return ["node", folder / "majordomo.mjs"]


@pytest.fixture(scope="session")
def czmq():
    program = INSTALLED / "c/fetch"
    program.parent.mkdir(parents=True, exist_ok=True)
    install("cc", "-O1", "-o", program, SOURCES / "c/fetch.c", "-lczmq", "-lzmq", folder=SOURCES)
    return [program]


@pytest.mark.skipif(not IN_CI, reason="outside CI what can't be installed may be missing")
def test_ci_has_a_stack_that_announces_zmtp_3_0(request):
    reasons = []
    for stack in ("jeromq", "go_zeromq"):
        try:
            request.getfixturevalue(stack)
            return
        except pytest.skip.Exception as reason:
            reasons.append(f"{stack}: {reason}")
    pytest.fail("no stack that announces ZMTP 3.0 could be installed: " + "; ".join(reasons), pytrace=False)


def never_greeted(server, *stacks) -> bool:
    """On a busy machine JeroMQ connects now and then and says nothing, not even its greeting, and doesn't try again."""
    return "jeromq" in stacks and "the handshake did not finish in time" in server.log()


@pytest.mark.parametrize("stack", ["go_zeromq", "czmq"])
def test_stack_fetches_files(stack, request, serve, tree, tmp_path):
    fetch_files(request.getfixturevalue(stack), serve(tree[0]), tree[1], tmp_path)


# go-zeromq has no CURVE.
def test_czmq_fetches_files_encrypted(czmq, serve, tree, tmp_path):
    keys = {name: Key(tmp_path, name) for name in ("server", "alice")}
    authorized = tmp_path / "authorized-keys"
    authorized.write_text(f"alice {keys['alice'].public.decode()}\n")
    # The other side's heartbeats and ours are inside.
    server = serve(tree[0], "--key", keys["server"].secret_file, "--authorized-keys", authorized, "--heartbeat", "0.2")
    # It reads our certificates itself.
    fetch_files(czmq, server, tree[1], tmp_path, [keys["server"].public.decode(), keys["alice"].secret_file])
    assert "alice" in server.log()


def fetch_files(command, server, contents, tmp_path, options=()) -> None:
    for name in ("big", "exact", "empty", "sub/folder/inner"):
        copy = tmp_path / "copy"
        fetch = [*command, server.endpoint, name, copy, *options]
        done = subprocess.run(fetch, capture_output=True, text=True, timeout=FETCH_SECONDS)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}; log: {server.log()}"
        assert copy.read_bytes() == contents[name], name


@pytest.fixture(scope="session")
def majordomo_of(request):
    """A function that gives the command of a stack's client or worker."""

    def command(stack, end):
        return [*request.getfixturevalue(stack), end]

    return command


@pytest.mark.parametrize("worker", ["jeromq", "go_zeromq", "zeromq_js"])
@pytest.mark.parametrize("client", ["jeromq", "go_zeromq", "zeromq_js"])
def test_stacks_are_client_and_worker_of_the_broker(client, worker, majordomo_of, broker):
    asking, working = majordomo_of(client, "request"), majordomo_of(worker, "work")
    for _ in range(ATTEMPTS):
        # A short interval: their heartbeats, and ours, are exchanged meanwhile.
        server = broker("--heartbeat", "0.2")
        why = what_is_wrong([*asking, server.endpoint, "echo"], [*working, server.endpoint, "echo"])
        if not why or not never_greeted(server, client, worker):
            break
    assert not why, f"{why}; log: {server.log()}"
    assert "misbehaves" not in server.log()


def what_is_wrong(asking, working) -> str:
    with subprocess.Popen(working) as worker:
        try:
            for _ in range(2):
                done = subprocess.run(asking, capture_output=True, text=True, timeout=FETCH_SECONDS)
                if done.returncode != 0:
                    return f"the client ended with {done.returncode}: {done.stdout}{done.stderr}"
                time.sleep(1.5)  # longer than a worker may be silent
            return "" if worker.poll() is None else f"the worker ended with {worker.returncode}"
        finally:
            worker.kill()
