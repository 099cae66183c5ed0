//! An operator's hand on services and dead letters.

use super::dead_letter::{LetterNumber, canonical_name, queue_of, service_of_queue};
use super::settings::Millis;
use super::tenants::NOBODY;
use super::{Core, ServiceKey};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Services that may be paused at a time.
pub const PAUSED_SERVICES_MAX: usize = 1_000;

/// Reasons, short enough to need no memory beside the request's.
const PURGED: &str = "purged by the operator; never begun";
const PURGED_LATER: &str = "purged by the operator; perhaps begun";

/// Names of the services that are paused, also of those without requests and workers at the moment, with the ids of their marks in the journal.
pub(super) type PausedServices = BTreeMap<Bytes, u64>;

/// A purge that has begun: requests taken after that are none of its.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purge {
    number: u8,
}

/// An operation on the dead letters of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterAction {
    /// Sends them to their service again. One that fails there comes back.
    Requeue,
    /// Removes them.
    Drop,
}

/// Why nothing is done with a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// There is none with this id.
    #[error("there is no such dead letter of this service")]
    Gone,
    /// A worker has it.
    #[error("a worker has it")]
    Held,
    /// Its service can't take it.
    #[error("{0}")]
    Refused(&'static str),
}

/// An action on the dead letters of a service that has begun: later ones are none of its.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LetterRun {
    action: LetterAction,
    next: LetterNumber,
    last: LetterNumber,
    /// Dead letters that it was done with.
    pub done: usize,
    /// Set once the run has ended: it did all, or stopped early for this reason.
    pub ended: Option<Result<(), &'static str>>,
}

impl Core {
    /// Pauses a service, whose requests are then taken and not given to workers, or resumes it. Workers go on with what they have. False if
    /// [`PAUSED_SERVICES_MAX`] are paused already.
    pub fn pause_service(&mut self, now: Millis, service: &[u8], paused: bool) -> bool {
        let name = Bytes::copy_from_slice(&canonical_name(service));
        match self.services.paused.get(&name) {
            None if paused && self.services.paused.len() >= PAUSED_SERVICES_MAX => return false,
            None if paused => self.mark_paused(name),
            Some(&mark) if !paused => {
                self.services.paused.remove(&name);
                self.forget_mark(mark);
            }
            _ => return true,
        }
        if let Some(key) = self.services.find_by_name(service) {
            self.services.at_mut(key).is_paused = paused;
            self.dispatch(now, key);
        }
        true
    }

    /// The names of services that are paused.
    pub fn paused_services(&self) -> impl Iterator<Item = &Bytes> {
        self.services.paused.keys()
    }

    /// Begins a purge of a service.
    pub fn begin_purge(&mut self, service: &[u8]) -> Purge {
        let Some(key) = self.services.find_by_name(service) else { return Purge { number: 0 } };
        let service = self.services.at_mut(key);
        service.purges = service.purges.wrapping_add(1);
        Purge { number: service.purges }
    }

    /// Ends at most this many of the requests that wait for a worker of a service, each with an outcome, and says how many: 0 when the purge
    /// is over. Those that a worker has, or whose client is held back, don't wait. Dead letters are removed.
    pub fn purge(&mut self, now: Millis, service: &[u8], purge: Purge, most: usize) -> usize {
        let Some(key) = self.services.find_by_name(service) else { return 0 };
        let slots = self.services.waiting(&self.requests, key, |request| request.is_before_purge(purge.number), most);
        for &slot in &slots {
            self.end_by_operator(now, slot, [PURGED, PURGED_LATER]);
        }
        slots.len()
    }

    /// Begins an action on the dead letters of a service.
    pub fn begin_letters(&self, action: LetterAction) -> LetterRun {
        LetterRun { action, next: 0, last: self.dead_letters.last, done: 0, ended: None }
    }

    /// Continues an action on the dead letters of a service, with at most this many of them. Those that a worker has stay.
    pub fn go_on_with_letters(&mut self, now: Millis, service: &[u8], mut run: LetterRun, most: usize) -> LetterRun {
        let Some((queue, key)) = self.letter_queue(service) else { return LetterRun { ended: Some(Ok(())), ..run } };
        let numbers = self.services.at(key).letters.range(run.next..).copied();
        let numbers: Vec<LetterNumber> = numbers.take_while(|number| *number <= run.last).take(most).collect();
        run.ended = (numbers.len() < most).then_some(Ok(()));
        for number in numbers {
            run.next = number + 1;
            let Some(slot) = self.slot_of_letter(number).filter(|slot| self.is_letter_free(*slot)) else { continue };
            if let Err(reason) = self.act_on_slot(now, slot, &queue, run.action) {
                return LetterRun { ended: Some(Err(reason)), ..run };
            }
            run.done += 1;
        }
        run
    }

    /// Does something with one dead letter of a service, by its id in the journal.
    pub fn act_on_letter(&mut self, now: Millis, service: &[u8], id: u64, action: LetterAction) -> Result<(), NotDone> {
        let (queue, _) = self.letter_queue(service).ok_or(NotDone::Gone)?;
        let (_, slot) = self.find_letter(service, id).ok_or(NotDone::Gone)?;
        if !self.is_letter_free(slot) {
            return Err(NotDone::Held);
        }
        self.act_on_slot(now, slot, &queue, action).map_err(NotDone::Refused)
    }

    /// Does something with a dead letter in this queue that no worker has.
    fn act_on_slot(&mut self, now: Millis, slot: u32, queue: &[u8], action: LetterAction) -> Result<(), &'static str> {
        match action {
            LetterAction::Requeue => {
                let (to, bytes) = (service_of_queue(queue), self.requests.at(slot).body.memory_bytes());
                self.admit_again(to, bytes)?;
                self.move_dead_letter(now, slot, to);
            }
            LetterAction::Drop => {
                self.withdraw(now, slot);
                self.counters.purged += 1;
                self.forget(slot);
            }
        }
        Ok(())
    }

    /// Whether a dead letter can be sent to its service again.
    fn admit_again(&mut self, to: &[u8], bytes: usize) -> Result<(), &'static str> {
        if let Some(reason) = self.refuses_all(to) {
            return Err(reason);
        }
        if let Some(failure) = self.storage_failure {
            return Err(failure.refusal().reason);
        }
        self.admit_shared(NOBODY, to, bytes).map_err(|refusal| refusal.reason)
    }

    /// The dead-letter queue of a service, if there is one now.
    pub(super) fn letter_queue(&self, service: &[u8]) -> Option<(Bytes, ServiceKey)> {
        let queue = queue_of(&canonical_name(service))?;
        let key = self.services.find_by_name(&queue)?;
        Some((queue, key))
    }
}
