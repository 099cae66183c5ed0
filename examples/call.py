# python call.py tcp://HOST:PORT SERVICE <LINES: a request for each line, all outstanding at once, by number.
import os, struct, sys, zmq

me, service = os.urandom(16), sys.argv[2].encode()
waiting = dict(enumerate(sys.stdin.buffer.read().splitlines(), 1))
while waiting:
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger, dealer.rcvtimeo = 0, 5000
    dealer.connect(sys.argv[1])
    block = struct.pack(">B16sQ", 0x01, me, min(waiting))  # HELLO: who we are, and below which number all is settled
    for number, body in waiting.items():  # REQUEST; what comes once more is known by its number and not done again
        block += struct.pack(f">BBQIB{len(service)}sI", 0x02, 0, number, 0, len(service), service, len(body)) + body
        if len(block) > 1 << 20:  # a message has up to 64 MiB
            dealer.send_multipart([b"TWPC01", block])
            block = b""
    dealer.send_multipart([b"TWPC01", block])
    try:
        while waiting:
            _, block, *attached = dealer.recv_multipart()
            while block:
                size = {0x41: 22, 0x42: 16, 0x43: 13, 0x44: 16}[block[0]]  # WELCOME, REPLY, ACCEPTED, REFUSED
                if block[0] == 0x42:
                    part = block[1] & 4  # a part of a reply: 4 octets more, and others follow. Of several frames (1), their lengths are shown
                    flags, number, status, length = struct.unpack(f">xBQH{part}xI", block[: size + part])
                    size += part
                    body = attached[0] if flags & 2 else block[size : size + length]
                    if number in waiting: print(number, status, body.decode())
                    if not part: waiting.pop(number, None)
                elif block[0] == 0x44: length = block[15]
                else: length = 0
                block = block[size + length :]
    except zmq.Again: dealer.close()  # five seconds of silence: all that has no outcome once more, on a new connection
