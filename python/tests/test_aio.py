"""`towpath.aio` against `tow`: the same as its twins, on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os

import pytest
import towpath
from conftest import DEADLINE_SECONDS
from test_files import contents_of, tree  # noqa: F401
from towpath import aio


def run(coroutine):
    """Runs a coroutine to its end; nothing waits for ever."""
    return asyncio.run(asyncio.wait_for(coroutine, DEADLINE_SECONDS))


async def until(condition, what):
    for _ in range(DEADLINE_SECONDS * 100):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain until {what}")


@contextlib.asynccontextmanager
async def working(server, service, handler, **options):
    """A worker on this loop."""
    work = aio.Worker(service, handler, connect=server.endpoint, **options)
    task = asyncio.ensure_future(work.run())
    try:
        yield work
    finally:
        work.stop()
        await task


async def echo(body, request):
    return body


async def waiting(client, service):
    return sum(queue["waiting"] for queue in json.loads((await client.call_frames("mmi.queue", service))[1]))


def test_calls_maps_and_streams(broker):
    server = broker()

    async def parts(body, request):
        for part in (b"one", b"two"):
            yield part

    async def test():
        async with aio.Client(server.endpoint, timeout=DEADLINE_SECONDS) as client:
            async with working(server, "echo", echo, jobs=100), working(server, "parts", parts):
                assert await client.call("echo", b"hello") == b"hello"
                assert await client.call("echo", b"x" * 3_000_000) == b"x" * 3_000_000
                calls = [client.call("echo", b"%d" % n) for n in range(2_000)]
                assert await asyncio.gather(*calls) == [b"%d" % n for n in range(2_000)]
                bodies = [b"%d" % n for n in range(3_000)]
                assert [reply async for reply in client.map("echo", bodies, ahead=100)] == bodies
                assert [part async for part in client.stream("parts")] == [b"one", b"two"]
                assert await client.call("parts") == b"onetwo"

    run(test())


def test_errors_and_cancelling(broker):
    server = broker()

    async def handler(body, request):
        if body == b"later" and request.attempt == 1:
            raise towpath.RetryLater("not yet")
        if body == b"broken":
            raise ValueError("no such picture")
        return b"%d" % request.attempt

    async def test():
        async with aio.Client(server.endpoint, timeout=DEADLINE_SECONDS) as client:
            async with working(server, "try", handler):
                with pytest.raises(towpath.WorkerFailed, match="ValueError: no such picture"):
                    await client.call("try", b"broken")
                assert await client.call("try", b"later") == b"2"
                outcomes = [outcome async for outcome in client.map("try", [b"broken", b""], return_errors=True)]
                assert [type(outcome) for outcome in outcomes] == [towpath.WorkerFailed, bytes]
            # Whether the broker's word comes before our own deadline, a busy machine decides.
            with pytest.raises((towpath.Expired, towpath.TimedOut)):
                await client.call("nobody", timeout=0.2)
            task = asyncio.ensure_future(client.call("nobody"))

            async def is_waiting():
                return await waiting(client, b"nobody") == 1

            async def is_gone():
                return await waiting(client, b"nobody") == 0

            await until(is_waiting, "it is queued")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(is_gone, "the broker has it no more")
        with pytest.raises(towpath.Closed):
            await client.call("nobody")

    run(test())


def test_cancelled_requests_cancel_their_tasks(broker):
    server = broker()

    async def test():
        began, ended = asyncio.Event(), asyncio.Event()

        async def long(body, request):
            began.set()
            try:
                await asyncio.sleep(DEADLINE_SECONDS)
            finally:
                ended.set()

        async with aio.Client(server.endpoint, timeout=DEADLINE_SECONDS) as client, working(server, "long", long):
            task = asyncio.ensure_future(client.call("long"))
            await began.wait()
            task.cancel()
            await ended.wait()

    run(test())


def test_requests_survive_a_kill_of_the_broker(broker, tmp_path):
    server = broker("--journal", tmp_path / "journal")

    async def test():
        async with aio.Client(server.endpoint, timeout=DEADLINE_SECONDS) as client:
            tasks = [asyncio.ensure_future(client.call("echo", b"%d" % n)) for n in range(1_000)]

            async def are_waiting():
                return await waiting(client, b"echo") == 1_000

            await until(are_waiting, "all are queued")
            server.kill()
            server.start()
            async with working(server, "echo", echo, jobs=10):
                assert await asyncio.gather(*tasks) == [b"%d" % n for n in range(1_000)]

    run(test())


def test_files(serve, tree, tmp_path):  # noqa: F811
    root, contents = tree
    (root / "in").mkdir()
    server = serve(root, "--watch", "--settle", "100ms", "--accept-push", "in")

    async def test():
        async with aio.Files(server.endpoint, timeout=DEADLINE_SECONDS) as files:
            listed = [entry.path async for entry in files.list(recursive=True) if entry.type == "file"]
            assert set(listed) == set(contents)
            assert await files.read("big") == contents["big"]
            assert (await files.stat("big")).size == len(contents["big"])
            with pytest.raises(towpath.NotFound):
                await files.read("nothing")
            assert await files.read("sparse") == contents["sparse"]
            await files.get("many", tmp_path / "copy")
            assert contents_of(tmp_path / "copy") == {name[5:]: data for name, data in contents.items() if name.startswith("many/")}
            kinds = []
            async for event in files.follow("in"):
                kinds.append((event.kind, event.path))
                if event.kind == "up-to-date" and ("new", "in/one") in kinds:
                    break
                if len(kinds) == 2:
                    await files.push(root / "one", "in/")
            assert kinds[0] == ("new", "in")

    run(test())


def test_wrong_keys(broker, serve, tree, keys, tmp_path):  # noqa: F811
    wrong = {"key": tmp_path / "eve_secret", "server_key": tmp_path / "server"}
    server, files_server = broker(*keys), serve(tree[0], *keys)

    async def test():
        async with aio.Client(server.endpoint, timeout=DEADLINE_SECONDS, **wrong) as client:
            with pytest.raises(towpath.WrongKey):
                await client.call("echo")
        async with aio.Files(files_server.endpoint, **wrong) as files:
            with pytest.raises(towpath.WrongKey):
                await files.read("one")
        with pytest.raises(towpath.WrongKey):
            await aio.Worker("echo", echo, connect=server.endpoint, **wrong).run()

    run(test())


def test_a_loop_that_cannot_watch_descriptors(broker, monkeypatch):
    server = broker()

    def add_reader(self, *arguments):
        raise NotImplementedError

    async def test():
        monkeypatch.setattr(type(asyncio.get_running_loop()), "add_reader", add_reader)
        async with aio.Client(server.endpoint, timeout=DEADLINE_SECONDS) as client, working(server, "echo", echo):
            assert [await client.call("echo", b"%d" % n) for n in range(20)] == [b"%d" % n for n in range(20)]

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(test(), DEADLINE_SECONDS))
    finally:
        monkeypatch.undo()
        loop.close()


def test_twins_have_the_same_methods():
    """What is public here is public there, with the same parameters, but for what threads or loops alone need."""
    import inspect

    for ours, theirs, only_there in [
        (aio.Client, towpath.Client, {"submit"}),
        (aio.Worker, towpath.Worker, set()),
        (aio.Files, towpath.Files, {"open", "exists", "versions", "ask"}),
    ]:
        here, there = ({name for name in dir(kind) if not name.startswith("_")} for kind in (ours, theirs))
        assert here == there - only_there
        for name in here:
            one, other = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (ours, theirs))
            assert one == other or "options" in one, name
