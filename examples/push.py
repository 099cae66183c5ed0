# python push.py FILE tcp://HOST:PORT PATH: sends FILE to PATH on `tow serve --accept-push`, and goes on where an earlier push ended.
import json, os, struct, sys, blake3, zmq

(dealer := zmq.Context().socket(zmq.DEALER)).connect(sys.argv[2])
with open(sys.argv[1], "rb") as file:
    digest, stat = blake3.blake3().update_mmap(sys.argv[1]).hexdigest(), os.fstat(file.fileno())
    push = {"op": "push", "id": 1, "path": sys.argv[3], "size": stat.st_size, "digest": digest,
            "mtime": divmod(stat.st_mtime_ns, 10**9), "mode": stat.st_mode & 0o777}
    dealer.send_multipart([b"TOW1", json.dumps(push).encode()])
    at = credit = 0
    while (answer := json.loads(dealer.recv_multipart()[1]))["re"] in ("push", "credit"):
        if answer["re"] == "push":
            have, chunk = dict(answer["have"]), answer["chunk_bytes"]
        credit += answer.get("credit_bytes") or answer.get("bytes")
        while True:
            at += have.pop(at, 0)  # What the server has isn't sent.
            end = min([start for start in have if start > at] + [stat.st_size])
            size = min(end - at, chunk, credit)
            if size == 0 or credit < 256: break
            body = os.pread(file.fileno(), size, at)
            header = struct.pack(">4sBxHIIB3xQQQ", b"TOWD", 1, 1, 1, 0, 0, at, len(body), len(body))
            dealer.send_multipart([header, body])
            at, credit = at + len(body), credit - max(len(body), 256)
print(json.dumps(answer))
sys.exit(0 if answer["re"] == "pushed" else 5)
