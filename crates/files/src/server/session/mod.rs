//! One client's state: a pure state machine, without socket, file, thread or clock.
//!
//! Events go in: [`Session::request`], [`Session::plain_request`], [`Session::finish`] for the answer to a job, [`Session::sent`] for a piece of
//! a file that has left. Then the driver calls, in this order: [`Session::still_queued`]; [`Session::next_action`] until there is none, with
//! [`Session::taken_back`] where an action asks for it; [`Session::next_message`] while the socket has space, with actions in between; then
//! [`Session::take_waits_for_files`] and [`Session::is_congested`].
//!
//! [`Fetch`] and [`Plain`] have the state of transfers, [`Queries`] that of listings and operations. All memory is bounded by
//! [`limits`](super::limits) and the number of requests.

mod credit;
mod fetch;
mod follow;
mod large;
mod pipeline;
mod plain;
mod plain_follow;
pub(super) mod push;
mod queries;
mod shared;
mod stats;
#[cfg(test)]
mod tests;
mod types;

pub(super) use types::{Action, Ending, Envelope, IfShort, LogEvent, Outgoing, Part, Slot, Ticket};

use super::Failure;
use super::jobs::Answer;
use super::limits::{MESSAGES_SILENT_MAX, PLAIN_WAITING_MAX, REPLIES_WAITING_MAX, REPLY_BYTES_WAITING_MAX};
use super::operations::{Client, Operation, operation};
use super::quota::Quotas;
use super::stats::RequestKind;
use crate::limits::{CHUNK_BYTES_MAX, FETCH_FILES_MAX, REQUESTS_MAX};
use crate::path::RelPath;
use crate::protocol::control::{
    Cancelled, FetchRequest, HelloReply, HoldersRequest, PushRequest, Reply, Request, SlowReply, TcpBuffer,
};
use crate::protocol::data::DataHeader;
use crate::protocol::envelope::client_of;
use crate::protocol::follow::ServerId;
use crate::protocol::plain::{PlainFollow as PlainFollowRequest, PlainRequest, error_frames};
use crate::protocol::{ErrorCode, WireError};
use bytes::Bytes;
use credit::Credit;
use fetch::Fetch;
use follow::Follows;
use plain::Plain;
use plain_follow::PlainFollow;
use push::Pushes;
use queries::Queries;
use shared::Shared;
use std::collections::VecDeque;
use std::time::Instant;
use towpath_rules::{Permissions, Verb};
use towpath_sockets::Principal;

/// The session of one client. `F` is an open file, cheap to clone.
#[derive(Debug)]
pub(super) struct Session<F> {
    /// The client's identity, which its requests are admitted by.
    principal: Principal,
    shared: Shared<F>,
    /// In the order of their turns.
    fetches: VecDeque<Fetch<F>>,
    queries: Queries,
    plain: Plain<F>,
    follows: Follows,
    plain_follow: Option<PlainFollow>,
    pushes: Pushes,
    /// The server watches its directory.
    can_follow: bool,
    /// The server takes pushes.
    can_push: bool,
    /// The client may publish versions.
    may_publish: bool,
}

impl<F: Clone> Session<F> {
    /// A session with the client's shares of the server's quotas.
    pub(super) fn new(principal: Principal, quotas: Quotas) -> Session<F> {
        let mut shared = Shared::new(quotas);
        let plain = Plain::new(shared.ticket());
        Session {
            principal,
            shared,
            fetches: VecDeque::new(),
            queries: Queries::default(),
            plain,
            follows: Follows::default(),
            plain_follow: None,
            pushes: Pushes::default(),
            can_follow: false,
            can_push: false,
            may_publish: false,
        }
    }

    /// The same of a server that watches its directory, if it does, and whether this client may publish versions of it.
    pub(super) fn following(self, can_follow: bool, may_publish: bool) -> Session<F> {
        Session { can_follow, may_publish, ..self }
    }

    /// The same of a server that takes pushes, if it does.
    pub(super) fn taking_pushes(self, can_push: bool) -> Session<F> {
        Session { can_push, ..self }
    }

    /// The same of a client that may do only this.
    pub(super) fn permitting(mut self, permissions: Permissions) -> Session<F> {
        self.shared.permissions = permissions;
        self
    }

    /// Sets the time.
    pub(super) fn at(&mut self, now: Instant) {
        self.shared.now = Some(now);
    }

    /// The client's permissions. Whatever it asks for is checked against them: paths with links resolved, which jobs do
    /// ([`ClientRoot`](super::client_root::ClientRoot)), and others by [`Permissions::check`].
    pub(super) fn permissions(&self) -> &Permissions {
        &self.shared.permissions
    }

    /// Notes that something was published. Whether this client follows.
    pub(super) fn published(&mut self) -> bool {
        self.follows.published(&mut self.shared);
        if let Some(follow) = &mut self.plain_follow {
            follow.published(&mut self.shared);
        }
        self.plain_follow.is_some() || self.follows.requests().next().is_some()
    }

    /// Whether the client may report holders and ask for them, which shows names of others.
    fn may_know_holders(&self) -> bool {
        let may = |verb| self.shared.permissions.may_reach(verb, RelPath::root().as_bytes());
        may(Verb::Follow) || may(Verb::Publish)
    }

    /// Says what this server is.
    pub(super) fn hello(&mut self, envelope: &Envelope, via: Vec<ServerId>) {
        let hello = hello(self.can_follow, self.can_push, via);
        self.shared.reply(envelope, &Reply::Hello(hello));
    }

    /// Lets the client know that a TCP buffer limits what it is sent.
    pub(super) fn is_limited_by(&mut self, cause: TcpBuffer) {
        if let Some(fetch) = self.fetches.front() {
            let slow = SlowReply { id: fetch.id(), cause };
            self.shared.reply(fetch.envelope(), &Reply::Slow(slow));
        }
    }

    /// Answers an action.
    pub(super) fn reply(&mut self, envelope: &Envelope, reply: &Reply) {
        self.shared.reply(envelope, reply);
    }

    /// The client's identity.
    pub(super) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Takes a control message.
    pub(super) fn request(&mut self, envelope: Envelope, request: Result<Request, WireError>) {
        let request = match request {
            Ok(request) => request,
            // Its envelope may be over the limits, so the client isn't remembered by it.
            Err(error) => {
                return self.shared.error(&envelope, error.id, Failure::new(error.code, error.message));
            }
        };
        let credit = self.shared.credits.of(&envelope);
        match request {
            Request::Hello => self.shared.actions.push_back(Action::Hello(envelope)),
            Request::Credit { bytes, slow } => {
                credit.add(bytes);
                credit.set_slow(slow);
            }
            Request::Cancel { id } => self.cancel(&envelope, id),
            Request::Confirm(confirm) => self.shared.actions.push_back(Action::Log(LogEvent::Confirmed(confirm))),
            Request::Have(_) | Request::FetchesFor(_) | Request::Holders(_) if !self.may_know_holders() => {
                // The others have no answer.
                if let Request::Holders(HoldersRequest { id, .. }) = request {
                    let message = "the server's rules don't allow this client to follow or publish anything, so neither to know who has what";
                    self.shared.error(&envelope, Some(id), Failure::new(ErrorCode::Denied, message));
                }
            }
            Request::Have(have) => self.shared.actions.push_back(Action::Have(have.holders)),
            Request::FetchesFor(follower) => self.shared.actions.push_back(Action::FetchesFor(follower)),
            Request::Holders(request) => self.shared.actions.push_back(Action::Holders(envelope, request)),
            Request::More { id } if self.follows.more(&envelope, id, &mut self.shared) => {}
            Request::More { id } => self.queries.more(&envelope, id, &mut self.shared),
            Request::Follow(request) => {
                if !self.follows.has_space() {
                    return self.shared.error(&envelope, Some(request.id), Follows::too_many());
                }
                if let Some(ticket) = self.admit(&envelope, request.id) {
                    self.follows.follow(ticket, envelope, request, &mut self.shared);
                }
            }
            Request::List(list) => {
                if let Some(ticket) = self.admit(&envelope, list.id) {
                    self.queries.list(ticket, envelope, list, &mut self.shared);
                }
            }
            Request::Push(request) => self.push(envelope, request, credit),
            Request::Fetch(request) => self.fetch(envelope, request, credit),
            request => {
                if let Ok(operation) = operation(request) {
                    self.start(envelope, operation);
                }
            }
        }
    }

    fn start(&mut self, envelope: Envelope, operation: Box<dyn Operation>) {
        let client = Client { permissions: &self.shared.permissions, may_publish: self.may_publish };
        if let Err(failure) = operation.check(client) {
            let (what, path) = ((operation.kind(), operation.id()), operation.path().clone());
            return self.shared.refuse(&envelope, what, path, failure);
        }
        if let Some(ticket) = self.admit(&envelope, operation.id()) {
            self.queries.start(ticket, envelope, operation, &mut self.shared);
        }
    }

    fn push(&mut self, envelope: Envelope, request: PushRequest, credit: Credit) {
        if !self.can_push || !self.pushes.has_space() {
            let failure = if self.can_push { Pushes::too_many() } else { Pushes::not_taken() };
            return self.shared.refuse(&envelope, (RequestKind::Push, request.id), request.path, failure);
        }
        if let Some(ticket) = self.admit(&envelope, request.id) {
            self.pushes.push(ticket, (envelope, credit), request, &mut self.shared);
        }
    }

    /// Takes a data message, of a push.
    pub(super) fn data(&mut self, envelope: &Envelope, header: Result<DataHeader, WireError>, bodies: &[Bytes]) {
        if self.can_push {
            // So that it is known to be there.
            self.shared.credits.of(envelope);
            self.pushes.data(envelope, header, bodies, &mut self.shared);
        } else {
            let failure = Failure::new(ErrorCode::BadRequest, "data for a server that takes no pushes");
            self.shared.error(envelope, None, failure);
        }
    }

    fn fetch(&mut self, envelope: Envelope, request: FetchRequest, credit: Credit) {
        // Credit counts even if the fetch is refused: the client has given it, and may have no more to give.
        credit.add(request.credit_bytes);
        let Some(ticket) = self.admit(&envelope, request.id) else { return };
        let names_bytes = request.memory_bytes() as u64;
        let Some(names) = self.shared.quotas.fetch_names.try_acquire(names_bytes) else {
            let failure = Failure::new(ErrorCode::Busy, "fetches that are not over name too many files and ranges");
            return self.shared.error(&envelope, Some(request.id), failure);
        };
        let mut fetch = Fetch::new(ticket, envelope, request, names, credit);
        fetch.progress(&mut self.shared);
        self.fetches.push_back(fetch);
    }

    /// Takes a request of the plain dialect.
    pub(super) fn plain_request(&mut self, envelope: Envelope, request: Result<PlainRequest, WireError>) {
        self.plain.request(envelope, request, &mut self.shared);
    }

    /// Takes a follow of the plain dialect.
    pub(super) fn plain_follow(&mut self, envelope: Envelope, request: PlainFollowRequest) {
        if self.plain_follow.is_some() {
            let frames = error_frames("this connection follows already");
            return self.shared.reply_frames(envelope.into_iter().chain(frames).collect());
        }
        let (ticket, credit) = (self.shared.ticket(), self.shared.credits.of(&envelope));
        self.plain_follow = Some(PlainFollow::new(ticket, envelope, request, credit, &mut self.shared));
    }

    /// Takes credit of the plain dialect.
    pub(super) fn plain_credit(&mut self, envelope: &Envelope, bytes: u64) {
        self.shared.credits.of(envelope).add(bytes);
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
            Answer::List(result) => self.queries.listed(ticket, result, &mut self.shared),
            Answer::Reply(result) => self.queries.answered(ticket, result, &mut self.shared),
            Answer::Changes(result) => {
                let shared = &mut self.shared;
                match self.plain_follow.as_mut().filter(|follow| follow.ticket() == ticket) {
                    None => self.follows.on_changes(ticket, result, shared),
                    Some(follow) => {
                        if !follow.on_changes(result, shared) {
                            self.plain_follow = None;
                        }
                    }
                }
            }
            Answer::Piece(result) => {
                if let Some(follow) = &mut self.plain_follow {
                    follow.read(result, &mut self.shared);
                }
            }
            Answer::Open(result) => self.plain.opened(result, &mut self.shared),
            Answer::Push(update) => self.pushes.on_update(ticket, update, &mut self.shared),
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

    /// Returns the credit of data messages that the socket took back: the client never gets them.
    pub(super) fn taken_back(&mut self, ticket: Ticket, messages: usize) {
        let of_request = self.shared.costs.iter_mut().rev().filter(|(of, ..)| *of == ticket);
        of_request.take(messages).for_each(|(_, credit, cost)| credit.add(std::mem::take(cost)));
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

    /// The next message. Called only when the socket has space.
    pub(super) fn next_message(&mut self) -> Option<Outgoing<F>> {
        if let Some(follow) = &mut self.plain_follow {
            follow.progress(&mut self.shared);
        }
        if let Some(reply) = self.shared.next_reply() {
            self.queries.make_pages(&mut self.shared);
            self.follows.make_pages(&mut self.shared);
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

    /// The connection is lost: events of what ends with it.
    pub(super) fn lost(&self) -> impl Iterator<Item = LogEvent> {
        self.fetches.iter().map(|fetch| fetch.ended(Ending::Lost)).chain(self.plain.lost())
    }

    /// Frames that name the client of an open request; None for the plain dialect.
    pub(super) fn client(&self, ticket: Ticket) -> Option<&[Bytes]> {
        self.requests().find(|(_, of, _)| *of == ticket).map(|(.., envelope)| client_of(envelope))
    }

    /// Whether too many replies wait for this client, so that it should not be read for now.
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
        let in_use = self.find(envelope, id).is_some();
        if in_use || self.requests().count() - self.pushes.count() >= REQUESTS_MAX && !self.displace() {
            let message = if in_use { "the id is in use".into() } else { format!("more than {REQUESTS_MAX} requests") };
            self.shared.error(envelope, Some(id), Failure::new(ErrorCode::Busy, message));
            return None;
        }
        Some(self.shared.ticket())
    }

    /// Open requests except for the plain dialect: their ids, which are the clients', and envelopes.
    fn requests(&self) -> impl Iterator<Item = (u32, Ticket, &Envelope)> {
        let fetches = self.fetches.iter().map(|fetch| (fetch.id(), fetch.ticket(), fetch.envelope()));
        self.queries.requests().chain(self.follows.requests()).chain(self.pushes.requests()).chain(fetches)
    }

    /// The open request of this id, of the client that sent the envelope.
    fn find(&self, envelope: &Envelope, id: u32) -> Option<Ticket> {
        let mut same = self.requests().filter(|(of, ..)| *of == id);
        same.find(|(.., of)| client_of(of) == client_of(envelope)).map(|(_, ticket, _)| ticket)
    }

    /// Ends a request of a client that seems to be gone, while others behind the same proxy are active.
    fn displace(&mut self) -> bool {
        let Shared { credits, .. } = &self.shared;
        let silence = self.requests().map(|(id, ticket, envelope)| (credits.silence(envelope), id, ticket, envelope));
        let Some((silence, id, ticket, envelope)) = silence.max_by_key(|(silence, ..)| *silence) else { return false };
        if silence < MESSAGES_SILENT_MAX {
            return false;
        }
        let message = "this client was silent, and others behind the same proxy needed its place";
        let envelope = envelope.clone();
        self.shared.error(&envelope, Some(id), Failure::new(ErrorCode::Busy, message));
        self.end(ticket);
        true
    }

    /// Cancels a request. Answered even if there is none: it may have ended while the cancel was on its way.
    fn cancel(&mut self, envelope: &Envelope, id: u32) {
        if let Some(ticket) = self.find(envelope, id) {
            self.end(ticket);
        }
        self.shared.reply(envelope, &Reply::Cancelled(Cancelled { id }));
    }

    fn end(&mut self, ticket: Ticket) {
        self.queries.cancel(ticket, &mut self.shared);
        self.follows.cancel(ticket);
        self.pushes.cancel(ticket);
        if let Some(at) = self.fetches.iter().position(|fetch| fetch.ticket() == ticket)
            && let Some(mut fetch) = self.fetches.remove(at)
        {
            self.shared.actions.push_back(Action::Log(fetch.ended(Ending::Cancelled)));
            fetch.give_up();
        }
        self.shared.forget_in_socket(ticket);
        self.shared.actions.push_back(Action::Release { ticket, take_back: true });
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

fn hello(can_follow: bool, can_push: bool, via: Vec<ServerId>) -> HelloReply {
    let of_follows = can_follow.then_some(["follow", "have"]).into_iter().flatten();
    let features = ["zstd", "leaves", "holes"].into_iter().chain(of_follows).chain(can_push.then_some("push"));
    HelloReply {
        protocol: 1,
        software: concat!("towpath ", env!("CARGO_PKG_VERSION")).into(),
        chunk_bytes_max: CHUNK_BYTES_MAX,
        fetch_files_max: FETCH_FILES_MAX.try_into().unwrap_or(u32::MAX),
        requests_max: REQUESTS_MAX.try_into().unwrap_or(u32::MAX),
        features: features.map(String::from).collect(),
        via,
    }
}
