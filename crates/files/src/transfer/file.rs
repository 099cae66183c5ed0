//! A file of a transfer: what is known of it, and how far it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::command::{ContentKey, Partial, Version};
use super::reuse::Reuse;
use crate::digest::{Digest, Leaf, LeafSize};
use crate::path::RelPath;
use crate::protocol::control::Range;
use crate::transfer::ranges::RangeSet;

/// Progress of a file.
#[derive(Debug)]
pub(super) enum Phase {
    /// Another name of a file whose first name isn't in place, or that the disk is linking.
    Linking,
    /// The disk inspects its place.
    Inspecting,
    /// Waiting to be fetched.
    Waiting,
    /// In a fetch that hasn't finished it.
    Requested,
    /// All has arrived; writes may be pending, or the digest may be to come.
    Arrived,
    /// Its leaf values are requested: to find the leaves that are wrong, or before its content is fetched.
    Leaves(LeafQuery),
    /// The disk copies leaves of the file in place that have these values. Empty once it was given all.
    Reusing(Vec<Leaf>),
    /// The disk installs it.
    Installing,
    /// Complete; the disk sets its mode and time.
    Touching,
}

/// A request for leaf values.
#[derive(Debug, Default)]
pub(super) struct LeafQuery {
    /// The values that came so far.
    pub(super) values: Vec<Leaf>,
}

/// A file that isn't over.
#[derive(Debug)]
pub(super) struct FileTask {
    pub(super) remote: RelPath,
    pub(super) local: RelPath,
    /// As listed, then as the metadata says.
    pub(super) version: Version,
    /// Bytes on the server's disk, as listed: of a sparse file, what it will take here.
    pub(super) allocated: u64,
    /// Number that it has in common with other names of the same file.
    pub(super) hard_link: Option<u64>,
    pub(super) leaves: LeafSize,
    pub(super) digest: Option<Digest>,
    /// The digest that it must have: content of another one is another version, which isn't wanted.
    pub(super) must_be: Option<Digest>,
    /// Leaf values that are known before the content arrives: of a file that is verified and delivered in order.
    pub(super) values: Option<Arc<[Leaf]>>,
    /// Some of it is written to an output that can't take it back.
    pub(super) delivered: bool,
    /// Digest of the existing file, which has another time.
    pub(super) local_digest: Option<Digest>,
    pub(super) reuse: Reuse,
    pub(super) content: Option<Content>,
    pub(super) phase: Phase,
    /// The fetch that last asked for it, and its number there.
    pub(super) last_request: (u32, u32),
    /// That fetch may still bring the digest.
    pub(super) digest_pending: bool,
    /// How often it was void, or the server took back what it said.
    pub(super) restarts: u32,
    /// How often its content didn't match the digest.
    pub(super) mismatches: u32,
}

impl FileTask {
    pub(super) fn new(remote: RelPath, local: RelPath, version: Version, allocated: u64, phase: Phase) -> Self {
        Self {
            remote,
            local,
            version,
            allocated,
            hard_link: None,
            leaves: LeafSize::for_file(version.size),
            digest: None,
            must_be: None,
            values: None,
            delivered: false,
            local_digest: None,
            reuse: Reuse::No,
            content: None,
            phase,
            last_request: (0, 0),
            digest_pending: false,
            restarts: 0,
            mismatches: 0,
        }
    }

    /// The ranges to ask for: `None` for all.
    pub(super) fn missing(&self, count_max: usize) -> Option<Vec<Range>> {
        self.content.as_ref().map(|content| content.written.missing(self.version.size, count_max))
    }

    /// Bytes that it will take on the disk, as far as is known before it is fetched.
    pub(super) fn space_needed(&self) -> u64 {
        // A partial file has its space. An existing file of the same size is probably the same: if not, its space is
        // reserved when its content begins to arrive.
        if matches!(self.phase, Phase::Touching | Phase::Linking)
            || self.content.is_some()
            || self.local_digest.is_some()
        {
            return 0;
        }
        self.version.size.min(self.allocated)
    }
}

/// The content of a file, as far as it has arrived.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) key: ContentKey,
    /// The disk has a command for it.
    pub(super) begun: bool,
    /// Resumes a partial file.
    pub(super) resumes: bool,
    /// Has leaves of the file in place.
    pub(super) reuses: bool,
    /// The ranges that were there, and are still believed to be right.
    pub(super) resumed: RangeSet,
    pub(super) written: RangeSet,
    /// Values of complete leaves.
    pub(super) values: BTreeMap<u64, Leaf>,
    /// Writes that the disk hasn't reported.
    pub(super) pending: usize,
}

impl Content {
    pub(super) fn new(key: ContentKey) -> Self {
        Self {
            key,
            begun: false,
            resumes: false,
            reuses: false,
            resumed: RangeSet::default(),
            written: RangeSet::default(),
            values: BTreeMap::new(),
            pending: 0,
        }
    }

    /// Resumes a partial file.
    pub(super) fn resume(key: ContentKey, partial: &Partial) -> Self {
        let mut content = Self::new(key);
        for (leaf, value) in &partial.whole {
            if let Ok((offset, length)) = partial.leaves.range(*leaf) {
                content.written.insert(offset, length);
                content.values.insert(*leaf, *value);
            }
        }
        if let Some(tail) = partial.tail {
            content.written.insert(tail.offset, tail.length);
        }
        content.resumed = content.written.clone();
        content.resumes = content.resumed.total() > 0;
        content
    }

    /// Takes leaves of the file in place.
    pub(super) fn reusing(key: ContentKey) -> Self {
        Self { reuses: true, ..Self::new(key) }
    }

    /// Takes leaves that were copied from the file in place: how many bytes.
    pub(super) fn take_leaves(&mut self, leaves: LeafSize, copied: Vec<(u64, Leaf)>) -> u64 {
        let mut bytes = 0;
        for (leaf, value) in copied {
            if let Ok((offset, length)) = leaves.range(leaf) {
                bytes += self.written.insert(offset, length);
                self.resumed.insert(offset, length);
                self.values.insert(leaf, value);
            }
        }
        bytes
    }

    /// Forgets a leaf, so that it is fetched again: how many bytes of it were written.
    pub(super) fn forget_leaf(&mut self, leaves: LeafSize, leaf: u64) -> u64 {
        self.values.remove(&leaf);
        leaves.range(leaf).map_or(0, |(offset, length)| {
            self.resumed.remove(offset, length);
            self.written.remove(offset, length)
        })
    }

    /// Forgets all that was written, so that it is fetched again: how many bytes.
    pub(super) fn forget_all(&mut self) -> u64 {
        let forgotten = self.written.total();
        self.values.clear();
        self.written.clear();
        self.resumed.clear();
        forgotten
    }
}
