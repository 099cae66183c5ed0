# python work.py tcp://HOST:PORT SERVICE: a worker that takes ten requests at a time and replies in capitals.
import struct, sys, zmq

service = sys.argv[2].encode()
while True:
    dealer = zmq.Context.instance().socket(zmq.DEALER)
    dealer.linger, dealer.rcvtimeo = 0, 10000
    dealer.connect(sys.argv[1])
    dealer.send_multipart([b"TWPW02", struct.pack(">BIB", 0x81, 10, len(service)) + service])  # READY
    try:
        while True:
            (_, block, *attached), replies = dealer.recv_multipart(), b""
            while block:  # a body of several frames (flag 1) is treated as one, with its length fields
                size, length = {0xC1: 9, 0xC2: 28, 0xC3: 17, 0xC4: 1}[block[0]], 0  # WELCOME, REQUEST, CANCEL, LEAVE
                if block[0] == 0xC2:
                    flags, token, _attempt, _ttl, length = struct.unpack(">xB16sHII", block[:size])
                    body = (attached[0] if flags & 2 else block[size : size + length]).upper()
                    replies += struct.pack(">BB16sHI", 0x82, 0, token, 200, len(body)) + body  # REPLY
                block = block[size + length :]
            if replies: dealer.send_multipart([b"TWPW02", replies])
    except zmq.Again: dealer.close()  # 10 s of silence: connect again
