"""Record what libzmq really sends, as golden bytes for the tests of the zmtp crate.

A real libzmq socket (through pyzmq) connects to a raw TCP listener on loopback. The listener plays the other side by
hand, reads every byte that libzmq writes, cuts them into greeting, commands and messages, and stores one text file for
each case. The format is described in the README.md beside those files.

    python capture_golden.py ../../crates/zmtp/tests/golden
"""

import pathlib
import re
import socket
import sys
import textwrap

import curve
import zmq
from zmq.auth.thread import ThreadAuthenticator

DEADLINE_SECONDS = 5
MORE, LONG, COMMAND = 1, 2, 4
BODY_SIZES = (0, 1, 255, 256, 70_000)


def greeting(mechanism: str) -> bytes:
    return (
        b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + mechanism.encode().ljust(20, b"\0") + bytes(32)
    )


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | LONG]) + len(body).to_bytes(8, "big") + body


def command(name: str, data: bytes = b"") -> bytes:
    return frame(bytes([len(name)]) + name.encode() + data, COMMAND)


def metadata(**properties: bytes) -> bytes:
    return b"".join(
        bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value
        for name, value in ((name.replace("_", "-"), value) for name, value in properties.items())
    )


def parse_metadata(data: bytes) -> dict[str, bytes]:
    properties, at = {}, 0
    while at < len(data):
        name_length = data[at]
        name = data[at + 1 : at + 1 + name_length].decode()
        at += 1 + name_length
        value_length = int.from_bytes(data[at : at + 4], "big")
        properties[name] = data[at + 4 : at + 4 + value_length]
        at += 4 + value_length
    return properties


def quoted(data: bytes) -> str:
    """Bytes on one line without spaces: printable ones as they are, the others as \\xHH."""
    return "".join(chr(o) if 33 <= o < 127 and o != 0x5C else f"\\x{o:02x}" for o in data)


def describe_command(body: bytes) -> str:
    name_length = body[0]
    if 1 + name_length > len(body):
        # libzmq 4.3.5 writes the PLAIN server's ERROR as ^RROR: 0x5e where the length of the name and the E belong
        # (what C makes of the literal "\\x5ERROR"). A peer can only treat it as a malformed command.
        return f"malformed {quoted(body)}"
    name, data = body[1 : 1 + name_length].decode(), body[1 + name_length :]
    if name in ("READY", "INITIATE"):
        return " ".join([name, *(f"{key}={quoted(value)}" for key, value in parse_metadata(data).items())])
    if name == "HELLO":
        user = data[1 : 1 + data[0]]
        return f"HELLO user={quoted(user)} password={quoted(data[2 + data[0] :])}"
    if name == "ERROR":
        return f"ERROR reason={quoted(data[1:])}"
    if name == "PING":
        return f"PING ttl={int.from_bytes(data[:2], 'big')} context={quoted(data[2:])}"
    if name == "PONG":
        return f"PONG context={quoted(data)}"
    return name


def hex_runs(data: bytes) -> str:
    """Hex, with eight or more equal bytes in a row written as HH*COUNT."""
    tokens, plain = [], b""
    for run in re.finditer(rb"(.)\1*", data, re.DOTALL):
        if len(run[0]) < 8:
            plain += run[0]
            continue
        if plain:
            tokens.append(plain.hex(" "))
        plain = b""
        tokens.append(f"{run[0][0]:02x}*{len(run[0])}")
    if plain:
        tokens.append(plain.hex(" "))
    return textwrap.fill(" ".join(tokens), 96)


class Wire:
    """The listener's end of one connection. Everything read is kept, cut into units, each with a description."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.connection.settimeout(DEADLINE_SECONDS)
        self.units: list[tuple[str, bytes]] = []

    def write(self, data: bytes) -> None:
        self.connection.sendall(data)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.connection.recv(count - len(data))
            if not piece:
                raise EOFError(f"libzmq closed the connection after {self.units}")
            data += piece
        return data

    def read_greeting(self) -> None:
        data = self.exactly(64)
        mechanism = data[12:32].rstrip(b"\0").decode()
        self.units.append((f"greeting {data[10]}.{data[11]} {mechanism} as-server={data[32]}", data))

    def read_frame(self) -> tuple[int, bytes, bytes]:
        flags = self.exactly(1)
        size = self.exactly(8 if flags[0] & LONG else 1)
        body = self.exactly(int.from_bytes(size, "big"))
        return flags[0], body, flags + size + body

    def read_command(self) -> None:
        flags, body, data = self.read_frame()
        if not flags & COMMAND:
            raise ValueError(f"a message where a command was expected: {data[:40]!r}")
        self.units.append((f"command {describe_command(body)}", data))

    def read_message(self) -> None:
        """Read one message; commands before it are stored as units of their own."""
        lengths, message = [], b""
        while True:
            flags, body, data = self.read_frame()
            if flags & COMMAND:
                self.units.append((f"command {describe_command(body)}", data))
                continue
            lengths.append(len(body))
            message += data
            if not flags & MORE:
                break
        self.units.append(("message " + " ".join(map(str, lengths)), message))

    def handshake_null(self, socket_type: bytes, **properties: bytes) -> None:
        self.write(greeting("NULL"))
        self.read_greeting()
        self.write(command("READY", metadata(Socket_Type=socket_type, **properties)))
        self.read_command()


class Case:
    """One libzmq socket connected to one listener."""

    def __init__(self, context: zmq.Context, kind: int, **options):
        self.context, self.kind, self.options = context, kind, options

    def __enter__(self) -> tuple[zmq.Socket, Wire]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(DEADLINE_SECONDS)
            self.socket = self.context.socket(self.kind)
            for name, value in {"linger": 0, "sndtimeo": DEADLINE_SECONDS * 1000, **self.options}.items():
                setattr(self.socket, name, value)
            self.socket.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
            self.connection, _ = listener.accept()
        return self.socket, Wire(self.connection)

    def __exit__(self, *_):
        self.socket.close()
        self.connection.close()


def send_all_sizes(send, sizes=BODY_SIZES) -> int:
    """Single frames of each size, then all sizes in one message. Returns how many messages were sent."""
    for size in sizes:
        send([b"a" * size])
    send([b"m" * size for size in sizes])
    return len(sizes) + 1


def capture_dealer(context):
    with Case(context, zmq.DEALER) as (dealer, wire):
        wire.handshake_null(b"ROUTER", Identity=b"")
        for _ in range(send_all_sizes(dealer.send_multipart)):
            wire.read_message()
        return wire.units


def capture_dealer_identity(context):
    with Case(context, zmq.DEALER, identity=b"towpath-7", probe_router=1) as (dealer, wire):
        wire.handshake_null(b"ROUTER", Identity=b"")
        dealer.send(b"after the probe")
        wire.read_message()
        wire.read_message()
        return wire.units


def capture_req(context):
    with Case(context, zmq.REQ, rcvtimeo=DEADLINE_SECONDS * 1000) as (req, wire):
        wire.handshake_null(b"ROUTER", Identity=b"")

        def ask(frames):
            req.send_multipart(frames)
            wire.read_message()
            wire.write(frame(b"", MORE) + frame(b"reply"))
            req.recv()

        send_all_sizes(ask)
        return wire.units


def capture_req_correlate(context):
    with Case(context, zmq.REQ, req_correlate=1, req_relaxed=1) as (req, wire):
        wire.handshake_null(b"ROUTER", Identity=b"")
        for question in (b"first", b"second"):
            req.send(question)
            wire.read_message()
        return wire.units


def capture_router(context):
    # The listener is a DEALER with a routing id, so that the ROUTER can address it; it greets first with a message,
    # and the ROUTER answers only when that has come, so it knows the id.
    with Case(context, zmq.ROUTER, router_mandatory=1, rcvtimeo=DEADLINE_SECONDS * 1000) as (router, wire):
        wire.handshake_null(b"DEALER", Identity=b"peer")
        wire.write(frame(b"hello"))
        if router.recv_multipart() != [b"peer", b"hello"]:
            raise ValueError("the ROUTER did not see the listener's routing id")
        for _ in range(send_all_sizes(lambda frames: router.send_multipart([b"peer", *frames]))):
            wire.read_message()
        return wire.units


def capture_rep(context):
    with Case(context, zmq.REP, rcvtimeo=DEADLINE_SECONDS * 1000) as (rep, wire):
        wire.handshake_null(b"REQ", Identity=b"")
        wire.write(frame(b"", MORE) + frame(b"question"))
        rep.recv()
        rep.send(b"answer")
        wire.read_message()
        return wire.units


def capture_heartbeat(context):
    # A PING of libzmq (with its TTL in tenths of a second), and its answer to a PING with a context.
    with Case(context, zmq.DEALER, heartbeat_ivl=100, heartbeat_ttl=3_000, heartbeat_timeout=4_000) as (_, wire):
        wire.handshake_null(b"ROUTER", Identity=b"")
        wire.read_command()
        wire.write(command("PONG"))
        return wire.units


def capture_pong(context):
    with Case(context, zmq.DEALER) as (_, wire):
        wire.handshake_null(b"ROUTER", Identity=b"")
        for ping_context in (b"", b"tick", b"0123456789abcdef"):
            wire.write(command("PING", (30).to_bytes(2, "big") + ping_context))
            wire.read_command()
        return wire.units


def capture_plain_client(context):
    with Case(context, zmq.DEALER, plain_username=b"ada", plain_password=b"lovelace") as (dealer, wire):
        wire.write(greeting("PLAIN"))
        wire.read_greeting()
        wire.read_command()
        wire.write(command("WELCOME"))
        wire.read_command()
        wire.write(command("READY", metadata(Socket_Type=b"ROUTER", Identity=b"")))
        dealer.send_multipart([b"", b"hello"])
        wire.read_message()
        return wire.units


def capture_plain_server(context, password=b"lovelace"):
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_plain(domain="towpath", passwords={"ada": "lovelace"})
    try:
        with Case(context, zmq.ROUTER, plain_server=1, zap_domain=b"towpath") as (_, wire):
            wire.write(greeting("PLAIN"))
            wire.read_greeting()
            wire.write(command("HELLO", b"\x03ada" + bytes([len(password)]) + password))
            wire.read_command()
            if password == b"lovelace":
                wire.write(command("INITIATE", metadata(Socket_Type=b"DEALER", Identity=b"")))
                wire.read_command()
            return wire.units
    finally:
        authenticator.stop()


# Up to a MESSAGE of 255 bytes, and from 256 on: hex of what is sealed can't be shortened.
SEALED_SIZES = (0, 1, 222, 223, 3_000)

# Of the recordings with CURVE. The tests of the zmtp crate have the same keys and randomness.
SERVER_SECRET, CLIENT_SECRET = b"S" * 32, b"C" * 32


def counting(start: int):
    """Randomness that counts, from a byte on."""
    position = start

    def random(length: int) -> bytes:
        nonlocal position
        data = bytes((position + at) % 256 for at in range(length))
        position += length
        return data

    return random


def curve_keys(secret: bytes) -> dict[str, bytes]:
    return {"curve_secretkey": curve.z85(secret), "curve_publickey": curve.z85(curve.public(secret))}


class CurveWire(Wire):
    """Keeps what this side writes, too."""

    def __init__(self, connection: socket.socket):
        super().__init__(connection)
        self.ours: list[tuple[str, bytes]] = []

    def write_unit(self, description: str, data: bytes) -> None:
        self.ours.append((description, data))
        self.write(data)

    def read_command(self, name: str) -> bytes:
        _, body, data = self.read_frame()
        if body[1 : 1 + body[0]] != name.encode():
            raise ValueError(f"{body[:20]!r} where {name} was expected")
        self.units.append((f"command {name}", data))
        return body

    def read_sealed(self, side: curve.Side) -> None:
        """One message; its frames are frames on the wire."""
        lengths, message = [], b""
        while True:
            flags, body, data = self.read_frame()
            if flags & ~LONG:
                raise ValueError(f"flags {flags} outside of the seal")
            inner, text = side.open(body)
            message += data
            lengths.append(len(text))
            if not inner & curve.MORE:
                break
        self.units.append(("message " + " ".join(map(str, lengths)), message))


def capture_curve_client(context):
    keys = {**curve_keys(CLIENT_SECRET), "curve_serverkey": curve.z85(curve.public(SERVER_SECRET))}
    with Case(context, zmq.DEALER, **keys) as (dealer, wire):
        wire = CurveWire(wire.connection)
        side = curve.Server(SERVER_SECRET, counting(0))
        wire.write_unit("greeting 3.1 CURVE as-server=1", greeting("CURVE")[:32] + b"\x01" + bytes(31))
        wire.read_greeting()
        wire.write_unit("command WELCOME", frame(side.welcome(wire.read_command("HELLO")), COMMAND))
        properties = metadata(Socket_Type=b"ROUTER", Identity=b"", **curve.GREETING)
        wire.write_unit("command READY", frame(side.ready(wire.read_command("INITIATE"), properties), COMMAND))
        if side.client != curve.public(CLIENT_SECRET):
            raise ValueError("another key than the client's")
        for _ in range(send_all_sizes(dealer.send_multipart, SEALED_SIZES)):
            wire.read_sealed(side)
        wire.write_unit("message 5", frame(side.seal(b"hello")))
        return wire


def capture_curve_server(context):
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
    try:
        with Case(context, zmq.ROUTER, curve_server=1, router_mandatory=1, rcvtimeo=DEADLINE_SECONDS * 1000,
                  **curve_keys(SERVER_SECRET)) as (router, wire):
            wire = CurveWire(wire.connection)
            side = curve.Client(CLIENT_SECRET, curve.public(SERVER_SECRET), counting(100))
            wire.write_unit("greeting 3.1 CURVE as-server=0", greeting("CURVE"))
            wire.read_greeting()
            wire.write_unit("command HELLO", frame(side.hello(), COMMAND))
            properties = metadata(Socket_Type=b"DEALER", Identity=b"peer", **curve.GREETING)
            wire.write_unit("command INITIATE", frame(side.initiate(wire.read_command("WELCOME"), properties), COMMAND))
            side.ready(wire.read_command("READY"))
            wire.write_unit("message 5", frame(side.seal(b"hello")))
            if router.recv_multipart() != [b"peer", b"hello"]:
                raise ValueError("the ROUTER did not see the message")
            for _ in range(send_all_sizes(lambda frames: router.send_multipart([b"peer", *frames]), SEALED_SIZES)):
                wire.read_sealed(side)
            return wire
    finally:
        authenticator.stop()


def speak_aes():
    """Both roles by hand, with the second cipher: what each sends."""
    server = curve.Server(SERVER_SECRET, counting(0))
    client = curve.Client(CLIENT_SECRET, curve.public(SERVER_SECRET), counting(100))
    hello = client.hello()
    welcome = server.welcome(hello)
    initiate = client.initiate(welcome, metadata(Socket_Type=b"DEALER", Identity=b"", **curve.GREETING, **curve.AES))
    ready = server.ready(initiate, metadata(Socket_Type=b"ROUTER", Identity=b"", **curve.GREETING, **curve.AES))
    client.ready(ready)
    for side in (client, server):
        side.use_aes(curve.public(client.transient), curve.public(server.transient))

    def message(side, sizes):
        flags = [curve.MORE] * (len(sizes) - 1) + [0]
        frames = [frame(side.seal(b"a" * size, more)) for size, more in zip(sizes, flags)]
        return "message " + " ".join(map(str, sizes)), b"".join(frames)

    sizes = [0, 1, 222, 223]
    messages = [[size] for size in sizes] + [sizes]
    return (
        [("greeting 3.1 CURVE as-server=0", greeting("CURVE")), ("command HELLO", frame(hello, COMMAND)),
         ("command INITIATE", frame(initiate, COMMAND))] + [message(client, sizes) for sizes in messages],
        [("greeting 3.1 CURVE as-server=1", greeting("CURVE")[:32] + b"\x01" + bytes(31)),
         ("command WELCOME", frame(welcome, COMMAND)), ("command READY", frame(ready, COMMAND))]
        + [message(server, sizes) for sizes in messages],
    )


CASES = {
    "dealer_null": (capture_dealer, "DEALER over NULL: one message for each size, then all sizes as frames of one message"),
    "dealer_identity_probe": (capture_dealer_identity, "DEALER with a routing id and ZMQ_PROBE_ROUTER"),
    "req_null": (capture_req, "REQ over NULL: the same sizes, each behind an empty delimiter"),
    "req_correlate": (capture_req_correlate, "REQ with ZMQ_REQ_CORRELATE and ZMQ_REQ_RELAXED: a request id before the delimiter"),
    "router_null": (capture_router, "ROUTER over NULL to a DEALER: the same sizes"),
    "rep_null": (capture_rep, "REP over NULL answering a REQ"),
    "heartbeat_ping": (capture_heartbeat, "DEALER with ZMQ_HEARTBEAT_IVL 100 ms and TTL 3 s: its PING"),
    "heartbeat_pong": (capture_pong, "DEALER answering PINGs with contexts of 0, 4 and 16 bytes"),
    "plain_client": (capture_plain_client, "DEALER as PLAIN client"),
    "plain_server": (capture_plain_server, "ROUTER as PLAIN server, password accepted"),
    "plain_server_refuses": (
        lambda context: capture_plain_server(context, b"wrong"),
        "ROUTER as PLAIN server, password refused",
    ),
}


CURVE_CASES = {
    "curve_client": (capture_curve_client, "DEALER as CURVE client"),
    "curve_server": (capture_curve_server, "ROUTER as CURVE server"),
}


def store(path: pathlib.Path, about: list[str], units: list[tuple[str, bytes]]) -> None:
    lines = [f"# {line}" for line in about] + [""]
    for description, data in units:
        lines += [f"= {description}", hex_runs(data), ""]
    path.write_text("\n".join(lines).rstrip() + "\n")
    print(f"{path.name}: ok")


def main(folder: pathlib.Path) -> None:
    by_libzmq = f"Sent by libzmq {zmq.zmq_version()}; see README.md for the format."
    for name, (capture, about) in CASES.items():
        with zmq.Context() as context:
            store(folder / f"{name}.txt", [f"{about}.", by_libzmq], capture(context))
    for name, (capture, about) in CURVE_CASES.items():
        with zmq.Context() as context:
            wire = capture(context)
            store(folder / f"{name}.txt", [f"{about}.", by_libzmq], wire.units)
            about = f"What conformance/python/curve.py sent to libzmq in {name}.txt, and libzmq took."
            store(folder / f"{name}_peer.txt", [about, "Our side sends the same; see README.md for the format."], wire.ours)
    for role, units in zip(("client", "server"), speak_aes()):
        about = f"CURVE with AES-256-GCM: the {role} of conformance/python/curve.py. Ours sends the same; see README.md for the format."
        store(folder / f"curve_aes_{role}.txt", [about], units)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
