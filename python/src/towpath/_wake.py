"""A thread's wait for sockets and for other threads."""

from __future__ import annotations

import math
import socket
from typing import Iterable

import zmq


class Wake:
    """Wakes the one thread that waits, from any other. A pair of connected sockets, which every system can poll."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._is_set = False

    def set(self) -> None:
        """Ends the current wait, or the next one."""
        if not self._is_set:
            self._is_set = True
            try:
                self._writer.send(b"\0")
            except OSError:
                # Full, so it wakes anyway; or closed.
                pass

    def clear(self) -> None:
        """Called by the waiting thread, before it looks what there is to do."""
        if self._is_set:
            try:
                self._reader.recv(4096)
            except OSError:
                pass
            self._is_set = False

    def wait(self, sockets: Iterable[zmq.Socket[bytes] | None], timeout: float) -> None:
        """Waits until one of the sockets has something, or `set` is called, or this many seconds have passed."""
        waits = [(found, zmq.POLLIN) for found in sockets if found is not None]
        zmq.zmq_poll([*waits, (self._reader, zmq.POLLIN)], math.ceil(timeout * 1000))

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
