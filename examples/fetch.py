# python fetch.py tcp://HOST:PORT PATH COPY: fetch a file from `tow serve` in pieces of 1 MiB, ten requests ahead.
import sys, zmq

dealer = zmq.Context().socket(zmq.DEALER)
dealer.connect(sys.argv[1])
def ask(n): dealer.send_multipart([b"fetch", sys.argv[2].encode(), b"%d" % (n << 20), b"%d" % (1 << 20)])
for n in range(10): ask(n)
with open(sys.argv[3], "wb") as copy:
    while piece := dealer.recv():  # an empty piece is the end of the file
        if dealer.rcvmore: sys.exit(dealer.recv().decode())  # two frames are an error: the word and the reason
        copy.write(piece)
        ask(n := n + 1)
