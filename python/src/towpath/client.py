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
# Longest time in which a thread whose main thread has ended may not notice that.
IDLE_SECONDS = 60.0


def outcome_error(status: int, body: Received) -> TowpathError:
    """The error of an outcome other than 200."""
    reason = joined(body).decode(errors="replace")
    return WrongKey(reason) if status == 0 else request_error(status, reason)


class _One(Group):
    """One request, whose outcome goes to a future."""

    __slots__ = ("future", "parts", "first", "convert")

    def __init__(
        self, service: bytes, body: Payload, deadline: float | None, volatile: bool, future: Future[Any], convert: Callable[[Received], Any]
    ) -> None:
        super().__init__(service, (body,), deadline, volatile)
        self.future = future
        self.convert = convert
        self.parts: List[Received] | None = None
        self.first = 0

    def take(self, index: int, status: int, part: int | None, body: Received) -> None:
        if part is not None:
            self.parts = [body] if part == 0 or self.parts is None else [*self.parts, body]
        elif self.future.set_running_or_notify_cancel():
            if status != 200:
                self.future.set_exception(outcome_error(status, body))
            elif self.parts is None:
                self.future.set_result(self.convert(body))
            else:
                self.future.set_result(self.convert(_whole(self.parts, body)))


def _whole(parts: Sequence[Received], last: Received) -> Received:
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

    def __init__(self, cancel: Callable[[RequestFuture], None]) -> None:
        super().__init__()
        self._cancel_request = cancel

    def cancel(self) -> bool:
        """Cancels the request, unless it has its outcome. A worker that has begun it may finish it nevertheless."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._cancel_request(self)
        return is_cancelled


class Client:
    """Sends requests to services of one broker, or of the first of several that answers.

    Requests are held until they have an outcome, and sent again after a lost connection, if need be to the next broker. All methods may
    be called from any thread. A process that was forked may go on using a client: it gets a connection and an id of its own, and the
    requests of the parent aren't its own.

    endpoints: `host`, `host:port` (5555 by default), `ipc://path`, or several of them. timeout: seconds, the default of all methods; None
    leaves it to the broker (`--request-timeout`). key, server_key: CURVE, see the guide. user, password: PLAIN, unencrypted.

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
        self._space = threading.Condition()
        self._waiting_for_space = 0
        self._submitted = self._submitted_bytes = 0
        self._closed = False

    def _post(self, command: str, what: Any) -> None:
        """Gives the thread something to do."""
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
        self._commands.append((command, what))
        self._wake.set()

    def _submit(self, group: _Submitted, timeout: float | None) -> None:
        """Submits a group once there is space for it."""
        session = self._engine.session
        if session.outstanding >= OUTSTANDING_MAX or session.outstanding_bytes >= OUTSTANDING_BYTES_MAX:
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
        self._submit(call, timeout)
        try:
            call.lock.acquire()
        except BaseException:
            self._post("cancel", call)
            raise
        if call.status != 200:
            raise outcome_error(call.status, call.body)
        return call.body

    def submit(
        self, service: str | bytes, body: Body = b"", *, timeout: float | None = None, volatile: bool = False
    ) -> Future[bytes]:
        """Sends a request; its future gets the reply, or the error that `call` would raise. Cancelling the future cancels the request."""
        timeout, deadline = self._deadline(timeout)
        future = RequestFuture(self._cancel)
        one = _One(records.service_name(service), payload(body), deadline, volatile, future, joined)
        future.request = one  # type: ignore[attr-defined]
        self._submit(one, timeout)
        return future

    def _cancel(self, future: RequestFuture) -> None:
        try:
            self._post("cancel", future.request)  # type: ignore[attr-defined]
        except Closed:
            pass

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
            if not is_over and not self._closed:
                self._post("cancel", stream)

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
        that has none in the place of its reply, instead of raising it. An iterator that is closed cancels what is outstanding.
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
            if not self._closed:
                for chunk in chunks:
                    self._post("cancel", chunk)

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

    # The rest runs on the thread, which alone uses engine and socket.

    def _run(self) -> None:
        engine, wake = self._engine, self._wake
        try:
            while self._carry_out():
                now = time.monotonic()
                engine.step(now)
                if self._waiting_for_space:
                    with self._space:
                        self._space.notify_all()
                deadline = engine.deadline()
                timeout = IDLE_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
                engine.link.readable(wake.wait(engine.link.descriptors, timeout))
        except zmq.ContextTerminated:
            log.debug("the context was terminated")
        finally:
            self._closed = True
            now = time.monotonic()
            engine.session.end_all(now, 499, "the client was closed")
            for command, what in self._commands:
                if command == "submit":
                    for index in range(len(what.bodies)):
                        what.take(index, 499, None, b"the client was closed")
            try:
                engine.close(now)
            except zmq.ZMQError:
                pass

    def _carry_out(self) -> bool:
        """Carries out what other threads want. False: this thread ends."""
        commands, session = self._commands, self._engine.session
        self._wake.clear()
        while commands:
            command, what = commands.popleft()
            if command == "submit":
                what.first = session.submit(what)
            elif command == "cancel":
                if what.first:
                    session.cancel_group(what.first, what, time.monotonic())
            else:
                return False
        return True


def _endpoints(names: str | Sequence[str]) -> List[str]:
    return endpoints(names, REQUESTS_PORT)
