//! One measured exchange of requests: a fresh broker, its workers, a client from its start to its end, and what all of them used.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::Bench;
use crate::ends::{Ends, Load, Ports, Setup};
use crate::folder::touch_memory;
use crate::operator::{Operator, socket_in};
use crate::process::{Running, Server, show};
use crate::series::{Kind, Sample, Variant};
use crate::servers::free_port;

/// Workers get no answer to their registration: so long after it everything is quiet.
pub const SETTLE: Duration = Duration::from_millis(100);
/// More than the programs of an exchange take together.
const MEMORY_BYTES: u64 = 256 << 20;
/// How long a client may take: several times what the slowest needs, 100,000 requests one after another behind the broker in C.
pub const LIMIT: Duration = Duration::from_secs(90);

/// A client's results. Ours leaves out what nobody else counts.
#[derive(Debug, Deserialize)]
pub struct Report {
    pub requests: u64,
    pub replies: u64,
    #[serde(default)]
    pub failed: u64,
    #[serde(default)]
    pub resent: u64,
    /// From the first request to the last reply.
    pub seconds: f64,
    /// Its processor time meanwhile, without its start.
    pub cpu_seconds: Option<f64>,
    /// Times of one request, where the program measures them.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// The longest time between two replies.
    pub longest_pause_ms: Option<f64>,
}

impl Report {
    /// Reads what was printed, and refuses it if a reply is missing.
    pub fn read(stdout: &str, requests: u64) -> Result<Self> {
        let report: Self = serde_json::from_str(stdout).with_context(|| format!("no report in {stdout:?}"))?;
        if report.failed > 0 || report.replies != requests || report.requests != requests {
            bail!("{} replies to {requests} requests, {} failed", report.replies, report.failed);
        }
        Ok(report)
    }
}

/// The commands, with names in place of folders and ports.
pub fn how(bench: &Bench, setup: Setup, load: Load) -> String {
    let ports = Ports { front: 0, back: 0 };
    let programs = &bench.programs;
    let shown = [
        setup.broker(programs, bench.folder.path(), 0).map(|spec| spec.map(|spec| show(&spec.command))),
        setup.worker(programs, ports).map(|spec| spec.map(|spec| show(&spec.command))),
        setup.client(programs, ports, load).map(|command| Some(show(&command))),
    ];
    let shown: Vec<String> =
        shown.into_iter().filter_map(|shown| shown.unwrap_or_else(|why| Some(format!("({why:#})")))).collect();
    bench.anonymous(&shown.join(" ; "))
}

/// Starts the client, or lets it begin that is connected already.
type Begin<'a> = Box<dyn FnOnce() -> Result<Running> + 'a>;

/// Runs it.
pub fn exchange(bench: &Bench, setup: Setup, load: Load) -> Result<Sample> {
    let (programs, logs) = (&bench.programs, bench.folder.path());
    let back = free_port()?;
    let mut broker = match setup.broker(programs, logs, back)? {
        Some(mut spec) => {
            if setup.look.is_some() {
                spec.command.arg("--admin-socket").arg(socket_in(logs));
            }
            Some(Server::start(spec, logs)?)
        }
        None => None,
    };
    let ports = Ports { front: broker.as_ref().map_or(0, |broker| broker.port), back };
    let mut workers = match setup.worker(programs, ports)? {
        Some(spec) => Some(Server::start(spec, logs)?),
        None => None,
    };
    if workers.is_some() {
        thread::sleep(SETTLE);
    }
    // That thousands of connections begin or end is no part of a request.
    let client = setup.client(programs, ports, load)?;
    let begin: Begin = if setup.client_ends == Ends::Light {
        let connected = Running::connect(client, logs)?;
        Box::new(|| connected.go())
    } else {
        Box::new(|| Running::start(client, logs))
    };
    touch_memory(MEMORY_BYTES)?;
    for server in [&mut broker, &mut workers].into_iter().flatten() {
        server.start_counting();
    }
    let operator = setup.look.map(|look| Operator::start(&socket_in(logs), look));
    let finished = begin().and_then(|client| client.finish(LIMIT)).with_context(|| {
        let logs = [&broker, &workers].into_iter().flatten().map(last_line).collect::<Vec<_>>();
        format!("the logs of the others: {}", logs.join("; ").trim())
    })?;
    for server in [&mut broker, &mut workers].into_iter().flatten() {
        server.stop_counting();
    }
    let looks = operator.map(Operator::stop).transpose()?;
    // The workers first: without a broker they would try to find it again, or give up.
    let workers = workers.map(Server::stop).transpose()?;
    let broker = broker.map(Server::stop).transpose()?;
    let report = Report::read(&finished.stdout, load.requests)?;
    Ok(Sample {
        seconds: report.seconds,
        requests: report.replies,
        server_cpu_seconds: broker.map(|usage| usage.cpu_seconds),
        worker_cpu_seconds: workers.map(|usage| usage.cpu_seconds),
        receiver_cpu_seconds: report.cpu_seconds.or(Some(finished.cpu_seconds)),
        server_peak_bytes: broker.and_then(|usage| usage.peak_bytes),
        p50_us: report.p50_us,
        p99_us: report.p99_us,
        resent: Some(report.resent),
        looks,
        ..Sample::default()
    })
}

fn last_line(server: &Server) -> String {
    server.log_tail().lines().last().unwrap_or_default().to_owned()
}

/// A row, in one group.
pub fn variant<'a>(bench: &'a Bench, kind: Kind, name: &str, group: &str, setup: Setup, load: Load) -> Variant<'a> {
    Variant {
        name: name.to_owned(),
        kind,
        how: how(bench, setup, load),
        groups: vec![group.to_owned()],
        run: Box::new(move |_| Ok(vec![exchange(bench, setup, load)?])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_all_replies_is_refused() -> Result<()> {
        let text = |replies, failed| {
            format!(
                "{{\"requests\":10,\"replies\":{replies},\"failed\":{failed},\"seconds\":1.0,\"p50_us\":1.0,\"p99_us\":2}}"
            )
        };
        assert_eq!(Report::read(&text(10, 0), 10)?.replies, 10);
        assert!(Report::read(&text(9, 0), 10).is_err());
        assert!(Report::read(&text(10, 1), 10).is_err());
        assert!(Report::read("", 10).is_err());
        Ok(())
    }
}
