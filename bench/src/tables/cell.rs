//! Requests in a log on three servers, before they are confirmed.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Bound, Content, Layout, Plan, Rows, Target};
use crate::Bench;
use crate::brokers::emptied;
use crate::exchange::{LIMIT, Report, SETTLE};
use crate::process::{Life, Ready, Running, Server, ServerSpec, run};
use crate::programs::peers_folder;
use crate::series::{Kind, Sample, Variant};
use crate::servers::free_port;

const SIZE: &str = "30";
const AHEAD: &str = "1000";
const OURS: &str = "tow broker in a cell";
const JOURNAL: &str = "tow broker --journal";
const STREAM: &str = "JetStream, a message a request";
/// As Debian has it.
const RABBIT_SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const RABBIT: &str = "RabbitMQ, quorum queue";
/// How long NATS may take to choose a leader.
const LEADER_LIMIT: Duration = Duration::from_secs(30);

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
            Box::new(move |_| Ok(vec![ours(bench, true, many)?])),
        ),
        variant(
            Kind::Ours,
            JOURNAL,
            &format!("tow broker --journal DIR ; {ends} --count {many}"),
            Box::new(move |_| Ok(vec![ours(bench, false, many)?])),
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

/// Three NATS servers of one JetStream, each synced at each write.
struct Nats {
    servers: Vec<Server>,
    url: String,
}

impl Nats {
    fn start(bench: &Bench) -> Result<Nats> {
        let state = emptied(bench.folder.path(), "cell")?;
        // All at once: a free port that is asked for again may be given again.
        let listeners = (0..6).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let ports = listeners.iter().map(|l| Ok(l.local_addr()?.port())).collect::<Result<Vec<u16>>>()?;
        drop(listeners);
        let (clients, routes) = ports.split_at(3);
        let all: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let mut servers = Vec::new();
        for (node, (client, route)) in clients.iter().zip(routes).enumerate() {
            let store = state.join(node.to_string());
            let config = state.join(format!("{node}.conf"));
            let text = format!(
                "server_name: n{node}\nlisten: 127.0.0.1:{client}\n\
                 jetstream {{ store_dir: \"{}\", sync_interval: always }}\n\
                 cluster {{ name: c, listen: 127.0.0.1:{route}, routes: [{}] }}\n",
                store.display(),
                all.join(", ")
            );
            fs::write(&config, text)?;
            let mut command = bench.programs.command("nats-server")?;
            command.arg("--config").arg(config);
            let spec = ServerSpec { command, ready: Ready::Port(*client), life: Life::Long };
            servers.push(Server::start(spec, bench.folder.path())?);
        }
        let urls: Vec<String> = clients.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        Ok(Nats { servers, url: urls.join(",") })
    }

    /// Runs a command until it succeeds: a cluster needs a while until it has a leader.
    fn make(&self, command: impl Fn() -> Result<Command>, logs: &Path) -> Result<()> {
        let until = Instant::now() + LEADER_LIMIT;
        loop {
            match run(command()?, logs) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => thread::sleep(SETTLE),
            }
        }
    }
}

/// Our broker, with a standby in a cell.
fn ours(bench: &Bench, in_cell: bool, requests: u64) -> Result<Sample> {
    let logs = bench.folder.path();
    let tow = || bench.programs.command("tow-with-cells");
    let nats = if in_cell { Some(Nats::start(bench)?) } else { None };
    let queue = |command: &mut Command, nats: &Nats| {
        command.args(["--queue", &nats.url, "--cell", "bench"]);
    };
    if let Some(nats) = &nats {
        let init = || {
            let mut command = tow()?;
            command.args(["queue", "init", "--queue-size", "512M"]);
            queue(&mut command, nats);
            Ok(command)
        };
        nats.make(init, logs)?;
    }
    let broker = || {
        let mut command = tow()?;
        command.args(["broker", "--bind", &format!("tcp://127.0.0.1:{}", free_port()?)]);
        match &nats {
            Some(nats) => queue(&mut command, nats),
            None => _ = command.arg("--journal").arg(emptied(logs, "journal")?),
        }
        Server::start(ServerSpec { command, ready: Ready::Line, life: Life::Long }, logs)
    };
    let mut servers = vec![broker()?];
    // It leads before there is another one.
    let leads = |server: &Server| nats.is_none() || server.log_tail().contains("this broker leads the cell");
    let until = Instant::now() + LEADER_LIMIT;
    while !leads(&servers[0]) {
        anyhow::ensure!(Instant::now() < until, "it doesn't lead: {}", servers[0].log_tail());
        thread::sleep(SETTLE);
    }
    if nats.is_some() {
        servers.push(broker()?);
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
    let mut stores = nats.map_or_else(Vec::new, |nats| nats.servers);
    servers.iter_mut().chain(&mut stores).for_each(Server::start_counting);
    let finished = Running::start(command, logs)?.finish(LIMIT)?;
    worker.stop_counting();
    servers.iter_mut().chain(&mut stores).for_each(Server::stop_counting);
    let worker = worker.stop()?;
    let peak = |servers: Vec<Server>| -> Result<(f64, Option<u64>)> {
        let usages = servers.into_iter().map(Server::stop).collect::<Result<Vec<_>>>()?;
        Ok((
            usages.iter().map(|usage| usage.cpu_seconds).sum(),
            usages.iter().filter_map(|usage| usage.peak_bytes).max(),
        ))
    };
    let has_stores = !stores.is_empty();
    let (cpu, peak_bytes) = peak(servers)?;
    let (store_cpu, _) = peak(stores)?;
    let report = Report::read(&finished.stdout, requests)?;
    Ok(Sample {
        worker_cpu_seconds: Some(worker.cpu_seconds),
        server_peak_bytes: peak_bytes,
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
        p50_us: Some(report.p50_us),
        p99_us: Some(report.p99_us),
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
             and acknowledges each. Outcomes aren't stored there."
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
