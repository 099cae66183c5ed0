"""`towpath.Files` against `tow serve`."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import tarfile
import threading
import types
import zipfile

import blake3
import pytest
import towpath
from conftest import DEADLINE_SECONDS, TOW, wait_until
from towpath import Files


@pytest.fixture
def tree(tmp_path):
    """A directory to serve, with random files of many sizes, and their contents."""
    rng = random.Random(4)
    root = tmp_path / "served"
    contents = {
        "empty": b"",
        "one": b"1",
        "leaf": rng.randbytes(1 << 20),
        "big": rng.randbytes(12 * (1 << 20) + 12_345),
        "sub/folder/inner": rng.randbytes(70_000),
        "sub/Grüße": "not only ASCII".encode(),
        **{f"many/{n}": rng.randbytes(n * 97) for n in range(60)},
    }
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    os.symlink("inner", root / "sub/folder/link")
    os.symlink("../../..", root / "sub/out")
    (root / "sparse").write_bytes(b"begin")
    os.truncate(root / "sparse", 5 << 20)
    contents["sparse"] = b"begin" + bytes((5 << 20) - 5)
    return root, contents


@pytest.fixture
def files(serve, tree):
    with Files(serve(tree[0]).endpoint, timeout=DEADLINE_SECONDS) as files:
        yield files


def contents_of(folder):
    found = {}
    for place in sorted(folder.rglob("*")):
        if place.is_file() and not place.is_symlink():
            found[place.relative_to(folder).as_posix()] = place.read_bytes()
    return found


def test_listings(files, tree):
    entries = {entry.path: entry for entry in files.list(recursive=True, digest=True)}
    assert {path for path, entry in entries.items() if entry.type == "file"} == set(tree[1])
    assert entries["big"].digest == blake3.blake3(tree[1]["big"]).hexdigest()
    assert entries["big"].size == len(tree[1]["big"])
    assert entries["big"].mtime_ns == (tree[0] / "big").stat().st_mtime_ns
    assert entries["sub/folder/link"].target == "inner"
    assert entries["sub"].is_dir and entries["sub/Grüße"].name == "Grüße"
    assert sorted(entry.path for entry in files.list(glob="many/1?")) == [f"many/{n}" for n in range(10, 20)]
    assert [entry.path for entry in files.list("sub")] == ["sub/Grüße", "sub/folder", "sub/out"]
    assert files.stat("sub").is_dir and files.stat().is_dir and files.stat("many/").is_dir
    assert files.stat("sub/folder/link").size == 70_000
    assert files.stat("sub/folder/link", follow_links=False).type == "link"
    assert files.exists("one") and not files.exists("two")
    with pytest.raises(FileNotFoundError):
        files.stat("two")
    for wrong in ("../x", "a//b", "a/./b"):
        with pytest.raises(ValueError):
            files.stat(wrong)


def test_files_are_read_whole_and_in_parts(files, tree):
    for name, data in tree[1].items():
        assert files.read(name) == data, name
    big = tree[1]["big"]
    with files.open("big") as file:
        assert isinstance(file, io.RawIOBase) and file.size == len(big)
        buffer = bytearray(3_000_000)
        file.seek(5_000_000)
        assert file.readinto(buffer) == len(buffer) and buffer == big[5_000_000:8_000_000]
        assert file.read(10) == big[8_000_000:8_000_010]
        rng = random.Random(7)
        for _ in range(50):
            at, count = rng.randrange(len(big)), rng.randrange(300_000)
            file.seek(at)
            assert file.read(count) == big[at : at + count]
        file.seek(-5, io.SEEK_END)
        assert file.read() == big[-5:]
        assert file.read() == b""
        file.seek(len(big) + 100)
        assert file.read(5) == b""
    with pytest.raises(ValueError):
        file.read()
    with pytest.raises(towpath.NotFound):
        files.open("nothing")
    with pytest.raises(IsADirectoryError):
        files.read("sub")


def test_archives_are_read_from_the_server(files, tree):
    with tarfile.open(tree[0] / "archive.tar", "w") as archive:
        archive.add(tree[0] / "many", "many")
    with zipfile.ZipFile(tree[0] / "archive.zip", "w") as archive:
        for n in range(20):
            archive.write(tree[0] / f"many/{n}", f"{n}")
    with files.open("archive.tar") as file, tarfile.open(fileobj=file) as archive:
        assert archive.extractfile("many/7").read() == tree[1]["many/7"]
    with files.open("archive.zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.read("13") == tree[1]["many/13"]


def test_a_file_that_is_replaced_while_it_is_open_is_noticed(files, tree):
    with files.open("big") as file:
        file.read(100)
        (tree[0] / "new").write_bytes(b"another" * 1_000_000)
        os.replace(tree[0] / "new", tree[0] / "big")
        file.seek(6_000_000)
        with pytest.raises(towpath.Changed):
            file.read(1 << 20)


def test_an_open_file_outlives_a_connection(serve, tree):
    server = serve(tree[0])
    with Files(server.endpoint, timeout=DEADLINE_SECONDS) as files, files.open("big") as file:
        assert file.read(1000) == tree[1]["big"][:1000]
        server.kill()
        server.start()
        assert file.read() == tree[1]["big"][1000:]
        file.seek(0)
        server.kill()
        with pytest.raises(towpath.ConnectFailed):
            file.read()


def test_trees_are_copied(files, tree, tmp_path):
    copy = tmp_path / "copy"
    seen = []
    done = files.get("", copy, progress=lambda progress: seen.append((progress.bytes, progress.total_bytes)))
    assert contents_of(copy) == tree[1]
    total = sum(map(len, tree[1].values()))
    assert (done.files, done.total_files, done.bytes, done.total_bytes) == (len(tree[1]), len(tree[1]), total, total)
    assert seen[-1] == (total, total)
    assert os.readlink(copy / "sub/folder/link") == "inner"
    # A link that leads out is left out, and said.
    assert not os.path.lexists(copy / "sub/out") and [path for path, _ in done.errors] == ["sub/out"]
    for name in ("big", "many/9", "sub/folder"):
        ours, theirs = (copy / name).stat(), (tree[0] / name).stat()
        assert (ours.st_mtime_ns, ours.st_mode & 0o777) == (theirs.st_mtime_ns, theirs.st_mode & 0o777)
    inode = (copy / "big").stat().st_ino
    (copy / "one").write_bytes(b"changed here")
    again = files.get("", copy)
    assert again.files == len(tree[1]) and (copy / "one").read_bytes() == b"1"
    assert (copy / "big").stat().st_ino == inode
    assert not list(copy.rglob(".tow-*"))
    files.get("sub/folder", tmp_path / "part")
    assert contents_of(tmp_path / "part") == {"inner": tree[1]["sub/folder/inner"]}


def test_single_files_are_copied(files, tree, tmp_path):
    files.get("big", tmp_path / "mine")
    assert (tmp_path / "mine").read_bytes() == tree[1]["big"]
    (tmp_path / "into").mkdir()
    files.get("many/9", tmp_path / "into")
    files.get("one", f"{tmp_path}/new/")
    assert (tmp_path / "into/9").read_bytes() == tree[1]["many/9"] and (tmp_path / "new/one").read_bytes() == b"1"
    with pytest.raises(towpath.NotFound):
        files.get("nothing", tmp_path / "mine")


@pytest.mark.skipif(os.name != "posix", reason="tow is for Linux")
def test_trees_are_copied_by_tow_where_it_is_there(serve, tree, keys, tmp_path, monkeypatch):
    calls = []
    program = types.ModuleType("towpath_bin")
    program.path = lambda: calls.append("tow") or TOW
    monkeypatch.setitem(sys.modules, "towpath_bin", program)
    options = {"key": tmp_path / "alice_secret", "server_key": tmp_path / "server"}
    with Files(serve(tree[0], *keys).endpoint, timeout=DEADLINE_SECONDS, **options) as files:
        done = files.get("", tmp_path / "copy")
        assert calls and contents_of(tmp_path / "copy") == tree[1]
        assert (done.files, [path for path, _ in done.errors]) == (len(tree[1]), ["sub/out"])
        files.get("one", tmp_path / "mine")
        assert (tmp_path / "mine").read_bytes() == b"1"
        (tmp_path / "file").touch()
        with pytest.raises(towpath.TowpathError):
            files.get("many", tmp_path / "file/below")
        with pytest.raises(towpath.NotFound):
            files.get("nothing", tmp_path / "copy")


class Interrupted(Exception):
    pass


def test_an_interrupted_copy_is_resumed(files, tree, tmp_path):
    def interrupt(progress):
        if progress.bytes > 4 << 20:
            raise Interrupted

    with pytest.raises(Interrupted):
        files.get("big", tmp_path / "mine", progress=interrupt)
    [part] = tmp_path.glob(".tow-*.part")
    had = part.stat().st_size
    assert had > 1 << 20
    first = []
    files.get("big", tmp_path / "mine", progress=lambda progress: first.append(progress.bytes))
    assert first[0] >= had
    assert (tmp_path / "mine").read_bytes() == tree[1]["big"]
    # A part that is wrong is found out, and the file is fetched again.
    (tmp_path / "mine").unlink()
    part.write_bytes(b"x" * (2 << 20))
    files.get("big", tmp_path / "mine")
    assert (tmp_path / "mine").read_bytes() == tree[1]["big"] and not part.exists()


def test_a_copy_goes_on_when_the_server_is_killed(serve, tree, tmp_path):
    server = serve(tree[0])
    was_killed = False

    def kill(progress):
        nonlocal was_killed
        if not was_killed and progress.bytes > 2 << 20:
            was_killed = True
            server.kill()
            server.start()

    with Files(server.endpoint, timeout=DEADLINE_SECONDS) as files:
        done = files.get("", tmp_path / "copy", progress=kill)
    assert was_killed and contents_of(tmp_path / "copy") == tree[1]
    assert (done.bytes, done.files) == (done.total_bytes, done.total_files)


def test_links_at_the_destination_lead_nowhere(files, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "copy/many")
    done = files.get("", tmp_path / "copy")
    assert not list((tmp_path / "outside").iterdir())
    assert "many/1" in [path for path, _ in done.errors]


def test_events_of_a_directory(serve, tree, tmp_path):
    root = tmp_path / "watched"
    root.mkdir()
    (root / "first").write_bytes(b"1")
    server = serve(root, "--watch", "--settle", "100ms")
    with Files(server.endpoint, timeout=DEADLINE_SECONDS) as files:
        events = files.follow()

        def until(wanted):
            """Events up to one of a kind."""
            seen = []
            while not seen or seen[-1].kind != wanted:
                seen.append(next(events))
            return [(event.kind, event.path) for event in seen[:-1]], seen[-1]

        assert until("up-to-date")[0] == [("new", "first")]
        (root / "second").write_bytes(b"2" * 1000)
        assert until("new")[1].entry.digest == blake3.blake3(b"2" * 1000).hexdigest()
        (root / "first").write_bytes(b"another")
        assert until("changed")[1].path == "first"
        (root / "second").unlink()
        assert until("gone")[1].path == "second"
        cursor = until("up-to-date")[1].cursor
        events.close()
        (root / "third").write_bytes(b"3")
        later = files.follow(start=cursor)
        event = next(event for event in later if event.kind != "up-to-date")
        assert (event.kind, event.path) == ("changed", "third")
        later.close()
    with Files(server.endpoint) as files, pytest.raises(towpath.FilesError):
        next(files.follow("x", start="nonsense"))


def test_a_follow_goes_on_over_a_restart(serve, tmp_path):
    root = tmp_path / "watched"
    root.mkdir()
    (root / "first").write_bytes(b"1")
    (root / "second").write_bytes(b"2")
    server = serve(root, "--watch", "--settle", "100ms")
    with Files(server.endpoint, timeout=DEADLINE_SECONDS) as files:
        seen = []
        events = files.follow()

        def collect():
            with contextlib.suppress(towpath.Closed):
                for event in events:
                    seen.append((event.kind, event.path))

        threading.Thread(target=collect, daemon=True).start()
        wait_until(lambda: ("up-to-date", "") in seen, "it is up to date")
        server.kill()
        (root / "first").unlink()
        (root / "third").write_bytes(b"3")
        seen.clear()
        server.start()
        wait_until(lambda: {("gone", "first"), ("new", "third")} <= set(seen), "the full state has shown the difference")
        server.kill()


def test_files_are_pushed(serve, tree, tmp_path):
    root, contents = tree
    (root / "in").mkdir()
    server = serve(root, "--accept-push", "in")
    with Files(server.endpoint, timeout=DEADLINE_SECONDS) as files:
        for name in ("big", "one", "empty"):
            answer = files.push(root / name, "in/")
            assert answer["digest"] == blake3.blake3(contents[name]).hexdigest()
            assert (root / "in" / name).read_bytes() == contents[name]
        assert files.push(root / "big", "in/big")["same"]
        with pytest.raises(FileExistsError):
            files.push(root / "one", "in/big", unless_exists=True)
        files.push(root / "leaf", "in/big", if_digest=blake3.blake3(contents["big"]).hexdigest())
        assert (root / "in/big").read_bytes() == contents["leaf"]
        with pytest.raises(PermissionError):
            files.push(root / "one", "elsewhere")
    with Files(serve(root).endpoint) as files, pytest.raises(towpath.Unsupported):
        files.push(root / "one", "in/one")


def test_versions(serve, tree, tmp_path):
    root, contents = tree
    server = serve(root, "--watch", "--settle", "100ms", "--accept-publish", "--state", tmp_path / "state")
    with Files(server.endpoint, timeout=DEADLINE_SECONDS) as files:
        assert files.versions("sub/folder") == []
        for event in files.follow():
            if event.kind == "up-to-date":
                break
        for label in ("v1", "v2"):
            files.ask("publish", path="sub/folder", label=label)
        versions = files.versions("sub/folder")
        assert [version.label for version in versions] == ["v1", "v2"]
        assert files.read(f"{versions[0].tree}/sub/folder/inner") == contents["sub/folder/inner"]


def test_keys(serve, tree, keys, tmp_path):
    server = serve(tree[0], *keys)
    right = {"key": tmp_path / "alice_secret", "server_key": tmp_path / "server"}
    with Files(server.endpoint, timeout=DEADLINE_SECONDS, **right) as files:
        assert files.read("big") == tree[1]["big"]
    for wrong in ({**right, "key": tmp_path / "eve_secret"}, {**right, "server_key": tmp_path / "eve"}):
        with Files(server.endpoint, timeout=DEADLINE_SECONDS, **wrong) as files, pytest.raises(towpath.WrongKey):
            files.read("big")
    with Files(server.endpoint, timeout=DEADLINE_SECONDS) as files, pytest.raises(towpath.ConnectFailed, match="server_key="):
        files.read("big")


def test_nobody_answers(serve, broker, tree):
    with Files("127.0.0.1:1", timeout=DEADLINE_SECONDS) as files, pytest.raises(towpath.ConnectFailed, match="127.0.0.1:1"):
        files.stat()
    server = serve(tree[0])
    with Files(["127.0.0.1:1", server.endpoint], timeout=DEADLINE_SECONDS) as files:
        assert files.read("one") == b"1"
        server.pause()
        with pytest.raises(towpath.Timeout):
            files.read("one", timeout=0.2)
        server.resume()
        assert files.read("one") == b"1"
    with Files(broker().endpoint, timeout=2) as files, pytest.raises(towpath.TowpathError):
        files.stat()


def test_threads_and_forks_share_files(files, tree):
    results = []
    threads = [threading.Thread(target=lambda: results.append(files.read("leaf") == tree[1]["leaf"])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert results == [True] * 6
    if hasattr(os, "fork"):
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if files.read("one") == b"1" else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    assert files.read("one") == b"1"
