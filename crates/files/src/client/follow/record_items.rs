//! Parts of a follower's record, as bytes.
// docs/formats/follow.md has the tables.

use super::record::{Known, Origin};
use crate::digest::Digest;
use crate::fields::take;
use crate::path::RelPath;
use crate::protocol::follow::{CopyId, Cursor, Epoch, ServerId};
use crate::root::Timestamp;

const KIND_CURSOR: u8 = 1;
const KIND_FORGOTTEN: u8 = 2;
const KIND_FILE: u8 = 3;
const KIND_DIR: u8 = 4;
const KIND_LINK: u8 = 5;
const KIND_COPY: u8 = 6;
const KIND_ORIGIN: u8 = 7;
const KIND_CURSOR_OF_PUTS: u8 = 8;
/// Added to one of the three entries: it is about to be put there.
const INTENDED: u8 = 0x10;
/// Added to one of the three entries: it was put there, and isn't reported yet.
const UNREPORTED: u8 = 0x20;
const FLAGS: u8 = INTENDED | UNREPORTED;

/// One of the things that a record says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    Cursor(Option<Cursor>),
    /// Of a follower that deletes nothing.
    CursorOfPuts(Cursor),
    Known(RelPath, Known),
    Unreported(RelPath, Known),
    Intended(RelPath, Known),
    Forgotten(RelPath),
    Copy(CopyId),
    Origin(Origin),
}

/// `deletes`: what is gone up to there is deleted too.
pub(super) fn encode_cursor(cursor: Option<Cursor>, deletes: bool) -> Vec<u8> {
    let kind = if deletes || cursor.is_none() { KIND_CURSOR } else { KIND_CURSOR_OF_PUTS };
    let text = cursor.map(|cursor| cursor.to_string()).unwrap_or_default();
    [&[kind], text.as_bytes()].concat()
}

pub(super) fn encode_forgotten(path: &RelPath) -> Vec<u8> {
    [&[KIND_FORGOTTEN], path.as_bytes()].concat()
}

pub(super) fn encode_copy(CopyId(id): CopyId) -> Vec<u8> {
    [&[KIND_COPY], &id[..]].concat()
}

pub(super) fn encode_origin(Origin { server, epoch, base }: &Origin) -> Vec<u8> {
    let server = server.map_or([0; 17].to_vec(), |ServerId(id)| [&[1], &id[..]].concat());
    [&[KIND_ORIGIN], &server[..], &epoch.0, base.as_bytes()].concat()
}

pub(super) fn encode_known(path: &RelPath, known: &Known) -> Vec<u8> {
    let mut body = match known {
        Known::File { size, modified, changed, digest } => {
            let mut body = vec![KIND_FILE];
            body.extend_from_slice(&size.to_be_bytes());
            for time in [*modified, changed.unwrap_or_default()] {
                body.extend_from_slice(&time.seconds.to_be_bytes());
                body.extend_from_slice(&time.nanoseconds.to_be_bytes());
            }
            body.extend_from_slice(&digest.0);
            body
        }
        Known::Dir => vec![KIND_DIR],
        Known::Link(digest) => [&[KIND_LINK], &digest.0[..]].concat(),
    };
    body.extend_from_slice(path.as_bytes());
    body
}

pub(super) fn encode_intended(path: &RelPath, known: &Known) -> Vec<u8> {
    encode_flagged(path, known, INTENDED)
}

pub(super) fn encode_unreported(path: &RelPath, known: &Known) -> Vec<u8> {
    encode_flagged(path, known, UNREPORTED)
}

fn encode_flagged(path: &RelPath, known: &Known, flag: u8) -> Vec<u8> {
    let mut body = encode_known(path, known);
    if let Some(kind) = body.first_mut() {
        *kind |= flag;
    }
    body
}

pub(super) fn decode(body: &[u8]) -> Option<Item> {
    let (kind, mut rest) = body.split_first()?;
    let item = |path, known| {
        let path = RelPath::new(path).ok()?;
        match kind & FLAGS {
            0 => Some(Item::Known(path, known)),
            INTENDED => Some(Item::Intended(path, known)),
            UNREPORTED => Some(Item::Unreported(path, known)),
            _ => None,
        }
    };
    match *kind {
        KIND_CURSOR if rest.is_empty() => Some(Item::Cursor(None)),
        KIND_CURSOR => Some(Item::Cursor(Some(std::str::from_utf8(rest).ok()?.parse().ok()?))),
        KIND_CURSOR_OF_PUTS => Some(Item::CursorOfPuts(std::str::from_utf8(rest).ok()?.parse().ok()?)),
        KIND_FORGOTTEN => Some(Item::Forgotten(RelPath::new(rest).ok()?)),
        KIND_COPY => Some(Item::Copy(CopyId(rest.try_into().ok()?))),
        KIND_ORIGIN => {
            let ([has_server], id) = (take(&mut rest)?, ServerId(take(&mut rest)?));
            let (epoch, base) = (Epoch(take(&mut rest)?), RelPath::new(rest).ok()?);
            Some(Item::Origin(Origin { server: (has_server == 1).then_some(id), epoch, base }))
        }
        _ if kind & !FLAGS == KIND_FILE => {
            let size = u64::from_be_bytes(take(&mut rest)?);
            let (modified, changed) = (take_time(&mut rest)?, take_time(&mut rest)?);
            let changed = Some(changed).filter(|changed| *changed != Timestamp::default());
            let digest = Digest(take(&mut rest)?);
            item(rest, Known::File { size, modified, changed, digest })
        }
        _ if kind & !FLAGS == KIND_DIR => item(rest, Known::Dir),
        _ if kind & !FLAGS == KIND_LINK => {
            let digest = Digest(take(&mut rest)?);
            item(rest, Known::Link(digest))
        }
        _ => None,
    }
}

fn take_time(rest: &mut &[u8]) -> Option<Timestamp> {
    let seconds = i64::from_be_bytes(take(rest)?);
    Some(Timestamp { seconds, nanoseconds: u32::from_be_bytes(take(rest)?) })
}

/// The body of the fuzz target `files_follow_record`, and of the test of its corpus: what is decoded and encoded again says the same.
#[cfg(any(test, fuzzing))]
pub fn fuzz_body(body: &[u8]) {
    let Some(item) = decode(body) else { return };
    let again = match &item {
        Item::Cursor(cursor) => encode_cursor(*cursor, true),
        Item::CursorOfPuts(cursor) => encode_cursor(Some(*cursor), false),
        Item::Known(path, known) => encode_known(path, known),
        Item::Unreported(path, known) => encode_unreported(path, known),
        Item::Intended(path, known) => encode_intended(path, known),
        Item::Forgotten(path) => encode_forgotten(path),
        Item::Copy(copy) => encode_copy(*copy),
        Item::Origin(origin) => encode_origin(origin),
    };
    assert_eq!(decode(&again), Some(item));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_corpus_passes() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/files_follow_record");
        let inputs: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty());
        for path in inputs {
            println!("{}", path.display());
            fuzz_body(&std::fs::read(&path).unwrap());
        }
    }

    proptest::proptest! {
        #[test]
        fn random_records_decode_and_encode_alike(kind in 0u8..40, rest in proptest::collection::vec(0u8.., 0..150)) {
            fuzz_body(&[&[kind], &rest[..]].concat());
        }
    }
}
