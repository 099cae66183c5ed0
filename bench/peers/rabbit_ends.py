"""A client and a worker of a quorum queue, a message a request: as many as possible at a time.

rabbit_ends.py --port PORT --requests N --ahead N --size N

Requests are confirmed when the queue has them, the worker acknowledges each, and replies go directly to the client. Prints a report as the
other clients do.
"""

import argparse
import json
import multiprocessing
import struct
import time

import pika

QUEUE = "bench"
# Messages that the worker has at a time.
PREFETCH = 1000

parser = argparse.ArgumentParser()
for name in ("port", "requests", "ahead", "size"):
    parser.add_argument(f"--{name}", type=int, required=True)
options = parser.parse_args()


def connect(ready):
    """Runs a connection whose channel is given to `ready`."""
    connection = pika.SelectConnection(
        pika.ConnectionParameters("127.0.0.1", options.port, heartbeat=0),
        on_open_callback=lambda connection: connection.channel(on_open_callback=ready),
        on_open_error_callback=lambda _, error: fail(error),
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    )
    connection.ioloop.start()


def fail(error):
    raise RuntimeError(error)


def declare(channel, done):
    arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
    channel.queue_declare(QUEUE, durable=True, arguments=arguments, callback=lambda _: done())


def work():
    """Answers each request, and acknowledges it."""
    done = 0

    def answer(channel, method, properties, body):
        nonlocal done
        channel.basic_publish("", properties.reply_to, body)
        channel.basic_ack(method.delivery_tag)
        done += 1
        if done == options.requests:
            channel.connection.close()

    def ready(channel):
        channel.basic_qos(prefetch_count=PREFETCH)
        declare(channel, lambda: channel.basic_consume(QUEUE, answer))

    connect(ready)


class Client:
    """Sends, and takes confirmations and replies."""

    def __init__(self):
        self.sent_at = []
        self.times = []
        self.unconfirmed = {}
        self.begin = None

    def ready(self, channel):
        self.channel = channel
        channel.confirm_delivery(self.confirmed)
        # Replies come to the channel that consumes from this name.
        channel.basic_consume("amq.rabbitmq.reply-to", self.replied, auto_ack=True)
        declare(channel, self.start)

    def start(self):
        self.begin = time.monotonic()
        self.send()

    def send(self):
        while len(self.sent_at) < options.requests:
            confirmed = len(self.sent_at) - len(self.unconfirmed)
            if len(self.sent_at) - min(len(self.times), confirmed) >= options.ahead:
                return
            body = struct.pack("<Q", len(self.sent_at)).ljust(options.size, b".")
            self.sent_at.append(time.monotonic())
            self.unconfirmed[len(self.sent_at)] = None
            properties = pika.BasicProperties(delivery_mode=2, reply_to="amq.rabbitmq.reply-to")
            self.channel.basic_publish("", QUEUE, body, properties)

    def confirmed(self, frame):
        if frame.method.NAME != "Basic.Ack":
            fail("a request wasn't stored")
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            # In the order in which they were sent.
            for one in [one for one in self.unconfirmed if one <= tag]:
                del self.unconfirmed[one]
        else:
            del self.unconfirmed[tag]
        self.go_on()

    def replied(self, _channel, _method, _properties, body):
        (number,) = struct.unpack_from("<Q", body)
        self.times.append(time.monotonic() - self.sent_at[number])
        self.go_on()

    def go_on(self):
        if len(self.times) == options.requests and not self.unconfirmed:
            self.seconds = time.monotonic() - self.begin
            self.channel.connection.close()
        else:
            self.send()


worker = multiprocessing.Process(target=work)
worker.start()
client = Client()
connect(client.ready)
worker.join(30)
times = sorted(client.times)
at = lambda part: times[len(times) * part // 100] * 1e6
count = len(times)
print(json.dumps({"requests": count, "replies": count, "seconds": client.seconds, "p50_us": at(50), "p99_us": at(99)}))
