"""A stock Majordomo client or worker (MDP/0.1) on libzmq, as their examples are: each gives up a silent broker, and makes a new socket.

stock.py client ENDPOINT SERVICE COUNT SOURCE [SERVER_KEY PUBLIC SECRET]
stock.py worker ENDPOINT SERVICE - SOURCE [SERVER_KEY PUBLIC SECRET]

SOURCE is the address to connect from. A client says the number of each reply, and a worker that it is ready.
"""

import sys
import time

import zmq

role, endpoint, service, count, source, *keys = sys.argv[1:]
service = service.encode()
context = zmq.Context()


def connected(kind):
    socket = context.socket(kind)
    socket.linger = 0
    if keys:
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = (key.encode() for key in keys)
    socket.connect(endpoint.replace("tcp://", f"tcp://{source}:0;"))
    return socket


def client():
    socket = connected(zmq.REQ)
    for number in range(int(count)):
        while True:
            socket.send_multipart([b"MDPC01", service, str(number).encode()])
            if socket.poll(2_000):
                break
            socket.close()
            socket = connected(zmq.REQ)
        assert socket.recv_multipart() == [b"MDPC01", service, str(number).encode()]
        print(number, flush=True)


def worker():
    while True:
        socket = connected(zmq.DEALER)
        socket.send_multipart([b"", b"MDPW01", b"\1", service])
        print("ready", flush=True)
        last, beat_at = time.monotonic(), 0
        while time.monotonic() < last + 2:
            if time.monotonic() > beat_at:
                socket.send_multipart([b"", b"MDPW01", b"\4"])
                beat_at = time.monotonic() + 0.3
            if not socket.poll(100):
                continue
            _, header, command, *frames = socket.recv_multipart()
            assert header == b"MDPW01"
            last = time.monotonic()
            if command == b"\2":
                socket.send_multipart([b"", b"MDPW01", b"\3", *frames])
            elif command == b"\5":
                break
        socket.close()


{"client": client, "worker": worker}[role]()
