//! The side whose key is known beforehand.

use super::traffic::Traffic;
use super::{
    AES, CIPHER_PROPERTY, COOKIE_BYTES, HELLO, HELLO_PADDING_BYTES, HELLO_ZEROS_BYTES, INITIATE, LONG_NONCE_BYTES,
    READY, VERSION, VOUCH, VOUCH_BYTES, WELCOME, counted_nonce, data_of, encoded, new_key, open_box, put_box,
    random_bytes, random_nonce, shared_key, take, take_key, take_number, with_aes,
};
use crate::command;
use crate::credentials::Credentials;
use crate::crypto::TAG_BYTES;
use crate::error::Error;
use crate::keys::{PublicKey, SecretKey};
use crate::mechanism::{Mechanism, Step, unexpected};
use crate::metadata::Metadata;
use crate::random::Random;
use crate::seal::FrameSeal;
use bytes::Bytes;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Number of READY; our messages have those above.
const READY_NUMBER: u64 = 1;

pub(crate) struct CurveServer {
    keys: Arc<[SecretKey]>,
    random: Random,
    /// Takes an offer of AES-256-GCM.
    aes: bool,
    awaits: Awaits,
}

enum Awaits {
    Hello,
    Initiate(Box<Welcomed>),
    Verdict { traffic: Traffic, initiate_number: u64, ready: Bytes, metadata: Metadata },
    Traffic { traffic: Traffic, initiate_number: u64 },
    Nothing,
}

/// A client that was sent a WELCOME.
struct Welcomed {
    /// The key of ours that it asked for.
    ours: PublicKey,
    /// Its key of this connection.
    client: PublicKey,
    /// Our key of this connection.
    transient: SecretKey,
    transient_public: PublicKey,
    cookie: [u8; COOKIE_BYTES],
    hello_number: u64,
}

impl CurveServer {
    pub(crate) fn new(keys: Arc<[SecretKey]>, random: Random, aes: bool) -> CurveServer {
        CurveServer { keys, random, aes, awaits: Awaits::Hello }
    }

    fn on_hello(&mut self, body: &Bytes) -> Result<Step, Error> {
        let mut data = data_of(body, "HELLO")?;
        let malformed = |why| Error::MalformedCommand { command: "HELLO", why };
        if take(&mut data, "HELLO")? != VERSION {
            return Err(malformed("not version 1.0 of CURVE"));
        }
        let _: [u8; HELLO_PADDING_BYTES] = take(&mut data, "HELLO")?;
        let client = take_key(&mut data, "HELLO")?;
        let hello_number = take_number(&mut data, "HELLO")?;
        if data.len() != TAG_BYTES + HELLO_ZEROS_BYTES {
            return Err(malformed("it doesn't have 200 bytes"));
        }
        let nonce = counted_nonce(HELLO, hello_number);
        let opened = self.keys.iter().find_map(|key| {
            let shared = shared_key(key, &client)?;
            open_box(&shared, &nonce, data).map(|zeros| (key.public_key(), shared, zeros))
        });
        let Some((ours, hello, zeros)) = opened else { return Ok(Step::Refuse(Error::HelloForAnotherKey)) };
        if zeros.iter().any(|byte| *byte != 0) {
            return Err(malformed("its box has something else than zeros"));
        }
        let transient = new_key(&self.random)?;
        let transient_public = transient.public_key();
        let nonce: [u8; LONG_NONCE_BYTES] = random_bytes(&self.random)?;
        // RFC 26 puts our key of this connection into the cookie, so that nothing must be kept. Over TCP something is kept
        // anyway, so random bytes will do.
        let cookie: [u8; COOKIE_BYTES] = random_bytes(&self.random)?;
        let mut welcome = b"\x07WELCOME".to_vec();
        welcome.extend_from_slice(&nonce);
        put_box(&mut welcome, &hello, &random_nonce(WELCOME, &nonce), &[transient_public.as_bytes(), &cookie]);
        let welcomed = Welcomed { ours, client, transient, transient_public, cookie, hello_number };
        self.awaits = Awaits::Initiate(Box::new(welcomed));
        Ok(Step::Send(command::framed(&welcome)))
    }

    fn on_initiate(&mut self, body: &Bytes, welcomed: &Welcomed, metadata: &Metadata) -> Result<Step, Error> {
        const COMMAND: &str = "INITIATE";
        let malformed = |why| Error::MalformedCommand { command: COMMAND, why };
        let mut data = data_of(body, COMMAND)?;
        let cookie: [u8; COOKIE_BYTES] = take(&mut data, COMMAND)?;
        if !bool::from(cookie.ct_eq(&welcomed.cookie)) {
            return Err(malformed("its cookie isn't the one of our WELCOME"));
        }
        let initiate_number = take_number(&mut data, COMMAND)?;
        if initiate_number <= welcomed.hello_number {
            return Err(malformed("its number isn't above HELLO's"));
        }
        let unopened = malformed("its box cannot be opened");
        let shared = shared_key(&welcomed.transient, &welcomed.client).ok_or(malformed("its key is unfit"))?;
        let text = open_box(&shared, &counted_nonce(INITIATE, initiate_number), data).ok_or(unopened)?;
        let mut text = &text[..];
        let client = take_key(&mut text, COMMAND)?;
        let vouch_nonce: [u8; LONG_NONCE_BYTES] = take(&mut text, COMMAND)?;
        let vouch: [u8; VOUCH_BYTES] = take(&mut text, COMMAND)?;
        let vouch_key = shared_key(&welcomed.transient, &client).ok_or(malformed("its long-term key is unfit"))?;
        let vouched = open_box(&vouch_key, &random_nonce(VOUCH, &vouch_nonce), &vouch)
            .ok_or(malformed("its vouch cannot be opened: the peer doesn't have the key that it claims"))?;
        // For this connection, and for this server: somebody else's server can't use it to get in here.
        let expected = [&welcomed.client.as_bytes()[..], welcomed.ours.as_bytes()].concat();
        if !bool::from(vouched.ct_eq(&expected)) {
            return Err(malformed("its vouch is for another connection or server"));
        }
        let theirs = Metadata::decode(COMMAND, Bytes::copy_from_slice(text))?;
        let aes = self.aes && theirs.find(CIPHER_PROPERTY).is_some_and(|cipher| cipher == AES);
        let properties = if aes { encoded(&with_aes(metadata)) } else { encoded(metadata) };
        let mut ready = b"\x05READY".to_vec();
        ready.extend_from_slice(&READY_NUMBER.to_be_bytes());
        put_box(&mut ready, &shared, &counted_nonce(READY, READY_NUMBER), &[&properties]);
        let traffic = match aes {
            true => Traffic::aes(&shared, &welcomed.client, &welcomed.transient_public)?,
            false => Traffic::new(shared),
        };
        self.awaits = Awaits::Verdict { traffic, initiate_number, ready: command::framed(&ready), metadata: theirs };
        Ok(Step::Authenticate(Credentials::Curve { key: client }))
    }
}

/// Shows no key.
impl Debug for CurveServer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurveServer").finish_non_exhaustive()
    }
}

impl Mechanism for CurveServer {
    fn name(&self) -> &'static str {
        "CURVE"
    }

    fn as_server(&self) -> bool {
        true
    }

    fn start(&mut self, _: &Metadata) -> Result<Option<Bytes>, Error> {
        Ok(None)
    }

    fn command(&mut self, body: Bytes, metadata: &Metadata) -> Result<Step, Error> {
        match std::mem::replace(&mut self.awaits, Awaits::Nothing) {
            Awaits::Hello => self.on_hello(&body),
            Awaits::Initiate(welcomed) => self.on_initiate(&body, &welcomed, metadata),
            _ => unexpected(&body, "nothing before READY"),
        }
    }

    fn accept(&mut self) -> Step {
        match std::mem::replace(&mut self.awaits, Awaits::Nothing) {
            Awaits::Verdict { traffic, initiate_number, ready, metadata } => {
                self.awaits = Awaits::Traffic { traffic, initiate_number };
                Step::Done { send: Some(ready), metadata }
            }
            other => {
                self.awaits = other;
                Step::Wait
            }
        }
    }

    fn protects_metadata(&self) -> bool {
        true
    }

    fn frame_seal(&mut self) -> Option<FrameSeal> {
        let Awaits::Traffic { traffic, initiate_number } = std::mem::replace(&mut self.awaits, Awaits::Nothing) else {
            return None;
        };
        Some(traffic.seal_of_server(READY_NUMBER, initiate_number))
    }
}
