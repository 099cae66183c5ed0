//! Tasks beside the log, on the same connection: the members' accounts of themselves.

use super::members::{Members, account, digits};
use super::shared::Shared;
use crate::block::BrokerId;
use crate::figures::CellFigures;
use async_nats::connection::State;
use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Between two accounts.
const EVERY: Duration = Duration::from_secs(1);

/// Milliseconds since 1970.
pub(super) fn unix_ms() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Subject of a cell's accounts.
pub(super) fn subject(cell: &str) -> String {
    format!("tow.cell.{cell}.members")
}

/// The accounts of one member.
pub(super) struct Accounts {
    client: Client,
    subject: String,
    broker: String,
    endpoint: String,
    shared: Arc<Shared>,
}

impl Accounts {
    /// Of this process.
    pub fn new(client: Client, cell: &str, broker: &BrokerId, endpoint: &str, shared: Arc<Shared>) -> Accounts {
        Accounts { client, subject: subject(cell), broker: digits(broker), endpoint: endpoint.to_owned(), shared }
    }

    /// Publishes its own and takes all, for as long as the connection is there.
    pub async fn run(self) {
        let Ok(mut accounts) = self.client.subscribe(self.subject.clone()).await else { return };
        let (started, mut members) = (Instant::now(), Members::new(self.broker.clone()));
        let (mut next, mut led_at) = (started, started);
        loop {
            if Instant::now() >= next {
                next = Instant::now() + EVERY;
                self.publish(false).await;
                // Once a second, also if no account comes.
                let listed = members.figures(started.elapsed());
                let server = self.client.server_info().server_name;
                let figures = CellFigures { members: listed, ..CellFigures::default() };
                if figures.members.is_empty() || figures.leading().is_some() {
                    led_at = Instant::now();
                }
                self.shared.update(|shared| {
                    (shared.members, shared.nats.server) = (figures.members, server);
                    shared.leaderless_for = Some(led_at.elapsed()).filter(|time| !time.is_zero());
                });
            }
            match tokio::time::timeout_at(next, accounts.next()).await {
                Ok(Some(message)) => members.take(started.elapsed(), unix_ms(), &message.payload),
                Ok(None) => return,
                Err(_) => {}
            }
        }
    }

    /// Says that it ends.
    pub async fn leave(&self) {
        self.publish(true).await;
        let _ = tokio::time::timeout(EVERY, self.client.flush()).await;
    }

    /// Says how it is, or that it ends.
    async fn publish(&self, has_left: bool) {
        // While there is no connection they would be kept, and come late.
        if self.client.connection_state() != State::Connected {
            return;
        }
        let account = account(&self.broker, &self.endpoint, &self.shared.figures(), has_left, unix_ms());
        let _ = self.client.publish(self.subject.clone(), account.into()).await;
    }
}

/// Members of a cell, by what they say within a time.
pub(super) async fn look(mut accounts: Subscriber, within: Duration) -> Members {
    let (started, mut members) = (Instant::now(), Members::new(String::new()));
    while let Ok(Some(message)) = tokio::time::timeout_at(started + within, accounts.next()).await {
        members.take(Duration::ZERO, unix_ms(), &message.payload);
    }
    members
}
