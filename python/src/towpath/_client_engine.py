"""A client's session on its connection, for a thread or an event loop that says when to look."""

from __future__ import annotations

import logging
import os
import time
from typing import Iterator, Sequence

from ._core.client import ClientSession
from ._left import LOOK_SECONDS, LeftBrokers
from ._link import Link, Security
from .errors import ProtocolError

# A READY without it would do, since nothing of the handshake depends on it; but a file server refuses us by it.
PROPERTY = b"X-Towpath-Requests:2"
# How long the last CONFIRM may take to leave.
LINGER_MS = 500
# How long a client that is being closed visits brokers that it has left.
LAST_SECONDS = 3.0
# How long requests wait without a broker before that is logged: without a timeout they wait for ever.
ALONE_SECONDS = 5.0

log = logging.getLogger("towpath")


class ClientEngine:
    """Drives a session. One thread at a time uses it. Times are in seconds, of `time.monotonic`."""

    def __init__(self, endpoints: Sequence[str], security: Security) -> None:
        self.session = ClientSession(os.urandom(16))
        self.link = Link(endpoints, security, [PROPERTY])
        self._left = LeftBrokers(security, [PROPERTY])
        self._useless = 0
        # Since when requests have waited without a broker, and whether that is logged.
        self._alone_since: float | None = None
        self._alone_logged = False

    def step(self, now: float) -> None:
        """Takes what has arrived, does what is due, and sends what may be sent."""
        session, link = self.session, self.link
        endpoint = link.endpoint
        came_up = link.step(now)
        if session.welcomed and (came_up or not link.is_up):
            self._left.add(endpoint, session, now)
            session.disconnected()
        if came_up:
            for message in session.connected(now):
                link.send(message)
        if session.welcomed:
            self._left.returned(link.endpoint)
            self._left.step(session, now)
        if link.refused_by_all and session.outstanding:
            session.end_all(now, 0, link.failure)
        self._note_alone(now)
        # The socket's descriptor reports an event only once: after sending, what has arrived meanwhile must be taken too.
        while True:
            self._receive(now)
            session.on_time(now, "" if link.is_up else link.failure)
            self._leave_if_useless(now)
            messages = session.pump(now)
            if not messages:
                return
            for message in messages:
                link.send(message)

    def _note_alone(self, now: float) -> None:
        """Logs once that no broker has answered for a while."""
        if self.session.welcomed or not self.session.outstanding:
            self._alone_since, self._alone_logged = None, False
        elif self._alone_since is None:
            self._alone_since = now
        elif not self._alone_logged and now - self._alone_since >= ALONE_SECONDS:
            self._alone_logged = True
            log.warning("no broker for %.0f s; requests wait until their timeout, if they have one: %s", now - self._alone_since, self.link.failure)

    def _receive(self, now: float) -> None:
        try:
            while True:
                message = self.link.receive()
                if message is None:
                    break
                self.session.on_message(message, now)
        except ProtocolError as error:
            self._lost(now, str(error))

    def _leave_if_useless(self, now: float) -> None:
        session, link = self.session, self.link
        if link.is_up and session.greeting_failed(now):
            self._lost(now, "no answer to the greeting; is it a broker of numbered requests?")
        elif link.is_up and session.refuses_everything and len(link.endpoints) > 1:
            # Unless all have been left for that: then this one is asked again at its interval.
            self._useless = (self._useless + 1) % len(link.endpoints)
            if self._useless:
                self._lost(now, f"it refuses everything: {session.refusal}")

    def _lost(self, now: float, why: str) -> None:
        if self.session.welcomed:
            self._left.add(self.link.endpoint, self.session, now)
        self.link.lost(now, why)
        self.session.disconnected()

    def interrupted(self, now: float) -> None:
        """Gives up the connection, since nobody knows how far anything was."""
        if self.link.is_up:
            self._lost(now, "interrupted")

    def deadline(self) -> float | None:
        """When `step` has something to do without an event."""
        left = self._left.deadline(time.monotonic()) if self.session.welcomed else None
        due = [at for at in (self.link.deadline(), self.session.deadline(), left) if at is not None]
        return min(due, default=None)

    def close(self, now: float) -> Iterator[float]:
        """Confirms what has come, and closes the connection. Yields seconds to wait between, while brokers that were left are visited."""
        for message in self.session.pump(now, hurry=True):
            self.link.send(message)
        self.link.close(LINGER_MS)
        until = now + LAST_SECONDS
        while now < until and self._left.step(self.session, now, is_last=True):
            yield LOOK_SECONDS
            now = time.monotonic()
        self._left.close()
