//! Metrics in the text format of Prometheus, or that of OpenMetrics for those who ask for it. They are made anew for each scrape, from the sums
//! of the server.
//! Nothing has a label for a peer.

use super::api::Reply;
use super::view::Refusal;
use super::{Running, Shared, State};
use hyper::header::ACCEPT;
use hyper::{HeaderMap, StatusCode};
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

/// A format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text format 0.0.4 of Prometheus.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// What a request accepts rather; the older one is for all that don't say.
    pub fn asked_for(headers: &HeaderMap) -> Format {
        let quality_of = |wanted: &str| {
            let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
            let ranges = accepted.flat_map(|value| value.split(','));
            let qualities = ranges.filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let quality = |part: &str| part.strip_prefix("q=").and_then(|quality| quality.parse::<f32>().ok());
                parts.next().filter(|name| name.eq_ignore_ascii_case(wanted))?;
                Some(parts.find_map(quality).unwrap_or(1.0))
            });
            qualities.fold(0.0, f32::max)
        };
        let open = quality_of("application/openmetrics-text");
        if open > 0.0 && open >= quality_of("text/plain") { Format::OpenMetrics } else { Format::Text }
    }

    fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The same metrics in the text format of Prometheus, which names a counter with its `_total`, and has no units, infos and end.
fn as_text(open: &str) -> String {
    let mut text = String::with_capacity(open.len() + open.len() / 8);
    let mut help = None;
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // Its name depends on the type, which follows.
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            if let Some((_, help)) = help.take() {
                let help = help.replace("\\\"", "\"");
                text.extend(["# HELP ", name, suffix, " ", &help, "\n"]);
            }
            text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            text.extend([line, "\n"]);
        }
    }
    text
}

/// Labels of a value.
pub type Labels = Vec<(&'static str, String)>;

/// Answers a scrape.
pub fn reply(shared: &Shared, running: &Running, per_service: bool, format: Format) -> Result<Reply, Refusal> {
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
    if format == Format::Text {
        body = as_text(&body);
    }
    Ok(Reply { status: StatusCode::OK, content_type: format.content_type(), body })
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

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        for (accept, format) in [
            (None, Format::Text),
            (Some("*/*"), Format::Text),
            (Some("text/plain;version=0.0.4"), Format::Text),
            (Some("application/openmetrics-text"), Format::OpenMetrics),
            (
                Some("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"),
                Format::OpenMetrics,
            ),
            (Some("application/openmetrics-text;q=0.3, text/plain;q=0.5"), Format::Text),
            (Some("application/openmetrics-text;q=0"), Format::Text),
        ] {
            let headers = accept.map(|accept| (ACCEPT, HeaderValue::from_static(accept))).into_iter().collect();
            assert_eq!(Format::asked_for(&headers), format, "{accept:?}");
        }
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let mut registry = Registry::with_prefix("towpath");
        registry.register("build", "The program", Info::new(vec![("version", "1")]));
        counter(&mut registry, "bytes", "Bytes of \"all\"", 3);
        counters(&mut registry, "ends", "Ends", "reason", [("a \"b\"\n", 4)]);
        gauge(&mut registry, "peers", "Peers", 5);
        let mut open = String::new();
        prometheus_client::encoding::text::encode(&mut open, &registry).unwrap();
        let text = as_text(&open);
        for line in [
            "# HELP towpath_bytes_total Bytes of \"all\".",
            "# TYPE towpath_bytes_total counter",
            "towpath_bytes_total 3",
            "# TYPE towpath_build_info gauge",
            "towpath_build_info{version=\"1\"} 1",
            "# TYPE towpath_ends_total counter",
            "# TYPE towpath_peers gauge",
            "towpath_peers 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples(&text), samples(&open));
        assert!(!text.contains("# EOF") && open.ends_with("# EOF\n"));
    }
}
