//! The model: vectors instead of lists and sums.

mod absent;
mod operator;
mod queue;
mod requests;
mod workers;

use queue::Queue;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use towpath_broker::core::{Counters, Kind, Millis, Peer, Settings};

/// Actions as the model knows them. Requests are identified by their bodies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Seen {
    Welcome(Peer),
    Reply { peer: Peer, number: u64, status: u16, part: Option<u32>, what: u64 },
    StockReply { peer: Peer, status: u16, partial: bool, what: u64 },
    Refused { peer: Peer, number: u64 },
    Accepted { peer: Peer, number: u64 },
    Dispatch { peer: Peer, request: u64, attempt: u16 },
    CancelWork { peer: Peer, request: u64, attempt: u16 },
    Pause { peer: Peer, paused: bool },
    GaveUp { number: u64, kept: bool },
    ReplyLost { number: u64 },
    Disconnect(Peer),
    CloseAfterFlush(Peer),
}

/// A dead letter's name is that of its request with this bit, and its service is this far from its own.
pub const DEAD_LETTER: u64 = 1 << 32;
pub const DEAD_LETTER_SERVICES: u8 = 2;

/// Bytes that a request counts beside its body.
const REQUEST_BYTES: usize = 256;

/// Bytes that a dead letter counts beside these.
const LETTER_BYTES: usize = 512;

/// Bytes that a gap between confirmed numbers counts.
const GAP_BYTES: usize = 64;

/// Bytes of memory of a body: nothing for small ones, steps up to 1 KiB.
pub fn memory_bytes(length: usize) -> usize {
    match length {
        0..=38 => 0,
        39..=1024 => length.next_multiple_of(64),
        _ => length,
    }
}

/// Slots that are reused, the last one freed first: the order in which the core looks at things.
#[derive(Debug)]
struct Slots<T> {
    all: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slots<T> {
    fn put(&mut self, one: T) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[slot] = Some(one);
        slot
    }

    fn take(&mut self, slot: usize) -> T {
        self.free.push(slot);
        self.all[slot].take().expect("it is there")
    }

    fn at(&mut self, slot: usize) -> &mut T {
        self.all[slot].as_mut().expect("it is there")
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.all.iter().enumerate().filter_map(|(slot, one)| Some((slot, one.as_ref()?)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Parked,
    Held(usize),
    Ended,
    Settled,
}

#[derive(Debug)]
struct Request {
    name: u64,
    session: usize,
    number: u64,
    service: u8,
    expires: Millis,
    bytes: usize,
    /// Bytes expected of its reply beyond that, while a worker has it.
    expected: usize,
    state: State,
    attempt: u16,
    /// Attempts that don't count against the limit.
    uncounted: u16,
    /// The service, the name and the length that its client has asked by.
    asked: (u8, u64, usize),
    has_parts: bool,
    /// The client's connection to which parts of this attempt's reply were sent.
    parts_on: u32,
    outcome: (u16, u64),
    is_journalled: bool,
    is_durable: bool,
    may_send_outcome: bool,
}

impl Request {
    fn attempts(&self) -> u16 {
        self.attempt - self.uncounted
    }

    /// Bytes of memory of its body.
    fn body_bytes(&self) -> usize {
        self.bytes - REQUEST_BYTES - if self.number == 0 { LETTER_BYTES } else { 0 }
    }
}

#[derive(Debug)]
struct Session {
    client: Option<u8>,
    peer: Option<Peer>,
    tenant: u8,
    connections: u32,
    absent_since: Millis,
    confirmed: BTreeSet<u64>,
    dropped: BTreeSet<u64>,
    blocked: bool,
    paused: bool,
    is_journalled: bool,
    is_leaving: bool,
    /// The number of the dead letter that it is; 0: a client.
    letter: u64,
    idle_since: Millis,
    has_confirmed: bool,
    parked: Vec<usize>,
    next_number: u64,
}

impl Session {
    fn is_on(&self, connection: u32) -> bool {
        self.peer.is_some() && self.connections == connection
    }

    fn gap_bytes(&self) -> usize {
        let begins = |number: &&u64| number.checked_sub(1).is_some_and(|before| !self.confirmed.contains(&before));
        let dropped = self.dropped.iter().filter(|number| !self.dropped.contains(&(*number - 1))).count();
        (self.confirmed.iter().filter(begins).count() + dropped.saturating_sub(1)) * GAP_BYTES
    }
}

#[derive(Debug)]
struct Worker {
    peer: Peer,
    service: u8,
    kind: Kind,
    credit: usize,
    held: Vec<usize>,
    abandoned: Vec<(u64, u16)>,
    last_received: Millis,
    leaving: bool,
    blocked: bool,
    /// When it became available: the lowest is the least recently used.
    available: Option<u64>,
}

impl Worker {
    fn has_credit(&self) -> bool {
        !self.leaving && !self.blocked && self.held.len() + self.abandoned.len() < self.credit
    }
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Client(usize),
    Worker(usize),
}

#[derive(Debug)]
enum Awaiting {
    Accepted(u64),
    Finished(u64),
    Nothing,
}

#[derive(Debug)]
pub struct Model {
    settings: Settings,
    pub seen: Vec<Seen>,
    pub counters: Counters,
    requests: Slots<Request>,
    sessions: Slots<Session>,
    workers: Slots<Worker>,
    queues: BTreeMap<u8, Queue>,
    /// Tenants of connections; 0: unknown.
    tenants: BTreeMap<Peer, u8>,
    /// Sizes of recent replies by service.
    reply_sizes: BTreeMap<u8, usize>,
    /// Services whose requests wait for memory.
    waiting_services: VecDeque<u8>,
    pub now: Millis,
    roles: BTreeMap<Peer, Role>,
    awaiting: VecDeque<Awaiting>,
    /// Clients, as requests of themselves.
    paused: Queue,
    /// The service whose queue each waits for.
    paused_for: BTreeMap<usize, u8>,
    paused_services: BTreeSet<u8>,
    memory_freed: bool,
    last_letter: u64,
    /// Names of dead letters, by what their requests were.
    pub letter_names: BTreeMap<u64, u64>,
    is_draining: bool,
    leaving: Vec<usize>,
    turns: u64,
    next_heartbeat: Millis,
    next_absence: Millis,
}

impl Model {
    pub fn new(settings: Settings) -> Model {
        Model {
            settings,
            seen: Vec::new(),
            counters: Counters::default(),
            requests: Slots { all: Vec::new(), free: Vec::new() },
            sessions: Slots { all: Vec::new(), free: Vec::new() },
            workers: Slots { all: Vec::new(), free: Vec::new() },
            queues: BTreeMap::new(),
            tenants: BTreeMap::new(),
            reply_sizes: BTreeMap::new(),
            waiting_services: VecDeque::new(),
            now: 0,
            roles: BTreeMap::new(),
            awaiting: VecDeque::new(),
            paused: Queue::default(),
            paused_for: BTreeMap::new(),
            paused_services: BTreeSet::new(),
            memory_freed: false,
            last_letter: 0,
            letter_names: BTreeMap::new(),
            is_draining: false,
            leaving: Vec::new(),
            turns: 0,
            next_heartbeat: 0,
            next_absence: 0,
        }
    }

    fn find(&self, request: u64) -> Option<usize> {
        self.requests.iter().find(|(_, r)| r.name == request).map(|(slot, _)| slot)
    }

    fn numbered(&self, session: usize, number: u64) -> Option<usize> {
        self.requests.iter().find(|(_, r)| r.session == session && r.number == number).map(|(slot, _)| slot)
    }

    fn of_session(&self, session: usize) -> impl Iterator<Item = &Request> {
        self.requests.iter().map(|(_, request)| request).filter(move |request| request.session == session)
    }

    pub fn load(&self) -> (usize, usize) {
        let bytes: usize = self.requests.iter().map(|(_, request)| request.bytes).sum();
        let gaps: usize = self.sessions.iter().map(|(_, session)| session.gap_bytes()).sum();
        (self.requests.iter().count(), bytes + gaps)
    }

    /// The same without unconfirmed outcomes.
    pub fn used(&self) -> (usize, usize) {
        let (all, bytes) = self.load();
        let settled = self.requests.iter().filter(|(_, request)| request.state == State::Settled);
        let (outcomes, of_outcomes) = settled.fold((0, 0), |(count, sum), (_, r)| (count + 1, sum + r.bytes));
        (all - outcomes, bytes - of_outcomes)
    }

    fn is_empty(&self, key: usize) -> bool {
        let is_known = self.sessions.all[key].as_ref().is_some_and(|session| !session.dropped.is_empty());
        !is_known && self.of_session(key).next().is_none()
    }

    /// Bytes of a client's requests and gaps.
    fn bytes_of(&self, key: usize) -> usize {
        let gaps: usize =
            self.sessions.iter().filter(|(of, _)| *of == key).map(|(_, session)| session.gap_bytes()).sum();
        self.of_session(key).map(|request| request.bytes).sum::<usize>() + gaps
    }

    fn add_confirmed(&mut self, key: usize, numbers: std::ops::Range<u64>) {
        let session = self.sessions.at(key);
        let before = session.gap_bytes();
        session.dropped.retain(|number| !numbers.contains(number));
        session.confirmed.extend(numbers);
        self.memory_freed |= self.sessions.at(key).gap_bytes() < before;
    }

    fn disconnect(&mut self, now: Millis, peer: Peer) {
        self.gone(now, peer);
        self.seen.push(Seen::Disconnect(peer));
    }

    pub fn gone(&mut self, now: Millis, peer: Peer) {
        match self.roles.remove(&peer) {
            None => {}
            Some(Role::Client(key)) => {
                let is_empty = self.is_empty(key);
                let is_journalled = self.of_session(key).any(|request| request.is_journalled);
                let session = self.sessions.at(key);
                session.is_journalled = is_journalled;
                (session.peer, session.absent_since, session.blocked) = (None, now, false);
                if session.client.is_none() || is_empty {
                    self.remove_session(key);
                } else {
                    self.unpark(key);
                }
            }
            Some(Role::Worker(key)) => {
                let service = self.workers.at(key).service;
                self.workers.at(key).available = None;
                let (mut given_up, mut cut_short) = (Vec::new(), Vec::new());
                while let Some(slot) = self.workers.at(key).held.pop() {
                    self.requests.at(slot).expected = 0;
                    let (session, parts_on) = (self.requests.at(slot).session, self.requests.at(slot).parts_on);
                    if parts_on != 0 && self.sessions.at(session).client.is_none() {
                        self.requests.at(slot).state = State::Ended;
                        cut_short.push(slot);
                    } else if self.requests.at(slot).attempts() >= self.settings.attempts_max {
                        self.requests.at(slot).state = State::Ended;
                        given_up.push(slot);
                    } else {
                        self.counters.requeued += 1;
                        self.requests.at(slot).state = State::Waiting;
                        let tenant = self.sessions.at(session).tenant;
                        self.queues.entry(service).or_default().push_next(tenant, session, slot);
                    }
                }
                given_up.into_iter().rev().for_each(|slot| self.give_up(now, slot));
                cut_short.into_iter().rev().for_each(|slot| self.settle(slot, 410, 0, 0));
                self.workers.take(key);
                self.dispatch(service);
                self.forget_service(service);
            }
        }
    }

    fn remove_session(&mut self, key: usize) {
        let mut all: Vec<(bool, u64)> =
            self.of_session(key).map(|r| (matches!(r.state, State::Held(_)), r.number)).collect();
        all.sort_unstable();
        for (_, number) in all {
            let slot = self.numbered(key, number).expect("it is there");
            if self.requests.at(slot).state != State::Settled {
                self.counters.given_up += 1;
                self.withdraw(slot);
            }
            self.forget(slot);
        }
        self.memory_freed |= self.sessions.at(key).gap_bytes() > 0;
        self.sessions.take(key);
        self.paused.remove(key);
    }

    pub fn connected(&mut self, peer: Peer, tenant: u8) {
        self.tenants.insert(peer, tenant);
    }

    pub fn hello(&mut self, now: Millis, peer: Peer, client: u8, first: u64) {
        if self.roles.contains_key(&peer) {
            return self.disconnect(now, peer);
        }
        let known = self.sessions.iter().find(|(_, session)| session.client == Some(client)).map(|(key, _)| key);
        let key = known.unwrap_or_else(|| self.add_session(Some(client), None));
        let tenant = self.tenant_of(peer);
        let session = self.sessions.at(key);
        let has_moved = std::mem::replace(&mut session.tenant, tenant) != tenant;
        (session.blocked, session.is_leaving) = (false, false);
        session.connections += 1;
        if let Some(former) = session.peer.replace(peer) {
            self.roles.remove(&former);
            self.seen.push(Seen::Disconnect(former));
        }
        self.roles.insert(peer, Role::Client(key));
        self.seen.push(Seen::Welcome(peer));
        if has_moved {
            self.queues.values_mut().for_each(|queue| queue.move_to(tenant, key));
        }
        self.forget_range(now, key, 0..first);
        self.add_confirmed(key, 0..first);
        self.unpark(key);
    }

    fn tenant_of(&self, peer: Peer) -> u8 {
        self.tenants.get(&peer).copied().unwrap_or(0)
    }

    fn add_session(&mut self, client: Option<u8>, peer: Option<Peer>) -> usize {
        let tenant = peer.map_or(0, |peer| self.tenant_of(peer));
        self.sessions.put(Session {
            client,
            peer,
            tenant,
            connections: 0,
            absent_since: 0,
            confirmed: BTreeSet::new(),
            dropped: BTreeSet::new(),
            blocked: false,
            paused: false,
            is_journalled: false,
            is_leaving: false,
            letter: 0,
            idle_since: 0,
            has_confirmed: false,
            parked: Vec::new(),
            next_number: 1,
        })
    }

    fn forget_range(&mut self, now: Millis, key: usize, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| self.forget_number(now, key, number));
    }

    fn forget_number(&mut self, now: Millis, key: usize, number: u64) {
        if let Some(slot) = self.numbered(key, number) {
            if self.requests.at(slot).state == State::Settled {
                let session = self.sessions.at(key);
                (session.idle_since, session.has_confirmed) = (now, true);
            } else {
                self.withdraw(slot);
            }
            self.forget(slot);
        }
    }

    fn client(&mut self, now: Millis, peer: Peer) -> Option<usize> {
        match self.roles.get(&peer) {
            Some(&Role::Client(key)) if self.sessions.at(key).client.is_some() => Some(key),
            _ => {
                self.disconnect(now, peer);
                None
            }
        }
    }

    /// Takes the actions, without requests that were dispatched and cancelled in the same step.
    pub fn seen(&mut self) -> Vec<Seen> {
        let mut seen = std::mem::take(&mut self.seen);
        let cancels: Vec<Seen> = seen.iter().filter(|said| matches!(said, Seen::CancelWork { .. })).cloned().collect();
        for cancel in cancels {
            let Seen::CancelWork { peer, request, attempt } = cancel else { continue };
            let given = Seen::Dispatch { peer, request, attempt };
            if seen.contains(&given) {
                seen.retain(|said| *said != given && *said != cancel);
            }
        }
        seen
    }

    pub fn tick(&mut self, now: Millis) {
        self.resume();
        self.send_away(now);
        self.retry_waiting_services();
        let expired = self.requests.iter().filter(|(_, r)| r.expires <= now && r.state != State::Settled);
        let mut expired: Vec<(bool, usize)> = expired.map(|(at, r)| (matches!(r.state, State::Held(_)), at)).collect();
        expired.sort_unstable();
        for (_, slot) in expired {
            let was_held = self.requests.at(slot).attempt > 0;
            self.withdraw(slot);
            self.settle(slot, if was_held { 504 } else { 408 }, 0, 0);
        }
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + self.settings.heartbeat_ms;
            let timeout = self.settings.heartbeat_ms * Millis::from(self.settings.liveness);
            let silent = self.workers.iter().filter(|(_, w)| {
                w.kind == Kind::Stock
                    && w.held.is_empty()
                    && w.abandoned.is_empty()
                    && now.saturating_sub(w.last_received) > timeout
            });
            let silent: Vec<Peer> = silent.map(|(_, worker)| worker.peer).collect();
            silent.into_iter().for_each(|peer| self.disconnect(now, peer));
        }
        let absent = self.absent().into_iter().map(|(_, key, _)| self.unconfirmed(key)).sum::<usize>();
        if now >= self.next_absence || absent > self.settings.bytes_max / 8 * 4 {
            self.next_absence = now + 1_000;
            let is_empty = |key: usize| self.of_session(key).next().is_none();
            let absent = self.sessions.iter().filter(|(key, s)| s.peer.is_none() && (s.letter == 0 || is_empty(*key)));
            let mut absent: Vec<(Millis, usize)> = absent.map(|(key, s)| (s.absent_since, key)).collect();
            absent.sort_unstable();
            for (since, key) in absent {
                let settings = &self.settings;
                let is_journalled = self.sessions.all[key].as_ref().is_some_and(|session| session.is_journalled);
                let kept = if is_journalled { settings.journal_retention_ms } else { settings.absent_client_ms };
                if now - since > kept || self.is_empty(key) {
                    self.remove_session(key);
                }
            }
            for key in self.absent().into_iter().map(|(_, key, _)| key).collect::<BTreeSet<_>>() {
                self.drop_outcomes(key, now);
            }
            self.drop_surplus();
            self.give_way();
            let held_back = self.sessions.iter().filter(|(_, one)| one.letter == 0 && !one.parked.is_empty());
            let held_back: Vec<usize> = held_back.map(|(key, _)| key).collect();
            held_back.into_iter().for_each(|key| self.unpark(key));
            self.retry_letters(now);
        }
    }

    /// Forgets requests of absent clients that no worker has had, while these are over a quarter of something of which over half is used.
    fn give_way(&mut self) {
        let absent = self.absent();
        let (settings, (all, all_bytes)) = (&self.settings, self.used());
        let requests = |key: usize| self.untried(key).count();
        let bytes = |key: usize| self.untried(key).map(|(_, request)| request.bytes).sum();
        let mut hogs = Vec::new();
        for (measure, all, most) in [
            (&requests as &dyn Fn(usize) -> usize, all, settings.requests_max),
            (&bytes, all_bytes, settings.bytes_max),
        ] {
            let (mut left, mut all) = (absent.clone(), all);
            while left.iter().map(|(_, key, _)| measure(*key)).sum::<usize>() > most / 4 && all > most / 2 {
                let of = |tenant: u8| {
                    left.iter().filter(|(.., of)| *of == tenant).map(|(_, key, _)| measure(*key)).sum::<usize>()
                };
                let hog = left.iter().map(|(.., tenant)| *tenant).max_by_key(|&tenant| (of(tenant), tenant));
                let at = left.iter().position(|(.., tenant)| Some(*tenant) == hog).expect("one is absent");
                let (_, key, _) = left.remove(at);
                all -= measure(key);
                hogs.push(key);
            }
        }
        for key in hogs {
            if self.sessions.all[key].is_none() {
                continue;
            }
            let mut slots: Vec<(u64, usize)> =
                self.untried(key).map(|(slot, request)| (request.number, slot)).collect();
            slots.sort_unstable();
            for (_, slot) in slots {
                self.counters.given_up += 1;
                self.withdraw(slot);
                self.forget(slot);
            }
            if self.is_empty(key) {
                self.remove_session(key);
            }
        }
    }

    /// Requests of a client that no worker has had, and that aren't in the journal.
    fn untried(&self, key: usize) -> impl Iterator<Item = (usize, &Request)> {
        let waits = |request: &Request| matches!(request.state, State::Waiting | State::Parked);
        let its = self.requests.iter().filter(move |(_, request)| request.session == key && waits(request));
        its.filter(|(_, request)| request.attempt == 0 && !request.is_journalled)
    }

    fn resume(&mut self) {
        if !std::mem::take(&mut self.memory_freed) {
            return;
        }
        let mut resumed = Vec::new();
        for key in self.paused.requests() {
            // One if there is space, all if there is much.
            if self.is_below_limits(key, self.paused_for[&key], 2, 1 + resumed.len().min(1)) {
                resumed.push(key);
            }
        }
        for &key in &resumed {
            self.paused.take(key);
            let session = self.sessions.at(key);
            session.paused = false;
            let peer = session.peer.expect("stock clients are connected");
            self.seen.push(Seen::Pause { peer, paused: false });
        }
        self.memory_freed = !resumed.is_empty() && self.paused.first().is_some();
    }
}
