//! A log that several brokers share, of which one leads: the real member of a cell, on a log that delays, loses, repeats and mistakes.
//!
//! The log's blocks have the numbers of entries instead of records.

use crate::disk::restored;
use crate::rng::Rng;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use towpath_broker::core::{Entry, Millis};
use towpath_broker::store::{AppendError, Leadership, Position, Recovered};
use towpath_cell::block::Kind;
use towpath_cell::member::{Event, Operation, Published, Settings};

/// Silence of the log after which a member tries to lead.
const TAKEOVER_AFTER: Millis = 120;

/// Idle time after which a leader shows that it is there.
const BEAT_AFTER: Millis = 40;

/// Time after which an answer is taken for lost.
const TIMEOUT: Millis = 60;

/// Entries that may wait behind a block that is being written.
const WAITING_MAX: usize = 60;

/// An append on its way to the log.
#[derive(Debug)]
struct Append {
    at: Millis,
    operation: u64,
    message: Bytes,
    expected: u64,
    /// When the answer arrives, unless it is lost.
    answered_at: Option<Millis>,
}

#[derive(Debug)]
enum Answer {
    Published(Published),
    Read(Vec<(u64, Bytes)>),
}

#[derive(Debug, Default)]
pub struct Stream {
    messages: Vec<Bytes>,
    /// All entries that were ever appended to some block.
    entries: Vec<Entry>,
    appends: Vec<Append>,
    answers: Vec<(Millis, u64, Answer)>,
    processes: u64,
    operations: u64,
    /// Whether faults have ended.
    pub is_calm: bool,
}

pub type Shared = Rc<RefCell<Stream>>;

fn settings(broker: u64, takeover_after: Millis) -> Settings {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&broker.to_le_bytes());
    Settings {
        broker: id,
        endpoint: String::new(),
        takeover_after,
        beat_after: BEAT_AFTER,
        message_bytes_max: towpath_cell::block::MESSAGE_BYTES_MAX,
    }
}

fn numbers(content: &[u8]) -> impl Iterator<Item = usize> {
    content.chunks(8).map(|number| usize::from_le_bytes(number.try_into().unwrap()))
}

impl Stream {
    /// Appends or refuses the messages that have arrived by now, in the order of arrival.
    fn advance(&mut self, now: Millis, rng: &mut Rng) {
        self.appends.sort_by_key(|append| append.at);
        while self.appends.first().is_some_and(|append| append.at <= now) {
            let Append { operation, message, expected, answered_at, .. } = self.appends.remove(0);
            let last = self.messages.len() as u64;
            let mut happens = |chance: u64| !self.is_calm && rng.percent(chance);
            let is_mistaken = happens(3) && expected + 1 == last;
            let answer = if happens(2) {
                Published::Unknown("no".to_owned())
            } else if expected == last || is_mistaken {
                self.messages.push(message);
                Published::Taken(last + 1)
            } else {
                Published::Refused(Some(last))
            };
            self.answers.extend(answered_at.map(|at| (at, operation, Answer::Published(answer))));
        }
    }

    /// The requests that these entries leave.
    fn recovered(&self, entries: &[usize]) -> Recovered {
        let (requests, last_id) = restored(entries.iter().map(|entry| &self.entries[*entry]));
        Recovered { requests, last_id }
    }

    /// The requests that are left.
    pub fn left(&self) -> Recovered {
        let mut reader = towpath_cell::Member::new(settings(0, Millis::MAX));
        let messages = self.messages.iter().enumerate().map(|(at, message)| (at as u64 + 1, message.clone()));
        reader.read(0, Ok(messages.collect()));
        assert_eq!(reader.failure(), None);
        let mut entries = Vec::new();
        while let Some(event) = reader.next_event() {
            match event {
                Event::Read(block) if block.kind == Kind::Records => entries.extend(numbers(&block.content)),
                _ => {}
            }
        }
        self.recovered(&entries)
    }
}

/// One broker's side of the log.
#[derive(Debug)]
pub struct Member {
    stream: Shared,
    rng: Rng,
    member: towpath_cell::Member,
    /// The operation in flight, whether it appends, and when its answer is taken for lost.
    in_flight: Option<(u64, bool, Millis)>,
    /// Entries that were read while it didn't lead.
    read: Vec<usize>,
    waiting: Vec<usize>,
    /// Entries appended since it leads, and how many of them are in the log.
    appended: u64,
    durable: u64,
    is_leading: bool,
    changes: VecDeque<Option<Vec<usize>>>,
    /// How often it has won.
    pub terms: u64,
    /// Whether it is cut off: neither its messages arrive nor any answer.
    pub is_cut_off: bool,
    /// A fault: it takes a refused block for its own, unread.
    is_rash: bool,
}

impl Member {
    pub fn new(stream: Shared, is_rash: bool, rng: Rng) -> Member {
        stream.borrow_mut().processes += 1;
        let process = stream.borrow().processes;
        Member {
            stream,
            rng,
            member: towpath_cell::Member::new(settings(process, TAKEOVER_AFTER)),
            in_flight: None,
            read: Vec::new(),
            waiting: Vec::new(),
            appended: 0,
            durable: 0,
            is_leading: false,
            changes: VecDeque::new(),
            terms: 0,
            is_cut_off: false,
            is_rash,
        }
    }

    /// Its process is another one.
    pub fn restarted(mut self) -> Member {
        let is_cut_off = self.is_cut_off;
        let rng = Rng::new(self.rng.next());
        Member { is_cut_off, terms: self.terms, ..Member::new(self.stream, self.is_rash, rng) }
    }

    pub fn poll(&mut self, now: Millis) {
        let shared = Rc::clone(&self.stream);
        let mut stream = shared.borrow_mut();
        stream.advance(now, &mut self.rng);
        self.take_answer(now, &mut stream);
        self.take_events();
        if self.member.can_submit() && !self.waiting.is_empty() {
            let content: Vec<u8> = self.waiting.drain(..).flat_map(usize::to_le_bytes).collect();
            self.member.submit(&content, 0);
        }
        if self.in_flight.is_none()
            && let Some(operation) = self.member.next(now)
        {
            self.begin(now, operation, &mut stream);
        }
        self.take_events();
    }

    fn begin(&mut self, now: Millis, operation: Operation, stream: &mut Stream) {
        stream.operations += 1;
        let number = stream.operations;
        self.in_flight = Some((number, matches!(operation, Operation::Publish { .. }), now + TIMEOUT));
        let in_100 = |chance: u64| if stream.is_calm { 0 } else { chance };
        if self.is_cut_off || self.rng.percent(in_100(4)) {
            return;
        }
        let mut delay = || if self.rng.percent(in_100(8)) { self.rng.between(30, 400) } else { self.rng.between(1, 8) };
        let (there, back) = (delay(), delay());
        let answered_at = Some(now + there + back).filter(|_| !self.rng.percent(in_100(6)));
        match operation {
            Operation::Publish { message, expected } => {
                stream.appends.push(Append { at: now + there, operation: number, message, expected, answered_at });
            }
            Operation::Read { after } => {
                let end = stream.messages.len() as u64;
                let stale = if self.rng.percent(in_100(20)) { self.rng.between(0, 3) } else { 0 };
                let found = (after..end.saturating_sub(stale)).map(|at| (at + 1, stream.messages[at as usize].clone()));
                let found = found.collect();
                stream.answers.extend(answered_at.map(|at| (at, number, Answer::Read(found))));
            }
        }
    }

    fn take_answer(&mut self, now: Millis, stream: &mut Stream) {
        let Some((number, is_publish, until)) = self.in_flight else { return };
        let mut mine = stream.answers.extract_if(.., |(at, operation, _)| *at <= now && *operation == number);
        let answer = mine.next().map(|(.., answer)| answer).filter(|_| !self.is_cut_off);
        drop(mine);
        if answer.is_none() && now < until {
            return;
        }
        self.in_flight = None;
        match answer {
            Some(Answer::Published(Published::Refused(_))) if self.is_rash => {
                self.member.published(now, Published::Taken(self.member.seen() + 1));
            }
            Some(Answer::Published(answer)) => self.member.published(now, answer),
            Some(Answer::Read(messages)) => self.member.read(now, Ok(messages)),
            None if is_publish => self.member.published(now, Published::Unknown("no answer".to_owned())),
            None => self.member.read(now, Err("no answer".to_owned())),
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.member.next_event() {
            match event {
                Event::Restarted => self.read.clear(),
                Event::Read(block) | Event::Durable(block) if block.kind != Kind::Records => {}
                Event::Read(block) => self.read.extend(numbers(&block.content)),
                Event::Won(_) => {
                    self.terms += 1;
                    (self.is_leading, self.appended, self.durable) = (true, 0, 0);
                    self.changes.push_back(Some(std::mem::take(&mut self.read)));
                }
                Event::Lost => {
                    self.is_leading = false;
                    self.waiting.clear();
                    self.changes.push_back(None);
                }
                Event::Durable(block) => self.durable += numbers(&block.content).count() as u64,
            }
        }
    }

    pub fn next_leadership(&mut self) -> Option<Leadership> {
        Some(match self.changes.pop_front()? {
            Some(entries) => Leadership::Won(self.stream.borrow().recovered(&entries)),
            None => Leadership::Lost,
        })
    }

    pub fn append(&mut self, entry: Entry) -> Result<Position, AppendError> {
        if !self.is_leading || self.waiting.len() >= WAITING_MAX {
            return Err(AppendError::Later);
        }
        let mut stream = self.stream.borrow_mut();
        self.waiting.push(stream.entries.len());
        stream.entries.push(entry);
        self.appended += 1;
        Ok(Position(self.appended - 1))
    }

    pub fn durable(&self) -> Position {
        Position(self.durable)
    }

    pub fn failure(&self) -> Option<String> {
        self.member.failure().filter(|_| self.is_leading).map(str::to_owned)
    }

    /// When to look again.
    pub fn due(&self, now: Millis) -> Millis {
        now + if self.in_flight.is_some() { 3 } else { 15 }
    }
}
