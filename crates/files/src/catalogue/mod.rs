//! The state of a served tree, with a sequence number for each path: the changes since a follower's cursor.
//!
//! Pure: the watcher of the tree puts in what it finds ([`Catalogue::put`], [`Catalogue::remove`]), and the sender takes pages out
//! ([`Catalogue::begin`], then [`Catalogue::changes_since`]). A change of a path replaces the older one, so memory is bounded by the paths, and a follower
//! that doesn't read costs its [`Position`].
// docs/protocol/follow.md specifies it.

mod content;
mod relayed;
#[cfg(test)]
mod tests;

pub use content::{Content, Identity};

use crate::limits::{CATALOGUE_PATHS_MAX, TOMBSTONES_MIN};
use crate::path::RelPath;
use crate::protocol::control::FollowState;
use crate::protocol::follow::{Cursor, Epoch, FollowFrom, ServerId};
use crate::root::FileStat;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// The newest entry of each path.
#[derive(Debug)]
pub struct Catalogue {
    epoch: Epoch,
    /// The lasting number of the server, if it has one; of a relay, of the server that its files come from in the first place.
    pub server: Option<ServerId>,
    /// The newest number.
    head: u64,
    /// The highest number of a deletion that was forgotten: older cursors would miss it.
    floor: u64,
    /// The tree was read once, as a whole.
    is_complete: bool,
    /// The numbers are another server's, and followers may be ahead.
    is_relayed: bool,
    /// Whether nothing is known yet of the other server.
    is_awaiting: bool,
    /// Only versions are passed on.
    is_of_versions: bool,
    /// Boxed, as nodes of the tree are half empty.
    entries: BTreeMap<Arc<[u8]>, Box<Entry>>,
    by_seq: BTreeMap<u64, Arc<[u8]>>,
    /// Numbers of entries that are gone.
    tombstones: BTreeSet<u64>,
    tombstones_min: usize,
    /// Unreadable paths, and whether each is a directory; the number of those left out; and how often this has changed.
    unread: BTreeMap<RelPath, bool>,
    unread_more: u64,
    unread_changes: u64,
}

/// The newest entry of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub seq: u64,
    /// Content of the path.
    pub content: Content,
    /// Identity, which shows whether it has changed.
    pub identity: Identity,
}

impl Entry {
    /// Whether a file with this metadata is what was published.
    pub fn is_file(&self, stat: &FileStat) -> bool {
        self.may_be_file(stat) && self.identity.changed == stat.changed
    }

    /// Whether a file with this metadata may be what was published: another name or owner changes the one time that isn't compared, and so does a
    /// change of the content by somebody who sets back the other. The digest decides.
    pub fn may_be_file(&self, stat: &FileStat) -> bool {
        let Content::File { size, modified, .. } = self.content else { return false };
        self.identity.is_same_inode(stat) && (size, modified) == (stat.size, stat.modified)
    }
}

/// A follower's position in this catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    epoch: Epoch,
    after: u64,
    /// A full state has no need for deletions up to this number; 0 where changes are followed.
    full_until: u64,
    /// The number of the last change that was sent to it, or where it has begun.
    sent: u64,
}

/// The next changes for a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangesSince {
    /// Changes, perhaps none.
    Changes {
        /// By ascending number.
        changes: Vec<(Arc<[u8]>, Entry)>,
        /// The follower's new position.
        position: Position,
        /// Whether it then has everything.
        live: bool,
    },
    /// The follower was too slow: [`Catalogue::begin`] gives it a full state.
    Restart,
}

/// Limits of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    /// Changes.
    pub changes: usize,
    /// Their [`Content::cost`].
    pub bytes: usize,
    /// Entries that are looked at, wanted or not.
    pub examined: usize,
}

/// More paths than there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {CATALOGUE_PATHS_MAX} paths")]
pub struct TooManyPaths;

impl Position {
    /// The cursor to send.
    pub fn cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, seq: self.after }
    }

    /// The cursor for followers that may not see everything: it doesn't count what they may not see.
    pub fn sent_cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, seq: self.sent }
    }

    /// This position, where the last change that was sent has another number.
    #[must_use]
    pub fn sent(self, sent: u64) -> Position {
        Position { sent, ..self }
    }
}

impl Catalogue {
    /// An empty catalogue of a new epoch.
    pub fn new(epoch: Epoch) -> Catalogue {
        Catalogue {
            epoch,
            server: None,
            head: 0,
            floor: 0,
            is_complete: false,
            is_relayed: false,
            is_awaiting: false,
            is_of_versions: false,
            entries: BTreeMap::new(),
            by_seq: BTreeMap::new(),
            tombstones: BTreeSet::new(),
            tombstones_min: TOMBSTONES_MIN,
            unread: BTreeMap::new(),
            unread_more: 0,
            unread_changes: 0,
        }
    }

    /// A catalogue as it was stored. `head` is at least every number that was given out.
    pub fn restored(
        epoch: Epoch,
        head: u64,
        floor: u64,
        entries: impl IntoIterator<Item = (Arc<[u8]>, Entry)>,
    ) -> Self {
        let mut catalogue = Catalogue { head, floor, ..Catalogue::new(epoch) };
        for (path, entry) in entries {
            if entry.content == Content::Gone {
                catalogue.tombstones.insert(entry.seq);
            }
            catalogue.head = catalogue.head.max(entry.seq);
            catalogue.by_seq.insert(entry.seq, Arc::clone(&path));
            catalogue.entries.insert(path, Box::new(entry));
        }
        catalogue.forget_tombstones();
        catalogue
    }

    /// The highest number of a deletion that was forgotten.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Entries with higher numbers, also of what is gone.
    pub fn since(&self, seq: u64) -> impl Iterator<Item = (&Arc<[u8]>, &Entry)> {
        let newer = self.by_seq.range((Bound::Excluded(seq), Bound::Unbounded));
        newer.filter_map(|(_, path)| Some((path, self.entries.get(path)?.as_ref())))
    }

    /// The newest number.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The numbers' epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether a follower can be at a cursor. Those of a relay may be ahead of it.
    pub fn may_have(&self, cursor: Cursor) -> bool {
        cursor.epoch == self.epoch && (cursor.seq <= self.head || self.is_relayed)
    }

    /// Paths at which something is.
    pub fn len(&self) -> usize {
        self.entries.len() - self.tombstones.len()
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the tree was read once, as a whole.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The tree was read once, as a whole: followers can be up to date.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Notes what is there and can't be read, so that nobody takes what is published for everything. It has no numbers: it isn't known.
    pub fn set_unread(&mut self, unread: BTreeMap<RelPath, bool>, more: u64) {
        if (&self.unread, self.unread_more) != (&unread, more) {
            (self.unread, self.unread_more) = (unread, more);
            self.unread_changes += 1;
        }
    }

    /// Unreadable paths, whether each is a directory, and the number of those left out.
    pub fn unread(&self) -> (&BTreeMap<RelPath, bool>, u64) {
        (&self.unread, self.unread_more)
    }

    /// How often that has changed.
    pub fn unread_changes(&self) -> u64 {
        self.unread_changes
    }

    /// The entry of a path.
    pub fn get(&self, path: &[u8]) -> Option<&Entry> {
        self.entries.get(path).map(Box::as_ref).filter(|entry| entry.content != Content::Gone)
    }

    /// Notes what is at a path: its new number, if that is something else than before. What was below it goes first, if it isn't a directory.
    ///
    /// # Errors
    /// There are too many paths.
    pub fn put(&mut self, path: &RelPath, content: Content, identity: Identity) -> Result<Option<u64>, TooManyPaths> {
        let path = path.as_bytes();
        if self.get(path).is_none() && self.len() >= CATALOGUE_PATHS_MAX {
            return Err(TooManyPaths);
        }
        if let Some(entry) = self.entries.get_mut(path).filter(|entry| entry.content == content) {
            entry.identity = identity;
            return Ok(None);
        }
        if !matches!(content, Content::Dir { .. }) {
            self.remove_below(path);
        }
        let seq = self.replace(path, content, identity);
        self.forget_tombstones();
        Ok(Some(seq))
    }

    /// Notes that nothing is at a path any more, and nothing below it.
    pub fn remove(&mut self, path: &[u8]) {
        if self.get(path).is_some() {
            self.remove_below(path);
            self.replace(path, Content::Gone, Identity::default());
            self.forget_tombstones();
        }
    }

    fn remove_below(&mut self, dir: &[u8]) {
        // What is in a directory before the directory itself.
        let below: Vec<_> = self.below(dir).rev().map(|(path, _)| Arc::clone(path)).collect();
        for path in below {
            self.replace(&path, Content::Gone, Identity::default());
        }
    }

    fn replace(&mut self, path: &[u8], content: Content, identity: Identity) -> u64 {
        self.replace_at(path, Entry { seq: self.head + 1, content, identity })
    }

    fn replace_at(&mut self, path: &[u8], entry: Entry) -> u64 {
        let (seq, is_gone) = (entry.seq, entry.content == Content::Gone);
        self.head = seq;
        let known = self.entries.get_mut(path).map(|old| std::mem::replace(&mut **old, entry.clone()).seq);
        let path = match known {
            Some(old) => {
                self.tombstones.remove(&old);
                self.by_seq.remove(&old).unwrap_or_else(|| path.into())
            }
            None => {
                let path: Arc<[u8]> = path.into();
                self.entries.insert(Arc::clone(&path), Box::new(entry));
                path
            }
        };
        self.by_seq.insert(seq, path);
        if is_gone {
            self.tombstones.insert(seq);
        }
        seq
    }

    fn forget_tombstones(&mut self) {
        while self.tombstones.len() > self.tombstones_min.max(self.len()) {
            let Some(seq) = self.tombstones.pop_first() else { return };
            if let Some(path) = self.by_seq.remove(&seq) {
                self.entries.remove(&path);
            }
            self.floor = seq;
        }
    }

    /// The entries below a directory, by path.
    pub fn below(&self, dir: &[u8]) -> impl DoubleEndedIterator<Item = (&Arc<[u8]>, &Entry)> {
        let (from, until) = below(dir);
        let range =
            self.entries.range::<[u8], _>((from.as_ref().map(Vec::as_slice), until.as_ref().map(Vec::as_slice)));
        range.map(|(path, entry)| (path, entry.as_ref())).filter(|(_, entry)| entry.content != Content::Gone)
    }

    /// The entries of a directory, without those of its subdirectories.
    pub fn children(&self, dir: &[u8]) -> Vec<(Arc<[u8]>, &Entry)> {
        let mut children = Vec::new();
        let (mut from, until) = below(dir);
        let prefix = if dir.is_empty() { 0 } else { dir.len() + 1 };
        loop {
            let range = (from.as_ref().map(Vec::as_slice), until.as_ref().map(Vec::as_slice));
            let Some((path, entry)) = self.entries.range::<[u8], _>(range).next() else { return children };
            let name = path.get(prefix..).unwrap_or_default();
            from = match name.iter().position(|byte| *byte == b'/') {
                // Deeper: goes on behind all that is in that directory.
                Some(end) => match below(path.get(..prefix + end).unwrap_or_default()).1 {
                    Bound::Excluded(end) => Bound::Included(end),
                    end => end,
                },
                None => {
                    if entry.content != Content::Gone {
                        children.push((Arc::clone(path), entry.as_ref()));
                    }
                    Bound::Excluded(path.to_vec())
                }
            };
        }
    }

    /// Position and state of a new follow; `None` if that isn't known before the tree was read.
    pub fn begin(&self, from: FollowFrom) -> Option<(Position, FollowState)> {
        let Catalogue { epoch, head, .. } = *self;
        match from {
            _ if self.is_awaiting => None,
            FollowFrom::Now if !self.is_complete => None,
            FollowFrom::Now => Some((Position { epoch, after: head, full_until: 0, sent: head }, FollowState::Changes)),
            FollowFrom::Cursor(Cursor { epoch: of, seq })
                if of == epoch && seq > 0 && seq >= self.floor && (seq <= head || self.is_relayed) =>
            {
                Some((Position { epoch, after: seq, full_until: 0, sent: seq }, FollowState::Changes))
            }
            FollowFrom::Cursor(_) | FollowFrom::Beginning => {
                Some((Position { epoch, after: 0, full_until: head, sent: 0 }, FollowState::Full))
            }
        }
    }

    /// The number of the newest entry of certain paths; 0 if none is among this many.
    pub fn newest(&self, examined: usize, mut wants: impl FnMut(&[u8]) -> bool) -> u64 {
        let mut newest = self.by_seq.iter().rev().take(examined);
        newest.find(|(_, path)| wants(path)).map_or(0, |(seq, _)| *seq)
    }

    /// The path whose newest entry has this number.
    pub fn path_of(&self, seq: u64) -> Option<&Arc<[u8]>> {
        self.by_seq.get(&seq)
    }

    /// The next changes of the paths that a follower wants.
    pub fn changes_since(
        &self,
        at: Position,
        mut wants: impl FnMut(&[u8]) -> bool,
        limits: PageLimits,
    ) -> ChangesSince {
        if at.epoch != self.epoch || self.floor > at.after.max(at.full_until) {
            return ChangesSince::Restart;
        }
        let (mut changes, mut after, mut bytes) = (Vec::new(), at.after, 0);
        let mut rest = self.by_seq.range((Bound::Excluded(at.after), Bound::Unbounded));
        let mut is_end = false;
        for _ in 0..limits.examined {
            let Some((seq, path)) = rest.next() else {
                is_end = true;
                break;
            };
            let Some(entry) = self.entries.get(path) else { continue };
            let is_needed = entry.content != Content::Gone || *seq > at.full_until;
            if is_needed && wants(path) {
                bytes += entry.content.cost(path);
                if !changes.is_empty() && (changes.len() >= limits.changes || bytes > limits.bytes) {
                    break;
                }
                changes.push((Arc::clone(path), Entry::clone(entry)));
            }
            after = *seq;
        }
        if is_end {
            after = self.head.max(at.after);
        }
        let sent = changes.last().map_or(at.sent, |(_, entry)| entry.seq);
        ChangesSince::Changes { changes, position: Position { after, sent, ..at }, live: is_end && self.is_complete }
    }
}

/// The range of what is below a directory.
fn below(dir: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    if dir.is_empty() {
        return (Bound::Excluded(Vec::new()), Bound::Unbounded);
    }
    // The byte behind the slash.
    (Bound::Excluded([dir, b"/"].concat()), Bound::Excluded([dir, b"0"].concat()))
}
