//! The broker as a pure function: events and a time in, actions out. No socket, file, thread or clock.
//!
//! A driver tells the [`Core`] what peers say, carries out its [`Action`]s, and writes its [`Entry`]s to a journal. The core
//! matches requests with workers by least recent use, keeps what each worker holds, gives it to another one when the worker
//! goes, and keeps every outcome until the client that numbered the request has confirmed it.
//!
//! A queue that several brokers share would join here: as one more source of requests ([`Core::restore`]) and one more taker
//! of [`Entry`]s.
//!
//! What happens by the million is wanted as a [`QueuedAction`], whose body stays here until it is carried out.

mod actions;
mod admission;
mod clients;
mod dead_letter;
mod drain;
mod durability;
mod expiry;
mod in_flight;
mod outcome;
mod reply_budget;
mod requests;
mod requeue;
mod roles;
mod sequence_map;
mod service;
mod session;
mod settings;
mod stats;
mod stored;
mod token;
mod worker;
mod workers;

#[cfg(test)]
mod tests;

pub use actions::{BodyRef, QueuedAction};
pub use admission::MemoryPressure;
pub use durability::{Entry, Restored};
pub use settings::{Millis, Settings};
pub use stats::{Counters, ServiceInfo, WorkerInfo};
pub use stored::StoredState;
pub use worker::Kind;

use bytes::Bytes;
use in_flight::InFlightWindows;
use reply_budget::ReplyBudget;
use requests::Requests;
use requests::State;
use roles::{Role, Roles};
use service::Services;
use session::Sessions;
use std::sync::Arc;
use token::TokenMaker;
use towpath_requests::body::Body;
use towpath_requests::numbered::{ClientId, Status, Token};
use worker::Workers;

/// A connection, as the driver counts them: a small number, used again after [`Core::peer_gone`].
pub type Peer = u32;

type SessionKey = u32;
type ServiceKey = u32;
type WorkerKey = u32;

/// What came with a stock client's request and must go back with its reply.
pub type StockEnvelope = Option<Arc<[Bytes]>>;

/// What the driver is to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Tell a numbered client that it is known.
    Welcome {
        /// Which connection.
        peer: Peer,
    },
    /// Tell a numbered client an outcome, or part of one.
    Reply {
        /// Which connection.
        peer: Peer,
        /// The request's number.
        number: u64,
        /// How it ended.
        status: Status,
        /// A part, or the last.
        part: Option<u32>,
        /// The reply or the reason.
        body: Body,
    },
    /// Tell a numbered client that requests are on the disk.
    Accepted {
        /// Which connection.
        peer: Peer,
        /// The first number.
        first: u64,
        /// How many.
        count: u32,
    },
    /// Tell a numbered client that a request was not taken.
    Refused {
        /// Which connection.
        peer: Peer,
        /// The request's number.
        number: u64,
        /// Why.
        status: Status,
        /// When to try again; 0: never.
        retry_ms: u32,
        /// Why, for people.
        reason: &'static str,
    },
    /// Reply to a stock client.
    StockReply {
        /// Which connection.
        peer: Peer,
        /// What came with the request.
        envelope: StockEnvelope,
        /// The service that replies.
        service: Bytes,
        /// How it ended.
        status: Status,
        /// Whether more will follow.
        partial: bool,
        /// The reply or the reason.
        body: Body,
    },
    /// Give a request to a worker.
    Dispatch {
        /// Which connection.
        peer: Peer,
        /// What its reply must bring back.
        token: Token,
        /// From 1.
        attempt: u16,
        /// What is left of its time; 0: there is no limit.
        ttl_ms: u32,
        /// The request.
        body: Body,
    },
    /// Tell a worker that nobody wants a reply any more.
    CancelWork {
        /// Which connection.
        peer: Peer,
        /// Of which request.
        token: Token,
    },
    /// Answer by [`Core::built_in_reply`].
    BuiltIn {
        /// What the answer must bring back.
        token: Token,
        /// The service, which begins with `mmi.` or `titanic.`.
        service: Bytes,
        /// The request.
        body: Body,
    },
    /// Send a stock worker a heartbeat.
    Heartbeat {
        /// Which connection.
        peer: Peer,
    },
    /// Tell a worker that the broker is stopping.
    Leave {
        /// Which connection.
        peer: Peer,
    },
    /// Stop or go on reading from a stock client.
    Pause {
        /// Which connection.
        peer: Peer,
        /// Stop?
        paused: bool,
    },
    /// Tell the operator that a request was given up: as many workers as it may be given to went while they had it.
    GaveUp {
        /// Whose it was; `None`: a stock client's.
        client: Option<ClientId>,
        /// Its number there.
        number: u64,
        /// For which service it was.
        service: Bytes,
        /// How many workers.
        attempts: u16,
        /// It is in the journal, and kept as a request for this service. `None`: it isn't, or there is no room.
        kept_for: Option<Bytes>,
    },
    /// Tell the operator that a worker replied, and there was no room for that.
    ReplyLost {
        /// Whose request it was.
        client: Option<ClientId>,
        /// Its number there.
        number: u64,
        /// For which service it was.
        service: Bytes,
        /// Bytes of memory that the reply needs.
        bytes: usize,
    },
    /// End a connection of a client that can be served by another broker, when it has heard what there is to say. The core has already
    /// forgotten it.
    SendAway {
        /// Which connection.
        peer: Peer,
        /// Why, for people.
        reason: &'static str,
    },
    /// End a connection. The core has already forgotten it.
    Disconnect {
        /// Which connection.
        peer: Peer,
        /// Why, for people.
        reason: &'static str,
    },
}

/// The broker's state.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    requests: Requests,
    sessions: Sessions,
    services: Services,
    workers: Workers,
    roles: Roles,
    tokens: TokenMaker,
    actions: actions::ActionQueue,
    durability: durability::Durability,
    stored: stored::Stored,
    dead_letters: dead_letter::DeadLetters,
    /// Bytes of memory of all requests and replies.
    bytes: usize,
    replies: ReplyBudget,
    deadlines: expiry::Deadlines,
    paused: admission::PausedClients,
    windows: InFlightWindows,
    drain: drain::Drain,
    storage_failed: bool,
    counters: Counters,
}

impl Core {
    /// A broker without peers.
    pub fn new(settings: Settings) -> Core {
        let seed = settings.secret[0];
        Core {
            requests: Requests::default(),
            sessions: Sessions::new(seed),
            services: Services::new(seed),
            workers: Workers::default(),
            roles: Roles::default(),
            tokens: TokenMaker::new(settings.secret),
            actions: actions::ActionQueue::default(),
            durability: durability::Durability::default(),
            stored: stored::Stored::default(),
            dead_letters: dead_letter::DeadLetters::default(),
            bytes: 0,
            replies: ReplyBudget::new(&settings),
            deadlines: expiry::Deadlines::default(),
            paused: admission::PausedClients::default(),
            windows: InFlightWindows::new(&settings),
            drain: drain::Drain::default(),
            storage_failed: false,
            counters: Counters::default(),
            settings,
        }
    }

    /// How it was told to behave.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A connection is gone: what a worker held goes to others, what a stock client waited for is given up, what a numbered
    /// client has here waits for it.
    pub fn peer_gone(&mut self, now: Millis, peer: Peer) {
        match self.roles.get(peer) {
            Role::None => {}
            Role::Client(session) => {
                self.roles.set(peer, Role::None);
                self.client_gone(now, session);
            }
            Role::Worker(worker) => {
                self.roles.set(peer, Role::None);
                self.worker_gone(now, worker);
            }
        }
    }

    /// The driver can't take more output for a connection, or can again.
    pub fn peer_blocked(&mut self, now: Millis, peer: Peer, blocked: bool) {
        match self.roles.get(peer) {
            Role::None => {}
            Role::Client(session) => {
                if let Some(state) = self.sessions.get_mut(session) {
                    state.blocked = blocked;
                    if !blocked {
                        self.open_client_window(session);
                    }
                    self.unpark(now, session);
                }
            }
            Role::Worker(worker) => self.worker_blocked(now, worker, blocked),
        }
    }

    /// Bytes of large bodies that there is room for.
    pub fn set_large_bytes_max(&mut self, bytes: u64) {
        self.settings.large_bytes_max = bytes;
    }

    /// The driver's journal fails (no new request is taken), or works again.
    pub fn storage_failed(&mut self, failed: bool) {
        self.storage_failed = failed;
    }

    /// Requests of a client that have no outcome, or one that isn't confirmed.
    #[inline]
    pub fn outstanding(&self, peer: Peer) -> usize {
        match self.roles.get(peer) {
            Role::Client(key) => self.sessions[key].requests.len(),
            Role::None | Role::Worker(_) => 0,
        }
    }

    /// Whether a connection is a client's or a worker's.
    pub fn has_role(&self, peer: Peer) -> bool {
        self.roles.get(peer) != Role::None
    }

    /// Ends a connection that broke the rules, or isn't wanted any more.
    fn disconnect(&mut self, now: Millis, peer: Peer, reason: &'static str) {
        self.peer_gone(now, peer);
        self.actions.push(Action::Disconnect { peer, reason });
    }

    /// Changes what a request holds, and keeps the sums true.
    fn update_request(&mut self, slot: u32, change: impl FnOnce(&mut requests::Request)) {
        let request = self.requests.at_mut(slot);
        let before = request.bytes();
        change(request);
        let after = request.bytes();
        let session = request.session;
        self.bytes = self.bytes + after - before;
        self.paused.memory_freed |= after < before;
        if let Some(session) = self.sessions.get_mut(session) {
            session.bytes = session.bytes + after - before;
        }
    }

    /// Whether all lists and sums agree with each other; panics if they don't. For tests: it looks at every request.
    #[doc(hidden)]
    pub fn check(&self) {
        let mut bytes = 0;
        for (slot, request) in self.requests.iter() {
            bytes += request.bytes();
            let session = &self.sessions[request.session];
            assert_eq!(session.requests.get(request.number), Some(slot));
            match request.state {
                State::Held(worker, _) => assert!(self.workers[worker].held.len > 0),
                State::Free => panic!("a free slot is listed"),
                State::Waiting | State::Parked | State::Detached | State::Settled => {}
            }
        }
        bytes += self.sessions.iter().map(|(_, session)| session.confirmed.gaps() * session::GAP_BYTES).sum::<usize>();
        assert_eq!(bytes, self.bytes, "the sum of all bytes");
        self.check_replies();
        self.check_dead_letters();
        let of_sessions: usize = self.sessions.iter().map(|(_, session)| session.requests.len()).sum();
        assert_eq!(of_sessions, self.requests.len());
        let states = |wanted: fn(State) -> bool| self.requests.iter().filter(|(_, r)| wanted(r.state)).count();
        let held: usize = self.workers.iter().map(|(_, worker)| worker.held.len).sum();
        assert_eq!(held, states(|state| matches!(state, State::Held(..))));
        assert_eq!(self.services.iter().map(|(_, s)| s.waiting.len()).sum::<usize>(), states(|s| s == State::Waiting));
        let out = self.workers.iter().filter(|(_, worker)| worker.is_out()).count();
        assert_eq!(out, self.services.iter().map(|(_, service)| service.workers_out).sum::<usize>());
        let parked: usize = self.sessions.iter().map(|(_, session)| session.parked.len).sum();
        assert_eq!(parked, states(|state| state == State::Parked));
        self.check_windows();
        self.sessions.check();
        self.services.check(&self.requests);
    }
}
