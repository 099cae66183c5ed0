//! What a client can tell people of its connection: whether it works, and what is wrong with it.

use crate::connection::{NOT_TRIED, Speech};
use std::time::{Duration, Instant};
use towpath_sockets::{Endpoint, STABLE_AFTER};

/// A connection to a broker of numbered requests that ends earlier was of no use, though the broker had let this client in: another
/// client of the same id may have taken it over, and takes over the next one as well. Who comes back at once each time would end that
/// one's, and so on, a hundred times a second.
const LASTS_AFTER: Duration = Duration::from_secs(1);

/// How it stands with the connection that is there, or was last.
#[derive(Debug)]
pub(super) struct Standing {
    failure: String,
    /// What was wrong with each endpoint since there was a connection.
    failures: Vec<(Endpoint, String)>,
    misheard: bool,
    refused: bool,
    stock: bool,
    unheard: bool,
    ready_at: Option<Instant>,
}

impl Standing {
    /// Of a client that hasn't tried yet.
    pub fn new() -> Standing {
        Standing {
            failure: NOT_TRIED.to_owned(),
            failures: Vec::new(),
            misheard: false,
            refused: false,
            stock: false,
            unheard: false,
            ready_at: None,
        }
    }

    /// Why there is no connection, to any of the endpoints; why the last one was lost, or that the peer says what isn't of its dialect. Empty where the first
    /// connection is there, and all is well.
    pub fn failure(&self) -> &str {
        &self.failure
    }

    /// Whether what came last isn't of the dialect that is spoken: the peer may be no broker.
    pub fn is_misheard(&self) -> bool {
        self.misheard
    }

    /// Whether the broker doesn't let this client in.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// The two sides are set up so that they never agree, or not.
    pub fn set_refused(&mut self, refused: bool) {
        self.refused = refused;
    }

    /// Whether the connection is to a stock broker.
    pub fn is_stock(&self) -> bool {
        self.stock
    }

    /// Whether a stock broker has said nothing at all.
    pub fn is_unheard(&self) -> bool {
        self.stock && self.unheard
    }

    /// There is a connection.
    pub fn connected(&mut self, speech: Speech, now: Instant) {
        if self.failure == NOT_TRIED {
            self.failure.clear();
        }
        self.failures.clear();
        self.stock = speech != Speech::Numbered;
        self.misheard &= self.stock;
        self.refused = false;
        self.unheard = true;
        self.ready_at = Some(now);
    }

    /// A message of a stock broker was understood, or why it wasn't.
    pub fn heard(&mut self, endpoint: Option<&Endpoint>, error: Option<&dyn std::fmt::Display>) {
        self.misheard = error.is_some();
        self.unheard = false;
        if let Some(error) = error {
            self.set(endpoint, &format!("what it sends isn't Majordomo; is it a broker? ({error})"));
        }
    }

    /// The connection is replaced. That the peer isn't understood says more.
    pub fn replaced(&mut self, endpoint: Option<&Endpoint>, reason: &str) {
        if !self.misheard {
            self.set(endpoint, reason);
        }
    }

    /// The connection is lost, or couldn't be made. Tells whether it had worked: a broker of numbered requests had said so, if
    /// `welcomed`, and it lasted; of one to a stock broker nothing else tells that.
    pub fn lost(&mut self, endpoint: Option<&Endpoint>, reason: &str, welcomed: bool, now: Instant) -> bool {
        self.replaced(endpoint, reason);
        self.misheard = false;
        let stable_after = if self.stock { STABLE_AFTER } else { LASTS_AFTER };
        let lasted = self.ready_at.take().is_some_and(|at| now.saturating_duration_since(at) >= stable_after);
        lasted && (self.stock || welcomed)
    }

    fn set(&mut self, endpoint: Option<&Endpoint>, reason: &str) {
        let Some(endpoint) = endpoint else { return self.failure = reason.to_owned() };
        match self.failures.iter_mut().find(|(of, _)| of == endpoint) {
            Some((_, before)) => *before = reason.to_owned(),
            None => self.failures.push((endpoint.clone(), reason.to_owned())),
        }
        let told: Vec<_> = self.failures.iter().map(|(endpoint, reason)| format!("{endpoint}: {reason}")).collect();
        self.failure = told.join("; ");
    }
}
