//! Operations of an operator: pausing and purging services, sending dead letters again or dropping them, draining. From any thread but the event loop's.

use super::handle::{Handle, OperatorAction};
use crate::core::{LetterAction, LetterInfo, LookAt, Millis, NotDone, NotEnded, PAUSED_SERVICES_MAX, RequestKey};
use crate::stats::{Concerns, LISTED_MAX, RequestStats, ServiceStats};
use bytes::Bytes;
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::is_built_in;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_sockets::Page;

/// Acts on services of a broker.
#[derive(Debug, Clone)]
pub struct Operator {
    handle: Handle,
    has_journal: bool,
    heartbeat: Duration,
}

/// Why an action was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The event loop has ended, or does not answer.
    #[error("the event loop doesn't answer: it hangs, or the broker has ended")]
    NoAnswer,
    /// Another number of requests waits.
    #[error("waiting requests: {waiting}, expected: {expected}; nothing was purged")]
    Unexpected {
        /// Requests that wait.
        waiting: usize,
        /// As the operator expected.
        expected: usize,
    },
    /// The number of dead letters isn't the expected one.
    #[error("dead letters: {letters}, expected: {expected}; nothing was done")]
    OtherLetters {
        /// Dead letters.
        letters: usize,
        /// As the operator expected.
        expected: usize,
    },
    /// The service takes no more.
    #[error("dead letters sent again: {done}; then: {reason}")]
    NoSpace {
        /// Dead letters that were sent again.
        done: usize,
        /// Why not more.
        reason: &'static str,
    },
    /// Done, but not durable yet.
    #[error("done, but not on the disk yet, so that a crash may undo it; dead letters: {done}")]
    NotOnDisk {
        /// Dead letters.
        done: usize,
    },
    /// Nothing is done with the dead letter.
    #[error(transparent)]
    NotDone(#[from] NotDone),
    /// The request is not ended.
    #[error(transparent)]
    NotEnded(#[from] NotEnded),
    /// The service's name is invalid.
    #[error("{0}")]
    NoService(&'static str),
    /// Too many services are paused.
    #[error("{PAUSED_SERVICES_MAX} services are paused already")]
    TooMany,
    /// The pause or its end isn't on the disk yet.
    #[error("it was done, but isn't on the disk yet: a crash may undo it")]
    NotRemembered,
}

impl Operator {
    pub(super) fn new(handle: Handle, has_journal: bool, heartbeat: Duration) -> Operator {
        Operator { handle, has_journal, heartbeat }
    }

    /// Looks at all services and workers for what may be of concern, some of them between two polls. `None` if the event loop doesn't answer.
    pub fn look(&self) -> Option<Concerns> {
        let mut all = Concerns::default();
        let mut at = LookAt::Services(0);
        loop {
            let (concerns, next) = self.handle.act(|done| OperatorAction::Look { at, done })?;
            all.services.extend(concerns.services);
            all.workers.extend(concerns.workers);
            let largest = all.largest.or(concerns.largest);
            all = Concerns { services: all.services, workers: all.workers, largest, ..concerns };
            let found = all.services.len() + all.workers.len();
            at = match next {
                Some(LookAt::Services(_)) if found >= LISTED_MAX => LookAt::Workers(0),
                Some(next) if found < 2 * LISTED_MAX => next,
                _ => return Some(Concerns { heartbeat: self.heartbeat, ..all }),
            };
        }
    }

    /// Pauses a service, or resumes it, and returns when that is on the disk, if there is a journal.
    pub fn pause(&self, service: &[u8], paused: bool) -> Result<(), OperatorError> {
        match service {
            b"" => return Err(OperatorError::NoService("a service has a name")),
            name if name.len() > SERVICE_BYTES_MAX => {
                return Err(OperatorError::NoService("a service's name has at most 255 bytes"));
            }
            // Without a journal stock workers may serve titanic.*.
            name if paused && is_built_in(name) && (self.has_journal || name.starts_with(b"mmi.")) => {
                return Err(OperatorError::NoService("the broker answers for this service itself: it can't be paused"));
            }
            _ => {}
        }
        let service = Bytes::copy_from_slice(service);
        match self.handle.act(|done| OperatorAction::Pause { service, paused, done }) {
            None => Err(OperatorError::NoAnswer),
            Some(false) => Err(OperatorError::TooMany),
            Some(true) => self.handle.act(OperatorAction::Sync).ok_or(OperatorError::NotRemembered),
        }
    }

    /// Ends the requests that wait for a worker of a service, if there are as many as expected, if any number is, and says how many it were:
    /// others may have been given to workers meanwhile.
    pub fn purge(&self, service: &[u8], expected: Option<usize>) -> Result<usize, OperatorError> {
        let service = Bytes::copy_from_slice(service);
        let mut from = Err(expected);
        let mut ended = 0;
        loop {
            let purge = self.handle.act(|done| OperatorAction::Purge { service: service.clone(), from, done });
            match purge.ok_or(OperatorError::NoAnswer)? {
                Err(waiting) => {
                    return Err(OperatorError::Unexpected { waiting, expected: expected.unwrap_or_default() });
                }
                Ok((_, 0)) => return Ok(ended),
                Ok((purge, more)) => (from, ended) = (Ok(purge), ended + more),
            }
        }
    }

    /// Requests of a service, in whatever state, from this number on, and the moment in the core's time. `None` if the event loop doesn't answer.
    pub fn list_requests(&self, service: &[u8], from: u32) -> Option<(Page<RequestStats>, Millis)> {
        let service = Bytes::copy_from_slice(service);
        let mut at = from;
        loop {
            let service = service.clone();
            let (page, now) = self.handle.act(|done| OperatorAction::ListRequests { service, from: at, done })?;
            match page.next {
                // There may be a million of other services in between.
                Some(next) if page.entries.is_empty() => at = next,
                _ => return Some((page, now)),
            }
        }
    }

    /// Ends a request of a service: its client gets an outcome, and a worker that has it is asked to cancel it.
    pub fn end_request(&self, service: &[u8], request: RequestKey) -> Result<(), OperatorError> {
        let service = Bytes::copy_from_slice(service);
        let ended = self.handle.act(|done| OperatorAction::EndRequest { service, request, done });
        Ok(ended.ok_or(OperatorError::NoAnswer)??)
    }

    /// Drops the outcomes of clients that are absent, and says how many. Stored requests keep theirs.
    pub fn drop_outcomes(&self) -> Result<usize, OperatorError> {
        let mut dropped = 0;
        loop {
            match self.handle.act(OperatorAction::DropOutcomes).ok_or(OperatorError::NoAnswer)? {
                0 => return Ok(dropped),
                more => dropped += more,
            }
        }
    }

    /// Sends the dead letters of a service to it again, or removes them, if there are as many as expected, and says with how many it was done
    /// when it is on the disk. Those that a worker has stay.
    pub fn letters(&self, service: &[u8], action: LetterAction, expected: usize) -> Result<usize, OperatorError> {
        let service = Bytes::copy_from_slice(service);
        let mut from = Err((action, expected));
        let run = loop {
            let run = self.handle.act(|done| OperatorAction::Letters { service: service.clone(), from, done });
            match run.ok_or(OperatorError::NoAnswer)? {
                Err(letters) => return Err(OperatorError::OtherLetters { letters, expected }),
                Ok(run) if run.ended.is_some() => break run,
                Ok(run) => from = Ok(run),
            }
        };
        let done = run.done;
        if done > 0 {
            self.handle.act(OperatorAction::Sync).ok_or(OperatorError::NotOnDisk { done })?;
        }
        match run.ended {
            Some(Err(reason)) => Err(OperatorError::NoSpace { done, reason }),
            _ => Ok(done),
        }
    }

    /// Sends one dead letter of a service to it again, or removes it, and returns when that is on the disk.
    pub fn letter(&self, service: &[u8], id: u64, action: LetterAction) -> Result<(), OperatorError> {
        let service = Bytes::copy_from_slice(service);
        let done = self.handle.act(|done| OperatorAction::Letter { service, id, action, done });
        done.ok_or(OperatorError::NoAnswer)??;
        self.handle.act(OperatorAction::Sync).ok_or(OperatorError::NotOnDisk { done: 1 })
    }

    /// The body of a dead letter of a service.
    pub fn letter_body(&self, service: &[u8], id: u64) -> Result<Body, OperatorError> {
        let service = Bytes::copy_from_slice(service);
        let body = self.handle.act(|done| OperatorAction::LetterBody { service, id, done });
        Ok(body.ok_or(OperatorError::NoAnswer)?.ok_or(NotDone::Gone)?)
    }

    /// Dead letters of a service, from this number on, and the moment in the core's time.
    pub fn list_letters(&self, service: &[u8], from: u32) -> Option<(Page<LetterInfo>, Millis)> {
        let service = Bytes::copy_from_slice(service);
        self.handle.act(|done| OperatorAction::ListLetters { service, from, done })
    }

    /// A service, if it is there. The outer `None`: the event loop doesn't answer.
    pub fn service(&self, service: &[u8]) -> Option<Option<ServiceStats>> {
        let service = Bytes::copy_from_slice(service);
        self.handle.act(|done| OperatorAction::Service { service, done })
    }

    /// Takes no more requests, or takes them again. [`Stats::left`](crate::Stats::left) says how many are left to be ended.
    pub fn drain(&self, on: bool) -> Result<(), OperatorError> {
        self.handle.act(|done| OperatorAction::Drain { on, done }).ok_or(OperatorError::NoAnswer)
    }
}
