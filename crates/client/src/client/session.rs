//! Protocol state of a client: outstanding requests, without a socket, thread or clock.
//!
//! Every request is held until its outcome has arrived, and is resent on every new connection in order of number. Each gets
//! exactly one outcome; duplicate replies are acknowledged again and dropped.

mod receive;
mod send;

use super::acks::Acks;
use super::deadlines::Deadlines;
use super::outstanding::{Entry, State, Table};
use super::services::Services;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::numbered::{Block, ClientId, FromClient, Status};

/// Most refused requests that wait for their retry. At this many, no new ones are sent.
const HELD_MAX: usize = 1024;

/// Longest delay of a retry, whatever the broker says.
const RETRY_MOST: Duration = Duration::from_secs(60);

/// Memory of an entry beside its body.
const ENTRY_BYTES: usize = size_of::<Entry>();

/// A request to submit.
#[derive(Debug, Clone)]
pub(crate) struct NewRequest<'a> {
    /// Name of the service.
    pub service: &'a [u8],
    /// Body.
    pub body: Body,
    /// Time to live.
    pub ttl: Option<Duration>,
    /// Not journalled.
    pub volatile: bool,
    /// Returned with each delivery.
    pub owner: u32,
}

/// An outcome, or part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Number of the request.
    pub number: u64,
    /// Owner of the request.
    pub owner: u32,
    /// Status.
    pub status: Status,
    /// Part number, from 0; the final part has none.
    pub part: Option<u32>,
    /// Reply, or reason.
    pub body: Body,
}

/// Counters since the session was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Requests resent because a connection was lost.
    pub resent: u64,
    /// Requests resent because the broker had refused them temporarily.
    pub retried: u64,
    /// Duplicate replies, dropped.
    pub duplicates: u64,
    /// Connections to another broker than before, or to a restarted one.
    pub restarts: u64,
}

/// A temporary refusal by a broker. The request is resent later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Status of the refusal.
    pub status: Status,
    /// Reason for people.
    pub reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.status.describe(&self.reason))
    }
}

/// State of the current connection.
enum Link {
    Down,
    /// HELLO was sent; WELCOME must come until then.
    Greeting(Duration),
    Numbered {
        requests_max: usize,
        bytes_max: u64,
        journal: bool,
    },
    /// To a stock broker: one request at a time, and the number of the outstanding one.
    Stock(Option<u64>),
    /// A reply to a cancelled request might still come, so this connection can't be used for another.
    Spoiled(&'static str),
}

/// Client session for numbered requests and stock Majordomo.
pub(crate) struct Session {
    client: ClientId,
    requests_max: usize,
    bytes_max: usize,
    welcome_timeout: Duration,
    table: Table,
    services: Services,
    link: Link,
    epoch: Option<u64>,
    /// Lowest number without an outcome at the start of this connection.
    greeted_with: u64,
    /// Requests from here on haven't been considered on this connection.
    cursor: u64,
    again: VecDeque<u64>,
    held: BinaryHeap<Reverse<(Duration, u64)>>,
    deadlines: Deadlines,
    acks: Acks,
    /// Requests that were ended on this side and still count at the broker, with the bytes of their bodies.
    abandoned: BTreeMap<u64, u64>,
    cancels: Vec<u64>,
    bytes: usize,
    in_flight: usize,
    in_flight_bytes: u64,
    counters: Counters,
    /// The last refusal.
    refused: Option<Refused>,
    /// The broker has no storage, and nothing has succeeded since it said so.
    lacks_storage: bool,
    /// Brokers in a row that were left for that.
    left: usize,
}

impl Session {
    /// A session without requests or connection. Limits are on requests without an outcome, in count and bytes of memory.
    pub fn new(client: ClientId, requests_max: usize, bytes_max: usize, welcome_timeout: Duration) -> Session {
        Session {
            client,
            requests_max: requests_max.max(1),
            bytes_max,
            welcome_timeout,
            table: Table::new(),
            services: Services::default(),
            link: Link::Down,
            epoch: None,
            greeted_with: 1,
            cursor: 1,
            again: VecDeque::new(),
            held: BinaryHeap::new(),
            deadlines: Deadlines::default(),
            acks: Acks::default(),
            abandoned: BTreeMap::new(),
            cancels: Vec::new(),
            bytes: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            counters: Counters::default(),
            refused: None,
            lacks_storage: false,
            left: 0,
        }
    }

    /// Sets the id for the connections to come.
    pub fn set_client(&mut self, client: ClientId) {
        self.client = client;
    }

    /// Requests without an outcome.
    pub fn outstanding(&self) -> usize {
        self.table.outstanding()
    }

    /// Bytes of memory that they take.
    pub fn outstanding_bytes(&self) -> usize {
        self.bytes
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The last refusal, while refused requests wait to be resent.
    pub fn refused(&self) -> Option<&Refused> {
        self.refused.as_ref().filter(|_| !self.held.is_empty())
    }

    /// Whether a request with this body is accepted if `taken` slots are used by others.
    #[inline]
    pub fn has_space(&self, body: &Body, taken: usize) -> bool {
        let outstanding = self.table.outstanding();
        outstanding + taken < self.requests_max
            && (self.bytes + ENTRY_BYTES + body.memory_bytes() <= self.bytes_max || outstanding == 0)
    }

    /// Submits a request for which there is space, and returns its number.
    #[inline]
    pub fn submit(&mut self, request: NewRequest<'_>, now: Duration) -> u64 {
        self.bytes += ENTRY_BYTES + request.body.memory_bytes();
        let deadline = request.ttl.map(|ttl| now.saturating_add(ttl));
        let number = self.table.push(Entry {
            body: request.body,
            service: self.services.refer(request.service),
            deadline,
            owner: request.owner,
            next_part: 0,
            state: State::Waiting,
            volatile: request.volatile,
            accepted: false,
            sent_before: false,
            known: false,
            elsewhere: false,
        });
        if let Some(at) = deadline {
            let table = &mut self.table;
            self.deadlines.tidy(table.outstanding(), |number| table.find(number).is_some());
            self.deadlines.add(at, number);
        }
        number
    }

    /// A connection to a broker of numbered requests is ready. Appends the greeting.
    pub fn connected(&mut self, now: Duration, block: &mut Block) {
        self.begin();
        self.link = Link::Greeting(now.saturating_add(self.welcome_timeout));
        self.greeted_with = self.table.lowest();
        FromClient::hello(block, self.client, self.greeted_with);
    }

    /// A connection to a stock broker is ready.
    pub fn connected_to_stock(&mut self) {
        self.begin();
        self.link = Link::Stock(None);
    }

    fn begin(&mut self) {
        for (_, entry) in self.table.iter_mut() {
            entry.state = State::Waiting;
            entry.elsewhere |= entry.known;
            entry.next_part = 0;
        }
        self.cursor = self.table.lowest();
        self.again.clear();
        self.held.clear();
        self.cancels.clear();
        self.abandoned.clear();
        self.acks.clear();
        self.lacks_storage = false;
        (self.in_flight, self.in_flight_bytes) = (0, 0);
    }

    /// The connection is lost.
    pub fn disconnected(&mut self) {
        self.link = Link::Down;
    }

    /// The broker's process, if this connection is to one of numbered requests and it has answered the greeting.
    pub fn epoch(&self) -> Option<u64> {
        self.epoch.filter(|_| matches!(self.link, Link::Numbered { .. }))
    }

    /// Number of the next request.
    pub fn next_number(&self) -> u64 {
        self.table.next_number()
    }

    /// Lowest number without an outcome.
    pub fn lowest(&self) -> u64 {
        self.table.lowest()
    }

    /// Appends a greeting for a broker that was left, and which of the numbers below `until` have ended.
    pub fn put_ended(&self, until: u64, block: &mut Block) {
        FromClient::hello(block, self.client, self.table.lowest());
        let mut acks = Acks::default();
        for (first, count) in self.table.done_ranges() {
            let count = count.min(until.saturating_sub(first));
            if count > 0 {
                acks.add_range(first, count, Duration::ZERO);
            }
        }
        acks.put(block);
    }

    /// Whether WELCOME hasn't come yet.
    pub fn is_greeting(&self) -> bool {
        matches!(self.link, Link::Greeting(_))
    }

    /// Why another broker should be tried: this one has no storage, holds nothing of ours, and has been sent everything.
    pub fn refuses_everything(&self) -> Option<&Refused> {
        let is_free = self.in_flight == 0 && !self.held.is_empty() && self.is_flushed();
        self.refused.as_ref().filter(|_| self.lacks_storage && is_free)
    }

    /// Whether to move on from a broker that refuses everything to the next of this many: not if all of them did.
    pub fn goes_on(&mut self, brokers: usize) -> bool {
        self.left = (self.left + 1) % brokers.max(1);
        self.left > 0
    }

    /// A request succeeded.
    #[inline]
    fn is_served(&mut self) {
        (self.lacks_storage, self.left) = (false, 0);
    }

    /// Why the connection has to be replaced, if so.
    pub fn spoiled(&self) -> Option<&'static str> {
        match self.link {
            Link::Spoiled(why) => Some(why),
            _ => None,
        }
    }

    /// Whether the broker has a journal. `None`: unknown without a connection.
    pub fn journal(&self) -> Option<bool> {
        match self.link {
            Link::Numbered { journal, .. } => Some(journal),
            Link::Stock(_) => Some(false),
            _ => None,
        }
    }

    /// Whether a request is in the broker's journal. `None`: it has its outcome, or never existed.
    pub fn is_accepted(&mut self, number: u64) -> Option<bool> {
        self.table.find(number).map(|entry| entry.accepted)
    }

    /// Ends all requests: there will be no more connections.
    pub fn end_all(&mut self, reason: &str, sink: &mut impl FnMut(Delivery)) {
        self.link = Link::Down;
        self.give_up_all(Duration::ZERO, reason, sink);
    }

    /// Ends all requests, and cancels them at the broker.
    pub fn give_up_all(&mut self, now: Duration, reason: &str, sink: &mut impl FnMut(Delivery)) {
        let all: Vec<u64> = self.table.iter_mut().map(|(number, _)| number).collect();
        for number in all {
            if let Some(delivery) = self.abandon(number, now, Status::CANCELLED, reason) {
                sink(delivery);
            }
        }
    }
}
