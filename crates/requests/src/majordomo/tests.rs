#![allow(clippy::unwrap_used)]

use super::*;
use crate::numbered::Token;
use bytes::Bytes;
use proptest::prelude::*;

fn frames(texts: &[&'static [u8]]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::from_static(text)).collect()
}

/// The dialect of a request, its envelope's length, and its body's.
fn request(texts: &[&'static [u8]]) -> (Dialect, Option<usize>, usize) {
    match decode(&frames(texts)).unwrap() {
        FromPeer::Request { dialect, envelope, service, body } => {
            assert_eq!(service, "echo");
            (dialect, envelope.map(|envelope| envelope.len()), body.len())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn dialects_are_detected_from_the_first_message() {
    assert_eq!(request(&[b"", b"MDPC01", b"echo", b"a", b"b"]), (Dialect::Mdp01, Some(0), 2));
    assert_eq!(request(&[b"id", b"", b"MDPC01", b"echo", b""]), (Dialect::Mdp01, Some(1), 1));
    assert_eq!(request(&[b"MDPC02", b"\x01", b"echo", b"a"]), (Dialect::Mdp02, None, 1));
    assert_eq!(request(&[b"", b"MDPC02", b"\x01", b"echo", b"a"]), (Dialect::Mdp02, Some(1), 1));
    // Through one proxy, and through two.
    assert_eq!(request(&[b"id", b"MDPC02", b"\x01", b"echo", b""]), (Dialect::Mdp02, Some(1), 1));
    assert_eq!(request(&[b"id", b"id", b"", b"MDPC02", b"\x01", b"echo", b"a"]), (Dialect::Mdp02, Some(3), 1));
    assert_eq!(request(&[b"", b"MDPC02", b"\x02", b"echo", b"a"]), (Dialect::Majortomo, Some(0), 1));
    for (texts, dialect) in [
        (&[&b""[..], b"MDPW01", b"\x01", b"echo"][..], Dialect::Mdp01),
        (&[b"MDPW02", b"\x01", b"echo"], Dialect::Mdp02),
        (&[b"", b"MDPW02", b"\x01", b"echo"], Dialect::Majortomo),
    ] {
        let command = WorkerCommand::Ready { service: Bytes::from_static(b"echo") };
        assert_eq!(decode(&frames(texts)), Ok(FromPeer::Worker { dialect, command }));
    }
}

#[test]
fn built_in_services_take_no_body() {
    for texts in [
        &[&b""[..], b"MDPC01", b"mmi.services"][..],
        &[b"MDPC02", b"\x01", b"mmi.services"],
        &[b"", b"MDPC02", b"\x02", b"mmi.services"],
    ] {
        let Ok(FromPeer::Request { body, .. }) = decode(&frames(texts)) else { panic!("{texts:?}") };
        assert_eq!(body[..], [Bytes::new()]);
    }
}

#[test]
fn unsupported_dialects_are_named() {
    for (texts, name) in [
        (&[&b"\xAA\xA4\x01"[..]][..], "zproto"),
        (&[b"", b"MDPC02", b"echo", b"a"], "zeromq/majordomo"),
        (&[b"MDPC03", b"\x01", b"/echo", b"1", b"", b"a", b"", b""], "opencmw"),
        (&[b"MDPW03", b"\x01", b"/echo", b"", b"", b"", b"", b""], "opencmw"),
        (&[b"", b"MDPC03", b"x"], "opencmw"),
        (&[b"MDPC01", b"echo", b"a"], "empty frame"),
        (&[b"GET / HTTP/1.1"], "not a Majordomo"),
        (&[b""], "nothing after"),
        (&[b"", b"MDPW01", b"\x09"], "unknown command"),
        (&[b"", b"MDPW01", b"\x03", b"addr", b"x", b"body"], "no empty frame"),
        (&[b"", b"MDPW01", b"\x01"], "without a service"),
    ] {
        let error = decode(&frames(texts)).unwrap_err().to_string();
        assert!(error.contains(name), "{error} should speak of {name}");
    }
}

#[test]
fn invalid_requests_are_refused_with_their_envelope_and_service() {
    let (long, longer, many) = ([b's'; 256], [b's'; 5_000], vec![Bytes::new(); 1_001]);
    let request = |head: &[&[u8]], body: &[Bytes]| {
        let head = head.iter().map(|frame| Bytes::copy_from_slice(frame));
        match decode(&head.chain(body.iter().cloned()).collect::<Vec<_>>()).unwrap() {
            FromPeer::Refused { dialect, envelope, service, status, reason } => {
                (dialect, envelope.map(|envelope| envelope.len()), service, status.0, reason)
            }
            other => panic!("{other:?}"),
        }
    };
    for (head, body, dialect, envelope, service, status, why) in [
        (&[&b"id"[..], b"", b"MDPC01", b"echo"][..], &many[..], Dialect::Mdp01, Some(1), &b"echo"[..], 413, "1000"),
        (&[b"", b"MDPC01", b"echo"], &[], Dialect::Mdp01, Some(0), b"echo", 400, "no frames"),
        (&[b"", b"MDPC01", &long], &many[..1], Dialect::Mdp01, Some(0), &long, 400, "255"),
        (&[b"", b"MDPC01", &longer], &many[..1], Dialect::Mdp01, Some(0), &longer[..4_096], 400, "255"),
        (&[b"", b"MDPC01", b""], &many[..1], Dialect::Mdp01, Some(0), b"", 400, "empty service"),
        (&[b"", b"MDPC01"], &[], Dialect::Mdp01, Some(0), b"", 400, "no service"),
        (&[b"MDPC02", b"\x01", b"mmi"], &[], Dialect::Mdp02, None, b"mmi", 400, "no frames"),
        (&[b"MDPC02", b"\x02", b"echo"], &many[..1], Dialect::Mdp02, None, b"echo", 400, "command 01"),
        (&[b"", b"MDPC02", b"\x02", b"echo"], &many[..], Dialect::Majortomo, Some(0), b"echo", 413, "1000"),
    ] {
        let (of, with, named, code, reason) = request(head, body);
        assert_eq!((of, with, &named[..], code), (dialect, envelope, service, status), "{why}");
        assert!(reason.contains(why), "{reason} should speak of {why}");
    }
}

#[test]
fn replies_have_the_shape_of_their_dialect() {
    let service = Bytes::from_static(b"echo");
    let envelope: std::sync::Arc<[Bytes]> = [Bytes::from_static(b"id")].into();
    assert_eq!(
        reply_head(Dialect::Mdp01, Some(&envelope), &service, false)[..],
        frames(&[b"id", b"", b"MDPC01", b"echo"])
    );
    assert_eq!(
        reply_head(Dialect::Mdp02, Some(&envelope), &service, false)[..],
        frames(&[b"id", b"MDPC02", b"\x03", b"echo"])
    );
    assert_eq!(reply_head(Dialect::Mdp02, None, &service, true)[..], frames(&[b"MDPC02", b"\x02", b"echo"]));
    assert_eq!(reply_head(Dialect::Mdp02, None, &service, false)[..], frames(&[b"MDPC02", b"\x03", b"echo"]));
    let none: std::sync::Arc<[Bytes]> = [].into();
    assert_eq!(reply_head(Dialect::Majortomo, Some(&none), &service, false)[..], frames(&[b"", b"MDPC02", b"\x04"]));
    assert_eq!(heartbeat(Dialect::Mdp01)[..], frames(&[b"", b"MDPW01", b"\x04"]));
    assert_eq!(disconnect(Dialect::Mdp02)[..], frames(&[b"MDPW02", b"\x06"]));
}

#[test]
fn unknown_headers_are_shown_escaped() {
    let complaint = |header: &'static [u8]| decode(&frames(&[b"", header, b"s01", b"x"])).unwrap_err().to_string();
    assert!(complaint(b"MDPC07").ends_with("after the empty frame, \"MDPC07\""), "{}", complaint(b"MDPC07"));
    assert!(complaint(b"\x1b[2J\n\"\xff").ends_with(r#", "\x1b[2J\n\"\xff""#), "{}", complaint(b"\x1b[2J\n\"\xff"));
    assert!(complaint(&[b'x'; 16]).ends_with(&format!(", \"{}\"", "x".repeat(16))));
    assert!(complaint(&[b'x'; 17]).ends_with(&format!(", \"{}...\"", "x".repeat(16))));
}

proptest! {
    #[test]
    fn tokens_round_trip_as_printable_text(token in any::<[u8; 16]>()) {
        let head = request_head(Dialect::Mdp01, &Token(token));
        prop_assert_eq!(&head[..3], &frames(&[b"", b"MDPW01", b"\x02"])[..]);
        prop_assert!(head[3].is_ascii() && head[3].first() != Some(&b'@'));
        prop_assert_eq!(token_of(&head[3]), Some(Token(token)));
        prop_assert!(head[4].is_empty());
    }

    #[test]
    fn any_frames_decode_or_are_refused(
        texts in prop::collection::vec(
            prop_oneof![
                Just(&b""[..]), Just(&b"MDPC01"[..]), Just(&b"MDPW01"[..]), Just(&b"MDPC02"[..]), Just(&b"MDPW02"[..]),
                Just(&b"\x01"[..]), Just(&b"\x02"[..]), Just(&b"\x03"[..]), Just(&b"\x04"[..]), Just(&b"echo"[..]),
            ],
            0..8,
        ),
    ) {
        let _ = decode(&frames(&texts));
    }
}
