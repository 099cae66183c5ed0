//! Pushes: files that the client sends, under the server's credit, in order.

#[cfg(any(test, fuzzing))]
mod model;
#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
pub use model::fuzz_body;

use super::credit::Credit;
use super::shared::Shared;
use super::{Action, Envelope, LogEvent, Ticket};
use crate::limits::{CHUNK_BYTES_MIN, PIECE_COST_MIN, PUSH_CHUNK_BYTES_MAX, PUSH_CONTENT_BYTES_MAX, PUSHES_MAX};
use crate::protocol::control::{Expected, PushCredit, PushReply, PushRequest, PushedReply, Range, Reply, WirePath};
use crate::protocol::data::{Body, DataEntry, DataHeader};
use crate::protocol::envelope::client_of;
use crate::protocol::{ErrorCode, WireError};
use crate::server::Failure;
use crate::server::jobs::{Job, PushJob, PushSees, PushUpdate, PushWrite};
use crate::server::limits::{PUSH_WINDOW_BYTES_FIRST, PUSH_WINDOW_BYTES_MAX, PUSH_WINDOW_BYTES_MIN};
use crate::server::pace::Pace;
use crate::server::stats::{RequestKind, TransferStats, Wait};
use crate::transfer::window::Window;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use towpath_rules::Verb;

/// Smaller bodies are copied, as they would keep the whole buffer that they were read with.
const COPIED_BELOW_BYTES: usize = 64 << 10;

/// The pushes of a client.
#[derive(Debug, Default)]
pub(super) struct Pushes(Vec<Push>);

#[derive(Debug)]
struct Push {
    id: u32,
    ticket: Ticket,
    envelope: Envelope,
    path: WirePath,
    /// The right that its condition takes.
    wants_to_know: Verb,
    request_size: u64,
    /// Bytes that the server had when it began.
    had: u64,
    /// Ranges that are to come, once it has begun. The next piece begins where the first one does.
    missing: VecDeque<Range>,
    has_begun: bool,
    /// Bytes of pieces that may be on their way or not written yet.
    window: Window,
    /// When it was given its first credit, until the first piece comes.
    begun_at: Option<Instant>,
    /// Bytes that the client may still send.
    credit: u64,
    /// Credit of what was written, not given again yet.
    freed: u64,
    /// The credit of its client, with which that says why it is slow.
    client: Credit,
}

impl Pushes {
    pub(super) fn requests(&self) -> impl Iterator<Item = (u32, Ticket, &Envelope)> {
        self.0.iter().map(|push| (push.id, push.ticket, &push.envelope))
    }

    pub(super) fn stats(&self) -> impl Iterator<Item = (Ticket, TransferStats)> {
        self.0.iter().map(|push| (push.ticket, push.stats()))
    }

    /// The wait of each, and the bytes that have come.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Ticket, Option<Wait>, u64)> {
        self.0.iter().map(|push| (push.ticket, Some(push.wait()), push.received_bytes()))
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether another one may begin.
    pub(super) fn has_space(&self) -> bool {
        self.0.len() < PUSHES_MAX
    }

    pub(super) fn push<F>(
        &mut self,
        ticket: Ticket,
        (envelope, client): (Envelope, Credit),
        request: PushRequest,
        shared: &mut Shared<F>,
    ) {
        let id = request.id;
        if !shared.permissions.check(Verb::Push, request.path.as_bytes()) {
            let message = "the server's rules don't allow this client to push there";
            return shared.refuse(
                &envelope,
                (RequestKind::Push, id),
                request.path,
                Failure::new(ErrorCode::Denied, message),
            );
        }
        if request
            .content
            .as_ref()
            .is_some_and(|content| content.len() as u64 != request.size || request.size > PUSH_CONTENT_BYTES_MAX)
        {
            let failure = refused("the content in a push is the whole file, of at most 65,536 bytes");
            return shared.refuse(&envelope, (RequestKind::Push, id), request.path, failure);
        }
        // Half of what is left, so that there is something for the next one.
        let wanted = request.size.clamp(PUSH_WINDOW_BYTES_MIN, PUSH_WINDOW_BYTES_FIRST);
        let least = request.content.as_ref().map_or(PUSH_WINDOW_BYTES_MIN, |_| wanted);
        let most = (shared.quotas.push_window.available() / 2).clamp(least, wanted);
        let Some(window) = shared.quotas.push_window.try_acquire(most) else {
            let failure = Failure::new(ErrorCode::Busy, "too many pushes at a time; try again a little later");
            return shared.refuse(&envelope, (RequestKind::Push, id), request.path, failure);
        };
        self.0.push(Push {
            id,
            ticket,
            envelope,
            path: request.path.clone(),
            wants_to_know: if let Expected::Digest(_) = request.expected { Verb::Read } else { Verb::List },
            request_size: request.size,
            had: 0,
            missing: VecDeque::new(),
            has_begun: false,
            window: Window::new(window.units(), PUSH_WINDOW_BYTES_MAX, Arc::clone(&shared.quotas.push_window)),
            begun_at: None,
            credit: 0,
            freed: 0,
            client,
        });
        let path = request.path.as_bytes();
        let sees = PushSees {
            existence: shared.permissions.may(Verb::List, path),
            content: shared.permissions.may(Verb::Read, path),
        };
        shared.start(ticket, Job::Push(PushJob::Begin(Box::new(request), sees, window)));
    }

    /// Takes a data message. One for a push that is over was on its way when it ended, and is dropped.
    pub(super) fn data<F>(
        &mut self,
        envelope: &Envelope,
        header: Result<DataHeader, WireError>,
        bodies: &[Bytes],
        shared: &mut Shared<F>,
    ) {
        let (id, header) = match header {
            Ok(header) => (Some(header.id), Ok(header)),
            Err(error) => (error.id, Err(Failure::new(error.code, error.message))),
        };
        let of_client = |push: &Push| Some(push.id) == id && client_of(&push.envelope) == client_of(envelope);
        let Some(at) = self.0.iter().position(of_client) else {
            if let (None, Err(failure)) = (id, header) {
                shared.error(envelope, None, failure);
            }
            return;
        };
        let Some(push) = self.0.get_mut(at) else { return };
        let written = header.and_then(|header| {
            let [entry] = header.entries.as_slice() else {
                return Err(refused("a data message of a push has one entry"));
            };
            push.arrives(shared.now);
            push.take(entry, bodies)
        });
        match written {
            Ok(write) => shared.start(push.ticket, Job::Push(PushJob::Write(write))),
            Err(failure) => self.fail(at, failure, shared),
        }
    }

    /// Takes what became of a push.
    pub(super) fn on_update<F>(&mut self, ticket: Ticket, update: PushUpdate, shared: &mut Shared<F>) {
        let Some(at) = self.0.iter().position(|push| push.ticket == ticket) else { return };
        let Some(push) = self.0.get_mut(at) else { return };
        match update {
            PushUpdate::Begun { have } => {
                push.missing = missing(&have, push.request_size);
                push.had = push.done_bytes();
                push.has_begun = true;
                push.credit = push.window.size();
                push.begun_at = shared.now;
                let chunk_bytes = (push.credit / 2).clamp(CHUNK_BYTES_MIN, PUSH_CHUNK_BYTES_MAX);
                let reply = PushReply { id: push.id, have, chunk_bytes, credit_bytes: push.credit };
                shared.reply(&push.envelope, &Reply::Push(reply));
            }
            PushUpdate::Written { credit } => {
                push.freed += match shared.now {
                    Some(now) => push.window.freed(credit, now),
                    None => credit,
                };
                if push.freed >= push.window.size() / 4 && !push.missing.is_empty() {
                    let bytes = std::mem::take(&mut push.freed);
                    push.credit += bytes;
                    shared.reply(&push.envelope, &Reply::Credit(PushCredit { id: push.id, bytes }));
                }
            }
            // Nothing more is to come: it says that the server is at work.
            PushUpdate::OnItsWay => {
                shared.reply(&push.envelope, &Reply::Credit(PushCredit { id: push.id, bytes: 0 }));
            }
            PushUpdate::InPlace { digest, durable, seq, same } => {
                // It counts all changes.
                let may = |verb| shared.permissions.may(verb, push.path.as_bytes());
                let seq = seq.filter(|_| may(Verb::Follow) || may(Verb::Publish));
                let reply = PushedReply { id: push.id, digest, durable, seq, same };
                shared.reply(&push.envelope, &Reply::Pushed(reply));
                self.0.swap_remove(at);
                shared.actions.push_back(Action::Log(LogEvent::Pushed));
                shared.actions.push_back(Action::Release { ticket, take_back: false });
            }
            PushUpdate::Failed(failure) => {
                // They may be probes.
                match failure.code {
                    ErrorCode::Denied => shared.permissions.note_refusal(push.wants_to_know, push.path.as_bytes()),
                    ErrorCode::Conflict => shared.permissions.note_refusal(Verb::List, push.path.as_bytes()),
                    _ => {}
                }
                self.fail(at, failure, shared);
            }
        }
    }

    /// The error for a push too many.
    pub(super) fn too_many() -> Failure {
        Failure::new(ErrorCode::Busy, format!("more than {PUSHES_MAX} pushes"))
    }

    /// The error of a server that takes none.
    pub(super) fn not_taken() -> Failure {
        let message = "this server takes no pushes; its operator allows them with `tow serve --accept-push`";
        Failure::new(ErrorCode::Unsupported, message)
    }

    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.0.retain(|push| push.ticket != ticket);
    }

    fn fail<F>(&mut self, at: usize, failure: Failure, shared: &mut Shared<F>) {
        let Push { id, ticket, envelope, path, .. } = self.0.swap_remove(at);
        shared.refuse(&envelope, (RequestKind::Push, id), path, failure);
        shared.actions.push_back(Action::Release { ticket, take_back: true });
    }
}

impl Push {
    /// Bytes that have arrived, now or before.
    fn done_bytes(&self) -> u64 {
        self.request_size.saturating_sub(self.missing.iter().map(|range| range.length).sum())
    }

    fn wait(&self) -> Wait {
        let is_open = self.has_begun && !self.missing.is_empty();
        // What was sent and isn't written yet isn't credit again.
        if is_open && self.credit >= self.window.size() / 2 { Wait::Sender } else { Wait::Disk }
    }

    /// Bytes that have come over this connection.
    fn received_bytes(&self) -> u64 {
        if self.has_begun { self.done_bytes().saturating_sub(self.had) } else { 0 }
    }

    fn stats(&self) -> TransferStats {
        let done_bytes = if self.has_begun { self.done_bytes() } else { 0 };
        TransferStats {
            kind: RequestKind::Push,
            id: Some(self.id),
            path: self.path.as_bytes().to_vec(),
            files: 1,
            files_done: 0,
            sent_bytes: 0,
            received_bytes: self.received_bytes(),
            done_bytes,
            total_bytes: Some(self.request_size),
            all_done_bytes: done_bytes,
            all_total_bytes: Some(self.request_size),
            wait: Some(self.wait()),
            slow: self.client.slow(),
            pace: Pace::default(),
        }
    }

    /// A piece comes: the first one shows the round-trip time.
    fn arrives(&mut self, now: Option<Instant>) {
        if let Some((begun, now)) = self.begun_at.take().zip(now) {
            self.window.round_trip(now.saturating_duration_since(begun));
        }
    }

    /// Takes a piece, if it is the next one and the credit covers it.
    fn take(&mut self, entry: &DataEntry, bodies: &[Bytes]) -> Result<PushWrite, Failure> {
        let DataEntry { n, body, offset, length, body_length, .. } = *entry;
        if !self.has_begun {
            return Err(refused("data before the answer to the push"));
        }
        if n != 0 || body != Body::Plain || length == 0 || length > PUSH_CHUNK_BYTES_MAX {
            return Err(refused("an entry of a push has n 0, a plain body, and 1 to 262,144 bytes"));
        }
        let [body] = bodies else { return Err(refused("a data message of a push has one body")) };
        if body.len() as u64 != body_length {
            return Err(refused("a body's length differs from the header"));
        }
        let cost = length.max(PIECE_COST_MIN);
        let Some(credit) = self.credit.checked_sub(cost) else { return Err(refused("more than the credit")) };
        match self.missing.front_mut() {
            Some(next) if next.offset == offset && length <= next.length => {
                next.offset += length;
                next.length -= length;
                if next.length == 0 {
                    self.missing.pop_front();
                }
            }
            _ => return Err(refused("a piece that isn't the next one that the server lacks")),
        }
        self.credit = credit;
        let data = if body.len() < COPIED_BELOW_BYTES { Bytes::copy_from_slice(body) } else { body.clone() };
        Ok(PushWrite { offset, data, credit: cost })
    }
}

fn refused(message: &str) -> Failure {
    Failure::new(ErrorCode::BadRequest, message)
}

/// The ranges of a file of this size that aren't among these, which ascend.
fn missing(have: &[Range], size: u64) -> VecDeque<Range> {
    let mut missing = VecDeque::new();
    let mut at = 0;
    let end = Range { offset: size, length: 0 };
    for range in have.iter().chain([&end]) {
        if range.offset > at {
            missing.push_back(Range { offset: at, length: range.offset - at });
        }
        at = at.max(range.end());
    }
    missing
}
