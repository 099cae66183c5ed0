# python follow.py tcp://HOST:PORT PATH DIR: what is in PATH ('' is all) on `tow serve --watch`, and each change, into DIR.
import os, sys, zmq

(dealer := zmq.Context().socket(zmq.DEALER)).connect(sys.argv[1])
# Credit: the server may have this many bytes in flight.
for words in [b"follow", sys.argv[2].encode()], [b"credit", b"1000000"]: dealer.send_multipart(words)
while True:
    kind, path, cursor, size, offset, body = dealer.recv_multipart()
    place = os.path.join(sys.argv[3].encode(), path)
    os.makedirs(place if kind == b"dir" else os.path.dirname(place), exist_ok=True)
    if kind == b"file": open(place + b".part", "ab" if int(offset) else "wb").write(body)
    if kind == b"file" and int(offset) + len(body) == int(size): os.rename(place + b".part", place)
    dealer.send_multipart([b"credit", b"%d" % max(len(body), 256)])
