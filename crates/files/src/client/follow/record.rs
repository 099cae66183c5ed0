//! A follower's record: the files that it has put into its destination, and its progress.
// docs/formats/follow.md has the bytes.

use super::Excludes;
use super::finish::is_full;
use super::record_items::{
    Item, decode, encode_copy, encode_cursor, encode_forgotten, encode_intended, encode_known, encode_origin,
    encode_unreported,
};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::protocol::control::{Change, ChangeContent};
use crate::protocol::follow::{CopyId, Cursor, Epoch, ServerId};
use crate::random::random;
use crate::record_log::{Format, LogError, MODE, RecordLog};
use crate::root::{Dir, RootError, Timestamp};
use crate::transfer::Source;
use crate::transfer::names::{follow_name, partial_names};
use std::collections::{HashMap, HashSet};
use std::io;

const FORMAT: Format = Format { magic: b"TOWFOL4\n", body_bytes_max: 64 << 10 };
/// Bytes, beyond which the file is rewritten if most of it is out of date.
const REWRITE_FROM_BYTES: u64 = 1 << 20;
/// Most bytes of a record, beside its path.
const RECORD_BYTES: u64 = 100;

/// The entry that was put at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    File {
        size: u64,
        modified: Timestamp,
        /// Time of the last change, by which another change is noticed; `None` if only the digest shows it.
        changed: Option<Timestamp>,
        digest: Digest,
    },
    Dir,
    /// With the digest of its target.
    Link(Digest),
}

impl Known {
    /// The entry that a change puts in place; `None` if it is gone.
    pub(super) fn of(change: &Change) -> Option<Known> {
        Some(match &change.content {
            &ChangeContent::File { size, mtime, digest, .. } => {
                Known::File { size, modified: mtime, changed: None, digest }
            }
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

    /// Whether this is the same to others.
    pub(super) fn is_same(&self, other: &Known) -> bool {
        match (*self, *other) {
            (Known::File { size, modified, digest, .. }, Known::File { size: s, modified: m, digest: d, .. }) => {
                (size, modified, digest) == (s, m, d)
            }
            (known, other) => known == other,
        }
    }
}

/// Origin of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The server, if it has a lasting number.
    pub(super) server: Option<ServerId>,
    /// The placeholder of a server without one.
    pub(super) epoch: Epoch,
    /// The directory on the server that is the destination here.
    pub(super) base: RelPath,
}

/// Entries of another record in the same destination.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) name: Vec<u8>,
    /// Inode and size of the file when it was read.
    pub(super) was: (u64, u64),
    pub(super) origin: Option<Origin>,
    pub(super) known: HashMap<RelPath, Known>,
    /// The file, locked, if something is to be taken over.
    log: Option<RecordLog>,
}

impl Other {
    /// Reads one, unless it is another user's, or unreadable. `locks`: to take something over.
    pub(super) fn read(dir: &Dir, name: &[u8], own_user: u32, locks: bool) -> Option<Other> {
        let (file, stat) = dir.open_writable(name).ok()?;
        let was = (stat.inode, stat.size);
        let mut other = Other { name: name.to_vec(), was, origin: None, known: HashMap::new(), log: None };
        if !stat.is_private_to(own_user) {
            return None;
        }
        let mut take = |body: &[u8]| match decode(body) {
            Some(Item::Known(path, known)) => _ = other.known.insert(path, known),
            Some(Item::Forgotten(path)) => _ = other.known.remove(&path),
            Some(Item::Origin(origin)) => other.origin = Some(origin),
            _ => {}
        };
        let read = match locks {
            true => file.try_clone().map_err(LogError::from).and_then(|file| RecordLog::open(file, &FORMAT, &mut take)),
            false => Err(LogError::Locked),
        };
        match read {
            Ok(log) => other.log = Some(log),
            Err(_) => _ = RecordLog::read(&file, &FORMAT, &mut take).ok()?,
        }
        Some(other)
    }

    /// Gives up a path that belongs to somebody else now. The record isn't up to date then, and its follower requests the full state again. False: that follower is at work.
    pub(super) fn give_up(&mut self, path: &RelPath) -> io::Result<bool> {
        let Some(log) = &mut self.log else { return Ok(false) };
        self.known.remove(path);
        // In this order: forgotten entries come again.
        log.append(&encode_cursor(None, false))?;
        log.append(&encode_forgotten(path))?;
        log.flush()?;
        Ok(true)
    }
}

/// The record of one follower. Locked against others as long as it exists.
#[derive(Debug)]
pub(super) struct Record {
    dir: Dir,
    name: Vec<u8>,
    log: RecordLog,
    /// Bytes that the file has at most when it is rewritten.
    needed_bytes: u64,
    known: HashMap<RelPath, Known>,
    /// Entries whose change isn't reported yet.
    unreported: HashSet<RelPath>,
    /// Entries about to be put when the follower ended.
    intended: HashMap<RelPath, Known>,
    /// A path for each digest.
    by_digest: HashMap<Digest, RelPath>,
    cursor: Option<Cursor>,
    /// Whether files that are gone up to the cursor are deleted too.
    deletes: bool,
    copy: CopyId,
    origin: Option<Origin>,
}

/// Why a destination can't be followed into.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error("another follower of the same source is at work in it")]
    Locked,
    #[error("{name} is not a record that this version of tow can read; remove it, and everything is compared")]
    Foreign { name: String },
    #[error("{name}: {reason}")]
    Log { name: String, reason: LogError },
    #[error(transparent)]
    Root(#[from] RootError),
}

impl RecordError {
    /// Whether there was no space for it.
    pub(super) fn is_full(&self) -> bool {
        let (RecordError::Root(RootError::Io(error))
        | RecordError::Log { reason: LogError::Io(error) | LogError::Root(RootError::Io(error)), .. }) = self
        else {
            return false;
        };
        is_full(error)
    }
}

impl Record {
    /// The record in a destination, made if there is none. A damaged one begins again: everything is compared then.
    pub(super) fn open(dir: &Dir, source: &Source, exclude: &Excludes) -> Result<Record, RecordError> {
        let name = follow_name(source, exclude);
        let shown_name = String::from_utf8_lossy(&name).into_owned();
        let shown = || shown_name.clone();
        for _ in 0..3 {
            let file = match dir.create_file(&name, MODE) {
                Err(RootError::Exists) => match dir.open_private(&name)? {
                    Some(file) => file,
                    None => {
                        // Another user who can write to it could say what may be deleted.
                        tracing::warn!(name = %shown(), "the record of what was followed is not this user's alone: all files are compared");
                        dir.remove_file(&name)?;
                        continue;
                    }
                },
                created => created?,
            };
            let (mut known, mut intended, mut unreported) = (HashMap::new(), HashMap::new(), HashSet::new());
            let (mut cursor, mut deletes, mut is_strange) = (None, false, false);
            let (mut copy, mut origin) = (None, None);
            let opened = RecordLog::open(file, &FORMAT, |body| match decode(body) {
                Some(Item::Cursor(at)) => (cursor, deletes) = (at, true),
                Some(Item::CursorOfPuts(at)) => (cursor, deletes) = (Some(at), false),
                Some(Item::Known(path, what)) => {
                    intended.remove(&path);
                    unreported.remove(&path);
                    known.insert(path, what);
                }
                Some(Item::Unreported(path, what)) => {
                    intended.remove(&path);
                    unreported.insert(path.clone());
                    known.insert(path, what);
                }
                Some(Item::Intended(path, what)) => _ = intended.insert(path, what),
                Some(Item::Forgotten(path)) => {
                    unreported.remove(&path);
                    known.remove(&path);
                }
                Some(Item::Copy(id)) => copy = Some(id),
                Some(Item::Origin(of)) => origin = Some(of),
                None => is_strange = true,
            });
            match opened {
                Ok(log) if !is_strange => {
                    let is_new = copy.is_none();
                    let copy = copy.unwrap_or_else(|| CopyId(random()));
                    let needed_bytes = known.keys().map(record_bytes).sum();
                    let (dir, by_digest) = (dir.try_clone()?, HashMap::new());
                    let mut record = Record {
                        dir,
                        name,
                        log,
                        needed_bytes,
                        known,
                        unreported,
                        intended,
                        by_digest,
                        cursor,
                        deletes,
                        copy,
                        origin,
                    };
                    if is_new {
                        let noted = record.log.append(&encode_copy(copy)).and_then(|()| record.log.flush());
                        noted.map_err(|error| RecordError::Log { name: shown(), reason: error.into() })?;
                    }
                    let digests = record.known.iter().filter_map(|(path, known)| Some((known.digest()?, path.clone())));
                    record.by_digest = digests.collect();
                    record.rewrite_if_worthwhile();
                    return Ok(record);
                }
                Err(LogError::Locked) => return Err(RecordError::Locked),
                Err(LogError::Foreign) => return Err(RecordError::Foreign { name: shown() }),
                Err(reason @ (LogError::Io(_) | LogError::Root(_))) => {
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

    /// The destination's cursor; `None` if it needs the full state.
    pub(super) fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// Sets what this follower does from now on. One that deletes needs the full state, if the one before didn't: earlier deletions aren't sent again.
    pub(super) fn begin(&mut self, deletes: bool) -> io::Result<()> {
        if deletes && !self.deletes {
            self.store(None, false)?;
        }
        self.deletes = deletes;
        Ok(())
    }

    /// The number of this copy.
    pub(super) fn copy(&self) -> CopyId {
        self.copy
    }

    /// Origin of the entries, if it is known.
    pub(super) fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// Notes where what is put comes from.
    pub(super) fn note_origin(&mut self, origin: &Origin) -> io::Result<()> {
        if self.origin.as_ref() == Some(origin) {
            return Ok(());
        }
        self.origin = Some(origin.clone());
        self.log.append(&encode_origin(origin))?;
        self.log.flush()
    }

    /// The entry that was put at a path.
    pub(super) fn get(&self, path: &RelPath) -> Option<&Known> {
        self.known.get(path)
    }

    /// A file of this content that was put somewhere.
    pub(super) fn with_digest(&self, digest: Digest) -> Option<(&RelPath, &Known)> {
        let path = self.by_digest.get(&digest)?;
        self.known.get(path).filter(|known| known.digest() == Some(digest)).map(|known| (path, known))
    }

    /// All entries, by path.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&RelPath, &Known)> {
        self.known.iter()
    }

    /// Paths at which something was put.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Notes that an entry is about to be put at a path. After a crash, [`Record::take_intended`] returns it, to check whether it was.
    pub(super) fn intend(&mut self, path: &RelPath, known: &Known) -> io::Result<()> {
        let is_there = self.known.get(path).is_some_and(|there| there.is_same(known));
        if is_there { Ok(()) } else { self.log.append(&encode_intended(path, known)) }
    }

    /// Writes what was noted. It survives the end of this process.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.log.flush()
    }

    /// Takes the entries about to be put when the follower before this one ended.
    pub(super) fn take_intended(&mut self) -> HashMap<RelPath, Known> {
        std::mem::take(&mut self.intended)
    }

    /// Records the entry that was put at a path, and whose change was reported.
    pub(super) fn put(&mut self, path: &RelPath, known: Known) -> io::Result<()> {
        let was_unreported = self.unreported.remove(path);
        if self.insert(path, known) || was_unreported { self.log.append(&encode_known(path, &known)) } else { Ok(()) }
    }

    /// Records the entry that was put at a path, and whose change isn't reported yet.
    pub(super) fn put_unreported(&mut self, path: &RelPath, known: Known) -> io::Result<()> {
        let is_new = self.unreported.insert(path.clone());
        if self.insert(path, known) || is_new { self.log.append(&encode_unreported(path, &known)) } else { Ok(()) }
    }

    /// Paths of entries whose change isn't reported yet.
    pub(super) fn unreported(&self) -> impl Iterator<Item = &RelPath> {
        self.unreported.iter()
    }

    /// Notes an entry, and returns whether it is another one.
    fn insert(&mut self, path: &RelPath, known: Known) -> bool {
        if self.known.get(path) == Some(&known) {
            return false;
        }
        match self.known.insert(path.clone(), known) {
            Some(before) => self.forget_digest(path, &before),
            None => self.needed_bytes += record_bytes(path),
        }
        if let Some(digest) = known.digest() {
            self.by_digest.insert(digest, path.clone());
        }
        true
    }

    /// Forgets the entry of a path, which isn't there any more, or isn't this follower's.
    pub(super) fn forget(&mut self, path: &RelPath) -> io::Result<()> {
        let Some(known) = self.known.remove(path) else { return Ok(()) };
        self.unreported.remove(path);
        self.forget_digest(path, &known);
        self.needed_bytes -= record_bytes(path);
        self.log.append(&encode_forgotten(path))
    }

    fn forget_digest(&mut self, path: &RelPath, known: &Known) {
        if let Some(digest) = known.digest().filter(|digest| self.by_digest.get(digest) == Some(path)) {
            self.by_digest.remove(&digest);
        }
    }

    /// Forgets what isn't there any more, so that the full state is needed.
    pub(super) fn forget_missing(&mut self, missing: &[RelPath]) -> io::Result<()> {
        // In this order: forgotten entries come again.
        self.store(None, false)?;
        missing.iter().try_for_each(|path| self.forget(path))?;
        self.flush()
    }

    /// Everything up to a cursor is in place. `None`: the full state is needed.
    pub(super) fn store(&mut self, cursor: Option<Cursor>, durable: bool) -> io::Result<()> {
        if self.cursor != cursor {
            self.cursor = cursor;
            self.log.append(&encode_cursor(cursor, self.deletes))?;
        }
        if durable { self.log.sync() } else { self.log.flush() }?;
        self.rewrite_if_worthwhile();
        Ok(())
    }

    /// Rewrites the file if most of it is out of date.
    fn rewrite_if_worthwhile(&mut self) {
        if self.log.length() < REWRITE_FROM_BYTES.max(2 * self.needed_bytes) {
            return;
        }
        let log = RecordLog::replace(&self.dir, &self.name, &partial_names(&self.name).1, &FORMAT, |log| {
            log.append(&encode_copy(self.copy))?;
            self.origin.iter().try_for_each(|origin| log.append(&encode_origin(origin)))?;
            self.known.iter().try_for_each(|(path, known)| match self.unreported.contains(path) {
                true => log.append(&encode_unreported(path, known)),
                false => log.append(&encode_known(path, known)),
            })?;
            self.intended.iter().try_for_each(|(path, known)| log.append(&encode_intended(path, known)))?;
            log.append(&encode_cursor(self.cursor, self.deletes))
        });
        match log {
            Ok(log) => self.log = log,
            Err(error) => tracing::warn!(%error, "cannot write the record of what was followed anew"),
        }
    }
}

fn record_bytes(path: &RelPath) -> u64 {
    RECORD_BYTES + path.as_bytes().len() as u64
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
        let file = Known::File {
            size: 7,
            modified: Timestamp { seconds: -1, nanoseconds: 5 },
            changed: Some(Timestamp { seconds: 8, nanoseconds: 9 }),
            digest: Digest([3; 32]),
        };
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
        let origin = Origin { server: Some(ServerId([8; 16])), epoch: Epoch([1; 16]), base: path("a") };
        record.note_origin(&origin).unwrap();
        let copy = record.copy();
        drop(record);
        let mut record = Record::open(&dir(), &source, &none).unwrap();
        assert_eq!(record.take_intended(), HashMap::from([(path("new"), file)]), "and nothing that is in place");
        assert_eq!((record.cursor(), record.len()), (cursor, 3));
        assert_eq!((record.copy(), record.origin()), (copy, Some(&origin)));
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
    fn file_and_memory_grow_with_files_not_with_changes() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Root::directory(temp.path(), Links::Never).unwrap().open_dir(&RelPath::root()).unwrap();
        let (source, none) = (Source::Path("a".parse().unwrap()), Excludes::default());
        let name = temp.path().join(String::from_utf8(follow_name(&source, &none)).unwrap());
        let mut record = Record::open(&dir, &source, &none).unwrap();
        let (path, time) = (|index: u64| format!("f{}", index % 20).parse::<RelPath>().unwrap(), Timestamp::default());
        let file = |index: u64| Known::File {
            size: index,
            modified: time,
            changed: None,
            digest: Digest::of(&index.to_be_bytes()),
        };
        let cursor = |seq| Some(Cursor { epoch: Epoch([1; 16]), seq });
        for index in 0..40_000 {
            record.put(&path(index), file(index)).unwrap();
            record.store(cursor(index), false).unwrap();
        }
        let length = std::fs::metadata(&name).unwrap().len();
        assert!(length < REWRITE_FROM_BYTES + 1000, "{length}");
        assert_eq!((record.by_digest.len(), record.needed_bytes), (20, 20 * 100 + 10 * 2 + 10 * 3));
        drop(record);
        let record = Record::open(&dir, &source, &none).unwrap();
        assert_eq!((record.cursor(), record.len()), (cursor(39_999), 20));
        assert_eq!(record.get(&path(39_999)), Some(&file(39_999)));
    }

    #[test]
    fn another_version_of_the_record_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Root::directory(temp.path(), Links::Never).unwrap().open_dir(&RelPath::root()).unwrap();
        let (source, none) = (Source::Path("a".parse().unwrap()), Excludes::default());
        let mut file = dir.create_file(&follow_name(&source, &none), MODE).unwrap();
        std::io::Write::write_all(&mut file, b"TOWFOL1\n").unwrap();
        let error = Record::open(&dir, &source, &none).unwrap_err().to_string();
        assert!(error.contains("is not a record that this version of tow can read; remove it"), "{error}");
    }
}
