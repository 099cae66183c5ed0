"""The same clients, workers and files for asyncio.

Everything belongs to the event loop that is running when it is made, and is used on its thread alone. Cancelling a task cancels its request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, AsyncGenerator, AsyncIterator, Callable, Deque, Dict, Iterable, List, Sequence, Set, Tuple, Type, cast

import blake3

from . import client as _sync
from . import files as _files
from ._bodies import Body, frames, joined, payload
from ._client_engine import ClientEngine
from ._core import records
from ._core.client import Group
from ._core.files import Digest, Ended, Entry, Fetch, List_, Metadata, Operation, Piece, clean, stat_of
from ._core.follow import Event, Follow, Known
from ._core.records import Payload, Received
from ._files_link import IDLE_MAX, FilesLink
from ._link import FILES_PORT, REQUESTS_PORT, Key, Link, Security, ServerKey, endpoints
from ._progress import Progress, Report, reporter
from ._worker_engine import Request, WorkerEngine
from .errors import Closed, ConnectFailed, FilesError, Timeout, TowpathError, VerifyFailed, WrongKey, request_error
from .worker import check_options, failure

log = logging.getLogger("towpath")


class _Watch:
    """Calls a function on the loop when a connection has something, at its deadlines, and when it is wanted.

    A descriptor reports an event only once, so `step` must take everything, and is called again after anything was sent.
    """

    def __init__(self, link: Link, step: Callable[[float], None], deadline: Callable[[], "float | None"]) -> None:
        self._loop = asyncio.get_running_loop()
        self._link, self._step, self._deadline = link, step, deadline
        self._watched: Tuple[int, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._is_wanted = False
        self._is_closed = False

    def want(self) -> None:
        """Calls `step` soon: once for all that is wanted until then."""
        if not self._is_wanted:
            self._is_wanted = True
            self._loop.call_soon(self._run)

    def _readable(self, descriptor: int) -> None:
        self._link.readable((descriptor,))
        self._run()

    def _run(self) -> None:
        self._is_wanted = False
        if self._is_closed:
            return
        self._step(time.monotonic())
        if self._is_closed:
            return
        if self._link.descriptors != self._watched:
            self._unwatch()
            self._watched = self._link.descriptors
            for descriptor in self._watched:
                _add_reader(self._loop, descriptor, self._readable)
            # What was reported before anybody watched.
            self._link.readable(self._watched)
            self.want()
        due = self._deadline()
        # A timer that is early costs less than setting it anew for each request.
        if due is not None and (self._timer is None or due < self._due):
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._run()

    def _unwatch(self) -> None:
        for descriptor in self._watched:
            _remove_reader(self._loop, descriptor)
        self._watched = ()

    def close(self) -> None:
        self._is_closed = True
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()


_pollers: Dict[int, threading.Event] = {}


def _add_reader(loop: asyncio.AbstractEventLoop, descriptor: int, call: Callable[[int], None]) -> None:
    """Watches a descriptor; on a thread, where the loop can't (Windows' proactor)."""
    try:
        loop.add_reader(descriptor, call, descriptor)
    except NotImplementedError:
        ended = _pollers[descriptor] = threading.Event()
        threading.Thread(target=_poll, args=(loop, descriptor, call, ended), daemon=True, name="towpath-poll").start()


def _remove_reader(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    ended = _pollers.pop(descriptor, None)
    if ended is not None:
        ended.set()
    else:
        loop.remove_reader(descriptor)


def _poll(loop: asyncio.AbstractEventLoop, descriptor: int, call: Callable[[int], None], ended: threading.Event) -> None:
    while not ended.is_set() and not loop.is_closed():
        try:
            readable = select.select([descriptor], [], [], 0.1)[0]
        except (OSError, ValueError):
            return
        if readable and not ended.is_set():
            taken = threading.Event()

            def take() -> None:
                if not ended.is_set():
                    call(descriptor)
                taken.set()

            try:
                loop.call_soon_threadsafe(take)
            except RuntimeError:
                return
            while not taken.wait(0.1) and not loop.is_closed() and not ended.is_set():
                pass


class _One(Group):
    """One request, whose outcome goes to a future."""

    __slots__ = ("future", "parts", "first")

    def __init__(self, service: bytes, body: Payload, deadline: float | None, volatile: bool, future: asyncio.Future[Received]) -> None:
        super().__init__(service, (body,), deadline, volatile)
        self.future = future
        self.parts: List[Received] | None = None
        self.first = 0

    def take(self, index: int, status: int, part: int | None, body: Received) -> None:
        if part is not None:
            self.parts = [body] if part == 0 or self.parts is None else [*self.parts, body]
        elif self.future.done():
            pass
        elif status != 200:
            self.future.set_exception(_sync.outcome_error(status, body))
        else:
            self.future.set_result(body if self.parts is None else b"".join(map(joined, [*self.parts, body])))


class _Stream(Group):
    """One request, whose reply is taken in parts."""

    __slots__ = ("arrived", "first")

    def __init__(self, service: bytes, body: Payload, deadline: float | None, volatile: bool) -> None:
        super().__init__(service, (body,), deadline, volatile)
        self.arrived: asyncio.Queue[Tuple[int, int | None, Received]] = asyncio.Queue()
        self.first = 0

    def take(self, index: int, status: int, part: int | None, body: Received) -> None:
        self.arrived.put_nowait((status, part, body))


class Client:
    """Sends requests to services, as `towpath.Client` does, on an event loop. All arguments and errors are the same."""

    def __init__(
        self,
        endpoints: str | Sequence[str] = "localhost",
        *,
        timeout: float | None = None,
        key: Key | None = None,
        server_key: ServerKey | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._engine = ClientEngine(_broker_endpoints(endpoints), Security(key, server_key, user, password))
        self._watch = _Watch(self._engine.link, self._step, self._engine.deadline)
        self._services: Dict["str | bytes", bytes] = {}
        self._space: Deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self._watch.want()

    def _step(self, now: float) -> None:
        self._engine.step(now)
        while self._space and self._has_space():
            waiter = self._space.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _has_space(self) -> bool:
        session = self._engine.session
        return session.outstanding < _sync.OUTSTANDING_MAX and session.outstanding_bytes < _sync.OUTSTANDING_BYTES_MAX

    async def _submit(self, group: "_One | _Stream") -> None:
        while not self._has_space():
            waiter = self._loop.create_future()
            self._space.append(waiter)
            await waiter
        if self._is_closed:
            raise Closed("the client is closed")
        group.first = self._engine.session.submit(group)
        self._watch.want()

    def _arguments(self, service: str | bytes, timeout: float | None) -> Tuple[bytes, float | None]:
        name = self._services.get(service)
        if name is None:
            name = records.service_name(service)
            if len(self._services) < 1000:
                self._services[service] = name
        timeout = self._timeout if timeout is None else timeout
        return name, None if timeout is None else time.monotonic() + timeout

    async def call(self, service: str | bytes, body: Body = b"", *, timeout: float | None = None, volatile: bool = False) -> bytes:
        """Sends a request and returns the reply; one in several frames or parts is joined. Cancelling the task cancels the request."""
        received = await self._call(service, body, timeout, volatile)
        return received if isinstance(received, bytes) else joined(received)

    async def call_frames(
        self, service: str | bytes, body: Body = b"", *, timeout: float | None = None, volatile: bool = False
    ) -> List[bytes]:
        """The same as `call`, but returns the frames of the reply."""
        return frames(await self._call(service, body, timeout, volatile))

    async def _call(self, service: str | bytes, body: Body, timeout: float | None, volatile: bool) -> Received:
        name, deadline = self._arguments(service, timeout)
        future: asyncio.Future[Received] = self._loop.create_future()
        one = _One(name, body if type(body) is bytes else payload(body), deadline, volatile, future)
        await self._submit(one)
        try:
            return await future
        except asyncio.CancelledError:
            self._cancel(one)
            raise

    def _cancel(self, group: "_One | _Stream") -> None:
        if not self._is_closed:
            self._engine.session.cancel_group(group.first, group, time.monotonic())
            self._watch.want()

    async def stream(
        self, service: str | bytes, body: Body = b"", *, timeout: float | None = None, volatile: bool = False
    ) -> AsyncIterator[bytes]:
        """Sends a request and yields the parts of the reply as they come, its end last. Lost: the connection ended after the first part."""
        name, deadline = self._arguments(service, timeout)
        stream = _Stream(name, payload(body), deadline, volatile)
        await self._submit(stream)
        count, is_over = 0, False
        try:
            while not is_over:
                status, part, received = await stream.arrived.get()
                is_over = part is None
                if is_over and status != 200:
                    raise _sync.outcome_error(status, received)
                if part == 0 and count:
                    raise request_error(410, "the connection was lost in the middle of the reply")
                count += 1
                if received or not is_over:
                    yield joined(received)
        finally:
            if not is_over:
                self._cancel(stream)

    async def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body],
        *,
        ahead: int = 1000,
        timeout: float | None = None,
        volatile: bool = False,
        return_errors: bool = False,
    ) -> AsyncIterator[Any]:
        """Sends a request for each body, `ahead` of them at a time, and yields the replies in the order of the bodies.

        return_errors: yield the error of a request that fails in the place of its reply. Without it, the first that fails raises, and the
        others are cancelled.
        """
        source = iter(bodies)
        ones: Deque[_One] = deque()
        try:
            is_over = False
            while True:
                while not is_over and len(ones) < ahead:
                    try:
                        body = next(source)
                    except StopIteration:
                        is_over = True
                        break
                    name, deadline = self._arguments(service, timeout)
                    one = _One(name, payload(body), deadline, volatile, self._loop.create_future())
                    await self._submit(one)
                    ones.append(one)
                if not ones:
                    return
                future = ones[0].future
                try:
                    outcome: Any = joined(future.result() if future.done() else await future)
                except TowpathError as error:
                    if not return_errors:
                        raise
                    outcome = error
                ones.popleft()
                yield outcome
        finally:
            for one in ones:
                one.future.cancel()
                self._cancel(one)

    async def close(self) -> None:
        """Cancels what is outstanding, and closes the connection."""
        if self._is_closed:
            return
        now = time.monotonic()
        self._engine.session.end_all(now, 499, "the client was closed")
        self._is_closed = True
        self._watch.close()
        for seconds in self._engine.close(now):
            await asyncio.sleep(seconds)
        for waiter in self._space:
            waiter.cancel()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: Type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


# Takes a body and the request; a coroutine function that returns the reply, or an async generator of its parts.
AsyncHandler = Callable[[bytes, Request], Any]


class Worker:
    """Serves one service with coroutines, as `towpath.Worker` does with threads: at most `jobs` at a time from each broker.

    handler: a coroutine function of body and request that returns the reply, or an async generator, whose items are sent as parts. The
    task of a request is cancelled when nobody wants its reply any more.
    """

    def __init__(
        self,
        service: str | bytes,
        handler: AsyncHandler,
        *,
        connect: str | Sequence[str] = "localhost",
        jobs: int = 1,
        key: Key | None = None,
        server_key: ServerKey | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._handler = handler
        self._credit = check_options(jobs, None)
        self._service = records.service_name(service)
        self._endpoints = _broker_endpoints(connect)
        self._security = Security(key, server_key, user, password)
        self._is_stopping = False
        self._ended: asyncio.Future[None] | None = None
        self._engines: List[WorkerEngine] = []
        self._watches: List[_Watch] = []
        self._tasks: Dict[Request, asyncio.Task[None]] = {}

    def __call__(self, body: bytes, request: Request) -> Any:
        """Calls the handler itself, as tests do."""
        return self._handler(body, request)

    def stop(self) -> None:
        """Takes no more requests; `run` returns when those that were taken are finished."""
        self._is_stopping = True
        for engine, watch in zip(self._engines, self._watches):
            engine.session.leave()
            watch.want()

    async def run(self) -> None:
        """Serves until `stop`. Cancelling its task drops what is in progress, which the broker gives to other workers."""
        self._ended = asyncio.get_running_loop().create_future()
        for name in self._endpoints:
            engine = WorkerEngine(name, self._security, self._service, self._credit, self._give, self._cancelled)
            self._engines.append(engine)
            self._watches.append(_Watch(engine.link, lambda now, engine=engine: self._step(engine, now), engine.deadline))  # type: ignore[misc]
        if self._is_stopping:
            self.stop()
        for watch in self._watches:
            watch.want()
        try:
            await self._ended
        finally:
            for watch in self._watches:
                watch.close()
            for engine in self._engines:
                engine.link.close(5000)
            for task in list(self._tasks.values()):
                task.cancel()
            self._engines, self._watches = [], []

    def _step(self, engine: WorkerEngine, now: float) -> None:
        assert self._ended is not None
        engine.step(now)
        if self._ended.done():
            return
        if all(engine.link.refused_by_all for engine in self._engines):
            self._ended.set_exception(WrongKey("; ".join(engine.link.failure for engine in self._engines)))
        elif self._is_stopping and not any(engine.session.held for engine in self._engines):
            self._ended.set_result(None)

    def _give(self, request: Request) -> None:
        self._tasks[request] = asyncio.get_running_loop().create_task(self._handle(request))

    def _cancelled(self, request: Request) -> None:
        task = self._tasks.pop(request, None)
        if task is not None:
            task.cancel()

    async def _handle(self, request: Request) -> None:
        engine = request.engine
        watch = self._watches[self._engines.index(engine)]
        status: int | None = 200
        body: Payload = b""
        try:
            reply = self._handler(joined(request.body), request)
            if hasattr(reply, "__anext__"):
                number = 0
                async for part in reply:
                    engine.reply(request, 200, number, payload(part))
                    number += 1
                    watch.want()
            else:
                reply = await reply
                body = b"" if reply is None else payload(reply)
        except Exception as error:
            status, body = failure(error, request)
        self._tasks.pop(request, None)
        if status is None:
            engine.give_back(request, bytes(body).decode(errors="replace"))
        else:
            engine.reply(request, status, None, body)
        watch.want()


def worker(service: str | bytes, **options: Any) -> Callable[[AsyncHandler], Worker]:
    """Decorator that makes a coroutine function the handler of a `Worker`, whose options it takes."""
    return lambda handler: Worker(service, handler, **options)


class _Connection(FilesLink):
    """A connection of one operation."""

    def __init__(self, names: Sequence[str], security: Security) -> None:
        super().__init__(names, security)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._watch = _Watch(self.link, self._on_step, self.link.deadline)
        self._watch.want()

    def _on_step(self, now: float) -> None:
        try:
            self.step(now)
        except ConnectFailed as error:
            self._error = error
        if self._waiter is not None and not self._waiter.done() and (self._error or self.link.is_up):
            self._waiter.set_result(None)

    async def _wait(self, timeout: float | None) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await asyncio.wait_for(self._waiter, timeout)
        except asyncio.TimeoutError:
            raise Timeout(f"{self.link.endpoint}: nothing came for {timeout:g} s") from None
        finally:
            self._waiter = None
        if self._error is not None:
            raise self._error

    async def send_all(self, messages: Sequence[Sequence[Any]], timeout: float | None) -> None:
        while not self.link.is_up:
            await self._wait(timeout)
        for message in messages:
            self.link.send(message)

    async def receive(self, timeout: float | None) -> List[Any]:
        while True:
            message = self.link.receive_views()
            if message is not None:
                return message
            await self._wait(timeout)

    def close(self, linger_ms: int = 0) -> None:
        self._watch.close()
        super().close(linger_ms)


class Files:
    """Files of a server, as `towpath.Files`, on an event loop. Copies and pushes run on threads, since disks have no other way."""

    def __init__(
        self,
        endpoints: str | Sequence[str] = "localhost",
        *,
        timeout: float | None = _files.TIMEOUT_SECONDS,
        key: Key | None = None,
        server_key: ServerKey | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._names = _file_endpoints(endpoints)
        self._security = Security(key, server_key, user, password)
        self._timeout = timeout
        self._open: Set[_Connection] = set()
        self._idle: List[_Connection] = []
        self._on_threads = _files.Files(endpoints, timeout=timeout, key=key, server_key=server_key, user=user, password=password)

    def _take(self) -> _Connection:
        """An idle connection that still is there, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.link.is_up:
                return connection
            connection.close()
        return _Connection(self._names, self._security)

    async def _run(self, make: Callable[[_Connection], Operation], timeout: float | None) -> AsyncGenerator[Any, None]:
        connection = self._take()
        self._open.add(connection)
        is_clean = False
        try:
            operation = make(connection)
            await connection.send_all(operation.take(), timeout)
            while not operation.is_over:
                message = await connection.receive(timeout)
                try:
                    events = operation.feed(message)
                except FilesError:
                    is_clean = operation.is_over
                    raise
                await connection.send_all(operation.take(), timeout)
                for event in events:
                    yield event
            is_clean = True
        finally:
            self._open.discard(connection)
            if is_clean and len(self._idle) < IDLE_MAX and connection.link.is_up:
                self._idle.append(connection)
            else:
                connection.close()

    def _or_default(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def list(
        self,
        path: _files.RemotePath = "",
        *,
        recursive: bool = False,
        glob: str | None = None,
        digest: bool = False,
        follow_links: str | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[Entry]:
        """Entries, as of `towpath.Files.list`."""
        where = None if glob is not None else clean(os.fspath(path))

        def make(connection: _Connection) -> List_:
            return List_(connection.next_id(), path=where, glob=glob, recursive=recursive, digest=digest, follow_links=follow_links)

        return self._run(make, self._or_default(timeout))

    async def stat(
        self, path: _files.RemotePath = "", *, digest: bool = False, follow_links: bool = True, timeout: float | None = None
    ) -> Entry:
        """The entry of a file or directory, as of `towpath.Files.stat`."""
        made: List[List_] = []

        def make(connection: _Connection) -> List_:
            made.append(stat_of(connection.next_id(), clean(os.fspath(path)), digest, follow_links))
            return made[0]

        entries = self._run(make, self._or_default(timeout))
        try:
            async for entry in entries:
                return made[0].entry(entry)
        finally:
            await entries.aclose()
        return made[0].entry(None)

    async def read(self, path: _files.RemotePath, *, timeout: float | None = None) -> bytes:
        """The content of a file, verified by its digest."""
        where = clean(os.fspath(path))
        content, digest = bytearray(), None

        def make(connection: _Connection) -> Fetch:
            return Fetch(connection.next_id(), connection.credit, [(where, None)], window=8 << 20)

        async for event in self._run(make, self._or_default(timeout)):
            if isinstance(event, (Metadata, Digest)):
                digest = event.digest or digest
            elif isinstance(event, Piece):
                content += bytes(event.length) if event.data is None else event.data
            elif isinstance(event, Ended) and event.error is not None:
                raise event.error
        if blake3.blake3(content).hexdigest() != digest:
            raise VerifyFailed(f"{where}: the content isn't that of its digest")
        return bytes(content)

    async def follow(
        self, path: _files.RemotePath = "", *, glob: str | None = None, start: str = "beginning", reconnect: bool = True
    ) -> AsyncIterator[Event]:
        """Events of a path, as of `towpath.Files.follow`."""
        where = None if glob is not None else clean(os.fspath(path))
        known = Known(start)
        has_begun = False
        while True:
            try:
                async for event in self._run(lambda it: Follow(it.next_id(), known, path=where, glob=glob), None):
                    has_begun = True
                    yield event
            except WrongKey:
                raise
            except ConnectFailed:
                if not reconnect or not has_begun:
                    raise
                await asyncio.sleep(_files.RECONNECT_SECONDS)

    async def get(
        self, path: _files.RemotePath, destination: _files.LocalPath = ".", *, progress: bool | Report = False, timeout: float | None = None
    ) -> Progress:
        """Copies a file or a directory, as `towpath.Files.get` does, on a thread. A cancelled copy ends at its next step, and can be resumed."""
        done = await self._on_thread(lambda report: self._on_threads.get(path, destination, progress=report, timeout=timeout), progress)
        return cast(Progress, done)

    async def push(self, source: _files.LocalPath, path: _files.RemotePath, *, progress: bool | Report = False, **options: Any) -> dict[str, Any]:
        """Sends a file, as `towpath.Files.push` does, on a thread."""
        answer = await self._on_thread(lambda report: self._on_threads.push(source, path, progress=report, **options), progress)
        return cast("dict[str, Any]", answer)

    async def _on_thread(self, work: Callable[[Report], Any], progress: bool | Report) -> Any:
        is_cancelled = False

        def run() -> Any:
            with reporter(progress) as report:

                def step(now: Progress) -> None:
                    if is_cancelled:
                        raise asyncio.CancelledError
                    report(now)

                return work(step)

        try:
            return await asyncio.get_running_loop().run_in_executor(None, run)
        except asyncio.CancelledError:
            is_cancelled = True
            raise

    async def close(self) -> None:
        """Closes all connections."""
        for connection in [*self._open, *self._idle]:
            connection.close()
        self._idle = []
        self._on_threads.close()

    async def __aenter__(self) -> Files:
        return self

    async def __aexit__(self, kind: Type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


def _broker_endpoints(names: str | Sequence[str]) -> List[str]:
    return endpoints(names, REQUESTS_PORT)


def _file_endpoints(names: str | Sequence[str]) -> List[str]:
    return endpoints(names, FILES_PORT)


__all__ = ["Client", "Files", "Worker", "worker"]
