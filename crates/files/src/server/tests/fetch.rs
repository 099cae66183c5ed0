//! Fetches of the file protocol.

use super::*;
use crate::digest::{Digest, LeafSize, merge_leaves};
use crate::protocol::ErrorCode;
use crate::protocol::control::{
    Cancelled, Compression, Confirm, ConfirmedFile, DigestWish, ErrorReply, LeavesRequest, Range, Unless,
};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

#[test]
fn files_of_all_sizes_arrive_with_their_digests() {
    let sizes = [0, 1, 4096, 65_535, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 5_000_000];
    let contents: Vec<_> = sizes.iter().map(|&size| bytes(size)).collect();
    let names: Vec<_> = sizes.iter().map(|size| format!("dir/{size}")).collect();
    let files: Vec<_> = names.iter().map(String::as_str).zip(contents.iter().map(Vec::as_slice)).collect();
    let temp = root_with(&files);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for (id, digest) in [DigestWish::Later, DigestWish::Now, DigestWish::None].into_iter().enumerate() {
        let fetched = client.fetch(FetchRequest { digest, ..fetch_of(id as u32, &names) });
        for (n, content) in contents.iter().enumerate() {
            let metadata = fetched.metadata(n as u32);
            assert_eq!(metadata.size, content.len() as u64);
            assert!(fetched.bodies[&(n as u32)] == *content, "{n}");
            let sent = metadata.digest.or(fetched.digests.get(&(n as u32)).copied());
            let expected = (digest != DigestWish::None).then(|| Digest::of(content));
            assert_eq!(sent, expected);
            if digest == DigestWish::Now {
                assert!(metadata.digest.is_some());
            }
        }
        assert_eq!(fetched.ended, (0..sizes.len() as u32).collect::<Vec<_>>());
        assert!(fetched.entries.iter().all(|entry| entry.body_length <= 1 << 20));
    }
}

#[test]
fn many_small_files_share_messages() {
    let names: Vec<_> = (0..2000).map(|n| format!("{:02}/{n}", n % 50)).collect();
    let contents: Vec<_> = (0..2000).map(|n| bytes(4096 - n % 7)).collect();
    let files: Vec<_> = names.iter().map(String::as_str).zip(contents.iter().map(Vec::as_slice)).collect();
    let temp = root_with(&files);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let fetched = client.fetch(fetch_of(1, &names));
    for (n, content) in contents.iter().enumerate() {
        assert!(fetched.bodies[&(n as u32)] == *content);
        assert_eq!(fetched.metadata(n as u32).digest, Some(Digest::of(content)));
    }
    assert!(fetched.messages <= 40, "{} messages for 2000 files", fetched.messages);
}

#[test]
fn ranges_are_cut_at_the_end_and_an_empty_list_gives_the_digest_alone() {
    let content = bytes(300_000);
    let temp = root_with(&[("a", &content)]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let range = |offset, length| Range { offset, length };
    let mut request = FetchRequest { chunk_bytes: 4096, ..fetch_of(1, &["a", "a"]) };
    request.files[0].ranges = Some(vec![range(10, 5000), range(299_999, 100), range(400_000, 1)]);
    request.files[1].ranges = Some(vec![]);
    let fetched = client.fetch(request);
    let covered: Vec<_> = fetched.entries.iter().map(|entry| (entry.n, entry.offset, entry.length)).collect();
    assert_eq!(covered, [(0, 10, 4096), (0, 4106, 904), (0, 299_999, 1)]);
    assert!(fetched.bodies[&0][10..5010] == content[10..5010]);
    assert_eq!(fetched.bodies[&0][299_999], content[299_999]);
    assert_eq!(fetched.digests[&1], Digest::of(&content));
    assert_eq!(fetched.ended, [0, 1]);
}

#[test]
fn unchanged_files_are_not_sent_and_errors_say_why() {
    let large = bytes(200_000);
    let temp = root_with(&[("small", b"abc"), ("large", &large), ("dir/x", b"")]);
    std::os::unix::fs::symlink("/etc/passwd", temp.path().join("out")).unwrap();
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let paths = ["small", "large", "small", "large", "missing", "dir", "out", "../x", "large"];
    let mut request = fetch_of(1, &paths);
    let modified = std::fs::metadata(temp.path().join("small")).unwrap();
    use std::os::unix::fs::MetadataExt;
    let mtime = crate::root::Timestamp { seconds: modified.mtime(), nanoseconds: modified.mtime_nsec() as u32 };
    request.files[0].unless = Some(Unless::Stat { size: 3, mtime });
    request.files[1].unless = Some(Unless::Digest { digest: Digest::of(&large) });
    request.files[2].unless = Some(Unless::Digest { digest: Digest::of(b"abc") });
    request.files[3].unless = Some(Unless::Digest { digest: Digest::of(b"other") });
    let fetched = client.fetch(request);
    for n in [0, 1, 2] {
        assert_eq!(fetched.answers[&n], FileAnswer::Same { n });
    }
    assert!(fetched.bodies[&3] == large);
    for (n, expected) in
        [(4, ErrorCode::NotFound), (5, ErrorCode::NotAFile), (6, ErrorCode::NotFound), (7, ErrorCode::NotFound)]
    {
        assert!(matches!(&fetched.answers[&n], FileAnswer::Error { code, .. } if *code == expected), "{n}");
    }
    assert!(fetched.bodies[&8] == large);
    assert_eq!(fetched.ended, [3, 8]);
}

#[test]
fn nothing_goes_beyond_the_credit() {
    let content = bytes(100_000);
    let temp = root_with(&[("a", &content), ("b", &bytes(1000))]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    client.request(&Request::Fetch(FetchRequest { credit_bytes: 0, chunk_bytes: 8192, ..fetch_of(1, &["a", "b"]) }));
    let mut fetched = Fetched::default();
    let mut given = 0;
    // Metadata costs nothing.
    while fetched.answers.len() < 2 {
        assert!(!fetched.take(1, client.receive()));
    }
    // Each grant is used up before the next one is given: 300 bytes are less than a chunk, so pieces are cut to them.
    for grant in [300, 5000, 8192, 20_000, 256, 66_252, 10_000] {
        given += grant;
        client.request(&Request::Credit { bytes: grant, slow: None });
        let mut over = false;
        while !over && fetched.spent + 255 < given.min(100_000 + 1000) {
            over = fetched.take(1, client.receive());
            assert!(fetched.spent <= given);
        }
    }
    while fetched.ended.len() < 2 {
        fetched.take(1, client.receive());
    }
    assert!(fetched.bodies[&0] == content);
    assert!(fetched.bodies[&1] == bytes(1000));
}

#[test]
fn compressible_bodies_are_compressed() {
    let text: Vec<u8> = b"towpath ".repeat(100_000);
    let noise: Vec<u8> = (0u32..6250).flat_map(|at| *blake3::hash(&at.to_le_bytes()).as_bytes()).collect();
    let temp = root_with(&[("text", &text), ("noise", &noise), ("small", &text[..10_000]), ("tiny", b"aaaa")]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let request = FetchRequest {
        compress: Some(Compression::Zstd),
        chunk_bytes: 100_000,
        ..fetch_of(1, &["text", "noise", "small", "tiny"])
    };
    let fetched = client.fetch(request);
    for (n, content) in [&text, &noise, &text[..10_000].to_vec(), &b"aaaa".to_vec()].into_iter().enumerate() {
        assert!(fetched.bodies[&(n as u32)] == *content, "{n}");
    }
    for entry in &fetched.entries {
        assert_eq!(entry.body == Body::Zstd, [0, 2].contains(&entry.n), "{entry:?}");
    }
    assert!(fetched.spent < 250_000);
}

#[test]
fn holes_are_sent_without_bytes() {
    let temp = root_with(&[]);
    let size = 50u64 << 20;
    let file = std::fs::File::create(temp.path().join("sparse")).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(&bytes(100_000), 10 << 20).unwrap();
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let fetched = client.fetch(fetch_of(1, &["sparse"]));
    assert!(fetched.metadata(0).sparse, "the file system of the test has holes");
    assert!(fetched.spent < 1 << 20, "{}", fetched.spent);
    let mut expected = vec![0; size as usize];
    expected[10 << 20..(10 << 20) + 100_000].copy_from_slice(&bytes(100_000));
    assert!(fetched.bodies[&0] == expected);
    assert_eq!(fetched.digests[&0], Digest::of(&expected));
}

#[test]
fn a_file_that_changes_while_it_is_sent_is_void() {
    let content = bytes(8 << 20);
    type Change = fn(&Path);
    let change: [(&str, Change); 4] = [
        ("shrinks", |path| std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5 << 20).unwrap()),
        ("grows", |path| {
            std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"more").unwrap();
        }),
        ("changes", |path| {
            let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.seek(SeekFrom::Start(7 << 20)).unwrap();
            file.write_all(b"changed").unwrap();
        }),
        ("is deleted", |path| std::fs::remove_file(path).unwrap()),
    ];
    for (what, change) in change {
        let temp = root_with(&[("a", &content), ("b", b"after it")]);
        let server = TestServer::start(temp.path());
        let mut client = server.client();
        let request = FetchRequest { credit_bytes: 3 << 20, digest: DigestWish::None, ..fetch_of(1, &["a", "b"]) };
        client.request(&Request::Fetch(request));
        let mut fetched = Fetched::default();
        while fetched.spent < 3 << 20 {
            assert!(!fetched.take(1, client.receive()));
        }
        change(&temp.path().join("a"));
        client.request(&Request::Credit { bytes: 1 << 40, slow: None });
        while !fetched.take(1, client.receive()) {}
        assert!(fetched.void[&0].starts_with("changed: "), "{what}: {:?}", fetched.void);
        assert_eq!(fetched.ended, [1], "{what}");
        assert_eq!(fetched.bodies[&1], b"after it");
    }
}

#[test]
fn cancel_ends_a_request_and_gives_its_credit_back() {
    let content = bytes(64 << 20);
    let temp = root_with(&[("a", &content), ("b", &content[..1 << 20])]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let credit = 70 << 20;
    let request = FetchRequest { credit_bytes: credit, digest: DigestWish::None, ..fetch_of(1, &["a"]) };
    client.request(&Request::Fetch(request));
    let mut fetched = Fetched::default();
    while fetched.spent == 0 {
        assert!(!fetched.take(1, client.receive()));
    }
    client.request(&Request::Cancel { id: 1 });
    loop {
        let frames = client.receive();
        if frames[0] == CONTROL_TAG[..] && Reply::decode(&frames[1]).unwrap() == Reply::Cancelled(Cancelled { id: 1 }) {
            break;
        }
        fetched.take(1, frames);
    }
    // What wasn't sent is still there to be spent: exactly this much and no more goes to the next request.
    let left = credit - fetched.spent;
    let mut next = Fetched::default();
    client.request(&Request::Fetch(FetchRequest {
        credit_bytes: 0,
        digest: DigestWish::None,
        ..fetch_of(1, &["a", "b"])
    }));
    while next.spent + 255 < left.min(65 << 20) {
        assert!(!next.take(1, client.receive()));
    }
    client.request(&Request::Credit { bytes: 1 << 40, slow: None });
    while !next.take(1, client.receive()) {}
    assert!(next.bodies[&0] == content);
    // A cancel of what is over already is answered as well.
    client.request(&Request::Cancel { id: 1 });
    assert_eq!(client.reply(), Reply::Cancelled(Cancelled { id: 1 }));
}

#[test]
fn leaves_merge_to_the_digest() {
    let content = bytes((3 << 20) + 5);
    let temp = root_with(&[("a", &content), ("one", b"abc")]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let ask = |client: &mut TestClient, path: &str, digest, from, count| {
        let path = WirePath::from(path.as_bytes().to_vec());
        client.request(&Request::Leaves(LeavesRequest { id: 9, path, digest, from, count }));
        let frames = client.receive();
        (Reply::decode(&frames[1]).unwrap(), frames.get(2).cloned().unwrap_or_default())
    };
    let digest = Digest::of(&content);
    let mut values = Vec::new();
    for from in [0, 2] {
        let (reply, attachment) = ask(&mut client, "a", digest, from, 2);
        assert!(
            matches!(reply, Reply::Leaves(reply) if (reply.id, reply.from, reply.count, reply.total) == (9, from, 2, 4))
        );
        values.extend(attachment.chunks(32).map(|leaf| <[u8; 32]>::try_from(leaf).unwrap()));
    }
    assert_eq!(values.len() as u64, LeafSize::for_file(content.len() as u64).count());
    assert_eq!(merge_leaves(&values).unwrap(), digest);
    let (reply, attachment) = ask(&mut client, "a", digest, 100, 1);
    assert!(matches!(reply, Reply::Leaves(reply) if reply.count == 0) && attachment.is_empty());
    let (reply, _) = ask(&mut client, "one", Digest::of(b"abc"), 0, 10);
    assert!(matches!(reply, Reply::Leaves(reply) if reply.total == 0));
    let (reply, _) = ask(&mut client, "a", Digest::of(b"x"), 0, 1);
    assert!(matches!(reply, Reply::Error(ErrorReply { code: ErrorCode::Changed, .. })));
}

#[test]
fn malformed_and_excessive_requests_are_refused() {
    let temp = root_with(&[("a", b"abc")]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let expect = |client: &mut TestClient, id: Option<u32>, code: ErrorCode| match client.reply() {
        Reply::Error(error) => assert_eq!((error.id, error.code), (id, code), "{}", error.message),
        other => panic!("{other:?}"),
    };
    type Bad<'a> = (&'a [&'a [u8]], Option<u32>, ErrorCode);
    let bad: [Bad; 8] = [
        (&[b"hello?"], None, ErrorCode::BadRequest),
        (&[b"TOW1"], None, ErrorCode::BadRequest),
        (&[b"TOW1", b"{"], None, ErrorCode::BadRequest),
        (&[b"TOWD\x01"], None, ErrorCode::BadRequest),
        (&[b"TOW1", br#"{"op":"sing","id":4}"#], Some(4), ErrorCode::Unsupported),
        (&[b"TOW1", br#"{"op":"fetch","id":5,"files":[]}"#], Some(5), ErrorCode::BadRequest),
        (&[b"TOW1", br#"{"op":"more","id":6}"#], Some(6), ErrorCode::BadRequest),
        (
            &[b"TOW1", br#"{"op":"fetch","id":7,"files":[{"path":"a","ranges":[[5,5],[0,6]]}]}"#],
            Some(7),
            ErrorCode::BadRequest,
        ),
    ];
    for (frames, id, code) in bad {
        client.send(frames);
        expect(&mut client, id, code);
    }
    for id in 0..64 {
        client.request(&Request::Fetch(FetchRequest { credit_bytes: 0, ..fetch_of(id, &["a"]) }));
    }
    client.request(&Request::Fetch(FetchRequest { credit_bytes: 0, ..fetch_of(64, &["a"]) }));
    client.request(&Request::Fetch(FetchRequest { credit_bytes: 0, ..fetch_of(3, &["a"]) }));
    let mut busy = Vec::new();
    while busy.len() < 2 {
        if let Reply::Error(error) = client.reply() {
            assert_eq!(error.code, ErrorCode::Busy);
            busy.extend(error.id);
        }
    }
    assert_eq!(busy, [64, 3]);
    client.request(&Request::Credit { bytes: 256 * 64, slow: None });
    let mut done = 0;
    while done < 64 {
        let frames = client.receive();
        done +=
            usize::from(frames[0] == CONTROL_TAG[..] && matches!(Reply::decode(&frames[1]), Ok(Reply::Done { .. })));
    }
    // A confirmation has no answer, and does no harm.
    let file = ConfirmedFile { n: 0, path: WirePath::from(b"a\n".to_vec()), digest: None, durable: true };
    client.request(&Request::Confirm(Confirm { id: 1, files: vec![file] }));
    client.request(&Request::Hello);
    assert!(matches!(client.reply(), Reply::Hello(_)));
}

#[test]
fn many_clients_are_served_side_by_side() {
    const CLIENTS: usize = 50;
    let content = bytes(3 << 20);
    let temp = root_with(&[("a", &content), ("b", b"small")]);
    let server = TestServer::start(temp.path());
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| (server.client(), Fetched::default(), false)).collect();
    for (client, ..) in &mut clients {
        client.request(&Request::Fetch(FetchRequest { credit_bytes: 1 << 20, ..fetch_of(7, &["a", "b"]) }));
    }
    let until = Instant::now() + DEADLINE;
    let mut given = [1u64 << 20; CLIENTS];
    while !clients.iter().all(|(.., done)| *done) {
        assert!(Instant::now() < until);
        for ((client, fetched, done), given) in clients.iter_mut().zip(&mut given) {
            client.hub.poll(Some(Duration::ZERO)).unwrap();
            while let Some(event) = client.hub.next_event() {
                if let Event::Message { frames, .. } = event {
                    *done |= fetched.take(7, frames.into_iter().collect());
                }
            }
            assert!(fetched.spent <= *given);
            if fetched.spent == *given {
                *given += 1 << 20;
                client.request(&Request::Credit { bytes: 1 << 20, slow: None });
            }
        }
    }
    for (_, fetched, _) in &clients {
        assert!(fetched.bodies[&0] == content);
        assert_eq!(fetched.bodies[&1], b"small");
        let sent = fetched.metadata(0).digest.or(fetched.digests.get(&0).copied());
        assert_eq!(sent, Some(Digest::of(&content)));
    }
}
