"""Following a path with stock pyzmq sockets: the plain dialect, and the messages of the other one."""

import json
import mmap
import os
import subprocess
import sys
import time

import pytest
import zmq

from conftest import DEADLINE_SECONDS, TOW, WORKSPACE, wait_until

SETTLE = "100ms"
COST_MIN = 256


def follow(dealer, path=b"", *start, credit=1 << 30):
    dealer.send_multipart([b"follow", path, *start])
    dealer.send_multipart([b"credit", b"%d" % credit])


def changes_until_live(dealer):
    """Takes changes up to the next `live`: (kind, path, whole content), and the cursor."""
    changes, content = [], b""
    while True:
        kind, path, cursor, size, offset, body = dealer.recv_multipart()
        if kind == b"live":
            return changes, cursor
        if kind == b"file":
            assert len(content) == int(offset), "pieces come in order"
            content += body
            if len(content) < int(size):
                continue
            body, content = content, b""
        changes.append((kind, path, body))


def as_tree(changes):
    return {path.decode(): body for kind, path, body in changes if kind == b"file"}


def test_full_state_then_changes(serve, connected, tree):
    root, contents = tree
    (root / "link").symlink_to("one")
    dealer = connected(serve(root, "--watch", "--settle", SETTLE))
    follow(dealer)
    changes, cursor = changes_until_live(dealer)
    assert changes[0] == (b"full", b"", b"")
    assert as_tree(changes) == contents
    assert (b"link", b"link", b"one") in changes
    assert (b"dir", b"sub/folder", b"") in changes

    (root / "new").write_bytes(b"new" * 100_000)
    assert changes_until_live(dealer)[0] == [(b"file", b"new", b"new" * 100_000)]
    # Another content under the same name, in two ways.
    (root / "one").write_bytes(b"two")
    assert changes_until_live(dealer)[0] == [(b"file", b"one", b"two")]
    (root.parent / "next").write_bytes(b"three")
    os.replace(root.parent / "next", root / "one")
    assert changes_until_live(dealer)[0] == [(b"file", b"one", b"three")]
    (root / "many/7").unlink()
    changes, cursor = changes_until_live(dealer)
    assert changes == [(b"gone", b"many/7", b"")]

    # Another connection goes on where this one is.
    (root / "meanwhile").write_bytes(b"x")
    assert changes_until_live(dealer)[0] == [(b"file", b"meanwhile", b"x")]
    later = connected(dealer.last_endpoint.decode())
    follow(later, b"", cursor)
    assert changes_until_live(later)[0] == [(b"file", b"meanwhile", b"x")]
    # From now on there is nothing yet.
    now = connected(dealer.last_endpoint.decode())
    follow(now, b"", b"now")
    assert changes_until_live(now)[0] == []


def test_only_what_is_below_the_path(serve, connected, tree):
    root, contents = tree
    dealer = connected(serve(root, "--watch", "--settle", SETTLE))
    follow(dealer, b"sub")
    changes, _ = changes_until_live(dealer)
    assert as_tree(changes) == {name: data for name, data in contents.items() if name.startswith("sub/")}
    (root / "elsewhere").write_bytes(b"1")
    (root / "sub/here").write_bytes(b"2")
    assert changes_until_live(dealer)[0] == [(b"file", b"sub/here", b"2")]


def test_nothing_comes_without_credit(serve, connected, tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    (root / "big").write_bytes(bytes(1_000_000))
    dealer = connected(serve(root, "--watch", "--settle", SETTLE))
    follow(dealer, credit=COST_MIN + 10_000)
    assert dealer.recv_multipart()[0] == b"full"
    kind, _, _, size, offset, body = dealer.recv_multipart()
    assert (kind, size, offset, len(body)) == (b"file", b"1000000", b"0", 10_000)
    # The plain fetch goes on beside it, and has no credit.
    dealer.send_multipart([b"fetch", b"big", b"0", b"5"])
    assert dealer.recv_multipart() == [bytes(5)]
    dealer.send_multipart([b"credit", b"250000"])
    assert int(dealer.recv_multipart()[4]) == 10_000
    dealer.send_multipart([b"credit", b"250000"])
    assert int(dealer.recv_multipart()[4]) == 260_000


@pytest.mark.parametrize(
    "message",
    [
        [b"follow"],
        [b"follow", b"", b"yesterday"],
        [b"follow", b"../etc"],
        [b"follow", b"", b"now", b"more"],
        [b"credit"],
        [b"credit", b"-1"],
    ],
)
def test_bad_requests_are_answered(serve, connected, tree, message):
    root, _ = tree
    dealer = connected(serve(root, "--watch", "--settle", SETTLE))
    dealer.send_multipart(message)
    word, reason = dealer.recv_multipart()
    assert word == b"error" and reason
    dealer.send_multipart([b"fetch", b"one", b"0", b"5"])
    assert dealer.recv_multipart() == [b"1"]


def test_a_server_that_does_not_watch_says_so(serve, connected, tree):
    root, _ = tree
    dealer = connected(serve(root))
    dealer.send_multipart([b"follow", b""])
    word, reason = dealer.recv_multipart()
    assert word == b"error" and b"--watch" in reason


def test_messages_of_the_other_dialect(serve, connected, tree):
    root, contents = tree
    dealer = connected(serve(root, "--watch", "--settle", SETTLE))

    def ask(**message):
        dealer.send_multipart([b"TOW1", json.dumps(message).encode()])

    def answer():
        tag, body = dealer.recv_multipart()
        assert tag == b"TOW1"
        return json.loads(body)

    ask(op="hello")
    assert "follow" in answer()["features"]
    ask(op="follow", id=7, glob="many/*")
    following = answer()
    assert following["re"] == "following" and following["state"] == "full"
    paths, last = set(), 0
    while True:
        page = answer()
        assert page["re"] == "changes" and page["id"] == 7
        for change in page["changes"]:
            assert last < change["seq"] <= page["head"]
            last = change["seq"]
            assert change["type"] == "file" and len(change["digest"]) == 64
            assert change["size"] == len(contents[change["path"]])
            paths.add(change["path"])
        if page["live"]:
            break
        ask(op="more", id=7)
    assert paths == {f"many/{n}" for n in range(50)}
    # Without another `more` nothing comes, whatever happens.
    (root / "many/new").write_bytes(b"1")
    ask(op="hello")
    assert answer()["re"] == "hello"
    ask(op="more", id=7)
    page = answer()
    assert [change["path"] for change in page["changes"]] == ["many/new"]
    ask(op="cancel", id=7)
    assert answer() == {"re": "cancelled", "id": 7}
    ask(op="follow", id=7, **{"from": page["cursor"]})
    assert answer()["state"] == "changes"
    ask(op="follow", id=8, **{"from": "f" * 32 + "-7"})
    replies = [answer(), answer()]
    assert {reply["state"] for reply in replies if reply["re"] == "following"} == {"full"}


def test_client_of_the_readme(serve, tree, tmp_path):
    root, contents = tree
    server = serve(root, "--watch", "--settle", SETTLE)
    copy = tmp_path / "copy"
    command = [sys.executable, WORKSPACE / "examples/follow.py", server.endpoint, "", copy]
    client = subprocess.Popen(command)
    try:

        def has(name, data):
            return (copy / name).is_file() and (copy / name).read_bytes() == data

        wait_until(lambda: all(has(name, data) for name, data in contents.items()), "all files are there")
        (root / "sub/late").write_bytes(b"late" * 1000)
        wait_until(lambda: has("sub/late", b"late" * 1000), "a new file is there")

        # What it has put in place is unknown.
        words = [TOW, "followers", "--json", "--admin", str(server.process.pid)]
        states = lambda: [json.loads(line)["state"] for line in subprocess.check_output(words).splitlines()]
        wait_until(lambda: states() == ["sent"], "the server says that everything was sent")
        assert client.poll() is None
    finally:
        client.kill()
        client.wait(DEADLINE_SECONDS)


def test_the_readme_shows_this_client():
    client = (WORKSPACE / "examples/follow.py").read_text()
    lines = [line for line in client.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 10
    assert client in (WORKSPACE / "README.md").read_text(), "the README shows another client than the one tested"


class FakeServer:
    """A server whose changes are written here, for `tow follow`. It has none of the files that it announces."""

    EPOCH = "5" * 32

    def __init__(self, context):
        self.router = context.socket(zmq.ROUTER)
        self.endpoint = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self.client = self.follow = None

    def say(self, **message):
        self.router.send_multipart([self.client, b"TOW1", json.dumps(message).encode()])

    def begin(self):
        self.say(re="following", id=self.follow, state="full", cursor=f"{self.EPOCH}-0", head=9)

    def page(self, live, *changes):
        changes = [{"seq": seq, "path": path, **rest} for seq, path, rest in changes]
        cursor = f"{self.EPOCH}-{changes[-1]['seq']}"
        self.say(re="changes", id=self.follow, cursor=cursor, head=9, live=live, changes=changes)

    def serve(self, seconds):
        """Answers for so long: what was asked for."""
        asked, until = [], time.monotonic() + seconds
        while self.router.poll(max(0, until - time.monotonic()) * 1000):
            self.client, _, body = self.router.recv_multipart()[:3]
            request = json.loads(body)
            asked.append(request["op"])
            match request["op"]:
                case "hello":
                    limits = {"chunk_bytes_max": 1 << 22, "fetch_files_max": 4096, "requests_max": 64}
                    self.say(re="hello", protocol=1, software="fake", features=["follow"], **limits)
                case "follow":
                    self.follow = request["id"]
                case "fetch":
                    error = {"code": "not-found", "message": "it isn't there"}
                    files = [{"n": n, "error": error} for n in range(len(request["files"]))]
                    self.say(re="files", id=request["id"], files=files)
                    self.say(re="done", id=request["id"])
        return asked


def test_nothing_is_deleted_in_the_middle_of_a_full_state(context, tmp_path):
    retry_seconds = 10
    server, copy = FakeServer(context), tmp_path / "copy"
    folder = {"type": "dir", "mode": 0o755}
    file = {"type": "file", "size": 1, "mtime": [1, 0], "mode": 0o644, "digest": "0" * 64}
    with open(tmp_path / "log", "wb") as log:
        client = subprocess.Popen([TOW, "follow", server.endpoint, copy, "--mirror"], stdout=log, stderr=log)
    try:
        wait_until(lambda: server.serve(0.1) is not None and server.follow is not None, "it follows")
        server.begin()
        server.page(True, (1, "one", folder), (2, "two", folder), (3, "three", folder), (4, "file", file))
        # The file fails, and will be tried again.
        assert "fetch" in server.serve(2)
        assert (copy / "three").is_dir()
        # The full state begins again, and takes its time.
        server.begin()
        server.page(False, (5, "one", folder))
        server.serve(retry_seconds)
        assert sorted(path.name for path in copy.iterdir() if path.is_dir()) == ["one", "three", "two"]
        server.page(True, (6, "two", folder))
        wait_until(lambda: server.serve(0.1) is not None and not (copy / "three").exists(), "what is gone is deleted")
        assert (copy / "one").is_dir() and (copy / "two").is_dir() and client.poll() is None
    finally:
        client.kill()
        client.wait(DEADLINE_SECONDS)
        server.router.close(linger=0)


def test_a_mapped_file_is_published_when_it_is_unmapped(serve, connected, tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    # Nothing is published because it has rested.
    dealer = connected(serve(root, "--watch", "--settle", "1h"))
    follow(dealer)
    changes_until_live(dealer)
    with open(root / "mapped", "w+b") as file:
        file.truncate(100_000)
        mapped = mmap.mmap(file.fileno(), 100_000)
    # Closed, but written to all the same, which the kernel doesn't report.
    mapped[:5] = b"first"
    (root / "other").write_bytes(b"1")
    assert changes_until_live(dealer)[0] == [(b"file", b"other", b"1")]
    mapped[:5] = b"later"
    mapped.close()
    kind, path, content = changes_until_live(dealer)[0][0]
    assert (kind, path, content[:6], len(content)) == (b"file", b"mapped", b"later\0", 100_000)
