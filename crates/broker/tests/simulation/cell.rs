//! A log that several brokers share, of which one leads: blocks are appended with compare-and-set, over a network that delays, loses and repeats.
//!
//! A member's block is in the log for good once it knows that it is: it has the answer, or has found its own block as the first one behind those
//! that it expected. Anything else behind them is a rival's, and ends its leadership. Members that see nothing new for a while try to lead.

use crate::disk::restored;
use crate::rng::Rng;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use towpath_broker::core::{Entry, Millis};
use towpath_broker::store::{AppendError, Leadership, Position, Recovered};

/// Silence of the log after which a member tries to lead.
const TAKEOVER_AFTER: Millis = 120;

/// Idle time after which a leader shows that it is there.
const BEAT_AFTER: Millis = 40;

/// Time after which an answer is taken for lost.
const TIMEOUT: Millis = 60;

/// Entries that may wait behind a block that is being written.
const WAITING_MAX: usize = 60;

/// The writer of a block, and its number among those of that member's process.
type BlockId = (u64, u64);

#[derive(Debug, Clone)]
struct Block {
    id: BlockId,
    entries: Vec<Entry>,
}

/// A block on its way to the log, to be appended if the log has as many blocks as expected.
#[derive(Debug)]
struct Request {
    at: Millis,
    block: Block,
    expected: usize,
    /// When the answer arrives, unless it is lost.
    answered_at: Option<Millis>,
}

#[derive(Debug, Clone, Copy)]
enum Verdict {
    Taken,
    Refused,
}

#[derive(Debug, Default)]
pub struct Stream {
    blocks: Vec<Block>,
    requests: Vec<Request>,
    answers: Vec<(Millis, BlockId, Verdict)>,
    processes: u64,
    /// Whether faults have ended.
    pub is_calm: bool,
}

pub type Shared = Rc<RefCell<Stream>>;

impl Stream {
    /// Appends or refuses the blocks that have arrived by now, in the order of arrival.
    fn advance(&mut self, now: Millis) {
        self.requests.sort_by_key(|request| request.at);
        while self.requests.first().is_some_and(|request| request.at <= now) {
            let Request { block, expected, answered_at, .. } = self.requests.remove(0);
            let id = block.id;
            let verdict = if self.blocks.len() == expected {
                self.blocks.push(block);
                Verdict::Taken
            } else {
                Verdict::Refused
            };
            self.answers.extend(answered_at.map(|at| (at, id, verdict)));
        }
    }

    /// Content of the first blocks.
    fn recovered(&self, blocks: usize) -> Recovered {
        let (requests, last_id) = restored(self.blocks[..blocks].iter().flat_map(|block| &block.entries));
        Recovered { requests, last_id }
    }

    /// The requests that are left.
    pub fn left(&self) -> Recovered {
        self.recovered(self.blocks.len())
    }
}

/// The block that is being written.
#[derive(Debug)]
struct Pending {
    block: Block,
    sent_at: Millis,
    /// Waits for the first block behind those expected, after a refusal: this is read then.
    reads_at: Option<Millis>,
}

/// One broker's side of the log.
#[derive(Debug)]
pub struct Member {
    stream: Shared,
    rng: Rng,
    /// Another one for each start of its process.
    process: u64,
    blocks: u64,
    /// Blocks that it knows of: it expects the log to have as many.
    seen: usize,
    seen_at: Millis,
    is_leading: bool,
    pending: Option<Pending>,
    waiting: Vec<Entry>,
    /// Entries appended since it leads, and how many of them are in the log.
    appended: u64,
    durable: u64,
    changes: VecDeque<Option<usize>>,
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
            process,
            blocks: 0,
            seen: 0,
            seen_at: 0,
            is_leading: false,
            pending: None,
            waiting: Vec::new(),
            appended: 0,
            durable: 0,
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
        stream.advance(now);
        self.take_answers(now, &mut stream);
        if self.pending.is_none() && !self.is_cut_off && !self.is_leading && stream.blocks.len() > self.seen {
            (self.seen, self.seen_at) = (stream.blocks.len(), now);
        }
        let silence = if self.is_leading { BEAT_AFTER } else { TAKEOVER_AFTER };
        match &self.pending {
            None if self.is_leading && !self.waiting.is_empty() || now >= self.seen_at + silence => {
                self.blocks += 1;
                let block = Block { id: (self.process, self.blocks), entries: std::mem::take(&mut self.waiting) };
                self.pending = Some(Pending { block, sent_at: 0, reads_at: None });
                self.send(now, &mut stream);
            }
            // The same block with the same expectation.
            Some(Pending { sent_at, reads_at: None, .. }) if now >= sent_at + TIMEOUT => self.send(now, &mut stream),
            Some(Pending { reads_at: Some(at), .. }) if now >= *at && !self.is_cut_off => self.read(now, &stream),
            _ => {}
        }
    }

    fn send(&mut self, now: Millis, stream: &mut Stream) {
        let Some(pending) = &mut self.pending else { return };
        pending.sent_at = now;
        let in_100 = |chance: u64| if stream.is_calm { 0 } else { chance };
        if self.is_cut_off || self.rng.percent(in_100(4)) {
            return;
        }
        let mut delay = || if self.rng.percent(in_100(8)) { self.rng.between(30, 400) } else { self.rng.between(1, 8) };
        let at = now + delay();
        let answered_at = Some(at + delay()).filter(|_| !self.rng.percent(in_100(6)));
        stream.requests.push(Request { at, block: pending.block.clone(), expected: self.seen, answered_at });
    }

    fn take_answers(&mut self, now: Millis, stream: &mut Stream) {
        let process = self.process;
        let mine: Vec<_> = stream.answers.extract_if(.., |(at, id, _)| *at <= now && id.0 == process).collect();
        for (_, id, verdict) in mine {
            match &mut self.pending {
                Some(pending) if pending.block.id == id && !self.is_cut_off => match verdict {
                    Verdict::Taken => self.taken(now),
                    Verdict::Refused if self.is_rash => self.taken(now),
                    Verdict::Refused => pending.reads_at = Some(now + self.rng.between(1, 10)),
                },
                _ => {}
            }
        }
    }

    /// Looks at the first block behind those that were expected. A stale answer has none: it says nothing.
    fn read(&mut self, now: Millis, stream: &Stream) {
        let Some(pending) = &mut self.pending else { return };
        let first = stream.blocks.get(self.seen).filter(|_| !self.rng.percent(20));
        match first.map(|block| block.id == pending.block.id) {
            Some(true) => self.taken(now),
            Some(false) => {
                if std::mem::take(&mut self.is_leading) {
                    self.changes.push_back(None);
                }
                (self.pending, self.seen_at) = (None, now);
                self.waiting.clear();
            }
            None => pending.reads_at = Some(now + 10),
        }
    }

    /// The block is in the log for good.
    fn taken(&mut self, now: Millis) {
        let Some(pending) = self.pending.take() else { return };
        (self.seen, self.seen_at) = (self.seen + 1, now);
        if self.is_leading {
            self.durable += pending.block.entries.len() as u64;
        } else {
            (self.is_leading, self.appended, self.durable) = (true, 0, 0);
            self.terms += 1;
            self.changes.push_back(Some(self.seen));
        }
    }

    pub fn next_leadership(&mut self) -> Option<Leadership> {
        Some(match self.changes.pop_front()? {
            Some(blocks) => Leadership::Won(self.stream.borrow().recovered(blocks)),
            None => Leadership::Lost,
        })
    }

    pub fn append(&mut self, entry: Entry) -> Result<Position, AppendError> {
        if !self.is_leading || self.waiting.len() >= WAITING_MAX {
            return Err(AppendError::Later);
        }
        self.waiting.push(entry);
        self.appended += 1;
        Ok(Position(self.appended - 1))
    }

    pub fn durable(&self) -> Position {
        Position(self.durable)
    }

    pub fn failure(&self) -> Option<String> {
        let is_late =
            |pending: &&Pending| self.is_leading && self.seen_at.max(pending.sent_at) > self.seen_at + 2 * TIMEOUT;
        self.pending.as_ref().filter(is_late).map(|_| "the log doesn't answer".to_owned())
    }

    /// When to look again.
    pub fn due(&self, now: Millis) -> Millis {
        now + if self.pending.is_some() { 3 } else { 15 }
    }
}
