//! Metrics in the text format of OpenMetrics, which Prometheus reads. They are made anew for each scrape, from the sums of the server.
//! Nothing has a label for a peer.

use super::api::Reply;
use super::view::Refusal;
use super::{Running, Shared, State};
use hyper::StatusCode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::UNIX_EPOCH;
use towpath_sockets::{Ends, HubStats, SLOW_ROUNDS, Traffic};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of a value.
pub type Labels = Vec<(&'static str, String)>;

/// Answers a scrape.
pub fn reply(shared: &Shared, running: &Running, per_service: bool) -> Result<Reply, Refusal> {
    let mut registry = Registry::with_prefix("towpath");
    let build = vec![("version", env!("CARGO_PKG_VERSION")), ("program", shared.program)];
    registry.register("build", "The program", Info::new(build));
    let started = shared.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge(&mut registry, "start_time_seconds", "When it was started, since 1970", started.as_secs());
    gauge(
        &mut registry,
        "ready",
        "1 from its start until it stops, also while it is drained",
        u64::from(shared.state() == State::Ready),
    );
    running.view.register(&mut registry, per_service)?;
    let mut body = String::new();
    // Writing to a string doesn't fail.
    let _ = prometheus_client::encoding::text::encode(&mut body, &registry);
    Ok(Reply { status: StatusCode::OK, content_type: CONTENT_TYPE, body })
}

/// Metrics that both kinds of servers have.
pub fn of_hub(registry: &mut Registry, hub: &HubStats) {
    let HubStats { peers, handshakes, queued_bytes, traffic, ends, slow_rounds, .. } = *hub;
    let Traffic { bytes_in, bytes_out, sendfile_bytes, messages_in, messages_out, .. } = traffic;
    let Ends { closed, protocol, other, handshake, .. } = ends;
    let states = [("ready", peers), ("handshake", handshakes)];
    gauges(registry, "peers", "Connections", states.map(|(state, count)| (label("state", state), count as i64)));
    let reasons = [("closed", closed), ("protocol", protocol), ("other", other), ("handshake", handshake)];
    counters(registry, "peers_gone", "Connections that have ended", "reason", reasons);
    let directions = [("in", bytes_in), ("out", bytes_out)];
    counters(registry, "network_bytes", "Bytes received and sent, with all framing", "direction", directions);
    counter(registry, "sendfile_bytes", "Bytes sent by sendfile(2), of all that were sent", sendfile_bytes);
    let directions = [("in", messages_in), ("out", messages_out)];
    counters(registry, "network_messages", "Messages received and sent", "direction", directions);
    gauge(registry, "queued_bytes", "Memory of what is queued for peers", queued_bytes as u64);
    let slow: [_; SLOW_ROUNDS.len()] = std::array::from_fn(|n| (format!("{:?}", SLOW_ROUNDS[n]), slow_rounds[n]));
    counters(registry, "event_loop_slow_rounds", "Rounds of the event loop that took longer", "over", slow);
}

/// One label.
pub fn label(name: &'static str, value: impl Into<String>) -> Labels {
    vec![(name, value.into())]
}

/// Adds a counter. `_total` is added to its name.
pub fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    registry.register(name, help, ConstCounter::new(value));
}

/// Adds a gauge.
pub fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    registry.register(name, help, ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)));
}

/// The same of a number that need not be whole.
pub fn counter_f64(registry: &mut Registry, name: &str, help: &str, value: f64) {
    registry.register(name, help, ConstCounter::new(value));
}

/// The same of a number that need not be whole.
pub fn gauge_f64(registry: &mut Registry, name: &str, help: &str, value: f64) {
    registry.register(name, help, ConstGauge::new(value));
}

/// Adds a counter with a label.
pub fn counters<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    by: &'static str,
    values: [(impl Into<String>, u64); N],
) {
    let family = Family::<Labels, Counter>::default();
    for (value, count) in values {
        family.get_or_create(&label(by, value)).inc_by(count);
    }
    register(registry, name, help, family);
}

/// Adds a gauge with labels.
pub fn gauges(registry: &mut Registry, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, i64)>) {
    let family = Family::<Labels, Gauge>::default();
    for (labels, value) in values {
        // Names that aren't UTF-8 may look alike.
        family.get_or_create(&labels).inc_by(value);
    }
    register(registry, name, help, family);
}

fn register<M>(registry: &mut Registry, name: &str, help: &str, family: Family<Labels, M>)
where
    Labels: EncodeLabelSet + Clone + Hash + Eq + Debug,
    Family<Labels, M>: EncodeMetric + prometheus_client::metrics::TypedMetric + Debug + Send + Sync + 'static,
{
    registry.register(name, help, family);
}
