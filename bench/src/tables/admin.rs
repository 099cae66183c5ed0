//! The cost of an operator's view for a server.

use std::process::Command;

use anyhow::{Context, Result};

use super::{Bound, Content, Layout, Plan, Rows, Target, count_text, size_text, variant as transfer_variant};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Ports, Setup};
use crate::exchange::{self, LIMIT, Report};
use crate::folder::keep;
use crate::operator::{Look, Operator, metric, socket_in};
use crate::process::{Running, Server, show};
use crate::receivers;
use crate::series::{Kind, Row, Sample, Variant};
use crate::servers;
use crate::transfer::Transfer;

const AHEAD: u64 = 1000;
/// Receivers of the large file.
const RECEIVERS: u64 = 16;
/// How long requests are sent one after another while peers are listed.
const LISTING_SECONDS: &str = "3";
/// More than can be sent meanwhile.
const REQUESTS_MOST: &str = "2000000";

const ALONE: &str = "nobody looks";
const WATCHED: &str = "10 scrapes a second and a page";
const LISTED: &str = "all peers are listed, again and again";

const REQUESTS: &str = "requests";
const FILES: &str = "files";

/// Rounds of the event loop that are too long.
const SLOW: &str = "towpath_event_loop_slow_rounds_total{over=\"2ms\"}";

fn requests(bench: &Bench) -> u64 {
    bench.requests(5_000_000)
}

fn peers(bench: &Bench) -> u64 {
    if bench.quick { 300 } else { 12_000 }
}

fn peers_group(bench: &Bench) -> String {
    format!("{} peers", count_text(peers(bench)))
}

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let mut variants = Vec::new();
    for (kind, name, look) in [(Kind::Limit, ALONE, None), (Kind::Ours, WATCHED, Some(()))] {
        let setup = Setup::new(Broker::Tow { journal: false }, Ends::Tow).workers(AHEAD);
        let setup = setup.look(look.map(|()| Look::BROKER));
        let load = Load { requests: requests(bench), ahead: AHEAD, size: 30 };
        variants.push(exchange::variant(bench, kind, name, REQUESTS, setup, load));
        variants.push(transfer_variant(kind, name, FILES, files(bench, look.map(|()| Look::FILES))?));
    }
    for (kind, name, look) in [(Kind::Limit, ALONE, None), (Kind::Ours, LISTED, Some(Look::Peers))] {
        variants.push(Variant {
            name: name.to_owned(),
            kind,
            how: listing_how(bench).unwrap_or_else(|why| format!("({why:#})")),
            groups: vec![peers_group(bench)],
            run: Box::new(move |_| Ok(vec![listing(bench, look)?])),
        });
    }
    Ok(Plan { content: content(bench), variants, targets })
}

fn files(bench: &Bench, look: Option<Look>) -> Result<Transfer<'_>> {
    let (programs, size) = (&bench.programs, bench.size);
    let source = keep(bench.folder.source(keep(format!("file-{size}")), size)?);
    let (socket, clients) = (socket_in(bench.folder.path()), keep(RECEIVERS.to_string()));
    let at = socket.clone();
    let server = move || {
        let mut spec = servers::tow(programs, source)?;
        spec.command.arg("--admin-socket").arg(&at);
        Ok(spec)
    };
    let receiver =
        move |port| receivers::dropping(programs, "zmtp", port, size, &["--clients", clients, "--chunk", "1048576"]);
    let transfer = Transfer::new(bench, size * RECEIVERS, server, receiver);
    Ok(match look {
        Some(look) => transfer.watched(socket, look),
        None => transfer,
    })
}

/// A worker, and clients that are connected and have sent one request each.
fn connected(bench: &Bench) -> (Setup, Load) {
    let clients = peers(bench);
    let setup = Setup::new(Broker::Tow { journal: false }, Ends::Tow).workers(100);
    (setup.client_ends(Ends::Light).clients(clients), Load { requests: clients, ahead: clients, size: 30 })
}

/// The client that sends one request after another meanwhile.
fn caller(bench: &Bench, port: u16) -> Result<Command> {
    let mut command = bench.programs.command("tow_ends")?;
    command.args(["call", "--connect", &format!("tcp://127.0.0.1:{port}"), "--requests", REQUESTS_MOST]);
    command.args(["--seconds", LISTING_SECONDS]);
    Ok(command)
}

fn listing_how(bench: &Bench) -> Result<String> {
    let (setup, load) = connected(bench);
    let (systems, caller) = (exchange::how(bench, setup, load), bench.anonymous(&show(&caller(bench, 0)?)));
    Ok(format!("{systems} ; {caller} (the broker with --admin-socket DIR/admin.sock --heartbeat 60s)"))
}

/// The longest time between two replies of a client that sends one request after another.
fn listing(bench: &Bench, look: Option<Look>) -> Result<Sample> {
    let (programs, logs, (setup, load)) = (&bench.programs, bench.folder.path(), connected(bench));
    let mut broker = setup.broker.spec(programs, logs, 0)?.context("a broker")?;
    let socket = socket_in(logs);
    broker.command.arg("--admin-socket").arg(&socket);
    // Those that are only connected answer no heartbeats.
    broker.command.args(["--heartbeat", "60s"]);
    let broker = Server::start(broker, logs)?;
    let ports = Ports { front: broker.port, back: 0 };
    let worker = Server::start(setup.worker(programs, ports)?.context("a worker")?, logs)?;
    let idle = Running::connect(setup.client(programs, ports, load)?, logs)?;
    let before = metric(&socket, SLOW)?;
    let operator = look.map(|look| Operator::start(&socket, look));
    let finished = Running::start(caller(bench, broker.port)?, logs)?.finish(LIMIT)?;
    let looks = operator.map(Operator::stop).transpose()?;
    let slow_rounds = metric(&socket, SLOW)? - before;
    drop(idle);
    worker.stop()?;
    let usage = broker.stop()?;
    let report: Report = serde_json::from_str(&finished.stdout)?;
    anyhow::ensure!(report.replies == report.requests, "{} of {} replies", report.replies, report.requests);
    Ok(Sample {
        seconds: report.longest_pause_ms.context("no pause reported")? / 1e3,
        server_cpu_seconds: Some(usage.cpu_seconds),
        server_peak_bytes: usage.peak_bytes,
        p50_us: report.p50_us,
        p99_us: report.p99_us,
        looks,
        slow_rounds: Some(slow_rounds),
        ..Sample::default()
    })
}

fn content(bench: &Bench) -> Content {
    let (peers, requests) = (count_text(peers(bench)), count_text(requests(bench)));
    Content {
        title: "Somebody looks".to_owned(),
        about: format!(
            "What it costs that an operator looks, over the admin socket: 10 scrapes of /metrics a second, and every 2 s the lists that a \
             page shows, from a thread of the bench itself, which takes a little of the same processors. *requests*: {requests} of 30 bytes, \
             {AHEAD} ahead, `tow call` to `tow work` through `tow broker`. *files*: {} from `tow serve` to {RECEIVERS} receivers that drop \
             it. *{peers} peers*: clients that have sent one request and are only connected, besides one that sends one request after another for \
             {LISTING_SECONDS} s while all peers are listed, {} a page; shown is the longest time between two of its replies, which includes \
             that the machine has other things to do. *slow rounds* are those of the server's event loop over 2 ms meanwhile, as it counts \
             them itself.",
            size_text(bench.size),
            count_text(1000),
        ),
        peer: ALONE.to_owned(),
        layout: Layout::Costs,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let rate = |text, group| {
        rows.compared(text, Bound::AtLeast(0.98), (WATCHED, ALONE, group), |row, peer| row.times_faster(peer))
    };
    let listed = |text: &str, most, figure: fn(&Row) -> Option<f64>| Target {
        text: text.to_owned(),
        bound: Bound::AtMost(most),
        measured: rows.0.iter().find(|row| row.name == LISTED).and_then(figure),
    };
    vec![
        rate("1000 requests ahead, rate with 10 scrapes a second and a page, of that without", REQUESTS),
        rate("files, rate with 10 scrapes a second and a page, of that without", FILES),
        listed("all peers listed: rounds of the event loop over 2 ms", 0.0, Row::slow_rounds),
        listed("all peers listed: 99% of round trips meanwhile, ms", 2.0, |row| {
            Some(row.median_of(|sample| sample.p99_us)? / 1e3)
        }),
    ]
}
