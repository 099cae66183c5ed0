"""Brokers that a client has left for another one. They keep its outcomes until it confirms them, so it does that as soon as it reaches them
again: over a short connection of its own, beside the one that it works with."""

from __future__ import annotations

from typing import Dict, Sequence

from ._core.client import ClientSession
from ._link import Link, Security

# Delays between attempts, the time for one, and that for all of a client that is being closed.
RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS = 0.1, 5.0
TIMEOUT_SECONDS = 2.0
LAST_TIMEOUT_SECONDS = 1.0
# How often an attempt is looked at.
LOOK_SECONDS = 0.02
LINGER_MS = 1000


class _Left:
    """A broker that was left. Only numbers below `until` may be there."""

    def __init__(self, until: int, now: float) -> None:
        self.until = until
        self.next = now
        self.delay = RETRY_FIRST_SECONDS


class LeftBrokers:
    """All brokers that were left and may have something. Times are in seconds."""

    def __init__(self, security: Security, properties: Sequence[bytes]) -> None:
        self._security, self._properties = security, properties
        self._left: Dict[str, _Left] = {}
        self._visit: Link | None = None
        self._visit_ends = 0.0
        self._lowest = 0

    def add(self, endpoint: str, session: ClientSession, now: float) -> None:
        """The connection to a broker is lost."""
        if session.next_number > 1:
            self._left[endpoint] = _Left(session.next_number, now)

    def returned(self, endpoint: str) -> None:
        """The client works with this broker now, which learns everything over that connection."""
        self._left.pop(endpoint, None)

    def step(self, session: ClientSession, now: float, is_last: bool = False) -> bool:
        """Goes on with an attempt, or begins one. False: there is nothing to do, for now or, if `is_last`, at all."""
        visit = self._visit
        if visit is None:
            due = [name for name, left in self._left.items() if left.next <= now or is_last]
            if not due:
                return False
            visit = self._visit = Link(due[:1], self._security, self._properties)
            self._visit_ends = now + (LAST_TIMEOUT_SECONDS if is_last else TIMEOUT_SECONDS)
        # Nobody waits for its descriptors.
        visit.readable(visit.descriptors)
        if visit.step(now):
            self._lowest = session.lowest
            left = self._left.get(visit.endpoint)
            visit.send(session.ended(left.until if left is not None else 0))
        if visit.receive() is not None:
            # WELCOME: it has read all of it.
            self._end(now, is_last, is_reached=True)
        elif visit.failures or now >= self._visit_ends:
            self._end(now, is_last, is_reached=False)
        return True

    def _end(self, now: float, is_last: bool, is_reached: bool) -> None:
        assert self._visit is not None
        endpoint = self._visit.endpoints[0]
        self._visit.close(LINGER_MS)
        self._visit = None
        left = self._left.get(endpoint)
        if left is None:
            return
        if is_last or (is_reached and self._lowest >= left.until):
            del self._left[endpoint]
        else:
            # Reached, but some of its requests have no outcome yet: again later.
            left.next = now + left.delay
            left.delay = min(2 * left.delay, RETRY_MOST_SECONDS)

    def deadline(self, now: float) -> float | None:
        """When `step` has something to do."""
        if self._visit is not None:
            return now + LOOK_SECONDS
        return min((left.next for left in self._left.values()), default=None)

    def close(self) -> None:
        if self._visit is not None:
            self._visit.close()
            self._visit = None
        self._left.clear()
