//! A broker's part in its cell: it reads the log, takes the lead when the leader is gone, and appends while it leads.
//!
//! Without I/O and without a clock: [`Member::next`] gives an operation, of which one is in flight at a time, and the owner reports how it went.
//!
//! - A message is appended if nothing is behind those that were seen. Only an answer with the very next sequence number says that it is in the log.
//!   After any other answer, and after none, the first message behind those seen decides: ours, or another one. If none is there, that says nothing:
//!   the same message is sent again with the same expectation.
//! - Which messages count is decided by the log's order alone (`order.rs`).
//! - A standby takes the lead after a silence of the log, counted only while NATS answers, and never on a log shorter than it has seen.

use crate::block::{BrokerId, Header, Kind, Leader, TermSecret};
use crate::order::{Block, Fault, Order};
use bytes::Bytes;
use std::collections::VecDeque;

/// Milliseconds of the owner's clock.
pub type Millis = u64;

/// Between two reads of a standby that found nothing.
const READ_AGAIN: Millis = 40;
/// After an operation that failed, or a read that should have found something.
const RETRY: Millis = 100;
/// Before a damaged log is read again.
const REREAD_DAMAGED: Millis = 5_000;
/// Silence that one answer proves at most.
const SILENCE_MAX: Millis = 500;

/// Settings of a member.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This process.
    pub broker: BrokerId,
    /// Where clients and workers reach it. At most 255 bytes; more are cut off.
    pub endpoint: String,
    /// Silence of the log after which it takes the lead.
    pub takeover_after: Millis,
    /// Idle time after which a leader appends a sign that it is there.
    pub beat_after: Millis,
    /// Largest message.
    pub message_bytes_max: usize,
}

/// Role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Reading what is in the log already.
    CatchingUp,
    /// Reading what the leader appends.
    Standby,
    /// The leader.
    Leading,
}

impl Role {
    /// For people and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Role::CatchingUp => "catching up",
            Role::Standby => "standby",
            Role::Leading => "leading",
        }
    }
}

/// An operation on the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Append a message, if `expected` is the last one's sequence number. Reported by [`Member::published`].
    Publish {
        /// The message.
        message: Bytes,
        /// The sequence number.
        expected: u64,
    },
    /// Read the first messages behind this sequence number. Reported by [`Member::read`].
    Read {
        /// The sequence number.
        after: u64,
    },
}

/// Answer to [`Operation::Publish`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The message is in the log, with this sequence number.
    Taken(u64),
    /// The log's end isn't the expected one, but this, if it is known.
    Refused(Option<u64>),
    /// No answer, or one that says nothing about the log.
    Unknown(String),
}

/// A change that the owner is to act on, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The log is read from its beginning again: what was read of it is void.
    Restarted,
    /// A block that counts was read.
    Read(Block),
    /// This member leads from now on: its block that takes the lead is in the log.
    Won(Block),
    /// This member leads no more. [`Event::Restarted`] follows.
    Lost,
    /// A block of this member, which leads, is in the log for good.
    Durable(Block),
}

/// The member's own block on its way to the log.
#[derive(Debug)]
struct Pending {
    messages: VecDeque<Bytes>,
    /// An answer said that something else is at the log's end.
    is_refused: bool,
}

/// A broker's part in its cell.
#[derive(Debug)]
pub struct Member {
    settings: Settings,
    order: Order,
    role: Role,
    pending: Option<Pending>,
    /// The next operation is a read.
    must_read: bool,
    wait_until: Millis,
    /// Silence of the log while NATS answered, and the last answer.
    silence: Millis,
    answered_at: Option<Millis>,
    last_append: Millis,
    /// A BEAT is due before its time.
    beats_now: bool,
    /// Greatest epoch that it led.
    last_term: u64,
    /// The last message that counted when the log was read last, and its checksum.
    known: Option<(u64, u32)>,
    /// Why the log can't be used.
    damaged: Option<String>,
    failure: Option<String>,
    is_leaving: bool,
    /// Leader of a term, as it says itself, and the epoch.
    leader: Option<(u64, Leader)>,
    /// Of the next term that it leads.
    next_secret: TermSecret,
    events: VecDeque<Event>,
}

impl Member {
    /// A member that has read nothing yet.
    pub fn new(settings: Settings) -> Member {
        Member {
            settings,
            order: Order::default(),
            role: Role::CatchingUp,
            pending: None,
            must_read: false,
            wait_until: 0,
            silence: 0,
            answered_at: None,
            last_append: 0,
            beats_now: false,
            last_term: 0,
            known: None,
            damaged: None,
            failure: None,
            is_leaving: false,
            leader: None,
            next_secret: TermSecret::default(),
            events: VecDeque::new(),
        }
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The current term, and the leader's endpoint.
    pub fn leader(&self) -> Option<(u64, &str)> {
        let epoch = self.order.term()?.epoch;
        Some((epoch, self.known_leader().map_or("", |leader| &leader.endpoint)))
    }

    /// Secret of the current term, if it is known.
    pub fn secret(&self) -> Option<TermSecret> {
        self.known_leader().map(|leader| leader.secret)
    }

    /// The leader of the current term, if that has been read of it.
    fn known_leader(&self) -> Option<&Leader> {
        let epoch = self.order.term()?.epoch;
        self.leader.as_ref().filter(|(of, _)| *of == epoch).map(|(_, leader)| leader)
    }

    /// Sets the secret of the next term that it leads.
    pub fn set_next_secret(&mut self, secret: TermSecret) {
        self.next_secret = secret;
    }

    /// The largest id of any record, as the last message that counts says.
    pub fn last_id(&self) -> u64 {
        self.order.term().map_or(0, |term| term.last_id)
    }

    /// Sequence number of the last message that was seen.
    pub fn seen(&self) -> u64 {
        self.order.seen()
    }

    /// Why nothing can be appended or read now.
    pub fn failure(&self) -> Option<&str> {
        self.damaged.as_deref().or(self.failure.as_deref())
    }

    /// Takes the next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [`Member::submit`] may be called.
    pub fn can_submit(&self) -> bool {
        self.role == Role::Leading && self.pending.is_none() && !self.is_leaving && !self.beats_now
    }

    /// Appends a block of records: whole ones of at most one message, or a single one. Only while [`Member::can_submit`].
    pub fn submit(&mut self, records: &[u8], last_id: u64) {
        if self.can_submit() {
            self.begin(Kind::Records, records, last_id);
        }
    }

    /// Appends LEAVE and nothing else, so that another one takes the lead at once.
    pub fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Whether nothing is left to do after [`Member::leave`].
    pub fn has_left(&self) -> bool {
        self.is_leaving && self.role != Role::Leading
    }

    /// Shows next that it leads, although it isn't idle: the block that said so may be trimmed.
    pub fn beat(&mut self) {
        self.beats_now = self.role == Role::Leading;
    }

    /// When [`Member::next`] may have something to do.
    pub fn due(&self) -> Millis {
        if self.role == Role::Leading && self.pending.is_none() && self.damaged.is_none() && !self.is_leaving {
            return self.wait_until.max(self.beat_at());
        }
        self.wait_until
    }

    /// The next operation. No other one may be in flight.
    pub fn next(&mut self, now: Millis) -> Option<Operation> {
        if now < self.wait_until {
            return None;
        }
        if self.damaged.is_some() {
            self.restart();
        }
        if self.pending.is_none() {
            match self.role {
                Role::Leading if self.is_leaving => self.begin(Kind::Leave, &[], 0),
                Role::Leading if now >= self.beat_at() => self.begin_with_leader(Kind::Beat),
                Role::Leading => return None,
                Role::Standby if self.may_take() => self.begin_with_leader(Kind::Take),
                Role::Standby | Role::CatchingUp => {}
            }
        }
        match &self.pending {
            Some(Pending { messages, .. }) if !self.must_read => {
                Some(Operation::Publish { message: messages.front()?.clone(), expected: self.order.seen() })
            }
            _ => Some(Operation::Read { after: self.order.seen() }),
        }
    }

    fn may_take(&self) -> bool {
        !self.is_leaving && self.silence >= self.settings.takeover_after && !self.is_short()
    }

    /// Whether the log has less than was seen of it.
    fn is_short(&self) -> bool {
        self.known.is_some_and(|(sequence, _)| self.order.seen() < sequence)
    }

    fn beat_at(&self) -> Millis {
        if self.beats_now { 0 } else { self.last_append + self.settings.beat_after }
    }

    fn begin_with_leader(&mut self, kind: Kind) {
        self.beats_now = false;
        // A BEAT repeats what the term began with, which may be trimmed.
        let leader = self.known_leader().filter(|_| kind == Kind::Beat).map(Leader::encode);
        let next = || Leader { secret: self.next_secret, endpoint: self.settings.endpoint.clone() }.encode();
        let content = leader.unwrap_or_else(next);
        self.begin(kind, &content, 0);
    }

    fn begin(&mut self, kind: Kind, content: &[u8], last_id: u64) {
        let (epoch, block, previous, known_id) = match self.order.term() {
            None => (0, 0, 0, 0),
            Some(term) => (term.epoch, term.block, term.checksum, term.last_id),
        };
        let (epoch, block) = if kind == Kind::Take { (epoch + 1, 0) } else { (epoch, block + 1) };
        let (broker, last_id) = (self.settings.broker, last_id.max(known_id));
        let header = Header { kind, epoch, broker, block, part: 1, parts: 1, previous, last_id };
        let messages = header.split(content, self.settings.message_bytes_max).into();
        self.pending = Some(Pending { messages, is_refused: false });
    }

    /// Reports the answer to an [`Operation::Publish`].
    pub fn published(&mut self, now: Millis, answer: Published) {
        let next = self.order.seen() + 1;
        let Some(pending) = &mut self.pending else { return };
        match answer {
            Published::Taken(sequence) if sequence == next => {
                let Some(message) = pending.messages.front().cloned() else { return };
                self.failure = None;
                self.on_message(now, sequence, &message);
            }
            Published::Taken(_) => self.must_read = true,
            Published::Refused(last) => {
                (pending.is_refused, self.must_read) = (true, true);
                let seen = self.order.seen();
                if let Some(last) = last.filter(|last| *last < seen) {
                    self.failure = Some(format!(
                        "the log ends at {last}, though {seen} messages of it were seen: its stream was deleted, emptied or \
                         restored from an old copy. Nothing is accepted. Put the stream back, or stop all brokers of the cell \
                         and start them again, which goes on with what is there"
                    ));
                    self.wait_until = now + RETRY;
                }
            }
            Published::Unknown(why) => {
                self.must_read = true;
                self.failed(now, why);
            }
        }
    }

    /// Reports the answer to an [`Operation::Read`]: messages behind those seen with their sequence numbers, in order, or why there is none.
    pub fn read(&mut self, now: Millis, answer: Result<Vec<(u64, Bytes)>, String>) {
        let messages = match answer {
            Ok(messages) => messages,
            Err(why) => return self.failed(now, why),
        };
        let since = self.answered_at.replace(now).map_or(0, |at| now.saturating_sub(at));
        self.must_read = false;
        if messages.is_empty() {
            return self.on_nothing(now, since);
        }
        self.failure = None;
        for (sequence, message) in messages {
            if sequence > self.order.seen() && !self.on_message(now, sequence, &message) {
                break;
            }
        }
    }

    fn on_nothing(&mut self, now: Millis, since: Millis) {
        if let Some(pending) = &mut self.pending {
            // It was refused, though nothing is there: the answer is an old one.
            if std::mem::take(&mut pending.is_refused) {
                self.wait_until = now + RETRY;
            }
            return;
        }
        if self.is_short() {
            let (last, seen) = (self.order.seen(), self.known.map_or(0, |(sequence, _)| sequence));
            self.failed(
                now,
                format!("the log ends at {last}, though {seen} messages of it were seen: nobody takes the lead"),
            );
            return;
        }
        self.failure = None;
        match self.role {
            Role::CatchingUp => {
                self.role = Role::Standby;
                if self.order.term().is_none() {
                    self.silence = self.settings.takeover_after;
                }
            }
            _ => self.silence = self.silence.saturating_add(since.min(SILENCE_MAX)),
        }
        self.wait_until = if self.may_take() { now } else { now + READ_AGAIN };
    }

    fn failed(&mut self, now: Millis, why: String) {
        self.failure = Some(why);
        self.wait_until = now + RETRY;
        // What happens meanwhile is no silence.
        self.answered_at = None;
    }

    /// Takes the next message of the log. False if what is behind it can't be taken as it is.
    fn on_message(&mut self, now: Millis, sequence: u64, message: &[u8]) -> bool {
        let is_mine =
            self.pending.as_ref().is_some_and(|pending| pending.messages.front().is_some_and(|m| m == message));
        let checksum_before = self.order.term().map(|term| term.checksum);
        let block = match self.order.judge(sequence, message) {
            Ok(block) => block,
            Err(Fault::Trimmed) => {
                self.step_down();
                return false;
            }
            Err(Fault::Damaged(why)) => {
                self.stop(now, why);
                return false;
            }
        };
        let checksum = self.order.term().map_or(0, |term| term.checksum);
        if self.known.is_some_and(|(at, known)| at == sequence && known != checksum) {
            self.stop(now, format!("message {sequence} of the log isn't the one that was there before"));
            return false;
        }
        let counts = checksum_before != Some(checksum) || block.is_some();
        if is_mine && counts {
            return self.on_mine(now, block);
        }
        let Some(block) = block else {
            if counts && !is_mine && self.role != Role::Leading {
                self.pending = None;
            }
            return true;
        };
        self.on_block(block)
    }

    /// The first message of the pending block is in the log.
    fn on_mine(&mut self, now: Millis, block: Option<Block>) -> bool {
        if let Some(pending) = &mut self.pending {
            pending.messages.pop_front();
            pending.is_refused = false;
        }
        (self.last_append, self.wait_until) = (now, 0);
        let Some(block) = block else { return true };
        self.pending = None;
        match block.kind {
            Kind::Take => self.win(block),
            Kind::Leave => self.step_down(),
            Kind::Records | Kind::Beat => self.events.push_back(Event::Durable(block)),
        }
        self.role == Role::Leading
    }

    /// A block that somebody has appended, or this member without knowing it.
    fn on_block(&mut self, block: Block) -> bool {
        if self.role == Role::Leading {
            self.step_down();
            return false;
        }
        (self.pending, self.silence) = (None, 0);
        match block.kind {
            Kind::Take => {
                self.note_leader(&block);
                if block.broker == self.settings.broker && block.epoch > self.last_term {
                    self.win(block);
                    return true;
                }
            }
            Kind::Leave => self.silence = self.settings.takeover_after,
            Kind::Beat => self.note_leader(&block),
            Kind::Records => {}
        }
        self.events.push_back(Event::Read(block));
        true
    }

    fn note_leader(&mut self, block: &Block) {
        self.leader = Leader::decode(&block.content).ok().map(|leader| (block.epoch, leader));
    }

    fn win(&mut self, block: Block) {
        (self.role, self.last_term, self.must_read) = (Role::Leading, block.epoch, false);
        self.note_leader(&block);
        self.events.push_back(Event::Won(block));
    }

    /// Leads no more, if it did, and reads the log again from its beginning.
    fn step_down(&mut self) {
        if self.role == Role::Leading {
            self.events.push_back(Event::Lost);
        }
        self.restart();
    }

    /// Reports that records can't be used that are in a block that counts: nothing is appended, and all is read again later.
    pub fn stop(&mut self, now: Millis, why: String) {
        self.step_down();
        self.damaged = Some(why);
        self.wait_until = now + REREAD_DAMAGED;
    }

    fn restart(&mut self) {
        let seen = self.order.term().map(|term| (self.order.seen(), term.checksum));
        self.known = self.known.max(seen);
        self.order = Order::default();
        (self.role, self.pending, self.must_read, self.damaged) = (Role::CatchingUp, None, false, None);
        (self.silence, self.answered_at, self.wait_until, self.beats_now) = (0, None, 0, false);
        self.events.push_back(Event::Restarted);
    }
}
