"""Requests to services, from any thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from concurrent.futures import Future
from itertools import islice
from types import TracebackType
from typing import Any, Callable, Deque, Iterable, Iterator, List, Sequence, Tuple, Type, Union

import zmq

from ._bodies import Body, frames, joined, payload
from ._client_engine import ClientEngine
from ._core import records
from ._core.client import Group
from ._core.records import Payload, Received
from ._link import REQUESTS_PORT, Key, Security, ServerKey, endpoints
from ._wake import Wake
from .errors import Closed, Timeout, TowpathError, WrongKey, request_error

log = logging.getLogger("towpath")

OUTSTANDING_MAX = 262_144
OUTSTANDING_BYTES_MAX = 256 << 20
# Requests of `map` that are submitted together.
CHUNK = 256
# Longest pause of a client's own thread.
IDLE_SECONDS = 60.0


def outcome_error(status: int, body: Received) -> TowpathError:
    """The error of an outcome other than 200."""
    reason = joined(body).decode(errors="replace")
    return WrongKey(reason) if status == 0 else request_error(status, reason)


class _One(Group):
    """One request, whose outcome goes to a future."""

    __slots__ = ("future", "parts", "first")

    def __init__(self, service: bytes, body: Payload, deadline: float | None, volatile: bool, future: Future[bytes]) -> None:
        super().__init__(service, (body,), deadline, volatile)
        self.future = future
        self.parts: List[Received] = []
        self.first = 0

    def take(self, index: int, status: int, part: int | None, body: Received) -> None:
        if part is not None:
            self.parts = [body] if part == 0 else [*self.parts, body]
        elif self.future.set_running_or_notify_cancel():
            if status != 200:
                self.future.set_exception(outcome_error(status, body))
            else:
                self.future.set_result(_whole(self.parts, body) if self.parts else joined(body))


def _whole(parts: Sequence[Received], last: Received) -> bytes:
    return b"".join(map(joined, [*parts, last]))


class _Call(Group):
    """One request, for whose outcome a thread waits."""

    __slots__ = ("lock", "status", "body", "parts", "first")

    def __init__(self, service: bytes, body: Payload, deadline: float | None, volatile: bool) -> None:
        super().__init__(service, (body,), deadline, volatile)
        self.lock = threading.Lock()
        self.lock.acquire()
        self.status = -1
        self.body: Received = b""
        self.parts: List[Received] = []
        self.first = 0

    def take(self, index: int, status: int, part: int | None, body: Received) -> None:
        if part is not None:
            self.parts = [body] if part == 0 else [*self.parts, body]
            return
        self.status, self.body = status, _whole(self.parts, body) if self.parts else body
        self.lock.release()


class _Stream(Group):
    """One request, whose reply is taken in parts."""

    __slots__ = ("arrived", "condition", "first")

    def __init__(self, service: bytes, body: Payload, deadline: float | None, volatile: bool) -> None:
        super().__init__(service, (body,), deadline, volatile)
        self.condition = threading.Condition()
        self.arrived: Deque[Tuple[int, int | None, Received]] = deque()
        self.first = 0

    def take(self, index: int, status: int, part: int | None, body: Received) -> None:
        with self.condition:
            self.arrived.append((status, part, body))
            self.condition.notify()


class _Chunk(Group):
    """Consecutive requests of a `map`."""

    __slots__ = ("outcomes", "parts", "first", "wanted", "event")

    def __init__(self, service: bytes, bodies: Sequence[Payload], deadline: float | None, volatile: bool) -> None:
        super().__init__(service, bodies, deadline, volatile)
        # The reply, or the error.
        self.outcomes: List[Any] = [None] * len(bodies)
        self.parts: dict[int, List[Received]] = {}
        self.first = 0
        # Index of the outcome that somebody waits for, and what wakes them.
        self.wanted = -1
        self.event = threading.Event()

    def take(self, index: int, status: int, part: int | None, body: Received) -> None:
        if part is not None:
            self.parts[index] = [body] if part == 0 else [*self.parts.get(index, ()), body]
            return
        if status != 200:
            self.outcomes[index] = outcome_error(status, body)
        elif self.parts:
            self.outcomes[index] = _whole(self.parts.pop(index, ()), body)
        else:
            self.outcomes[index] = body if type(body) is bytes else joined(body)
        if index == self.wanted:
            self.event.set()

    def wait(self, index: int) -> Any:
        """The outcome at an index."""
        if self.outcomes[index] is None:
            self.event.clear()
            self.wanted = index
            # It may have come before `wanted` was set.
            if self.outcomes[index] is None:
                self.event.wait()
            self.wanted = -1
        return self.outcomes[index]


_Submitted = Union[_One, _Call, _Stream, _Chunk]


class RequestFuture(Future):  # type: ignore[type-arg]
    """A future that cancels its request at the broker when it is cancelled."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self.request: _One | None = None

    def cancel(self) -> bool:
        """Cancels the request, unless it has its outcome. A worker that has begun it may finish it nevertheless."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._client._cancel(self.request)
        return is_cancelled


class Client:
    """Sends requests to services of one broker, or of the first of several that answers.

    Requests are held until they have an outcome, and sent again after a lost connection, if need be to the next broker. All methods may
    be called from any thread. A process that was forked may go on using a client: it gets a connection and an id of its own, and the
    requests of the parent aren't its own.

    endpoints: `host`, `host:port` (5555 by default), `ipc://path`, or several of them. timeout: seconds, the default of all methods; None
    leaves it to the broker (`--request-timeout`), and without a broker requests wait for ever. key, server_key: CURVE, see the guide.
    user, password: PLAIN, unencrypted.

    Example:

        with Client("localhost") as client:
            print(client.call("echo", b"hello", timeout=5))
    """

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
        self._endpoints = _endpoints(endpoints)
        self._security = Security(key, server_key, user, password)
        self._timeout = timeout
        self._start()

    def _start(self) -> None:
        """Everything that belongs to one process."""
        self._pid = os.getpid()
        self._engine = ClientEngine(self._endpoints, self._security)
        self._commands: Deque[Tuple[str, Any]] = deque()
        self._wake = Wake()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # Held by the thread that drives the engine: one that waits for its call, or else the client's own.
        self._driving = threading.Lock()
        self._driver = 0
        # Ends the own thread's pause, which lasts until then.
        self._resume = threading.Event()
        self._pause_until = 0.0
        self._ends = False
        self._space = threading.Condition()
        self._waiting_for_space = 0
        self._closed = False

    def _begin(self) -> None:
        """Sees to it that the client is open, and this process's own."""
        if self._pid != os.getpid():
            # Forked: the parent's thread isn't here, and its socket isn't ours.
            self._start()
        if self._closed:
            raise Closed("the client is closed")
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="towpath-client", daemon=True)
                    self._thread.start()

    def _post(self, command: str, what: Any) -> None:
        """Gives the thread that drives the engine something to do."""
        self._begin()
        self._commands.append((command, what))
        self._wake.set()
        self._resume.set()

    def _submit(self, group: _Submitted, timeout: float | None) -> None:
        """Submits a group once there is space for it."""
        session = self._engine.session
        is_full = session.outstanding >= OUTSTANDING_MAX or session.outstanding_bytes >= OUTSTANDING_BYTES_MAX
        # A future's callback must not wait for itself.
        if is_full and self._driver != threading.get_ident():
            with self._space:
                self._waiting_for_space += 1
                has_space = self._space.wait_for(
                    lambda: session.outstanding < OUTSTANDING_MAX and session.outstanding_bytes < OUTSTANDING_BYTES_MAX, timeout
                )
                self._waiting_for_space -= 1
            if not has_space:
                raise Timeout(f"too many requests are outstanding, and none got its outcome within {timeout} s")
        self._post("submit", group)

    def _deadline(self, timeout: float | None) -> Tuple[float | None, float | None]:
        timeout = self._timeout if timeout is None else timeout
        return timeout, None if timeout is None else time.monotonic() + timeout

    def call(self, service: str | bytes, body: Body = b"", *, timeout: float | None = None, volatile: bool = False) -> bytes:
        """Sends a request and returns the reply; one in several frames or parts is joined.

        timeout: seconds. volatile: need not be journalled. RequestError: by status, such as `WorkerFailed`, `Expired` (not executed) or
        `TimedOut` (perhaps executed). WrongKey: no broker agrees with our key. Closed.
        """
        return joined(self._call(service, body, timeout, volatile))

    def call_frames(self, service: str | bytes, body: Body = b"", *, timeout: float | None = None, volatile: bool = False) -> List[bytes]:
        """The same as `call`, but returns the frames of the reply, as of the broker's own services (`mmi.queue`)."""
        return frames(self._call(service, body, timeout, volatile))

    def _call(self, service: str | bytes, body: Body, timeout: float | None, volatile: bool) -> Received:
        timeout, deadline = self._deadline(timeout)
        call = _Call(records.service_name(service), payload(body), deadline, volatile)
        self._begin()
        if self._driving.acquire(blocking=False):
            self._drive_for(call)
        else:
            self._submit(call, timeout)
            try:
                call.lock.acquire()
            except BaseException:
                self._post("cancel", call)
                raise
        if call.status != 200:
            raise outcome_error(call.status, call.body)
        return call.body

    def _drive_for(self, call: _Call) -> None:
        """Drives the engine until a call has its outcome: without a switch to the own thread and back, which takes longer than the rest."""
        try:
            if self._ends:
                raise Closed("the client is closed")
            self._commands.append(("submit", call))
            self._drive(lambda: call.status != -1)
            deadline = self._engine.deadline()
        except BaseException:
            # Such as a KeyboardInterrupt in the middle of anything: all is sent again over another connection.
            self._engine.interrupted(time.monotonic())
            self._commands.append(("cancel", call))
            self._resume.set()
            raise
        finally:
            self._driving.release()
        if deadline is not None and deadline < self._pause_until:
            self._resume.set()

    def submit(
        self, service: str | bytes, body: Body = b"", *, timeout: float | None = None, volatile: bool = False
    ) -> Future[bytes]:
        """Sends a request; its future gets the reply, or the error that `call` would raise. Cancelling the future cancels the request.

        Callbacks of the future run on the thread that drives the client, and must not wait for other requests; they may submit some.
        """
        timeout, deadline = self._deadline(timeout)
        future = RequestFuture(self)
        future.request = _One(records.service_name(service), payload(body), deadline, volatile, future)
        self._submit(future.request, timeout)
        return future

    def _cancel(self, group: _Submitted | None) -> None:
        if group is not None and not self._closed:
            self._post("cancel", group)

    def stream(
        self, service: str | bytes, body: Body = b"", *, timeout: float | None = None, volatile: bool = False
    ) -> Iterator[bytes]:
        """Sends a request and yields the parts of the reply as they come, its end last. Errors as of `call`.

        Lost: the connection ended after the first part. An iterator that is closed or dropped cancels the request.
        """
        timeout, deadline = self._deadline(timeout)
        stream = _Stream(records.service_name(service), payload(body), deadline, volatile)
        self._submit(stream, timeout)
        return self._parts(stream)

    def _parts(self, stream: _Stream) -> Iterator[bytes]:
        count, is_over = 0, False
        try:
            while True:
                with stream.condition:
                    stream.condition.wait_for(lambda: bool(stream.arrived))
                    status, part, body = stream.arrived.popleft()
                is_over = part is None
                if part is None and status != 200:
                    raise outcome_error(status, body)
                if part == 0 and count:
                    # Executed once more, over another connection, after parts that the caller has used.
                    raise request_error(410, "the connection was lost in the middle of the reply")
                count += 1
                if body or not is_over:
                    yield joined(body)
                if is_over:
                    return
        finally:
            if not is_over:
                self._cancel(stream)

    def map(
        self,
        service: str | bytes,
        bodies: Iterable[Body],
        *,
        ahead: int = 1000,
        timeout: float | None = None,
        volatile: bool = False,
        return_errors: bool = False,
    ) -> Iterator[Any]:
        """Sends a request for each body, `ahead` of them at a time, and yields the replies in the order of the bodies.

        Bodies are taken from the iterable as replies come. timeout: seconds, of each request. return_errors: yield the error of a request
        that fails in the place of its reply. Without it, the first that fails raises, and the others are cancelled. An iterator that is
        closed cancels what is outstanding.
        """
        name = records.service_name(service)
        source = iter(bodies)
        size = max(1, min(CHUNK, ahead // 4))
        chunks: Deque[_Chunk] = deque()
        try:
            count = 0
            while True:
                while count < ahead:
                    batch = [body if type(body) is bytes else payload(body) for body in islice(source, size)]
                    if not batch:
                        break
                    limit, deadline = self._deadline(timeout)
                    chunk = _Chunk(name, batch, deadline, volatile)
                    self._submit(chunk, limit)
                    chunks.append(chunk)
                    count += len(batch)
                if not chunks:
                    return
                chunk = chunks[0]
                for index in range(len(chunk.outcomes)):
                    outcome = chunk.outcomes[index]
                    if outcome is None:
                        outcome = chunk.wait(index)
                    if not return_errors and isinstance(outcome, TowpathError):
                        raise outcome
                    yield outcome
                count -= len(chunk.outcomes)
                chunks.popleft()
        finally:
            for chunk in chunks:
                self._cancel(chunk)

    def close(self) -> None:
        """Cancels what is outstanding, and closes the connection. It can be called twice."""
        if self._pid != os.getpid():
            self._start()
        if self._closed:
            return
        thread = self._thread
        if thread is not None:
            self._post("close", None)
            thread.join()
        self._closed = True
        self._wake.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # The rest is for the one that holds `_driving`.

    def _drive(self, is_done: Callable[[], bool]) -> None:
        """Drives the engine until something is done, or the client is closed."""
        engine, wake = self._engine, self._wake
        self._driver = threading.get_ident()
        try:
            # What has happened while nobody waited.
            engine.link.readable(wake.wait(engine.link.descriptors, 0))
            while True:
                self._carry_out()
                engine.step(time.monotonic())
                if self._waiting_for_space:
                    with self._space:
                        self._space.notify_all()
                if self._ends or is_done():
                    return
                engine.link.readable(wake.wait(engine.link.descriptors, self._left()))
        finally:
            self._driver = 0

    def _left(self) -> float:
        """Seconds until the engine has something to do."""
        deadline = self._engine.deadline()
        return IDLE_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())

    def _is_idle(self) -> bool:
        return not self._engine.session.outstanding and not self._commands

    def _carry_out(self) -> None:
        """Carries out what other threads want."""
        commands, session = self._commands, self._engine.session
        self._wake.clear()
        while commands:
            command, what = commands.popleft()
            if command == "close" or self._ends:
                self._ends = True
                session.end_all(time.monotonic(), 499, "the client was closed")
                if command == "submit":
                    for index in range(len(what.bodies)):
                        what.take(index, 499, None, b"the client was closed")
            elif command == "submit":
                what.first = session.submit(what)
            elif what.first:
                session.cancel_group(what.first, what, time.monotonic())

    def _run(self) -> None:
        """The client's own thread: drives the engine while something is outstanding for which no thread waits."""
        try:
            while not self._ends:
                with self._driving:
                    self._resume.clear()
                    self._drive(self._is_idle)
                    pause = self._left()
                    self._pause_until = time.monotonic() + pause
                if not self._ends:
                    self._resume.wait(pause)
        except zmq.ContextTerminated:
            log.debug("the context was terminated")
        finally:
            with self._driving:
                self._ends = self._closed = True
                self._commands.append(("close", None))
                self._carry_out()
                try:
                    for seconds in self._engine.close(time.monotonic()):
                        time.sleep(seconds)
                except zmq.ZMQError:
                    pass
            with self._space:
                self._space.notify_all()


def _endpoints(names: str | Sequence[str]) -> List[str]:
    return endpoints(names, REQUESTS_PORT)
