//! Fetches: files asked for in batches, and what the server answers about them.

use bytes::Bytes;

use super::command::{ContentKey, DiskCommand, FileKey, SmallFile, Version};
use super::file::{FileTask, LeafQuery, Phase};
use super::outcome::{TransferError, in_vain};
use super::{AGAIN_MAX, Transfer};
use crate::digest::{Digest, LEAF_BYTES_MIN, LeafSize};
use crate::limits::FILE_RANGES_MAX;
use crate::protocol::ErrorCode;
use crate::protocol::control::{
    DigestReply, DigestWish, ErrorReply, FetchFile, FetchRequest, FileAnswer, FileMetadata, Range, Reply, Request,
    Unless,
};

/// Fetches open at a time: enough that the server never waits for the next one.
const FETCHES_OPEN_MAX: usize = 4;
/// Files up to this size are hashed by the server before they are sent, so that each arrives with its digest and is
/// checked, written and installed at once: those of one leaf, of which nothing would be kept if they were cut short.
pub(super) const SMALL_FILE_BYTES: u64 = LEAF_BYTES_MIN;
/// Small files in one fetch.
const SMALL_BATCH_MAX: usize = 1024;
/// Other files in one fetch.
const LARGE_BATCH_MAX: usize = 16;
/// Octets that a fetch's JSON is kept to, far below [`crate::limits::CONTROL_BYTES_MAX`].
const BATCH_JSON_BYTES: usize = 256 << 10;

/// How much the server takes at a time: less than all while it has many clients, as it says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    fetches: usize,
    files: usize,
}

impl Default for Share {
    fn default() -> Self {
        Self { fetches: FETCHES_OPEN_MAX, files: SMALL_BATCH_MAX }
    }
}

impl Share {
    /// Becomes less, as the server has refused one more beside so many that are open. Not if it was as little as can be.
    fn shrink(&mut self, open: usize) -> bool {
        match open {
            0 if self.files == 1 => return false,
            0 => self.files /= 2,
            _ => self.fetches = open,
        }
        true
    }

    /// One was finished, so that there may be room for another, and for one that is longer.
    fn grow(&mut self) {
        self.fetches = (self.fetches + 1).min(FETCHES_OPEN_MAX);
        self.files = (self.files + 1).min(SMALL_BATCH_MAX);
    }
}

/// A fetch under way.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) files: Vec<Asked>,
}

/// What was asked for of one file.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) file: FileKey,
    pub(super) state: AskedState,
    /// The ranges; of a whole file, known when its size is.
    pub(super) ranges: Option<Vec<Range>>,
    /// The range that the next piece is in, and where in the file it begins.
    at: usize,
    cursor: u64,
    /// The file is not what the ranges were chosen for: they are of no use.
    pub(super) useless: bool,
    /// The server has told its digest in this fetch.
    digest_told: bool,
}

/// How far the server is with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedState {
    /// Its metadata is to come.
    Awaited,
    /// Its data is to come.
    Coming,
    /// Nothing more comes.
    Over,
}

impl Asked {
    /// Its metadata came: now it is known which pieces are to come.
    fn begin(&mut self, size: u64) {
        let whole = [Range { offset: 0, length: size }];
        let ranges = self.ranges.as_deref().unwrap_or(&whole);
        let cut =
            |range: &Range| Range { offset: range.offset, length: range.end().min(size).saturating_sub(range.offset) };
        let ranges: Vec<Range> = ranges.iter().map(cut).filter(|range| range.length > 0).collect();
        self.cursor = ranges.first().map_or(0, |range| range.offset);
        self.ranges = Some(ranges);
        self.state = AskedState::Coming;
    }

    /// Whether a piece is exactly what comes next.
    pub(super) fn accept(&mut self, offset: u64, length: u64) -> bool {
        if self.state != AskedState::Coming {
            return false;
        }
        if length == 0 {
            return true;
        }
        let Some(range) = self.ranges.as_deref().and_then(|ranges| ranges.get(self.at)) else { return false };
        if offset != self.cursor || length > range.end() - offset {
            return false;
        }
        self.cursor += length;
        if self.cursor == range.end() {
            self.at += 1;
            self.cursor = self.ranges.as_deref().and_then(|ranges| ranges.get(self.at)).map_or(0, |next| next.offset);
        }
        true
    }

    /// Whether all that was asked for has come.
    fn is_whole(&self) -> bool {
        self.state == AskedState::Coming && self.ranges.as_ref().is_some_and(|ranges| self.at == ranges.len())
    }
}

impl Transfer {
    /// Asks for files that wait.
    pub(super) fn pump_fetches(&mut self) {
        if self.placement.is_none() || self.wait_for_space() {
            return;
        }
        while self.fetches.len() < self.share.fetches {
            let id = self.fresh_id();
            let (files, asked, small) = self.batch(id);
            if files.is_empty() {
                break;
            }
            let digest = match (self.options.verify, small) {
                (false, _) => DigestWish::None,
                (true, true) => DigestWish::Now,
                (true, false) => DigestWish::Later,
            };
            self.fetches.insert(id, Fetch { files: asked });
            let fetch = FetchRequest {
                id,
                chunk_bytes: self.options.chunk_bytes,
                compress: self.options.compress,
                digest,
                credit_bytes: self.credit.take_if_worthwhile().unwrap_or(0),
                files,
            };
            self.send(Request::Fetch(fetch));
        }
    }

    /// Once all is known that is to come, the disk is asked whether it fits; nothing more is asked for until it answers.
    fn wait_for_space(&mut self) -> bool {
        if self.space.is_none() && self.listing.is_complete() && self.inspecting == 0 {
            let needed = self.files.values().fold(0, |sum: u64, file| sum.saturating_add(file.space_needed()));
            self.space = Some(Space { needed, known: false });
            self.command(DiskCommand::CheckSpace { bytes: needed });
        }
        self.space.as_ref().is_some_and(|space| !space.known)
    }

    /// Takes files of about one kind off those that wait.
    fn batch(&mut self, id: u32) -> (Vec<FetchFile>, Vec<Asked>, bool) {
        let (mut files, mut asked, mut small, mut json_bytes) = (Vec::new(), Vec::new(), false, 0);
        while let Some(key) = self.waiting.front().copied() {
            let Some(task) = self.files.get_mut(&key).filter(|task| matches!(task.phase, Phase::Waiting)) else {
                self.waiting.pop_front();
                continue;
            };
            let is_small = task.version.size <= SMALL_FILE_BYTES;
            let count_max = if is_small { self.share.files } else { self.share.files.min(LARGE_BATCH_MAX) };
            let full = files.len() >= count_max || json_bytes >= BATCH_JSON_BYTES;
            if !files.is_empty() && (full || is_small != small) {
                break;
            }
            self.waiting.pop_front();
            small = is_small;
            let ranges = task.missing(FILE_RANGES_MAX);
            // Base64 makes a path a third longer. Escapes in JSON make it up to six times as long, for which the server's limit has room.
            json_bytes += 64 + task.remote.as_bytes().len() * 2 + ranges.as_ref().map_or(0, |ranges| ranges.len() * 24);
            let unless = task.local_digest.map(|digest| Unless::Digest { digest });
            task.phase = Phase::Requested;
            self.confirmations.over(task.asked.0, None);
            self.confirmations.asked(id);
            task.asked = (id, u32::try_from(files.len()).unwrap_or(u32::MAX));
            task.digest_may_come = true;
            files.push(FetchFile { path: (&task.remote).into(), ranges: ranges.clone(), unless });
            asked.push(Asked {
                file: key,
                state: AskedState::Awaited,
                ranges,
                at: 0,
                cursor: 0,
                useless: false,
                digest_told: false,
            });
        }
        (files, asked, small)
    }

    /// A control message came.
    pub(super) fn reply(&mut self, reply: Reply, attachment: Option<Bytes>) -> Result<(), TransferError> {
        match reply {
            Reply::List(page) => self.list_page(page),
            Reply::Files(files) => files.files.into_iter().try_for_each(|answer| self.file_answer(files.id, answer)),
            Reply::Digest(digest) => self.digest_came(digest),
            Reply::End { id, n } => self.asked_over(id, n),
            Reply::Void(void) => {
                let file = self.take_asked(void.id, void.n)?;
                let reason = format!("the server says: {} ({})", void.message, void.code);
                self.restart(file, &reason, void.code == ErrorCode::Changed)
            }
            Reply::Done { id } => self.fetch_done(id),
            Reply::Leaves(leaves) => self.leaves_came(leaves, attachment),
            Reply::Error(error) => self.request_failed(error),
            Reply::Hello(_) | Reply::Cancelled(_) | Reply::Unknown => Ok(()),
        }
    }

    pub(super) fn asked_mut(&mut self, id: u32, n: u32) -> Result<&mut Asked, TransferError> {
        let fetch = self.fetches.get_mut(&id);
        let asked = fetch.and_then(|fetch| fetch.files.get_mut(usize::try_from(n).ok()?));
        asked.ok_or_else(|| TransferError::Protocol("something of a file that was not asked for".to_owned()))
    }

    /// A file for which nothing more comes in its fetch.
    fn take_asked(&mut self, id: u32, n: u32) -> Result<FileKey, TransferError> {
        let asked = self.asked_mut(id, n)?;
        if asked.state == AskedState::Over {
            return TransferError::protocol("something of a file that is over");
        }
        asked.state = AskedState::Over;
        Ok(asked.file)
    }

    fn file_answer(&mut self, id: u32, answer: FileAnswer) -> Result<(), TransferError> {
        match answer {
            FileAnswer::Metadata(metadata) => self.metadata_came(id, &metadata),
            FileAnswer::Same { n } => {
                let key = self.take_asked(id, n)?;
                let Some(task) = self.files.get_mut(&key) else { return Ok(()) };
                if task.local_digest.is_none() {
                    return TransferError::protocol("a file is the same, but the same as what was not asked");
                }
                self.touch(key);
                Ok(())
            }
            FileAnswer::Error { n, code, message } => {
                let is_awaited = self.asked_mut(id, n)?.state == AskedState::Awaited;
                let key = self.take_asked(id, n)?;
                let reason = format!("the server says: {message} ({code})");
                match code {
                    ErrorCode::Changed => self.restart(key, &reason, true),
                    ErrorCode::Busy if is_awaited => self.busy_with(key, reason),
                    _ => self.file_failed(key, reason),
                }
            }
        }
    }

    fn metadata_came(&mut self, id: u32, metadata: &FileMetadata) -> Result<(), TransferError> {
        self.later.opened_one();
        let asked = self.asked_mut(id, metadata.n)?;
        if asked.state != AskedState::Awaited {
            return TransferError::protocol("metadata of a file twice");
        }
        asked.begin(metadata.size);
        asked.digest_told = metadata.digest.is_some();
        let key = asked.file;
        let Ok(leaves) = LeafSize::announced(metadata.leaf_bytes, metadata.size) else {
            return TransferError::protocol("leaves of a size that they cannot have");
        };
        let Some(task) = self.files.get_mut(&key) else { return Ok(()) };
        let FileMetadata { size, mtime: modified, mode, sparse, .. } = *metadata;
        let version = Version { size, modified, mode, sparse };
        let changed = !version.same_content(&task.version)
            || leaves != task.leaves
            || task.digest.is_some_and(|known| metadata.digest.is_some_and(|digest| digest != known));
        self.totals.listed_bytes = self.totals.listed_bytes.saturating_sub(task.version.size).saturating_add(size);
        task.version = version;
        task.leaves = leaves;
        task.digest = if changed { metadata.digest } else { metadata.digest.or(task.digest) };
        if changed && task.content.is_some() {
            self.abandon(key);
            self.asked_mut(id, metadata.n)?.useless = true;
        } else if let Some(digest) = metadata.digest {
            self.note_digest(key, digest);
        }
        Ok(())
    }

    fn digest_came(&mut self, reply: DigestReply) -> Result<(), TransferError> {
        let asked = self.asked_mut(reply.id, reply.n)?;
        if asked.state == AskedState::Awaited {
            return TransferError::protocol("a digest before the metadata");
        }
        asked.digest_told = true;
        let key = asked.file;
        let Some(task) = self.files.get_mut(&key).filter(|task| task.asked == (reply.id, reply.n)) else {
            return Ok(());
        };
        if task.leaves.leaf_bytes() != reply.leaf_bytes {
            return TransferError::protocol("leaves of another size than before");
        }
        if matches!(task.phase, Phase::Installing | Phase::Touching) {
            // It was checked against what the server said before, and that is what is confirmed.
            return Ok(());
        }
        if task.digest.is_some_and(|known| known != reply.digest)
            && matches!(task.phase, Phase::Requested | Phase::Arrived)
        {
            // What an earlier transfer left was of another version that had the same size and time.
            task.digest = None;
            return self.restart(key, "the file changed", true);
        }
        task.digest = Some(reply.digest);
        self.note_digest(key, reply.digest);
        self.try_finish(key)
    }

    fn note_digest(&mut self, key: FileKey, digest: Digest) {
        let content = self.files.get(&key).and_then(|task| task.content.as_ref()).filter(|content| content.begun);
        if let Some(content) = content.map(|content| content.key) {
            self.command(DiskCommand::NoteDigest { content, digest });
        }
    }

    /// The server says that a file is complete.
    pub(super) fn asked_over(&mut self, id: u32, n: u32) -> Result<(), TransferError> {
        let asked = self.asked_mut(id, n)?;
        if !asked.is_whole() {
            return TransferError::protocol("a file ends before all that was asked for has come");
        }
        asked.state = AskedState::Over;
        let (key, useless) = (asked.file, asked.useless);
        if useless {
            return self.restart(key, "the file changed", true);
        }
        let verify = self.options.verify;
        let Some(task) = self.files.get_mut(&key).filter(|task| task.asked == (id, n)) else { return Ok(()) };
        if !matches!(task.phase, Phase::Requested) {
            return Ok(());
        }
        if task.version.size == 0 && task.content.is_none() {
            task.phase = Phase::Installing;
            // There is one digest that an empty file can have, whether the server has told it or not.
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

    fn fetch_done(&mut self, id: u32) -> Result<(), TransferError> {
        let Some(fetch) = self.fetches.remove(&id) else {
            return TransferError::protocol("a request is done that was not made");
        };
        self.share.grow();
        for asked in fetch.files {
            if asked.state != AskedState::Over {
                return TransferError::protocol("a request is done before its files are");
            }
            if let Some(task) = self.files.get_mut(&asked.file).filter(|task| task.asked.0 == id) {
                task.digest_may_come = false;
                self.try_finish(asked.file)?;
            }
        }
        Ok(())
    }

    fn request_failed(&mut self, error: ErrorReply) -> Result<(), TransferError> {
        let Some(id) = error.id else {
            return TransferError::protocol(&format!("it could not read a request: {}", error.message));
        };
        let reason = format!("the server says: {} ({})", error.message, error.code);
        if self.listing.open_id() == Some(&id) {
            // It came just now.
            let now = self.waiting_since.since();
            if error.code == ErrorCode::Busy && self.listing.is_asked_for_later(now, self.options.idle_timeout) {
                return Ok(());
            }
            return Err(TransferError::Refused { code: error.code, message: error.message });
        }
        if let Some(key) = self.leaf_requests.remove(&id) {
            if error.code == ErrorCode::Busy {
                return self.busy_with(key, reason);
            }
            return self.restart(key, &reason, error.code == ErrorCode::Changed);
        }
        let Some(fetch) = self.fetches.remove(&id) else { return Ok(()) };
        // Not a word of these files came: asking for them again, when and as the server has room, is no second attempt.
        let is_later = error.code == ErrorCode::Busy
            && fetch.files.iter().all(|asked| asked.state == AskedState::Awaited)
            && self.share.shrink(self.fetches.len());
        for asked in fetch.files {
            let asked_here = self.files.get(&asked.file).is_some_and(|task| task.asked.0 == id);
            if asked.state != AskedState::Over && asked_here {
                match error.code {
                    _ if is_later => self.wait_again(asked.file),
                    ErrorCode::Busy => self.restart(asked.file, &reason, false)?,
                    ErrorCode::Changed => self.restart(asked.file, &reason, true)?,
                    _ => self.file_failed(asked.file, reason.clone())?,
                }
            } else if let Some(task) = self.files.get_mut(&asked.file).filter(|_| asked_here) {
                task.digest_may_come = false;
                self.try_finish(asked.file)?;
            }
        }
        Ok(())
    }

    /// Asks for a file from its beginning; too often, and it has failed.
    pub(super) fn restart(&mut self, key: FileKey, reason: &str, is_changed: bool) -> Result<(), TransferError> {
        self.abandon(key);
        let Some(task) = self.files.get_mut(&key) else { return Ok(()) };
        task.restarts += 1;
        task.digest = None;
        if task.restarts > AGAIN_MAX {
            return self.file_failed(key, in_vain(reason, is_changed));
        }
        let warning = format!("{}: {reason}; asked for it again", task.remote);
        self.warn(warning);
        self.wait_again(key);
        Ok(())
    }

    /// Asks again for what is missing.
    pub(super) fn wait_again(&mut self, key: FileKey) {
        if let Some(task) = self.files.get_mut(&key) {
            task.phase = Phase::Waiting;
            self.waiting.push_back(key);
        }
    }

    /// What came of a file is of no use.
    pub(super) fn abandon(&mut self, key: FileKey) {
        if let Some(content) = self.files.get_mut(&key).and_then(|task| task.content.take()) {
            self.totals.unfinished_bytes -= content.written.total();
            self.contents.remove(&content.key);
            if content.begun {
                self.command(DiskCommand::Abandon { content: content.key });
            }
        }
    }

    /// A file cannot be transferred; the rest goes on.
    pub(super) fn file_failed(&mut self, key: FileKey, reason: String) -> Result<(), TransferError> {
        if let Some(mut task) = self.files.remove(&key) {
            self.confirmations.over(task.asked.0, None);
            if let Some(content) = task.content.take() {
                self.totals.unfinished_bytes -= content.written.total();
                self.contents.remove(&content.key);
                if content.begun {
                    self.command(DiskCommand::Leave { content: content.key });
                }
            }
            self.totals.fail(task.remote.to_string(), reason);
        }
        Ok(())
    }

    /// The connection is gone: what was asked for does not come.
    pub(super) fn file_interrupted(&mut self, key: FileKey) -> Result<(), TransferError> {
        let Some(task) = self.files.get_mut(&key) else { return Ok(()) };
        task.digest_may_come = false;
        match &mut task.phase {
            Phase::Requested if task.content.is_none() => self.wait_again(key),
            Phase::Requested | Phase::Arrived => {
                task.phase = Phase::Arrived;
                self.try_finish(key)?;
            }
            Phase::Leaves(query) => {
                *query = LeafQuery::default();
                self.leaves_wanted.push(key);
            }
            Phase::Inspecting | Phase::Waiting | Phase::Installing | Phase::Touching => {}
        }
        Ok(())
    }

    /// Octets that the server may be hashing and has nothing to send meanwhile: of files all of which has come, and of those whose
    /// leaves were asked for. 0 if anything else is to come, from it or from the disk.
    pub(super) fn octets_hashed(&self) -> u64 {
        if self.piece.is_some() {
            return 0;
        }
        let size = |key: FileKey| self.files.get(&key).map(|file| file.version.size);
        let fetched = self.fetches.iter().map(|(id, fetch)| size(self.hashed_in(*id, fetch)?));
        let leaves = self.leaf_requests.values().map(|key| size(*key));
        let octets = fetched.chain(leaves).try_fold(0, |sum: u64, size| Some(sum.saturating_add(size?))).unwrap_or(0);
        let is_at_the_disk = |file: &FileTask| match file.phase {
            Phase::Inspecting | Phase::Installing | Phase::Touching => true,
            _ => file.content.as_ref().is_some_and(|content| content.pending > 0),
        };
        if octets > 0 && self.files.values().any(is_at_the_disk) { 0 } else { octets }
    }

    /// The file that a fetch waits for if the server only has to hash it: those behind it come after it.
    fn hashed_in(&self, id: u32, fetch: &Fetch) -> Option<FileKey> {
        let open = fetch.files.iter().position(|asked| asked.state != AskedState::Over);
        let last = open.unwrap_or(fetch.files.len()).checked_sub(1).and_then(|last| fetch.files.get(last));
        let is_hashed = |asked: &&Asked| {
            let Some(task) = self.files.get(&asked.file).filter(|task| task.asked.0 == id) else { return false };
            match task.phase {
                // Before it can say whether it is what is here already.
                Phase::Requested if asked.state == AskedState::Awaited => task.local_digest.is_some(),
                Phase::Requested => asked.is_whole() && !asked.digest_told,
                // A server may say that all was sent, and tell the digest then.
                Phase::Arrived => !asked.digest_told,
                _ => false,
            }
        };
        let open = open.and_then(|open| fetch.files.get(open));
        let hashed = last.filter(is_hashed).or(open.filter(is_hashed))?;
        self.options.verify.then_some(hashed.file)
    }

    /// The content of a file, by name of its key in the reports of the disk.
    pub(super) fn file_of(&self, content: ContentKey) -> Option<FileKey> {
        self.contents.get(&content).copied()
    }
}

/// The question whether all fits on the disk.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) needed: u64,
    pub(super) known: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_becomes_less_to_the_last_and_comes_back() {
        let mut share = Share::default();
        assert!(share.shrink(3));
        assert_eq!((share.fetches, share.files), (3, SMALL_BATCH_MAX));
        let refusals = (0..100).take_while(|_| share.shrink(0)).count();
        assert_eq!((1 << refusals, share.files), (SMALL_BATCH_MAX, 1));
        (0..SMALL_BATCH_MAX).for_each(|_| share.grow());
        assert_eq!((share.fetches, share.files), (FETCHES_OPEN_MAX, SMALL_BATCH_MAX));
    }
}
