//! One client's state: a pure state machine, without socket, file, thread or clock.
//!
//! Events go in: [`Session::request`], [`Session::plain_request`], [`Session::finish`] for the answer to a job, [`Session::sent`] for a piece of
//! a file that has left. Then the driver calls, in this order: [`Session::still_queued`]; [`Session::next_action`] until there is none, with
//! [`Session::taken_back`] where an action asks for it; [`Session::next_message`] while the socket has room, with actions in between; then
//! [`Session::take_waits_for_files`] and [`Session::is_congested`].
//!
//! [`Fetch`] and [`Plain`] have the state of transfers, [`Query`] that of listings and leaves. All memory is bounded by
//! [`limits`](super::limits) and the number of requests.

mod credit;
mod fetch;
mod large;
mod pipeline;
mod plain;
#[cfg(test)]
mod tests;
mod types;

pub(super) use types::{Action, Envelope, IfShort, LogEvent, Outgoing, Part, Slot, Ticket};

use super::Failure;
use super::jobs::{Answer, Job, Leaves, LeavesAnswer, List, Page};
use super::limits::{
    PAGE_BYTES_EXPECTED, PAGES_AHEAD_MAX, PLAIN_WAITING_MAX, REPLIES_WAITING_MAX, REPLY_BYTES_WAITING_MAX,
};
use super::quota::Quotas;
use super::stats::TransferStats;
use crate::limits::{CHUNK_BYTES_MAX, FETCH_FILES_MAX, REQUESTS_MAX};
use crate::protocol::control::{Cancelled, ErrorReply, FetchRequest, HelloReply, ListRequest, Reply, Request};
use crate::protocol::plain::PlainRequest;
use crate::protocol::{CONTROL_TAG, ErrorCode, WireError};
use bytes::Bytes;
use credit::Credit;
use fetch::Fetch;
use plain::Plain;
use std::collections::{HashMap, VecDeque};
use towpath_sockets::Principal;

/// The session of one client. `F` is an open file, cheap to clone.
#[derive(Debug)]
pub(super) struct Session<F> {
    /// The client's identity, which its requests are admitted by.
    principal: Principal,
    shared: Shared<F>,
    /// In the order of their turns.
    fetches: VecDeque<Fetch<F>>,
    queries: Vec<Query>,
    /// Listings whose next page was requested and is not being made, in the order of their turns.
    pages_wanted: VecDeque<Ticket>,
    plain: Plain<F>,
}

/// State that all requests of a client share.
#[derive(Debug)]
struct Shared<F> {
    credit: Credit,
    actions: VecDeque<Action<F>>,
    replies: VecDeque<Outgoing<F>>,
    reply_bytes: usize,
    /// Pieces of files in the socket's queue, and their bytes.
    in_socket: HashMap<Slot, InSocket<F>>,
    in_socket_bytes: u64,
    /// This client's shares.
    quotas: Quotas,
    /// A file could not be opened, as all clients have too many open.
    waits_for_files: bool,
    /// Credit that each data message cost, while the message may be in the socket's queue.
    costs: VecDeque<(Ticket, u64)>,
    next_ticket: u64,
    next_slot: Slot,
}

#[derive(Debug)]
struct InSocket<F> {
    ticket: Ticket,
    length: u64,
    file: F,
}

/// A listing or a request for leaves.
#[derive(Debug)]
struct Query {
    id: u32,
    ticket: Ticket,
    envelope: Envelope,
    /// For a listing.
    pages: Option<Pages>,
}

/// Requested pages of a listing.
#[derive(Debug)]
struct Pages {
    /// Pages requested and not made.
    asked: u32,
    is_making: bool,
    /// The request, until the listing is begun.
    request: Option<ListRequest>,
}

impl<F: Clone> Session<F> {
    /// A session with the client's shares of the server's quotas.
    pub(super) fn new(principal: Principal, quotas: Quotas) -> Session<F> {
        let mut shared = Shared {
            credit: Credit::default(),
            actions: VecDeque::new(),
            replies: VecDeque::new(),
            reply_bytes: 0,
            in_socket: HashMap::new(),
            in_socket_bytes: 0,
            quotas,
            waits_for_files: false,
            costs: VecDeque::new(),
            next_ticket: 1,
            next_slot: 1,
        };
        let plain = Plain::new(shared.ticket());
        Session {
            principal,
            shared,
            fetches: VecDeque::new(),
            queries: Vec::new(),
            pages_wanted: VecDeque::new(),
            plain,
        }
    }

    /// The client's identity.
    pub(super) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Takes a control message.
    pub(super) fn request(&mut self, envelope: Envelope, request: Result<Request, WireError>) {
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                return self.shared.error(&envelope, error.id, Failure::new(error.code, error.message));
            }
        };
        match request {
            Request::Hello => self.shared.reply(&envelope, &Reply::Hello(hello())),
            Request::Credit { bytes } => {
                self.shared.credit.add(bytes);
            }
            Request::Cancel { id } => self.cancel(&envelope, id),
            Request::Confirm(confirm) => self.shared.actions.push_back(Action::Log(LogEvent::Confirmed(confirm))),
            Request::More { id } => self.more(&envelope, id),
            Request::List(list) => {
                if let Some(ticket) = self.admit(&envelope, list.id) {
                    let id = list.id;
                    let pages = Pages { asked: 1, is_making: false, request: Some(list) };
                    self.queries.push(Query { id, ticket, envelope, pages: Some(pages) });
                    self.pages_wanted.push_back(ticket);
                    self.make_pages();
                }
            }
            Request::Leaves(leaves) => {
                if let Some(ticket) = self.admit(&envelope, leaves.id) {
                    self.queries.push(Query { id: leaves.id, ticket, envelope, pages: None });
                    self.shared.start(ticket, Job::Leaves(Leaves { request: leaves }));
                }
            }
            Request::Fetch(request) => self.fetch(envelope, request),
        }
    }

    fn fetch(&mut self, envelope: Envelope, request: FetchRequest) {
        // Credit counts even if the fetch is refused: the client has given it, and may have no more to give.
        self.shared.credit.add(request.credit_bytes);
        let Some(ticket) = self.admit(&envelope, request.id) else { return };
        let names_bytes = request.memory_bytes() as u64;
        let Some(names) = self.shared.quotas.fetch_names.try_acquire(names_bytes) else {
            let failure = Failure::new(ErrorCode::Busy, "fetches that are not over name too many files and ranges");
            return self.shared.error(&envelope, Some(request.id), failure);
        };
        let mut fetch = Fetch::new(ticket, envelope, request, names);
        fetch.progress(&mut self.shared);
        self.fetches.push_back(fetch);
    }

    /// Takes a request of the plain dialect.
    pub(super) fn plain_request(&mut self, envelope: Envelope, request: Result<PlainRequest, WireError>) {
        self.plain.request(envelope, request, &mut self.shared);
    }

    /// Takes the answer to a job. Answers to a request that is over are ignored.
    pub(super) fn finish(&mut self, ticket: Ticket, answer: Answer<F>) {
        match answer {
            Answer::Prepare(files) => self.with_fetch(ticket, |fetch, shared| fetch.prepared(files, shared)),
            Answer::Hash(n, result) => self.with_fetch(ticket, |fetch, _| fetch.hashed(n, result)),
            Answer::FindExtents(n, result) => self.with_fetch(ticket, |fetch, _| fetch.found_extents(n, result)),
            Answer::Load(slot, result) if ticket == self.plain.ticket() => {
                self.plain.loaded(slot, result, &mut self.shared);
            }
            Answer::Load(slot, result) => {
                self.with_fetch(ticket, |fetch, shared| fetch.loaded(slot, result, shared));
            }
            Answer::List(result) => self.listed(ticket, result),
            Answer::Leaves(result) => self.found_leaves(ticket, result),
            Answer::Open(result) => self.plain.opened(result, &mut self.shared),
        }
    }

    /// File of a fetch's piece in the socket's queue, to be checked when the piece has left.
    pub(super) fn file_in_socket(&self, slot: Slot) -> Option<&F> {
        self.shared.in_socket.get(&slot).filter(|piece| piece.ticket != self.plain.ticket()).map(|piece| &piece.file)
    }

    /// Handles a piece of a file that has left; `result` is an error if the file had changed by then.
    pub(super) fn sent(&mut self, slot: Slot, result: Result<(), Failure>) {
        let Some(piece) = self.shared.in_socket.remove(&slot) else { return };
        self.shared.in_socket_bytes = self.shared.in_socket_bytes.saturating_sub(piece.length);
        self.with_fetch(piece.ticket, |fetch, _| fetch.sent(slot, result));
    }

    fn listed(&mut self, ticket: Ticket, result: Result<Page, Failure>) {
        let Some(at) = self.queries.iter().position(|query| query.ticket == ticket) else { return };
        let Some(query) = self.queries.get_mut(at) else { return };
        match result {
            Ok(page) => {
                self.shared.reply_json(&query.envelope, page.json, None);
                if page.more
                    && let Some(pages) = &mut query.pages
                {
                    pages.is_making = false;
                    pages.asked = pages.asked.saturating_sub(1);
                    if pages.asked > 0 {
                        self.pages_wanted.push_back(ticket);
                    }
                    return self.make_pages();
                }
            }
            Err(failure) => self.shared.error(&query.envelope, Some(query.id), failure),
        }
        self.queries.swap_remove(at);
        self.shared.actions.push_back(Action::Release { ticket, take_back: false });
        self.make_pages();
    }

    /// Starts requested pages while few are being made and few replies wait: a client that doesn't read can't make this hold more.
    fn make_pages(&mut self) {
        if self.pages_wanted.is_empty() {
            return;
        }
        let is_made = |query: &&Query| query.pages.as_ref().is_some_and(|pages| pages.is_making);
        let mut making = self.queries.iter().filter(is_made).count();
        while self.shared.replies.len() + making < REPLIES_WAITING_MAX
            && self.shared.reply_bytes + making * PAGE_BYTES_EXPECTED < REPLY_BYTES_WAITING_MAX
        {
            let Some(ticket) = self.pages_wanted.pop_front() else { return };
            let query = self.queries.iter_mut().find(|query| query.ticket == ticket);
            let Some(pages) = query.and_then(|query| query.pages.as_mut()) else { continue };
            pages.is_making = true;
            making += 1;
            let begin = pages.request.take();
            self.shared.start(ticket, Job::List(List { begin }));
        }
    }

    fn found_leaves(&mut self, ticket: Ticket, result: Result<LeavesAnswer, Failure>) {
        let Some(at) = self.queries.iter().position(|query| query.ticket == ticket) else { return };
        let query = self.queries.swap_remove(at);
        match result {
            Ok(LeavesAnswer { mut reply, attachment }) => {
                reply.id = query.id;
                self.shared.reply_json(&query.envelope, Reply::Leaves(reply).encode().into(), Some(attachment));
            }
            Err(failure) => self.shared.error(&query.envelope, Some(query.id), failure),
        }
        self.shared.actions.push_back(Action::Release { ticket, take_back: false });
    }

    /// Returns the credit of data messages that the socket took back: the client never gets them.
    pub(super) fn taken_back(&mut self, ticket: Ticket, messages: usize) {
        let Shared { costs, credit, .. } = &mut self.shared;
        costs.iter_mut().rev().filter(|(of, _)| *of == ticket).take(messages).for_each(|(_, cost)| {
            credit.add(std::mem::take(cost));
        });
    }

    /// Drops the costs of messages that have left: the socket has this many queued.
    pub(super) fn still_queued(&mut self, messages: usize) {
        let gone = self.shared.costs.len().saturating_sub(messages);
        self.shared.costs.drain(..gone);
    }

    /// The next thing to be done outside of the session.
    pub(super) fn next_action(&mut self) -> Option<Action<F>> {
        self.shared.actions.pop_front()
    }

    /// Whether [`Session::next_action`] has any.
    pub(super) fn has_actions(&self) -> bool {
        !self.shared.actions.is_empty()
    }

    /// The next message. Called only when the socket has room.
    pub(super) fn next_message(&mut self) -> Option<Outgoing<F>> {
        if let Some(reply) = self.shared.next_reply() {
            self.make_pages();
            return Some(reply);
        }
        if let Some(message) = self.plain.next_message(&mut self.shared) {
            return Some(message);
        }
        for _ in 0..self.fetches.len() {
            let mut fetch = self.fetches.pop_front()?;
            fetch.progress(&mut self.shared);
            // Metadata of a file, and the end of the one before it, precede its data.
            if let Some(reply) = self.shared.next_reply() {
                if !fetch.is_over() {
                    self.fetches.push_front(fetch);
                }
                return Some(reply);
            }
            let message = fetch.next_data(&mut self.shared);
            fetch.progress(&mut self.shared);
            if !fetch.is_over() {
                self.fetches.push_back(fetch);
            }
            if message.is_some() {
                return message;
            }
        }
        None
    }

    /// Open transfers, those of the plain dialect last.
    pub(super) fn transfers(&self) -> Vec<TransferStats> {
        self.fetches.iter().map(|fetch| fetch.stats(&self.shared)).chain(self.plain.stats()).collect()
    }

    /// Listings and requests for leaves that are open.
    pub(super) fn queries(&self) -> usize {
        self.queries.len()
    }

    /// Bytes that may be sent.
    pub(super) fn credit(&self) -> u64 {
        self.shared.credit.available()
    }

    /// Whether no request is open, except for the plain dialect.
    pub(super) fn is_idle(&self) -> bool {
        self.fetches.is_empty() && self.queries.is_empty()
    }

    /// Whether so many replies wait for this client that it should not be read for now.
    pub(super) fn is_congested(&self) -> bool {
        self.shared.replies.len() >= REPLIES_WAITING_MAX
            || self.shared.reply_bytes >= REPLY_BYTES_WAITING_MAX
            || self.plain.waiting() >= PLAIN_WAITING_MAX
    }

    /// Whether a file has had to wait since the last call, because all clients together have too many open. Once [`Quotas::open_files`] has some
    /// available, [`Session::next_message`] opens it.
    pub(super) fn take_waits_for_files(&mut self) -> bool {
        std::mem::take(&mut self.shared.waits_for_files)
    }

    /// A ticket for a new request, unless there are too many or the id is in use.
    fn admit(&mut self, envelope: &Envelope, id: u32) -> Option<Ticket> {
        let in_use = self.ids().any(|(of, _)| of == id);
        let count = self.ids().count();
        if in_use || count >= REQUESTS_MAX {
            let message = if in_use { "the id is in use".into() } else { format!("more than {REQUESTS_MAX} requests") };
            self.shared.error(envelope, Some(id), Failure::new(ErrorCode::Busy, message));
            return None;
        }
        Some(self.shared.ticket())
    }

    fn ids(&self) -> impl Iterator<Item = (u32, Ticket)> {
        let queries = self.queries.iter().map(|query| (query.id, query.ticket));
        queries.chain(self.fetches.iter().map(|fetch| (fetch.id(), fetch.ticket())))
    }

    fn more(&mut self, envelope: &Envelope, id: u32) {
        let listing = self.queries.iter_mut().find(|query| query.id == id);
        let Some((ticket, pages)) = listing.and_then(|query| Some((query.ticket, query.pages.as_mut()?))) else {
            let message = "no listing of this id has more";
            return self.shared.error(envelope, Some(id), Failure::new(ErrorCode::BadRequest, message));
        };
        // Further ones are ignored: the next page answers them too.
        if pages.asked <= PAGES_AHEAD_MAX {
            pages.asked += 1;
            if pages.asked == 1 {
                self.pages_wanted.push_back(ticket);
                self.make_pages();
            }
        }
    }

    /// Cancels a request. Answered even if there is none: it may have ended while the cancel was on its way.
    fn cancel(&mut self, envelope: &Envelope, id: u32) {
        let found = self.ids().find(|(of, _)| *of == id);
        if let Some((_, ticket)) = found {
            self.queries.retain(|query| query.ticket != ticket);
            self.pages_wanted.retain(|of| *of != ticket);
            self.make_pages();
            if let Some(at) = self.fetches.iter().position(|fetch| fetch.ticket() == ticket)
                && let Some(mut fetch) = self.fetches.remove(at)
            {
                fetch.give_up(&mut self.shared);
            }
            let shared = &mut self.shared;
            let in_socket_bytes = &mut shared.in_socket_bytes;
            shared.in_socket.retain(|_, piece| {
                let keep = piece.ticket != ticket;
                if !keep {
                    *in_socket_bytes = in_socket_bytes.saturating_sub(piece.length);
                }
                keep
            });
            shared.actions.push_back(Action::Release { ticket, take_back: true });
        }
        self.shared.reply(envelope, &Reply::Cancelled(Cancelled { id }));
    }

    fn with_fetch(&mut self, ticket: Ticket, act: impl FnOnce(&mut Fetch<F>, &mut Shared<F>)) {
        let Some(at) = self.fetches.iter().position(|fetch| fetch.ticket() == ticket) else { return };
        let Some(fetch) = self.fetches.get_mut(at) else { return };
        act(fetch, &mut self.shared);
        fetch.progress(&mut self.shared);
        if fetch.is_over() {
            self.fetches.remove(at);
        }
    }
}

impl<F> Shared<F> {
    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    fn start(&mut self, ticket: Ticket, job: Job<F>) {
        self.actions.push_back(Action::Start(ticket, job));
    }

    fn slot(&mut self) -> Slot {
        self.next_slot += 1;
        self.next_slot
    }

    fn reply(&mut self, envelope: &Envelope, reply: &Reply) {
        self.reply_json(envelope, reply.encode().into(), None);
    }

    fn reply_json(&mut self, envelope: &Envelope, json: Bytes, attachment: Option<Bytes>) {
        let tag = Bytes::from_static(CONTROL_TAG);
        let frames = envelope.iter().cloned().chain([tag, json]).chain(attachment);
        self.reply_frames(frames.collect());
    }

    fn reply_frames(&mut self, frames: Vec<Bytes>) {
        self.reply_bytes += frames.iter().map(Bytes::len).sum::<usize>();
        self.replies.push_back(Outgoing { ticket: None, parts: frames.into_iter().map(Part::Bytes).collect() });
    }

    fn error(&mut self, envelope: &Envelope, id: Option<u32>, failure: Failure) {
        self.reply(envelope, &Reply::Error(ErrorReply { id, code: failure.code, message: failure.message }));
    }

    fn next_reply(&mut self) -> Option<Outgoing<F>> {
        let reply = self.replies.pop_front()?;
        let bytes: usize =
            reply.parts.iter().map(|part| if let Part::Bytes(bytes) = part { bytes.len() } else { 0 }).sum();
        self.reply_bytes = self.reply_bytes.saturating_sub(bytes);
        Some(reply)
    }

    /// Registers a piece of a file that goes to the socket.
    fn hand_over(&mut self, ticket: Ticket, slot: Slot, length: u64, file: F) {
        self.in_socket.insert(slot, InSocket { ticket, length, file });
        self.in_socket_bytes += length;
    }
}

fn hello() -> HelloReply {
    HelloReply {
        protocol: 1,
        software: concat!("towpath ", env!("CARGO_PKG_VERSION")).into(),
        chunk_bytes_max: CHUNK_BYTES_MAX,
        fetch_files_max: FETCH_FILES_MAX.try_into().unwrap_or(u32::MAX),
        requests_max: REQUESTS_MAX.try_into().unwrap_or(u32::MAX),
        features: ["zstd", "leaves", "holes"].map(String::from).into(),
    }
}
