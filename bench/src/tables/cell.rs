//! Requests in a log on three servers, before they are confirmed.

use std::process::Command;
use std::thread;

use anyhow::{Context, Result};

use super::{Bound, Content, Layout, Plan, Rows, Target};
use crate::Bench;
use crate::brokers::emptied;
use crate::cells::{Cell, Nats};
use crate::exchange::{LIMIT, Report, SETTLE};
use crate::process::{Life, Ready, Running, Server, ServerSpec};
use crate::programs::peers_folder;
use crate::series::{Kind, Sample, Variant};
use crate::servers::free_port;

const SIZE: &str = "30";
const AHEAD: &str = "1000";
const OURS: &str = "tow broker in a cell";
const STANDBY: &str = "the same, its standby alone";
const JOURNAL: &str = "tow broker --journal";
const STREAM: &str = "JetStream, a message a request";
/// As Debian has it.
const RABBIT_SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const RABBIT: &str = "RabbitMQ, quorum queue";

pub fn plan(bench: &Bench) -> Plan<'_> {
    let variant = |kind, name: &str, how: &str, run| Variant {
        name: name.to_owned(),
        kind,
        how: how.to_owned(),
        groups: vec![String::new()],
        run,
    };
    let (many, few) = (bench.requests(400_000), bench.requests(40_000));
    let nats = "3 nats-server with sync_interval: always";
    let ends = "tow work echo --echo ; tow call echo --ahead 1000 --size 30";
    let variants = vec![
        variant(
            Kind::Ours,
            OURS,
            &format!("{nats} ; 2 tow broker --queue nats://... --cell bench ; {ends} --count {many}"),
            Box::new(move |_| Ok(vec![ours(bench, true, many, Of::All)?])),
        ),
        variant(
            Kind::Ours,
            STANDBY,
            &format!("{nats} ; 2 tow broker --queue nats://... --cell bench ; {ends} --count {many}"),
            Box::new(move |_| Ok(vec![ours(bench, true, many, Of::Standby)?])),
        ),
        variant(
            Kind::Ours,
            JOURNAL,
            &format!("tow broker --journal DIR ; {ends} --count {many}"),
            Box::new(move |_| Ok(vec![ours(bench, false, many, Of::All)?])),
        ),
        variant(
            Kind::Peer,
            STREAM,
            &format!("{nats} ; stream_ends --requests {few} --ahead 1000 --size 30"),
            Box::new(move |_| Ok(vec![stream(bench, few)?])),
        ),
        variant(
            Kind::Peer,
            RABBIT,
            &format!("3 rabbitmq-server ; rabbit_ends.py --requests {few} --ahead 1000 --size 30"),
            Box::new(move |_| Ok(vec![rabbit(bench, few)?])),
        ),
    ];
    Plan { content: content(), variants, targets }
}

/// Whose processor time and memory are reported.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    All,
    Standby,
}

/// Our broker, with a standby in a cell.
fn ours(bench: &Bench, in_cell: bool, requests: u64, of: Of) -> Result<Sample> {
    let logs = bench.folder.path();
    let tow = || bench.programs.command("tow-as-packaged");
    let cell = if in_cell { Some(Cell::start(bench)?) } else { None };
    let mut servers = Vec::new();
    match &cell {
        Some(cell) => {
            servers.push(cell.leader(bench, free_port()?)?);
            servers.push(Server::start(cell.broker(bench, free_port()?)?, logs)?);
        }
        None => {
            let mut command = tow()?;
            command.args(["broker", "--bind", &format!("tcp://127.0.0.1:{}", free_port()?)]);
            command.arg("--journal").arg(emptied(logs, "journal")?);
            servers.push(Server::start(ServerSpec { command, ready: Ready::Line, life: Life::Long }, logs)?);
        }
    }
    let endpoint = format!("tcp://127.0.0.1:{}", servers[0].port);
    let mut command = tow()?;
    command.args(["work", "echo", "--echo", "--jobs", AHEAD, "--connect", &endpoint]);
    let mut worker = Server::start(ServerSpec { command, ready: Ready::Said, life: Life::Long }, logs)?;
    let mut command = tow()?;
    command.args(["call", "echo", "--connect", &endpoint, "--count", &requests.to_string(), "--ahead", AHEAD]);
    command.args(["--size", SIZE, "--json"]);
    thread::sleep(SETTLE);
    worker.start_counting();
    let mut stores = cell.map_or_else(Vec::new, |cell| cell.nats.servers);
    servers.iter_mut().chain(&mut stores).for_each(Server::start_counting);
    let finished = Running::start(command, logs)?.finish(LIMIT)?;
    worker.stop_counting();
    servers.iter_mut().chain(&mut stores).for_each(Server::stop_counting);
    let worker = worker.stop()?;
    let stopped = |servers: Vec<Server>| servers.into_iter().map(Server::stop).collect::<Result<Vec<_>>>();
    let has_stores = !stores.is_empty();
    let usages = stopped(servers)?;
    let store_cpu: f64 = stopped(stores)?.iter().map(|usage| usage.cpu_seconds).sum();
    let report = Report::read(&finished.stdout, requests)?;
    if of == Of::Standby {
        let standby = usages.last().context("no standby")?;
        let sample = sample(&report, standby.cpu_seconds, None, 0.0);
        return Ok(Sample { server_peak_bytes: standby.peak_bytes, receiver_cpu_seconds: None, ..sample });
    }
    let cpu: f64 = usages.iter().map(|usage| usage.cpu_seconds).sum();
    Ok(Sample {
        worker_cpu_seconds: Some(worker.cpu_seconds),
        server_peak_bytes: usages.iter().filter_map(|usage| usage.peak_bytes).max(),
        ..sample(&report, cpu + store_cpu, has_stores.then_some(store_cpu), finished.cpu_seconds)
    })
}

/// Clients and workers of JetStream, in one program.
fn stream(bench: &Bench, requests: u64) -> Result<Sample> {
    let logs = bench.folder.path();
    let mut nats = Nats::start(bench)?;
    let ends = |requests: u64| -> Result<Command> {
        let mut command = bench.programs.command("stream_ends")?;
        command.args(["--url", &nats.url, "--requests", &requests.to_string(), "--ahead", AHEAD, "--size", SIZE]);
        Ok(command)
    };
    nats.make(|| ends(0), logs)?;
    let command = ends(requests)?;
    nats.servers.iter_mut().for_each(Server::start_counting);
    let finished = Running::start(command, logs)?.finish(LIMIT)?;
    nats.servers.iter_mut().for_each(Server::stop_counting);
    let usages = nats.servers.into_iter().map(Server::stop).collect::<Result<Vec<_>>>()?;
    let cpu = usages.iter().map(|usage| usage.cpu_seconds).sum();
    let report = Report::read(&finished.stdout, requests).context("JetStream")?;
    Ok(sample(&report, cpu, Some(cpu), finished.cpu_seconds))
}

/// A client and a worker of a quorum queue with three members.
fn rabbit(bench: &Bench, requests: u64) -> Result<Sample> {
    let logs = bench.folder.path();
    // The program that is on the PATH changes to a user of its own.
    let server = bench.programs.command("rabbitmq-server").and(bench.programs.command(RABBIT_SERVER))?;
    let mut command = bench.programs.command("python")?;
    command.arg(peers_folder().join("rabbit.py")).arg("--server").arg(server.get_program());
    command.arg("--epmd").arg(bench.programs.command("epmd")?.get_program());
    command.arg("--folder").arg(emptied(logs, "rabbit")?);
    let mut nodes = Server::start(ServerSpec { command, ready: Ready::Line, life: Life::Long }, logs)?;
    let mut command = bench.programs.command("python")?;
    command.arg(peers_folder().join("rabbit_ends.py")).args(["--port", &nodes.port.to_string()]);
    command.args(["--requests", &requests.to_string(), "--ahead", AHEAD, "--size", SIZE]);
    nodes.start_counting();
    let finished = Running::start(command, logs)?.finish(LIMIT)?;
    nodes.stop_counting();
    let cpu = nodes.stop()?.cpu_seconds;
    let report = Report::read(&finished.stdout, requests).context("RabbitMQ")?;
    // The client is in Python: its processor time says nothing about RabbitMQ.
    Ok(Sample { receiver_cpu_seconds: None, ..sample(&report, cpu, Some(cpu), 0.0) })
}

fn sample(report: &Report, server_cpu: f64, store_cpu: Option<f64>, client_cpu: f64) -> Sample {
    Sample {
        seconds: report.seconds,
        requests: report.replies,
        server_cpu_seconds: Some(server_cpu),
        store_cpu_seconds: store_cpu,
        receiver_cpu_seconds: Some(client_cpu),
        p50_us: report.p50_us,
        p99_us: report.p99_us,
        resent: Some(report.resent),
        ..Sample::default()
    }
}

fn content() -> Content {
    Content {
        title: "Requests on three servers".to_owned(),
        about: format!(
            "Requests of {SIZE} bytes answered a second, {AHEAD} at a time, by one worker for one client, all on this machine. In a cell \
             each request and each outcome is in the logs of three NATS servers, synced, before it is confirmed; there is a standby, \
             whose processor time is the broker's, too. With JetStream each request is a message of a stream with three replicas, \
             {AHEAD} of which wait for their acknowledgement at a time; a worker fetches 500 with a pull consumer, answers over plain NATS, \
             and acknowledges each. Outcomes aren't stored there. With RabbitMQ each request is a message of a quorum queue with three members, confirmed \
             when the queue has it; its client and worker are in Python (pika), which may be the limit. *{STANDBY}* has the processor time and memory \
             of the standby only."
        ),
        peer: STREAM.to_owned(),
        layout: Layout::Rates,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let all = |row: &crate::series::Row| {
        Some(row.broker_us()? + row.workers_us().unwrap_or(0.0) + row.clients_us().unwrap_or(0.0))
    };
    vec![
        rows.compared("in a cell, requests/s", Bound::AtLeast(60_000.0), (OURS, OURS, ""), |row, _| row.per_second()),
        rows.compared(
            "in a cell, times the requests of JetStream a second of all processors",
            Bound::AtLeast(8.0),
            (OURS, STREAM, ""),
            |row, peer| Some(all(peer)? / all(row)?),
        ),
    ]
}
