"""A thread's wait for descriptors and for other threads."""

from __future__ import annotations

import math
import select
import socket
from typing import Collection, Sequence, Tuple


class Wake:
    """Wakes the one thread that waits, from any other. A pair of connected sockets, which every system can wait for."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # Whether the waiting thread has found something to clear.
        self._is_readable = False
        # Whether a byte is on its way. Each write releases the GIL, and the threads would take turns for every request.
        self._is_set = False
        self._registered: Tuple[int, ...] | None = None
        self._poll = select.poll() if hasattr(select, "poll") else None

    def set(self) -> None:
        """Ends the current wait, or the next one."""
        if self._is_set:
            return
        try:
            self._is_set = True
            self._writer.send(b"\0")
        except OSError:
            # Full, so it wakes anyway; or closed.
            pass
        except BaseException:
            # A KeyboardInterrupt, perhaps before the byte was written.
            self._is_set = False
            raise

    def clear(self) -> None:
        """Called by the waiting thread, before it looks what there is to do."""
        if self._is_readable:
            # In this order: a KeyboardInterrupt or `set` may come between.
            try:
                self._reader.recv(4096)
            except OSError:
                pass
            self._is_set = False
            self._is_readable = False

    def wait(self, descriptors: Sequence[int], timeout: float) -> Collection[int]:
        """Waits until a descriptor is readable, `set` is called, or this many seconds have passed. Those that are readable."""
        # After an interrupted `clear`, nobody has looked yet what there is to do.
        found = self._wait(descriptors, 0 if self._is_readable else timeout)
        if self._reader.fileno() in found:
            self._is_readable = True
        elif self._is_readable:
            found = [*found, self._reader.fileno()]
        return found

    def _wait(self, descriptors: Sequence[int], timeout: float) -> Collection[int]:
        if self._poll is None:
            return select.select([*descriptors, self._reader.fileno()], [], [], timeout)[0]
        wanted = tuple(descriptors)
        if wanted != self._registered:
            self._poll = select.poll()
            for descriptor in (*wanted, self._reader.fileno()):
                self._poll.register(descriptor, select.POLLIN)
            self._registered = wanted
        return [descriptor for descriptor, _ in self._poll.poll(math.ceil(timeout * 1000))]

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
