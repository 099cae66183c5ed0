//! Metrics in the text format of Prometheus, or that of OpenMetrics if requested. They are made for each scrape, from the sums
//! of the server.
//! Nothing has a label for a peer.

use super::api::Reply;
use super::figures::{self, About, Kind, Number, Sample, Snapshot, Unit};
use super::view::Refusal;
use super::{Running, Shared};
use hyper::header::ACCEPT;
use hyper::{HeaderMap, StatusCode};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{self, Registry};
use std::fmt;

/// A format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text format 0.0.4 of Prometheus.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The format that a request prefers; the older one if it doesn't say.
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
            Format::Text => prometheus_text::CONTENT_TYPE,
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    fn encode(self, registry: &Registry) -> String {
        let mut body = String::new();
        // Writing to a string doesn't fail.
        let _ = match self {
            Format::Text => prometheus_text::encode(&mut body, registry),
            Format::OpenMetrics => text::encode(&mut body, registry),
        };
        body
    }
}

/// Answers a scrape.
pub fn reply(shared: &Shared, running: &Running, per_service: bool, format: Format) -> Result<Reply, Refusal> {
    let mut snapshot = Snapshot::default();
    snapshot.add(figures::SERVER, &shared.figures());
    snapshot.add(figures::PROBLEMS, &shared.problems(running)?.0);
    running.view.figures(&mut snapshot, per_service)?;
    let build = vec![("version", env!("CARGO_PKG_VERSION")), ("program", shared.program)];
    Ok(Reply {
        status: StatusCode::OK,
        content_type: format.content_type(),
        body: format.encode(&registry(build, snapshot)),
    })
}

fn registry(build: Vec<(&'static str, &'static str)>, snapshot: Snapshot) -> Registry {
    let mut registry = Registry::with_prefix("towpath");
    registry.register("build", "The program", Info::new(build));
    registry.register_collector(Box::new(snapshot));
    registry
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // The samples of a figure are together in the text.
        let mut families: Vec<(&About, Vec<&Sample>)> = Vec::new();
        for sample in self.samples.iter().filter(|sample| sample.value != Number::Unknown) {
            match families.iter_mut().find(|(about, _)| std::ptr::eq(*about, sample.about)) {
                Some((_, samples)) => samples.push(sample),
                None => families.push((sample.about, vec![sample])),
            }
        }
        for (About { name, kind, unit, help, .. }, samples) in families {
            let metric_type = if *kind == Kind::Counter { MetricType::Counter } else { MetricType::Gauge };
            let known = match unit {
                Unit::Bytes => Some((registry::Unit::Bytes, "_bytes")),
                Unit::Seconds => Some((registry::Unit::Seconds, "_seconds")),
                Unit::Count | Unit::Flag => None,
            };
            // The encoder adds the unit to the name.
            let (name, unit) = known
                .and_then(|(unit, suffix)| Some((name.strip_suffix(suffix)?, Some(unit))))
                .unwrap_or((*name, None));
            let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), metric_type)?;
            for sample in samples {
                match sample.labels.as_slice() {
                    [] => write(*kind, sample.value, &mut metric)?,
                    labels => write(*kind, sample.value, &mut metric.encode_family(&labels)?)?,
                }
            }
        }
        Ok(())
    }
}

fn write(kind: Kind, value: Number, to: &mut MetricEncoder<'_>) -> fmt::Result {
    const NO_EXEMPLAR: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
    match (kind, value) {
        (_, Number::Unknown) => Ok(()),
        (Kind::Counter, Number::Fraction(value)) => to.encode_counter(&value, NO_EXEMPLAR),
        (Kind::Gauge, Number::Fraction(value)) => to.encode_gauge(&value),
        (Kind::Counter, value) => to.encode_counter(&value.whole(), NO_EXEMPLAR),
        (Kind::Gauge, value) => to.encode_gauge(&value.whole()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Server;
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
        let mut snapshot = Snapshot::default();
        snapshot.add(figures::SERVER, &Server { started: 3, is_ready: true });
        let limits = towpath_blocking::PoolLimits { name: "test", threads_max: 1, hung_max: 1, per_group_max: 1 };
        let mut load = towpath_blocking::BlockingPool::new(limits).load();
        for (pool, running) in [("a \"b\"\n", 4), ("c", 5)] {
            load.running = running;
            snapshot.add_labelled(figures::POOL, &[("pool", pool)], &load);
        }
        let registry = registry(vec![("version", "1")], snapshot);
        let [open, text] = [Format::OpenMetrics, Format::Text].map(|format| format.encode(&registry));
        let expected = [
            "# TYPE towpath_build_info gauge",
            "towpath_build_info{version=\"1\"} 1",
            "# HELP towpath_start_time_seconds When the server was started, since 1970",
            "towpath_start_time_seconds 3",
            "towpath_pool_jobs{pool=\"c\",state=\"running\"} 5",
        ];
        for line in expected {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        let samples =
            |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(samples(&text), samples(&open));
        assert!(open.contains("# UNIT towpath_start_time_seconds seconds\n"), "{open}");
        assert!(!text.contains("# EOF") && open.ends_with("# EOF\n"));
    }
}
