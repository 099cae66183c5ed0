//! CURVE: both sides prove that they have their keys, and everything behind the greeting is encrypted (RFC 26).
//!
//! ```text
//! client                                       server
//! HELLO     C', box[zeros]          (C' -> S)
//!           box[S', cookie]         (S -> C')   WELCOME
//! INITIATE  cookie, box[C, vouch, metadata] (C' -> S')    vouch = box[C', S] (C -> S')
//!           box[metadata]           (S' -> C')   READY
//! MESSAGE   box[flags, body]                     MESSAGE
//! ```
//! `C` and `S` are the long-term keys, `C'` and `S'` those of this connection. Nobody can read a recorded connection later, whichever
//! long-term keys become known.
//!
//! Two ends of our own agree on another cipher for MESSAGE, by a property in INITIATE and in READY, where both have it in hardware. These boxes
//! are authentic, so nobody in between can prevent it unnoticed.

mod client;
mod server;
mod traffic;

pub(super) use client::CurveClient;
pub(super) use server::CurveServer;

use crate::command::Command;
use crate::crypto::{Crypto, Dryoc, KEY_BYTES, Nonce, SharedKey, TAG_BYTES};
use crate::error::Error;
use crate::keys::{PublicKey, SecretKey};
use crate::mechanism::unexpected;
use crate::metadata::Metadata;
use crate::random::Random;
use bytes::{Bytes, BytesMut};

/// The version in HELLO.
const VERSION: [u8; 2] = [1, 0];
/// Padding, so that a HELLO is longer than the WELCOME it asks for.
const HELLO_PADDING_BYTES: usize = 72;
const HELLO_ZEROS_BYTES: usize = 64;
const COOKIE_BYTES: usize = 96;
const LONG_NONCE_BYTES: usize = 16;
/// A box of two keys.
const VOUCH_BYTES: usize = TAG_BYTES + 2 * KEY_BYTES;

const HELLO: &[u8; 16] = b"CurveZMQHELLO---";
const WELCOME: &[u8; 8] = b"WELCOME-";
const INITIATE: &[u8; 16] = b"CurveZMQINITIATE";
const VOUCH: &[u8; 8] = b"VOUCH---";
const READY: &[u8; 16] = b"CurveZMQREADY---";
const MESSAGE_CLIENT: &[u8; 16] = b"CurveZMQMESSAGEC";
const MESSAGE_SERVER: &[u8; 16] = b"CurveZMQMESSAGES";

/// The property by which a client offers a cipher, and by which a server that takes the offer says so.
const CIPHER_PROPERTY: &str = "X-Towpath-Cipher";
const AES: &[u8] = b"AES-256-GCM";

fn counted_nonce(prefix: &[u8; 16], number: u64) -> Nonce {
    let mut nonce = [0; 24];
    nonce[..16].copy_from_slice(prefix);
    nonce[16..].copy_from_slice(&number.to_be_bytes());
    nonce
}

fn random_nonce(prefix: &[u8; 8], random: &[u8; LONG_NONCE_BYTES]) -> Nonce {
    let mut nonce = [0; 24];
    nonce[..8].copy_from_slice(prefix);
    nonce[8..].copy_from_slice(random);
    nonce
}

/// Appends a box: the tag, then the encrypted text.
fn put_box(out: &mut Vec<u8>, key: &SharedKey, nonce: &Nonce, text: &[&[u8]]) {
    let begin = out.len();
    out.extend_from_slice(&[0; TAG_BYTES]);
    text.iter().for_each(|part| out.extend_from_slice(part));
    let tag = Dryoc::seal(key, nonce, &mut out[begin + TAG_BYTES..]);
    out[begin..begin + TAG_BYTES].copy_from_slice(&tag);
}

/// The text of a box; `None`: it was changed, or made with other keys.
fn open_box(key: &SharedKey, nonce: &Nonce, sealed: &[u8]) -> Option<Vec<u8>> {
    let (tag, text) = sealed.split_first_chunk::<TAG_BYTES>()?;
    let mut text = text.to_vec();
    Dryoc::open(key, nonce, &mut text, tag).then_some(text)
}

fn shared_key(secret: &SecretKey, public: &PublicKey) -> Option<SharedKey> {
    Dryoc::shared_key(secret.as_bytes(), public.as_bytes())
}

/// The data of the command that is expected. The peer's ERROR is an error.
fn data_of<'a>(body: &'a Bytes, wanted: &'static str) -> Result<&'a [u8], Error> {
    let data = body.split_first().filter(|(length, _)| usize::from(**length) == wanted.len());
    match data.and_then(|(_, rest)| rest.strip_prefix(wanted.as_bytes())) {
        Some(data) => Ok(data),
        None if body.starts_with(b"\x05ERROR") => match Command::decode(body.clone())? {
            Command::Error { reason } => Err(Error::RefusedByPeer { reason }),
            _ => unexpected(body, wanted),
        },
        None => unexpected(body, wanted),
    }
}

/// Takes a field of fixed length off the front.
fn take<const N: usize>(data: &mut &[u8], command: &'static str) -> Result<[u8; N], Error> {
    let (field, rest) =
        data.split_first_chunk::<N>().ok_or(Error::MalformedCommand { command, why: "it is cut off" })?;
    *data = rest;
    Ok(*field)
}

fn take_key(data: &mut &[u8], command: &'static str) -> Result<PublicKey, Error> {
    take::<KEY_BYTES>(data, command).map(PublicKey::from)
}

fn take_number(data: &mut &[u8], command: &'static str) -> Result<u64, Error> {
    take(data, command).map(u64::from_be_bytes)
}

/// Our metadata with the second cipher.
fn with_aes(metadata: &Metadata) -> Metadata {
    metadata.clone().with(CIPHER_PROPERTY, AES)
}

fn encoded(metadata: &Metadata) -> BytesMut {
    let mut properties = BytesMut::new();
    metadata.encode(&mut properties);
    properties
}

fn new_key(random: &Random) -> Result<SecretKey, Error> {
    SecretKey::generate(random).map_err(|_| Error::NoRandomness)
}

fn random_bytes<const N: usize>(random: &Random) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    random.fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    Ok(bytes)
}

#[cfg(test)]
#[cfg(feature = "aes")]
mod tests;
