"""Connections to a file server, and operations on them, for threads."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import Any, Callable, Generator, List, Sequence

from ._core.files import Buffer, Credit, Message, Operation
from ._link import Link, Security
from ._wake import Wake
from .errors import Closed, ConnectFailed, ProtocolError, Timeout, WrongKey

PROPERTY = b"X-Towpath-Files:1"
# Connections that are kept for later operations.
IDLE_MAX = 4


class FilesLink:
    """A connection, and what belongs to it. One thread at a time uses it."""

    def __init__(self, endpoints: Sequence[str], security: Security) -> None:
        self.link = Link(endpoints, security, [PROPERTY])
        self.credit = Credit()
        self._ids = itertools.count(1)
        self._was_up = False

    def next_id(self) -> int:
        return next(self._ids) & 0xFFFFFFFF

    def step(self, now: float) -> None:
        """Takes events of the connection. ConnectFailed: no endpoint answers, or the connection is lost."""
        link = self.link
        link.step(now)
        if link.is_up:
            self._was_up = True
        elif self._was_up:
            raise ConnectFailed(link.failure or "the connection ended")
        elif link.refused_by_all:
            raise WrongKey(link.failure)
        elif len(link.failures) == len(set(link.endpoints)):
            raise ConnectFailed(link.failure)

    def close(self, linger_ms: int = 0) -> None:
        self.link.close(linger_ms)


class Connections:
    """Connections to one server. Each is used by one operation at a time; those that ended well are used again. From any thread."""

    def __init__(self, endpoints: Sequence[str], security: Security) -> None:
        self._endpoints, self._security = endpoints, security
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: List[Connection] = []
        self.is_closed = False

    def take(self, timeout: float | None) -> Connection:
        if self._pid != os.getpid():
            # Forked: the parent's connections aren't ours.
            self._start()
        if self.is_closed:
            raise Closed("the files are closed")
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if connection.is_alive():
                return connection
            connection.close()
        connection = Connection(self._endpoints, self._security)
        try:
            connection.open(timeout)
        except BaseException:
            connection.close()
            raise
        return connection

    def put(self, connection: Connection, is_clean: bool) -> None:
        if is_clean and not self.is_closed and self._pid == os.getpid():
            with self._lock:
                if len(self._idle) < IDLE_MAX:
                    self._idle.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        if self._pid != os.getpid():
            self._start()
        self.is_closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def run(self, make: Callable[[Connection], Operation], timeout: float | None) -> Generator[Any, None, None]:
        """Events of an operation, until it is over. Timeout: nothing has come for `timeout` seconds."""
        connection = self.take(timeout)
        is_clean = False
        try:
            operation = make(connection)
            connection.send_all(operation.take())
            while not operation.is_over:
                try:
                    events = operation.feed(connection.receive(timeout))
                except ProtocolError:
                    raise
                except Exception:
                    is_clean = operation.is_over
                    raise
                connection.send_all(operation.take())
                yield from events
            is_clean = True
        finally:
            self.put(connection, is_clean)


class Connection(FilesLink):
    """A connection that one thread waits on."""

    def __init__(self, endpoints: Sequence[str], security: Security) -> None:
        super().__init__(endpoints, security)
        self._wake = Wake()
        self._pid = os.getpid()

    def open(self, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while not self.link.is_up:
            self._turn(until, timeout)

    def _turn(self, until: float | None, timeout: float | None) -> None:
        """Waits for something to happen, unless it has."""
        was_up = self.link.is_up
        self.step(time.monotonic())
        if self.link.is_up and (not was_up or self.link.has_input()):
            return
        now = time.monotonic()
        if until is not None and now >= until:
            raise Timeout(f"{self.link.endpoint}: nothing came for {timeout:g} s" + (f"; {self.link.failure}" if self.link.failure else ""))
        due = [at for at in (until, self.link.deadline()) if at is not None]
        wait = max(0.0, min(due) - now) if due else 60.0
        self.link.readable(self._wake.wait(self.link.descriptors, wait))

    def is_alive(self) -> bool:
        """Whether an idle connection is still there."""
        try:
            self.link.readable(self._wake.wait(self.link.descriptors, 0))
            self.step(time.monotonic())
        except ConnectFailed:
            return False
        return True

    def send_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.link.send(message)

    def receive(self, timeout: float | None) -> List[Buffer]:
        """The next message. Timeout: none came for so many seconds."""
        message = self.link.receive_views()
        if message is not None:
            return message
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._turn(until, timeout)
            message = self.link.receive_views()
            if message is not None:
                return message

    def close(self, linger_ms: int = 0) -> None:
        if self._pid == os.getpid():
            super().close(linger_ms)
            self._wake.close()
