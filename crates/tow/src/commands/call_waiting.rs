//! Messages on standard error about what a call waits for.

use crate::cli::escape::Line;
use crate::cli::output::eprint_line;
use crate::cli::service_name::ServiceName;
use bytes::Bytes;
use serde_json::Value;
use std::convert::Infallible;
use std::time::Duration;
use towpath_client::client::{CallOptions, Client};
use towpath_requests::{Body, is_built_in};

/// When to say what a call is waiting for, and how often to look again.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// How often to look whether all brokers refuse the client.
const REFUSAL_CHECKED_EVERY: Duration = Duration::from_millis(50);

/// Returns when all brokers refuse this client, which they would do again.
pub async fn refused(client: &Client) {
    while !client.status().refused_by_all {
        tokio::time::sleep(REFUSAL_CHECKED_EVERY).await;
    }
}

/// Says on standard error, after a moment and once each, that there is no connection, that the broker refuses requests for now, and that
/// no worker serves the service if one is given, with the limit of the wait. Never returns.
pub async fn report(client: &Client, service: Option<(&ServiceName, Duration)>) -> Infallible {
    let (mut shown_connection, mut shown_refusal, mut shown_worker, mut shown_paused) = (false, false, false, false);
    let mut shown_queue = None;
    loop {
        tokio::time::sleep(SHOWN_AFTER).await;
        let status = client.status();
        if status.connected.is_none() && !std::mem::replace(&mut shown_connection, true) {
            eprint_line(format_args!("tow: no connection to a broker, still trying: {}", Line(&status.failure)));
        }
        if let Some(refused) = status.refused.filter(|_| !shown_refusal) {
            shown_refusal = true;
            let refused = refused.to_string();
            eprint_line(format_args!("tow: the broker refuses requests for now, still trying: {}", Line(&refused)));
        }
        if let Some((service, limit)) = service
            && status.numbered
            && !shown_worker
            && has_no_worker(client, service).await
        {
            shown_worker = true;
            let limit = humantime::format_duration(limit);
            eprint_line(format_args!("tow: no worker for {service}; waiting up to {limit}"));
        }
        if let Some((service, limit)) = service
            && status.numbered
            && (!shown_paused || tracing::enabled!(tracing::Level::INFO))
            && let Some(queue) = queue(client, service).await
        {
            let (waiting, workers) = (queue["waiting"].as_u64(), queue["workers"].as_u64());
            if workers > Some(0) && waiting > Some(0) && shown_queue.replace(waiting) != Some(waiting) {
                tracing::info!(
                    waiting,
                    workers,
                    %service,
                    "the workers are busy; so many requests wait for one, and this may be one of them"
                );
            }
            if queue["paused"] != true || std::mem::replace(&mut shown_paused, true) {
                continue;
            }
            let limit = humantime::format_duration(limit);
            eprint_line(format_args!("tow: {service} is paused by the broker's operator; waiting up to {limit}"));
        }
    }
}

/// The broker's answer about the queue of a service.
async fn queue(client: &Client, service: &ServiceName) -> Option<Value> {
    let frames = ask(client, "mmi.queue", service).await?;
    let mut queues: Vec<Value> = serde_json::from_slice(frames.get(1)?).ok()?;
    queues.pop()
}

/// Whether the broker knows no worker of a service. If it doesn't say, there may be one.
pub async fn has_no_worker(client: &Client, service: &ServiceName) -> bool {
    let Some(frames) = ask(client, "mmi.service", service).await else { return false };
    frames.first().is_some_and(|code| code == "404")
}

/// The broker's answer about a service that isn't built in.
async fn ask(client: &Client, question: &str, service: &ServiceName) -> Option<Vec<Bytes>> {
    if is_built_in(service.as_ref()) {
        return None;
    }
    let options = CallOptions { ttl: Some(SHOWN_AFTER), volatile: true };
    client
        .call_with(question, Body::copied(service.as_ref()), options)
        .await
        .ok()?
        .body
        .to_frames()
        .map(|frames| frames.to_vec())
}
