"""Pushing files with stock pyzmq sockets, and the example that the documents show."""

import json
import os
import struct
import subprocess
import sys

import pytest
from blake3 import blake3

from conftest import DEADLINE_SECONDS, WORKSPACE, wait_until

EXAMPLE = WORKSPACE / "examples/push.py"


def offer(dealer, path, data, request_id=1, **members):
    push = {"op": "push", "id": request_id, "path": path, "size": len(data), "mtime": [1795378517, 5]}
    dealer.send_multipart([b"TOW1", json.dumps(push | {"digest": blake3(data).hexdigest()} | members).encode()])
    return answer(dealer)


def answer(dealer):
    tag, text = dealer.recv_multipart()
    assert tag == b"TOW1"
    return json.loads(text)


def piece(dealer, at, body, request_id=1):
    header = struct.pack(">4sBBHIIB3xQQQ", b"TOWD", 1, 0, 1, request_id, 0, 0, at, len(body), len(body))
    dealer.send_multipart([header, body])


@pytest.fixture
def taking(serve, tmp_path):
    """A server that takes files below `in`, and its root."""
    root = tmp_path / "served"
    (root / "in").mkdir(parents=True)
    return serve(root, "--accept-push", "in"), root


def test_bytes_of_the_documents(taking, connected):
    server, root = taking
    dealer = connected(server)
    begun = offer(dealer, "in/a", b"hello", mode=0o640)
    assert begun == {"re": "push", "id": 1, "have": [], "chunk_bytes": 16384, "credit_bytes": 32768}
    header = "544f5744 01 00 0001 00000001 00000000 00 000000 0000000000000000 0000000000000005 0000000000000005"
    dealer.send_multipart([bytes.fromhex(header), b"hello"])
    digest = blake3(b"hello").hexdigest()
    assert answer(dealer) == {"re": "pushed", "id": 1, "digest": digest, "durable": False}
    stat = (root / "in/a").stat()
    assert (stat.st_mtime_ns, stat.st_mode & 0o777) == (1795378517 * 10**9 + 5, 0o640)
    assert offer(dealer, "in/a", b"hello", **{"if": None})["same"]


@pytest.mark.parametrize("text", [b"TOW1", b"fetch", b"TOWD", b"follow"])
def test_bodies_that_look_like_messages(taking, connected, text):
    server, root = taking
    dealer = connected(server)
    assert offer(dealer, "in/a", text)["re"] == "push"
    piece(dealer, 0, text)
    assert answer(dealer)["re"] == "pushed"
    assert (root / "in/a").read_bytes() == text


@pytest.mark.parametrize("size", [0, 5, 1 << 20, 9_000_001])
def test_example_pushes_a_file(taking, tmp_path, size):
    server, root = taking
    source = tmp_path / "source"
    source.write_bytes(bytes(range(251)) * (size // 251) + b"x" * (size % 251))
    words = [sys.executable, EXAMPLE, source, server.endpoint, "in/copy"]
    done = subprocess.run(words, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done
    assert (root / "in/copy").read_bytes() == source.read_bytes()


def test_example_goes_on_where_a_push_ended(taking, connected, tmp_path):
    server, root = taking
    data = bytes(range(251)) * 20_000
    dealer = connected(server)
    chunk = offer(dealer, "in/copy", data)["chunk_bytes"]
    for at in range(0, 2 << 20, chunk):
        piece(dealer, at, data[at : at + chunk])

    def has_two_leaves():
        return any(path.stat().st_size >= 104 + 2 * 48 for path in (root / "in").glob(".tow-*.state"))

    wait_until(has_two_leaves, "2 MiB are there")
    dealer.close()
    source = tmp_path / "source"
    source.write_bytes(data)
    os.utime(source, ns=(1795378517 * 10**9 + 5,) * 2)
    words = [sys.executable, EXAMPLE, source, server.endpoint, "in/copy"]

    def pushed():
        # The server may not know yet that the other connection is gone: busy.
        return subprocess.run(words, capture_output=True, timeout=DEADLINE_SECONDS, check=False).returncode == 0

    wait_until(pushed, "the path is free")
    assert (root / "in/copy").read_bytes() == data


def test_pushes_behind_a_proxy_have_their_own_ids(taking, connected):
    server, root = taking
    dealer = connected(server)
    for route in (b"\0first", b"\0second"):
        push = {"op": "push", "id": 1, "path": f"in/{route[1:].decode()}", "size": len(route) - 1, "mtime": [0, 0]}
        push["digest"] = blake3(route[1:]).hexdigest()
        dealer.send_multipart([route, b"", b"TOW1", json.dumps(push).encode()])
        frames = dealer.recv_multipart()
        assert frames[:2] == [route, b""] and json.loads(frames[3])["re"] == "push"
    for route in (b"\0second", b"\0first"):
        header = struct.pack(">4sBBHIIB3xQQQ", b"TOWD", 1, 0, 1, 1, 0, 0, 0, *[len(route) - 1] * 2)
        dealer.send_multipart([route, b"", header, route[1:]])
        frames = dealer.recv_multipart()
        assert frames[0] == route and json.loads(frames[3])["re"] == "pushed"
        assert (root / "in" / route[1:].decode()).read_bytes() == route[1:]
