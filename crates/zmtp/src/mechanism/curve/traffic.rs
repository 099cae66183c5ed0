//! MESSAGE: a frame of a message, or a command, behind the handshake.

use super::{MESSAGE_CLIENT, MESSAGE_SERVER, counted_nonce};
use crate::crypto::{AesKey, AesNonce, Crypto, Dryoc, SharedKey, TAG_BYTES, Tag};
use crate::error::Error;
use crate::frame::FrameFlags;
use crate::keys::PublicKey;
use crate::limits::{AES_NUMBERS_MAX, OPEN_INLINE_MAX, OPEN_INLINE_MAX_AES};
use crate::limits::{SEAL_INLINE_MAX, SEAL_INLINE_MAX_AES};
use crate::seal::{FrameNumber, FrameSeal, Opener, Sealer};
use bytes::{Buf, BytesMut};
use std::sync::Arc;

const NAME: &[u8; 8] = b"\x07MESSAGE";
const NUMBER_BYTES: usize = 8;
const HEAD_BYTES: usize = NAME.len() + NUMBER_BYTES + TAG_BYTES;
/// Bytes by which a MESSAGE is longer than its body: flags are sealed with it.
const OVERHEAD_BYTES: usize = HEAD_BYTES + 1;

// Not those of a frame's header: RFC 26 has COMMAND as 2.
const MORE: u8 = 1;
const COMMAND: u8 = 2;

/// Context strings of the AES-256-GCM keys, and the prefixes of their nonces.
const AES_CLIENT: (&[u8], &[u8; 4]) = (b"Towpath CURVE AES-256-GCM client to server", b"MSGC");
const AES_SERVER: (&[u8], &[u8; 4]) = (b"Towpath CURVE AES-256-GCM server to client", b"MSGS");

/// The key of one direction, and what its nonces begin with.
#[derive(Debug)]
enum Cipher {
    XSalsa20Poly1305(SharedKey, &'static [u8; 16]),
    Aes256Gcm(AesKey, &'static [u8; 4]),
}

impl Cipher {
    fn seal(&self, number: u64, text: &mut [u8]) -> Tag {
        match self {
            Cipher::XSalsa20Poly1305(key, prefix) => Dryoc::seal(key, &counted_nonce(prefix, number), text),
            Cipher::Aes256Gcm(key, prefix) => key.seal(aes_nonce(prefix, number), text),
        }
    }

    fn open(&self, number: u64, text: &mut [u8], tag: &Tag) -> bool {
        match self {
            Cipher::XSalsa20Poly1305(key, prefix) => Dryoc::open(key, &counted_nonce(prefix, number), text, tag),
            Cipher::Aes256Gcm(key, prefix) => key.open(aes_nonce(prefix, number), text, tag),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Cipher::XSalsa20Poly1305(..) => "XSalsa20-Poly1305",
            Cipher::Aes256Gcm(..) => "AES-256-GCM",
        }
    }

    /// Number of the last frame under this key.
    fn last_number(&self) -> u64 {
        match self {
            Cipher::XSalsa20Poly1305(..) => u64::MAX,
            Cipher::Aes256Gcm(..) => AES_NUMBERS_MAX,
        }
    }

    fn sealed_here_bytes_max(&self) -> usize {
        match self {
            Cipher::XSalsa20Poly1305(..) => SEAL_INLINE_MAX,
            Cipher::Aes256Gcm(..) => SEAL_INLINE_MAX_AES,
        }
    }

    fn opened_here_bytes_max(&self) -> usize {
        match self {
            Cipher::XSalsa20Poly1305(..) => OPEN_INLINE_MAX,
            Cipher::Aes256Gcm(..) => OPEN_INLINE_MAX_AES,
        }
    }
}

fn aes_nonce(prefix: &[u8; 4], number: u64) -> AesNonce {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(prefix);
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    nonce
}

/// The ciphers of both directions.
#[derive(Debug)]
pub(super) struct Traffic {
    client: Cipher,
    server: Cipher,
}

impl Traffic {
    /// CURVE's own, which every peer has.
    pub(super) fn new(shared: SharedKey) -> Traffic {
        Traffic {
            client: Cipher::XSalsa20Poly1305(shared.clone(), MESSAGE_CLIENT),
            server: Cipher::XSalsa20Poly1305(shared, MESSAGE_SERVER),
        }
    }

    /// AES-256-GCM, with keys that belong to the keys of this connection.
    pub(super) fn aes(shared: &SharedKey, client: &PublicKey, server: &PublicKey) -> Result<Traffic, Error> {
        let salt = [&client.as_bytes()[..], server.as_bytes()].concat();
        let cipher = |(purpose, prefix)| {
            let key = AesKey::derive(shared, &salt, purpose);
            let why = "no keys could be derived for its cipher";
            Ok(Cipher::Aes256Gcm(key.ok_or(Error::MalformedCommand { command: "READY", why })?, prefix))
        };
        Ok(Traffic { client: cipher(AES_CLIENT)?, server: cipher(AES_SERVER)? })
    }

    /// Of a client whose INITIATE and the server's READY had these numbers.
    pub(super) fn seal_of_client(self, initiate: u64, ready: u64) -> FrameSeal {
        frame_seal(Direction { cipher: self.client, last: initiate }, Direction { cipher: self.server, last: ready })
    }

    /// Of a server whose READY and the client's INITIATE had these numbers.
    pub(super) fn seal_of_server(self, ready: u64, initiate: u64) -> FrameSeal {
        frame_seal(Direction { cipher: self.server, last: ready }, Direction { cipher: self.client, last: initiate })
    }
}

fn frame_seal(ours: Direction, theirs: Direction) -> FrameSeal {
    FrameSeal {
        cipher: ours.cipher.name(),
        overhead: OVERHEAD_BYTES,
        first_number: ours.last + 1,
        last_number: ours.cipher.last_number(),
        sealed_here_bytes_max: ours.cipher.sealed_here_bytes_max(),
        opened_here_bytes_max: theirs.cipher.opened_here_bytes_max(),
        sealer: Arc::new(ours),
        opener: Box::new(theirs),
    }
}

/// One direction of a connection.
#[derive(Debug)]
struct Direction {
    cipher: Cipher,
    /// The number of its last command, or of the last message received.
    last: u64,
}

impl Sealer for Direction {
    fn seal(&self, number: FrameNumber, flags: FrameFlags, frame: &mut [u8]) {
        let (head, text) = frame.split_at_mut(HEAD_BYTES);
        let (name, rest) = head.split_at_mut(NAME.len());
        let (number_bytes, tag) = rest.split_at_mut(NUMBER_BYTES);
        name.copy_from_slice(NAME);
        number_bytes.copy_from_slice(&number.value().to_be_bytes());
        text[0] = if flags.more { MORE } else { 0 } | if flags.command { COMMAND } else { 0 };
        tag.copy_from_slice(&self.cipher.seal(number.value(), text));
    }
}

impl Opener for Direction {
    fn open(&mut self, mut sealed: BytesMut) -> Result<(FrameFlags, BytesMut), Error> {
        if !sealed.starts_with(NAME) || sealed.len() < OVERHEAD_BYTES {
            return Err(Error::NotSealed);
        }
        sealed.advance(NAME.len());
        let number = sealed.get_u64();
        // Each has the next number: what was left out on the way, doubled or swapped is noticed by it.
        if Some(number) != self.last.checked_add(1) || number > self.cipher.last_number() {
            return Err(Error::SealBroken);
        }
        let mut tag = [0; TAG_BYTES];
        sealed.copy_to_slice(&mut tag);
        if !self.cipher.open(number, &mut sealed, &tag) {
            return Err(Error::SealBroken);
        }
        // Only now: what can't be opened must not make us refuse what can.
        self.last = number;
        let flags = sealed.get_u8();
        Ok((FrameFlags { more: flags & MORE != 0, command: flags & COMMAND != 0 }, sealed))
    }
}
