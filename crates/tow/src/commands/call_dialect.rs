//! Whether a stock broker that doesn't answer speaks majortomo's dialect.
//!
//! A request must not be sent in two dialects, since it could be executed twice. But a broker sends heartbeats to a worker that it understands.

use crate::cli::connect_args::BrokerArgs;
use std::time::Duration;
use towpath_client::client::{Client, Dialect};
use towpath_client::worker::{Worker, WorkerOptions};

/// Silence of a broker after which it is asked otherwise.
const SILENCE: Duration = Duration::from_secs(1);

/// How often to look whether it has answered.
const CHECKED_EVERY: Duration = Duration::from_millis(50);

/// Returns when a broker that has said nothing to this client turns out to speak majortomo's dialect.
pub async fn is_majortomo(client: &Client, brokers: &BrokerArgs) {
    while client.status().connected.is_none() {
        tokio::time::sleep(CHECKED_EVERY).await;
    }
    tokio::time::sleep(SILENCE).await;
    let worker =
        brokers.link().ok().filter(|link| link.dialect == Dialect::Auto && client.status().is_silent).and_then(
            |mut link| {
                link.dialect = Dialect::Majortomo;
                // A service that nobody asks for.
                let service = format!("tow-call-asks-for-heartbeats-{}", std::process::id());
                Worker::connect(&brokers.endpoints, &service, WorkerOptions { credit: 1, link }).ok()
            },
        );
    let Some(worker) = worker else { return std::future::pending().await };
    while !worker.status().has_received {
        tokio::time::sleep(CHECKED_EVERY).await;
    }
    worker.leave();
    let _ = tokio::time::timeout(SILENCE, worker.closed()).await;
}
