//! Fetches: files asked for in batches, and again if what arrived is of no use.

use super::command::{DiskCommand, FileKey};
use super::file::{FileTask, LeafQuery, Phase};
use super::outcome::gave_up;
use super::requests::{Fetch, RequestState, RequestedFile};
use super::reuse::Reuse;
use crate::error::Error;
use std::time::Instant;

use super::{RETRIES_MAX, Transfer};
use crate::digest::LEAF_BYTES_MIN;
use crate::limits::FILE_RANGES_MAX;
use crate::protocol::ErrorCode;
use crate::protocol::control::{DigestWish, FetchFile, FetchRequest, Request, Unless};

/// Largest small file, in bytes: the server hashes it before it sends it, so it arrives with its digest and is
/// checked, written and installed at once. It has one leaf, of which nothing is kept if it is cut short.
pub(super) const SMALL_FILE_BYTES: u64 = LEAF_BYTES_MIN;
/// Large files in one fetch.
const LARGE_BATCH_MAX: usize = 16;
/// Bytes of a fetch's JSON, far below [`crate::limits::CONTROL_BYTES_MAX`].
const BATCH_JSON_BYTES: usize = 256 << 10;

impl Transfer {
    /// Fetches files that are waiting.
    pub(super) fn pump_fetches(&mut self) {
        if !self.listing.is_placed() || self.wait_for_space() {
            return;
        }
        while self.requests.fetch_count() < self.concurrency.fetches {
            let id = self.requests.next_id();
            let (files, asked, digest) = self.batch(id);
            if files.is_empty() {
                break;
            }
            self.requests.open_fetch(id, asked);
            let fetch = FetchRequest {
                id,
                chunk_bytes: self.options.chunk_bytes,
                compress: self.options.compress,
                digest,
                credit_bytes: self.credit.take(self.now).unwrap_or(0),
                files,
            };
            self.send(Request::Fetch(fetch));
        }
    }

    /// Once the listing is complete, asks the disk for its free space. Whether its answer is awaited: nothing is
    /// fetched until it comes.
    fn wait_for_space(&mut self) -> bool {
        if self.space.is_none() && self.listing.is_complete() && !self.tree.is_inspecting() {
            let needed = self.files.values().fold(0, |sum: u64, file| sum.saturating_add(file.space_needed()));
            self.space = Some(Space { needed, known: false });
            self.command(DiskCommand::CheckSpace { bytes: needed });
        }
        self.space.as_ref().is_some_and(|space| !space.known)
    }

    /// Takes the next waiting files of one kind.
    fn batch(&mut self, id: u32) -> (Vec<FetchFile>, Vec<RequestedFile>, DigestWish) {
        let values_first = self.options.values_first();
        let mut digest = DigestWish::None;
        let (mut files, mut asked, mut kind, mut json_bytes) = (Vec::new(), Vec::new(), None, 0);
        while let Some(key) = self.waiting.front().copied() {
            let Some(task) = self.files.get_mut(key).filter(|task| matches!(task.phase, Phase::Waiting)) else {
                self.waiting.pop_front();
                continue;
            };
            let is_small = task.version.size <= SMALL_FILE_BYTES;
            let count_max = if is_small { self.concurrency.files } else { self.concurrency.files.min(LARGE_BATCH_MAX) };
            let full = files.len() >= count_max || json_bytes >= BATCH_JSON_BYTES;
            let metadata_only = (values_first && task.values.is_none()) || matches!(task.reuse, Reuse::Possible(_));
            let wish = match self.options.verify {
                false => DigestWish::None,
                // Known already: the server needn't hash it.
                true if task.must_be.is_some() => DigestWish::None,
                true if values_first && !metadata_only => DigestWish::None,
                true if matches!(task.reuse, Reuse::Done(_)) && task.digest.is_some() => DigestWish::None,
                true if is_small || metadata_only => DigestWish::Now,
                true => DigestWish::Later,
            };
            if !files.is_empty() && (full || kind != Some((is_small, wish))) {
                break;
            }
            self.waiting.pop_front();
            (kind, digest) = (Some((is_small, wish)), wish);
            let ranges = if metadata_only { Some(Vec::new()) } else { task.missing(FILE_RANGES_MAX) };
            // Base64 makes a path a third longer. Escapes in JSON make it up to six times as long, for which the server's limit has space.
            json_bytes += 64 + task.remote.as_bytes().len() * 2 + ranges.as_ref().map_or(0, |ranges| ranges.len() * 24);
            let unless = task.local_digest.map(|digest| Unless::Digest { digest });
            task.phase = Phase::Requested;
            self.confirmations.finished(task.last_request.0, None);
            self.confirmations.requested(id);
            task.last_request = (id, u32::try_from(files.len()).unwrap_or(u32::MAX));
            task.digest_pending = true;
            files.push(FetchFile { path: (&task.remote).into(), ranges: ranges.clone(), unless });
            asked.push(RequestedFile::new(key, ranges));
        }
        (files, asked, digest)
    }

    /// Fetches a file from its beginning. It fails after [`RETRIES_MAX`] times.
    pub(super) fn restart(&mut self, key: FileKey, reason: &str, is_changed: bool) -> Result<(), Error> {
        if self.options.in_order {
            self.check_not_delivered(key, reason)?;
        }
        self.abandon(key);
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        task.restarts += 1;
        (task.digest, task.values) = (task.must_be, None);
        if let Reuse::Done(bytes) = task.reuse {
            task.reuse = Reuse::Possible(bytes);
        }
        if task.restarts > RETRIES_MAX {
            let code = if is_changed { ErrorCode::Changed } else { ErrorCode::Io };
            return self.file_failed(key, Error::Unmet { code, message: gave_up(reason, is_changed) });
        }
        let warning = format!("{}: {reason}; fetching it again", task.remote);
        self.warn(warning);
        self.fetch_again(key);
        Ok(())
    }

    /// Queues a file to fetch what is missing of it.
    pub(super) fn fetch_again(&mut self, key: FileKey) {
        if let Some(task) = self.files.get_mut(key) {
            task.phase = Phase::Waiting;
            self.waiting.push_back(key);
        }
    }

    /// Removes what arrived of a file.
    pub(super) fn abandon(&mut self, key: FileKey) {
        if let Some(content) = self.files.take_content(key) {
            self.totals.unfinished_bytes -= content.written.total();
            if content.begun {
                self.command(DiskCommand::Abandon { content: content.key });
            }
        }
    }

    /// Fails a file; the others go on.
    pub(super) fn file_failed(&mut self, key: FileKey, error: Error) -> Result<(), Error> {
        if self.options.in_order {
            return Err(error);
        }
        if let Some(task) = self.files.remove(key) {
            self.confirmations.finished(task.last_request.0, None);
            if let Some(content) = task.content {
                self.totals.unfinished_bytes -= content.written.total();
                // Space that a part of it takes may be enough for others.
                let is_full = matches!(error, Error::DiskFull(_));
                let (content, begun) = (content.key, content.begun);
                match begun {
                    true if is_full => self.command(DiskCommand::Abandon { content }),
                    true => self.command(DiskCommand::Leave { content }),
                    false => {}
                }
            }
            self.first_name_failed(key, task.hard_link);
            self.totals.fail_by(task.remote.to_string(), &error);
        }
        Ok(())
    }

    /// The connection is lost: what was asked for doesn't come.
    pub(super) fn file_interrupted(&mut self, key: FileKey) -> Result<(), Error> {
        let is_asked = self.files.get(key).is_some_and(|task| matches!(task.phase, Phase::Leaves(_)));
        if is_asked && self.reuse_interrupted(key) {
            return Ok(());
        }
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        task.digest_pending = false;
        match &mut task.phase {
            Phase::Requested if task.content.is_none() => self.fetch_again(key),
            Phase::Requested | Phase::Arrived => {
                task.phase = Phase::Arrived;
                self.try_finish(key)?;
            }
            Phase::Leaves(query) => {
                *query = LeafQuery::default();
                self.leaves_wanted.push(key);
            }
            Phase::Linking
            | Phase::Inspecting
            | Phase::Waiting
            | Phase::Reusing(_)
            | Phase::Installing
            | Phase::Touching => {}
        }
        Ok(())
    }

    /// Bytes that the server may be hashing while it sends nothing: files all of whose content has arrived, and files
    /// whose leaves were requested. 0 if anything else is to come, from it or from the disk.
    pub(super) fn bytes_hashed(&self) -> u64 {
        if self.piece.is_some() {
            return 0;
        }
        let size = |key: FileKey| self.files.get(key).map(|file| file.version.size);
        let fetched = self.requests.fetches().map(|(id, fetch)| size(self.hashed_in(id, fetch)?));
        let leaves = self.requests.leaves().map(size);
        let bytes = fetched.chain(leaves).try_fold(0, |sum: u64, size| Some(sum.saturating_add(size?))).unwrap_or(0);
        let is_at_the_disk = |file: &FileTask| match file.phase {
            Phase::Inspecting | Phase::Installing | Phase::Touching => true,
            _ => file.content.as_ref().is_some_and(|content| content.pending > 0),
        };
        if bytes > 0 && self.files.values().any(is_at_the_disk) { 0 } else { bytes }
    }

    /// The file that a fetch waits for if the server only has to hash it. Files behind it come later.
    fn hashed_in(&self, id: u32, fetch: &Fetch) -> Option<FileKey> {
        let open = fetch.files.iter().position(|asked| asked.state != RequestState::Over);
        let last = open.unwrap_or(fetch.files.len()).checked_sub(1).and_then(|last| fetch.files.get(last));
        let is_hashed = |asked: &&RequestedFile| {
            let Some(task) = self.files.get(asked.file).filter(|task| task.last_request.0 == id) else { return false };
            match task.phase {
                // Before it can say whether this is the existing content, or what the digest is.
                Phase::Requested if asked.state == RequestState::Awaited => {
                    task.local_digest.is_some() || asked.ranges.as_ref().is_some_and(Vec::is_empty)
                }
                Phase::Requested => asked.is_complete() && !asked.digest_sent,
                // The digest may follow the end of the content.
                Phase::Arrived => !asked.digest_sent,
                _ => false,
            }
        };
        let open = open.and_then(|open| fetch.files.get(open));
        let hashed = last.filter(is_hashed).or(open.filter(is_hashed))?;
        self.options.verify.then_some(hashed.file)
    }

    /// Fetches files again that the server was too busy for: `false` if it is too early.
    pub(super) fn retry_files(&mut self, now: Instant) -> bool {
        let Some(due) = self.retry.take_due(now) else { return false };
        for key in due {
            match self.files.get_mut(key).map(|task| &mut task.phase) {
                Some(Phase::Waiting) => self.waiting.push_back(key),
                Some(Phase::Leaves(query)) => {
                    *query = LeafQuery::default();
                    self.leaves_wanted.push(key);
                }
                _ => {}
            }
        }
        true
    }
}

/// Whether all fits on the disk.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) needed: u64,
    pub(super) known: bool,
}
