"""The files protocol with stock sockets and a client written from its specification."""

import json
import os
import struct

import blake3
import pytest
import zmq

import blake3_tree
from native_client import ENTRY, Client, ProtocolError, name_of


@pytest.fixture
def client(serve, connected, tree):
    return Client(connected(serve(tree[0])))


def test_python_tree_equals_blake3():
    for size in (0, 1, 64, 65, 1023, 1024):
        data = bytes(i % 251 for i in range(size))
        # One chunk is its own root, so only larger inputs can be compared through merge().
        assert len(blake3_tree.chunk_value(data, 0)) == 32
    for size in (1025, 2048, 2049, 5000, 31744):
        data = bytes(i % 251 for i in range(size))
        chunks = [data[at : at + 1024] for at in range(0, size, 1024)]
        values = [blake3_tree.chunk_value(chunk, index) for index, chunk in enumerate(chunks)]
        assert blake3_tree.merge(values, True).hex() == blake3.blake3(data).hexdigest()


def test_hello(client):
    hello = client.ask(op="hello")
    assert hello["re"] == "hello" and hello["protocol"] == 1
    assert hello["software"].startswith("towpath ")
    assert {"zstd", "leaves", "holes"} <= set(hello["features"])


def test_list(client, tree):
    root, contents = tree
    entries = client.listing(recursive=True, digest=True)
    files = {name_of(entry).decode(): entry for entry in entries if entry["type"] == "file"}
    assert files.keys() == contents.keys()
    for name, entry in files.items():
        stat = (root / name).stat()
        assert entry["size"] == stat.st_size
        assert entry["mtime"] == [stat.st_mtime_ns // 10**9, stat.st_mtime_ns % 10**9]
        assert entry["mode"] == stat.st_mode & 0o7777
        assert entry["digest"] == blake3.blake3(contents[name]).hexdigest()
    names = [name_of(entry) for entry in entries]
    assert [entry["path"] for entry in entries if entry["type"] == "dir"] == ["many", "sub", "sub/folder"]
    assert names == sorted(names, key=lambda name: name.split(b"/")), "depth first, sorted by bytes"


def test_list_in_pages(serve, connected, tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    for n in range(9000):
        (root / f"{n:05}").touch()
    client = Client(connected(serve(root)))
    first = client.ask(op="list", id=900, path="")
    assert first["more"] and len(first["entries"]) <= 4096
    names = [name_of(entry).decode() for entry in client.listing()]
    assert names == [f"{n:05}" for n in range(9000)]


def test_globs(client, tree):
    names = {name_of(entry).decode() for entry in client.listing(glob="many/[12]?")}
    assert names == {f"many/{n}" for n in range(10, 30)}
    names = {name_of(entry).decode() for entry in client.listing(glob="{one,**/inner}")}
    assert names == {"one", "sub/folder/inner"}


def test_names_that_are_not_utf8(serve, connected, tmp_path):
    root = tmp_path / "served"
    root.mkdir()
    with open(os.fsencode(root) + b"/caf\xe9", "wb") as file:
        file.write(b"bytes")
    client = Client(connected(serve(root)))
    [entry] = client.listing()
    assert name_of(entry) == b"caf\xe9" and "path" not in entry
    [file] = client.fetch([{"path_b64": entry["path_b64"]}])
    assert file.content == b"bytes"


@pytest.mark.parametrize("digest", ["now", "later"])
@pytest.mark.parametrize("chunk_bytes", [4096, 1 << 20])
@pytest.mark.parametrize("compress", [{}, {"compress": "zstd"}])
def test_fetch_one(client, tree, digest, chunk_bytes, compress):
    for name in ("empty", "one", "big", "sub/Grüße"):
        assert client.fetch_whole(name, digest=digest, chunk_bytes=chunk_bytes, **compress) == tree[1][name], name


def test_fetch_many_in_order(client, tree):
    names = sorted(tree[1])
    files = client.fetch([{"path": name} for name in names] + [{"path": "missing"}, {"path": "sub"}])
    for name, file in zip(names, files):
        assert file.over == "end" and file.content == tree[1][name], name
        assert file.digest == blake3.blake3(tree[1][name]).hexdigest(), name
    assert [file.over for file in files[-2:]] == ["not-found", "not-a-file"]


def test_ranges(client, tree):
    big = tree[1]["big"]
    ranges = [[0, 10], [1_000_000, 2_000_000], [len(big) - 5, 100]]
    [file] = client.fetch([{"path": "big", "ranges": ranges}], digest="none")
    for offset, length in ranges:
        assert file.content[offset : offset + length] == big[offset : offset + length]
    assert file.received_bytes == 10 + 2_000_000 + 5


def test_ranges_of_the_client_are_not_sent_again(client, tree):
    root, contents = tree
    stat = (root / "big").stat()
    mtime = [stat.st_mtime_ns // 10**9, stat.st_mtime_ns % 10**9]
    digest = blake3.blake3(contents["big"]).hexdigest()
    for unless, over in (
        ({"size": stat.st_size, "mtime": mtime}, "same"),
        ({"size": stat.st_size + 1, "mtime": mtime}, "end"),
        ({"size": stat.st_size, "mtime": [mtime[0] + 1, mtime[1]]}, "end"),
        ({"digest": digest}, "same"),
        ({"digest": "0" * 64}, "end"),
    ):
        [file] = client.fetch([{"path": "big", "unless": unless}])
        assert file.over == over, unless


def test_compression_shrinks(serve, connected, tmp_path):
    source = tmp_path / "text"
    source.write_bytes(b"all work and no play\n" * 100_000)
    client = Client(connected(serve(source)))
    [file] = client.fetch([{"path": "text"}], compress="zstd")
    assert file.content == source.read_bytes()
    assert file.received_bytes < len(file.content) / 10


def test_holes_are_not_sent(serve, connected, tmp_path):
    source = tmp_path / "sparse"
    with open(source, "wb") as file:
        file.write(b"begin")
        file.seek(20_000_000)
        file.write(b"end")
    client = Client(connected(serve(source)))
    [file] = client.fetch([{"path": "sparse"}])
    assert file.content == source.read_bytes()
    assert file.digest == blake3.blake3(file.content).hexdigest()
    assert file.metadata["sparse"] is True
    assert file.received_bytes < 1 << 20


def test_leaves_merge_to_the_digest(client, tree):
    big = tree[1]["big"]
    [file] = client.fetch([{"path": "big"}], digest="now")
    leaf_bytes = file.metadata["leaf_bytes"]
    assert leaf_bytes == 1 << 20
    values = client.leaves("big", file.digest)
    assert len(values) == 6
    assert blake3_tree.merge(values, True).hex() == file.digest
    # The last leaf is short, and cheap enough for Python.
    assert blake3_tree.subtree_value(big[5 * leaf_bytes :], 5 * leaf_bytes) == values[5]
    with pytest.raises(ProtocolError, match="changed"):
        client.leaves("big", "0" * 64)


def test_credit_is_respected(client, tree):
    client.send(op="fetch", id=77, files=[{"path": "big"}], digest="none", chunk_bytes=65_536)
    assert client.control()[0]["re"] == "files"
    received = 0

    def next_answer() -> dict | None:
        """The next message, unless it is data."""
        nonlocal received
        frames = client.socket.recv_multipart()
        if frames[0] == b"TOW1":
            return json.loads(frames[1])
        received += sum(map(len, frames[1:]))

    def answered(re: str, **request) -> None:
        client.send(**request)
        while (answer := next_answer()) is None:
            pass
        assert answer["re"] == re

    given = 0
    # A piece is cut to what is left. What comes over the credit comes before what the next one lets come, at the latest.
    for credit in (100_000, 65_536, 1000, 256, 300_000):
        answered("hello", op="hello")
        assert received == given
        client.send(op="credit", bytes=credit)
        given += credit
        while received < given:
            assert next_answer() is None
        assert received == given
    # And before this answer, after which nothing of it comes.
    answered("cancelled", op="cancel", id=77)
    assert received == given


def test_several_requests_at_once(client, tree):
    names = ["big", "exact", "sub/folder/inner"]
    for request_id, name in enumerate(names):
        client.send(op="fetch", id=request_id, files=[{"path": name}], digest="none", credit_bytes=2 << 20)
    received, done = {n: bytearray() for n in range(3)}, 0
    while done < 3:
        frames = client.socket.recv_multipart()
        if frames[0] == b"TOW1":
            done += json.loads(frames[1])["re"] == "done"
            continue
        (request_id,) = struct.unpack_from(">I", frames[0], 8)
        for entry, body in zip(ENTRY.iter_unpack(frames[0][12:]), frames[1:], strict=True):
            assert entry[2] == len(received[request_id]), "the pieces of a file come in ascending order"
            received[request_id] += body
        client.send(op="credit", bytes=max(256, sum(map(len, frames[1:]))))
    assert [bytes(received[n]) for n in range(3)] == [tree[1][name] for name in names]


def test_confirmation_is_logged(serve, connected, tree):
    server = serve(tree[0])
    client = Client(connected(server))
    [file] = client.fetch([{"path": "one"}])
    confirmed = [{"n": 0, "path": "one", "digest": file.digest, "durable": False}]
    client.send(op="confirm", id=client.last_id, files=confirmed)
    assert client.ask(op="hello")["re"] == "hello"
    assert "one" in server.log() and file.digest[:8] in server.log()


@pytest.mark.parametrize("options", [{}, {"REQ_CORRELATE": 1}])
def test_req_sockets_get_single_replies(serve, connected, tree, options):
    client = Client(connected(serve(tree[0]), zmq.REQ, **options))
    assert client.ask(op="hello")["protocol"] == 1
    assert len(client.listing(path="many")) == 50


def test_unknown_members_and_operations_are_tolerated(client):
    assert client.ask(op="hello", novelty={"a": [1, 2]})["re"] == "hello"
    with pytest.raises(ProtocolError, match="unsupported"):
        client.ask(op="teleport", id=1)
