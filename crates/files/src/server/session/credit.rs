//! The credit of clients, in bytes. There are several on a connection if it is a proxy's.

use super::Envelope;
use crate::limits::CREDIT_BYTES_MAX;
use crate::protocol::control::Slow;
use crate::protocol::envelope::client_of;
use crate::server::limits::CREDIT_NAMES_BYTES_MAX;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes that may be sent to a client: granted by it, spent by pieces. Clones are the same credit.
#[derive(Clone, Debug, Default)]
pub(super) struct Credit(Arc<Granted>);

#[derive(Debug, Default)]
struct Granted {
    bytes: AtomicU64,
    /// Why the client is slow, as it said last: its number in [`Slow::ALL`] and 1, or 0.
    slow: AtomicU8,
}

impl Credit {
    /// Adds credit from the client, or of pieces that were not sent.
    pub(super) fn add(&self, bytes: u64) {
        self.0.bytes.store(self.available().saturating_add(bytes).min(CREDIT_BYTES_MAX), Ordering::Relaxed);
    }

    /// Spends credit if there is enough.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let rest = self.available().checked_sub(bytes);
        rest.inspect(|rest| self.0.bytes.store(*rest, Ordering::Relaxed)).is_some()
    }

    /// Notes why the client is slow, if it is.
    pub(super) fn set_slow(&self, slow: Option<Slow>) {
        self.0.slow.store(slow.map_or(0, |slow| slow as u8 + 1), Ordering::Relaxed);
    }

    /// Why the client is slow, as it said last.
    pub(super) fn slow(&self) -> Option<Slow> {
        let number = self.0.slow.load(Ordering::Relaxed).checked_sub(1)?;
        Slow::ALL.get(usize::from(number)).copied()
    }

    pub(super) fn available(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

/// The credit of each client of a connection.
#[derive(Debug, Default)]
pub(super) struct Credits {
    /// By what names a client in envelopes.
    clients: HashMap<Vec<Bytes>, Client>,
    names_bytes: usize,
    /// Messages so far.
    messages: u64,
}

#[derive(Debug, Default)]
struct Client {
    credit: Credit,
    /// Number of the last message from it.
    last: u64,
}

impl Credits {
    /// The credit of the client that sent a message with this envelope.
    pub(super) fn of(&mut self, envelope: &Envelope) -> Credit {
        self.messages += 1;
        let name = client_of(envelope);
        let names_bytes = &mut self.names_bytes;
        let client = self.clients.entry(name.to_vec()).or_insert_with(|| {
            *names_bytes += memory_bytes(name);
            Client::default()
        });
        client.last = self.messages;
        let credit = client.credit.clone();
        while self.names_bytes > CREDIT_NAMES_BYTES_MAX && self.forget_one() {}
        credit
    }

    /// Forgets the client without an open fetch whose last message is oldest.
    fn forget_one(&mut self) -> bool {
        let unused = self.clients.iter().filter(|(_, client)| Arc::strong_count(&client.credit.0) == 1);
        let Some(name) = unused.min_by_key(|(_, client)| client.last).map(|(name, _)| name.clone()) else {
            return false;
        };
        self.clients.remove(&name);
        self.names_bytes -= memory_bytes(&name);
        true
    }

    /// Messages since the last one of the client that sent this envelope.
    pub(super) fn silence(&self, envelope: &Envelope) -> u64 {
        self.messages - self.clients.get(client_of(envelope)).map_or(0, |client| client.last)
    }

    /// Credit of all clients.
    pub(super) fn available(&self) -> u64 {
        self.clients.values().fold(0, |sum, client| sum.saturating_add(client.credit.available()))
    }
}

fn memory_bytes(name: &[Bytes]) -> usize {
    size_of::<(Vec<Bytes>, Client)>() + name.iter().map(|frame| size_of::<Bytes>() + frame.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(client: u32) -> Envelope {
        vec![Bytes::copy_from_slice(&[&[0], &client.to_be_bytes()[..]].concat())]
    }

    #[test]
    fn each_client_of_a_proxy_has_its_own_credit() {
        let mut credits = Credits::default();
        credits.of(&envelope(1)).add(10);
        credits.of(&envelope(2)).add(5);
        credits.of(&Envelope::new()).add(1);
        assert!(!credits.of(&envelope(2)).take(6));
        assert!(credits.of(&envelope(1)).take(6));
        assert_eq!(credits.available(), 4 + 5 + 1);
    }

    #[test]
    fn clients_are_forgotten_when_there_are_many_unless_they_fetch() {
        let mut credits = Credits::default();
        let fetching = credits.of(&envelope(0));
        fetching.add(7);
        for client in 1..10_000 {
            credits.of(&envelope(client)).add(1);
            assert!(credits.names_bytes <= CREDIT_NAMES_BYTES_MAX);
        }
        assert_eq!(credits.of(&envelope(0)).available(), 7);
        assert_eq!(credits.of(&envelope(9_999)).available(), 1);
        assert_eq!(credits.of(&envelope(1)).available(), 0);
    }
}
