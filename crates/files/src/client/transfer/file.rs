//! One file of a transfer: what is known of it, and how far it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::command::{ContentKey, Partial, Version};
use crate::client::ranges::RangeSet;
use crate::digest::{Digest, Leaf, LeafSize};
use crate::path::RelPath;
use crate::protocol::control::Range;

/// How far a file is.
#[derive(Debug)]
pub(super) enum Phase {
    /// The disk is asked what is there.
    Inspecting,
    /// To be fetched.
    Waiting,
    /// In a fetch that has not ended for it.
    Requested,
    /// Nothing more comes for it; writes may be under way, or the digest to come.
    Arrived,
    /// The server is asked for its leaves, to tell which ones are bad.
    Leaves(LeafQuery),
    /// The disk gives it its name.
    Installing,
    /// It is there already: the disk gives it its mode and time.
    Touching,
}

/// Leaves on their way.
#[derive(Debug, Default)]
pub(super) struct LeafQuery {
    /// Those that came.
    pub(super) values: Vec<Leaf>,
}

/// One file.
#[derive(Debug)]
pub(super) struct FileTask {
    pub(super) remote: RelPath,
    pub(super) local: RelPath,
    /// As the listing, and later the metadata, has it.
    pub(super) version: Version,
    /// Bytes that it takes on the server's disk, as the listing has it: of a sparse file, what it will take here.
    pub(super) allocated: u64,
    pub(super) leaves: LeafSize,
    pub(super) digest: Option<Digest>,
    /// The values of its leaves, fetched before its content: of a file that is verified and delivered in order.
    pub(super) values: Option<Arc<[Leaf]>>,
    /// Some of it can't be taken back any more: of a file that is delivered in order.
    pub(super) delivered: bool,
    /// Content that is at its place already, under another time.
    pub(super) local_digest: Option<Digest>,
    pub(super) content: Option<Content>,
    pub(super) phase: Phase,
    /// Request and index that it was asked for with last.
    pub(super) asked: (u32, u32),
    /// Whether the fetch that it was asked for with may still tell the digest.
    pub(super) digest_may_come: bool,
    /// How often it was voided, or the server took back what it said.
    pub(super) restarts: u32,
    /// How often content did not match the digest.
    pub(super) bad_rounds: u32,
}

impl FileTask {
    pub(super) fn new(remote: RelPath, local: RelPath, version: Version, allocated: u64, phase: Phase) -> Self {
        Self {
            remote,
            local,
            version,
            allocated,
            leaves: LeafSize::for_file(version.size),
            digest: None,
            values: None,
            delivered: false,
            local_digest: None,
            content: None,
            phase,
            asked: (0, 0),
            digest_may_come: false,
            restarts: 0,
            bad_rounds: 0,
        }
    }

    /// What to ask for: `None` for all of it.
    pub(super) fn missing(&self, count_max: usize) -> Option<Vec<Range>> {
        self.content.as_ref().map(|content| content.written.missing(self.version.size, count_max))
    }

    /// Bytes that it will take on the disk beside what is there, as far as can be told before the server is asked for it.
    pub(super) fn space_needed(&self) -> u64 {
        // What an earlier transfer left has its space. A file of the same size probably is the same: if the server says that it isn't, its
        // space is reserved when the first of it comes.
        if matches!(self.phase, Phase::Touching) || self.content.is_some() || self.local_digest.is_some() {
            return 0;
        }
        self.version.size.min(self.allocated)
    }
}

/// What arrived of a file.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) key: ContentKey,
    /// The disk knows of it.
    pub(super) begun: bool,
    /// An earlier transfer has left something of it.
    pub(super) resumes: bool,
    /// What of that is still taken for good.
    pub(super) resumed: RangeSet,
    pub(super) written: RangeSet,
    /// Values of the leaves that are whole.
    pub(super) values: BTreeMap<u64, Leaf>,
    /// Commands that the disk has not answered.
    pub(super) pending: usize,
}

impl Content {
    pub(super) fn new(key: ContentKey) -> Self {
        Self {
            key,
            begun: false,
            resumes: false,
            resumed: RangeSet::default(),
            written: RangeSet::default(),
            values: BTreeMap::new(),
            pending: 0,
        }
    }

    /// Goes on with what an earlier transfer left.
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

    /// Forgets a leaf, so that it is asked for again.
    pub(super) fn forget_leaf(&mut self, leaves: LeafSize, leaf: u64) -> u64 {
        self.values.remove(&leaf);
        leaves.range(leaf).map_or(0, |(offset, length)| {
            self.resumed.remove(offset, length);
            self.written.remove(offset, length)
        })
    }

    /// Forgets all that was written, so that it is asked for again.
    pub(super) fn forget_all(&mut self) -> u64 {
        let forgotten = self.written.total();
        self.values.clear();
        self.written.clear();
        self.resumed.clear();
        forgotten
    }
}
