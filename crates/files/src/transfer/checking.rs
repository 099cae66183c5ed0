//! Reports of the disk, and what follows from them: content checked against its digest, bad leaves found, files
//! installed.

use crate::error::Error;
use bytes::Bytes;

use super::command::{ContentKey, DiskCommand, DiskError, DiskReport, FileKey, Found, SmallOutcome, WrittenLeaves};
use super::file::{Content, LeafQuery, Phase};
use super::reuse::Reuse;
use super::{RETRIES_MAX, Transfer};
use crate::digest::{Leaf, merge_leaves};
use crate::limits::{LEAF_VALUE_BYTES, LEAVES_PAGE_MAX};
use crate::protocol::control::{ConfirmedFile, LeavesReply, LeavesRequest, Request};

impl Transfer {
    pub(super) fn disk_report(&mut self, report: DiskReport) -> Result<(), Error> {
        match report {
            DiskReport::Inspected { file, found } => self.inspected(file, found),
            DiskReport::Space { free } => self.space_known(free),
            DiskReport::Entry { local, result } => {
                let is_ok = result.is_ok();
                if let Err(error) = result {
                    let error = self.failure_of(error)?;
                    self.totals.fail_by(self.listing.remote_path(&local), &error);
                }
                self.tree.done(&local, is_ok);
                Ok(())
            }
            DiskReport::Small { file, credit, result } => {
                self.credit.release(credit, self.now);
                match result {
                    Ok(SmallOutcome::Installed) => self.installed(file),
                    Ok(SmallOutcome::Mismatch) => return self.mismatch(file),
                    Err(error) => {
                        let error = self.failure_of(error)?;
                        return self.file_failed(file, error);
                    }
                }
                Ok(())
            }
            DiskReport::Written { content, offset, length, credit, result } => {
                self.credit.release(credit, self.now);
                self.written(content, offset, length, result)
            }
            // Of files that are pushed to a server.
            DiskReport::Checked { .. } | DiskReport::Put { .. } => Ok(()),
            DiskReport::Reused { content, result } => self.reused(content, result),
            DiskReport::Installed { file, result: Ok(()) } => {
                self.installed(file);
                Ok(())
            }
            DiskReport::Installed { file, result: Err(error) } => {
                let error = self.failure_of(error)?;
                if self.link_failed(file, &error) { Ok(()) } else { self.file_failed(file, error) }
            }
        }
    }

    fn space_known(&mut self, free: Option<u64>) -> Result<(), Error> {
        if let Some(space) = &mut self.space {
            space.known = true;
            if let Some(free) = free.filter(|free| *free < space.needed) {
                let needed = space.needed;
                if self.is_fed {
                    return self.leave_out_what_does_not_fit(free);
                }
                return Err(Error::DiskFull(format!("{needed} bytes are needed, {free} are free")));
            }
        }
        Ok(())
    }

    /// Fails the largest files, so that the others fit.
    fn leave_out_what_does_not_fit(&mut self, free: u64) -> Result<(), Error> {
        let waiting = self.files.keys().into_iter().filter_map(|key| Some((self.files.get(key)?.space_needed(), key)));
        let mut by_size: Vec<_> = waiting.collect();
        by_size.sort_unstable_by_key(|(needed, _)| *needed);
        let mut left = free;
        for (needed, key) in by_size {
            match left.checked_sub(needed) {
                Some(rest) => left = rest,
                None => {
                    let message = format!("{needed} bytes are needed, {free} are free");
                    self.file_failed(key, Error::DiskFull(message))?;
                }
            }
        }
        Ok(())
    }

    /// The failure of a file, directory or link. A full disk ends a transfer, as no other file would fare better; but where entries are fed,
    /// smaller ones may fit, and what makes space comes next.
    pub(super) fn failure_of(&self, error: DiskError) -> Result<Error, Error> {
        match (error.full, self.is_fed) {
            (true, true) => Ok(Error::DiskFull(error.message)),
            (true, false) => Err(Error::DiskFull(error.message)),
            (false, _) => Ok(Error::unmet(error.message)),
        }
    }

    fn inspected(&mut self, key: FileKey, found: Result<Found, DiskError>) -> Result<(), Error> {
        let fresh = self.files.new_content();
        let Some(task) = self.files.get_mut(key).filter(|task| matches!(task.phase, Phase::Inspecting)) else {
            return Ok(());
        };
        self.tree.inspected();
        match found {
            Err(error) => {
                let error = self.failure_of(error)?;
                return self.file_failed(key, error);
            }
            Ok(Found::Nothing) => self.fetch_again(key),
            Ok(Found::Same { touch: true }) => self.touch(key),
            Ok(Found::Same { touch: false }) => {
                task.phase = Phase::Touching;
                self.installed(key);
            }
            Ok(Found::SameSize(digest)) => {
                task.local_digest = Some(digest);
                let bytes = task.version.size;
                self.fetch_beside(key, bytes);
            }
            Ok(Found::Older { bytes }) => self.fetch_beside(key, bytes),
            Ok(Found::Partial(partial)) => {
                if partial.leaves.file_bytes() == task.version.size {
                    let content = Content::resume(fresh, &partial);
                    task.leaves = partial.leaves;
                    task.digest = task.must_be.or(partial.digest);
                    self.totals.unfinished_bytes += content.written.total();
                    task.content = Some(content);
                }
                self.fetch_again(key);
            }
        }
        Ok(())
    }

    /// Sets the mode and time of an existing file, whose content is right.
    pub(super) fn touch(&mut self, key: FileKey) {
        if let Some(task) = self.files.get_mut(key) {
            task.phase = Phase::Touching;
            let (local, version) = (task.local.clone(), task.version);
            self.command(DiskCommand::Touch { file: key, local, version });
        }
    }

    /// Leaves that the disk has written of a content, and its file. `None`: it was abandoned, or has failed, so only its credit counts.
    pub(super) fn leaves_written(
        &mut self,
        content: ContentKey,
        result: Result<WrittenLeaves, DiskError>,
    ) -> Result<Option<(FileKey, WrittenLeaves)>, Error> {
        let result = match result {
            Ok(leaves) => Ok(leaves),
            Err(error) => Err(self.failure_of(error)?),
        };
        let Some(key) = self.files.of_content(content) else { return Ok(None) };
        match result {
            Ok(leaves) => Ok(Some((key, leaves))),
            // At once, not when the rest has come, of which there may be much.
            Err(error) => self.file_failed(key, error).map(|()| None),
        }
    }

    fn written(
        &mut self,
        content: ContentKey,
        offset: u64,
        length: u64,
        result: Result<WrittenLeaves, DiskError>,
    ) -> Result<(), Error> {
        let Some((key, leaves)) = self.leaves_written(content, result)? else { return Ok(()) };
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        let Some(content) = &mut task.content else { return Ok(()) };
        content.pending = content.pending.saturating_sub(1);
        self.totals.unfinished_bytes += content.written.insert(offset, length);
        if self.options.in_order {
            task.delivered |= task.values.is_none();
            self.leaves_delivered(key, &leaves)?;
        } else if self.options.objects {
            self.leaves_put(key, &leaves)?;
        } else {
            content.values.extend(leaves);
        }
        self.try_finish(key)
    }

    /// Installs a file of which all has arrived, or asks for what is missing.
    pub(super) fn try_finish(&mut self, key: FileKey) -> Result<(), Error> {
        let Some(task) = self.files.get_mut(key).filter(|task| matches!(task.phase, Phase::Arrived)) else {
            return Ok(());
        };
        let Some(content) = &mut task.content else {
            if self.options.values_first() {
                return self.ask_for_values(key);
            }
            if !self.ask_for_values_to_reuse(key) {
                self.fetch_again(key);
            }
            return Ok(());
        };
        if content.pending > 0 {
            return Ok(());
        }
        if !content.written.covers(task.version.size) {
            self.fetch_again(key);
            return Ok(());
        }
        if !self.options.verify || task.values.is_some() {
            self.install(key);
            return Ok(());
        }
        let Some(digest) = task.digest else {
            return if task.digest_pending { Ok(()) } else { self.ask_for_digest(key) };
        };
        let values: Vec<Leaf> = content.values.values().copied().collect();
        if values.len() as u64 == task.leaves.count() && merge_leaves(&values) == Ok(digest) {
            self.install(key);
            return Ok(());
        }
        self.mismatch(key)
    }

    /// Fetches the digest of a file whose content is complete.
    fn ask_for_digest(&mut self, key: FileKey) -> Result<(), Error> {
        if self.connected
            && let Some(task) = self.files.get_mut(key)
        {
            task.restarts += 1;
            if task.restarts > RETRIES_MAX {
                let reason = "the server doesn't send its digest".to_owned();
                return self.file_failed(key, Error::unmet(reason));
            }
        }
        self.fetch_again(key);
        Ok(())
    }

    /// Finds out which leaves of a file are wrong, after its content didn't match its digest.
    fn mismatch(&mut self, key: FileKey) -> Result<(), Error> {
        let Some(()) = self.count_mismatch(key)? else { return Ok(()) };
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        match &mut task.content {
            Some(content) if task.leaves.count() > 1 => {
                let incomplete = (0..task.leaves.count()).filter(|leaf| !content.values.contains_key(leaf));
                let incomplete: Vec<u64> = incomplete.collect();
                if incomplete.is_empty() {
                    task.phase = Phase::Leaves(LeafQuery::default());
                    self.leaves_wanted.push(key);
                    let digest = task.digest;
                    if let (Some(content), Some(digest)) = (self.begin(key), digest) {
                        // A later transfer without verification then knows that this content is wrong.
                        self.command(DiskCommand::NoteDigest { content, digest });
                    }
                } else {
                    // Written, but never hashed as a whole: fetched again.
                    for leaf in incomplete {
                        self.totals.unfinished_bytes -= content.forget_leaf(task.leaves, leaf);
                    }
                    self.fetch_again(key);
                }
            }
            Some(content) => {
                let whole = content.values.keys().copied().collect();
                self.forget_leaves(key, whole);
                if let Some(content) = self.files.get_mut(key).and_then(|task| task.content.as_mut()) {
                    self.totals.unfinished_bytes -= content.forget_all();
                }
                self.fetch_again(key);
            }
            None => self.fetch_again(key),
        }
        Ok(())
    }

    /// Counts that content of a file was wrong: `None` if that made it fail.
    pub(super) fn count_mismatch(&mut self, key: FileKey) -> Result<Option<()>, Error> {
        let Some(task) = self.files.get_mut(key) else { return Ok(None) };
        task.mismatches += 1;
        if task.mismatches > RETRIES_MAX {
            self.abandon(key);
            let reason = format!("its content does not match its digest, {} times", RETRIES_MAX + 1);
            return self.file_failed(key, Error::unmet(reason)).map(|()| None);
        }
        let warning = format!("{}: its content does not match its digest; fetching the wrong part again", task.remote);
        self.warn(warning);
        Ok(Some(()))
    }

    /// Requests leaf values.
    pub(super) fn pump_leaves(&mut self) {
        self.pump_reuse();
        for key in std::mem::take(&mut self.leaves_wanted) {
            let Some(task) = self.files.get_mut(key) else { continue };
            let (Phase::Leaves(query), Some(digest)) = (&mut task.phase, task.digest) else { continue };
            let from = query.values.len() as u64;
            let count = (task.leaves.count() - from).min(u64::from(LEAVES_PAGE_MAX));
            let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            let path = (&task.remote).into();
            let id = self.requests.open_leaves(key);
            self.send(Request::Leaves(LeavesRequest { id, path, digest, from: small(from), count: small(count) }));
        }
    }

    /// Takes a page of leaf values.
    pub(super) fn leaves_came(&mut self, reply: LeavesReply, attachment: Option<Bytes>) -> Result<(), Error> {
        let Some(key) = self.requests.close_leaves(reply.id) else {
            return Error::protocol("leaf values that weren't requested");
        };
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        let Phase::Leaves(query) = &mut task.phase else { return Ok(()) };
        let (page, rest) = attachment.as_deref().unwrap_or_default().as_chunks::<LEAF_VALUE_BYTES>();
        let fits = reply.count > 0
            && page.len() as u64 == u64::from(reply.count)
            && rest.is_empty()
            && query.values.len() as u64 == u64::from(reply.from)
            && u64::from(reply.total) == task.leaves.count();
        if !fits {
            return Error::protocol("leaf values other than those requested");
        }
        query.values.extend_from_slice(page);
        if (query.values.len() as u64) < task.leaves.count() {
            self.leaves_wanted.push(key);
            return Ok(());
        }
        let values = std::mem::take(&mut query.values);
        if task.digest.is_none() || merge_leaves(&values).ok() != task.digest {
            task.reuse = Reuse::No;
            return self.restart(key, "the server's leaf values don't match its digest", false);
        }
        if self.options.values_first() {
            self.values_known(key, &values);
            return Ok(());
        }
        let Some(content) = &task.content else {
            self.reuse(key, values);
            return Ok(());
        };
        let wrong = |&(leaf, value): &(u64, &Leaf)| content.values.get(&leaf) != Some(value);
        let bad = (0..).zip(&values).filter(wrong).map(|(leaf, _)| leaf).collect();
        self.forget_leaves(key, bad);
        self.fetch_again(key);
        Ok(())
    }

    /// Forgets leaves, in ascending order, so that they are fetched again. The partial file's state forgets them now:
    /// a transfer that resumes it may not verify.
    fn forget_leaves(&mut self, key: FileKey, bad: Vec<u64>) {
        let Some(content) = self.begin(key).filter(|_| !bad.is_empty()) else { return };
        let Some(task) = self.files.get_mut(key) else { return };
        for leaf in &bad {
            let forgotten = task.content.as_mut().map_or(0, |content| content.forget_leaf(task.leaves, *leaf));
            self.totals.unfinished_bytes -= forgotten;
        }
        self.command(DiskCommand::ForgetLeaves { content, leaves: bad });
    }

    fn install(&mut self, key: FileKey) {
        let Some(content) = self.begin(key) else { return };
        if let Some(task) = self.files.get_mut(key) {
            task.phase = Phase::Installing;
        }
        self.command(DiskCommand::Install { file: key, content });
    }

    /// A file is installed.
    fn installed(&mut self, key: FileKey) {
        let Some(task) = self.files.remove(key) else { return };
        self.totals.files += 1;
        if matches!(task.phase, Phase::Linking) {
            return self.linked(task);
        }
        let is_skipped = matches!(task.phase, Phase::Touching);
        self.totals.skipped += u64::from(is_skipped);
        self.totals.bytes = self.totals.bytes.saturating_add(task.version.size);
        let digest = task.digest.or(task.local_digest).filter(|_| self.options.verify);
        self.first_name_installed(key, task.hard_link, is_skipped, digest.is_some());
        if let Some(content) = task.content {
            self.totals.unfinished_bytes -= content.written.total();
            let there = if content.reuses { &mut self.totals.reused_bytes } else { &mut self.totals.resumed_bytes };
            *there += content.resumed.total();
        }
        self.totals.verified += u64::from(digest.is_some());
        let (id, n) = task.last_request;
        if id != 0 {
            let file = ConfirmedFile { n, path: (&task.remote).into(), digest, durable: self.options.durable };
            self.confirmations.finished(id, Some(file));
        }
    }
}
