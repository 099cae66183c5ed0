"""Many peers send small messages without end; others are answered meanwhile."""

import threading

import mdp
from conftest import DEADLINE_SECONDS
from raw import connections, message


def flood(raws, data: bytes, full: threading.Event, end: threading.Event) -> None:
    """Sends them over and over to all that take them, and throws away what they say. Reports when none of them takes more for a moment."""
    left = {raw.socket: memoryview(data) for raw in raws}
    while not end.is_set():
        is_idle = True
        for socket in list(left):
            try:
                left[socket] = left[socket][socket.send(left[socket]) :] or memoryview(data)
                is_idle = False
            except BlockingIOError:
                pass
            except OSError:
                # The broker disconnected it.
                del left[socket]
                continue
            try:
                while socket.recv(65_536):
                    pass
            except OSError:
                pass
        if is_idle:
            full.set()
            end.wait(0.001)


def test_floods_of_small_messages_hold_up_no_one(broker, connected):
    server = broker()
    questions = message(b"", b"MDPC01", b"mmi.nothing", b"") * 1_000
    with connections(server, 200) as raws:
        for raw in raws:
            raw.socket.setblocking(False)
        full, end = threading.Event(), threading.Event()
        flooding = threading.Thread(target=flood, args=(raws, questions, full, end))
        flooding.start()
        try:
            assert full.wait(DEADLINE_SECONDS)
            # A client that connects last.
            asking = mdp.Client(connected(server))
            for _ in range(10):
                assert asking.ask(b"mmi.service", b"nobody") == [b"404"]
        finally:
            end.set()
            flooding.join()
