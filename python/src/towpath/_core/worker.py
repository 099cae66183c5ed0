"""State of a worker with one broker, without a socket, thread or clock.

A request stays held when its connection is lost, and its reply is sent over the next one: its token remains valid at the broker.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from . import records
from ..errors import ProtocolError
from .records import ATTACH_BYTES, ATTACHED, Blocks, Payload, Received

WELCOME_TIMEOUT_SECONDS = 5.0
CREDIT_MAX = 65_536

# A request as it arrives: token, attempt, seconds left or None, id or None, body.
Arrival = Tuple[bytes, int, "float | None", "bytes | None", Received]


class _Held:
    """A request without its reply."""

    __slots__ = ("is_orphan", "has_parts", "expires")

    def __init__(self, expires: float | None) -> None:
        # Came on an earlier connection.
        self.is_orphan = False
        self.has_parts = False
        self.expires = expires


class WorkerSession:
    """A worker of `service` that takes `credit` requests at a time. Times are in seconds."""

    def __init__(self, service: bytes, credit: int) -> None:
        self.service = service
        self.credit = credit
        self.is_leaving = False
        self._is_up = False
        self._blocks = Blocks(records.WORKER_HEADER)
        self._held: Dict[bytes, _Held] = {}
        self._orphans = 0
        self._unsent: List[Tuple[bytes, int, Payload]] = []
        self._identity: Tuple[bytes, bytes] | None = None
        self._welcome_until: float | None = None

    @property
    def held(self) -> int:
        """Requests without a reply, and replies that wait for a connection."""
        return len(self._held) + len(self._unsent)

    def connected(self, now: float) -> None:
        """A connection is there: greets, and sends replies that are waiting."""
        self._is_up = True
        self._welcome_until = now + WELCOME_TIMEOUT_SECONDS
        self._blocks = Blocks(records.WORKER_HEADER)
        # The broker dispatches as it reads: LEAVING after READY would be too late.
        self._blocks.add(records.ready(0 if self.is_leaving else self._free_credit(), self.service))
        unsent, self._unsent = self._unsent, []
        for token, status, body in unsent:
            self._put(token, status, None, body)
        if self.is_leaving:
            self._blocks.add(b"%c" % records.LEAVING)

    def disconnected(self) -> List[bytes]:
        """The connection is lost. Tokens of requests that can't be answered over another: a part of their reply was sent."""
        self._is_up = False
        self._welcome_until = None
        ended = [token for token, held in self._held.items() if held.has_parts]
        for token in ended:
            del self._held[token]
        for held in self._held.values():
            held.is_orphan = True
        self._orphans = len(self._held)
        return ended

    def on_message(self, message: Sequence[bytes], now: float) -> Tuple[List[Arrival], List[bytes]]:
        """Takes a message: requests, and tokens of requests that are cancelled. ProtocolError: the connection has to end."""
        arrivals: List[Arrival] = []
        cancelled: List[bytes] = []
        held, identity = self._held, self._identity
        for record in records.to_worker(*records.split(message, records.WORKER_HEADER)):
            kind = record[0]
            if kind == records.WORKER_REQUEST:
                _, token, attempt, ttl_ms, body = record
                known = held.get(token)
                if known is not None and not known.is_orphan or len(held) - self._orphans >= self.credit:
                    raise ProtocolError("the broker gives more requests than this worker's credit")
                if known is not None:
                    self._orphans -= 1
                left = ttl_ms / 1000 if ttl_ms else None
                held[token] = _Held(None if left is None else now + left)
                identifier = identity[1] if identity is not None and identity[0] == token else None
                arrivals.append((token, attempt, left, identifier, body))
            elif kind == records.IDENTITY:
                identity = (record[1], record[2])
            elif kind == records.WORKER_CANCEL:
                if record[1] in held:
                    self._release(held.pop(record[1]))
                    cancelled.append(record[1])
            elif kind == records.WORKER_WELCOME:
                self._welcome_until = None
        self._identity = identity
        return arrivals, cancelled

    def reply(self, token: bytes, status: int, part: int | None, body: Payload) -> bool:
        """Replies, or sends part of a reply. False: nobody wants it any more."""
        held = self._held.get(token)
        if held is None:
            return False
        if part is not None:
            if held.is_orphan:
                # Its parts would begin in the middle: the broker executes it again.
                self._release(self._held.pop(token))
                return False
            held.has_parts = True
        else:
            self._release(self._held.pop(token))
        if self._is_up:
            self._put(token, status, part, body)
        else:
            self._unsent.append((token, status, body))
        return True

    def _put(self, token: bytes, status: int, part: int | None, body: Payload) -> None:
        if len(body) > ATTACH_BYTES:
            self._blocks.attach(records.worker_reply(token, status, part, body, ATTACHED), body)
        else:
            head = records.worker_reply(token, status, part, body)
            self._blocks.extend((head, body), len(head) + len(body))

    def give_back(self, token: bytes, reason: str) -> None:
        """Returns a request that this worker can't begin; the broker gives it to another."""
        held = self._held.pop(token, None)
        if held is None:
            return
        self._release(held)
        # On another connection it is given to another worker anyway.
        if self._is_up and not held.is_orphan:
            self._blocks.add(records.give_back(token, reason))

    def _free_credit(self) -> int:
        """Credit beside requests of earlier connections."""
        return max(0, self.credit - self._orphans)

    def _release(self, held: _Held) -> None:
        """A request of an earlier connection had reduced the broker's credit."""
        if held.is_orphan:
            self._orphans -= 1
            if self._is_up and not self.is_leaving:
                self._blocks.add(records.credit(self._free_credit()))

    def leave(self) -> None:
        """Takes no more requests; those that are held get their replies."""
        if not self.is_leaving:
            self.is_leaving = True
            if self._is_up:
                self._blocks.add(b"%c" % records.LEAVING)

    def on_time(self, now: float) -> List[bytes]:
        """Tokens of requests of earlier connections whose time is over: the broker can't cancel them."""
        if not self._orphans:
            return []
        is_over = [t for t, held in self._held.items() if held.is_orphan and held.expires is not None and held.expires <= now]
        for token in is_over:
            self._release(self._held.pop(token))
        return is_over

    def greeting_failed(self, now: float) -> bool:
        """Whether WELCOME is overdue."""
        return self._welcome_until is not None and self._welcome_until <= now

    def deadline(self) -> float | None:
        """When `on_time` or `greeting_failed` has something to say."""
        due: List[Any] = [self._welcome_until]
        if self._orphans:
            due += [held.expires for held in self._held.values() if held.is_orphan]
        return min((at for at in due if at is not None), default=None)

    def take(self) -> List[List[records.Bytes]]:
        """Messages to send."""
        return self._blocks.take() if self._is_up else []
