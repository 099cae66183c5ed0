"""A relay in front of a server, on TCP: records what passes, stalls either direction, and resets connections."""

import contextlib
import select
import socket
import struct
import threading

TO_SERVER, TO_CLIENT = 0, 1


class Relay:
    """Connects each of its own connections to the server. What has passed is in `received`, by direction."""

    def __init__(self, server):
        self.port = int(server.endpoint.rpartition(":")[2])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.received = bytearray(), bytearray()
        self.stalled = set()
        # Where the bytes of an end go, and in which direction.
        self.ways = {}
        self.connections = 0
        self.jobs, self.job_sent = [], socket.socketpair()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.do(self.drop_all)
        self.do(self.listener.close)
        self.thread.join()
        for end in self.job_sent:
            end.close()

    def do(self, job) -> None:
        """Runs a job on the relay's thread, and waits until it has run."""
        done = threading.Event()
        self.jobs.append((job, done))
        self.job_sent[0].send(b"!")
        done.wait()

    def stall(self, direction: int) -> None:
        self.do(lambda: self.stalled.add(direction))

    def go_on(self) -> None:
        self.do(self.stalled.clear)

    def reset(self) -> None:
        """Resets all connections (RST), on both sides. New ones are relayed again."""
        self.do(self.drop_all)

    def drop_all(self) -> None:
        for end in self.ways:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
        self.ways.clear()

    def run(self) -> None:
        while self.listener.fileno() >= 0:
            ends = [end for end, (_, direction) in self.ways.items() if direction not in self.stalled]
            for end in select.select([self.listener, self.job_sent[1], *ends], [], [])[0]:
                if end is self.job_sent[1]:
                    end.recv(1)
                    job, done = self.jobs.pop(0)
                    job()
                    done.set()
                    break
                if end is self.listener:
                    self.accept()
                else:
                    self.pass_on(end)

    def accept(self) -> None:
        client, _ = self.listener.accept()
        server = socket.create_connection(("127.0.0.1", self.port))
        self.ways[client], self.ways[server] = (server, TO_SERVER), (client, TO_CLIENT)
        self.connections += 1

    def pass_on(self, end) -> None:
        target, direction = self.ways[end]
        data = b""
        with contextlib.suppress(ConnectionError):
            data = end.recv(65_536)
        with contextlib.suppress(OSError):
            if data:
                self.received[direction].extend(data)
                target.sendall(data)
            else:
                del self.ways[end]
                target.shutdown(socket.SHUT_WR)
        if end not in self.ways and target not in self.ways:
            end.close()
            target.close()
