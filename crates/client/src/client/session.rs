//! What a client has asked for and not yet heard of: the protocol without a socket, a thread or a clock.
//!
//! Every request is held here until its outcome is here, and is sent on every connection until then, in the order of the
//! numbers. Each gets exactly one outcome; replies that come again are confirmed again, and dropped.

mod receive;
mod send;

use super::acks::Confirms;
use super::deadlines::Deadlines;
use super::outstanding::{Entry, State, Table};
use super::services::Services;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::numbered::{Block, ClientId, FromClient, Status};

/// Refused requests that wait for their time; while there are so many, no new ones are sent.
const HELD_MAX: usize = 1024;

/// The longest that a refused request waits, whatever the broker says.
const RETRY_MOST: Duration = Duration::from_secs(60);

/// What an entry costs beside the memory of its body.
const ENTRY_BYTES: usize = size_of::<Entry>();

/// A request to be.
#[derive(Debug, Clone)]
pub(crate) struct NewRequest<'a> {
    /// Which service.
    pub service: &'a [u8],
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
#[non_exhaustive]
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

/// A broker has refused a request for a while, and it is sent again later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What for.
    pub status: Status,
    /// Why, for people.
    pub reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.status.describe(&self.reason))
    }
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
    services: Services,
    link: Link,
    epoch: Option<u64>,
    /// The lowest number without an outcome when this connection began.
    greeted_with: u64,
    /// From here on, requests have not been looked at on this connection.
    cursor: u64,
    again: VecDeque<u64>,
    held: BinaryHeap<Reverse<(Duration, u64)>>,
    deadlines: Deadlines,
    confirms: Confirms,
    /// Requests whose outcome came from this side, until the broker's is here too, with the bytes of their bodies: they take
    /// their place there until then.
    abandoned: BTreeMap<u64, u64>,
    cancels: Vec<u64>,
    bytes: usize,
    in_flight: usize,
    in_flight_bytes: u64,
    counters: Counters,
    /// The last refusal.
    refused: Option<Refused>,
    /// The broker can't write what is asked of it, and nothing that was asked since has come to anything.
    is_turned_away: bool,
    /// Brokers in a row that were left for that.
    left: usize,
}

impl Session {
    /// Nothing asked yet, not connected. Bounds are on what has no outcome yet, in requests and bytes of memory.
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
            confirms: Confirms::default(),
            abandoned: BTreeMap::new(),
            cancels: Vec::new(),
            bytes: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            counters: Counters::default(),
            refused: None,
            is_turned_away: false,
            left: 0,
        }
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

    /// The last refusal, while requests wait to be sent again because of one.
    pub fn refused(&self) -> Option<&Refused> {
        self.refused.as_ref().filter(|_| !self.held.is_empty())
    }

    /// Whether one more request of so many bytes is taken, if `taken` places of the bound are taken by something else.
    #[inline]
    pub fn has_room(&self, body: &Body, taken: usize) -> bool {
        let outstanding = self.table.outstanding();
        outstanding + taken < self.requests_max
            && (self.bytes + ENTRY_BYTES + body.memory_bytes() <= self.bytes_max || outstanding == 0)
    }

    /// Takes a request, which must have been asked for room; gives its number.
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

    /// A connection to a broker of numbered requests is there. Appends what is said first.
    pub fn connected(&mut self, now: Duration, block: &mut Block) {
        self.begin();
        self.link = Link::Greeting(now.saturating_add(self.welcome_timeout));
        self.greeted_with = self.table.lowest();
        FromClient::hello(block, self.client, self.greeted_with);
    }

    /// A connection to a stock broker is there.
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
        self.confirms.clear();
        self.is_turned_away = false;
        (self.in_flight, self.in_flight_bytes) = (0, 0);
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.link = Link::Down;
    }

    /// Whether the broker hasn't said yet that it is one.
    pub fn is_greeting(&self) -> bool {
        matches!(self.link, Link::Greeting(_))
    }

    /// Why another broker should be tried, if there is one: this one takes nothing, for want of a disk that it could write to, and has
    /// nothing of ours that it will still tell of, or that it has yet to hear.
    pub fn turned_away(&self) -> Option<&Refused> {
        let is_free = self.in_flight == 0 && !self.held.is_empty() && self.is_flushed();
        self.refused.as_ref().filter(|_| self.is_turned_away && is_free)
    }

    /// Whether to go on to the next of so many brokers, from one that turns this client away: not where all of them did.
    pub fn goes_on(&mut self, brokers: usize) -> bool {
        self.left = (self.left + 1) % brokers.max(1);
        self.left > 0
    }

    /// Something came to something.
    #[inline]
    fn is_served(&mut self) {
        (self.is_turned_away, self.left) = (false, 0);
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

    /// Ends everything, because the connection is gone for good.
    pub fn end_all(&mut self, reason: &str, sink: &mut impl FnMut(Delivery)) {
        self.link = Link::Down;
        self.give_up_all(Duration::ZERO, reason, sink);
    }

    /// Ends everything, and tells the broker that nobody wants it any more.
    pub fn give_up_all(&mut self, now: Duration, reason: &str, sink: &mut impl FnMut(Delivery)) {
        let all: Vec<u64> = self.table.iter_mut().map(|(number, _)| number).collect();
        for number in all {
            if let Some(delivery) = self.abandon(number, now, Status::CANCELLED, reason) {
                sink(delivery);
            }
        }
    }
}
