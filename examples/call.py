# python call.py tcp://HOST:PORT SERVICE <LINES: sends one request per line, all at once, and prints each reply.
import os, struct, sys, zmq

me, process, flags, service = os.urandom(16), os.getpid(), 0, sys.argv[2].encode()
waiting = dict(enumerate(sys.stdin.buffer.read().splitlines(), 1))
count = len(waiting)
while waiting:
    if process != os.getpid(): me, process = os.urandom(16), os.getpid()  # a process that was forked needs an id of its own
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger, dealer.rcvtimeo = 0, 5000
    dealer.connect(sys.argv[1])
    block = struct.pack(">B16sQ", 0x01, me, min(waiting))  # HELLO: our id; all numbers below this one are settled
    for number, body in waiting.items():  # REQUEST: a number that the broker knows is not taken twice
        block += struct.pack(f">BBQIB{len(service)}sI", 0x02, flags, number, 0, len(service), service, len(body)) + body
        if len(block) > 1 << 20:  # a message may have 64 MiB
            dealer.send_multipart([b"TWPC02", block])
            block = b""
    dealer.send_multipart([b"TWPC02", block])
    try:
        while waiting:
            _, block, *attached = dealer.recv_multipart()
            while block:
                size = {0x41: 22, 0x42: 16, 0x43: 13, 0x44: 16}[block[0]]  # WELCOME, REPLY, ACCEPTED, REFUSED
                if block[0] == 0x42:
                    part = block[1] & 4  # part of a reply: 4 more bytes; others follow
                    flags, number, status, length = struct.unpack(f">xBQH{part}xI", block[: size + part])
                    size += part
                    body = attached[0] if flags & 2 else block[size : size + length]
                    if number in waiting: print(number, status, body.decode())
                    if not part: waiting.pop(number, None)
                elif block[0] == 0x44: length = block[15]
                else: length = 0
                block = block[size + length :]
    except zmq.Again: dealer.close(); flags = 16  # 5 s of silence: connect again and send what has no outcome, and say so
    else:
        dealer.linger = 1000
        dealer.send_multipart([b"TWPC02", struct.pack(">BQI", 0x03, 1, count)])  # CONFIRM: the broker may forget them
