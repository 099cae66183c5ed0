//! Handshakes by hand: what a side with real keys may send that it shouldn't.

use super::traffic::Traffic;
use super::*;
use crate::credentials::Credentials;
use crate::frame::{FrameFlags, Header};
use crate::limits::AES_NUMBERS_MAX;
use crate::mechanism::{Mechanism, Step};
use crate::metadata::Metadata;
use crate::seal::{FrameNumber, FrameSeal};
use bytes::BytesMut;
use std::sync::Arc;

fn random() -> Random {
    Random::new(|bytes| {
        // Tests need no secrets, but different ones: neither nonces nor keys repeat.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        for eight in bytes.chunks_mut(8) {
            let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            eight.copy_from_slice(&number.to_be_bytes()[..eight.len()]);
        }
        Ok(())
    })
}

fn key() -> SecretKey {
    SecretKey::generate(&random()).unwrap()
}

fn metadata() -> Metadata {
    Metadata::new().with("Socket-Type", "DEALER")
}

/// The body of a command frame.
fn body(frame: &Bytes) -> Bytes {
    let (header, size) = Header::decode(frame).unwrap();
    assert!(header.command && !header.more);
    frame.slice(size..)
}

fn sent(step: Result<Step, Error>) -> Bytes {
    match step {
        Ok(Step::Send(frame)) => body(&frame),
        other => panic!("{other:?}"),
    }
}

/// A client that does by hand what [`CurveClient`] does.
struct Hand {
    key: SecretKey,
    transient: SecretKey,
    server: PublicKey,
}

impl Hand {
    fn hello(&self, number: u64) -> Vec<u8> {
        let mut hello = b"\x05HELLO\x01\x00".to_vec();
        hello.extend_from_slice(&[0; HELLO_PADDING_BYTES]);
        hello.extend_from_slice(self.transient.public_key().as_bytes());
        hello.extend_from_slice(&number.to_be_bytes());
        let shared = shared_key(&self.transient, &self.server).unwrap();
        put_box(&mut hello, &shared, &counted_nonce(HELLO, number), &[&[0; HELLO_ZEROS_BYTES]]);
        hello
    }

    /// The key that is shared with the server of a WELCOME, its public key, and the cookie.
    fn welcomed(&self, welcome: &[u8]) -> (SharedKey, PublicKey, [u8; COOKIE_BYTES]) {
        let shared = shared_key(&self.transient, &self.server).unwrap();
        let mut data = welcome.strip_prefix(b"\x07WELCOME").unwrap();
        let nonce = random_nonce(super::WELCOME, &take(&mut data, "").unwrap());
        let text = open_box(&shared, &nonce, data).unwrap();
        let mut text = &text[..];
        let server = take_key(&mut text, "").unwrap();
        (shared_key(&self.transient, &server).unwrap(), server, take(&mut text, "").unwrap())
    }

    /// An INITIATE whose vouch is made by `voucher`, for two keys.
    fn initiate(&self, welcome: &[u8], number: u64, voucher: &SecretKey, vouched: [&PublicKey; 2]) -> Vec<u8> {
        self.initiate_as(&self.key.public_key(), welcome, number, voucher, vouched)
    }

    /// The same, claiming to have some key.
    fn initiate_as(
        &self,
        claimed: &PublicKey,
        welcome: &[u8],
        number: u64,
        voucher: &SecretKey,
        vouched: [&PublicKey; 2],
    ) -> Vec<u8> {
        let (traffic, server, cookie) = self.welcomed(welcome);
        let mut text = claimed.as_bytes().to_vec();
        text.extend_from_slice(&[7; LONG_NONCE_BYTES]);
        let vouch_key = shared_key(voucher, &server).unwrap();
        let vouched = vouched.map(|key| &key.as_bytes()[..]);
        put_box(&mut text, &vouch_key, &random_nonce(VOUCH, &[7; LONG_NONCE_BYTES]), &vouched);
        let mut properties = BytesMut::new();
        metadata().encode(&mut properties);
        let mut initiate = b"\x08INITIATE".to_vec();
        initiate.extend_from_slice(&cookie);
        initiate.extend_from_slice(&number.to_be_bytes());
        put_box(&mut initiate, &traffic, &counted_nonce(INITIATE, number), &[&text, &properties]);
        initiate
    }
}

/// A server, and a client by hand that has been welcomed.
fn welcomed() -> (CurveServer, Hand, Bytes) {
    let ours = key();
    let hand = Hand { key: key(), transient: key(), server: ours.public_key() };
    let mut server = CurveServer::new(Arc::from([ours]), random(), false);
    let welcome = sent(server.command(hand.hello(5).into(), &metadata()));
    (server, hand, welcome)
}

fn why(step: Result<Step, Error>) -> &'static str {
    match step {
        Err(Error::MalformedCommand { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_vouch_is_for_this_connection_and_this_server() {
    let (mut server, hand, welcome) = welcomed();
    let right = [&hand.transient.public_key(), &hand.server];
    let step = server.command(hand.initiate(&welcome, 6, &hand.key, right).into(), &metadata());
    assert!(matches!(step, Ok(Step::Authenticate(Credentials::Curve { key })) if key == hand.key.public_key()));

    let other = key().public_key();
    for wrong in [0, 1] {
        let (mut server, hand, welcome) = welcomed();
        let mut vouched = [&hand.transient.public_key(), &hand.server];
        vouched[wrong] = &other;
        let initiate = hand.initiate(&welcome, 6, &hand.key, vouched);
        assert!(why(server.command(initiate.into(), &metadata())).contains("another connection or server"));
    }
}

#[test]
fn nobody_claims_a_key_without_its_secret() {
    let (mut server, hand, welcome) = welcomed();
    let right = [&hand.transient.public_key(), &hand.server];
    let initiate = hand.initiate(&welcome, 6, &key(), right);
    assert!(why(server.command(initiate.into(), &metadata())).contains("doesn't have the key"));
}

#[test]
fn handshake_numbers_rise_and_commands_come_once() {
    for number in [0, 4, 5] {
        let (mut server, hand, welcome) = welcomed();
        let right = [&hand.transient.public_key(), &hand.server];
        let initiate = hand.initiate(&welcome, number, &hand.key, right);
        assert!(why(server.command(initiate.into(), &metadata())).contains("isn't above"));
    }
    let (mut server, hand, welcome) = welcomed();
    let right = [&hand.transient.public_key(), &hand.server];
    let initiate = Bytes::from(hand.initiate(&welcome, 6, &hand.key, right));
    server.command(initiate.clone(), &metadata()).unwrap();
    let again = server.command(initiate, &metadata());
    assert!(matches!(again, Err(Error::UnexpectedInHandshake { .. })), "{again:?}");
    let (mut server, hand, _) = welcomed();
    let again = server.command(hand.hello(6).into(), &metadata());
    assert!(matches!(again, Err(Error::UnexpectedInHandshake { .. })), "{again:?}");
}

#[test]
fn points_of_low_order_get_nowhere() {
    let ours = key();
    let mut server = CurveServer::new(Arc::from([ours.clone()]), random(), false);
    let hand = Hand { key: key(), transient: key(), server: ours.public_key() };
    let mut hello = hand.hello(1);
    hello[80..112].fill(0);
    let refused = server.command(hello.into(), &metadata());
    assert!(matches!(refused, Ok(Step::Refuse(Error::HelloForAnotherKey))), "{refused:?}");

    let mut client = CurveClient::new(key(), PublicKey::from([0; 32]), random(), false);
    assert!(matches!(client.start(&metadata()), Err(Error::UnfitKey { .. })));

    // The long-term key of a client, with which anybody could make the vouch.
    let (mut server, hand, welcome) = welcomed();
    let right = [&hand.transient.public_key(), &hand.server];
    let initiate = hand.initiate_as(&PublicKey::from([0; 32]), &welcome, 6, &hand.key, right);
    assert!(why(server.command(initiate.into(), &metadata())).contains("long-term key is unfit"));

    // The key of the connection, of a server that gives its own away.
    let ours = key();
    let mut client = CurveClient::new(key(), ours.public_key(), random(), false);
    let hello = body(&client.start(&metadata()).unwrap().unwrap());
    let theirs = take_key(&mut &hello[80..], "").unwrap();
    let mut welcome = b"\x07WELCOME".to_vec();
    welcome.extend_from_slice(&[9; LONG_NONCE_BYTES]);
    let nonce = random_nonce(super::WELCOME, &[9; LONG_NONCE_BYTES]);
    put_box(&mut welcome, &shared_key(&ours, &theirs).unwrap(), &nonce, &[&[0; KEY_BYTES], &[0; COOKIE_BYTES]]);
    assert!(why(client.command(welcome.into(), &metadata())).contains("its key is unfit"));
}

#[test]
fn commands_of_wrong_lengths_are_refused() {
    for cut in [5, 6, 8, 100, 199] {
        let ours = key();
        let hand = Hand { key: key(), transient: key(), server: ours.public_key() };
        let server = || CurveServer::new(Arc::from([ours.clone()]), random(), false);
        let hello = Bytes::from(hand.hello(1));
        assert!(server().command(hello.slice(..cut), &metadata()).is_err(), "{cut}");
        let mut server = server();
        assert!(server.command([&hello[..], b"\0"].concat().into(), &metadata()).is_err());
    }
    for cut in [9, 50, 105, 113, 128, 256] {
        let (mut server, hand, welcome) = welcomed();
        let right = [&hand.transient.public_key(), &hand.server];
        let initiate = Bytes::from(hand.initiate(&welcome, 6, &hand.key, right));
        assert!(server.command(initiate.slice(..cut), &metadata()).is_err(), "{cut}");
    }
}

/// Both directions of one connection, between a client and a server that have the second cipher or not.
fn traffic(client_has_aes: bool, server_has_aes: bool) -> (FrameSeal, FrameSeal) {
    traffic_with(client_has_aes, server_has_aes, &metadata()).unwrap()
}

/// The same, with metadata of the server's.
fn traffic_with(
    client_has_aes: bool,
    server_has_aes: bool,
    of_server: &Metadata,
) -> Result<(FrameSeal, FrameSeal), Error> {
    let ours = key();
    let mut client = CurveClient::new(key(), ours.public_key(), random(), client_has_aes);
    let mut server = CurveServer::new(Arc::from([ours]), random(), server_has_aes);
    let hello = body(&client.start(&metadata()).unwrap().unwrap());
    let welcome = sent(server.command(hello, of_server));
    let initiate = sent(client.command(welcome, &metadata()));
    assert!(matches!(server.command(initiate, of_server), Ok(Step::Authenticate(_))));
    let Step::Done { send: Some(ready), .. } = server.accept() else { panic!("no READY") };
    assert!(matches!(client.command(body(&ready), &metadata())?, Step::Done { send: None, .. }));
    Ok((client.frame_seal().unwrap(), server.frame_seal().unwrap()))
}

#[test]
fn the_second_cipher_needs_both_sides() {
    for (client_has_aes, server_has_aes) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut client, mut server) = traffic(client_has_aes, server_has_aes);
        let expected = if client_has_aes && server_has_aes { "AES-256-GCM" } else { "XSalsa20-Poly1305" };
        assert_eq!((client.cipher, server.cipher), (expected, expected));
        let there = seal(&client, FrameFlags::default(), &[b"there"]).remove(0);
        let back = seal(&server, FrameFlags::default(), &[b"back"]).remove(0);
        assert_eq!(server.opener.open(there).unwrap().1, "there");
        assert_eq!(client.opener.open(back).unwrap().1, "back");
    }
}

#[test]
fn a_cipher_that_was_not_offered_ends_the_handshake() {
    for (client_has_aes, cipher) in [(false, "AES-256-GCM"), (true, "AES-128-GCM"), (true, "")] {
        let chosen = metadata().with(CIPHER_PROPERTY, cipher);
        let refused = traffic_with(client_has_aes, false, &chosen).map(|_| ());
        let why = "it has a cipher that wasn't offered";
        assert_eq!(refused, Err(Error::MalformedCommand { command: "READY", why }));
    }
}

#[test]
fn a_peer_that_agreed_on_a_cipher_and_uses_another_is_not_understood() {
    // The server says that it takes the offer, and goes on with CURVE's cipher.
    let (mut client, mut server) = traffic_with(true, false, &with_aes(&metadata())).unwrap();
    assert_eq!((client.cipher, server.cipher), ("AES-256-GCM", "XSalsa20-Poly1305"));
    let there = seal(&client, FrameFlags::default(), &[b"there"]).remove(0);
    let back = seal(&server, FrameFlags::default(), &[b"back"]).remove(0);
    assert_eq!(server.opener.open(there), Err(Error::SealBroken));
    assert_eq!(client.opener.open(back), Err(Error::SealBroken));
}

#[test]
fn numbers_of_the_second_cipher_end() {
    let keys = [key(), key()].map(|key| key.public_key());
    let shared = shared_key(&key(), &keys[0]).unwrap();
    let traffic = || Traffic::aes(&shared, &keys[0], &keys[1]).unwrap();
    // INITIATE had a number shortly before the last.
    let client = traffic().seal_of_client(AES_NUMBERS_MAX - 1, 1);
    let mut server = traffic().seal_of_server(1, AES_NUMBERS_MAX - 1);
    assert_eq!((client.first_number, client.last_number), (AES_NUMBERS_MAX, AES_NUMBERS_MAX));
    let [last, beyond] = seal(&client, FrameFlags::default(), &[b"", b""]).try_into().unwrap();
    assert!(server.opener.open(last).is_ok());
    assert_eq!(server.opener.open(beyond), Err(Error::SealBroken));
}

#[test]
fn every_changed_bit_of_a_message_is_noticed() {
    for aes in [false, true] {
        let (client, mut server) = traffic(aes, aes);
        let sealed = seal(&client, FrameFlags::default(), &[b"some text"]).remove(0);
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(server.opener.open(changed).is_err(), "bit {bit}");
        }
        assert_eq!(server.opener.open(sealed).unwrap().1, "some text");
    }
}

/// Frames of one side, in their order.
fn seal(side: &FrameSeal, flags: FrameFlags, texts: &[&[u8]]) -> Vec<BytesMut> {
    let frame = |(number, text): (u64, &&[u8])| {
        let mut frame = BytesMut::zeroed(side.overhead);
        frame.extend_from_slice(text);
        side.sealer.seal(FrameNumber::new(number), flags, &mut frame);
        frame
    };
    (side.first_number..).zip(texts).map(frame).collect()
}

#[test]
fn only_the_frame_with_the_next_number_is_opened() {
    for aes in [false, true] {
        numbers_have_no_gaps(traffic(aes, aes));
    }
}

fn numbers_have_no_gaps((client, mut server): (FrameSeal, FrameSeal)) {
    let messages = seal(&client, FrameFlags::default(), &[b"one", b"two", b"three"]);
    // The client's HELLO and INITIATE were 1 and 2.
    assert_eq!(messages[0][8..16], 3_u64.to_be_bytes());
    let mut open = |message: &BytesMut| server.opener.open(message.clone()).map(|(_, text)| text);
    // What can't be opened changes nothing.
    let mut forged = messages[0].clone();
    forged[16] ^= 1;
    for wrong in [&forged, &messages[1], &messages[2]] {
        assert_eq!(open(wrong), Err(Error::SealBroken));
    }
    assert_eq!(open(&messages[0]).unwrap(), "one");
    for wrong in [&messages[0], &messages[2]] {
        assert_eq!(open(wrong), Err(Error::SealBroken));
    }
    assert_eq!(open(&messages[1]).unwrap(), "two");
    let mut zero = messages[2].clone();
    zero[8..16].fill(0);
    assert_eq!(open(&zero), Err(Error::SealBroken));
    assert_eq!(open(&messages[2]).unwrap(), "three");
}

#[test]
fn a_message_is_no_echo() {
    for aes in [false, true] {
        let (mut client, _) = traffic(aes, aes);
        let sent = seal(&client, FrameFlags::default(), &[b"text"]).remove(0);
        assert_eq!(client.opener.open(sent), Err(Error::SealBroken));
    }
}

#[test]
fn short_and_strange_frames_are_not_sealed() {
    let (client, mut server) = traffic(true, true);
    let both = FrameFlags { more: true, command: true };
    let sealed = seal(&client, both, &[b""]).remove(0);
    for cut in 0..sealed.len() {
        assert!(server.opener.open(BytesMut::from(&sealed[..cut])).is_err(), "{cut}");
    }
    let mut renamed = sealed.clone();
    renamed[3] ^= 1;
    assert_eq!(server.opener.open(renamed), Err(Error::NotSealed));
    let (flags, text) = server.opener.open(sealed).unwrap();
    assert_eq!((flags, text.len()), (both, 0));
}
