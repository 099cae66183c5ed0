//! Control messages: what the server says about the files that it was asked for.

use crate::error::Error;
use bytes::Bytes;

use super::Transfer;
use super::command::{DiskCommand, FileKey, SmallFile, Version};
use super::file::Phase;
use super::requests::RequestState;
use crate::digest::{Digest, LeafSize};
use crate::protocol::ErrorCode;
use crate::protocol::control::{DigestReply, ErrorReply, FileAnswer, FileMetadata, Reply};

impl Transfer {
    /// Takes a control message.
    pub(super) fn reply(&mut self, reply: Reply, attachment: Option<Bytes>) -> Result<(), Error> {
        match reply {
            Reply::List(page) => self.list_page(page),
            Reply::Files(files) => files.files.into_iter().try_for_each(|answer| self.file_reply(files.id, answer)),
            Reply::Digest(digest) => self.digest_came(digest),
            Reply::End { id, n } => self.asked_over(id, n),
            Reply::Void(void) => {
                let file = self.requests.close_file(void.id, void.n)?;
                let reason = format!("the server says: {} ({})", void.message, void.code);
                self.restart(file, &reason, void.code == ErrorCode::Changed)
            }
            Reply::Done { id } => self.fetch_done(id),
            Reply::Leaves(leaves) => self.leaves_came(leaves, attachment),
            Reply::Error(error) => self.request_failed(error),
            Reply::Cancelled(cancelled) => {
                self.request_cancelled(cancelled.id);
                Ok(())
            }
            Reply::Slow(slow) => {
                super::tcp::log_buffer(slow.cause, false, self.credit.round_trip_time());
                Ok(())
            }
            Reply::Hello(_) | Reply::Following(_) | Reply::Changes(_) | Reply::Unknown => Ok(()),
            Reply::Holders(_) | Reply::Published(_) => Ok(()),
            Reply::Push(_) | Reply::Credit(_) | Reply::Pushed(_) => Ok(()),
        }
    }

    fn file_reply(&mut self, id: u32, answer: FileAnswer) -> Result<(), Error> {
        match answer {
            FileAnswer::Metadata(metadata) => self.metadata_came(id, &metadata),
            FileAnswer::Same { n } => {
                let key = self.requests.close_file(id, n)?;
                let Some(task) = self.files.get_mut(key) else { return Ok(()) };
                if task.local_digest.is_none() {
                    return Error::protocol("`same` for a file that wasn't compared");
                }
                self.touch(key);
                Ok(())
            }
            FileAnswer::Error { n, code, message } => {
                let is_awaited = self.requests.asked(id, n)?.state == RequestState::Awaited;
                let key = self.requests.close_file(id, n)?;
                let error = Error::Refused { code, message };
                match code {
                    ErrorCode::Changed => self.restart(key, &error.to_string(), true),
                    ErrorCode::Busy if is_awaited => self.busy_with(key, error),
                    _ => self.file_failed(key, error),
                }
            }
        }
    }

    fn metadata_came(&mut self, id: u32, metadata: &FileMetadata) -> Result<(), Error> {
        self.retry.opened_one();
        let asked = self.requests.asked(id, metadata.n)?;
        if asked.state != RequestState::Awaited {
            return Error::protocol("a file's metadata came twice");
        }
        asked.begin(metadata.size);
        asked.digest_sent = metadata.digest.is_some();
        let key = asked.file;
        let Ok(leaves) = LeafSize::announced(metadata.leaf_bytes, metadata.size) else {
            return Error::protocol("an impossible leaf size");
        };
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        let FileMetadata { size, mtime: modified, mode, sparse, .. } = *metadata;
        let version = Version { size, modified, mode, sparse };
        let changed = !version.same_content(&task.version)
            || leaves != task.leaves
            || task.digest.is_some_and(|known| metadata.digest.is_some_and(|digest| digest != known));
        if changed && task.must_be.is_some() {
            return self.file_failed(key, out_of_date());
        }
        let listed_bytes = self.totals.listed_bytes.saturating_sub(task.version.size).saturating_add(size);
        task.version = version;
        task.leaves = leaves;
        task.digest = if changed { metadata.digest } else { metadata.digest.or(task.digest) };
        let is_changed_content = changed && task.content.is_some();
        // It wasn't `same`.
        if task.local_digest.take().is_some() && self.options.check {
            let warning = format!("{}: the file here has other content; fetching it again", task.remote);
            self.warn(warning);
        }
        self.listed_bytes(listed_bytes)?;
        if is_changed_content && self.options.in_order {
            self.restart(key, "the file changed", true)?;
        } else if is_changed_content {
            self.abandon(key);
            if let Some(task) = self.files.get_mut(key) {
                task.values = None;
            }
            self.requests.asked(id, metadata.n)?.useless = true;
        } else if let Some(digest) = metadata.digest {
            self.note_digest(key, digest);
        }
        Ok(())
    }

    fn digest_came(&mut self, reply: DigestReply) -> Result<(), Error> {
        let asked = self.requests.asked(reply.id, reply.n)?;
        if asked.state == RequestState::Awaited {
            return Error::protocol("a digest came before the metadata");
        }
        asked.digest_sent = true;
        let key = asked.file;
        let Some(task) = self.files.get_mut(key).filter(|task| task.last_request == (reply.id, reply.n)) else {
            return Ok(());
        };
        if task.leaves.leaf_bytes() != reply.leaf_bytes {
            return Error::protocol("the leaf size changed");
        }
        if matches!(task.phase, Phase::Installing | Phase::Touching) {
            // Already checked against the digest that the server sent before, and that one is acknowledged.
            return Ok(());
        }
        if task.digest.is_some_and(|known| known != reply.digest)
            && matches!(task.phase, Phase::Requested | Phase::Arrived)
        {
            // The partial file was of another version with the same size and time.
            task.digest = None;
            if task.must_be.is_some() {
                return self.file_failed(key, out_of_date());
            }
            return self.restart(key, "the file changed", true);
        }
        task.digest = Some(reply.digest);
        self.note_digest(key, reply.digest);
        self.try_finish(key)
    }

    fn note_digest(&mut self, key: FileKey, digest: Digest) {
        let content = self.files.get(key).and_then(|task| task.content.as_ref()).filter(|content| content.begun);
        if let Some(content) = content.map(|content| content.key) {
            self.command(DiskCommand::NoteDigest { content, digest });
        }
    }

    /// Takes the end of a file.
    pub(super) fn asked_over(&mut self, id: u32, n: u32) -> Result<(), Error> {
        let asked = self.requests.asked(id, n)?;
        if !asked.is_complete() {
            return Error::protocol("a file ended before all of it arrived");
        }
        asked.state = RequestState::Over;
        let (key, useless) = (asked.file, asked.useless);
        if useless {
            return self.restart(key, "the file changed", true);
        }
        let verify = self.options.verify;
        let Some(task) = self.files.get_mut(key).filter(|task| task.last_request == (id, n)) else { return Ok(()) };
        if !matches!(task.phase, Phase::Requested) {
            return Ok(());
        }
        if task.version.size == 0 && task.content.is_none() {
            task.phase = Phase::Installing;
            // An empty file has one possible digest, which the server need not have sent.
            let empty = || Digest(*blake3::hash(&[]).as_bytes());
            let digest = verify.then(|| *task.digest.get_or_insert_with(empty));
            let (local, version) = (task.local.clone(), task.version);
            let small = SmallFile { file: key, local, version, digest, data: Vec::new(), credit: 0 };
            self.command(DiskCommand::Small(small));
            return Ok(());
        }
        task.phase = Phase::Arrived;
        self.try_finish(key)
    }

    fn fetch_done(&mut self, id: u32) -> Result<(), Error> {
        let Some(fetch) = self.requests.close_fetch(id) else {
            return Error::protocol("`done` for a request that isn't open");
        };
        self.concurrency.grow();
        for asked in fetch.files {
            if asked.state != RequestState::Over {
                return Error::protocol("`done` before all files of the request have ended");
            }
            if let Some(task) = self.files.requested_with(asked.file, id) {
                task.digest_pending = false;
                self.try_finish(asked.file)?;
            }
        }
        Ok(())
    }

    /// Queues a file that the server is too busy for. What has arrived of it stays.
    fn busy_with(&mut self, key: FileKey, error: Error) -> Result<(), Error> {
        // It came just now.
        let now = self.idle.since();
        if self.retry.is_over(now, self.options.idle_timeout) {
            return self.file_failed(key, error);
        }
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        if matches!(task.phase, Phase::Requested) {
            task.phase = Phase::Waiting;
        }
        if self.retry.push(key, now) {
            let warning = format!("{}: {error}; retrying later", task.remote);
            self.warn(warning);
        }
        Ok(())
    }

    fn request_failed(&mut self, error: ErrorReply) -> Result<(), Error> {
        let Some(id) = error.id else {
            return Error::protocol(&format!("it could not decode a request: {}", error.message));
        };
        let refused = Error::Refused { code: error.code, message: error.message };
        if self.listing.open_id() == Some(id) {
            // It came just now.
            let now = self.idle.since();
            if error.code == ErrorCode::Busy && self.listing.retry_later(now, self.options.idle_timeout) {
                return Ok(());
            }
            return Err(refused);
        }
        if let Some(key) = self.requests.close_leaves(id) {
            if error.code == ErrorCode::Busy {
                return self.busy_with(key, refused);
            }
            if self.reuse_nothing(key) {
                return Ok(());
            }
            return self.restart(key, &refused.to_string(), error.code == ErrorCode::Changed);
        }
        let Some(fetch) = self.requests.close_fetch(id) else { return Ok(()) };
        // Nothing of these files has come: fetching them when the server has space is not a retry.
        let is_later = error.code == ErrorCode::Busy
            && fetch.files.iter().all(|asked| asked.state == RequestState::Awaited)
            && self.concurrency.shrink(self.requests.fetch_count());
        for asked in fetch.files {
            let asked_here = self.files.get(asked.file).is_some_and(|task| task.last_request.0 == id);
            if asked.state != RequestState::Over && asked_here {
                match error.code {
                    _ if is_later => self.fetch_again(asked.file),
                    ErrorCode::Busy => self.restart(asked.file, &refused.to_string(), false)?,
                    ErrorCode::Changed => self.restart(asked.file, &refused.to_string(), true)?,
                    _ => self.file_failed(asked.file, refused.clone())?,
                }
            } else if let Some(task) = self.files.get_mut(asked.file).filter(|_| asked_here) {
                task.digest_pending = false;
                self.try_finish(asked.file)?;
            }
        }
        Ok(())
    }
}

/// The failure of a file that has another version by now.
fn out_of_date() -> Error {
    Error::Unmet { code: ErrorCode::Changed, message: "the file changed; what it is now follows".to_owned() }
}
