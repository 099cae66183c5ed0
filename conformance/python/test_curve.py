"""CURVE between `tow` and libzmq, in both roles: with the right keys, and with each kind of wrong one."""

import json
import subprocess

import pytest
import zmq
import zmq.auth
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from conftest import DEADLINE_SECONDS, TOW, monitor_of, wait_until
from mdp import MDP01, Client, Worker
from test_plain_dialect import whole_at_once

# libzmq closes a connection at a greeting with another mechanism. On a busy machine that is before it has sent its own, and nobody
# can learn why.
pytestmark = pytest.mark.alone


class Key:
    """A key pair with its files: made by `tow key`, or by pyzmq."""

    def __init__(self, folder, name, by_pyzmq=False):
        if by_pyzmq:
            public, secret = zmq.auth.create_certificates(folder, name)
            (folder / secret).chmod(0o600)
            self.public_file, self.secret_file = folder / public, folder / secret
        else:
            self.public_file, self.secret_file = folder / name, folder / f"{name}_secret"
            subprocess.run([TOW, "key", "new", self.public_file], check=True, capture_output=True)
        # What pyzmq reads of our files, too.
        self.public, self.secret = zmq.auth.load_certificate(self.secret_file)
        assert zmq.auth.load_certificate(self.public_file) == (self.public, None)


@pytest.fixture(params=[False, True], ids=["tow", "pyzmq"])
def keys(request, tmp_path):
    """The keys of a server, of a client that it admits, and of one that it doesn't."""
    return [Key(tmp_path, name, request.param) for name in ("server", "alice", "eve")]


@pytest.fixture
def secured(keys, tmp_path):
    """Arguments for a server that admits alice."""
    authorized = tmp_path / "authorized-keys"
    authorized.write_text(f"# who\nalice {keys[1].public.decode()}\n")
    return ["--key", keys[0].secret_file, "--authorized-keys", authorized]


def options(key, server) -> dict[str, bytes]:
    return {"CURVE_SECRETKEY": key.secret, "CURVE_PUBLICKEY": key.public, "CURVE_SERVERKEY": server.public}


def test_stock_clients_fetch_files(serve, connected, tree, keys, secured):
    root, contents = tree
    server = serve(root, *secured)
    dealer = connected(server, **options(keys[1], keys[0]))
    for name in ("empty", "one", "exact", "big", "sub/folder/inner"):
        assert whole_at_once(dealer, name.encode()) == contents[name], name
    req = connected(server, zmq.REQ, **options(keys[1], keys[0]))
    for _ in range(2):
        req.send_multipart([b"fetch", b"big", b"1000", b"5000"])
        assert req.recv_multipart() == [contents["big"][1000:6000]]
    assert "name=alice" in server.log() or 'name="alice"' in server.log(), server.log()


def test_heartbeats_go_inside(serve, connected, tree, keys, secured):
    server = serve(tree[0], *secured, "--heartbeat", "0.1")
    dealer = connected(server, HEARTBEAT_IVL=50, HEARTBEAT_TIMEOUT=1_000, **options(keys[1], keys[0]))
    monitor = monitor_of(dealer, zmq.EVENT_DISCONNECTED)
    assert whole_at_once(dealer, b"one") == b"1"
    # Both would give up a peer that doesn't answer, after 0.4 s and 1 s.
    assert monitor.poll(1_500) == 0
    assert whole_at_once(dealer, b"one") == b"1"


def refusal(dealer) -> tuple[int, int]:
    """The first event that says why a handshake failed, and its value."""
    monitor = monitor_of(dealer, zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                         | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    assert monitor.poll(DEADLINE_SECONDS * 1000)
    event = recv_monitor_message(monitor)
    return event["event"], event["value"]


def test_stock_clients_learn_that_they_are_refused(serve, context, tree, keys, secured):
    server_key, alice, eve = keys
    server = serve(tree[0], *secured)
    for settings in (options(eve, server_key), options(alice, eve)):
        dealer = context.socket(zmq.DEALER)
        dealer.linger = 0
        for name, value in settings.items():
            dealer.set(getattr(zmq, name), value)
        dealer.connect(server.endpoint)
        assert refusal(dealer) == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
    wait_until(lambda: "another key" in server.log(), "the wrong server key is logged")
    # By whom, and whose key.
    refused = next(line for line in server.log().splitlines() if "refused" in line)
    assert eve.public.decode() in refused and "127.0.0.1" in refused


@pytest.mark.parametrize("server_has_key", [True, False])
def test_stock_clients_learn_that_only_one_side_has_keys(serve, context, tree, keys, secured, server_has_key):
    server = serve(tree[0], *(secured if server_has_key else []))
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    for name, value in ({} if server_has_key else options(keys[1], keys[0])).items():
        dealer.set(getattr(zmq, name), value)
    dealer.connect(server.endpoint)
    assert refusal(dealer) == (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
    wait_until(lambda: "set up for" in server.log(), "the server logs why")


def test_stock_clients_and_workers_of_the_broker(broker, connected, keys, secured):
    server = broker(*secured)
    worker = Worker(connected(server, **options(keys[1], keys[0])), b"echo", MDP01)
    client = Client(connected(server, zmq.REQ, **options(keys[1], keys[0])), MDP01)
    for body in ([b"hello"], [b"", b"a", bytes(70_000)], [b"x" * 3_000_000, b"tail"]):
        client.send(b"echo", *body)
        address, request = worker.request()
        assert request == body
        worker.reply(address, *body)
        assert client.receive(b"echo") == [body]


@pytest.fixture
def libzmq_server(context, keys):
    """A ROUTER of libzmq with the server's key, and who it admits."""
    from zmq.auth.thread import ThreadAuthenticator

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    router = context.socket(zmq.ROUTER)
    router.linger, router.rcvtimeo = 0, DEADLINE_SECONDS * 1000
    router.curve_server = True
    router.curve_secretkey, router.curve_publickey = keys[0].secret, keys[0].public

    def start(admits) -> tuple[zmq.Socket, str]:
        folder = keys[0].public_file.parent / "admitted"
        folder.mkdir()
        for key in admits:
            (folder / f"{key.public_file.stem}.key").write_bytes(key.public_file.read_bytes())
        authenticator.configure_curve(domain="*", location=folder)
        router.bind("tcp://127.0.0.1:*")
        return router, router.last_endpoint.decode()

    yield start
    router.close()
    authenticator.stop()


def tow(*words, **more) -> subprocess.CompletedProcess:
    return subprocess.run([TOW, *map(str, words)], capture_output=True, timeout=DEADLINE_SECONDS, **more)


def test_our_client_at_a_stock_server(libzmq_server, keys):
    router, endpoint = libzmq_server([keys[1]])
    words = ["call", "echo", "hello", "--connect", endpoint, "--dialect", "mdp01"]
    words += ["--key", keys[1].secret_file, "--server-key", keys[0].public_file]
    with subprocess.Popen([TOW, *map(str, words)], stdout=subprocess.PIPE) as calling:
        identity, *frames = router.recv_multipart()
        assert frames == [b"", b"MDPC01", b"echo", b"hello"]
        router.send_multipart([identity, b"", b"MDPC01", b"echo", b"x" * 1_000_000])
        assert calling.communicate(timeout=DEADLINE_SECONDS)[0] == b"x" * 1_000_000
    assert calling.returncode == 0


@pytest.mark.parametrize("command", ["get", "call"])
def test_our_clients_say_what_is_wrong_at_a_stock_server(libzmq_server, keys, command, tmp_path):
    server, alice, eve = keys
    _, endpoint = libzmq_server([alice])
    words = {
        "get": ["get", f"{endpoint}/x", tmp_path / "copy", "--connect-timeout", "20"],
        "call": ["call", "echo", "hello", "--connect", endpoint, "--timeout", "10"],
    }[command]

    def ends(*more) -> str:
        ended = tow(*words, *more)
        assert ended.returncode not in (0, 2), ended
        return ended.stderr.decode()

    # libzmq closes the connection without a word. Three times, to be sure.
    text = ends("--key", alice.secret_file, "--server-key", eve.public_file)
    assert "closed the connection after our HELLO" in text and eve.public.decode() in text
    text = ends("--key", eve.secret_file, "--server-key", server.public_file)
    assert "400" in text and "(unverified)" in text and eve.public.decode() in text
    # Nor does it say that it speaks CURVE.
    text = ends()
    assert "isn't set up for NULL" in text and "--server-key" in text


def test_a_stock_server_without_curve(context, keys, tmp_path):
    router = context.socket(zmq.ROUTER)
    router.bind("tcp://127.0.0.1:*")
    endpoint = router.last_endpoint.decode()
    ended = tow("get", f"{endpoint}/x", tmp_path / "copy", "--server-key", keys[0].public.decode())
    assert ended.returncode not in (0, 2)
    assert b"isn't set up for CURVE" in ended.stderr


def test_show_reads_the_files_of_others(keys):
    key = keys[1]
    for file, has_secret in ((key.public_file, False), (key.secret_file, True)):
        shown = json.loads(tow("key", "show", file, "--json").stdout)
        assert shown["key"].encode() == key.public
        assert bytes.fromhex(shown["hex"]) == z85.decode(key.public)
        assert shown["secret"] is has_secret
        assert key.secret not in tow("key", "show", file).stdout


def test_rules_hold_for_stock_programs(serve, connected, tree, tmp_path):
    root, contents = tree
    server_key, alice, bob = [Key(tmp_path, name) for name in ("server", "alice", "bob")]
    rules = tmp_path / "rules"
    lines = [f"key alice {alice.public.decode()}", f"key bob {bob.public.decode()}"]
    lines += ["allow alice bob to read **", "deny bob to read sub", "deny bob to list sub/folder"]
    rules.write_text("\n".join(lines) + "\n")
    server = serve(root, "--key", server_key.secret_file, "--rules", rules)
    of_alice, of_bob = [connected(server, **options(key, server_key)) for key in (alice, bob)]
    assert whole_at_once(of_alice, b"sub/folder/inner") == contents["sub/folder/inner"]
    assert whole_at_once(of_bob, b"one") == contents["one"]
    answers = []
    for path in (b"sub/folder/inner", b"sub/folder/nothing"):
        of_bob.send_multipart([b"fetch", path])
        answers.append(of_bob.recv_multipart())
    # As if it weren't there.
    assert answers[0] == answers[1] and answers[0][0] == b"error"
    # Alice's key is taken away: her connection ends, and libzmq learns why when it connects again.
    monitor = monitor_of(of_alice, zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    rules.write_text("\n".join(lines[1:]).replace("allow alice bob", "allow bob") + "\n")
    assert monitor.poll(DEADLINE_SECONDS * 1000)
    assert recv_monitor_message(monitor)["value"] == 400
    assert whole_at_once(of_bob, b"one") == contents["one"]
