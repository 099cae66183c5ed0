//! What an operator does to services: pauses and purges them. From any thread but the event loop's.

use super::handle::{Handle, OperatorAction};
use crate::core::{PAUSED_SERVICES_MAX, canonical_name};
use crate::store::PausedFile;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_sockets::Wanted;

/// Acts on services of a broker.
#[derive(Debug, Clone)]
pub struct Operator {
    handle: Handle,
    /// Where paused services are remembered, if there is a journal; one action at a time.
    file: Arc<Mutex<Option<PausedFile>>>,
}

/// Why an action was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The event loop has ended, or does not answer.
    #[error("the event loop doesn't answer: it hangs, or the broker has ended")]
    NoAnswer,
    /// Another number of requests waits.
    #[error("{waiting} requests wait, and {expected} were expected; nothing was purged")]
    Unexpected {
        /// Requests that wait.
        waiting: usize,
        /// As the operator expected.
        expected: usize,
    },
    /// Too many services are paused.
    #[error("{PAUSED_SERVICES_MAX} services are paused already")]
    TooMany,
    /// It could not be written down, and so would not survive a restart.
    #[error("nothing was done, since it can't be remembered: {0}")]
    NotRemembered(std::io::Error),
}

impl Operator {
    pub(super) fn new(handle: Handle, file: Option<PausedFile>) -> Operator {
        Operator { handle, file: Arc::new(Mutex::new(file)) }
    }

    /// Pauses a service, or resumes it. With a journal it is remembered first.
    pub fn pause(&self, service: &[u8], paused: bool) -> Result<(), OperatorError> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let service = Bytes::copy_from_slice(&canonical_name(service));
        let mut all = self.handle.snapshot(Wanted::Sums).ok_or(OperatorError::NoAnswer)?.paused;
        all.retain(|other| *other != service);
        if paused {
            if all.len() >= PAUSED_SERVICES_MAX {
                return Err(OperatorError::TooMany);
            }
            all.push(service.clone());
        }
        if let Some(file) = &*file {
            file.write(&all).map_err(OperatorError::NotRemembered)?;
        }
        self.handle.act(|done| OperatorAction::Pause { service, paused, done }).ok_or(OperatorError::NoAnswer)
    }

    /// Ends the requests that wait for a worker of a service, if there are as many as expected, and says how many it were: others may have
    /// been given to workers meanwhile.
    pub fn purge(&self, service: &[u8], expected: usize) -> Result<usize, OperatorError> {
        let service = Bytes::copy_from_slice(service);
        let mut from = Err(expected);
        let mut ended = 0;
        loop {
            let purge = self.handle.act(|done| OperatorAction::Purge { service: service.clone(), from, done });
            match purge.ok_or(OperatorError::NoAnswer)? {
                Err(waiting) => return Err(OperatorError::Unexpected { waiting, expected }),
                Ok((_, 0)) => return Ok(ended),
                Ok((purge, more)) => (from, ended) = (Ok(purge), ended + more),
            }
        }
    }
}
