"""A worker's session on its connection to one broker, for a thread or an event loop that says when to look."""

from __future__ import annotations

import time
from typing import Callable, Dict

from ._core.records import Payload, Received
from ._core.worker import WorkerSession
from ._link import Link, Security
from .errors import ProtocolError

PROPERTIES = (b"X-Towpath-Requests:2", b"X-Towpath-Request-Ids:1")


class Request:
    """A request that a worker has been given.

    service: its name. id: 32 hexadecimal digits, the same for all attempts. attempt: from 1; over 1, a worker may have executed the request
    before. deadline: seconds since 1970, when nobody will want the reply any more; None: never. frames: its body, which mostly is one frame.
    is_cancelled: nobody wants the reply any more.
    """

    __slots__ = ("service", "id", "attempt", "deadline", "body", "is_cancelled", "token", "engine")

    def __init__(self, engine: WorkerEngine, token: bytes, attempt: int, left: float | None, identifier: bytes | None, body: Received) -> None:
        self.engine = engine
        self.token = token
        self.service = engine.service_name
        self.id = identifier.hex().upper() if identifier is not None else ""
        self.attempt = attempt
        self.deadline = None if left is None else time.time() + left
        self.body = body
        self.is_cancelled = False

    @property
    def frames(self) -> list[bytes]:
        return [self.body] if isinstance(self.body, bytes) else list(self.body)

    def __repr__(self) -> str:
        return f"<Request {self.id} of {self.service}, attempt {self.attempt}>"


class WorkerEngine:
    """Drives a session. One thread at a time uses it. Times are in seconds, of `time.monotonic`."""

    def __init__(
        self,
        endpoint: str,
        security: Security,
        service: bytes,
        credit: int,
        give: Callable[[Request], None],
        cancelled: Callable[[Request], None] = lambda request: None,
    ) -> None:
        self.session = WorkerSession(service, credit)
        self.service_name = service.decode(errors="replace")
        self.link = Link([endpoint], security, PROPERTIES)
        # Take a request that has come, and one that is cancelled.
        self._give = give
        self._on_cancelled = cancelled
        self._requests: Dict[bytes, Request] = {}

    def step(self, now: float) -> None:
        """Takes what has arrived, hands requests over, and sends replies."""
        session, link = self.session, self.link
        was_up = link.is_up
        came_up = link.step(now)
        if was_up and (came_up or not link.is_up):
            self._disconnected()
        if came_up:
            session.connected(now)
        # The socket's descriptor reports an event only once: after sending, what has arrived meanwhile must be taken too.
        while True:
            self._receive(now)
            for token in session.on_time(now):
                self._cancelled(token)
            if link.is_up and session.greeting_failed(now):
                self._lost(now, "no answer to the greeting; is it a broker of numbered requests?")
            messages = session.take()
            if not messages:
                return
            for message in messages:
                link.send(message)

    def _receive(self, now: float) -> None:
        give, requests = self._give, self._requests
        try:
            while True:
                message = self.link.receive()
                if message is None:
                    return
                arrivals, cancelled = self.session.on_message(message, now)
                for arrival in arrivals:
                    requests[arrival[0]] = request = Request(self, *arrival)
                    give(request)
                for token in cancelled:
                    self._cancelled(token)
        except ProtocolError as error:
            self._lost(now, str(error))

    def _lost(self, now: float, why: str) -> None:
        self.link.lost(now, why)
        self._disconnected()

    def _disconnected(self) -> None:
        for token in self.session.disconnected():
            self._cancelled(token)

    def _cancelled(self, token: bytes) -> None:
        request = self._requests.pop(token, None)
        if request is not None:
            request.is_cancelled = True
            self._on_cancelled(request)

    def reply(self, request: Request, status: int, part: int | None, body: Payload) -> None:
        """Replies, or sends part of a reply."""
        if part is None:
            self._requests.pop(request.token, None)
        if not self.session.reply(request.token, status, part, body):
            request.is_cancelled = True

    def give_back(self, request: Request, reason: str) -> None:
        self._requests.pop(request.token, None)
        self.session.give_back(request.token, reason)

    def deadline(self) -> float | None:
        """When `step` has something to do without an event."""
        due = [at for at in (self.link.deadline(), self.session.deadline()) if at is not None]
        return min(due, default=None)
