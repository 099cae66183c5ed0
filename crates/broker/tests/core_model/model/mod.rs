//! What the core does, as simply as it can be said: vectors, and a look at all of them.

mod requests;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use towpath_broker::core::{Counters, Kind, Millis, Peer, Settings};

/// What can be seen from outside. Requests are told apart by what is in their bodies.
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
}

/// What the name of a request that is kept aside has beside its own, and how far its service is from its own.
pub const ASIDE: u64 = 1 << 32;
pub const ASIDE_SERVICES: u8 = 2;

/// What a request costs beside its body.
const REQUEST_BYTES: usize = 256;

/// What a gap between confirmed numbers costs.
const GAP_BYTES: usize = 64;

/// Small bodies cost nothing more, and those up to 1 KiB in steps.
pub fn memory_bytes(length: usize) -> usize {
    match length {
        0..=46 => 0,
        47..=1024 => length.next_multiple_of(64),
        _ => length,
    }
}

/// Places that are used again, the last one freed first: the order in which the core looks at things.
#[derive(Debug)]
struct Places<T> {
    all: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Places<T> {
    fn put(&mut self, one: T) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[place] = Some(one);
        place
    }

    fn take(&mut self, place: usize) -> T {
        self.free.push(place);
        self.all[place].take().expect("it is there")
    }

    fn at(&mut self, place: usize) -> &mut T {
        self.all[place].as_mut().expect("it is there")
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.all.iter().enumerate().filter_map(|(place, one)| Some((place, one.as_ref()?)))
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
    /// What its reply is expected to need beyond that, while a worker has it.
    expected: usize,
    state: State,
    attempt: u16,
    has_parts: bool,
    /// Which connection of its client's was told parts of this attempt's.
    parts_on: u32,
    outcome: (u16, u64),
    is_journalled: bool,
    is_durable: bool,
    is_tellable: bool,
}

#[derive(Debug)]
struct Session {
    client: Option<u8>,
    peer: Option<Peer>,
    connections: u32,
    absent_since: Millis,
    confirmed: BTreeSet<u64>,
    blocked: bool,
    paused: bool,
    is_journalled: bool,
    is_aside: bool,
    takes_since: Millis,
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
        self.confirmed.iter().filter(begins).count() * GAP_BYTES
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
    last_heard: Millis,
    leaving: bool,
    blocked: bool,
    /// Since when it could take one: the lowest is the least recently used.
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
    requests: Places<Request>,
    sessions: Places<Session>,
    workers: Places<Worker>,
    queues: BTreeMap<u8, Vec<usize>>,
    /// What replies of a service needed lately.
    reply_sizes: BTreeMap<u8, usize>,
    /// Services whose requests wait for room for their replies.
    short: VecDeque<u8>,
    pub now: Millis,
    roles: BTreeMap<Peer, Role>,
    awaiting: VecDeque<Awaiting>,
    paused: VecDeque<(usize, u8)>,
    relieved: bool,
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
            requests: Places { all: Vec::new(), free: Vec::new() },
            sessions: Places { all: Vec::new(), free: Vec::new() },
            workers: Places { all: Vec::new(), free: Vec::new() },
            queues: BTreeMap::new(),
            reply_sizes: BTreeMap::new(),
            short: VecDeque::new(),
            now: 0,
            roles: BTreeMap::new(),
            awaiting: VecDeque::new(),
            paused: VecDeque::new(),
            relieved: false,
            turns: 0,
            next_heartbeat: 0,
            next_absence: 0,
        }
    }

    fn find(&self, request: u64) -> Option<usize> {
        self.requests.iter().find(|(_, r)| r.name == request).map(|(place, _)| place)
    }

    fn numbered(&self, session: usize, number: u64) -> Option<usize> {
        self.requests.iter().find(|(_, r)| r.session == session && r.number == number).map(|(place, _)| place)
    }

    fn of_session(&self, session: usize) -> impl Iterator<Item = &Request> {
        self.requests.iter().map(|(_, request)| request).filter(move |request| request.session == session)
    }

    pub fn load(&self) -> (usize, usize) {
        let bytes: usize = self.requests.iter().map(|(_, request)| request.bytes).sum();
        let gaps: usize = self.sessions.iter().map(|(_, session)| session.gap_bytes()).sum();
        (self.requests.iter().count(), bytes + gaps)
    }

    /// Bytes of a client's requests and of the gaps between what it has confirmed.
    fn bytes_of(&self, key: usize) -> usize {
        let gaps: usize =
            self.sessions.iter().filter(|(of, _)| *of == key).map(|(_, session)| session.gap_bytes()).sum();
        self.of_session(key).map(|request| request.bytes).sum::<usize>() + gaps
    }

    fn add_confirmed(&mut self, key: usize, numbers: std::ops::Range<u64>) {
        let session = self.sessions.at(key);
        let before = session.gap_bytes();
        session.confirmed.extend(numbers);
        self.relieved |= self.sessions.at(key).gap_bytes() < before;
    }

    fn disconnect(&mut self, now: Millis, peer: Peer) {
        self.gone(now, peer);
        self.seen.push(Seen::Disconnect(peer));
    }

    pub fn gone(&mut self, now: Millis, peer: Peer) {
        match self.roles.remove(&peer) {
            None => {}
            Some(Role::Client(key)) => {
                let is_empty = self.of_session(key).next().is_none();
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
                while let Some(place) = self.workers.at(key).held.pop() {
                    self.requests.at(place).expected = 0;
                    let (session, parts_on) = (self.requests.at(place).session, self.requests.at(place).parts_on);
                    if parts_on != 0 && self.sessions.at(session).client.is_none() {
                        self.requests.at(place).state = State::Ended;
                        cut_short.push(place);
                    } else if self.requests.at(place).attempt >= self.settings.attempts_max {
                        self.requests.at(place).state = State::Ended;
                        given_up.push(place);
                    } else {
                        self.counters.requeued += 1;
                        self.requests.at(place).state = State::Waiting;
                        self.queues.entry(service).or_default().insert(0, place);
                    }
                }
                given_up.into_iter().rev().for_each(|place| self.give_up(now, place));
                cut_short.into_iter().rev().for_each(|place| self.settle(place, 410, 0, 0));
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
            let place = self.numbered(key, number).expect("it is there");
            if self.requests.at(place).state != State::Settled {
                self.counters.given_up += 1;
                self.withdraw(place);
            }
            self.forget(place);
        }
        self.relieved |= self.sessions.at(key).gap_bytes() > 0;
        self.sessions.take(key);
        self.paused.retain(|&(paused, _)| paused != key);
    }

    pub fn hello(&mut self, now: Millis, peer: Peer, client: u8, first: u64) {
        if self.roles.contains_key(&peer) {
            return self.disconnect(now, peer);
        }
        let known = self.sessions.iter().find(|(_, session)| session.client == Some(client)).map(|(key, _)| key);
        let key = known.unwrap_or_else(|| self.add_session(Some(client), None));
        let session = self.sessions.at(key);
        session.blocked = false;
        session.connections += 1;
        if let Some(former) = session.peer.replace(peer) {
            self.roles.remove(&former);
            self.seen.push(Seen::Disconnect(former));
        }
        self.roles.insert(peer, Role::Client(key));
        self.seen.push(Seen::Welcome(peer));
        self.drop_all(now, key, 0..first);
        self.add_confirmed(key, 0..first);
        self.unpark(key);
    }

    fn add_session(&mut self, client: Option<u8>, peer: Option<Peer>) -> usize {
        self.sessions.put(Session {
            client,
            peer,
            connections: 0,
            absent_since: 0,
            confirmed: BTreeSet::new(),
            blocked: false,
            paused: false,
            is_journalled: false,
            is_aside: false,
            takes_since: 0,
            has_confirmed: false,
            parked: Vec::new(),
            next_number: 1,
        })
    }

    fn drop_all(&mut self, now: Millis, key: usize, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| self.drop_interest(now, key, number));
    }

    fn drop_interest(&mut self, now: Millis, key: usize, number: u64) {
        if let Some(place) = self.numbered(key, number) {
            if self.requests.at(place).state == State::Settled {
                let session = self.sessions.at(key);
                (session.takes_since, session.has_confirmed) = (now, true);
            } else {
                self.withdraw(place);
            }
            self.forget(place);
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

    /// What is said, without what was taken back from a worker in the same step as it was given.
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
        self.end_shortage();
        let due = self.requests.iter().filter(|(_, request)| request.expires <= now);
        let mut due: Vec<(bool, usize)> = due.map(|(at, r)| (matches!(r.state, State::Held(_)), at)).collect();
        due.sort_unstable();
        for (_, place) in due {
            let was_held = self.requests.at(place).attempt > 0;
            self.withdraw(place);
            self.settle(place, if was_held { 504 } else { 408 }, 0, 0);
        }
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + self.settings.heartbeat_ms;
            let patience = self.settings.heartbeat_ms * Millis::from(self.settings.liveness);
            let silent = self.workers.iter().filter(|(_, w)| {
                w.kind == Kind::Stock
                    && w.held.is_empty()
                    && w.abandoned.is_empty()
                    && now.saturating_sub(w.last_heard) > patience
            });
            let silent: Vec<Peer> = silent.map(|(_, worker)| worker.peer).collect();
            silent.into_iter().for_each(|peer| self.disconnect(now, peer));
        }
        if now >= self.next_absence {
            self.next_absence = now + 1_000;
            let is_empty = |key: usize| self.of_session(key).next().is_none();
            let absent = self.sessions.iter().filter(|(key, s)| s.peer.is_none() && (!s.is_aside || is_empty(*key)));
            let mut absent: Vec<(Millis, usize)> = absent.map(|(key, s)| (s.absent_since, key)).collect();
            absent.sort_unstable();
            for (since, key) in absent {
                let settings = &self.settings;
                let is_journalled = self.sessions.all[key].as_ref().is_some_and(|session| session.is_journalled);
                let kept = if is_journalled { settings.journal_retention_ms } else { settings.absent_client_ms };
                if now - since > kept || self.of_session(key).next().is_none() {
                    self.remove_session(key);
                }
            }
            let held_back = self.sessions.iter().filter(|(_, one)| !one.is_aside && !one.parked.is_empty());
            let held_back: Vec<usize> = held_back.map(|(key, _)| key).collect();
            held_back.into_iter().for_each(|key| self.unpark(key));
            let retention = self.settings.journal_retention_ms;
            let aside = self.sessions.iter().filter(|(_, session)| session.is_aside);
            let aside: Vec<(usize, bool)> = aside.map(|(key, s)| (key, now - s.absent_since > retention)).collect();
            for (key, is_over) in aside {
                if is_over { self.remove_session(key) } else { self.unpark_all(key) }
            }
        }
    }

    fn resume(&mut self) {
        if !std::mem::take(&mut self.relieved) {
            return;
        }
        let mut resumed = 0;
        for (key, service) in std::mem::take(&mut self.paused) {
            let Some(session) = self.sessions.all.get(key).and_then(Option::as_ref) else { continue };
            let (true, Some(peer)) = (session.paused, session.peer) else { continue };
            // One where there is room, all where there is much.
            if self.may_go_on(key, service, 2, 1 + resumed.min(1)) {
                resumed += 1;
                self.sessions.at(key).paused = false;
                self.seen.push(Seen::Pause { peer, paused: false });
            } else {
                self.paused.push_back((key, service));
            }
        }
        self.relieved = resumed > 0 && !self.paused.is_empty();
    }
}
