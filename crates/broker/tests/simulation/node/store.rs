//! The store of a node: a log that outlives it, on its own disk or shared with other nodes, and a spool that doesn't.

use super::Fault;
use crate::cell::Member;
use crate::disk::Disk;
use crate::rng::Rng;
use bytes::{Bytes, BytesMut};
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use towpath_broker::core::{Entry, Millis, StorageFailure};
use towpath_broker::store::{AppendError, Failure, Leadership, LostBody, Position, Recovered, SpoolUsage, Store};
use towpath_requests::Body;
use towpath_requests::assembler::BodySink;
use towpath_requests::numbered::Token;
use towpath_sockets::Tenant;
use towpath_spool::{BodyKind, NoSpace};

/// Bodies of requests that may be written at a time.
const SPOOLING_MAX: usize = 3;

/// A log.
#[derive(Debug)]
pub enum Log {
    /// On the node's disk.
    Disk(Disk),
    /// Shared with other nodes.
    Shared(Box<Member>),
}

impl Log {
    fn poll(&mut self, now: Millis) {
        match self {
            Log::Disk(disk) => disk.poll(now),
            Log::Shared(member) => member.poll(now),
        }
    }

    fn due(&self, now: Millis) -> Option<Millis> {
        match self {
            Log::Disk(disk) => disk.due(),
            Log::Shared(member) => Some(member.due(now)),
        }
    }

    /// Its process has died.
    pub fn crash(self, rng: &mut Rng) -> Log {
        match self {
            Log::Disk(mut disk) => {
                disk.crash(rng);
                Log::Disk(disk)
            }
            Log::Shared(member) => Log::Shared(Box::new(member.restarted())),
        }
    }

    /// Its process has ended in good order.
    pub fn close(self) -> Log {
        match self {
            Log::Disk(mut disk) => {
                disk.close();
                Log::Disk(disk)
            }
            Log::Shared(member) => Log::Shared(Box::new(member.restarted())),
        }
    }

    /// Whether it fails.
    pub fn failing(&mut self) -> &mut bool {
        match self {
            Log::Disk(disk) => &mut disk.failing,
            Log::Shared(member) => &mut member.is_cut_off,
        }
    }

    /// How often its node has won the leadership.
    pub fn terms(&self) -> u64 {
        match self {
            Log::Disk(_) => 1,
            Log::Shared(member) => member.terms,
        }
    }
}

/// Moves the deadline of an entry or a restored request by so much: nodes have clocks of their own.
fn shift(expires: &mut Millis, by: i64) {
    if *expires != Millis::MAX {
        *expires = expires.saturating_add_signed(by);
    }
}

#[derive(Debug)]
pub struct SimStore {
    pub log: Log,
    pub now: Millis,
    /// Whether requests were given up since this was looked at.
    pub gave_up: bool,
    is_leading: bool,
    fault: Fault,
    rng: Rng,
    next: u64,
    /// Bodies that have all come, and aren't known to have.
    finished: Rc<RefCell<Vec<(u64, Bytes)>>>,
    /// One for each body that is being written.
    writing: Rc<()>,
    /// When each is on the disk, in order.
    spooling: Vec<(Millis, u64, Bytes)>,
}

/// A body that is being written.
#[derive(Debug)]
pub struct SimWriter {
    number: u64,
    bytes: BytesMut,
    finished: Rc<RefCell<Vec<(u64, Bytes)>>>,
    _writing: Rc<()>,
}

impl BodySink for SimWriter {
    type Lost = LostBody;

    fn number(&self) -> u64 {
        self.number
    }

    fn write(&mut self, bytes: Bytes) -> Result<(), LostBody> {
        self.bytes.extend_from_slice(&bytes);
        Ok(())
    }

    fn finish(self) {
        self.finished.borrow_mut().push((self.number, self.bytes.freeze()));
    }
}

impl SimStore {
    pub fn new(log: Log, fault: Fault, rng: Rng) -> SimStore {
        SimStore {
            log,
            now: 0,
            gave_up: false,
            is_leading: false,
            fault,
            rng,
            next: 0,
            finished: Rc::default(),
            writing: Rc::new(()),
            spooling: Vec::new(),
        }
    }

    /// Time has passed: what is written by now is on the disk.
    pub fn poll(&mut self, now: Millis) {
        self.now = now;
        self.log.poll(now);
        for (number, bytes) in self.finished.take() {
            let delay = if self.rng.percent(50) { self.rng.between(50, 500) } else { self.rng.below(12) };
            self.spooling.push((now + delay, number, bytes));
        }
        self.spooling.sort_unstable_by_key(|(at, number, _)| (*at, *number));
    }

    /// When something is on the disk next.
    pub fn due(&self) -> Option<Millis> {
        let spooled = self.spooling.first().map(|(at, ..)| *at);
        self.log.due(self.now).into_iter().chain(spooled).min()
    }
}

impl Store for SimStore {
    type Writer = SimWriter;

    fn next_leadership(&mut self, now: Millis) -> Option<Leadership> {
        match &mut self.log {
            Log::Disk(_) if std::mem::replace(&mut self.is_leading, true) => None,
            Log::Disk(disk) => {
                let (requests, last_id) = disk.restore();
                Some(Leadership::Won(Recovered { requests, last_id }))
            }
            Log::Shared(member) => {
                let mut leadership = member.next_leadership()?;
                if let Leadership::Won(recovered) = &mut leadership {
                    let ahead = (now - self.now) as i64;
                    recovered.requests.iter_mut().for_each(|request| shift(&mut request.expires, ahead));
                }
                Some(leadership)
            }
        }
    }

    fn append(&mut self, now: Millis, entry: &Entry) -> Result<Position, AppendError> {
        let mut entry = entry.clone();
        if let Entry::Accepted { id, .. } = entry
            && self.fault == Fault::LoseEntries
            && id % 3 == 0
        {
            entry = Entry::Forgotten { id };
        }
        match &mut self.log {
            Log::Disk(disk) => disk.append(self.now, entry, &mut self.rng).map(Position).ok_or(AppendError::Later),
            Log::Shared(member) => {
                if let Entry::Accepted { expires, .. } = &mut entry {
                    shift(expires, self.now as i64 - now as i64);
                }
                member.append(entry)
            }
        }
    }

    fn durable(&self) -> Position {
        match &self.log {
            Log::Disk(disk) => Position(disk.durable_count()),
            Log::Shared(member) => member.durable(),
        }
    }

    fn take_given_up(&mut self) -> Option<Vec<u64>> {
        match &mut self.log {
            Log::Disk(_) => None,
            Log::Shared(member) => member.take_given_up().inspect(|_| self.gave_up = true),
        }
    }

    fn failure(&self) -> Option<Failure> {
        match &self.log {
            Log::Disk(disk) => {
                let why = "the disk fails".to_owned();
                disk.failing.then_some(Failure { why, kind: StorageFailure::NoSpace })
            }
            Log::Shared(member) => member.failure().map(|why| Failure { why, kind: StorageFailure::Unreachable }),
        }
    }

    fn spool(&mut self, kind: BodyKind, _: Option<&Tenant>, _: u64) -> Result<SimWriter, LostBody> {
        let is_full = kind == BodyKind::Request && Rc::strong_count(&self.writing) > SPOOLING_MAX;
        if is_full || self.rng.percent(3) {
            return Err(LostBody::NoSpace(NoSpace::Now));
        }
        self.next += 1;
        let (finished, _writing) = (self.finished.clone(), self.writing.clone());
        Ok(SimWriter { number: self.next, bytes: BytesMut::new(), finished, _writing })
    }

    fn next_spooled(&mut self) -> Option<(u64, io::Result<Body>)> {
        self.spooling.first().filter(|(at, ..)| *at <= self.now)?;
        let (_, number, bytes) = self.spooling.remove(0);
        let fails = self.rng.percent(2);
        Some((number, if fails { Err(io::Error::other("the disk fails")) } else { Ok(Body::from(bytes)) }))
    }

    fn spool_usage(&self) -> SpoolUsage {
        SpoolUsage { bytes_max: u64::MAX, request_bytes_max: u64::MAX, ..SpoolUsage::default() }
    }

    fn load(&mut self, _: u64, _: Token, _: Body) -> bool {
        false
    }

    fn next_loaded(&mut self) -> Option<(Token, io::Result<Bytes>)> {
        None
    }
}
