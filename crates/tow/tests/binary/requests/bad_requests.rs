//! Requests that are malformed, contradictory or over a limit get an error, and nothing else changes.

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::process::Server;
use crate::support::tree::random_file;
use crate::support::wire::{END, HOLE, Piece, Wire, parse_data_message};

const SIZE: u64 = 3_000_000;

/// Sends a fetch; returns its pieces and the last control message.
fn fetch(wire: &mut Wire, request: &Value) -> (Vec<Piece>, Value) {
    wire.request(request).expect("send");
    let mut pieces = Vec::new();
    loop {
        let frames = wire.receive().expect("an answer");
        if frames[0].starts_with(b"TOWD") {
            pieces.extend(parse_data_message(&frames).1);
            continue;
        }
        let answer: Value = serde_json::from_slice(&frames[1]).expect("JSON");
        if answer["re"] == "done" || answer["re"] == "error" {
            return (pieces, answer);
        }
        if answer["re"] == "files" && answer["files"][0]["error"].is_object() {
            assert_eq!(wire.control()["re"], "done");
            return (pieces, answer);
        }
    }
}

#[test]
fn ranges_return_exactly_their_bytes() {
    let folder = tempdir().expect("a folder");
    let bytes = random_file(&folder.path().join("a"), SIZE as usize, 1);
    let server = Server::start(folder.path());
    let mut wire = Wire::dealer(server.port());
    for (id, ranges) in [
        vec![[0u64, 10]],
        vec![[0, 1], [1, 1], [100, 1 << 20]],
        vec![[SIZE - 3, 3]],
        vec![[SIZE - 3, 1000]],
        vec![[SIZE, 10]],
        vec![[SIZE + 1000, 10]],
        vec![[0, (1 << 53) - 1]],
        vec![[(1 << 53) - 1, 1]],
    ]
    .into_iter()
    .enumerate()
    {
        let request = json!({"op": "fetch", "id": id, "credit_bytes": 1 << 24, "chunk_bytes": 65_536, "digest": "none",
            "files": [{"path": "a", "ranges": ranges}]});
        let (pieces, last) = fetch(&mut wire, &request);
        assert_eq!(last["re"], "done", "{ranges:?}: {last}");
        let mut got = Vec::new();
        for piece in &pieces {
            assert!(piece.length <= 65_536 && piece.flags & !(END | HOLE) == 0, "{piece:?}");
            assert_eq!(piece.body.len() as u64, piece.length);
            if piece.length > 0 {
                got.push((piece.offset, piece.body.clone()));
            }
        }
        let mut expected = Vec::new();
        for [offset, length] in &ranges {
            let begin = (*offset).min(SIZE);
            let end = offset.saturating_add(*length).min(SIZE);
            expected.extend_from_slice(&bytes[begin as usize..end as usize]);
        }
        assert!(got.is_sorted_by_key(|(offset, _)| *offset));
        let joined: Vec<u8> = got.into_iter().flat_map(|(_, body)| body).collect();
        assert!(joined == expected, "{ranges:?}: {} bytes, not {}", joined.len(), expected.len());
    }
}

#[test]
fn bad_ranges_are_refused() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), SIZE as usize, 1);
    let mut server = Server::start(folder.path());
    let mut wire = Wire::dealer(server.port());
    let too_many: Vec<[u64; 2]> = (0..1025).map(|index| [index * 2, 1]).collect();
    for (id, ranges) in [
        json!([[-1, 10]]),
        json!([[0, -1]]),
        json!([[0, 10], [5, 10]]),
        json!([[100, 10], [0, 10]]),
        json!([[u64::MAX, 1]]),
        json!([[1, u64::MAX]]),
        json!([[u64::MAX, u64::MAX]]),
        json!([[1.5, 2]]),
        json!([["0", "10"]]),
        json!([[0]]),
        json!([[0, 1, 2]]),
        json!([0, 10]),
        json!("0-10"),
        json!(too_many),
    ]
    .into_iter()
    .enumerate()
    {
        let request =
            json!({"op": "fetch", "id": id, "credit_bytes": 1 << 24, "files": [{"path": "a", "ranges": ranges}]});
        let (pieces, last) = fetch(&mut wire, &request);
        assert!(pieces.is_empty(), "{ranges}");
        // [u64::MAX, 1] lies past the end: an error, or nothing to send, are both right.
        let beyond = ranges == json!([[u64::MAX, 1]]) || ranges == json!([[1, u64::MAX]]);
        let refused = last["re"] == "error" || last["files"][0]["error"].is_object();
        assert!(refused || (beyond && last["re"] == "done"), "{ranges} was answered with {last}");
        if last["re"] == "error" {
            assert_eq!(last["code"], "bad-request", "{last}");
        }
    }
    server.expect_alive();
}

#[test]
fn bad_numbers_in_the_plain_dialect_are_refused() {
    let folder = tempdir().expect("a folder");
    let bytes = random_file(&folder.path().join("a"), SIZE as usize, 1);
    let mut server = Server::start(&folder.path().join("a"));
    let mut wire = Wire::dealer(server.port());
    let digits = "9".repeat(10_000);
    for (offset, size) in [
        ("-1", "10"),
        ("0", "-1"),
        ("+1", "10"),
        (" 1", "10"),
        ("1 ", "10"),
        ("0x10", "10"),
        ("1e3", "10"),
        ("1.0", "10"),
        ("", "10"),
        ("0", ""),
        ("0", "16777217"),
        ("0", "18446744073709551616"),
        ("18446744073709551616", "1"),
        ("18446744073709551615", "1"),
        ("9223372036854775807", "16777216"),
        (&digits, "1"),
        ("0", &digits),
        ("٣", "10"),
        ("0\0", "10"),
    ] {
        wire.send(&["fetch", offset, size]).expect("send");
        let answer = wire.receive().expect("an answer");
        assert_eq!(answer[0], b"error", "{offset:?} {size:?}");
        assert_eq!(answer.len(), 2, "{offset:?} {size:?}");
    }
    for (offset, size, expected) in [
        ("0", "0", &bytes[..0]),
        ("0", "16777216", &bytes[..]),
        ("2999999", "2", &bytes[2_999_999..]),
        ("3000000", "1", &bytes[..0]),
        ("4611686018427387904", "1", &bytes[..0]),
        ("9223372036837998591", "16777216", &bytes[..0]),
    ] {
        wire.send(&["fetch", offset, size]).expect("send");
        let answer = wire.receive().expect("an answer");
        assert!(answer == [expected], "{offset} {size}: {} frames", answer.len());
    }
    server.expect_alive();
}

#[test]
fn malformed_messages_get_an_error_and_change_nothing() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 1000, 1);
    let mut server = Server::start(folder.path());
    let nested = "[".repeat(100_000);
    let wide = format!("{{\"op\":\"hello\",\"x\":\"{}\"}}", "x".repeat(300_000));
    let files_over_the_limit = json!({"op": "fetch", "id": 1, "files": vec![json!({"path": "a"}); 4097]}).to_string();
    let messages: Vec<Vec<&[u8]>> = vec![
        vec![b"TOW1"],
        vec![b"TOW1", b"nonsense"],
        vec![b"TOW1", b"\xff\xfe"],
        vec![b"TOW1", b"[]"],
        vec![b"TOW1", b"null"],
        vec![b"TOW1", b"{}"],
        vec![b"TOW1", nested.as_bytes()],
        vec![b"TOW1", b"{\"op\":7}"],
        vec![b"TOW1", b"{\"op\":\"dance\",\"id\":1}"],
        vec![b"TOW1", b"{\"op\":\"fetch\"}"],
        vec![b"TOW1", b"{\"op\":\"fetch\",\"id\":1}"],
        vec![b"TOW1", b"{\"op\":\"fetch\",\"id\":-1,\"files\":[{\"path\":\"a\"}]}"],
        vec![b"TOW1", b"{\"op\":\"fetch\",\"id\":4294967296,\"files\":[{\"path\":\"a\"}]}"],
        vec![b"TOW1", b"{\"op\":\"fetch\",\"id\":1,\"files\":[]}"],
        vec![b"TOW1", files_over_the_limit.as_bytes()],
        vec![b"TOW1", b"{\"op\":\"fetch\",\"id\":1,\"chunk_bytes\":1,\"files\":[{\"path\":\"a\"}]}"],
        vec![b"TOW1", b"{\"op\":\"fetch\",\"id\":1,\"compress\":\"rot13\",\"files\":[{\"path\":\"a\"}]}"],
        vec![b"TOW1", b"{\"op\":\"list\",\"id\":1,\"glob\":\"[\"}"],
        vec![b"TOW1", b"{\"op\":\"list\",\"id\":1,\"glob\":\"{a,{b,{c,{d\"}"],
        vec![b"TOW1", b"{\"op\":\"more\",\"id\":77}"],
        vec![b"TOW1", b"{\"op\":\"leaves\",\"id\":1,\"path\":\"a\",\"digest\":\"zz\",\"from\":0,\"count\":1}"],
        vec![
            b"TOW1",
            b"{\"op\":\"leaves\",\"id\":1,\"path\":\"a\",\"digest\":\"00\",\"from\":-1,\"count\":99999999999}",
        ],
        vec![b"TOW1", b"{\"op\":\"credit\",\"bytes\":-1}"],
        vec![b"TOW1", b"{\"op\":\"credit\",\"bytes\":18446744073709551615}"],
        vec![b"TOW1", b"{\"op\":\"credit\",\"bytes\":\"many\"}"],
        vec![b"TOW2", b"{\"op\":\"hello\"}"],
        vec![b"TOWD", b"data from a client"],
        vec![b"fetch", b"a", b"0"],
        vec![b"fetch", b"a", b"0", b"1", b"2"],
        vec![b"FETCH"],
        vec![b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    ];
    for message in messages {
        let shown: Vec<_> = message.iter().map(|f| String::from_utf8_lossy(&f[..f.len().min(100)])).collect();
        let mut wire = Wire::dealer(server.port());
        wire.send(&message).expect("send");
        let answer = wire.receive().unwrap_or_else(|error| panic!("{shown:?}: {error}"));
        let plain = answer[0] == b"error" && answer.len() == 2;
        let control = answer[0] == b"TOW1"
            && serde_json::from_slice::<Value>(&answer[1]).is_ok_and(|object| {
                object["re"] == "error" && object["code"].is_string() && object["message"].is_string()
            });
        assert!(plain || control, "{shown:?} was answered with {answer:?}");
        // The connection continues as usual.
        let hello = wire.ask(&json!({"op": "hello"}));
        assert_eq!(hello["re"], "hello", "after {shown:?}");
    }
    let mut wire = Wire::dealer(server.port());
    wire.send(&[b"TOW1".as_slice(), wide.as_bytes()]).expect("send");
    assert_eq!(wire.control()["re"], "hello", "an unknown member is ignored");
    server.expect_alive();
}

#[test]
fn requests_over_the_limit_and_ids_in_use_are_busy() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 1 << 20, 1);
    let server = Server::start(folder.path());
    let mut wire = Wire::dealer(server.port());
    let most = wire.ask(&json!({"op": "hello"}))["requests_max"].as_u64().expect("a number");
    // Without credit none of them ends.
    for id in 0..most {
        wire.request(&json!({"op": "fetch", "id": id, "files": [{"path": "a"}]})).expect("send");
    }
    for id in [0, most] {
        wire.request(&json!({"op": "fetch", "id": id, "files": [{"path": "a"}]})).expect("send");
    }
    let mut busy = 0;
    while busy < 2 {
        let answer = wire.control();
        if answer["re"] == "error" {
            assert_eq!(answer["code"], "busy", "{answer}");
            busy += 1;
        }
    }
    for id in 0..most {
        wire.request(&json!({"op": "cancel", "id": id})).expect("send");
    }
    let mut cancelled = 0;
    while cancelled < most {
        cancelled += u64::from(wire.control()["re"] == "cancelled");
    }
    let (pieces, last) =
        fetch(&mut wire, &json!({"op": "fetch", "id": 0, "credit_bytes": 4 << 20, "files": [{"path": "a"}]}));
    assert_eq!(last["re"], "done", "{last}");
    assert_eq!(pieces.iter().map(|piece| piece.length).sum::<u64>(), 1 << 20);
}

#[test]
fn cancelled_request_is_silent_and_closes_its_files() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 64 << 20, 1);
    let server = Server::start(folder.path());
    let mut wire = Wire::dealer(server.port());
    wire.ask(&json!({"op": "hello"}));
    let before = server.open_descriptors();
    wire.request(&json!({"op": "fetch", "id": 5, "digest": "none", "credit_bytes": 1 << 30, "files": [{"path": "a"}]}))
        .expect("send");
    // It has begun.
    while !wire.receive().expect("an answer")[0].starts_with(b"TOWD") {}
    wire.request(&json!({"op": "cancel", "id": 5})).expect("send");
    let mut bytes = 0;
    loop {
        let frames = wire.receive().expect("an answer");
        if frames[0].starts_with(b"TOWD") {
            bytes += parse_data_message(&frames).1.iter().map(|piece| piece.length).sum::<u64>();
            continue;
        }
        let answer: Value = serde_json::from_slice(&frames[1]).expect("JSON");
        if answer["re"] == "cancelled" {
            break;
        }
    }
    assert!(bytes < 60 << 20, "all of it came: {bytes}");
    // No more messages have this id: the next one answers the next request.
    assert_eq!(wire.ask(&json!({"op": "hello"}))["re"], "hello");
    crate::support::wait_until("the file is closed", || server.open_descriptors() <= before);
}

#[test]
fn without_credit_nothing_is_sent() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 8 << 20, 1);
    let server = Server::start(folder.path());
    let mut wire = Wire::dealer(server.port());
    wire.request(&json!({"op": "fetch", "id": 1, "digest": "none", "files": [{"path": "a"}]})).expect("send");
    assert_eq!(wire.control()["re"], "files");
    // Another request on the connection is answered first, so nothing of this one was sent.
    assert_eq!(wire.ask(&json!({"op": "hello"}))["re"], "hello");
    let mut credit = 0;
    let mut bytes = 0;
    while bytes < 8 << 20 {
        wire.request(&json!({"op": "credit", "bytes": 3_000_000})).expect("send");
        credit += 3_000_000;
        wire.request(&json!({"op": "hello"})).expect("send");
        // Pieces may come before or after the answer, but never more than the credit.
        let mut greeted = false;
        while !(greeted && (bytes + (1 << 20) > credit || bytes == 8 << 20)) {
            let frames = wire.receive().expect("an answer");
            if frames[0].starts_with(b"TOWD") {
                bytes += parse_data_message(&frames).1.iter().map(|piece| piece.length).sum::<u64>();
                assert!(bytes <= credit, "{bytes} bytes came for a credit of {credit}");
            } else {
                greeted |= serde_json::from_slice::<Value>(&frames[1]).expect("JSON")["re"] == "hello";
            }
        }
    }
    assert_eq!(bytes, 8 << 20);
}
