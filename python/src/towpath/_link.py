"""A DEALER socket to one of several endpoints, replaced when its connection is lost: the numbered protocol begins anew on each connection."""

from __future__ import annotations

import itertools
import logging
import os
import re
import stat
import struct
from pathlib import Path
from typing import Collection, Dict, List, Sequence, Tuple, Union, cast

import zmq

from ._core.failover import Failover
from ._core.records import Bytes

log = logging.getLogger("towpath")

FILES_PORT, REQUESTS_PORT = 5571, 5555

# A connection that isn't there after this time is tried elsewhere.
CONNECT_TIMEOUT_SECONDS = 5.0
# A connection that ended sooner wasn't a good one: two clients with one id would otherwise take turns at full speed.
LASTS_SECONDS = 1.0
# From here on, a frame without a copy is cheaper than the copy.
COPY_BYTES = 64 << 10
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 8000
# Its number where pyzmq has no name for it.
_METADATA = getattr(zmq, "METADATA", 95)
# As numbers: with members of an enumeration each operation costs more than it does itself.
_POLLIN, _NOBLOCK, _MORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE | zmq.NOBLOCK)
_MONITOR_EVENT = struct.Struct("=Hi")
_MONITORS = itertools.count()
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)

Key = Union[str, "os.PathLike[str]", Tuple[bytes, bytes]]
ServerKey = Union[str, bytes, "os.PathLike[str]"]


class Security:
    """How a connection is secured, read from the arguments `key`, `server_key`, `user` and `password` of a client."""

    def __init__(
        self,
        key: Key | None = None,
        server_key: ServerKey | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        if key is not None and server_key is None:
            raise ValueError("with key=, server_key= is needed: the server's public key, or a file that has it")
        if user is not None and server_key is not None:
            raise ValueError("either a user with a password, or keys")
        self.user, self.password = user, password
        self._files = (key, server_key)
        self.server_key = None if server_key is None else _public_key(server_key)
        self._pair = (b"", b"") if self.server_key is None else _pair(key)

    def apply(self, socket: zmq.Socket[bytes]) -> None:
        if self.server_key is not None:
            socket.curve_publickey, socket.curve_secretkey = self._pair
            socket.curve_serverkey = self.server_key
        elif self.user is not None:
            socket.plain_username = self.user.encode()
            socket.plain_password = (self.password or "").encode()

    @property
    def is_for_programs(self) -> bool:
        """Whether `arguments` can say it: a secret key must be a file."""
        return not isinstance(self._files[0], tuple)

    def arguments(self) -> List[str]:
        """The same as options of `tow`; the password is for TOW_PASSWORD."""
        key, server_key = self._files
        options = [] if server_key is None or self.server_key is None else ["--server-key", self.server_key.decode()]
        if key is not None and not isinstance(key, tuple):
            options += ["--key", os.fspath(Path(key).expanduser())]
        return options if self.user is None else [*options, "--user", self.user]

    @property
    def name(self) -> str:
        return "CURVE" if self.server_key else "PLAIN" if self.user is not None else "NULL"


def _pair(key: Key | None) -> Tuple[bytes, bytes]:
    """Public and secret key, in Z85; a new pair without a key."""
    if key is None:
        return zmq.curve_keypair()
    if isinstance(key, tuple):
        return key
    path = Path(key).expanduser()
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(f"{path}: other users may read this secret key: chmod 600 it")
    from zmq.auth import load_certificate

    public, secret = load_certificate(path)
    if secret is None:
        raise ValueError(f"{path} has no secret key; the file's name ends in _secret")
    return public, secret


def _public_key(key: ServerKey) -> bytes:
    """A public key in Z85, from itself, its 64 hex digits, or a file."""
    text = key.decode() if isinstance(key, bytes) else os.fspath(key)
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        from zmq.utils import z85

        return z85.encode(bytes.fromhex(text))
    path = Path(text).expanduser()
    if len(text) == 40 and not path.exists():
        return text.encode()
    # Here, since it imports asyncio.
    from zmq.auth import load_certificate

    return load_certificate(path)[0]


def endpoint(name: str, port: int) -> str:
    """An endpoint by its short name, such as `host`, `host:5571`, `[::1]` or `ipc:///run/tow`."""
    if name.startswith("ipc://"):
        return name
    host = name[len("tcp://") :] if name.startswith("tcp://") else name
    if not host or "/" in host:
        raise ValueError(f"{name!r} is no endpoint, such as HOST, HOST:{port} or ipc://PATH")
    if re.search(r":\d+$", host) and not (host.count(":") > 1 and not host.startswith("[")):
        return f"tcp://{host}"
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return f"tcp://{host}:{port}"


def endpoints(names: str | Sequence[str], port: int) -> List[str]:
    found = [endpoint(name, port) for name in ([names] if isinstance(names, str) else names)]
    if not found:
        raise ValueError("an endpoint is missing")
    return found


class Link:
    """A connection to the current of several endpoints. One thread at a time uses it. Times are in seconds.

    `is_up`: the handshake is over. `failures`: why each endpoint failed since the last connection. `refused`: endpoints that refuse our
    key, or that we refuse.
    """

    def __init__(self, endpoints: Sequence[str], security: Security, properties: Sequence[bytes]) -> None:
        self.endpoints = list(endpoints)
        self.failover = Failover(len(self.endpoints))
        self.failures: Dict[str, str] = {}
        self.refused: Dict[str, str] = {}
        self.is_up = False
        self.socket: zmq.Socket[bytes] | None = None
        self.monitor: zmq.Socket[bytes] | None = None
        # Descriptors of both. They become readable once for each event: all that has arrived must be taken then.
        self.descriptors: Tuple[int, ...] = ()
        self._look_at_monitor = False
        self._security = security
        self._properties = properties
        self._next_attempt = 0.0
        self._since = 0.0
        self._handshake_failure = ""

    @property
    def endpoint(self) -> str:
        return self.endpoints[self.failover.current]

    @property
    def failure(self) -> str:
        """Why there is no connection, for people; empty if nothing has failed."""
        return "; ".join(f"{endpoint}: {why}" for endpoint, why in self.failures.items())

    def _open(self, now: float) -> None:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = 0
        socket.ipv6 = True
        # A connection of libzmq's own would be one without a HELLO.
        socket.reconnect_ivl = -1
        socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS
        for item in self._properties:
            socket.setsockopt(_METADATA, item)
        self._security.apply(socket)
        # pyzmq names monitors by descriptors, which come again before libzmq has freed the name.
        self.monitor = socket.get_monitor_socket(_EVENTS, f"inproc://towpath-{os.getpid()}-{next(_MONITORS)}")
        self.socket, self._since, self._handshake_failure = socket, now, ""
        self.descriptors = (int(socket.getsockopt(zmq.FD)), int(self.monitor.getsockopt(zmq.FD)))
        self._look_at_monitor = True
        socket.connect(self.endpoint)

    def readable(self, descriptors: Collection[int]) -> None:
        """Notes which descriptors were found readable."""
        if len(self.descriptors) == 2 and self.descriptors[1] in descriptors:
            self._look_at_monitor = True

    def step(self, now: float) -> bool:
        """Opens what has to be opened, and takes events of the connection. True: the connection has just come up."""
        if self.socket is None:
            if now < self._next_attempt:
                return False
            try:
                self._open(now)
            except zmq.ZMQError as error:
                self.lost(now, str(error))
                return False
        came_up = False
        while self._look_at_monitor and self.monitor is not None:
            try:
                event, _ = self.monitor.recv_multipart(_NOBLOCK)
            except zmq.Again:
                self._look_at_monitor = False
                break
            kind, value = _MONITOR_EVENT.unpack(event)
            came_up |= self._on_event(kind, value, now)
        if self.socket is not None and not self.is_up and now - self._since >= CONNECT_TIMEOUT_SECONDS:
            self.lost(now, f"no answer within {CONNECT_TIMEOUT_SECONDS:g} s")
        return came_up and self.is_up

    def _on_event(self, kind: int, value: int, now: float) -> bool:
        if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            log.debug("connected to %s", self.endpoint)
            self.is_up, self._since = True, now
            self.failures.clear()
            self.refused.clear()
            return True
        if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.refuse(now, _REFUSED_KEY if self._security.server_key else "the server refuses the user or the password")
        elif kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
                self.refuse(now, f"the server wants another mechanism than {self._security.name}: {_MECHANISM[self._security.name]}")
            else:
                self._handshake_failure = f"the handshake failed (libzmq's {value:#x})"
                if self._security.server_key:
                    self.refuse(now, self._handshake_failure + ": " + _REFUSED_KEY)
        elif kind == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            self._handshake_failure = "the connection ended during the handshake"
            if self._security.name == "NULL":
                self._handshake_failure += ": if the server has a key, server_key= is needed"
        elif kind in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED) and self.socket is not None:
            self.lost(now, "the connection ended" if self.is_up else self._handshake_failure or "no connection")
        return False

    def refuse(self, now: float, why: str) -> None:
        """Gives up an endpoint that this client and the server can never agree about."""
        self.refused[self.endpoint] = why
        self.lost(now, why)

    def lost(self, now: float, why: str) -> None:
        """Closes the connection, and goes on to the next endpoint."""
        lasted = self.is_up and now - self._since >= LASTS_SECONDS
        if why != self.failures.get(self.endpoint):
            log.info("%s: %s", self.endpoint, why)
        self.failures[self.endpoint] = why
        self.close()
        if lasted:
            self.failover.succeeded()
        self._next_attempt = now + self.failover.failed()

    @property
    def refused_by_all(self) -> bool:
        return len(self.refused) == len(set(self.endpoints))

    def close(self, linger_ms: int = 0) -> None:
        """Closes the sockets; what was sent may leave for so many ms."""
        self.is_up = False
        if self.socket is not None and self.monitor is not None:
            # In this order: libzmq's thread would wait for ever for somebody to take an event.
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close(linger_ms)
        self.socket = self.monitor = None
        self.descriptors = ()

    def has_input(self) -> bool:
        # Much cheaper than an exception.
        return self.socket is not None and bool(cast(int, self.socket.getsockopt(zmq.EVENTS)) & _POLLIN)

    def receive(self) -> List[bytes] | None:
        """The next message, if one is there."""
        if self.socket is None or not self.has_input():
            return None
        return self.socket.recv_multipart(_NOBLOCK)

    def receive_views(self) -> List[Union[bytes, memoryview]] | None:
        """The next message, if one is there, with large frames as they are in libzmq's memory."""
        if self.socket is None or not self.has_input():
            return None
        frames = self.socket.recv_multipart(_NOBLOCK, copy=False)
        return [frame.buffer if len(frame) >= COPY_BYTES else frame.bytes for frame in frames]

    def send(self, message: Sequence[Bytes]) -> None:
        if self.socket is None:
            return
        # Without a limit on its queue a socket takes everything at once; large bodies without a copy.
        *heads, last = message
        for frame in heads:
            self.socket.send(frame, _MORE)
        self.socket.send(last, _NOBLOCK, copy=len(last) < COPY_BYTES)

    def deadline(self) -> float | None:
        """When `step` has something to do without an event."""
        if self.socket is None:
            return self._next_attempt
        return None if self.is_up else self._since + CONNECT_TIMEOUT_SECONDS


_REFUSED_KEY = "it refuses our key (key=), or its own key isn't the one in server_key="
_MECHANISM = {
    "NULL": "if it has a key, give server_key=, if it has passwords, user=",
    "PLAIN": "it has no passwords; it may have a key, for server_key=",
    "CURVE": "it has no key; leave out server_key= and key=",
}
