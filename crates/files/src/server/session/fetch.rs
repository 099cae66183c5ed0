//! One fetch: its files are prepared in batches, announced, and sent one by one in their order.
//!
//! [`Fetch::progress`] does all that needs neither credit nor space in the socket; [`Fetch::next_data`] (in `send`) makes data messages.

mod send;
mod stats;

use super::credit::Credit;
use super::large::{DataPiece, DigestState, Large};
use super::pipeline::Pipeline;
use super::{Action, Ending, Envelope, LogEvent, Shared, Slot, Ticket};
use crate::digest::Digest;
use crate::limits::{CHUNK_BYTES_MAX, DATA_ENTRIES_MAX, PIECE_COST_MIN};
use crate::protocol::control::{
    DigestReply, DigestWish, FetchRequest, FileAnswer, FileMetadata, FilesReply, Reply, VoidReply, WirePath,
};
use crate::server::Failure;
use crate::server::chunks::{Layout, Piece, PieceCursor};
use crate::server::jobs::{FindExtents, Hash, Job, Load, LoadHow, Loaded, Prepare, Prepared};
use crate::server::limits::{BATCH_OPEN_MAX, CLIENT_OPEN_FILES_MAX, HASH_AHEAD_MAX, OPEN_FILES_MAX, READY_BYTES_MAX};
use crate::server::stats::RequestKind;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use towpath_quota::Permit;

/// Alignment of the end of a piece that credit cuts short: receivers write whole pages faster.
const CUT_ALIGNMENT: u64 = 64 << 10;

/// Part of `available` to use from `offset` so that the piece ends aligned, if possible.
fn aligned(offset: u64, available: u64) -> u64 {
    let end = offset.saturating_add(available);
    let well = end - end % CUT_ALIGNMENT;
    if well > offset { well - offset } else { available }
}

#[derive(Debug)]
pub(super) struct Fetch<F> {
    ticket: Ticket,
    envelope: Envelope,
    request: Arc<FetchRequest>,
    /// For the memory of the request.
    _names: Permit,
    /// The credit of its client.
    credit: Credit,
    chunk_bytes: u64,
    /// First file that is not prepared.
    next: usize,
    /// Files that the running [`Prepare`] job may leave open.
    preparing: Option<Permit>,
    /// Prepared files that are not over, in order.
    files: VecDeque<FileState<F>>,
    /// Files of these, from the first, that were announced.
    announced: usize,
    is_over: bool,
    /// Bytes of bodies that the socket was given.
    sent_bytes: u64,
    /// Sizes of the files that are over.
    over_bytes: u64,
}

#[derive(Debug)]
enum FileState<F> {
    Answered(FileAnswer),
    Small { metadata: FileMetadata, body: Bytes, packed: Option<Bytes>, sent: usize },
    Large(Box<Large<F>>),
}

impl<F: Clone> Fetch<F> {
    pub(super) fn new(
        ticket: Ticket,
        envelope: Envelope,
        request: FetchRequest,
        names: Permit,
        credit: Credit,
    ) -> Fetch<F> {
        Fetch {
            ticket,
            envelope,
            chunk_bytes: request.chunk_bytes.min(CHUNK_BYTES_MAX),
            request: Arc::new(request),
            _names: names,
            credit,
            next: 0,
            preparing: None,
            files: VecDeque::new(),
            announced: 0,
            is_over: false,
            sent_bytes: 0,
            over_bytes: 0,
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.request.id
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.ticket
    }

    pub(super) fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Whether the fetch is done or cancelled.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn prepared(&mut self, files: Vec<Prepared<F>>, shared: &mut Shared<F>) {
        let mut permit = self.preparing.take();
        self.next += files.len();
        for file in files {
            let state = match file {
                Prepared::Answer(answer) => FileState::Answered(answer),
                Prepared::Small { metadata, body, packed } => FileState::Small { metadata, body, packed, sent: 0 },
                Prepared::Large { metadata, file, layout, unless } => {
                    let permit = permit.as_mut().and_then(|permit| permit.split(1));
                    let permit = permit.unwrap_or_else(|| shared.quotas.open_files.acquire(1));
                    let wanted = self.request.files.get(metadata.n as usize).and_then(|file| file.ranges.as_deref());
                    let wants = self.request.digest != DigestWish::None || unless.is_some();
                    let digest = match metadata.digest {
                        None if wants => DigestState::Wanted,
                        _ => DigestState::Settled,
                    };
                    let cursor = PieceCursor::new(wanted, metadata.size, layout, self.chunk_bytes);
                    let pipeline = Pipeline::default();
                    FileState::Large(Box::new(Large {
                        metadata,
                        file,
                        unless,
                        digest,
                        cursor,
                        is_looked_at: false,
                        pipeline,
                        unshrunk: 0,
                        begun: 0,
                        failed: None,
                        _permit: permit,
                    }))
                }
            };
            self.files.push_back(state);
        }
    }

    pub(super) fn hashed(&mut self, n: u32, result: Result<Digest, Failure>) {
        let announced = self.announced;
        let wish = self.request.digest;
        let mut files = self.files.iter_mut().enumerate();
        let found = files.find(|(_, file)| matches!(file, FileState::Large(large) if large.metadata.n == n));
        let Some((at, state)) = found else { return };
        let FileState::Large(large) = state else { return };
        let is_announced = at < announced;
        match result {
            Ok(digest) if !is_announced && large.unless == Some(digest) => {
                *state = FileState::Answered(FileAnswer::Same { n });
            }
            Ok(digest) if !is_announced => {
                large.digest = DigestState::Settled;
                if wish != DigestWish::None {
                    large.metadata.digest = Some(digest);
                }
            }
            Ok(digest) => large.digest = DigestState::Found(digest),
            Err(Failure { code, message }) if !is_announced => {
                *state = FileState::Answered(FileAnswer::Error { n, code, message });
            }
            Err(failure) => large.failed = Some(failure),
        }
    }

    pub(super) fn found_extents(&mut self, n: u32, result: Result<Layout, Failure>) {
        // It may have been declared void meanwhile.
        let Some(FileState::Large(large)) = self.files.front_mut() else { return };
        if large.metadata.n == n {
            large.is_looked_at = false;
            match result {
                Ok(layout) => large.cursor.add_layout(layout),
                Err(failure) => large.failed = Some(failure),
            }
        }
    }

    pub(super) fn loaded(&mut self, slot: Slot, result: Result<Loaded<F>, Failure>, shared: &mut Shared<F>) {
        if let Some(FileState::Large(large)) = self.files.front_mut() {
            large.loaded(self.ticket, slot, result, &self.credit, shared);
        }
    }

    pub(super) fn sent(&mut self, slot: Slot, result: Result<(), Failure>) {
        let Some(FileState::Large(large)) = self.files.front_mut() else { return };
        if large.pipeline.remove(slot).is_some()
            && let Err(failure) = result
        {
            large.failed = Some(failure);
        }
    }

    /// The event of its end.
    pub(super) fn ended(&self, ending: Ending) -> LogEvent {
        let (files, bytes) = (self.request.files.len(), self.sent_bytes);
        LogEvent::Ended { ticket: self.ticket, path: self.path(0), files, bytes, ending }
    }

    /// Ends the fetch early. Messages in the socket are no longer its concern.
    pub(super) fn give_up(&mut self) {
        for file in self.files.drain(..) {
            if let FileState::Large(mut large) = file {
                large.refund(&self.credit);
            }
        }
        self.preparing = None;
        self.is_over = true;
    }

    /// Does all that needs no space in the socket: announces and ends files, starts jobs, ends the fetch.
    pub(super) fn progress(&mut self, shared: &mut Shared<F>) {
        self.announce(shared);
        self.end_files(shared);
        self.hash_ahead(shared);
        self.load(shared);
        self.prepare(shared);
        if !self.is_over && self.files.is_empty() && self.preparing.is_none() && self.next >= self.request.files.len() {
            self.is_over = true;
            shared.actions.push_back(Action::Log(self.ended(Ending::Done)));
            shared.reply(&self.envelope, &Reply::Done { id: self.id() });
            shared.actions.push_back(Action::Release { ticket: self.ticket, take_back: false });
        }
    }

    fn prepare(&mut self, shared: &mut Shared<F>) {
        if self.preparing.is_some() || self.next >= self.request.files.len() {
            return;
        }
        let mut ready_bytes = 0;
        let mut open = 0;
        for file in &self.files {
            match file {
                FileState::Answered(_) => {}
                FileState::Small { body, .. } => ready_bytes += body.len() as u64,
                FileState::Large(_) => open += 1,
            }
        }
        // Half is enough: the next batch fills it up.
        if ready_bytes < READY_BYTES_MAX / 2 && open < OPEN_FILES_MAX / 2 && self.files.len() < DATA_ENTRIES_MAX {
            // With many fetches at once, each goes on file by file.
            let open_max = match shared.quotas.open_files.used() < CLIENT_OPEN_FILES_MAX {
                true => BATCH_OPEN_MAX,
                false if open == 0 => 1,
                false => return,
            };
            // If none is available, this is called again when one is, or when a file of this client ends.
            let Some(permit) = shared.quotas.open_files.try_acquire_up_to(open_max) else {
                shared.waits_for_files = true;
                return;
            };
            let open_max = permit.units() as usize;
            self.preparing = Some(permit);
            let request = Arc::clone(&self.request);
            shared.start(self.ticket, Job::Prepare(Prepare { request, from: self.next, open_max }));
        }
    }

    /// Announces files up to the first that has to wait for its digest.
    fn announce(&mut self, shared: &mut Shared<F>) {
        let mut answers = Vec::new();
        for file in self.files.iter_mut().skip(self.announced) {
            answers.push(match file {
                FileState::Answered(answer) => answer.clone(),
                FileState::Small { metadata, .. } => FileAnswer::Metadata(*metadata),
                FileState::Large(large) if large.must_wait(self.request.digest) => break,
                FileState::Large(large) => FileAnswer::Metadata(large.metadata),
            });
        }
        if !answers.is_empty() {
            self.announced += answers.len();
            self.log_refused(&answers, shared);
            shared.reply(&self.envelope, &Reply::Files(FilesReply { id: self.id(), files: answers }));
        }
    }

    fn log_refused(&self, answers: &[FileAnswer], shared: &mut Shared<F>) {
        let mut errors = answers.iter().filter_map(|answer| match answer {
            FileAnswer::Error { n, code, message } => Some((*n, Failure::new(*code, message.clone()))),
            _ => None,
        });
        if let Some((n, failure)) = errors.next() {
            let count = 1 + errors.count();
            let (what, path) = (RequestKind::Fetch, self.path(n));
            shared.actions.push_back(Action::Log(LogEvent::Refused { what, count, path, failure }));
        }
    }

    fn path(&self, n: u32) -> WirePath {
        self.request.files.get(n as usize).map(|file| file.path.clone()).unwrap_or_default()
    }

    /// Starts hashing. Without credit only if the file waits for its digest: for a client that takes nothing, nothing is hashed.
    fn hash_ahead(&mut self, shared: &mut Shared<F>) {
        let (has_credit, wish) = (self.credit.available() > 0, self.request.digest);
        let large = self.files.iter_mut().filter_map(|file| match file {
            FileState::Large(large) => Some(large),
            _ => None,
        });
        for large in large.take(HASH_AHEAD_MAX).filter(|large| large.digest == DigestState::Wanted) {
            if !has_credit && !large.must_wait(wish) && !large.cursor.is_done() {
                continue;
            }
            large.digest = DigestState::Hashing;
            shared.start(self.ticket, Job::Hash(Hash { n: large.metadata.n, file: large.file.clone() }));
        }
    }

    /// Begins pieces of the first file, as far as credit and the pipeline allow.
    fn load(&mut self, shared: &mut Shared<F>) {
        if self.announced == 0 {
            return;
        }
        let Some(FileState::Large(large)) = self.files.front_mut() else { return };
        if !large.is_looked_at
            && let Some(from) = large.cursor.wants_layout()
        {
            large.is_looked_at = true;
            let (n, file) = (large.metadata.n, large.file.clone());
            shared.start(self.ticket, Job::FindExtents(FindExtents { n, file, from }));
        }
        while large.failed.is_none() && large.pipeline.has_space() {
            let Some(mut piece) = large.cursor.peek() else { break };
            let mut cost = if piece.hole { PIECE_COST_MIN } else { piece.length.max(PIECE_COST_MIN) };
            if !self.credit.take(cost) {
                // Pieces in flight may bring more credit. If there are none, the client must get what it gave credit for.
                let available = self.credit.available();
                if !large.pipeline.is_empty()
                    || !shared.in_socket.is_empty()
                    || available < PIECE_COST_MIN
                    || piece.hole
                {
                    break;
                }
                piece.length = aligned(piece.offset, available);
                cost = piece.length.max(PIECE_COST_MIN);
                self.credit.take(cost);
            }
            large.cursor.advance(piece.length);
            let slot = shared.slot();
            let length = if piece.hole { 0 } else { piece.length };
            let how = if self.request.compress.is_some() { large.how_to_compress() } else { LoadHow::Unchanged };
            large.pipeline.begin(slot, length, DataPiece { piece, how, bytes: None, elsewhere: None, cost });
            if piece.hole {
                large.pipeline.ready(slot);
            } else {
                let (file, Piece { offset, length, .. }) = (large.file.clone(), piece);
                shared.start(self.ticket, Job::Load(Load { slot, file, offset, length, how }));
            }
        }
    }

    /// Ends the first files, as far as they are complete.
    fn end_files(&mut self, shared: &mut Shared<F>) {
        while self.announced > 0 {
            let id = self.id();
            match self.files.front_mut() {
                Some(FileState::Answered(_)) => {}
                Some(FileState::Large(large)) => {
                    let n = large.metadata.n;
                    if let Some(failure) = large.failed.take() {
                        large.refund(&self.credit);
                        let path = self.path(n);
                        shared.actions.push_back(Action::Log(LogEvent::Void { path, failure: failure.clone() }));
                        let Failure { code, message } = failure;
                        shared.reply(&self.envelope, &Reply::Void(VoidReply { id, n, code, message }));
                    } else if large.is_through() {
                        if let DigestState::Found(digest) = large.digest {
                            let leaf_bytes = large.metadata.leaf_bytes;
                            let reply = DigestReply { id, n, digest, leaf_bytes };
                            shared.reply(&self.envelope, &Reply::Digest(reply));
                        }
                        self.over_bytes = self.over_bytes.saturating_add(large.metadata.size);
                        shared.reply(&self.envelope, &Reply::End { id, n });
                    } else {
                        return;
                    }
                }
                Some(FileState::Small { .. }) | None => return,
            }
            self.files.pop_front();
            self.announced -= 1;
        }
    }
}
