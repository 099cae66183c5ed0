//! The plain dialect.

use super::*;

#[test]
fn a_whole_file_comes_in_frames_and_an_empty_one() {
    let content = bytes(1_100_000);
    let temp = root_with(&[("a", &content), ("empty", b"")]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    client.send(&[b"fetch", b"a"]);
    client.send(&[b"fetch", b"empty"]);
    let mut received = Vec::new();
    let mut sizes = Vec::new();
    loop {
        let frames = client.receive();
        assert_eq!(frames.len(), 1);
        if frames[0].is_empty() {
            break;
        }
        sizes.push(frames[0].len());
        received.extend_from_slice(&frames[0]);
    }
    assert_eq!(sizes, [250_000, 250_000, 250_000, 250_000, 100_000]);
    assert!(received == content);
    assert_eq!(client.receive(), [Bytes::new()]);
}

#[test]
fn pieces_come_in_the_order_of_the_requests_and_end_short() {
    let content = bytes(1_000_000);
    let temp = root_with(&[("a", &content)]);
    let server = TestServer::start(&temp.path().join("a"));
    let mut client = server.client();
    for offset in (0..1_250_000).step_by(250_000) {
        client.send(&[b"fetch", offset.to_string().as_bytes(), b"250000"]);
    }
    client.send(&[b"fetch", b"a", b"999990", b"250000"]);
    client.send(&[b"fetch", b"0", b"0"]);
    for chunk in content.chunks(250_000) {
        assert!(client.receive() == [Bytes::copy_from_slice(chunk)]);
    }
    assert_eq!(client.receive(), [Bytes::new()]);
    assert_eq!(client.receive(), [Bytes::copy_from_slice(&content[999_990..])]);
    assert_eq!(client.receive(), [Bytes::new()]);
}

#[test]
fn errors_are_two_frames_in_order() {
    let temp = root_with(&[("a", b"abc")]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let bad: [&[&[u8]]; 8] = [
        &[b"fetch"],
        &[b"fetch", b"missing"],
        &[b"fetch", b"../a", b"0", b"1"],
        &[b"fetch", b"/etc/passwd", b"0", b"1"],
        &[b"fetch", b"a", b"-1", b"1"],
        &[b"fetch", b"a", b"0", b"99999999999"],
        &[b"fetch", b"a\0", b"0", b"1"],
        &[b"fetch", b"a", b"0", b"1", b"2"],
    ];
    for request in bad {
        client.send(request);
        client.send(&[b"fetch", b"a", b"1", b"1"]);
    }
    for _ in bad {
        let error = client.receive();
        assert_eq!(error.len(), 2);
        assert_eq!(&error[0][..], b"error");
        assert_eq!(client.receive(), [Bytes::from_static(b"b")]);
    }
}

#[test]
fn envelopes_of_requests_are_repeated_and_probes_ignored() {
    let temp = root_with(&[("a", b"abc")]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    client.send(&[b""]);
    client.send(&[b"", b"fetch", b"a", b"0", b"2"]);
    client.send(&[b"\x01\x02\x03\x04", b"", b"fetch", b"a", b"2", b"2"]);
    assert_eq!(client.receive(), [&b""[..], b"ab"]);
    assert_eq!(client.receive(), [&b"\x01\x02\x03\x04"[..], b"", b"c"]);
    client.send(&[b"", b"TOW1", br#"{"op":"hello"}"#]);
    let hello = client.receive();
    assert_eq!(&hello[..2], [&b""[..], b"TOW1"]);
    assert!(matches!(Reply::decode(&hello[2]).unwrap(), Reply::Hello(hello) if hello.protocol == 1));
}

#[test]
fn later_offsets_keep_the_version_and_offset_0_reopens() {
    let temp = root_with(&[("a", b"first version"), ("b", b"second")]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    client.send(&[b"fetch", b"a", b"0", b"5"]);
    assert_eq!(client.receive(), [&b"first"[..]]);
    std::fs::rename(temp.path().join("b"), temp.path().join("a")).unwrap();
    client.send(&[b"fetch", b"a", b"6", b"100"]);
    assert_eq!(client.receive(), [&b"version"[..]]);
    client.send(&[b"fetch", b"a", b"0", b"100"]);
    assert_eq!(client.receive(), [&b"second"[..]]);
    client.send(&[b"fetch", b"a", b"6", b"100"]);
    assert_eq!(client.receive(), [&b""[..]]);
}

#[test]
fn a_file_that_shrinks_under_a_frame_closes_the_connection() {
    let temp = root_with(&[("a", &bytes(1 << 20))]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    client.send(&[b"fetch", b"a", b"0", b"5"]);
    client.receive();
    // The server has the file open, and its size in mind.
    std::fs::OpenOptions::new().write(true).open(temp.path().join("a")).unwrap().set_len(1000).unwrap();
    client.send(&[b"fetch", b"a", b"5", b"500000"]);
    let until = Instant::now() + DEADLINE;
    while client.gone.is_none() {
        assert!(Instant::now() < until);
        assert!(client.inbox.is_empty(), "a frame came that can't be right");
        client.turn();
    }
    // The server goes on for others.
    let mut other = server.client();
    other.send(&[b"fetch", b"a", b"999", b"10"]);
    assert_eq!(other.receive()[0].len(), 1);
}

#[test]
fn a_slow_client_blocks_no_others_and_loses_nothing() {
    let content = bytes(8 << 20);
    let temp = root_with(&[("a", &content)]);
    let server = TestServer::start(temp.path());
    let mut lazy = server.client();
    lazy.hub.pause_reading(lazy.peer, true);
    // Far more than the server takes in before it stops reading from this client, and far more than sockets buffer.
    let count = 3 * crate::server::limits::PLAIN_WAITING_MAX;
    let offset = |number: usize| (number * 1000) % (7 << 20);
    for number in 0..count {
        lazy.send(&[b"fetch", b"a", offset(number).to_string().as_bytes(), b"100000"]);
    }
    let mut other = server.client();
    for _ in 0..3 {
        lazy.hub.poll(Some(Duration::ZERO)).unwrap();
        assert!(other.fetch(fetch_of(1, &["a"])).bodies[&0] == content);
    }
    assert!(lazy.inbox.is_empty());
    lazy.hub.pause_reading(lazy.peer, false);
    for number in 0..count {
        let frames = lazy.receive();
        assert!(frames[0][..] == content[offset(number)..offset(number) + 100_000], "{number}");
    }
}
