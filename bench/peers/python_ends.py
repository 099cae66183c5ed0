"""Clients and workers of requests in Python, each on one library: a client prints a report, a worker `working` once it is ready.

usage: python_ends.py work LIBRARY --port PORT
       python_ends.py call LIBRARY --port PORT --requests N --ahead N --size BYTES

Clients: towpath (map), towpath-async, towpath-one, nats-async, nats-one, majortomo-one, celery, celery-one. Those in -one send one request after
another, those in -async await `ahead` calls at a time. Workers: towpath, nats, majortomo, celery.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import deque

UNCOUNTED = 50


class Meter:
    """Counts from the first request on: the wall clock, and the processor time of all threads."""

    def __init__(self):
        self.begin, self.cpu = time.perf_counter(), time.process_time()
        self.times = []

    def report(self, requests, replies):
        seconds, cpu = time.perf_counter() - self.begin, time.process_time() - self.cpu
        times = sorted(self.times)
        at = lambda share: times[min(len(times) - 1, int(len(times) * share))] * 1e6 if times else None
        print(json.dumps({"requests": requests, "replies": replies, "seconds": seconds, "cpu_seconds": cpu, "p50_us": at(0.5), "p99_us": at(0.99)}))


def one_by_one(call, body, options):
    for _ in range(UNCOUNTED):
        call(body)
    meter, replies = Meter(), 0
    for _ in range(options.requests):
        begin = time.perf_counter()
        replies += call(body) == body
        meter.times.append(time.perf_counter() - begin)
    meter.report(options.requests, replies)


async def at_once(call, body, options):
    """So many tasks, each with one call after another."""
    await call(body)
    meter, left, replies = Meter(), options.requests, 0

    async def caller():
        nonlocal left, replies
        while left:
            left -= 1
            is_right = await call(body) == body
            replies += is_right

    await asyncio.gather(*[caller() for _ in range(options.ahead)])
    meter.report(options.requests, replies)


def call_towpath(kind, body, options):
    from towpath import Client

    with Client(f"127.0.0.1:{options.port}") as client:
        if kind == "one":
            return one_by_one(lambda body: client.call("echo", body), body, options)
        client.call("echo", body)
        meter = Meter()
        replies = sum(reply == body for reply in client.map("echo", (body for _ in range(options.requests)), ahead=options.ahead))
        meter.report(options.requests, replies)


async def call_towpath_async(body, options):
    from towpath.aio import Client

    async with Client(f"127.0.0.1:{options.port}") as client:
        await at_once(lambda body: client.call("echo", body), body, options)


async def call_nats(kind, body, options):
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{options.port}")

    async def call(body):
        return (await client.request("echo", body, timeout=60)).data

    if kind == "one":
        for _ in range(UNCOUNTED):
            await call(body)
        meter, replies = Meter(), 0
        for _ in range(options.requests):
            begin = time.perf_counter()
            replies += await call(body) == body
            meter.times.append(time.perf_counter() - begin)
        meter.report(options.requests, replies)
    else:
        await at_once(call, body, options)
    await client.close()


def call_majortomo(body, options):
    from majortomo.client import Client

    client = Client(f"tcp://127.0.0.1:{options.port}")
    client.connect()

    def call(body):
        client.send(b"echo", body)
        return b"".join(client.recv_all_as_list())

    one_by_one(call, body, options)


def celery_app(port):
    from celery import Celery

    url = f"redis://127.0.0.1:{port}/0"
    app = Celery("echo", broker=url, backend=url)
    app.conf.update(worker_prefetch_multiplier=100, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)

    def echo(body):
        return body

    return app, app.task(name="echo")(echo)


def call_celery(kind, body, options):
    _, echo = celery_app(options.port)
    text = body.decode()
    if kind == "one":
        return one_by_one(lambda _: echo.delay(text).get(timeout=60).encode(), body, options)
    echo.delay(text).get(timeout=60)
    meter, replies, waiting = Meter(), 0, deque()
    for _ in range(options.requests):
        if len(waiting) >= options.ahead:
            replies += waiting.popleft().get(timeout=60) == text
        waiting.append(echo.delay(text))
    for result in waiting:
        replies += result.get(timeout=60) == text
    meter.report(options.requests, replies)


def ready():
    print("working", flush=True)


def work_towpath(port):
    import threading

    from towpath import Client, worker

    def answered():
        with Client(f"127.0.0.1:{port}") as client:
            client.call("echo")
        ready()

    threading.Thread(target=answered).start()
    worker("echo", connect=f"127.0.0.1:{port}", credit=200)(lambda body, request: body).run()


async def work_nats(port):
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")

    async def echo(message):
        await message.respond(message.data)

    await client.subscribe("echo", "workers", echo)
    await client.flush()
    ready()
    await asyncio.Event().wait()


def work_majortomo(port):
    from majortomo.worker import Worker

    worker = Worker(f"tcp://127.0.0.1:{port}", b"echo")
    with worker:
        ready()
        while True:
            client, frames = worker.wait_for_request()
            worker.send_reply_final(client, frames)


def work_celery(port):
    from celery.signals import worker_ready

    app, _ = celery_app(port)
    worker_ready.connect(lambda **_: ready(), weak=False)
    app.worker_main(["worker", "--pool", "solo", "--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"])


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("role", choices=["work", "call"])
    arguments.add_argument("library")
    for name in ("port", "requests", "ahead", "size"):
        arguments.add_argument(f"--{name}", type=int)
    options = arguments.parse_args()
    name, _, kind = options.library.partition("-")
    if options.role == "work":
        started = globals()[f"work_{name}"](options.port)
    elif options.library == "towpath-async":
        started = call_towpath_async(b"x" * options.size, options)
    elif name == "majortomo":
        started = call_majortomo(b"x" * options.size, options)
    else:
        started = globals()[f"call_{name}"](kind, b"x" * options.size, options)
    if asyncio.iscoroutine(started):
        asyncio.run(started)


if __name__ == "__main__":
    sys.exit(main())
