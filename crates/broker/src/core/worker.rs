//! Workers: what the broker knows of them.

use super::in_flight::InFlightWindow;
use super::requests::List;
use super::settings::{Millis, NEVER};
use super::{Peer, ServiceKey, WorkerKey};
use bytes::Bytes;
use slab::Slab;
use smallvec::SmallVec;
use std::ops::{Index, IndexMut};
use towpath_requests::numbered::Token;

/// The protocol of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Majordomo: one request at a time, heartbeats in both directions, no cancellation.
    Stock,
    /// Ours: credit and cancellation. ZMTP's heartbeats show whether it is alive.
    Numbered,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub peer: Peer,
    pub service: ServiceKey,
    pub kind: Kind,
    pub credit: u32,
    /// Requests that it has.
    pub held: List,
    /// Tokens of requests that have ended while it has them, and since when it has. A stock worker can't be cancelled, and stays busy.
    pub abandoned: SmallVec<[(Token, Millis); 1]>,
    pub last_received: Millis,
    pub leaving: bool,
    /// Bytes sent to it.
    pub window: InFlightWindow,
    pub blocked: bool,
    /// In its service's queue of available workers.
    pub in_available: bool,
    pub rest: Rest,
    /// Requests that it failed, or that expired while it had them, since its last other reply.
    pub failed_in_a_row: u16,
}

/// When a worker rests, and why: it has given a request back.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Until when.
    pub until: Option<Millis>,
    /// Rests since its last reply to such a request. 0: it works.
    pub in_a_row: u8,
    /// The request had a large body; it may be able to do others.
    pub is_large: bool,
    /// As the worker says.
    pub reason: Bytes,
}

impl Worker {
    /// Whether it leaves or rests, so that it is given nothing.
    #[inline]
    pub fn is_out(&self) -> bool {
        self.leaving || self.rest.until.is_some()
    }

    #[inline]
    pub fn has_credit(&self) -> bool {
        !self.is_out()
            && !self.blocked
            && !self.window.is_full()
            && self.held.len + self.abandoned.len() < self.credit as usize
    }
}

/// All workers.
#[derive(Debug)]
pub(super) struct Workers {
    slab: Slab<Worker>,
    /// When the first rest of a worker ends.
    pub next_rest_end: Millis,
}

impl Default for Workers {
    fn default() -> Workers {
        Workers { slab: Slab::new(), next_rest_end: NEVER }
    }
}

impl Workers {
    pub fn insert(&mut self, worker: Worker) -> WorkerKey {
        self.slab.insert(worker) as WorkerKey
    }

    pub fn remove(&mut self, key: WorkerKey) -> Worker {
        self.slab.remove(key as usize)
    }

    pub fn get(&self, key: WorkerKey) -> Option<&Worker> {
        self.slab.get(key as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = (WorkerKey, &Worker)> {
        self.slab.iter().map(|(key, worker)| (key as WorkerKey, worker))
    }

    /// Workers from this number on.
    pub fn iter_from(&self, number: WorkerKey) -> impl Iterator<Item = (WorkerKey, &Worker)> {
        let numbers = number..self.slab.capacity() as WorkerKey;
        numbers.filter_map(|key| self.slab.get(key as usize).map(|worker| (key, worker)))
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Ends the rests that are over, and updates `next_rest_end`. Returns those workers.
    pub fn take_rested(&mut self, now: Millis) -> Vec<WorkerKey> {
        let mut rested = Vec::new();
        self.next_rest_end = NEVER;
        for (key, worker) in &mut self.slab {
            match worker.rest.until {
                Some(until) if until <= now => {
                    worker.rest.until = None;
                    rested.push(key as WorkerKey);
                }
                Some(until) => self.next_rest_end = self.next_rest_end.min(until),
                None => {}
            }
        }
        rested
    }
}

impl Index<WorkerKey> for Workers {
    type Output = Worker;

    #[inline]
    fn index(&self, key: WorkerKey) -> &Worker {
        &self.slab[key as usize]
    }
}

impl IndexMut<WorkerKey> for Workers {
    #[inline]
    fn index_mut(&mut self, key: WorkerKey) -> &mut Worker {
        &mut self.slab[key as usize]
    }
}
