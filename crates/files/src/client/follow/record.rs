//! What a follower has put into its destination, and how far it is: `docs/formats/follow.md`.

use super::Excludes;
use crate::client::names::{follow_name, partial_names, random_names};
use crate::client::transfer::Source;
use crate::digest::Digest;
use crate::fields::take;
use crate::path::RelPath;
use crate::protocol::control::{Change, ChangeContent};
use crate::protocol::follow::Cursor;
use crate::record_log::{LogError, MODE, RecordLog};
use crate::root::{Dir, FileKind, FileStat, RootError, Timestamp};
use std::collections::HashMap;
use std::io;

const MAGIC: &[u8; 8] = b"TOWFOL1\n";
/// Bytes, beyond which the file is written anew if most of it is out of date.
const REWRITE_FROM_BYTES: u64 = 1 << 20;

const KIND_CURSOR: u8 = 1;
const KIND_FORGOTTEN: u8 = 2;
const KIND_FILE: u8 = 3;
const KIND_DIR: u8 = 4;
const KIND_LINK: u8 = 5;
/// Added to one of the last three: it is about to be put there.
const INTENDED: u8 = 0x10;

/// What was put at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    File {
        size: u64,
        modified: Timestamp,
        digest: Digest,
    },
    Dir,
    /// With the digest of its target.
    Link(Digest),
}

impl Known {
    /// What a change puts in place; `None` if it is gone.
    pub(super) fn of(change: &Change) -> Option<Known> {
        Some(match &change.content {
            &ChangeContent::File { size, mtime, digest, .. } => Known::File { size, modified: mtime, digest },
            ChangeContent::Dir { .. } => Known::Dir,
            ChangeContent::Link { target, .. } => Known::Link(Digest::of(target.as_bytes())),
            ChangeContent::Gone => return None,
        })
    }

    /// The digest of a file.
    pub(super) fn digest(&self) -> Option<Digest> {
        match *self {
            Known::File { digest, .. } => Some(digest),
            Known::Dir | Known::Link(_) => None,
        }
    }

    /// Whether what is there is a file of another content, as it was left here.
    pub(super) fn is_older_file(&self, there: &FileStat, wanted: &Known) -> bool {
        self.digest().is_some() && self.digest() != wanted.digest() && self.is(there)
    }

    /// Whether a file is as it was left here.
    pub(super) fn is(&self, stat: &FileStat) -> bool {
        match *self {
            Known::File { size, modified, .. } => {
                (stat.kind, stat.size, stat.modified) == (FileKind::File, size, modified)
            }
            Known::Dir => stat.kind == FileKind::Dir,
            Known::Link(_) => stat.kind == FileKind::Link,
        }
    }
}

/// The record of one follower. Locked against others as long as it exists.
#[derive(Debug)]
pub(super) struct Record {
    log: RecordLog,
    known: HashMap<RelPath, Known>,
    /// What was about to be put when the follower ended.
    intended: HashMap<RelPath, Known>,
    /// A path for each digest.
    by_digest: HashMap<Digest, RelPath>,
    cursor: Option<Cursor>,
}

/// Why a destination can't be followed into.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("another follower of the same source is at work in it")]
    Locked,
    #[error("{name}: {reason}")]
    Log { name: String, reason: LogError },
    #[error(transparent)]
    Root(#[from] RootError),
}

impl Record {
    /// The record in a destination, made if there is none. A damaged one begins anew: everything is compared then.
    pub(super) fn open(dir: &Dir, source: &Source, exclude: &Excludes) -> Result<Record, RecordError> {
        let name = follow_name(source, exclude);
        let shown = || String::from_utf8_lossy(&name).into_owned();
        for _ in 0..3 {
            let file = match dir.create_file(&name, MODE) {
                Err(RootError::Exists) => {
                    let (file, stat) = dir.open_writable(&name)?;
                    if !stat.is_private_to(dir.own_user(&random_names().0)) {
                        // Another user who can write to it could say what may be deleted.
                        tracing::warn!(name = %shown(), "the record of what was followed is not this user's alone: all files are compared");
                        dir.remove_file(&name)?;
                        continue;
                    }
                    file
                }
                created => created?,
            };
            let (mut known, mut intended) = (HashMap::new(), HashMap::new());
            let (mut cursor, mut is_strange) = (None, false);
            let opened = RecordLog::open(file, MAGIC, |body| match decode(body) {
                Some(Item::Cursor(at)) => cursor = at,
                Some(Item::Known(path, what)) => {
                    intended.remove(&path);
                    known.insert(path, what);
                }
                Some(Item::Intended(path, what)) => _ = intended.insert(path, what),
                Some(Item::Forgotten(path)) => _ = known.remove(&path),
                None => is_strange = true,
            });
            match opened {
                Ok(log) if !is_strange => {
                    let mut record = Record { log, known, intended, by_digest: HashMap::new(), cursor };
                    let digests = record.known.iter().filter_map(|(path, known)| Some((known.digest()?, path.clone())));
                    record.by_digest = digests.collect();
                    if let Err(error) = record.rewrite_if_worthwhile(dir, &name) {
                        tracing::warn!(%error, "cannot write the record of what was followed anew");
                    }
                    return Ok(record);
                }
                Err(LogError::Locked) => return Err(RecordError::Locked),
                Err(reason @ (LogError::Io(_) | LogError::Root(_) | LogError::Foreign)) => {
                    return Err(RecordError::Log { name: shown(), reason });
                }
                Ok(_) | Err(LogError::Damaged(_)) => {
                    tracing::warn!(name = %shown(), "the record of what was followed is damaged: all files are compared");
                    dir.remove_file(&name)?;
                }
            }
        }
        Err(RecordError::Root(RootError::Exists))
    }

    /// How far the destination is; `None` if it needs the full state.
    pub(super) fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// What was put at a path.
    pub(super) fn get(&self, path: &RelPath) -> Option<&Known> {
        self.known.get(path)
    }

    /// A file of this content that was put somewhere.
    pub(super) fn with_digest(&self, digest: Digest) -> Option<(&RelPath, &Known)> {
        let path = self.by_digest.get(&digest)?;
        self.known.get(path).filter(|known| known.digest() == Some(digest)).map(|known| (path, known))
    }

    /// What was put anywhere.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RelPath, &Known)> {
        self.known.iter()
    }

    /// Paths at which something was put.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Something is about to be put at a path. After a crash it is to be seen whether it was: [`Record::take_intended`].
    pub(super) fn intend(&mut self, path: &RelPath, known: &Known) -> io::Result<()> {
        if self.known.get(path) == Some(known) { Ok(()) } else { self.log.append(&encode_intended(path, known)) }
    }

    /// Writes what was noted. It survives the end of this process.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.log.flush()
    }

    /// What was about to be put when the follower before this one ended.
    pub(super) fn take_intended(&mut self) -> HashMap<RelPath, Known> {
        std::mem::take(&mut self.intended)
    }

    /// Something was put at a path.
    pub(super) fn put(&mut self, path: &RelPath, known: Known) -> io::Result<()> {
        if self.known.get(path) == Some(&known) {
            return Ok(());
        }
        if let Some(digest) = known.digest() {
            self.by_digest.insert(digest, path.clone());
        }
        self.known.insert(path.clone(), known);
        self.log.append(&encode_known(path, &known))
    }

    /// What was put at a path isn't there any more, or isn't this follower's.
    pub(super) fn forget(&mut self, path: &RelPath) -> io::Result<()> {
        let Some(known) = self.known.remove(path) else { return Ok(()) };
        if let Some(digest) = known.digest().filter(|digest| self.by_digest.get(digest) == Some(path)) {
            self.by_digest.remove(&digest);
        }
        self.log.append(&encode_forgotten(path))
    }

    /// Everything up to a cursor is in place. `None`: the full state is needed.
    pub(super) fn store(&mut self, cursor: Option<Cursor>, durable: bool) -> io::Result<()> {
        if self.cursor != cursor {
            self.cursor = cursor;
            self.log.append(&encode_cursor(cursor))?;
        }
        if durable { self.log.sync() } else { self.log.flush() }
    }

    /// Writes the file anew if most of it is out of date.
    fn rewrite_if_worthwhile(&mut self, dir: &Dir, name: &[u8]) -> Result<(), RecordError> {
        let needed: u64 = self.known.keys().map(|path| path.as_bytes().len() as u64 + 100).sum();
        if self.log.length() < REWRITE_FROM_BYTES.max(2 * needed) {
            return Ok(());
        }
        let log = RecordLog::replace(dir, name, &partial_names(name).1, MAGIC, |log| {
            self.known.iter().try_for_each(|(path, known)| log.append(&encode_known(path, known)))?;
            self.intended.iter().try_for_each(|(path, known)| log.append(&encode_intended(path, known)))?;
            log.append(&encode_cursor(self.cursor))
        });
        let name = || String::from_utf8_lossy(name).into_owned();
        let log = log.map_err(|reason| RecordError::Log { name: name(), reason })?;
        self.log = log;
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Item {
    Cursor(Option<Cursor>),
    Known(RelPath, Known),
    Intended(RelPath, Known),
    Forgotten(RelPath),
}

fn encode_cursor(cursor: Option<Cursor>) -> Vec<u8> {
    let text = cursor.map(|cursor| cursor.to_string()).unwrap_or_default();
    [&[KIND_CURSOR], text.as_bytes()].concat()
}

fn encode_forgotten(path: &RelPath) -> Vec<u8> {
    [&[KIND_FORGOTTEN], path.as_bytes()].concat()
}

fn encode_known(path: &RelPath, known: &Known) -> Vec<u8> {
    let mut body = match known {
        Known::File { size, modified, digest } => {
            let mut body = vec![KIND_FILE];
            body.extend_from_slice(&size.to_be_bytes());
            body.extend_from_slice(&modified.seconds.to_be_bytes());
            body.extend_from_slice(&modified.nanoseconds.to_be_bytes());
            body.extend_from_slice(&digest.0);
            body
        }
        Known::Dir => vec![KIND_DIR],
        Known::Link(digest) => [&[KIND_LINK], &digest.0[..]].concat(),
    };
    body.extend_from_slice(path.as_bytes());
    body
}

fn encode_intended(path: &RelPath, known: &Known) -> Vec<u8> {
    let mut body = encode_known(path, known);
    if let Some(kind) = body.first_mut() {
        *kind |= INTENDED;
    }
    body
}

fn decode(body: &[u8]) -> Option<Item> {
    let (kind, mut rest) = body.split_first()?;
    let item = |path, known| {
        let path = RelPath::new(path).ok()?;
        Some(if kind & INTENDED == 0 { Item::Known(path, known) } else { Item::Intended(path, known) })
    };
    match *kind {
        KIND_CURSOR if rest.is_empty() => Some(Item::Cursor(None)),
        KIND_CURSOR => Some(Item::Cursor(Some(std::str::from_utf8(rest).ok()?.parse().ok()?))),
        KIND_FORGOTTEN => Some(Item::Forgotten(RelPath::new(rest).ok()?)),
        _ if kind & !INTENDED == KIND_FILE => {
            let size = u64::from_be_bytes(take(&mut rest)?);
            let seconds = i64::from_be_bytes(take(&mut rest)?);
            let modified = Timestamp { seconds, nanoseconds: u32::from_be_bytes(take(&mut rest)?) };
            let digest = Digest(take(&mut rest)?);
            item(rest, Known::File { size, modified, digest })
        }
        _ if kind & !INTENDED == KIND_DIR => item(rest, Known::Dir),
        _ if kind & !INTENDED == KIND_LINK => {
            let digest = Digest(take(&mut rest)?);
            item(rest, Known::Link(digest))
        }
        _ => None,
    }
}

/// The body of the fuzz target `files_follow_record`, and of the test of its corpus: what is decoded and encoded again says the same.
#[cfg(any(test, fuzzing))]
pub fn fuzz_body(body: &[u8]) {
    let Some(item) = decode(body) else { return };
    let again = match &item {
        Item::Cursor(cursor) => encode_cursor(*cursor),
        Item::Known(path, known) => encode_known(path, known),
        Item::Intended(path, known) => encode_intended(path, known),
        Item::Forgotten(path) => encode_forgotten(path),
    };
    assert_eq!(decode(&again), Some(item));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::follow::Epoch;
    use crate::root::{Links, Root};

    #[test]
    fn what_was_put_is_known_after_a_restart_and_damage_begins_anew() {
        let temp = tempfile::tempdir().unwrap();
        let dir = || Root::directory(temp.path(), Links::Never).unwrap().open_dir(&RelPath::root()).unwrap();
        let source = Source::Path("a".parse().unwrap());
        let path = |text: &str| text.parse::<RelPath>().unwrap();
        let file =
            Known::File { size: 7, modified: Timestamp { seconds: -1, nanoseconds: 5 }, digest: Digest([3; 32]) };
        let cursor = Some(Cursor { epoch: Epoch([1; 16]), seq: 99 });
        let none = Excludes::default();
        let mut record = Record::open(&dir(), &source, &none).unwrap();
        assert!(matches!(Record::open(&dir(), &source, &none), Err(RecordError::Locked)));
        assert!(Record::open(&dir(), &Source::Glob("*".to_owned()), &none).is_ok());
        let others = Excludes::new(["*.tmp".to_owned()]).unwrap();
        assert!(Record::open(&dir(), &source, &others).is_ok_and(|record| record.cursor().is_none()));
        for (name, known) in [("f", file), ("d", Known::Dir), ("l", Known::Link(Digest([4; 32]))), ("x", file)] {
            record.put(&path(name), known).unwrap();
        }
        record.forget(&path("x")).unwrap();
        for name in ["d", "f", "new"] {
            record.intend(&path(name), &file).unwrap();
        }
        record.put(&path("d"), file).unwrap();
        record.put(&path("d"), Known::Dir).unwrap();
        record.store(cursor, false).unwrap();
        drop(record);
        let mut record = Record::open(&dir(), &source, &none).unwrap();
        assert_eq!(record.take_intended(), HashMap::from([(path("new"), file)]), "and nothing that is in place");
        assert_eq!((record.cursor(), record.len()), (cursor, 3));
        assert_eq!((record.get(&path("f")), record.get(&path("d"))), (Some(&file), Some(&Known::Dir)));
        drop(record);
        let name = temp.path().join(String::from_utf8(follow_name(&source, &none)).unwrap());
        let mut bytes = std::fs::read(&name).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&name, bytes).unwrap();
        let record = Record::open(&dir(), &source, &none).unwrap();
        assert_eq!((record.cursor(), record.len()), (None, 0));
    }

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
        fn random_records_decode_and_encode_alike(kind in 0u8..24, rest in proptest::collection::vec(0u8.., 0..150)) {
            fuzz_body(&[&[kind], &rest[..]].concat());
        }
    }
}
