"""CURVE by hand (RFC 26), on libsodium: both roles, with keys and randomness that a caller chooses. And Towpath's second cipher
(docs/protocol/zmtp.md), which needs a processor with AES."""

import hmac

import zmq.utils.z85
from nacl import bindings

HELLO, INITIATE, READY = b"CurveZMQHELLO---", b"CurveZMQINITIATE", b"CurveZMQREADY---"
WELCOME, VOUCH = b"WELCOME-", b"VOUCH---"
OF_CLIENT, OF_SERVER = b"CurveZMQMESSAGEC", b"CurveZMQMESSAGES"
MORE, COMMAND = 1, 2
# What our ends say of the greeting that they saw.
GREETING = {"X-Towpath-Greeting": b"\x03\x01"}
AES = {"X-Towpath-Cipher": b"AES-256-GCM"}
AES_TO_SERVER, AES_TO_CLIENT = b"Towpath CURVE AES-256-GCM client to server", b"Towpath CURVE AES-256-GCM server to client"


def public(secret: bytes) -> bytes:
    return bindings.crypto_scalarmult_base(secret)


def z85(key: bytes) -> bytes:
    return zmq.utils.z85.encode(key)


def number(n: int) -> bytes:
    return n.to_bytes(8, "big")


def box(text: bytes, nonce: bytes, secret: bytes, peer: bytes) -> bytes:
    return bindings.crypto_box(text, nonce, peer, secret)


def unbox(sealed: bytes, nonce: bytes, secret: bytes, peer: bytes) -> bytes:
    return bindings.crypto_box_open(sealed, nonce, peer, secret)


def hkdf(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    """32 bytes of HKDF-SHA256 (RFC 5869)."""
    return hmac.digest(hmac.digest(salt, secret, "sha256"), purpose + b"\x01", "sha256")


class Side:
    """What both roles do once they share a key."""

    def __init__(self, secret: bytes, random, prefixes, numbers):
        self.secret, self.random = secret, random
        self.ours, self.theirs = prefixes
        self.last = numbers
        self.transient = random(32)
        self.aes = False

    def use_aes(self, client: bytes, server: bytes) -> None:
        """Seals messages by AES-256-GCM from now on, with keys made of those of the connection."""
        secret = bindings.crypto_box_beforenm(self.peer, self.transient)
        self.aes_keys = {
            OF_CLIENT: (hkdf(secret, client + server, AES_TO_SERVER), b"MSGC"),
            OF_SERVER: (hkdf(secret, client + server, AES_TO_CLIENT), b"MSGS"),
        }
        self.aes = True

    def seal(self, body: bytes, flags: int = 0) -> bytes:
        self.last += 1
        nonce = number(self.last)
        text = bytes([flags]) + body
        if self.aes:
            key, prefix = self.aes_keys[self.ours]
            sealed = bindings.crypto_aead_aes256gcm_encrypt(text, None, prefix + nonce, key)
            return b"\x07MESSAGE" + nonce + sealed[-16:] + sealed[:-16]
        return b"\x07MESSAGE" + nonce + box(text, self.ours + nonce, self.transient, self.peer)

    def open(self, sealed: bytes) -> tuple[int, bytes]:
        assert sealed[:8] == b"\x07MESSAGE", sealed[:20]
        if self.aes:
            key, prefix = self.aes_keys[self.theirs]
            text = bindings.crypto_aead_aes256gcm_decrypt(sealed[32:] + sealed[16:32], None, prefix + sealed[8:16], key)
            return text[0], text[1:]
        text = unbox(sealed[16:], self.theirs + sealed[8:16], self.transient, self.peer)
        return text[0], text[1:]


class Client(Side):
    """`self.peer` is the server's key of the connection, once it is welcomed."""

    def __init__(self, secret: bytes, server: bytes, random):
        super().__init__(secret, random, (OF_CLIENT, OF_SERVER), 2)
        self.server = server

    def hello(self) -> bytes:
        sealed = box(bytes(64), HELLO + number(1), self.transient, self.server)
        return b"\x05HELLO\x01\x00" + bytes(72) + public(self.transient) + number(1) + sealed

    def initiate(self, welcome: bytes, metadata: bytes) -> bytes:
        text = unbox(welcome[24:], WELCOME + welcome[8:24], self.transient, self.server)
        self.peer, cookie = text[:32], text[32:]
        nonce = self.random(16)
        vouch = nonce + box(public(self.transient) + self.server, VOUCH + nonce, self.secret, self.peer)
        text = public(self.secret) + vouch + metadata
        return b"\x08INITIATE" + cookie + number(2) + box(text, INITIATE + number(2), self.transient, self.peer)

    def ready(self, ready: bytes) -> bytes:
        """The server's metadata."""
        return unbox(ready[14:], READY + ready[6:14], self.transient, self.peer)


class Server(Side):
    """`self.peer` is the client's key of the connection."""

    def __init__(self, secret: bytes, random):
        super().__init__(secret, random, (OF_SERVER, OF_CLIENT), 1)

    def welcome(self, hello: bytes) -> bytes:
        self.peer = hello[80:112]
        assert unbox(hello[120:], HELLO + hello[112:120], self.secret, self.peer) == bytes(64)
        nonce, self.cookie = self.random(16), self.random(96)
        text = public(self.transient) + self.cookie
        return b"\x07WELCOME" + nonce + box(text, WELCOME + nonce, self.secret, self.peer)

    def ready(self, initiate: bytes, metadata: bytes) -> bytes:
        """Takes an INITIATE; the client's key and metadata are kept."""
        assert initiate[9:105] == self.cookie
        text = unbox(initiate[113:], INITIATE + initiate[105:113], self.transient, self.peer)
        self.client, nonce, vouch, self.metadata = text[:32], text[32:48], text[48:128], text[128:]
        vouched = unbox(vouch, VOUCH + nonce, self.transient, self.client)
        assert vouched == self.peer + public(self.secret)
        return b"\x05READY" + number(1) + box(metadata, READY + number(1), self.transient, self.peer)
