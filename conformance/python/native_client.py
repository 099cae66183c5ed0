"""A small client of the file protocol, written from docs/protocol/files.md alone: pyzmq, json and blake3."""

import base64
import dataclasses
import json
import struct

import blake3
import zstandard

END, ZSTD, HOLE = 1, 2, 4
ENTRY = struct.Struct(">IB3xQQQ")


class ProtocolError(Exception):
    """The server's error, or an answer that the protocol does not allow."""


@dataclasses.dataclass
class File:
    """Received data of one file of a fetch."""

    metadata: dict
    content: bytearray = dataclasses.field(default_factory=bytearray)
    digest: str | None = None
    over: str | None = None
    received_bytes: int = 0


class Client:
    def __init__(self, socket):
        self.socket = socket
        self.last_id = 0

    def send(self, **request) -> None:
        self.socket.send_multipart([b"TOW1", json.dumps(request).encode()])

    def control(self) -> tuple[dict, list[bytes]]:
        marker, text, *attachments = self.socket.recv_multipart()
        if marker != b"TOW1":
            raise ProtocolError(f"a control message was due, not {marker!r}")
        answer = json.loads(text)
        if answer["re"] == "error":
            raise ProtocolError(answer["code"], answer["message"])
        return answer, attachments

    def ask(self, **request) -> dict:
        self.send(**request)
        return self.control()[0]

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def listing(self, **request) -> list[dict]:
        answer = self.ask(op="list", id=self.next_id(), **request)
        entries = answer["entries"]
        while answer["more"]:
            answer = self.ask(op="more", id=self.last_id)
            entries += answer["entries"]
        return entries

    def fetch(self, files: list[dict], credit_bytes=8 << 20, **options) -> list[File]:
        """Fetches and checks everything that the protocol asks a client to check."""
        request_id = self.next_id()
        self.send(op="fetch", id=request_id, files=files, credit_bytes=credit_bytes, **options)
        received: list[File | None] = [None] * len(files)
        while True:
            frames = self.socket.recv_multipart()
            if frames[0].startswith(b"TOWD"):
                cost = self.take_data(frames, request_id, received)
                self.send(op="credit", bytes=cost)
                continue
            answer = json.loads(frames[1])
            if answer["re"] == "error":
                raise ProtocolError(answer["code"], answer["message"])
            if answer["id"] != request_id:
                raise ProtocolError(f"an answer to no request: {answer}")
            match answer["re"]:
                case "files":
                    for metadata in answer["files"]:
                        file = File(metadata, digest=metadata.get("digest"))
                        if "error" in metadata:
                            file.over = metadata["error"]["code"]
                        elif metadata.get("same"):
                            file.over = "same"
                        received[metadata["n"]] = file
                case "digest":
                    received[answer["n"]].digest = answer["digest"]
                    received[answer["n"]].metadata["leaf_bytes"] = answer["leaf_bytes"]
                case "end":
                    received[answer["n"]].over = "end"
                case "void":
                    received[answer["n"]].over = answer["code"]
                case "done":
                    return received

    def take_data(self, frames: list[bytes], request_id: int, received: list[File | None]) -> int:
        """Stores the pieces of a data message; returns the credit that they used."""
        header, bodies = frames[0], frames[1:]
        magic, version, reserved, count, to = struct.unpack_from(">4sBBHI", header)
        if (magic, version, reserved, to) != (b"TOWD", 1, 0, request_id) or count != len(bodies):
            raise ProtocolError(f"a wrong data header: {header[:12]!r}")
        cost = 0
        for entry, body in zip(ENTRY.iter_unpack(header[12:]), bodies, strict=True):
            n, flags, offset, length, body_length = entry
            file = received[n]
            if len(body) != body_length or file.over:
                raise ProtocolError(f"a piece that does not fit: {entry}")
            if flags & HOLE:
                data = bytes(length)
            elif flags & ZSTD:
                data = zstandard.decompress(body, max_output_size=length)
            else:
                data = body
            size = file.metadata["size"]
            if len(data) != length or offset + length > size:
                raise ProtocolError(f"a piece that does not fit: {entry}")
            file.content.extend(bytes(max(0, offset + length - len(file.content))))
            file.content[offset : offset + length] = data
            file.received_bytes += body_length
            if flags & END:
                file.over = "end"
            cost += max(256, body_length)
        return cost

    def fetch_whole(self, path: str, **options) -> bytes:
        [file] = self.fetch([{"path": path}], **options)
        if file.over != "end":
            raise ProtocolError(file.over)
        content = bytes(file.content)
        if len(content) != file.metadata["size"] or blake3.blake3(content).hexdigest() != file.digest:
            raise ProtocolError("it isn't what was announced")
        return content

    def leaves(self, path: str, digest: str) -> list[bytes]:
        values, total = [], None
        while total is None or len(values) < total:
            self.send(op="leaves", id=self.next_id(), path=path, digest=digest, **{"from": len(values), "count": 1024})
            answer, [attachment] = self.control()
            total = answer["total"]
            values += [attachment[at : at + 32] for at in range(0, len(attachment), 32)]
        return values


def name_of(entry: dict) -> bytes:
    return base64.b64decode(entry["path_b64"]) if "path_b64" in entry else entry["path"].encode()
