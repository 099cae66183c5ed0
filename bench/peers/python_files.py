"""Receivers of files in Python, each on one library: they print how many bytes came.

usage: python_files.py LIBRARY --port PORT --path PATH [--to DIR]

Libraries: towpath, towpath-parts (not from the beginning to the end, so not verified), pyzmq (examples/fetch.py, into memory), aiohttp, and
towpath-get (a directory to a directory).
"""

import argparse
import asyncio
import json

BUFFER = bytearray(1 << 20)


def towpath(options, verified=True):
    from towpath import Files

    with Files(f"127.0.0.1:{options.port}") as files, files.open(options.path) as file:
        count = 0
        if not verified:
            # The first byte is read last.
            file.seek(1)
        while read := file.readinto(BUFFER):
            count += read
        if not verified:
            file.seek(0)
            count += file.readinto(memoryview(BUFFER)[:1])
        return count


def get(options):
    from towpath import Files

    with Files(f"127.0.0.1:{options.port}") as files:
        files.get(options.path, options.to)


def pyzmq(options):
    import zmq

    dealer = zmq.Context().socket(zmq.DEALER)
    dealer.connect(f"tcp://127.0.0.1:{options.port}")

    def ask(piece):
        dealer.send_multipart([b"fetch", options.path.encode(), b"%d" % (piece << 20), b"%d" % (1 << 20)])

    pieces = 10
    for piece in range(pieces):
        ask(piece)
    count = 0
    while piece := dealer.recv():
        BUFFER[: len(piece)] = piece
        count += len(piece)
        ask(pieces)
        pieces += 1
    return count


async def aiohttp(options):
    from aiohttp import ClientSession

    count = 0
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{options.port}/{options.path}") as answer:
        async for piece in answer.content.iter_any():
            BUFFER[: len(piece)] = piece
            count += len(piece)
    return count


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("library")
    arguments.add_argument("--port", type=int)
    arguments.add_argument("--path")
    arguments.add_argument("--to")
    options = arguments.parse_args()
    if options.library == "aiohttp":
        count = asyncio.run(aiohttp(options))
    elif options.library == "towpath-get":
        return get(options)
    elif options.library == "pyzmq":
        count = pyzmq(options)
    else:
        count = towpath(options, options.library == "towpath")
    print(json.dumps({"bytes": count}))


if __name__ == "__main__":
    main()
