//! The side that knows the server's key beforehand.

use super::traffic::Traffic;
use super::{
    AES, CIPHER_PROPERTY, COOKIE_BYTES, HELLO, HELLO_PADDING_BYTES, HELLO_ZEROS_BYTES, INITIATE, LONG_NONCE_BYTES,
    READY, VERSION, VOUCH, WELCOME, counted_nonce, data_of, encoded, new_key, open_box, put_box, random_bytes,
    random_nonce, shared_key, take, take_key, take_number, with_aes,
};
use crate::command;
use crate::crypto::{KEY_BYTES, SharedKey, TAG_BYTES};
use crate::error::Error;
use crate::keys::{PublicKey, SecretKey};
use crate::mechanism::{Mechanism, Step, unexpected};
use crate::metadata::Metadata;
use crate::random::Random;
use crate::seal::FrameSeal;
use bytes::Bytes;
use std::fmt::{self, Debug, Formatter};

/// Numbers of the client's commands; its messages have those above.
const HELLO_NUMBER: u64 = 1;
const INITIATE_NUMBER: u64 = 2;

pub(crate) struct CurveClient {
    key: SecretKey,
    server: PublicKey,
    random: Random,
    /// Offers AES-256-GCM.
    aes: bool,
    awaits: Awaits,
}

/// The server's key of this connection, and its cookie.
type Welcome = (PublicKey, [u8; COOKIE_BYTES]);

enum Awaits {
    Nothing,
    Welcome { transient: SecretKey, hello: SharedKey },
    Ready(Initiated),
    Traffic { traffic: Traffic, ready_number: u64 },
}

/// The keys of a connection.
struct Initiated {
    shared: SharedKey,
    client: PublicKey,
    server: PublicKey,
}

impl CurveClient {
    pub(crate) fn new(key: SecretKey, server: PublicKey, random: Random, aes: bool) -> CurveClient {
        CurveClient { key, server, random, aes, awaits: Awaits::Nothing }
    }

    fn on_welcome(&self, body: &Bytes, hello: &SharedKey) -> Result<Welcome, Error> {
        let mut data = data_of(body, "WELCOME").map_err(|error| match error {
            Error::RefusedByPeer { .. } => Error::HelloRefused { server: self.server },
            other => other,
        })?;
        let nonce = take::<LONG_NONCE_BYTES>(&mut data, "WELCOME")?;
        if data.len() != TAG_BYTES + KEY_BYTES + COOKIE_BYTES {
            return Err(Error::MalformedCommand { command: "WELCOME", why: "it doesn't have 168 bytes" });
        }
        let text = open_box(hello, &random_nonce(WELCOME, &nonce), data)
            .ok_or(Error::ServerKeyNotProven { server: self.server })?;
        let mut text = &text[..];
        let server = take_key(&mut text, "WELCOME")?;
        Ok((server, take(&mut text, "WELCOME")?))
    }

    fn initiate(
        &mut self,
        transient: &SecretKey,
        (server, cookie): Welcome,
        metadata: &Metadata,
    ) -> Result<Bytes, Error> {
        let unfit = Error::MalformedCommand { command: "WELCOME", why: "its key is unfit" };
        let shared = shared_key(transient, &server).ok_or(unfit.clone())?;
        let vouch_key = shared_key(&self.key, &server).ok_or(unfit)?;
        let vouch_nonce: [u8; LONG_NONCE_BYTES] = random_bytes(&self.random)?;
        let mut text = self.key.public_key().as_bytes().to_vec();
        text.extend_from_slice(&vouch_nonce);
        let ours = transient.public_key();
        let vouched = [&ours.as_bytes()[..], self.server.as_bytes()];
        put_box(&mut text, &vouch_key, &random_nonce(VOUCH, &vouch_nonce), &vouched);
        let properties = if self.aes { encoded(&with_aes(metadata)) } else { encoded(metadata) };
        let mut body = b"\x08INITIATE".to_vec();
        body.extend_from_slice(&cookie);
        body.extend_from_slice(&INITIATE_NUMBER.to_be_bytes());
        put_box(&mut body, &shared, &counted_nonce(INITIATE, INITIATE_NUMBER), &[&text, &properties]);
        self.awaits = Awaits::Ready(Initiated { shared, client: ours, server });
        Ok(command::framed(&body))
    }

    /// The server's metadata, the number of its READY, and the cipher that it has chosen.
    fn on_ready(&self, body: &Bytes, initiated: Initiated) -> Result<(Metadata, u64, Traffic), Error> {
        let malformed = |why| Error::MalformedCommand { command: "READY", why };
        let Initiated { shared, client, server } = initiated;
        let mut data = data_of(body, "READY").map_err(|error| match error {
            // A status without a sentence: the decision about our key.
            Error::RefusedByPeer { reason } if reason == "400" || reason.is_empty() => {
                Error::ClientKeyRefused { client: self.key.public_key(), reason }
            }
            other => other,
        })?;
        let number = take_number(&mut data, "READY")?;
        let properties = open_box(&shared, &counted_nonce(READY, number), data);
        let metadata = Metadata::decode("READY", properties.ok_or(malformed("its box cannot be opened"))?.into())?;
        let traffic = match metadata.find(CIPHER_PROPERTY) {
            None => Traffic::new(shared),
            Some(cipher) if self.aes && cipher == AES => Traffic::aes(&shared, &client, &server)?,
            Some(_) => return Err(malformed("it has a cipher that wasn't offered")),
        };
        Ok((metadata, number, traffic))
    }
}

/// Shows no key.
impl Debug for CurveClient {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurveClient").finish_non_exhaustive()
    }
}

impl Mechanism for CurveClient {
    fn name(&self) -> &'static str {
        "CURVE"
    }

    fn start(&mut self, _: &Metadata) -> Result<Option<Bytes>, Error> {
        let transient = new_key(&self.random)?;
        let hello = shared_key(&transient, &self.server).ok_or(Error::UnfitKey { key: self.server })?;
        let mut body = b"\x05HELLO".to_vec();
        body.extend_from_slice(&VERSION);
        body.extend_from_slice(&[0; HELLO_PADDING_BYTES]);
        body.extend_from_slice(transient.public_key().as_bytes());
        body.extend_from_slice(&HELLO_NUMBER.to_be_bytes());
        put_box(&mut body, &hello, &counted_nonce(HELLO, HELLO_NUMBER), &[&[0; HELLO_ZEROS_BYTES]]);
        self.awaits = Awaits::Welcome { transient, hello };
        Ok(Some(command::framed(&body)))
    }

    fn command(&mut self, body: Bytes, metadata: &Metadata) -> Result<Step, Error> {
        match std::mem::replace(&mut self.awaits, Awaits::Nothing) {
            Awaits::Welcome { transient, hello } => {
                let welcome = self.on_welcome(&body, &hello)?;
                self.initiate(&transient, welcome, metadata).map(Step::Send)
            }
            Awaits::Ready(initiated) => {
                let (metadata, ready_number, traffic) = self.on_ready(&body, initiated)?;
                self.awaits = Awaits::Traffic { traffic, ready_number };
                Ok(Step::Done { send: None, metadata })
            }
            Awaits::Nothing | Awaits::Traffic { .. } => unexpected(&body, "nothing"),
        }
    }

    fn closed(&self) -> Option<Error> {
        match self.awaits {
            Awaits::Welcome { .. } => Some(Error::ClosedAfterHello { server: self.server }),
            _ => None,
        }
    }

    fn protects_metadata(&self) -> bool {
        true
    }

    fn frame_seal(&mut self) -> Option<FrameSeal> {
        let Awaits::Traffic { traffic, ready_number } = std::mem::replace(&mut self.awaits, Awaits::Nothing) else {
            return None;
        };
        Some(traffic.seal_of_client(INITIATE_NUMBER, ready_number))
    }
}
