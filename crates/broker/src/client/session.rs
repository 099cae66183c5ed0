//! What a client has asked for and not yet heard of: the protocol without a socket, a thread or a clock.
//!
//! Every request is held here until its outcome is here, and is sent on every connection until then, in the order of the
//! numbers. Each gets exactly one outcome; replies that come again are confirmed again, and dropped.

use super::confirms::Confirms;
use super::deadlines::Deadlines;
use super::table::{Entry, State, Table};
use crate::body::Body;
use crate::mdp::peer::ClientHears;
use crate::wire::{Block, ClientId, Content, FromClient, Status, ToClient, WireError};
use bytes::Bytes;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Refused requests that wait for their time; while there are so many, no new ones are sent.
const HELD_MAX: usize = 1024;

/// The longest that a refused request waits, whatever the broker says.
const RETRY_MOST: Duration = Duration::from_secs(60);

/// What an entry costs beside the memory of its body.
const ENTRY_BYTES: usize = size_of::<Entry>();

/// A request to be.
#[derive(Debug, Clone)]
pub(crate) struct NewRequest {
    /// Which service.
    pub service: Arc<[u8]>,
    /// The body.
    pub body: Body,
    /// How long it may take.
    pub ttl: Option<Duration>,
    /// It needn't be journalled.
    pub volatile: bool,
    /// Comes back with what is delivered.
    pub owner: u32,
}

/// An outcome, or part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// The request's number.
    pub number: u64,
    /// Whose request it was.
    pub owner: u32,
    /// How it ended.
    pub status: Status,
    /// A part, numbered from 0; the last one has no such number.
    pub part: Option<u32>,
    /// The reply, or the reason.
    pub body: Body,
}

/// What has been counted since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that were sent once more because a connection was lost.
    pub resent: u64,
    /// Requests that were sent once more because the broker had refused them for a while.
    pub retried: u64,
    /// Replies that came once more, and were dropped.
    pub duplicates: u64,
    /// Connections on which the broker was another one than before, or had been started again.
    pub restarts: u64,
}

/// What is known of the present connection.
enum Link {
    Down,
    /// HELLO is out, WELCOME is awaited until then.
    Greeting(Duration),
    Numbered {
        requests_max: usize,
        bytes_max: u64,
        journal: bool,
    },
    /// One request at a time; which one is out.
    Stock(Option<u64>),
    /// A reply could still come for a request that nobody waits for: nothing more can be asked here.
    Spoiled(&'static str),
}

/// The client's side of numbered requests, and of stock Majordomo.
pub(crate) struct Session {
    client: ClientId,
    requests_max: usize,
    bytes_max: usize,
    welcome_timeout: Duration,
    table: Table,
    link: Link,
    epoch: Option<u64>,
    /// From here on, requests have not been looked at on this connection.
    cursor: u64,
    again: VecDeque<u64>,
    held: BinaryHeap<Reverse<(Duration, u64)>>,
    deadlines: Deadlines,
    confirms: Confirms,
    /// Requests whose outcome came from this side, until the broker's is here too, with the octets of their bodies: they take
    /// their place there until then.
    abandoned: BTreeMap<u64, u64>,
    cancels: Vec<u64>,
    bytes: usize,
    in_flight: usize,
    in_flight_bytes: u64,
    counters: Counters,
}

impl Session {
    /// Nothing asked yet, not connected. Bounds are on what has no outcome yet, in requests and octets of memory.
    pub fn new(client: ClientId, requests_max: usize, bytes_max: usize, welcome_timeout: Duration) -> Session {
        Session {
            client,
            requests_max: requests_max.max(1),
            bytes_max,
            welcome_timeout,
            table: Table::new(),
            link: Link::Down,
            epoch: None,
            cursor: 1,
            again: VecDeque::new(),
            held: BinaryHeap::new(),
            deadlines: Deadlines::default(),
            confirms: Confirms::default(),
            abandoned: BTreeMap::new(),
            cancels: Vec::new(),
            bytes: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            counters: Counters::default(),
        }
    }

    /// Requests without an outcome.
    pub fn outstanding(&self) -> usize {
        self.table.outstanding()
    }

    /// Octets of memory that they take.
    pub fn outstanding_bytes(&self) -> usize {
        self.bytes
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether one more request of so many octets is taken, if `taken` places of the bound are taken by something else.
    #[inline]
    pub fn has_room(&self, body: &Body, taken: usize) -> bool {
        let outstanding = self.table.outstanding();
        outstanding + taken < self.requests_max
            && (self.bytes + ENTRY_BYTES + body.memory_bytes() <= self.bytes_max || outstanding == 0)
    }

    /// Takes a request, which must have been asked for room; gives its number.
    #[inline]
    pub fn submit(&mut self, request: NewRequest, now: Duration) -> u64 {
        self.bytes += ENTRY_BYTES + request.body.memory_bytes();
        let deadline = request.ttl.map(|ttl| now.saturating_add(ttl));
        let number = self.table.push(Entry {
            body: request.body,
            service: request.service,
            deadline,
            owner: request.owner,
            next_part: 0,
            state: State::Waiting,
            volatile: request.volatile,
            accepted: false,
            sent_before: false,
            known: false,
        });
        if let Some(at) = deadline {
            let table = &mut self.table;
            self.deadlines.tidy(table.outstanding(), |number| table.find(number).is_some());
            self.deadlines.add(at, number);
        }
        number
    }

    /// A connection to a broker of numbered requests is there. Appends what is said first.
    pub fn connected(&mut self, now: Duration, block: &mut Block) {
        self.begin();
        self.link = Link::Greeting(now + self.welcome_timeout);
        FromClient::hello(block, self.client, self.table.lowest());
    }

    /// A connection to a stock broker is there.
    pub fn connected_to_stock(&mut self) {
        self.begin();
        self.link = Link::Stock(None);
    }

    fn begin(&mut self) {
        for (_, entry) in self.table.iter_mut() {
            entry.state = State::Waiting;
        }
        self.cursor = self.table.lowest();
        self.again.clear();
        self.held.clear();
        self.cancels.clear();
        self.abandoned.clear();
        self.confirms.clear();
        (self.in_flight, self.in_flight_bytes) = (0, 0);
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.link = Link::Down;
    }

    /// Why the connection is to be replaced by another one, if it is.
    pub fn spoiled(&self) -> Option<&'static str> {
        match self.link {
            Link::Spoiled(why) => Some(why),
            _ => None,
        }
    }

    /// Whether the broker journals; `None`: not known, for want of a connection.
    pub fn journal(&self) -> Option<bool> {
        match self.link {
            Link::Numbered { journal, .. } => Some(journal),
            Link::Stock(_) => Some(false),
            _ => None,
        }
    }

    /// Whether a request is in the broker's journal; `None`: it has its outcome, or never was.
    pub fn is_accepted(&mut self, number: u64) -> Option<bool> {
        self.table.find(number).map(|entry| entry.accepted)
    }

    /// Takes a block of records, and the body behind it, or why that is lost.
    pub fn on_block(
        &mut self,
        block: &Bytes,
        attached: Option<Result<Body, String>>,
        now: Duration,
        sink: &mut impl FnMut(Delivery),
    ) -> Result<(), WireError> {
        let mut attached = attached;
        let mut rest = &block[..];
        while !rest.is_empty() {
            match ToClient::decode(&mut rest)? {
                ToClient::Reply { number, status, part, content } => {
                    let (status, body) = match (content, attached.take()) {
                        (Content::Attached { .. }, Some(Err(why))) => (Status::NO_STORAGE, Body::from(why)),
                        (_, attached) => (status, content.to_body(block, attached.and_then(Result::ok))?),
                    };
                    self.on_reply(number, status, part, body, now, sink);
                }
                ToClient::Welcome { epoch, requests_max, bytes_max, journal } => {
                    self.on_welcome(epoch, requests_max, bytes_max, journal, now);
                }
                ToClient::Accepted { first, count } => {
                    for entry in self.table.range_mut(first, u64::from(count)) {
                        entry.accepted = true;
                    }
                }
                ToClient::Refused { number, status, retry_ms, reason } => {
                    self.on_refused(number, status, retry_ms, reason, now, sink);
                }
            }
        }
        if attached.is_some() { Err(WireError::Attachment) } else { Ok(()) }
    }

    fn on_welcome(&mut self, epoch: u64, requests_max: u32, bytes_max: u64, journal: bool, now: Duration) {
        let same = self.epoch.replace(epoch).is_none_or(|before| before == epoch);
        if matches!(self.link, Link::Greeting(_)) {
            // The broker may have lost what was confirmed last, or be another one. What was given up is among these: it has
            // its outcome, and confirming it ends it there.
            for (first, count) in self.table.done_ranges() {
                self.confirms.add_range(first, count, now);
            }
        }
        if !same {
            self.counters.restarts += 1;
            // What was durable there is known again when this broker says so.
            self.table.iter_mut().for_each(|(_, entry)| entry.accepted = false);
        }
        self.link = Link::Numbered { requests_max: requests_max.max(1) as usize, bytes_max, journal };
    }

    #[inline]
    fn on_reply(
        &mut self,
        number: u64,
        status: Status,
        part: Option<u32>,
        body: Body,
        now: Duration,
        sink: &mut impl FnMut(Delivery),
    ) {
        if let Some(part) = part {
            if let Some(entry) = self.table.find(number)
                && (part >= entry.next_part || part == 0)
            {
                entry.next_part = part.saturating_add(1);
                sink(Delivery { number, owner: entry.owner, status, part: Some(part), body });
            }
            return;
        }
        if let Some(entry) = self.finish(number) {
            self.confirms.add(number, now);
            sink(Delivery { number, owner: entry.owner, status, part: None, body });
        } else if number < self.table.next_number() {
            self.counters.duplicates += 1;
            self.confirms.add(number, now);
            if let Some(length) = self.abandoned.remove(&number) {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.in_flight_bytes = self.in_flight_bytes.saturating_sub(length);
            }
        } else {
            tracing::warn!(number, "a reply to a request that was never made is left out");
        }
    }

    fn on_refused(
        &mut self,
        number: u64,
        status: Status,
        retry_ms: u32,
        reason: &[u8],
        now: Duration,
        sink: &mut impl FnMut(Delivery),
    ) {
        let Some(entry) = self.table.find(number).filter(|entry| entry.state == State::Sent) else {
            if let Some(length) = self.abandoned.remove(&number) {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.in_flight_bytes = self.in_flight_bytes.saturating_sub(length);
            }
            return;
        };
        entry.known = false;
        if retry_ms == 0 {
            if let Some(entry) = self.finish(number) {
                // The broker doesn't know it, and mustn't wait for its number either.
                self.confirms.add(number, now);
                sink(Delivery { number, owner: entry.owner, status, part: None, body: Body::copied(reason) });
            }
            return;
        }
        entry.state = State::Held;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(entry.body.length());
        let wait = Duration::from_millis(u64::from(retry_ms)).min(RETRY_MOST);
        self.held.push(Reverse((now + wait, number)));
    }

    /// Removes a request, which has its outcome now.
    #[inline]
    fn finish(&mut self, number: u64) -> Option<Entry> {
        let entry = self.table.take(number)?;
        self.bytes -= ENTRY_BYTES + entry.body.memory_bytes();
        if entry.state == State::Sent {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.in_flight_bytes = self.in_flight_bytes.saturating_sub(entry.body.length());
        }
        Some(entry)
    }

    /// Ends a request from this side: the broker is told that its outcome isn't wanted any more.
    pub fn cancel(&mut self, number: u64, now: Duration) -> Option<Delivery> {
        self.abandon(number, now, Status::CANCELLED, "cancelled")
    }

    fn abandon(&mut self, number: u64, now: Duration, status: Status, reason: &str) -> Option<Delivery> {
        let entry = self.finish(number)?;
        match self.link {
            Link::Stock(Some(out)) if out == number => {
                self.link = Link::Spoiled("a reply that nobody waits for could be taken for another's");
            }
            Link::Numbered { .. } if entry.state == State::Sent => {
                let length = entry.body.length();
                self.abandoned.insert(number, length);
                self.in_flight += 1;
                self.in_flight_bytes += length;
                self.cancels.push(number);
            }
            // The broker mustn't wait for a number that never comes.
            Link::Numbered { .. } => self.confirms.add(number, now),
            // It is confirmed, or its number is passed over, when the next connection begins.
            _ => {}
        }
        Some(Delivery { number, owner: entry.owner, status, part: None, body: Body::from(reason) })
    }

    /// Takes a reply of a stock broker.
    pub fn on_stock(&mut self, heard: ClientHears, sink: &mut impl FnMut(Delivery)) {
        let Link::Stock(out) = &mut self.link else { return };
        let Some(number) = *out else {
            tracing::warn!("a reply that answers no request is left out");
            return;
        };
        let Some(entry) = self.table.find(number) else { return };
        if heard.service.is_some_and(|service| *service != *entry.service) {
            tracing::warn!("a reply of another service is left out");
            return;
        }
        let owner = entry.owner;
        let (status, body) = match heard.body {
            Ok(body) => (Status::OK, body),
            Err(why) => (Status::NO_STORAGE, Body::from(why)),
        };
        if heard.partial {
            let part = entry.next_part;
            entry.next_part = part.saturating_add(1);
            sink(Delivery { number, owner, status, part: Some(part), body });
            return;
        }
        *out = None;
        if self.finish(number).is_some() {
            sink(Delivery { number, owner, status, part: None, body });
        }
    }

    /// The next request to a stock broker, if one may be sent now.
    pub fn pump_stock(&mut self) -> Option<(Arc<[u8]>, Body)> {
        let Link::Stock(None) = self.link else { return None };
        let number = self.table.next_waiting(self.cursor)?;
        self.cursor = number + 1;
        self.link = Link::Stock(Some(number));
        let entry = self.table.find(number)?;
        self.counters.resent += u64::from(entry.known);
        (entry.state, entry.sent_before, entry.known, entry.next_part) = (State::Sent, true, true, 0);
        self.in_flight += 1;
        self.in_flight_bytes += entry.body.length();
        Some((Arc::clone(&entry.service), entry.body.clone()))
    }

    /// Appends what may be sent now, up to about so many octets; says whether there is more.
    pub fn pump(&mut self, now: Duration, block: &mut Block, bytes: usize) -> bool {
        let Link::Numbered { requests_max, bytes_max, .. } = self.link else { return false };
        for number in self.cancels.drain(..) {
            FromClient::cancel(block, number);
        }
        // Before requests: what is confirmed makes room for them there.
        let sends = !block.is_empty() || !self.again.is_empty() || self.cursor < self.table.next_number();
        if self.confirms.due().is_some_and(|due| due <= now || sends) {
            self.confirms.put(block);
        }
        let mut more = false;
        loop {
            if block.memory_bytes() >= bytes {
                more = true;
                break;
            }
            if self.in_flight >= requests_max {
                break;
            }
            let fits = |in_flight: u64, body: &Body| in_flight == 0 || in_flight + body.length() <= bytes_max;
            let number = if let Some(&number) = self.again.front() {
                number
            } else if self.held.len() >= HELD_MAX {
                break;
            } else if let Some(number) = self.table.next_waiting(self.cursor) {
                number
            } else {
                self.cursor = self.table.next_number();
                break;
            };
            let Some(entry) = self.table.find(number).filter(|entry| entry.state == State::Waiting) else {
                self.again.pop_front();
                continue;
            };
            if !fits(self.in_flight_bytes, &entry.body) {
                break;
            }
            if self.again.pop_front().is_none() {
                self.cursor = number + 1;
            }
            let left = entry.deadline.map_or(0, |at| at.saturating_sub(now).as_millis().clamp(1, u128::from(u32::MAX)));
            FromClient::request(block, number, left as u32, entry.volatile, &entry.service, &entry.body);
            if entry.known {
                self.counters.resent += 1;
            } else if entry.sent_before {
                self.counters.retried += 1;
            }
            (entry.state, entry.sent_before, entry.known) = (State::Sent, true, true);
            self.in_flight += 1;
            self.in_flight_bytes += entry.body.length();
        }
        more
    }

    /// Tells the broker at the next opportunity what it may forget.
    pub fn hurry(&mut self) {
        self.confirms.hurry();
    }

    /// Whether the broker has been told all that there is to tell, or can't be told.
    pub fn is_flushed(&self) -> bool {
        !matches!(self.link, Link::Numbered { .. }) || (self.confirms.due().is_none() && self.cancels.is_empty())
    }

    /// When [`Session::on_time`], or else [`Session::pump`], has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        let (welcome, confirms) = match self.link {
            Link::Greeting(until) => (Some(until), None),
            Link::Numbered { .. } => (None, self.confirms.due()),
            _ => (None, None),
        };
        let held = self.held.peek().map(|Reverse((at, _))| *at);
        let deadline = self.deadlines.next().map(|(at, _)| at);
        welcome.into_iter().chain(confirms).chain(held).chain(deadline).min()
    }

    /// Looks at what has come due.
    pub fn on_time(&mut self, now: Duration, sink: &mut impl FnMut(Delivery)) {
        if matches!(self.link, Link::Greeting(until) if until <= now) {
            self.link = Link::Spoiled("the broker doesn't answer");
        }
        while let Some((at, number)) = self.deadlines.next().filter(|(at, _)| *at <= now) {
            self.deadlines.pop();
            let due = self.table.find(number).is_some_and(|entry| entry.deadline == Some(at));
            if due && let Some(delivery) = self.abandon(number, now, Status::EXPIRED, "no outcome came within its time")
            {
                sink(delivery);
            }
        }
        while let Some(Reverse((_, number))) = self.held.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.held.pop();
            if let Some(entry) = self.table.find(number).filter(|entry| entry.state == State::Held) {
                entry.state = State::Waiting;
                self.again.push_back(number);
            }
        }
    }

    /// Ends everything, because this side ends.
    pub fn end_all(&mut self, reason: &str, sink: &mut impl FnMut(Delivery)) {
        self.link = Link::Down;
        let all: Vec<u64> = self.table.iter_mut().map(|(number, _)| number).collect();
        for number in all {
            if let Some(delivery) = self.abandon(number, Duration::ZERO, Status::CANCELLED, reason) {
                sink(delivery);
            }
        }
    }
}
