"""Workers: a function that serves requests, on as many threads as wanted."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections import deque
from types import FrameType
from typing import Any, Callable, Deque, List, Sequence, Tuple

from ._bodies import joined, payload
from ._core import records
from ._core.records import Payload
from ._core.worker import CREDIT_MAX
from ._link import REQUESTS_PORT, Key, Security, ServerKey, endpoints
from ._wake import Wake
from ._worker_engine import Request, WorkerEngine
from .errors import TowpathError, WrongKey

log = logging.getLogger("towpath")

# Takes a body and the request; returns the reply, None for an empty one, or an iterator of its parts.
Handler = Callable[[bytes, Request], Any]

REASON_CHARACTERS_MAX = 4000
# How long the last replies may take to leave.
LINGER_MS = 5000


class RetryLater(TowpathError):
    """Raised by a handler: the request is to be tried again, after 1 s and then twice as long each time. It counts as an attempt."""


class GiveBack(TowpathError):
    """Raised by a handler that can't begin a request for a reason of this machine: another worker gets it, and this one rests."""


# What a handler's end means: status, or None for giving back.
Failure = Tuple["int | None", bytes]


def failure(error: BaseException, request: Request) -> Failure:
    """How a handler's exception ends its request."""
    reason = str(error)[:REASON_CHARACTERS_MAX].encode(errors="replace")
    if isinstance(error, GiveBack):
        return None, reason
    if isinstance(error, RetryLater):
        return 503, reason
    log.error("%r failed", request, exc_info=error)
    return 500, f"{type(error).__name__}: {error}"[:REASON_CHARACTERS_MAX].encode(errors="replace")


def check_options(jobs: int, credit: int | None) -> int:
    """The credit of a worker. ValueError: it, or the number of jobs, makes no sense."""
    credit = jobs if credit is None else credit
    if jobs < 1 or not jobs <= credit <= CREDIT_MAX:
        raise ValueError(f"jobs is from 1, and credit from jobs to {CREDIT_MAX}")
    return credit


class Worker:
    """Serves one service, for one broker or several at once: `run` returns after SIGTERM, SIGINT or `stop`.

    service: the name. handler: called with the body (frames joined) and the `Request`, on one of `jobs` threads; returns the reply (as a
    body of `Client.call`), None for an empty one, or an iterator: each of its items is sent as a part of the reply. An exception is the
    reply's failure (500), but for `RetryLater` and `GiveBack`. connect: endpoints of all brokers. credit: how many requests each broker may
    give at a time, by default `jobs`; more of them wait here, which makes short requests cheaper. key, server_key, user, password: as of
    `Client`.
    """

    def __init__(
        self,
        service: str | bytes,
        handler: Handler,
        *,
        connect: str | Sequence[str] = "localhost",
        jobs: int = 1,
        credit: int | None = None,
        key: Key | None = None,
        server_key: ServerKey | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._handler = handler
        self._jobs = jobs
        self._credit = check_options(jobs, credit)
        self._service = records.service_name(service)
        self._endpoints = endpoints(connect, REQUESTS_PORT)
        self._security = Security(key, server_key, user, password)
        self._is_stopping = False
        self._wake = Wake()

    def __call__(self, body: bytes, request: Request) -> Any:
        """Calls the handler itself, as tests do."""
        return self._handler(body, request)

    def stop(self) -> None:
        """Takes no more requests, from any thread or signal handler; `run` returns when those that were taken are finished."""
        self._is_stopping = True
        self._wake.set()

    def run(self) -> None:
        """Serves until SIGTERM, SIGINT or `stop`. On another thread than the main one, signals are left alone.

        WrongKey: no broker agrees with our key. A second signal ends the process as if nothing caught it.
        """
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS} if is_main else {}
        requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        replies: Deque[Tuple[Request, int | None, int | None, Payload]] = deque()
        engines = [WorkerEngine(name, self._security, self._service, self._credit, requests.put) for name in self._endpoints]
        threads = [
            threading.Thread(target=self._work, args=(requests, replies), name=f"towpath-worker-{n}", daemon=True) for n in range(self._jobs)
        ]
        for thread in threads:
            thread.start()
        try:
            self._drive(engines, replies)
        finally:
            for _ in threads:
                requests.put(None)
            for engine in engines:
                engine.link.close(LINGER_MS)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.stop()

    def _drive(self, engines: List[WorkerEngine], replies: Deque[Tuple[Request, int | None, int | None, Payload]]) -> None:
        while True:
            self._wake.clear()
            if self._is_stopping:
                for engine in engines:
                    engine.session.leave()
            while replies:
                request, status, part, body = replies.popleft()
                if status is None:
                    request.engine.give_back(request, bytes(body).decode(errors="replace"))
                else:
                    request.engine.reply(request, status, part, body)
            now = time.monotonic()
            for engine in engines:
                engine.step(now)
            if all(engine.link.refused_by_all for engine in engines):
                raise WrongKey("; ".join(engine.link.failure for engine in engines))
            if self._is_stopping and not any(engine.session.held for engine in engines):
                return
            due = [at for at in (engine.deadline() for engine in engines) if at is not None]
            timeout = max(0.0, min(due) - time.monotonic()) if due else 60.0
            readable = self._wake.wait([descriptor for engine in engines for descriptor in engine.link.descriptors], timeout)
            for engine in engines:
                engine.link.readable(readable)

    def _work(self, requests: queue.SimpleQueue[Request | None], replies: Deque[Tuple[Request, int | None, int | None, Payload]]) -> None:
        """One of the threads that handle requests."""
        handler, wake = self._handler, self._wake
        while True:
            request = requests.get()
            if request is None:
                return
            if request.is_cancelled:
                continue
            status: int | None = 200
            try:
                body = request.body
                reply = handler(body if isinstance(body, bytes) else joined(body), request)
                if type(reply) is not bytes:
                    reply = self._finish(reply, request, replies)
            except Exception as error:
                status, reply = failure(error, request)
            replies.append((request, status, None, reply))
            wake.set()

    def _finish(self, reply: Any, request: Request, replies: Deque[Tuple[Request, int | None, int | None, Payload]]) -> Payload:
        """The end of a reply, after its parts if it has any."""
        if reply is None:
            return b""
        if not hasattr(reply, "__next__") or hasattr(reply, "read"):
            return payload(reply)
        for number, part in enumerate(reply):
            if request.is_cancelled:
                reply.close() if hasattr(reply, "close") else None
                break
            replies.append((request, 200, number, payload(part)))
            self._wake.set()
        return b""


def worker(service: str | bytes, **options: Any) -> Callable[[Handler], Worker]:
    """Decorator that makes a function the handler of a `Worker`, whose options it takes.

    Example:

        @worker("upper", connect="localhost", jobs=4)
        def upper(body, request):
            return body.upper()

        upper.run()
    """
    return lambda handler: Worker(service, handler, **options)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
