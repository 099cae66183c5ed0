"""State of a client: requests that are outstanding, over all connections, without a socket, thread or clock.

Every request is held until its outcome has arrived, and is sent again over each new connection in order of number. Each gets
exactly one outcome. Times are in seconds of any clock that only goes forward.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from . import records
from .records import ATTACH_BYTES, ATTACHED, FRAMES, RESENT, VOLATILE, Blocks, Frames, Payload

WELCOME_TIMEOUT_SECONDS = 5.0
# Longest delay of a CONFIRM, and the outcomes after which it is sent at once.
CONFIRM_DELAY_SECONDS, CONFIRM_AT = 0.05, 1024
# Most refused requests that wait for their retry. At this many, no new ones are sent.
HELD_MAX = 1024
RETRY_LONGEST_SECONDS = 60.0
# How much earlier than ours the broker's deadline is: its outcome shows whether a worker had the request.
MARGIN_LEAST_SECONDS, MARGIN_MOST_SECONDS = 0.025, 0.05
TTL_MS_MAX = 0xFFFFFFFF


class Group:
    """Requests that were submitted together: they share a service, a deadline, and who takes their outcomes."""

    __slots__ = ("layout", "service", "deadline", "flags", "bodies")

    def __init__(self, service: bytes, bodies: Sequence[Payload], deadline: float | None, volatile: bool) -> None:
        self.service = service
        self.layout = records.request_layout(service)
        self.deadline = deadline
        self.flags = VOLATILE if volatile else 0
        self.bodies = bodies

    def take(self, index: int, status: int, part: int | None, body: records.Received) -> None:
        """Takes the outcome of the request at `index`, or if `part` is a number, part of its reply."""
        raise NotImplementedError


def ttl_ms(left: float) -> int:
    """Time to live for the broker, in ms, of a request that has this many seconds left."""
    margin = min(max(left / 8, MARGIN_LEAST_SECONDS), MARGIN_MOST_SECONDS, left / 2)
    return max(1, min(int((left - margin) * 1000), TTL_MS_MAX))


class ClientSession:
    """A client's numbered requests. `client` is its id: 16 bytes, unique."""

    def __init__(self, client: bytes) -> None:
        self.client = client
        self.next_number = 1
        self._entries: Dict[int, Tuple[Group, int, Payload]] = {}
        self.outstanding_bytes = 0
        self._deadlines: List[Tuple[float, int, int, Group]] = []
        # Numbers that a broker may have had on an earlier connection.
        self._elsewhere: Set[int] = set()
        # Next number of a part, of requests of whose reply some have come on this connection.
        self._parts: Dict[int, int] = {}
        self.epoch: int | None = None
        self.journal = False
        self.refusal: Tuple[int, str] | None = None
        self.resent = 0
        self._greeting_until: float | None = None
        self._begin()

    def _begin(self) -> None:
        """What belongs to a connection."""
        self.welcomed = False
        self._requests_max = 0
        self._bytes_max = 0
        self._cursor = next(iter(self._entries), self.next_number)
        self._in_flight = 0
        self._in_flight_bytes = 0
        # Refused, and not sent again: all of them, those that wait for their time, and those that may be sent.
        self._held_numbers: Set[int] = set()
        self._held: List[Tuple[float, int]] = []
        self._again: List[int] = []
        self._confirms: List[Tuple[int, int]] = []
        self._confirm_first = self._confirm_end = 0
        self._confirm_count = 0
        self._confirm_due: float | None = None
        self._abandoned: Dict[int, int] = {}
        self._cancels: List[int] = []
        self._lacks_storage = False
        self._greeted_with = self._cursor
        self._parts.clear()

    @property
    def outstanding(self) -> int:
        """Requests without an outcome."""
        return len(self._entries)

    @property
    def lowest(self) -> int:
        """The lowest number without an outcome, or the next number."""
        return next(iter(self._entries), self.next_number)

    def ended(self, until: int) -> List[records.Bytes]:
        """A message for a broker that was left: a greeting, and which of the numbers below `until` have their outcome."""
        block, expected = records.hello(self.client, self.lowest), self.lowest
        for number in [*itertools.takewhile(lambda number: number < until, self._entries), until]:
            if number > expected:
                block += records.confirm(expected, number - expected)
            expected = number + 1
        return [records.CLIENT_HEADER, block]

    def submit(self, group: Group) -> int:
        """Takes the requests of a group; the number of the first one. The others follow."""
        first = self.next_number
        entries, size = self._entries, 0
        number = first
        for index, body in enumerate(group.bodies):
            entries[number] = (group, index, body)
            size += len(body)
            number += 1
        self.outstanding_bytes += size
        self.next_number = number
        if group.deadline is not None:
            heapq.heappush(self._deadlines, (group.deadline, first, number, group))
        return first

    def connected(self, now: float) -> List[List[records.Bytes]]:
        """A connection is there: the messages to send first."""
        self.disconnected()
        self._begin()
        self._greeting_until = now + WELCOME_TIMEOUT_SECONDS
        return [[records.CLIENT_HEADER, records.hello(self.client, self._cursor)]]

    def disconnected(self) -> None:
        """The connection is lost."""
        if self.welcomed:
            # Those that it was sent and didn't refuse, it may have given to a worker.
            sent = itertools.takewhile(lambda number: number < self._cursor, self._entries)
            self._elsewhere.update(number for number in sent if number not in self._held_numbers)
        self.welcomed = False
        self._greeting_until = None

    def on_message(self, message: Sequence[bytes], now: float) -> None:
        """Takes a message. ProtocolError: the connection has to end."""
        entries, parts = self._entries, self._parts
        for record in records.to_client(*records.split(message, records.CLIENT_HEADER)):
            if record[0] == records.REPLY:
                _, number, status, part, body = record
                if part is not None:
                    self._on_part(number, status, part, body)
                    continue
                entry = entries.pop(number, None)
                if entry is None:
                    self._on_duplicate(number, now)
                    continue
                group, index, sent = entry
                size = len(sent)
                self._in_flight -= 1
                self._in_flight_bytes -= size
                self.outstanding_bytes -= size
                if number == self._confirm_end and self._confirm_count:
                    self._confirm_end = number + 1
                    self._confirm_count += 1
                else:
                    self._confirm(number, 1, now)
                if status != 200:
                    status, body = self._judged(number, status, body)
                    self._lacks_storage = False
                elif self._elsewhere:
                    self._elsewhere.discard(number)
                if parts:
                    parts.pop(number, None)
                group.take(index, status, None, body)
            elif record[0] == records.WELCOME:
                self._on_welcome(record, now)
            elif record[0] == records.REFUSED:
                self._on_refused(record, now)
            # ACCEPTED: durable. Nothing here depends on it.

    def _judged(self, number: int, status: int, body: records.Received) -> Tuple[int, records.Received]:
        """An outcome other than 200, as this client knows it."""
        elsewhere = number in self._elsewhere
        self._elsewhere.discard(number)
        if status == 206:
            if number in self._parts:
                return 200, body
            return 410, b"parts came on an earlier connection, not all of them perhaps"
        if status == 408 and elsewhere:
            return 504, b"the broker that had it before may have given it to a worker"
        return status, body

    def _on_part(self, number: int, status: int, part: int, body: records.Received) -> None:
        entry = self._entries.get(number)
        # Number 0 again: the request is executed once more, and the parts so far are void.
        if entry is not None and (part == 0 or part == self._parts.get(number)):
            self._parts[number] = part + 1
            entry[0].take(entry[1], status, part, body)

    def _on_duplicate(self, number: int, now: float) -> None:
        if number >= self.next_number:
            return
        self._confirm(number, 1, now)
        size = self._abandoned.pop(number, None)
        if size is not None:
            self._in_flight -= 1
            self._in_flight_bytes -= size

    def _on_welcome(self, record: Tuple[Any, ...], now: float) -> None:
        _, self.epoch, requests_max, self._bytes_max, journal = record
        self._requests_max = max(1, requests_max)
        self.journal = journal != 0
        if not self.welcomed:
            # The broker may have lost the last acknowledgements, or be another one. Cancelled requests are among these.
            for first, count in self._done_ranges():
                self._confirm(first, count, now)
        self.welcomed = True
        self._greeting_until = None

    def _done_ranges(self) -> Iterator[Tuple[int, int]]:
        """Ranges of settled numbers, from the one that HELLO named as the lowest that isn't."""
        expected = self._greeted_with
        for number in self._entries:
            if number > expected:
                yield expected, number - expected
            expected = number + 1
        if expected < self.next_number:
            yield expected, self.next_number - expected

    def _on_refused(self, record: Tuple[Any, ...], now: float) -> None:
        _, number, status, retry_ms, reason = record
        entry = self._entries.get(number)
        if entry is None or number >= self._cursor or number in self._held_numbers:
            size = self._abandoned.pop(number, None)
            if size is not None:
                self._in_flight -= 1
                self._in_flight_bytes -= size
                # It isn't sent again, and the broker must not wait for the number.
                if status != 409:
                    self._confirm(number, 1, now)
            return
        self._in_flight -= 1
        self._in_flight_bytes -= len(entry[2])
        if retry_ms == 0:
            self._remove(number)
            # The broker must not wait for the number; with 409 it belongs to another client's request.
            if status != 409:
                self._confirm(number, 1, now)
            self._elsewhere.discard(number)
            entry[0].take(entry[1], status, None, reason.encode())
            return
        self._lacks_storage |= status == 507
        self.refusal = (status, reason)
        heapq.heappush(self._held, (now + min(retry_ms / 1000, RETRY_LONGEST_SECONDS), number))
        self._held_numbers.add(number)

    def _remove(self, number: int) -> None:
        entry = self._entries.pop(number)
        self.outstanding_bytes -= len(entry[2])

    def _confirm(self, first: int, count: int, now: float) -> None:
        if self._confirm_count:
            if first == self._confirm_end:
                self._confirm_end += count
                self._confirm_count += count
                return
            self._confirms.append((self._confirm_first, self._confirm_end))
        self._confirm_first, self._confirm_end = first, first + count
        self._confirm_count += count
        if self._confirm_due is None:
            self._confirm_due = now + CONFIRM_DELAY_SECONDS

    def _put_confirms(self, blocks: Blocks) -> None:
        ranges = sorted([*self._confirms, (self._confirm_first, self._confirm_end)])
        first, end = ranges[0]
        for start, stop in ranges[1:]:
            if start <= end:
                end = max(end, stop)
            else:
                blocks.add(records.confirm(first, end - first))
                first, end = start, stop
        blocks.add(records.confirm(first, end - first))
        self._confirms = []
        self._confirm_count = 0
        self._confirm_due = None

    def pump(self, now: float, hurry: bool = False) -> List[List[records.Bytes]]:
        """Messages that may be sent now. `hurry`: confirms aren't delayed."""
        if not self.welcomed:
            return []
        blocks = Blocks(records.CLIENT_HEADER)
        for number in self._cancels:
            blocks.add(records.cancel(number))
        sends = bool(self._cancels or self._again or self._cursor < self.next_number)
        self._cancels = []
        # First, since they make space for requests at the broker.
        due = self._confirm_due
        if due is not None and (due <= now or sends or hurry or self._confirm_count >= CONFIRM_AT):
            self._put_confirms(blocks)
        if self._again:
            again, self._again = self._again, []
            for position, number in enumerate(again):
                entry = self._entries.get(number)
                if entry is not None and not self._put_request(blocks, number, entry, now):
                    self._again = again[position:]
                    break
                self._held_numbers.discard(number)
        if not self._again and len(self._held) < HELD_MAX:
            self._put_new(blocks, now)
        return blocks.take()

    def _put_new(self, blocks: Blocks, now: float) -> None:
        """Requests from the cursor on, as many as the broker has space for. This is the path that is taken for all."""
        entries, number, end = self._entries, self._cursor, self.next_number
        pieces: List[Payload] = []
        size = 0
        last: Group | None = None
        while number < end:
            entry = entries.get(number)
            if entry is None:
                number += 1
                continue
            group, _, body = entry
            length = len(body)
            if type(body) is not bytes or length > ATTACH_BYTES or number in self._elsewhere or size > 1 << 20:
                blocks.extend(pieces, size)
                pieces, size = [], 0
                if not self._put_request(blocks, number, entry, now):
                    break
                number += 1
                continue
            if self._in_flight >= self._requests_max or (
                self._in_flight and self._in_flight_bytes + length > self._bytes_max
            ):
                break
            if group is not last:
                last, pack, flags, service = group, group.layout.pack, group.flags, group.service
                ttl = 0 if group.deadline is None else ttl_ms(group.deadline - now)
                name_bytes, head_bytes = len(service), group.layout.size
            pieces.append(pack(2, flags, number, ttl, name_bytes, service, length))
            pieces.append(body)
            size += head_bytes + length
            self._in_flight += 1
            self._in_flight_bytes += length
            number += 1
        blocks.extend(pieces, size)
        self._cursor = number

    def _put_request(self, blocks: Blocks, number: int, entry: Tuple[Group, int, Payload], now: float) -> bool:
        """Any one request, unless the broker has no space for it."""
        group, _, body = entry
        length = len(body)
        if self._in_flight >= self._requests_max or (self._in_flight and self._in_flight_bytes + length > self._bytes_max):
            return False
        flags = group.flags | (FRAMES if isinstance(body, Frames) else 0)
        if number in self._elsewhere:
            flags |= RESENT
            self.resent += 1
        ttl = 0 if group.deadline is None else ttl_ms(group.deadline - now)
        name = group.service
        if length > ATTACH_BYTES:
            blocks.attach(group.layout.pack(2, flags | ATTACHED, number, ttl, len(name), name, 0), body)
        else:
            blocks.add(group.layout.pack(2, flags, number, ttl, len(name), name, length) + bytes(body))
        self._in_flight += 1
        self._in_flight_bytes += length
        return True

    def cancel(self, number: int, now: float, status: int = 499, reason: str = "cancelled") -> bool:
        """Ends a request on this side, and at the broker. False: it has ended."""
        entry = self._entries.get(number)
        if entry is None:
            return False
        self._remove(number)
        self._parts.pop(number, None)
        self._elsewhere.discard(number)
        if self.welcomed:
            if number < self._cursor and number not in self._held_numbers:
                self._abandoned[number] = len(entry[2])
                self._cancels.append(number)
            else:
                # The broker must not wait for a number that never comes.
                self._confirm(number, 1, now)
        self._held_numbers.discard(number)
        entry[0].take(entry[1], status, None, reason.encode())
        return True

    def cancel_group(self, first: int, group: Group, now: float) -> None:
        """Ends all requests of a group whose first number this is."""
        for number in range(first, first + len(group.bodies)):
            entry = self._entries.get(number)
            # After a fork, a group of the parent may have numbers that are others' here.
            if entry is not None and entry[0] is group:
                self.cancel(number, now)

    def end_all(self, now: float, status: int, reason: str) -> None:
        """Ends all requests."""
        for number in list(self._entries):
            self.cancel(number, now, status, reason)

    def on_time(self, now: float, connection_failure: str = "") -> None:
        """Does what is due. `connection_failure`: why there is no connection, for people."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, first, end, _ = heapq.heappop(self._deadlines)
            for number in range(first, end):
                if number in self._entries:
                    self._expire(number, now, connection_failure)
        while self._held and self._held[0][0] <= now:
            _, number = heapq.heappop(self._held)
            if number in self._held_numbers:
                self._again.append(number)
        if len(self._deadlines) > 1000 + 2 * len(self._entries):
            self._deadlines = [due for due in self._deadlines if any(n in self._entries for n in range(due[1], due[2]))]
            heapq.heapify(self._deadlines)

    def _expire(self, number: int, now: float, connection_failure: str) -> None:
        was_sent = self.welcomed and number < self._cursor and number not in self._held_numbers
        if was_sent or number in self._elsewhere:
            status, reason = 504, "no outcome came within its time"
        else:
            status, reason = 408, "no broker took it within its time"
            if number in self._held_numbers and self.refusal:
                reason += f"; the last refusal was {self.refusal[0]}: {self.refusal[1]}"
        if connection_failure:
            reason += f"; {connection_failure}"
        self.cancel(number, now, status, reason)

    @property
    def refuses_everything(self) -> bool:
        """Whether another broker should be tried: this one has no storage, and nothing of ours."""
        return self._lacks_storage and self._in_flight == 0 and bool(self._held_numbers)

    def greeting_failed(self, now: float) -> bool:
        """Whether WELCOME is overdue."""
        return self._greeting_until is not None and self._greeting_until <= now

    def deadline(self) -> float | None:
        """When `on_time` or `pump` has something to do."""
        due = [self._greeting_until, self._confirm_due if self.welcomed else None]
        due += [self._held[0][0] if self._held else None, self._deadlines[0][0] if self._deadlines else None]
        return min((at for at in due if at is not None), default=None)
