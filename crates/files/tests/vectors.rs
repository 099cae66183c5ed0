//! Vectors of the files protocol for clients in other languages: `testing/vectors/files.txt`. This test checks that the committed file is what
//! this crate says; with `TOWPATH_WRITE_VECTORS=1` it writes the file.
//!
//! One vector a line: the header of a data message in hex, ` = `, and its id and entries, or `malformed`. An entry is `n flags offset length
//! body-length`; entries are joined by `; `.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;

use towpath_files::protocol::data::{Body, DataEntry, DataHeader};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testing/vectors/files.txt");

/// Changed copies of each header.
const MUTATIONS: usize = 40;

fn says(frame: &[u8]) -> String {
    let Ok(header) = DataHeader::decode(frame) else { return "malformed".to_owned() };
    let entries = header.entries.iter().map(|entry| {
        let body = match entry.body {
            Body::Plain => 0,
            Body::Zstd => 2,
            Body::Hole => 4,
        };
        let flags = body | u8::from(entry.end);
        format!("{} {flags} {} {} {}", entry.n, entry.offset, entry.length, entry.body_length)
    });
    format!("{}: {}", header.id, entries.collect::<Vec<_>>().join("; "))
}

/// A small generator of numbers, the same everywhere.
fn next(state: &mut u64, end: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state % end.max(1) as u64) as usize
}

fn text() -> String {
    let entry = |n, end, body, offset, length, body_length| DataEntry { n, end, body, offset, length, body_length };
    let headers = [
        DataHeader { id: 1, entries: vec![entry(0, true, Body::Plain, 0, 5, 5)] },
        DataHeader { id: u32::MAX, entries: vec![entry(4095, false, Body::Plain, 1 << 62, 4 << 20, 4 << 20)] },
        DataHeader {
            id: 2,
            entries: vec![entry(0, true, Body::Plain, 0, 0, 0), entry(1, false, Body::Hole, 7, 1 << 40, 0)],
        },
        DataHeader {
            id: 3,
            entries: vec![entry(0, false, Body::Zstd, 0, 500, 20), entry(2, true, Body::Zstd, 9, 9, 9)],
        },
    ];
    let (mut text, mut state) = (String::new(), 0x2545_F491_4F6C_DD1D);
    let mut add = |frame: &[u8]| {
        let hex = frame.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        let _ = writeln!(text, "{hex} = {}", says(frame));
    };
    for header in &headers {
        let frame = header.encode().unwrap();
        add(&frame);
        for _ in 0..MUTATIONS {
            let mut changed = frame.clone();
            let at = next(&mut state, frame.len());
            match next(&mut state, 8) {
                0 => changed.truncate(at.max(4)),
                bit => changed[at] ^= 1 << bit,
            }
            add(&changed);
        }
    }
    text
}

#[test]
fn committed_vectors_are_what_this_crate_says() {
    let text = text();
    if std::env::var_os("TOWPATH_WRITE_VECTORS").is_some() {
        std::fs::write(FILE, &text).unwrap();
    }
    let committed = std::fs::read_to_string(FILE).unwrap();
    assert!(committed == text, "{FILE} is out of date: run this test with TOWPATH_WRITE_VECTORS=1");
    assert!(text.matches("= malformed").count() > 50 && text.lines().count() > 150);
}
