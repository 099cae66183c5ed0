//! Health of a client's connection, for people.

use crate::connection::PeerProtocol;
use std::time::{Duration, Instant};
use towpath_sockets::{Endpoint, Refusal, STABLE_AFTER};

/// Shortest useful connection to a broker of numbered requests. Another client with the same id may have taken over, and
/// would take over the next connection as well. If both reconnected at once each time, they would disconnect each other a
/// hundred times a second.
const LASTS_AFTER: Duration = Duration::from_secs(1);

/// State of the current or last connection.
#[derive(Debug)]
pub(super) struct ConnectionHealth {
    failure: String,
    /// Whether there was a connection or a failure.
    is_tried: bool,
    /// Failures by endpoint since the last connection.
    failures: Vec<Failure>,
    not_majordomo: bool,
    stock: bool,
    is_silent: bool,
    ready_at: Option<Instant>,
}

/// The last failure of an endpoint.
#[derive(Debug)]
struct Failure {
    endpoint: Endpoint,
    reason: String,
    refusal: Option<Refusal>,
}

impl ConnectionHealth {
    /// Before the first attempt.
    pub fn new(endpoints: &[Endpoint]) -> ConnectionHealth {
        let endpoints: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
        ConnectionHealth {
            failure: format!("{}: no answer yet", endpoints.join(", ")),
            is_tried: false,
            failures: Vec::new(),
            not_majordomo: false,
            stock: false,
            is_silent: false,
            ready_at: None,
        }
    }

    /// Why no endpoint can be connected to, why the last connection was lost, or that the peer speaks another protocol.
    /// Empty if nothing is wrong.
    pub fn failure(&self) -> &str {
        &self.failure
    }

    /// Whether the last message wasn't of the expected dialect: the peer may be no broker.
    pub fn is_not_majordomo(&self) -> bool {
        self.not_majordomo
    }

    /// Why the last broker that does so refuses this client.
    pub fn refusal(&self) -> Option<Refusal> {
        self.failures.iter().rev().find_map(|failure| failure.refusal)
    }

    /// Whether each of this many endpoints refuses this client: only another configuration helps.
    pub fn refused_by_all(&self, endpoints: usize) -> bool {
        self.failures.iter().filter(|failure| failure.refusal.is_some()).count() == endpoints
    }

    /// Records whether this endpoint and the client can never agree, before the reason.
    pub fn set_refused(&mut self, endpoint: Option<&Endpoint>, refusal: Option<Refusal>) {
        let Some(endpoint) = endpoint else { return };
        match self.failures.iter_mut().find(|failure| failure.endpoint == *endpoint) {
            Some(failure) => failure.refusal = refusal,
            None => self.failures.push(Failure { endpoint: endpoint.clone(), reason: String::new(), refusal }),
        }
    }

    /// Whether the connection is to a stock broker.
    pub fn is_stock(&self) -> bool {
        self.stock
    }

    /// Whether a stock broker has sent nothing at all.
    pub fn is_silent(&self) -> bool {
        self.stock && self.is_silent
    }

    /// Records a new connection.
    pub fn connected(&mut self, protocol: PeerProtocol, now: Instant) {
        if !std::mem::replace(&mut self.is_tried, true) {
            self.failure.clear();
        }
        self.failures.clear();
        self.stock = protocol != PeerProtocol::Numbered;
        self.not_majordomo &= self.stock;
        self.is_silent = true;
        self.ready_at = Some(now);
    }

    /// Records that a stock broker's message was understood, or why not.
    pub fn received(&mut self, endpoint: Option<&Endpoint>, error: Option<&dyn std::fmt::Display>) {
        self.not_majordomo = error.is_some();
        self.is_silent = false;
        if let Some(error) = error {
            self.set(endpoint, &format!("what it sends isn't Majordomo; is it a broker? ({error})"));
        }
    }

    /// Records that the connection is replaced. A peer that isn't understood is the better explanation.
    pub fn replaced(&mut self, endpoint: Option<&Endpoint>, reason: &str) {
        if !self.not_majordomo {
            self.set(endpoint, reason);
        }
    }

    /// Records a lost or failed connection, and returns whether it had worked: a broker of numbered requests must have sent
    /// `WELCOME` (`welcomed`) and the connection must have lasted; for a stock broker there is no other sign.
    pub fn lost(&mut self, endpoint: Option<&Endpoint>, reason: &str, welcomed: bool, now: Instant) -> bool {
        self.replaced(endpoint, reason);
        self.not_majordomo = false;
        let stable_after = if self.stock { STABLE_AFTER } else { LASTS_AFTER };
        let lasted = self.ready_at.take().is_some_and(|at| now.saturating_duration_since(at) >= stable_after);
        lasted && (self.stock || welcomed)
    }

    fn set(&mut self, endpoint: Option<&Endpoint>, reason: &str) {
        self.is_tried = true;
        let Some(endpoint) = endpoint else { return self.failure = reason.to_owned() };
        match self.failures.iter_mut().find(|failure| failure.endpoint == *endpoint) {
            Some(failure) => reason.clone_into(&mut failure.reason),
            None => {
                let reason = reason.to_owned();
                self.failures.push(Failure { endpoint: endpoint.clone(), reason, refusal: None });
            }
        }
        let reasons = self.failures.iter().map(|failure| format!("{}: {}", failure.endpoint, failure.reason));
        let reasons: Vec<_> = reasons.collect();
        self.failure = reasons.join("; ");
    }
}
