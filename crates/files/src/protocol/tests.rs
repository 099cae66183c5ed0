//! Round trips, and hostile input that must not panic.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::control::*;
use super::data::{Body, DataEntry, DataHeader, ENTRY_BYTES, HEADER_BYTES};
use super::envelope::{Opening, client_of, is_too_large, opening};
use super::follow::ServerId;
use super::plain::{PlainRange, PlainRequest};
use super::{Dialect, ErrorCode};
use crate::digest::Digest;
use crate::limits::{CHUNK_BYTES_MAX, DATA_ENTRIES_MAX, FILE_BYTES_MAX, PLAIN_SIZE_MAX};
use crate::root::Timestamp;

fn digests() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

/// Paths in UTF-8 and not.
fn paths() -> impl Strategy<Value = WirePath> {
    prop_oneof![
        ".{0,40}".prop_map(|text| WirePath::from(text.into_bytes())),
        vec(any::<u8>(), 0..40).prop_map(WirePath::from)
    ]
}

fn times() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanoseconds)| Timestamp { seconds, nanoseconds })
}

fn ranges() -> impl Strategy<Value = Vec<Range>> {
    vec((0u64..1 << 50, 1u64..1 << 50), 0..8).prop_map(|pairs| {
        let mut start = 0;
        let place = |(gap, length): (u64, u64)| {
            let offset = start + gap;
            start = offset + length;
            Range { offset, length }
        };
        pairs.into_iter().map(place).collect()
    })
}

fn unless() -> impl Strategy<Value = Unless> {
    prop_oneof![
        digests().prop_map(|digest| Unless::Digest { digest }),
        (any::<u64>(), times()).prop_map(|(size, mtime)| Unless::Stat { size, mtime }),
    ]
}

fn fetches() -> impl Strategy<Value = FetchRequest> {
    let wish = prop_oneof![Just(DigestWish::Now), Just(DigestWish::Later), Just(DigestWish::None)];
    let file = (paths(), option::of(ranges()), option::of(unless()));
    let file = file.prop_map(|(path, ranges, unless)| FetchFile { path, ranges, unless });
    (any::<u32>(), 4096u64..1 << 40, any::<bool>(), wish, 0u64..=1 << 53, vec(file, 1..6)).prop_map(
        |(id, chunk_bytes, zstd, digest, credit_bytes, files)| FetchRequest {
            id,
            chunk_bytes,
            compress: zstd.then_some(Compression::Zstd),
            digest,
            credit_bytes,
            files,
        },
    )
}

fn requests() -> impl Strategy<Value = Request> {
    let target = prop_oneof![paths().prop_map(ListTarget::Path), ".{0,40}".prop_map(|glob| ListTarget::Glob { glob })];
    let follow = prop_oneof![Just(FollowLinks::None), Just(FollowLinks::Path), Just(FollowLinks::All)];
    let list = (any::<u32>(), target, any::<bool>(), any::<bool>(), follow).prop_map(
        |(id, target, recursive, digest, follow)| Request::List(ListRequest { id, target, recursive, digest, follow }),
    );
    let leaves = (any::<u32>(), paths(), digests(), any::<u32>(), any::<u32>())
        .prop_map(|(id, path, digest, from, count)| Request::Leaves(LeavesRequest { id, path, digest, from, count }));
    let confirmed = (any::<u32>(), paths(), option::of(digests()), any::<bool>());
    let confirmed = confirmed.prop_map(|(n, path, digest, durable)| ConfirmedFile { n, path, digest, durable });
    let confirm = (any::<u32>(), vec(confirmed, 0..6)).prop_map(|(id, files)| Request::Confirm(Confirm { id, files }));
    prop_oneof![
        Just(Request::Hello),
        list,
        any::<u32>().prop_map(|id| Request::More { id }),
        fetches().prop_map(Request::Fetch),
        (0u64..=1 << 53, option::of(prop::sample::select(Slow::ALL.to_vec())))
            .prop_map(|(bytes, slow)| Request::Credit { bytes, slow }),
        leaves,
        any::<u32>().prop_map(|id| Request::Cancel { id }),
        confirm,
    ]
}

fn codes() -> impl Strategy<Value = ErrorCode> {
    prop::sample::select(ErrorCode::NAMED.to_vec())
}

fn list_entries() -> impl Strategy<Value = ListEntry> {
    let kind = prop::sample::select(vec![
        EntryKind::File,
        EntryKind::Dir,
        EntryKind::Link,
        EntryKind::Error,
        EntryKind::Other,
    ]);
    let target = prop_oneof![
        ".{1,40}".prop_map(|text| LinkTarget::from(text.into_bytes())),
        vec(any::<u8>(), 1..40).prop_map(LinkTarget::from)
    ];
    let stat = (0..=FILE_BYTES_MAX, times(), 0u32..=0o7777);
    let allocated = (option::of(0..=FILE_BYTES_MAX), option::of(0..=1u64 << 53));
    (paths(), kind, stat, allocated, target, option::of(digests()), option::of(".{0,20}")).prop_map(
        |(path, kind, (size, mtime, mode), (allocated, hard_link), target, digest, message)| {
            let target = (kind == EntryKind::Link).then_some(target);
            ListEntry { path, kind, size, mtime, mode, allocated, hard_link, target, digest, message }
        },
    )
}

fn file_answers() -> impl Strategy<Value = FileAnswer> {
    let metadata =
        (any::<u32>(), 0u64..1 << 40, times(), 0u32..=0o7777, option::of(digests()), 20u32..30, any::<bool>())
            .prop_map(|(n, size, mtime, mode, digest, leaf_shift, sparse)| {
                FileAnswer::Metadata(FileMetadata { n, size, mtime, mode, digest, leaf_bytes: 1 << leaf_shift, sparse })
            });
    prop_oneof![
        metadata,
        any::<u32>().prop_map(|n| FileAnswer::Same { n }),
        (any::<u32>(), codes(), ".{0,40}").prop_map(|(n, code, message)| FileAnswer::Error { n, code, message }),
    ]
}

fn replies() -> impl Strategy<Value = Reply> {
    let base = prop::sample::select(vec![Base::Dir, Base::File, Base::Link, Base::Glob]);
    let dir = prop::option::of((0..=0o7777_u32, times()).prop_map(|(mode, mtime)| DirStat { mode, mtime }));
    let page = (any::<u32>(), base, dir, vec(list_entries(), 0..6), any::<bool>())
        .prop_map(|(id, base, dir, entries, more)| Reply::List(ListPage { id, base, dir, entries, more }));
    let hello = (any::<u32>(), ".{0,20}", any::<u64>(), vec(".{0,8}", 0..4)).prop_map(
        |(number, software, chunk_bytes_max, features)| {
            let (protocol, fetch_files_max, requests_max) = (number, number, number);
            let via = vec![ServerId([7; 16]); (number % 3) as usize];
            Reply::Hello(HelloReply {
                protocol,
                software,
                chunk_bytes_max,
                fetch_files_max,
                requests_max,
                features,
                via,
            })
        },
    );
    let leaves = (any::<u32>(), 0u32..1000, 0u32..=32_768, 0u32..1000)
        .prop_map(|(id, from, count, rest)| Reply::Leaves(LeavesReply { id, from, count, total: from + count + rest }));
    prop_oneof![
        hello,
        page,
        (any::<u32>(), vec(file_answers(), 0..6)).prop_map(|(id, files)| Reply::Files(FilesReply { id, files })),
        (any::<u32>(), any::<u32>(), digests(), 20u32..60)
            .prop_map(|(id, n, digest, shift)| Reply::Digest(DigestReply { id, n, digest, leaf_bytes: 1 << shift })),
        (any::<u32>(), any::<u32>()).prop_map(|(id, n)| Reply::End { id, n }),
        (any::<u32>(), any::<u32>(), codes(), ".{0,40}").prop_map(|(id, n, code, message)| Reply::Void(VoidReply {
            id,
            n,
            code,
            message
        })),
        any::<u32>().prop_map(|id| Reply::Done { id }),
        leaves,
        any::<u32>().prop_map(|id| Reply::Cancelled(Cancelled { id })),
        (any::<u32>(), prop::sample::select(vec![TcpBuffer::Send, TcpBuffer::Receive]))
            .prop_map(|(id, cause)| Reply::Slow(SlowReply { id, cause })),
        (option::of(any::<u32>()), codes(), ".{0,40}").prop_map(|(id, code, message)| Reply::Error(ErrorReply {
            id,
            code,
            message
        })),
    ]
}

fn entries() -> impl Strategy<Value = DataEntry> {
    let piece = (0u32..4096, any::<bool>(), 0u64..1 << 60, 1..=CHUNK_BYTES_MAX, any::<u64>(), 0u8..3);
    piece.prop_map(|(n, end, offset, length, shrink, kind)| {
        let (body, body_length) = match kind {
            0 => (Body::Plain, length),
            1 => (Body::Zstd, 1 + shrink % length),
            _ => (Body::Hole, 0),
        };
        DataEntry { n, end, body, offset, length, body_length }
    })
}

proptest! {
    #[test]
    fn requests_come_back(request in requests()) {
        prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
    }

    #[test]
    fn replies_come_back(reply in replies()) {
        prop_assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }

    #[test]
    fn data_headers_come_back(id in any::<u32>(), entries in vec(entries(), 1..20)) {
        let header = DataHeader { id, entries };
        let frame = header.encode().unwrap();
        prop_assert_eq!(frame.len(), HEADER_BYTES + ENTRY_BYTES * header.entries.len());
        prop_assert_eq!(Dialect::of(&frame), Some(Dialect::Data));
        prop_assert_eq!(DataHeader::decode(&frame), Ok(header));
    }

    #[test]
    fn plain_requests_come_back(
        path in option::of(vec(any::<u8>(), 0..40)),
        range in option::of((0..FILE_BYTES_MAX - PLAIN_SIZE_MAX, 0..=PLAIN_SIZE_MAX)),
    ) {
        let range = range.map(|(offset, size)| PlainRange { offset, size });
        let request = PlainRequest { path: path.map(Bytes::from), range };
        prop_assert_eq!(PlainRequest::decode(&request.encode()), Ok(request));
    }

    #[test]
    fn decoders_take_any_bytes(bytes in vec(any::<u8>(), 0..300), frames in vec(vec(any::<u8>(), 0..9), 0..6)) {
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
        let _ = DataHeader::decode(&bytes);
        let _ = PlainRequest::decode(&frames);
        let _ = opening(&frames);
    }

    /// Bytes that begin as they should get further into the decoder than random ones.
    #[test]
    fn data_headers_with_some_bytes_changed(entries in vec(entries(), 1..4), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut frame = DataHeader { id: 1, entries }.encode().unwrap();
        let at = at.index(frame.len());
        frame[at] = byte;
        if let Ok(header) = DataHeader::decode(&frame) {
            prop_assert_eq!(header.encode().unwrap(), frame, "a header that is taken is the only way to write what it says");
        }
    }

    /// The same for JSON: members are there, with values of other types and sizes.
    #[test]
    fn replies_with_some_bytes_changed(reply in replies(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut json = reply.encode();
        let at = at.index(json.len());
        json[at] = byte;
        let _ = Reply::decode(&json);
        let _ = Request::decode(&json);
    }
}

#[test]
fn data_header_byte_by_byte() {
    let header = DataHeader {
        id: 0x0102_0304,
        entries: vec![
            DataEntry {
                n: 7,
                end: false,
                body: Body::Plain,
                offset: 0x10_0000,
                length: 0x8_0000,
                body_length: 0x8_0000,
            },
            DataEntry { n: 7, end: true, body: Body::Zstd, offset: 0x18_0000, length: 0x1234, body_length: 0x56 },
            DataEntry { n: 8, end: true, body: Body::Hole, offset: 0, length: 1 << 40, body_length: 0 },
        ],
    };
    #[rustfmt::skip]
    let golden: &[u8] = &[
        b'T', b'O', b'W', b'D', 1, 0, 0, 3, 1, 2, 3, 4,
        0, 0, 0, 7, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0x10, 0, 0,  0, 0, 0, 0, 0, 8, 0, 0,  0, 0, 0, 0, 0, 8, 0, 0,
        0, 0, 0, 7, 3, 0, 0, 0,  0, 0, 0, 0, 0, 0x18, 0, 0,  0, 0, 0, 0, 0, 0, 0x12, 0x34,  0, 0, 0, 0, 0, 0, 0, 0x56,
        0, 0, 0, 8, 5, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 1, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(header.encode().unwrap(), golden);
    assert_eq!(DataHeader::decode(golden), Ok(header));
}

#[test]
fn data_headers_that_lie_are_refused() {
    let good = DataEntry { n: 0, end: false, body: Body::Plain, offset: 0, length: 10, body_length: 10 };
    let lies = [
        DataEntry { n: 4096, ..good },
        DataEntry { offset: FILE_BYTES_MAX, ..good },
        DataEntry { offset: u64::MAX, ..good },
        DataEntry { length: 0, body_length: 0, ..good },
        DataEntry { body_length: 9, ..good },
        DataEntry { body: Body::Hole, ..good },
        DataEntry { body: Body::Zstd, body_length: 11, ..good },
        DataEntry { body: Body::Zstd, body_length: 0, ..good },
        DataEntry { length: CHUNK_BYTES_MAX + 1, body_length: CHUNK_BYTES_MAX + 1, ..good },
    ];
    for lie in lies {
        assert!(DataHeader { id: 0, entries: vec![lie] }.encode().is_err(), "{lie:?}");
    }
    assert!(DataHeader { id: 0, entries: vec![good; DATA_ENTRIES_MAX] }.encode().is_ok());
    assert!(DataHeader { id: 0, entries: vec![good; DATA_ENTRIES_MAX + 1] }.encode().is_err());
    assert!(DataHeader { id: 0, entries: vec![] }.encode().is_err());
}

#[test]
fn the_documents_examples_are_read() {
    let fetch = r#"{"op":"fetch","id":2,"chunk_bytes":1048576,"compress":"zstd","digest":"later","credit_bytes":8388608,
        "files":[{"path":"a.bin"},{"path":"b.bin","ranges":[[1048576,5000]],"unless":{"size":7,"mtime":[1790000000,0]}}],"later":1}"#;
    let Ok(Request::Fetch(fetch)) = Request::decode(fetch.as_bytes()) else { panic!("not a fetch") };
    assert_eq!(fetch.files[1].ranges, Some(vec![Range { offset: 1_048_576, length: 5000 }]));
    let stat = Unless::Stat { size: 7, mtime: Timestamp { seconds: 1_790_000_000, nanoseconds: 0 } };
    assert_eq!((fetch.compress, fetch.files[1].unless), (Some(Compression::Zstd), Some(stat)));
    let list = Request::decode(br#"{"op":"list","id":1}"#);
    let root = ListTarget::Path(WirePath::default());
    let (recursive, digest, follow) = (false, false, FollowLinks::None);
    assert_eq!(list, Ok(Request::List(ListRequest { id: 1, target: root, recursive, digest, follow })));
    for later in [r#"{"re":"whatever","x":[]}"#, r#"{"re":"slow","id":1,"cause":"moon"}"#] {
        assert_eq!(Reply::decode(later.as_bytes()), Ok(Reply::Unknown));
    }
}

#[test]
fn requests_that_are_wrong_are_answered_with_their_id() {
    let many_files = format!(r#"{{"op":"fetch","id":9,"files":[{}]}}"#, vec![r#"{"path":""}"#; 4097].join(","));
    let many_ranges = (0..1025).map(|at| format!("[{},1]", at * 2)).collect::<Vec<_>>().join(",");
    let many_ranges = format!(r#"{{"op":"fetch","id":9,"files":[{{"path":"a","ranges":[{many_ranges}]}}]}}"#);
    let long_path = format!(r#"{{"op":"list","id":9,"path":"{}"}}"#, "a".repeat(4097));
    let wrong = [
        r#"{"op":"fetch","id":9,"files":[]}"#,
        r#"{"op":"fetch","id":9,"files":[{"path":"a","ranges":[[0,0]]}]}"#,
        r#"{"op":"fetch","id":9,"files":[{"path":"a","ranges":[[-1,5]]}]}"#,
        r#"{"op":"fetch","id":9,"files":[{"path":"a","ranges":[[0,5],[4,2]]}]}"#,
        r#"{"op":"fetch","id":9,"files":[{"path":"a","ranges":[[9223372036854775807,1]]}]}"#,
        r#"{"op":"fetch","id":9,"files":[{"path":"a","path_b64":"YQ=="}]}"#,
        r#"{"op":"fetch","id":9,"files":[{"path_b64":"*"}]}"#,
        r#"{"op":"fetch","id":9,"files":[{"path":"a"}],"chunk_bytes":1}"#,
        r#"{"op":"fetch","id":9,"files":[{"path":"a"}],"credit_bytes":9007199254740993}"#,
        r#"{"op":"fetch","id":9,"files":[{"path":"a","unless":{"size":1}}]}"#,
        r#"{"op":"list","id":9,"path":"a","glob":"b"}"#,
        r#"{"op":"hello","id":9} x"#,
        r#"{"op":"leaves","id":9,"path":"a","digest":"AF1349B9F5F9A1A6A0404DEA36DCC9499BCB25C9ADC112B7CC9A93CAE41F3262","from":0,"count":1}"#,
        many_files.as_str(),
        many_ranges.as_str(),
        long_path.as_str(),
    ];
    for json in wrong {
        let error = Request::decode(json.as_bytes()).unwrap_err();
        assert_eq!((error.id, error.code), (Some(9), ErrorCode::BadRequest), "{json:.80}");
    }
    let unknown = Request::decode(br#"{"op":"later","id":9}"#).unwrap_err();
    assert_eq!((unknown.id, unknown.code), (Some(9), ErrorCode::Unsupported));
    let nested = "[".repeat(100_000);
    assert!(Request::decode(format!(r#"{{"op":"list","id":9,"x":{nested}"#).as_bytes()).is_err());
    assert!(Request::decode(&vec![b' '; (1 << 20) + 1]).is_err());
}

#[test]
fn replies_that_lie_are_refused() {
    let wrong = [
        r#"{"re":"files","id":1,"files":[{"n":0,"size":9223372036854775808,"mtime":[0,0],"mode":420}]}"#,
        r#"{"re":"files","id":1,"files":[{"n":0,"size":1,"mtime":[0,1000000000],"mode":420}]}"#,
        r#"{"re":"files","id":1,"files":[{"n":0,"size":1,"mtime":[0,0],"mode":4096}]}"#,
        r#"{"re":"files","id":1,"files":[{"n":0,"size":1,"mtime":[0,0],"mode":420,"leaf_bytes":1048577}]}"#,
        r#"{"re":"files","id":1,"files":[{"n":0,"size":9000000000000000000,"mtime":[0,0],"mode":420,"leaf_bytes":1048576}]}"#,
        r#"{"re":"leaves","id":1,"from":0,"count":32769,"total":100000}"#,
        r#"{"re":"leaves","id":1,"from":4294967295,"count":1,"total":4294967295}"#,
        r#"{"re":"list","id":1,"base":"dir","entries":[{"path":"a","type":"link"}]}"#,
    ];
    for json in wrong {
        assert!(Reply::decode(json.as_bytes()).is_err(), "{json}");
    }
    let mode = Reply::decode(wrong[2].replace("4096", "4095").as_bytes());
    assert!(mode.is_ok());
}

#[test]
fn plain_requests_that_are_wrong_are_refused() {
    let good = PlainRequest::decode(&["fetch", "007", "16777216"]).unwrap();
    assert_eq!(good.range, Some(PlainRange { offset: 7, size: 16 << 20 }));
    let wrong: [&[&str]; 9] = [
        &[],
        &["Fetch"],
        &["fetch", "-1", "5"],
        &["fetch", "+1", "5"],
        &["fetch", " 1", "5"],
        &["fetch", "", "5"],
        &["fetch", "0", "16777217"],
        &["fetch", "18446744073709551616", "5"],
        &["fetch", "p", "9223372036854775807", "1"],
    ];
    for frames in wrong {
        assert!(PlainRequest::decode(frames).is_err(), "{frames:?}");
    }
    assert!(PlainRequest::decode(&["fetch", "p", "1", "2", "3"]).is_err());
}

#[test]
fn envelopes_are_distinguished_from_messages() {
    assert_eq!(opening(&[""]), Opening::Probe);
    assert_eq!(opening(&["", "fetch"]), Opening::Envelope(1));
    assert_eq!(opening(&["\0\0\0\u{1}", "", "TOW1", "{}"]), Opening::Envelope(2));
    assert_eq!(opening(&["TOW1", "{}"]), Opening::Envelope(0));
    assert_eq!(opening(&["fetch", ""]), Opening::Envelope(0));
    assert_eq!(opening(&["fetch", "", "0", "5"]), Opening::Envelope(0));
    assert_eq!(opening(&["fetch", "fetch"]), Opening::Envelope(0));
    // Request ids may be anything.
    assert_eq!(opening(&["TOW1", "", "TOW1", "{}"]), Opening::Envelope(2));
    assert_eq!(opening::<&[u8]>(&[]), Opening::Envelope(0));
}

#[test]
fn envelopes_of_proxies_are_distinguished_from_messages() {
    assert_eq!(opening(&["proxy", "", "fetch", "a"]), Opening::Envelope(2));
    assert_eq!(opening(&["outer", "inner", "\0\0\0\u{1}", "", "fetch", "a", "0", "5"]), Opening::Envelope(4));
    assert_eq!(opening(&["outer", "inner", "TOW1", "{}"]), Opening::Envelope(2));
    assert_eq!(opening(&["proxy", "fetch", "", "0", "5"]), Opening::Envelope(1));
    assert_eq!(opening(&["proxy", "fetch", "fetch"]), Opening::Envelope(1));
    assert_eq!(opening(&["fetch", "", "fetch", "a"]), Opening::Envelope(2));
    // What isn't known goes back behind what ends with an empty frame.
    assert_eq!(opening(&["proxy", "", "what"]), Opening::Envelope(2));
    assert_eq!(opening(&["proxy", "", "what", "fetch"]), Opening::Envelope(2));
    assert_eq!(opening(&["what"]), Opening::Envelope(0));
    assert_eq!(opening(&["proxy", ""]), Opening::Probe);
}

#[test]
fn envelopes_have_limits_and_name_the_client() {
    let frames = |count: usize, bytes: usize| vec!["x".repeat(bytes); count];
    assert!(!is_too_large(&frames(16, 256)));
    assert!(is_too_large(&frames(17, 1)));
    assert!(is_too_large(&frames(16, 257)));
    assert_eq!(client_of(&["outer", "inner", "\0\0\0\u{1}", ""]), ["outer", "inner"]);
    assert_eq!(client_of(&["outer", "inner", ""]), ["outer", "inner"]);
    assert_eq!(client_of(&["outer", "inner"]), ["outer", "inner"]);
    assert!(client_of(&["\0\0\0\u{1}", ""]).is_empty());
    assert!(client_of::<&str>(&[]).is_empty());
}
