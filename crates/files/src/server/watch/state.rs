//! The catalogue on the disk, so that sequence numbers survive a restart.
// docs/formats/catalogue.md has the bytes.

use crate::catalogue::{Catalogue, Content, Entry, Identity};
use crate::digest::Digest;
use crate::fields::take;
use crate::path::{PATH_BYTES_MAX, RelPath};
use crate::protocol::follow::Epoch;
use crate::record_log::{Format, LogError, MODE, RecordLog};
use crate::root::{Dir, Links, Root, RootError, Timestamp, make_private_dir};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

const FORMAT: Format = Format { magic: b"TOWCAT2\n", body_bytes_max: 64 << 10 };
const NAME: &[u8] = b"catalogue";
const NEW_NAME: &[u8] = b"catalogue.new";
/// Numbers that may be given out before the next ones are reserved.
const RESERVED: u64 = 1 << 16;
/// Bytes, beyond which the file is rewritten if most of it is out of date.
const REWRITE_FROM_BYTES: u64 = 1 << 20;
/// Most bytes of a record beside its path and target.
const RECORD_BYTES: usize = 130;

const KIND_EPOCH: u8 = 1;
const KIND_RESERVED: u8 = 2;
const KIND_FLOOR: u8 = 3;
const KIND_ROOT: u8 = 4;
const KIND_ENTRY: u8 = 5;
const KIND_BOOT: u8 = 6;
const KIND_MOUNT: u8 = 7;
const KIND_NO_MOUNT: u8 = 8;

const FILE: u8 = 1;
const DIR: u8 = 2;
const LINK: u8 = 3;
const GONE: u8 = 4;

/// Which start of the machine it is.
pub(super) type Boot = [u8; 16];

/// The file. Numbers are in it before anybody learns of them.
#[derive(Debug)]
pub(in crate::server) struct State {
    log: RecordLog,
    dir: Dir,
    /// Entries up to this number are in it.
    logged: u64,
    /// Numbers up to this one were reserved: after a crash the next one is higher.
    reserved: u64,
    /// The root's inode.
    root: Option<u64>,
    boot: Option<Boot>,
    /// Mount points below the root, current and earlier ones.
    mounts: BTreeSet<RelPath>,
    /// The size from which on it may be rewritten.
    rewrite_from: u64,
}

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub(in crate::server) enum StateError {
    #[error("another server is using it: end that one, or give this one a directory of its own")]
    Locked,
    #[error("it isn't this user's alone: who can write to it says what is published")]
    NotOwn,
    #[error("{0}; remove it to begin a new epoch: followers then compare everything")]
    Damaged(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Root(#[from] RootError),
}

#[derive(Debug, Default)]
struct Loaded {
    epoch: Option<Epoch>,
    reserved: u64,
    floor: u64,
    root: Option<u64>,
    boot: Option<Boot>,
    mounts: BTreeSet<RelPath>,
    entries: HashMap<Arc<[u8]>, Entry>,
    is_strange: bool,
}

impl State {
    /// Opens the file in a directory, which is made if there is none, and the catalogue in it; `epoch` is for a new one.
    pub(in crate::server) fn open(directory: &Path, epoch: Epoch) -> Result<(State, Catalogue), StateError> {
        State::open_after(directory, epoch, boot())
    }

    /// The same after this start of the machine.
    pub(super) fn open_after(
        directory: &Path,
        epoch: Epoch,
        boot: Option<Boot>,
    ) -> Result<(State, Catalogue), StateError> {
        make_private_dir(directory)?;
        let dir = Root::directory(directory, Links::Never)?.open_dir(&RelPath::root())?;
        let file = match dir.create_file(NAME, MODE) {
            Err(RootError::Exists) => dir.open_private(NAME)?.ok_or(StateError::NotOwn)?,
            created => created?,
        };
        let mut loaded = Loaded::default();
        let log = RecordLog::open(file, &FORMAT, |body| loaded.take(body)).map_err(|error| match error {
            LogError::Locked => StateError::Locked,
            LogError::Io(error) => error.into(),
            LogError::Root(error) => error.into(),
            error @ (LogError::Foreign | LogError::Damaged(_)) => StateError::Damaged(error.to_string()),
        })?;
        let Loaded { epoch: old, mut reserved, mut floor, root, boot: booted, mounts, entries, is_strange } = loaded;
        if is_strange || (old.is_none() && !entries.is_empty()) {
            return Err(StateError::Damaged("it has records that this version doesn't know".to_owned()));
        }
        let is_new = old.is_none();
        let is_same_boot = booted.is_some() && booted == boot;
        if !is_new && !is_same_boot {
            // The last entries may be lost, and followers may have had them: no later change would say what is gone since.
            reserved += 1;
            floor = reserved;
        }
        let catalogue = Catalogue::restored(old.unwrap_or(epoch), reserved, floor, entries);
        let rewrite_from = REWRITE_FROM_BYTES;
        let mut state = State { log, dir, logged: reserved, reserved, root, boot, mounts, rewrite_from };
        if is_new {
            state.log.append(&[&[KIND_EPOCH], &epoch.0[..]].concat())?;
        }
        if !is_same_boot {
            state.log.append(&encode_number(KIND_RESERVED, reserved))?;
            state.log.append(&encode_number(KIND_FLOOR, floor))?;
            boot.map_or(Ok(()), |boot| state.log.append(&encode_boot(boot)))?;
            state.log.sync()?;
            state.dir.sync()?;
        }
        Ok((state, catalogue))
    }

    /// The inode of the root that was watched before.
    pub(in crate::server) fn root(&self) -> Option<u64> {
        self.root
    }

    /// Notes the root that is watched.
    pub(super) fn note_root(&mut self, inode: u64) -> io::Result<()> {
        self.root = Some(inode);
        self.log.append(&[&[KIND_ROOT], &inode.to_be_bytes()[..]].concat())?;
        self.log.flush()
    }

    /// Mount points below the root, as they were noted last.
    pub(super) fn mounts(&self) -> &BTreeSet<RelPath> {
        &self.mounts
    }

    /// Notes where file systems are mounted, or were.
    pub(super) fn note_mounts(&mut self, mounts: &BTreeSet<RelPath>) -> io::Result<()> {
        if self.mounts == *mounts {
            return Ok(());
        }
        for path in mounts.difference(&self.mounts) {
            self.log.append(&encode_mount(KIND_MOUNT, path))?;
        }
        for path in self.mounts.difference(mounts) {
            self.log.append(&encode_mount(KIND_NO_MOUNT, path))?;
        }
        self.mounts.clone_from(mounts);
        self.log.flush()
    }

    /// Stores what is new. Called before anybody can see it.
    pub(super) fn store(&mut self, catalogue: &Catalogue) -> io::Result<()> {
        let head = catalogue.head();
        if head > self.reserved {
            self.reserved = head + RESERVED;
            self.log.append(&encode_number(KIND_RESERVED, self.reserved))?;
            self.log.sync()?;
        }
        for (path, entry) in catalogue.since(self.logged) {
            self.log.append(&encode(path, entry))?;
        }
        self.logged = head;
        self.log.flush()?;
        if self.log.length() > self.rewrite_from { self.rewrite(catalogue) } else { Ok(()) }
    }

    /// Rewrites the file, with what counts.
    fn rewrite(&mut self, catalogue: &Catalogue) -> io::Result<()> {
        let State { reserved, root, boot, ref mounts, .. } = *self;
        let log = RecordLog::replace(&self.dir, NAME, NEW_NAME, &FORMAT, |log| {
            log.append(&[&[KIND_EPOCH], &catalogue.epoch().0[..]].concat())?;
            log.append(&encode_number(KIND_RESERVED, reserved))?;
            log.append(&encode_number(KIND_FLOOR, catalogue.floor()))?;
            root.map_or(Ok(()), |root| log.append(&encode_number(KIND_ROOT, root)))?;
            boot.map_or(Ok(()), |boot| log.append(&encode_boot(boot)))?;
            mounts.iter().try_for_each(|path| log.append(&encode_mount(KIND_MOUNT, path)))?;
            catalogue.since(0).try_for_each(|(path, entry)| log.append(&encode(path, entry)))
        });
        self.log = log.map_err(|error| io::Error::other(error.to_string()))?;
        self.dir.sync().map_err(|error| io::Error::other(error.to_string()))?;
        self.rewrite_from = (2 * self.log.length()).max(REWRITE_FROM_BYTES);
        Ok(())
    }

    /// Removes the file, which could not be written: its numbers may have been given out for something else by now.
    pub(super) fn abandon(self) -> Result<(), RootError> {
        self.dir.remove_file(NAME)
    }
}

impl Loaded {
    fn take(&mut self, body: &[u8]) {
        self.is_strange |= self.decode(body).is_none();
    }

    fn decode(&mut self, body: &[u8]) -> Option<()> {
        let (kind, mut rest) = body.split_first()?;
        let rest = &mut rest;
        match *kind {
            KIND_EPOCH => self.epoch = Some(Epoch(take(rest)?)),
            KIND_RESERVED => self.reserved = number(rest)?,
            KIND_FLOOR => self.floor = number(rest)?,
            KIND_ROOT => self.root = Some(number(rest)?),
            KIND_BOOT => self.boot = Some(take(rest)?),
            KIND_MOUNT => _ = self.mounts.insert(RelPath::new(*rest).ok()?),
            KIND_NO_MOUNT => _ = self.mounts.remove(&RelPath::new(*rest).ok()?),
            KIND_ENTRY => {
                let (path, entry) = decode_entry(rest)?;
                self.entries.insert(path, entry);
            }
            _ => return None,
        }
        Some(())
    }
}

fn encode_number(kind: u8, number: u64) -> Vec<u8> {
    [&[kind], &number.to_be_bytes()[..]].concat()
}

fn encode_boot(boot: Boot) -> Vec<u8> {
    [&[KIND_BOOT], &boot[..]].concat()
}

fn encode_mount(kind: u8, path: &RelPath) -> Vec<u8> {
    [&[kind], path.as_bytes()].concat()
}

/// Which start of the machine this is, if the system says.
fn boot() -> Option<Boot> {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    Digest::of(&id).0.first_chunk().copied()
}

fn encode(path: &[u8], entry: &Entry) -> Vec<u8> {
    let mut body = Vec::with_capacity(RECORD_BYTES + path.len());
    body.push(KIND_ENTRY);
    let Identity { device, inode, changed, is_settled } = entry.identity;
    for number in [entry.seq, device, inode] {
        body.extend_from_slice(&number.to_be_bytes());
    }
    let time = |body: &mut Vec<u8>, time: Timestamp| {
        body.extend_from_slice(&time.seconds.to_be_bytes());
        body.extend_from_slice(&time.nanoseconds.to_be_bytes());
    };
    time(&mut body, changed);
    body.push(is_settled.into());
    match &entry.content {
        Content::File { size, modified, mode, digest } => {
            body.push(FILE);
            body.extend_from_slice(&size.to_be_bytes());
            time(&mut body, *modified);
            body.extend_from_slice(&mode.to_be_bytes());
            body.extend_from_slice(&digest.0);
        }
        Content::Dir { mode } => {
            body.push(DIR);
            body.extend_from_slice(&mode.to_be_bytes());
        }
        Content::Link { target, modified } => {
            body.push(LINK);
            time(&mut body, *modified);
            // At most as long as a path.
            body.extend_from_slice(&u16::try_from(target.len()).unwrap_or(0).to_be_bytes());
            body.extend_from_slice(target);
        }
        Content::Gone => body.push(GONE),
    }
    body.extend_from_slice(path);
    body
}

fn decode_entry(rest: &mut &[u8]) -> Option<(Arc<[u8]>, Entry)> {
    let (seq, device, inode) = (number(rest)?, number(rest)?, number(rest)?);
    let changed = timestamp(rest)?;
    let [is_settled] = take(rest)?;
    let [kind] = take(rest)?;
    let content = match kind {
        FILE => Content::File {
            size: number(rest)?,
            modified: timestamp(rest)?,
            mode: u32::from_be_bytes(take(rest)?),
            digest: Digest(take(rest)?),
        },
        DIR => Content::Dir { mode: u32::from_be_bytes(take(rest)?) },
        LINK => {
            let modified = timestamp(rest)?;
            let length = usize::from(u16::from_be_bytes(take(rest)?));
            let target = rest.get(..length).filter(|_| length <= PATH_BYTES_MAX)?.into();
            *rest = rest.get(length..)?;
            Content::Link { target, modified }
        }
        GONE => Content::Gone,
        _ => return None,
    };
    let path = RelPath::new(*rest).ok().filter(|path| !path.is_root())?;
    let identity = Identity { device, inode, changed, is_settled: is_settled == 1 };
    Some((path.as_bytes().into(), Entry { seq, content, identity }))
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_be_bytes)
}

fn timestamp(rest: &mut &[u8]) -> Option<Timestamp> {
    let seconds = i64::from_be_bytes(take(rest)?);
    Some(Timestamp { seconds, nanoseconds: u32::from_be_bytes(take(rest)?) })
}

/// The body of the fuzz target `files_catalogue`, and of the test of its corpus: an entry that is decoded and encoded again says the same.
#[cfg(any(test, fuzzing))]
pub fn fuzz_body(body: &[u8]) {
    let mut loaded = Loaded::default();
    loaded.take(body);
    for (path, entry) in &loaded.entries {
        let mut again = Loaded::default();
        again.take(&encode(path, entry));
        assert!(!again.is_strange && again.entries.get(path) == Some(entry), "{entry:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::FollowState;
    use crate::protocol::follow::{Cursor, FollowFrom};

    fn path(text: &str) -> RelPath {
        text.parse().unwrap()
    }

    fn file(byte: u8) -> Content {
        let modified = Timestamp { seconds: -7, nanoseconds: byte.into() };
        Content::File { size: byte.into(), modified, mode: 0o640, digest: Digest([byte; 32]) }
    }

    fn live(catalogue: &Catalogue) -> Vec<(Arc<[u8]>, Entry)> {
        catalogue.below(b"").map(|(path, entry)| (Arc::clone(path), entry.clone())).collect()
    }

    #[test]
    fn numbers_and_entries_survive_a_restart_and_no_number_is_given_twice() {
        let temp = tempfile::tempdir().unwrap();
        let identity =
            Identity { device: 1, inode: 2, changed: Timestamp { seconds: 3, nanoseconds: 4 }, is_settled: true };
        let (mut state, mut catalogue) = State::open(temp.path(), Epoch([1; 16])).unwrap();
        assert!(matches!(State::open(temp.path(), Epoch([2; 16])), Err(StateError::Locked)));
        state.note_root(77).unwrap();
        let mounts = |names: &[&str]| names.iter().map(|name| path(name)).collect::<BTreeSet<_>>();
        for names in [&["d/x", "m"][..], &["m", "n"]] {
            state.note_mounts(&mounts(names)).unwrap();
        }
        let link = Content::Link { target: b"f".as_slice().into(), modified: Timestamp::default() };
        for (name, content) in [("f", file(1)), ("d", Content::Dir { mode: 0o755 }), ("l", link), ("d/x", file(2))] {
            catalogue.put(&path(name), content, identity).unwrap();
            state.store(&catalogue).unwrap();
        }
        catalogue.put(&path("f"), file(3), identity).unwrap();
        catalogue.remove(b"d");
        state.store(&catalogue).unwrap();
        let (before, head) = (live(&catalogue), catalogue.head());
        drop(state);
        for round in 0..3 {
            let (mut state, mut catalogue) = State::open(temp.path(), Epoch([2; 16])).unwrap();
            assert_eq!((live(&catalogue), catalogue.epoch(), state.root()), (before.clone(), Epoch([1; 16]), Some(77)));
            assert!(catalogue.head() >= head && *state.mounts() == mounts(&["m", "n"]));
            catalogue.complete();
            let from = FollowFrom::Cursor(Cursor { epoch: Epoch([1; 16]), seq: head });
            assert_eq!(catalogue.begin(from).unwrap().0.cursor().seq, head, "round {round}");
            // What isn't stored gets another number the next time.
            let seq = catalogue.put(&path("new"), file(9), identity).unwrap().unwrap();
            assert!(seq > head);
            if round == 1 {
                state.rewrite(&catalogue).unwrap();
                catalogue.remove(b"new");
                state.store(&catalogue).unwrap();
            }
        }
    }

    #[test]
    fn after_another_start_of_the_machine_nobody_goes_on_where_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let open = |boot: u8| State::open_after(temp.path(), Epoch([1; 16]), Some([boot; 16])).unwrap();
        let (mut state, mut catalogue) = open(1);
        catalogue.put(&path("f"), file(1), Identity::default()).unwrap();
        state.store(&catalogue).unwrap();
        let mut at = Cursor { epoch: Epoch([1; 16]), seq: catalogue.head() };
        let state_of = |catalogue: &Catalogue, at| catalogue.begin(FollowFrom::Cursor(at)).unwrap().1;
        for (boot, expected) in [(1, FollowState::Changes), (2, FollowState::Full), (2, FollowState::Full)] {
            (state, catalogue) = {
                drop(state);
                open(boot)
            };
            assert_eq!((state_of(&catalogue, at), catalogue.len()), (expected, 1), "{boot}");
        }
        at.seq = catalogue.head();
        drop(state);
        assert_eq!(state_of(&open(2).1, at), FollowState::Changes, "what was said since is known");
    }

    #[test]
    fn a_torn_end_is_cut_and_a_damaged_middle_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let (mut state, mut catalogue) = State::open(temp.path(), Epoch([1; 16])).unwrap();
        for index in 0..10 {
            catalogue.put(&path(&index.to_string()), file(index), Identity::default()).unwrap();
            state.store(&catalogue).unwrap();
        }
        drop(state);
        let name = temp.path().join("catalogue");
        let whole = std::fs::read(&name).unwrap();
        std::fs::write(&name, &whole[..whole.len() - 5]).unwrap();
        let (state, catalogue) = State::open(temp.path(), Epoch([2; 16])).unwrap();
        assert_eq!((catalogue.len(), catalogue.epoch()), (9, Epoch([1; 16])));
        drop(state);
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        std::fs::write(&name, &damaged).unwrap();
        let error = State::open(temp.path(), Epoch([2; 16])).unwrap_err();
        assert!(matches!(error, StateError::Damaged(_)) && error.to_string().contains("remove it"), "{error}");
        assert_eq!(std::fs::read(&name).unwrap(), damaged);
    }

    #[test]
    fn fuzz_corpus_passes() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/files_catalogue");
        let inputs: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty());
        for path in inputs {
            println!("{}", path.display());
            fuzz_body(&std::fs::read(&path).unwrap());
        }
    }

    proptest::proptest! {
        #[test]
        fn random_records_decode_and_encode_alike(kind in 0u8..9, rest in proptest::collection::vec(0u8.., 0..150)) {
            fuzz_body(&[&[kind], &rest[..]].concat());
        }
    }
}
