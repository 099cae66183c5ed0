"""A client's session on its connection, for a thread or an event loop that says when to look."""

from __future__ import annotations

import os
from typing import Sequence

from ._core.client import ClientSession
from ._link import Link, Security
from .errors import ProtocolError

# A READY without it would do, since nothing of the handshake depends on it; but a file server refuses us by it.
PROPERTY = b"X-Towpath-Requests:2"
# How long the last CONFIRM may take to leave.
LINGER_MS = 500


class ClientEngine:
    """Drives a session. One thread at a time uses it. Times are in seconds, of `time.monotonic`."""

    def __init__(self, endpoints: Sequence[str], security: Security) -> None:
        self.session = ClientSession(os.urandom(16))
        self.link = Link(endpoints, security, [PROPERTY])
        self._left = 0

    def step(self, now: float) -> None:
        """Takes what has arrived, does what is due, and sends what may be sent."""
        session, link = self.session, self.link
        if link.step(now):
            for message in session.connected(now):
                link.send(message)
        if not link.is_up and session.welcomed:
            session.disconnected()
        if link.refused_by_all and session.outstanding:
            session.end_all(now, 0, link.failure)
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
            self._left = (self._left + 1) % len(link.endpoints)
            if self._left:
                self._lost(now, f"it refuses everything: {session.refusal}")

    def _lost(self, now: float, why: str) -> None:
        self.link.lost(now, why)
        self.session.disconnected()

    def deadline(self) -> float | None:
        """When `step` has something to do without an event."""
        due = [at for at in (self.link.deadline(), self.session.deadline()) if at is not None]
        return min(due, default=None)

    def close(self, now: float) -> None:
        """Confirms what has come, and closes the connection."""
        for message in self.session.pump(now, hurry=True):
            self.link.send(message)
        self.link.close(LINGER_MS)
