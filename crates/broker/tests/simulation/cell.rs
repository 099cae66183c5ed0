//! A log that several brokers share, of which one leads: the real member of a cell, on a log that delays, loses, repeats and mistakes.
//!
//! The log's blocks have the numbers of entries instead of records, and now and then so much padding that they are in parts.

use crate::disk::restored;
use crate::rng::Rng;
use bytes::Bytes;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use towpath_broker::core::{Entry, Millis};
use towpath_broker::store::{AppendError, Leadership, Position, Recovered};
use towpath_cell::Block;
use towpath_cell::block::{Header, Kind, MESSAGE_BYTES_MIN};
use towpath_cell::member::{Event, Operation, Published, Settings};

/// Silence of the log after which a member tries to lead.
const TAKEOVER_AFTER: Millis = 120;

/// Idle time after which a leader shows that it is there.
const BEAT_AFTER: Millis = 40;

/// Time after which an answer is taken for lost.
const TIMEOUT: Millis = 60;

/// Entries that may wait behind a block that is being written.
const WAITING_MAX: usize = 60;

/// Blocks above which the log is trimmed, and how many of them go.
const BLOCKS_MAX: usize = 40;
const BLOCKS_TRIMMED: usize = 20;

/// A rule that a member breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// A refused block is taken for its own, unread.
    FirstBehind,
    /// Blocks of former terms, and those that came twice, count.
    Epochs,
}

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

/// The stream in NATS.
#[derive(Debug, Default)]
pub struct Stream {
    messages: VecDeque<Bytes>,
    /// Messages before them that were trimmed.
    trimmed: u64,
    /// All entries that were ever appended to some block.
    entries: Vec<Entry>,
    appends: Vec<Append>,
    /// When the messages below a sequence number go.
    purges: Vec<(Millis, u64)>,
    answers: Vec<(Millis, u64, Answer)>,
    processes: u64,
    operations: u64,
    /// End of a time in which it takes nothing.
    full_until: Millis,
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
        message_bytes_max: MESSAGE_BYTES_MIN,
    }
}

/// The content of a block: how many entries, their numbers, padding.
fn content(entries: &[usize], padding: usize) -> Vec<u8> {
    let mut content: Vec<u8> = [entries.len()].iter().chain(entries).flat_map(|number| number.to_le_bytes()).collect();
    content.resize(content.len() + padding, 0);
    content
}

fn numbers(content: &[u8]) -> Vec<usize> {
    let mut numbers = content.chunks_exact(8).map(|number| usize::from_le_bytes(number.try_into().unwrap()));
    let count = numbers.next().unwrap_or(0);
    numbers.take(count).collect()
}

/// Entries of the blocks that count, as a broker has read them.
#[derive(Debug, Default)]
struct View {
    /// The first message of each block, and its entries.
    blocks: VecDeque<(u64, Vec<usize>)>,
    /// The last message that was looked at, if all count.
    looked_at: u64,
}

impl View {
    fn add(&mut self, block: &Block) {
        let entries = if block.kind == Kind::Records { numbers(&block.content) } else { Vec::new() };
        self.blocks.push_back((block.first, entries));
    }

    /// Adds all blocks of these messages, whether they count or not.
    fn add_all(&mut self, messages: &[(u64, Bytes)]) {
        for (sequence, message) in messages.iter().filter(|(sequence, _)| *sequence > self.looked_at) {
            let (header, content, _) = Header::decode(message).unwrap();
            if header.kind == Kind::Records && header.parts == 1 {
                self.blocks.push_back((*sequence, numbers(&content)));
            }
        }
        self.looked_at = messages.last().map_or(self.looked_at, |(sequence, _)| self.looked_at.max(*sequence));
    }

    /// All entries, each once, in the order in which they were made: copies of trimmed ones are behind later ones.
    fn entries(&self) -> BTreeSet<usize> {
        self.blocks.iter().flat_map(|(_, entries)| entries).copied().collect()
    }
}

impl Stream {
    fn last(&self) -> u64 {
        self.trimmed + self.messages.len() as u64
    }

    /// Appends or refuses the messages that have arrived by now, in the order of arrival.
    fn advance(&mut self, now: Millis, rng: &mut Rng) {
        for (_, end) in self.purges.extract_if(.., |(at, _)| *at <= now) {
            while self.trimmed + 1 < end {
                self.messages.pop_front();
                self.trimmed += 1;
            }
        }
        self.appends.sort_by_key(|append| append.at);
        while self.appends.first().is_some_and(|append| append.at <= now) {
            let Append { operation, message, expected, answered_at, .. } = self.appends.remove(0);
            let last = self.last();
            let mut happens = |chance: u64| !self.is_calm && rng.percent(chance);
            // ABA: it looks at the end as it was a moment ago.
            let is_mistaken = happens(25) && expected < last && expected + 4 >= last;
            let answer = if happens(2) {
                Published::Unknown("no".to_owned())
            } else if happens(2) {
                Published::Refused(None)
            } else if now < self.full_until && !self.is_calm {
                Published::Unknown("maximum bytes exceeded".to_owned())
            } else if expected == last || is_mistaken {
                self.messages.push_back(message);
                Published::Taken(last + 1)
            } else {
                Published::Refused(Some(last))
            };
            if !self.is_calm && rng.below(400) == 0 {
                self.full_until = now + rng.between(20, 700);
            }
            self.answers.extend(answered_at.map(|at| (at, operation, Answer::Published(answer))));
        }
    }

    /// The first messages behind a sequence number, without so many of the last ones.
    fn read(&self, after: u64, without: u64) -> Vec<(u64, Bytes)> {
        let from = after.max(self.trimmed);
        let end = self.last().saturating_sub(without);
        (from..end).map(|at| (at + 1, self.messages[(at - self.trimmed) as usize].clone())).collect()
    }

    /// The requests that these entries leave.
    fn recovered(&self, entries: &BTreeSet<usize>) -> Recovered {
        let (requests, last_id) = restored(entries.iter().map(|entry| &self.entries[*entry]));
        Recovered { requests, last_id }
    }

    /// Those of a block that are needed: of requests that aren't forgotten, and not in a later block too.
    fn needed(&self, view: &View, blocks: usize) -> Vec<usize> {
        let forgets = |entry: &usize| matches!(self.entries[*entry], Entry::Forgotten { .. });
        let all = view.entries();
        let forgotten: BTreeSet<u64> = all.iter().filter(|e| forgets(e)).map(|e| self.entries[*e].id()).collect();
        let later: BTreeSet<usize> =
            view.blocks.iter().skip(blocks).flat_map(|(_, entries)| entries).copied().collect();
        let oldest: BTreeSet<usize> =
            view.blocks.iter().take(blocks).flat_map(|(_, entries)| entries).copied().collect();
        let is_needed = |entry: &usize| !forgotten.contains(&self.entries[*entry].id());
        oldest.difference(&later).filter(|entry| is_needed(entry)).copied().collect()
    }

    /// The requests that are left, for a reader that begins now.
    pub fn left(&self) -> Recovered {
        let mut reader = towpath_cell::Member::new(settings(0, Millis::MAX));
        reader.read(0, Ok(self.read(0, 0)));
        assert_eq!(reader.failure(), None);
        let mut view = View::default();
        while let Some(event) = reader.next_event() {
            if let Event::Read(block) = event {
                view.add(&block);
            }
        }
        self.recovered(&view.entries())
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
    view: View,
    waiting: Vec<usize>,
    /// Requests that were dropped because the log is full.
    given_up: BTreeSet<u64>,
    is_full: bool,
    /// Where the log ends that is trimmed when the copies are in it.
    trims_below: Option<u64>,
    last_id: u64,
    /// Entries appended since it leads, and how many of them are in the log.
    appended: u64,
    durable: u64,
    is_leading: bool,
    changes: VecDeque<Option<BTreeSet<usize>>>,
    /// How often it has won.
    pub terms: u64,
    /// Whether it is cut off: neither its messages arrive nor any answer.
    pub is_cut_off: bool,
    broken: Broken,
}

impl Member {
    pub fn new(stream: Shared, broken: Broken, rng: Rng) -> Member {
        stream.borrow_mut().processes += 1;
        let process = stream.borrow().processes;
        Member {
            stream,
            rng,
            member: towpath_cell::Member::new(settings(process, TAKEOVER_AFTER)),
            in_flight: None,
            view: View::default(),
            waiting: Vec::new(),
            given_up: BTreeSet::new(),
            is_full: false,
            trims_below: None,
            last_id: 0,
            appended: 0,
            durable: 0,
            is_leading: false,
            changes: VecDeque::new(),
            terms: 0,
            is_cut_off: false,
            broken,
        }
    }

    /// Its process is another one.
    pub fn restarted(mut self) -> Member {
        let is_cut_off = self.is_cut_off;
        let rng = Rng::new(self.rng.next());
        Member { is_cut_off, terms: self.terms, ..Member::new(self.stream, self.broken, rng) }
    }

    pub fn poll(&mut self, now: Millis) {
        let shared = Rc::clone(&self.stream);
        let mut stream = shared.borrow_mut();
        stream.advance(now, &mut self.rng);
        self.take_answer(now, &mut stream);
        self.take_events();
        self.is_full = now < stream.full_until && !stream.is_calm;
        self.submit(now, &mut stream);
        if self.in_flight.is_none()
            && let Some(operation) = self.member.next(now)
        {
            self.begin(now, operation, &mut stream);
        }
        self.take_events();
    }

    /// Gives the member the next block, of copies if the log is long.
    fn submit(&mut self, now: Millis, stream: &mut Stream) {
        if !self.member.can_submit() {
            return;
        }
        if let Some(end) = self.trims_below.take() {
            // Late, or not at all.
            if stream.is_calm || self.rng.percent(80) {
                stream.purges.push((now + self.rng.between(1, 200), end));
            }
            self.view.blocks.retain(|(first, _)| *first >= end);
            return self.member.beat();
        }
        if self.view.blocks.len() > BLOCKS_MAX {
            self.trims_below = Some(self.view.blocks[BLOCKS_TRIMMED].0);
            let copies = stream.needed(&self.view, BLOCKS_TRIMMED);
            return self.member.submit(&content(&copies, 0), self.last_id);
        }
        if !self.waiting.is_empty() {
            let padding = if self.rng.percent(3) { self.rng.between(10_000, 100_000) } else { 0 };
            let content = content(&std::mem::take(&mut self.waiting), padding as usize);
            self.member.submit(&content, self.last_id);
        }
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
                let stale = if self.rng.percent(in_100(20)) { self.rng.between(0, 6) } else { 0 };
                let found = stream.read(after, stale);
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
            Some(Answer::Published(Published::Refused(_))) if self.broken == Broken::FirstBehind => {
                self.member.published(now, Published::Taken(self.member.seen() + 1));
            }
            Some(Answer::Published(answer)) => self.member.published(now, answer),
            Some(Answer::Read(messages)) => {
                if self.broken == Broken::Epochs {
                    self.view.add_all(&messages);
                }
                self.member.read(now, Ok(messages));
            }
            None if is_publish => self.member.published(now, Published::Unknown("no answer".to_owned())),
            None => self.member.read(now, Err("no answer".to_owned())),
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.member.next_event() {
            match event {
                Event::Restarted => (self.view, self.trims_below) = (View::default(), None),
                Event::Read(block) => self.view.add(&block),
                Event::Won(block) => {
                    self.view.add(&block);
                    self.terms += 1;
                    (self.is_leading, self.appended, self.durable) = (true, 0, 0);
                    self.last_id = self.member.last_id();
                    self.changes.push_back(Some(self.view.entries()));
                }
                Event::Lost => {
                    self.is_leading = false;
                    self.waiting.clear();
                    self.given_up.clear();
                    self.changes.push_back(None);
                }
                Event::Durable(block) => {
                    self.view.add(&block);
                    if block.kind == Kind::Records && self.trims_below.is_none() {
                        self.durable += numbers(&block.content).len() as u64;
                    }
                }
            }
        }
    }

    pub fn next_leadership(&mut self) -> Option<Leadership> {
        Some(match self.changes.pop_front()? {
            Some(entries) => {
                let recovered = self.stream.borrow().recovered(&entries);
                self.last_id = self.last_id.max(recovered.last_id);
                Leadership::Won(Recovered { last_id: self.last_id, ..recovered })
            }
            None => Leadership::Lost,
        })
    }

    pub fn append(&mut self, entry: Entry) -> Result<Position, AppendError> {
        if !self.is_leading || self.waiting.len() >= WAITING_MAX {
            return Err(AppendError::Later);
        }
        let (id, is_new) = (entry.id(), matches!(entry, Entry::Accepted { letter: None, .. }));
        let is_given_up = is_new && self.is_full || self.given_up.contains(&id);
        if is_given_up {
            self.given_up.insert(id);
        }
        self.last_id = self.last_id.max(id);
        let mut stream = self.stream.borrow_mut();
        self.waiting.push(stream.entries.len());
        stream.entries.push(if is_given_up { Entry::Forgotten { id } } else { entry });
        self.appended += 1;
        Ok(Position(self.appended - 1))
    }

    pub fn durable(&self) -> Position {
        Position(self.durable)
    }

    pub fn take_given_up(&mut self) -> Option<Vec<u64>> {
        let given_up = std::mem::take(&mut self.given_up);
        (!given_up.is_empty()).then(|| given_up.into_iter().collect())
    }

    pub fn failure(&self) -> Option<String> {
        self.member.failure().filter(|_| self.is_leading).map(str::to_owned)
    }

    /// When to look again.
    pub fn due(&self, now: Millis) -> Millis {
        now + if self.in_flight.is_some() { 3 } else { 15 }
    }
}
