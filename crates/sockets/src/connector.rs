//! The connecting side: attempts with backoff, as long as the hub lives.

use crate::endpoint::Endpoint;
use crate::event::Event;
use crate::hub::Hub;
use crate::options::Backoff;
use crate::peer::Origin;
use crate::transport;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// One endpoint to be connected to.
pub(crate) struct Connector {
    endpoint: Endpoint,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Connector {
    pub(crate) fn new(endpoint: Endpoint) -> Connector {
        Connector { endpoint, failures: 0, retry_at: None }
    }

    /// A connection has ended that was ready for so long.
    pub(crate) fn ended_after(&mut self, lasted: Duration, works_after: Duration) {
        if lasted >= works_after {
            self.failures = 0;
        }
    }

    /// Half to the whole of the doubled delay: enough jitter that many clients don't come back in step.
    fn delay(&self, backoff: Backoff) -> Duration {
        let doubled = backoff.first.saturating_mul(1 << self.failures.min(16)).min(backoff.most);
        let random = RandomState::new().hash_one(self.failures) % 1024;
        doubled / 2 + doubled.mul_f64(random as f64 / 2048.0)
    }
}

impl Hub {
    pub(crate) fn start_connecting(&mut self, index: usize) {
        let Some(connector) = self.connectors.get_mut(index) else { return };
        connector.retry_at = None;
        match transport::connect(&connector.endpoint, &self.options.congestion) {
            Ok((fd, address, connecting)) => self.add_peer(fd, address, Origin::Connector(index), connecting),
            Err(error) => {
                let address = connector.endpoint.to_string();
                let reason = format!("connecting failed: {error}");
                tracing::debug!(address, reason, "cannot connect");
                self.report(Event::Failed { address, reason, connecting: true, refused: false });
                self.connect_later(index);
            }
        }
    }

    pub(crate) fn attempt_once(&mut self, endpoint: &Endpoint) {
        match transport::connect(endpoint, &self.options.congestion) {
            Ok((fd, address, connecting)) => self.add_peer(fd, address, Origin::Once, connecting),
            Err(error) => {
                let reason = format!("connecting failed: {error}");
                self.report(Event::Failed { address: endpoint.to_string(), reason, connecting: true, refused: false });
            }
        }
    }

    pub(crate) fn connect_later(&mut self, index: usize) {
        let backoff = self.options.reconnect;
        let now = self.now;
        let Some(connector) = self.connectors.get_mut(index) else { return };
        let at = now + connector.delay(backoff);
        connector.failures = connector.failures.saturating_add(1);
        connector.retry_at = Some(at);
        self.next_timer = Some(self.next_timer.map_or(at, |next| next.min(at)));
    }

    pub(crate) fn retry_connectors(&mut self) {
        for index in 0..self.connectors.len() {
            let Some(at) = self.connectors.get(index).and_then(|connector| connector.retry_at) else { continue };
            if at <= self.now {
                self.start_connecting(index);
            } else {
                self.next_timer = Some(self.next_timer.map_or(at, |next| next.min(at)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::options::WORKS_AFTER;

    #[test]
    fn waits_double_up_to_the_longest_until_a_connection_lasts() {
        let backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(1) };
        let mut connector = Connector::new("tcp://127.0.0.1:1".parse().unwrap());
        for doubled in [100, 200, 400, 800, 1000, 1000].map(Duration::from_millis) {
            assert!((doubled / 2..=doubled).contains(&connector.delay(backoff)), "{doubled:?}");
            connector.failures += 1;
            connector.ended_after(WORKS_AFTER - Duration::from_millis(1), WORKS_AFTER);
        }
        connector.ended_after(WORKS_AFTER, WORKS_AFTER);
        assert!(connector.delay(backoff) <= backoff.first);
    }
}
