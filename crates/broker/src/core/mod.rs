//! The broker as a state machine without I/O: events and a time in, actions and journal entries out.
//!
//! The core matches requests with workers by least recent use, requeues what a worker held when its connection ends, and keeps every
//! outcome until the client that numbered the request has confirmed it.
//!
//! # Parts
//!
//! Each part owns its fields and their invariants. [`Core`] is what they have in common: a request passes through most of them.
//!
//! | part | what it owns |
//! |---|---|
//! | `Requests` | every request, in slots; the lists that requests are linked into |
//! | `Sessions`, `SequenceMap`, `NumberSet` | clients, their requests by number, and the numbers that are over |
//! | `Tenants` | identities of clients, and each tenant's shares |
//! | `Services`, `WaitingQueue` | services by name, and the requests that wait for a worker, by the turns of clients |
//! | `UsualTime` | how long a service usually takes |
//! | `Workers` | workers, what each holds, and when each may be given more |
//! | `Roles` | which session or worker a connection belongs to |
//! | `TokenMaker` | the secret by which a reply's token is recognised |
//! | `ActionQueue` | actions that the driver hasn't taken |
//! | `Durability` | entries on their way to the journal, and what waits for the disk |
//! | `Stored` | answers of the store-and-forward service that wait for the disk |
//! | `DeadLetters` | dead letters by age, their sums, and whose turn is next |
//! | `ReplyBudget` | memory of unconfirmed and expected replies |
//! | `PausedClients` | stock clients that aren't read, in the order of their turns |
//! | `InFlightWindows` | bytes sent since the last flush, and the peers with a full window |
//! | `Deadlines` | when something expires |
//! | `absent` | clients without a connection, and what gives way when others need it |
//! | `PausedServices` | names of the services that an operator has paused |
//! | `Fragile` | what a restart would lose |
//! | `Drain` | whether the broker is drained or stopping, and the clients that leave |
//!
//! # Path of a request
//!
//! `accept` (clients.rs) adds it and journals it, `enqueue` (outcome.rs) puts it into its service's queue, `dispatch` (workers.rs) gives it
//! to a worker or parks it, `settle` (outcome.rs) ends it, `send_outcome` (in_flight.rs) sends the outcome, and `forget` (outcome.rs)
//! removes it when the outcome is confirmed. `withdraw` (outcome.rs) takes it out of whatever list it is in, to end it otherwise.
//!
//! # Order of calls
//!
//! 1. At the start [`Core::restore`] for each request in the journal, then [`Core::restored_up_to`].
//! 2. In every round, events in the order in which they came. [`Core::connected`]. From clients: [`Core::client_hello`], [`Core::request`], [`Core::confirm`],
//!    [`Core::cancel`], [`Core::stock_request`]; [`Core::refuse`] and [`Core::stock_refuse`] for a request that the driver couldn't take in.
//!    From workers: [`Core::worker_ready`], [`Core::worker_credit`], [`Core::worker_alive`], [`Core::worker_reply`],
//!    [`Core::worker_returns_request`], [`Core::worker_leaving`]; [`Core::reject_part`] for a part of a reply. From both:
//!    [`Core::peer_blocked`], [`Core::peer_gone`]. From the journal: [`Core::persisted`], [`Core::entry_rejected`],
//!    [`Core::journal_full`], [`Core::storage_failed`]. From an operator: [`Core::pause_service`], [`Core::purge`], [`Core::end_request`],
//!    [`Core::go_on_with_letters`], [`Core::drain`].
//! 3. [`Core::tick`].
//! 4. [`Core::take_queued_actions`] until there are none. Each [`Action::BuiltIn`] is answered by [`Core::built_in_reply`],
//!    [`Core::store`] or [`Core::close_stored`], at once or later.
//! 5. [`Core::take_entries`].
//! 6. When all of it is sent, [`Core::flushed`]. If it returns true, steps 4 and 5 again.
//! 7. Wait for events, or until [`Core::next_deadline`].
//!
//! To stop: [`Core::stop`], rounds until [`Core::is_idle`] or the grace time is over, [`Core::end_stock_requests`], and steps 4 and 5.
//!
//! A broker that wins or loses the leadership of a shared log begins with another core: [`Settings::next_term`].

mod absent;
mod actions;
mod admission;
mod clients;
mod dead_letter;
mod drain;
mod durability;
mod expiry;
mod in_flight;
mod letter;
mod listed;
mod look;
mod marks;
mod operator;
mod outcome;
mod outcomes;
mod reply_budget;
mod requests;
mod requeue;
mod restart;
mod retry;
mod roles;
mod sequence_map;
mod service;
mod session;
mod settings;
mod stats;
mod stored;
mod tenants;
mod token;
mod usual;
mod worker;
mod workers;

#[cfg(test)]
mod tests;

pub(crate) use dead_letter::{canonical_name, is_dead_letter_queue};

pub use actions::{Action, BodyRef, QueuedAction, StockEnvelope};
pub use admission::{MemoryPressure, StorageFailure};
pub use durability::{Entry, Restored, RestoredLetter};
pub use letter::LetterDetails;
pub use listed::{NoRequestKey, NotEnded, RequestInfo, RequestKey, RequestState};
pub use look::{LargestClient, LastRefusal, Look, LookAt};
pub use operator::{LetterAction, LetterRun, NotDone, PAUSED_SERVICES_MAX, Purge};
pub use restart::RestartCost;
pub use settings::{Millis, Settings};
pub use stats::{Counters, LetterInfo, LetterState, ServiceCounters, ServiceInfo, WorkerInfo};
pub use stored::StoredState;
pub use worker::Kind;

use bytes::Bytes;
use in_flight::InFlightWindows;
use reply_budget::ReplyBudget;
use requests::{Requests, State};
use roles::{Role, Roles};
use service::Services;
use session::Sessions;
use std::collections::HashMap;
use tenants::Tenants;
use token::{Ticket, TokenMaker};
use towpath_requests::numbered::Token;
use worker::Workers;

/// A connection, as a small number that the driver reuses after [`Core::peer_gone`].
pub type Peer = u32;

/// Why a worker went whose connection just ended.
const GONE: &str = "its worker's connection ended";

type SessionKey = u32;
type TenantKey = u32;
type ServiceKey = u32;
type WorkerKey = u32;
type LetterNumber = dead_letter::LetterNumber;

/// The state of a broker. The module says in which order its methods are called.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    requests: Requests,
    sessions: Sessions,
    tenants: Tenants,
    services: Services,
    workers: Workers,
    roles: Roles,
    tokens: TokenMaker,
    actions: actions::ActionQueue,
    durability: durability::Durability,
    stored: stored::Stored,
    dead_letters: dead_letter::DeadLetters,
    retries: retry::Retries,
    /// Bytes of memory of all requests and replies.
    bytes: usize,
    replies: ReplyBudget,
    deadlines: expiry::Deadlines,
    paused: admission::PausedClients,
    windows: InFlightWindows,
    drain: drain::Drain,
    storage_failure: Option<StorageFailure>,
    full: admission::FullMark,
    last_refusal: Option<LastRefusal>,
    fragile: restart::Fragile,
    counters: Counters,
}

impl Core {
    /// A broker without peers.
    pub fn new(settings: Settings) -> Core {
        let seed = settings.secret[0];
        Core {
            requests: Requests::default(),
            sessions: Sessions::new(seed),
            tenants: Tenants::new(seed),
            services: Services::new(seed),
            workers: Workers::default(),
            roles: Roles::default(),
            tokens: TokenMaker::new(settings.secret),
            actions: actions::ActionQueue::default(),
            durability: durability::Durability::default(),
            stored: stored::Stored::default(),
            dead_letters: dead_letter::DeadLetters::default(),
            retries: retry::Retries::default(),
            bytes: 0,
            replies: ReplyBudget::new(&settings),
            deadlines: expiry::Deadlines::default(),
            paused: admission::PausedClients::default(),
            windows: InFlightWindows::new(&settings),
            drain: drain::Drain::default(),
            storage_failure: None,
            full: admission::FullMark::default(),
            last_refusal: None,
            fragile: restart::Fragile::default(),
            counters: Counters::default(),
            settings,
        }
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A connection has ended. Requeues what a worker held and drops what a stock client asked for. Requests and outcomes of a numbered
    /// client stay until it reconnects.
    pub fn peer_gone(&mut self, now: Millis, peer: Peer) {
        self.peer_gone_for(now, peer, GONE);
    }

    fn peer_gone_for(&mut self, now: Millis, peer: Peer, reason: &'static str) {
        match self.roles.get(peer) {
            Role::None => {}
            Role::Client(session) => {
                self.roles.set(peer, Role::None);
                self.client_gone(now, session);
            }
            Role::Worker(worker) => {
                self.roles.set(peer, Role::None);
                self.worker_gone(now, worker, reason);
            }
        }
    }

    /// The driver takes no more output for a connection, or does again.
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

    /// Sets the limits of bodies that aren't in memory: the spool's quota.
    pub fn set_large_max(&mut self, bytes: u64, files: u64) {
        (self.settings.large_bytes_max, self.settings.large_files_max) = (bytes, files);
    }

    /// The journal can't be written, or can again. Meanwhile requests that would be journalled are refused.
    pub fn storage_failed(&mut self, failure: Option<StorageFailure>) {
        self.storage_failure = failure;
    }

    /// The number of a client's requests without a confirmed outcome.
    #[inline]
    pub fn outstanding(&self, peer: Peer) -> usize {
        match self.roles.get(peer) {
            Role::Client(key) => self.sessions[key].requests.len(),
            Role::None | Role::Worker(_) => 0,
        }
    }

    /// Whether a connection has introduced itself as a client or a worker.
    pub fn has_role(&self, peer: Peer) -> bool {
        self.roles.get(peer) != Role::None
    }

    /// The connection of the client whose request this is, if it is connected.
    pub(crate) fn client_of(&self, token: &Token) -> Option<Peer> {
        let ticket = Ticket::read(token);
        let request = self.requests.find(ticket.slot, ticket.generation)?;
        self.sessions[request.session].peer
    }

    /// The service of a request.
    pub(crate) fn service_of(&self, token: &Token) -> Option<Bytes> {
        let ticket = Ticket::read(token);
        let request = self.requests.find(ticket.slot, ticket.generation)?;
        Some(self.services.at(request.service).name.clone())
    }

    /// Ends the connection of a peer that lacks a permission.
    pub(crate) fn forbid(&mut self, now: Millis, peer: Peer, reason: &'static str) {
        self.disconnect(now, peer, reason);
    }

    /// Ends a connection that broke the protocol or isn't wanted any more.
    fn disconnect(&mut self, now: Millis, peer: Peer, reason: &'static str) {
        self.peer_gone_for(now, peer, reason);
        self.actions.push(Action::Disconnect { peer, reason });
    }

    /// Changes the bodies of a request and updates the sums of bytes.
    fn update_request(&mut self, slot: u32, change: impl FnOnce(&mut requests::Request)) {
        let request = self.requests.at_mut(slot);
        let before = request.bytes();
        change(request);
        let (session, service, after) = (request.session, request.service, request.bytes());
        self.services.at_mut(service).change_bytes(before, after);
        self.change_bytes(session, before, after);
    }

    /// Updates the sums of bytes: something of this session had `before`, and has `after`.
    #[inline]
    fn change_bytes(&mut self, session: SessionKey, before: usize, after: usize) {
        let session = &mut self.sessions[session];
        let of_tenant = &mut self.tenants.at_mut(session.tenant).bytes;
        for sum in [&mut self.bytes, &mut session.bytes, of_tenant] {
            *sum = *sum + after - before;
        }
        self.paused.memory_freed |= after < before;
    }

    /// Panics unless all lists and sums agree with each other. For tests: looks at every request.
    #[doc(hidden)]
    pub fn check(&self) {
        let mut bytes = 0;
        let mut of_services: HashMap<ServiceKey, usize> = HashMap::new();
        let mut in_flight: HashMap<ServiceKey, usize> = HashMap::new();
        for (slot, request) in self.requests.iter() {
            bytes += request.bytes();
            *of_services.entry(request.service).or_default() += request.bytes();
            let session = &self.sessions[request.session];
            assert_eq!(session.requests.get(request.number), Some(slot));
            match request.state {
                State::Held(worker, _) => {
                    assert!(self.workers[worker].held.len > 0);
                    *in_flight.entry(request.service).or_default() += 1;
                }
                State::Free => panic!("a free slot is listed"),
                State::Waiting | State::Parked | State::Postponed | State::Detached | State::Settled => {}
            }
        }
        for (key, service) in self.services.iter() {
            assert_eq!(in_flight.get(&key).copied().unwrap_or_default(), service.in_flight, "what workers have");
            assert_eq!(of_services.remove(&key).unwrap_or_default(), service.bytes, "the sum of a service's bytes");
        }
        bytes += self.sessions.iter().map(|(_, session)| session.gaps() * session::GAP_BYTES).sum::<usize>();
        assert_eq!(bytes, self.bytes, "the sum of all bytes");
        self.check_replies();
        self.check_dead_letters();
        let of_sessions: usize = self.sessions.iter().map(|(_, session)| session.requests.len()).sum();
        assert_eq!(of_sessions, self.requests.len());
        let states = |wanted: fn(State) -> bool| self.requests.iter().filter(|(_, r)| wanted(r.state)).count();
        let held: usize = self.workers.iter().map(|(_, worker)| worker.held.len).sum();
        assert_eq!(held, states(|state| matches!(state, State::Held(..))));
        assert_eq!(
            self.services.iter().map(|(_, s)| s.waiting.sums().requests).sum::<usize>(),
            states(|s| s == State::Waiting)
        );
        let parked: usize = self.sessions.iter().map(|(_, session)| session.parked.len).sum();
        assert_eq!(parked, states(|state| state == State::Parked));
        assert_eq!(self.retries.len(), states(|state| state == State::Postponed));
        self.check_windows();
        self.check_tenants();
        self.check_untried();
        self.check_fragile();
        self.sessions.check();
        self.services.check(&self.requests, &self.sessions);
    }
}
