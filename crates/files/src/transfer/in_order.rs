//! A single file for an output that can't take anything back: delivered from its beginning to its end. If it is verified, its digest and
//! the values of its leaves are fetched first, so that each leaf can be checked before it is written. So are those of files for an object
//! store, which come as others do.
//!
//! Called by `fetching` (what to fetch first), `checking` (what was written) and `answers` (the file changed).

use super::Transfer;
use super::command::FileKey;
use super::file::{Content, LeafQuery, Phase};
use super::requests::RequestState;
use crate::digest::Leaf;
use crate::error::Error;
use crate::protocol::ErrorCode;
use crate::protocol::control::Request;

/// Largest leaf that is held in memory until it is checked: that of a file of 16 TiB.
const LEAF_HELD_BYTES_MAX: u64 = 16 << 20;

impl Transfer {
    /// Requests the leaf values, once the metadata is here.
    pub(super) fn ask_for_values(&mut self, key: FileKey) -> Result<(), Error> {
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        let Some(digest) = task.digest else {
            if self.options.objects {
                // It is of another version than the one whose values were known.
                return self.restart(key, "the file changed", true);
            }
            return Error::protocol("no digest, although it was requested");
        };
        if task.leaves.leaf_bytes().min(task.version.size) > LEAF_HELD_BYTES_MAX {
            let message =
                "the file is too large to be verified in order: get it to a path, or without verification".to_owned();
            return self.file_failed(key, Error::Unmet { code: ErrorCode::Unsupported, message });
        }
        if task.leaves.count() == 1 {
            self.values_known(key, &[digest.0]);
        } else {
            task.phase = Phase::Leaves(LeafQuery::default());
            self.leaves_wanted.push(key);
        }
        Ok(())
    }

    /// Queues the file to fetch its content, as the values of all leaves are known.
    pub(super) fn values_known(&mut self, key: FileKey, values: &[Leaf]) {
        let content = Content::new(self.files.new_content());
        if let Some(task) = self.files.get_mut(key) {
            task.values = Some(values.into());
            task.content = Some(content);
        }
        self.fetch_again(key);
    }

    /// Takes leaves that an object store was given, or not, if they are wrong: then they are fetched once more when all else has come.
    pub(super) fn leaves_put(&mut self, key: FileKey, leaves: &[(u64, Leaf)]) -> Result<(), Error> {
        for (leaf, value) in leaves {
            let Some(task) = self.files.get_mut(key) else { return Ok(()) };
            let Some(values) = &task.values else { return Ok(()) };
            if usize::try_from(*leaf).ok().and_then(|leaf| values.get(leaf)) != Some(value) {
                let forgotten = task.content.as_mut().map_or(0, |content| content.forget_leaf(task.leaves, *leaf));
                self.totals.unfinished_bytes -= forgotten;
                self.count_mismatch(key)?;
            }
        }
        Ok(())
    }

    /// Takes leaves that were completed, of which only the last can be wrong.
    pub(super) fn leaves_delivered(&mut self, key: FileKey, leaves: &[(u64, Leaf)]) -> Result<(), Error> {
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        let Some(values) = &task.values else { return Ok(()) };
        for (leaf, value) in leaves {
            if usize::try_from(*leaf).ok().and_then(|leaf| values.get(leaf)) != Some(value) {
                let forgotten = task.content.as_mut().map_or(0, |content| content.forget_leaf(task.leaves, *leaf));
                self.totals.unfinished_bytes -= forgotten;
                return self.fetch_rest(key);
            }
            (task.delivered, task.mismatches) = (true, 0);
        }
        Ok(())
    }

    /// Fetches all from the first wrong byte on: what is still to come of the current fetch would follow a gap.
    pub(super) fn fetch_rest(&mut self, key: FileKey) -> Result<(), Error> {
        self.count_mismatch(key)?;
        self.cancel_fetch(key);
        self.fetch_again(key);
        Ok(())
    }

    /// Fails if some of an older version of the file was written.
    pub(super) fn check_not_delivered(&mut self, key: FileKey, reason: &str) -> Result<(), Error> {
        self.cancel_fetch(key);
        let is_delivered = self
            .files
            .get(key)
            .is_some_and(|task| task.delivered || task.content.as_ref().is_some_and(|content| content.pending > 0));
        if !is_delivered {
            return Ok(());
        }
        let message = format!("{reason}, after part of it was written");
        Err(Error::Unmet { code: ErrorCode::Changed, message })
    }

    /// Cancels the fetch of a file. What is still to come of it is dropped.
    fn cancel_fetch(&mut self, key: FileKey) {
        let Some(task) = self.files.get_mut(key) else { return };
        let (id, n) = std::mem::take(&mut task.last_request);
        self.confirmations.finished(id, None);
        self.drop_piece_of(key);
        if self.requests.asked(id, n).is_ok_and(|asked| asked.state != RequestState::Over) {
            self.send(Request::Cancel { id });
        }
    }

    /// Closes a fetch that the server confirms to be cancelled.
    pub(super) fn request_cancelled(&mut self, id: u32) {
        let is_awaited = |file: FileKey| self.files.get(file).is_some_and(|task| task.last_request.0 == id);
        if self.requests.fetch(id).is_some_and(|fetch| !fetch.files.iter().any(|asked| is_awaited(asked.file))) {
            self.requests.close_fetch(id);
        }
    }
}
