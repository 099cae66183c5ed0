//! Leaves of the file that is in place: those that the new version has too are copied, and not fetched.
//!
//! The digest and the values of the leaves are fetched first. Then the disk copies the leaves that have them, a sample before all others: of a
//! file that has nothing in common with the new version not much more is read. What was copied is hashed, not what it was copied from, so
//! whatever happens to that file meanwhile, the content is checked like any other.
//!
//! Called by `checking` (what was inspected, values, reports of the disk) and `fetching` (connections that are lost).

use crate::error::Error;
use std::collections::VecDeque;

use super::Transfer;
use super::command::{ContentKey, DiskCommand, DiskError, FileKey, WrittenLeaves};
use super::file::{Content, LeafQuery, Phase};
use super::files::FileTable;
use crate::digest::{LEAF_BYTES_MIN, Leaf};

/// Smallest file of which leaves are reused, in bytes: a smaller one is sent in little more time than the values.
const REUSE_BYTES_MIN: u64 = 4 * LEAF_BYTES_MIN;
/// Files of which leaves are reused at a time: each has files open, and values in memory.
const FILES_MAX: usize = 16;
/// Leaves that are tried first, at least, spread over the file.
const SAMPLE_LEAVES: usize = 16;
/// Leaves in one command.
const COMMAND_LEAVES: usize = 64;

/// Whether leaves of the file in place can be reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reuse {
    /// No such file, or an unusable one.
    #[default]
    No,
    /// The file in place has this many bytes; their overlap with the new version isn't known.
    Possible(u64),
    /// The overlap is part of the content. The file in place had this many bytes.
    Done(u64),
}

/// Files of which leaves are going to be reused.
#[derive(Debug, Default)]
pub(super) struct ReuseQueue {
    waiting: VecDeque<FileKey>,
    /// Files whose values were requested, until they are done.
    active: Vec<FileKey>,
}

impl ReuseQueue {
    /// Begins again: what was asked for doesn't come.
    pub(super) fn interrupted(&mut self) {
        self.waiting.clear();
    }

    /// The next file, if there is space for one.
    fn next(&mut self, files: &FileTable) -> Option<FileKey> {
        self.active.retain(|key| {
            let task = files.get(*key);
            task.is_some_and(|task| task.content.is_some() || matches!(task.phase, Phase::Leaves(_)))
        });
        let key = if self.active.len() < FILES_MAX { self.waiting.pop_front()? } else { return None };
        self.active.push(key);
        Some(key)
    }
}

impl Transfer {
    /// A file of this many bytes is in place that may have leaves in common with what is to come. Fetches it, or first the values of its leaves.
    pub(super) fn fetch_beside(&mut self, key: FileKey, older_bytes: u64) {
        let is_usual = self.options.verify && !self.options.values_first();
        if let Some(task) = self.files.get_mut(key).filter(|_| is_usual) {
            let is_same = task.must_be.is_some() && task.must_be == task.local_digest;
            if !is_same && task.version.size >= REUSE_BYTES_MIN && older_bytes >= LEAF_BYTES_MIN {
                task.reuse = Reuse::Possible(older_bytes);
            }
        }
        if !self.ask_for_values_to_reuse(key) {
            self.fetch_again(key);
        }
    }

    /// Requests the values of the leaves, if leaves may be reused and the digest is known.
    pub(super) fn ask_for_values_to_reuse(&mut self, key: FileKey) -> bool {
        let Some(task) = self.files.get_mut(key) else { return false };
        if !matches!(task.reuse, Reuse::Possible(_)) || task.digest.is_none() || task.leaves.count() == 1 {
            return false;
        }
        task.phase = Phase::Leaves(LeafQuery::default());
        self.reuse_queue.waiting.push_back(key);
        true
    }

    /// Has values requested as long as there is space.
    pub(super) fn pump_reuse(&mut self) {
        while let Some(key) = self.reuse_queue.next(&self.files) {
            self.leaves_wanted.push(key);
        }
    }

    /// The connection is lost: requests the values again. `false` if they weren't asked for to reuse leaves.
    pub(super) fn reuse_interrupted(&mut self, key: FileKey) -> bool {
        let is_asked = self.ask_for_values_to_reuse(key);
        if is_asked {
            self.reuse_queue.active.retain(|active| *active != key);
        }
        is_asked
    }

    /// The server doesn't send the values: fetches all. `false` if they weren't asked for to reuse leaves.
    pub(super) fn reuse_nothing(&mut self, key: FileKey) -> bool {
        let Some(task) = self.files.get_mut(key).filter(|task| matches!(task.reuse, Reuse::Possible(_))) else {
            return false;
        };
        task.reuse = Reuse::No;
        self.fetch_again(key);
        true
    }

    /// Has a sample of the leaves copied, now that their values are known.
    pub(super) fn reuse(&mut self, key: FileKey, mut values: Vec<Leaf>) {
        let content = Content::reusing(self.files.new_content());
        let Some(task) = self.files.get_mut(key) else { return };
        let Reuse::Possible(older_bytes) = task.reuse else { return self.fetch_again(key) };
        if older_bytes < task.version.size {
            values.truncate(usize::try_from(task.leaves.index_at(older_bytes)).unwrap_or(usize::MAX));
        }
        if values.is_empty() {
            task.reuse = Reuse::No;
            return self.fetch_again(key);
        }
        task.content = Some(content);
        task.reuse = Reuse::Done(older_bytes);
        let sample = (0..).zip(&values).step_by(stride(values.len())).map(|(leaf, value)| (leaf, *value)).collect();
        task.phase = Phase::Reusing(values);
        self.command_reuse(key, sample);
    }

    fn command_reuse(&mut self, key: FileKey, leaves: Vec<(u64, Leaf)>) {
        let Some(content) = self.begin(key) else { return };
        for leaves in leaves.chunks(COMMAND_LEAVES) {
            self.count_pending(key);
            self.command(DiskCommand::Reuse { content, leaves: leaves.to_vec() });
        }
    }

    /// Takes what the disk copied. Then the rest is copied, or fetched.
    pub(super) fn reused(
        &mut self,
        content: ContentKey,
        result: Result<WrittenLeaves, DiskError>,
    ) -> Result<(), Error> {
        let Some((key, leaves)) = self.leaves_written(content, result)? else { return Ok(()) };
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        let (Some(content), Phase::Reusing(values)) = (&mut task.content, &mut task.phase) else { return Ok(()) };
        content.pending = content.pending.saturating_sub(1);
        self.totals.unfinished_bytes += content.take_leaves(task.leaves, leaves);
        if content.pending > 0 {
            return Ok(());
        }
        if content.written.total() == 0 {
            task.reuse = Reuse::No;
            self.abandon(key);
            self.fetch_again(key);
            return Ok(());
        }
        let values = std::mem::take(values);
        let stride = stride(values.len());
        let rest = (0..).zip(values).enumerate().filter(|(at, _)| at % stride != 0).map(|(_, leaf)| leaf);
        let rest: Vec<_> = rest.collect();
        if rest.is_empty() {
            task.phase = Phase::Arrived;
            return self.try_finish(key);
        }
        self.command_reuse(key, rest);
        Ok(())
    }
}

/// The distance of leaves in the sample.
fn stride(leaves: usize) -> usize {
    (leaves / SAMPLE_LEAVES).max(1)
}
