//! State that all requests of a client share: credit, actions, replies, and what the socket has.

use super::credit::{Credit, Credits};
use super::{Action, Envelope, LogEvent, Outgoing, Part, Slot, Ticket};
use crate::protocol::CONTROL_TAG;
use crate::protocol::control::{ErrorReply, Reply, WirePath};
use crate::server::Failure;
use crate::server::jobs::Job;
use crate::server::quota::Quotas;
use crate::server::stats::RequestKind;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;
use towpath_rules::Permissions;

/// State that all requests of a client share.
#[derive(Debug)]
pub(super) struct Shared<F> {
    pub(super) credits: Credits,
    pub(super) actions: VecDeque<Action<F>>,
    pub(super) replies: VecDeque<Outgoing<F>>,
    pub(super) reply_bytes: usize,
    /// Pieces of files in the socket's queue, and their bytes.
    pub(super) in_socket: HashMap<Slot, InSocket<F>>,
    pub(super) in_socket_bytes: u64,
    /// The time, as the server knew it last; None where nothing depends on it.
    pub(super) now: Option<Instant>,
    /// This client's shares.
    pub(super) quotas: Quotas,
    /// This client's permissions.
    pub(super) permissions: Permissions,
    /// A file could not be opened, as all clients have too many open.
    pub(super) waits_for_files: bool,
    /// Credit that each data message cost, while the message may be in the socket's queue.
    pub(super) costs: VecDeque<(Ticket, Credit, u64)>,
    pub(super) next_ticket: u64,
    pub(super) next_slot: Slot,
}

#[derive(Debug)]
pub(super) struct InSocket<F> {
    pub(super) ticket: Ticket,
    pub(super) length: u64,
    pub(super) file: F,
}

impl<F> Shared<F> {
    pub(super) fn new(quotas: Quotas) -> Shared<F> {
        Shared {
            credits: Credits::default(),
            actions: VecDeque::new(),
            replies: VecDeque::new(),
            reply_bytes: 0,
            in_socket: HashMap::new(),
            in_socket_bytes: 0,
            now: None,
            quotas,
            permissions: Permissions::unrestricted(),
            waits_for_files: false,
            costs: VecDeque::new(),
            next_ticket: 1,
            next_slot: 1,
        }
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    pub(super) fn start(&mut self, ticket: Ticket, job: Job<F>) {
        self.actions.push_back(Action::Start(ticket, job));
    }

    pub(super) fn slot(&mut self) -> Slot {
        self.next_slot += 1;
        self.next_slot
    }

    pub(super) fn reply(&mut self, envelope: &Envelope, reply: &Reply) {
        self.reply_json(envelope, reply.encode().into(), None);
    }

    pub(super) fn reply_json(&mut self, envelope: &Envelope, json: Bytes, attachment: Option<Bytes>) {
        let tag = Bytes::from_static(CONTROL_TAG);
        let frames = envelope.iter().cloned().chain([tag, json]).chain(attachment);
        self.reply_frames(frames.collect());
    }

    pub(super) fn reply_frames(&mut self, frames: Vec<Bytes>) {
        self.reply_bytes += frames.iter().map(Bytes::len).sum::<usize>();
        self.replies.push_back(Outgoing { ticket: None, parts: frames.into_iter().map(Part::Bytes).collect() });
    }

    pub(super) fn error(&mut self, envelope: &Envelope, id: Option<u32>, failure: Failure) {
        self.reply(envelope, &Reply::Error(ErrorReply { id, code: failure.code, message: failure.message }));
    }

    /// The same for a request about a path, with a line for the operator.
    pub(super) fn refuse(
        &mut self,
        envelope: &Envelope,
        (what, id): (RequestKind, u32),
        path: WirePath,
        failure: Failure,
    ) {
        self.actions.push_back(Action::Log(LogEvent::Refused { what, count: 1, path, failure: failure.clone() }));
        self.error(envelope, Some(id), failure);
    }

    pub(super) fn next_reply(&mut self) -> Option<Outgoing<F>> {
        let reply = self.replies.pop_front()?;
        let bytes: usize =
            reply.parts.iter().map(|part| if let Part::Bytes(bytes) = part { bytes.len() } else { 0 }).sum();
        self.reply_bytes = self.reply_bytes.saturating_sub(bytes);
        Some(reply)
    }

    /// Registers a piece of a file that goes to the socket.
    pub(super) fn hand_over(&mut self, ticket: Ticket, slot: Slot, length: u64, file: F) {
        self.in_socket.insert(slot, InSocket { ticket, length, file });
        self.in_socket_bytes += length;
    }

    /// Forgets the pieces of a request that the socket has.
    pub(super) fn forget_in_socket(&mut self, ticket: Ticket) {
        let of_ticket = self.in_socket.extract_if(|_, piece| piece.ticket == ticket);
        let bytes: u64 = of_ticket.map(|(_, piece)| piece.length).sum();
        self.in_socket_bytes = self.in_socket_bytes.saturating_sub(bytes);
    }
}
