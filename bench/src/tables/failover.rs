//! The outage that a client notices when its broker is killed.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Bound, Content, Layout, Plan, Rows, Target};
use crate::Bench;
use crate::brokers::emptied;
use crate::cells::Cell;
use crate::exchange::{LIMIT, Report, SETTLE};
use crate::process::{Life, Ready, Running, Server, ServerSpec, show};
use crate::programs::Programs;
use crate::series::{Kind, Sample, Variant};
use crate::servers::free_port;

/// The client has been at it for so long when its broker is killed.
const KILLED_AFTER: Duration = Duration::from_millis(300);
/// How long it asks.
const ASKING: Duration = Duration::from_millis(600);
/// More than it can ask in that time.
const REQUESTS: &str = "2000000";

const OURS: &str = "two tow brokers";
const CELL_KILLED: &str = "two tow brokers of a cell";
const CELL_STOPPED: &str = "two tow brokers of a cell, SIGTERM";
const OURS_AGAIN: &str = "tow broker, started again";
const GUIDE: &str = "broker in C, started again, timeout 2500 ms";

/// Which brokers there are, and whose ends.
#[derive(Clone, Copy)]
struct Scenario {
    ours: bool,
    journal: bool,
    /// They share a queue in three NATS servers.
    cell: bool,
    /// By SIGKILL, rather than SIGTERM.
    killed: bool,
    /// Another broker is there already, instead of the same one being started again.
    standby: bool,
    ahead: u64,
    /// After how long without a reply a stock client asks again, and how often its workers and broker beat.
    timeout_ms: u64,
}

pub fn plan(bench: &Bench) -> Plan<'_> {
    let own =
        Scenario { ours: true, journal: false, cell: false, killed: true, standby: false, ahead: 1, timeout_ms: 0 };
    let ours = |standby, journal, ahead| Scenario { journal, standby, ahead, ..own };
    let in_cell = |killed| Scenario { cell: true, standby: true, killed, ..own };
    let stock = |standby, timeout_ms| Scenario { ours: false, standby, timeout_ms, ..own };
    let variants = [
        (Kind::Ours, OURS, ours(true, false, 1)),
        (Kind::Ours, "two tow brokers, 100 ahead", ours(true, false, 100)),
        (Kind::Ours, OURS_AGAIN, ours(false, false, 1)),
        (Kind::Ours, "tow broker --journal, started again", ours(false, true, 1)),
        (Kind::Ours, "tow broker --journal, started again, 100 ahead", ours(false, true, 100)),
        (Kind::Ours, CELL_KILLED, in_cell(true)),
        (Kind::Ours, CELL_STOPPED, in_cell(false)),
        (Kind::Peer, GUIDE, stock(false, 2500)),
        (Kind::Peer, "two brokers in C, timeout 2500 ms", stock(true, 2500)),
        (Kind::Peer, "broker in C, started again, timeout 250 ms", stock(false, 250)),
        (Kind::Peer, "two brokers in C, timeout 250 ms", stock(true, 250)),
    ]
    .into_iter()
    .map(|(kind, name, scenario)| Variant {
        name: name.to_owned(),
        kind,
        how: how(bench, scenario),
        groups: vec![String::new()],
        run: Box::new(move |_| Ok(vec![fail_over(bench, scenario)?])),
    })
    .collect();
    Plan { content: content(), variants, targets }
}

impl Scenario {
    fn broker(&self, programs: &Programs, state: &Path, port: u16) -> Result<ServerSpec> {
        let bind = format!("tcp://127.0.0.1:{port}");
        let mut command;
        if self.ours {
            command = programs.command("tow")?;
            command.args(["broker", "--bind", &bind]);
            if self.journal {
                command.arg("--journal").arg(state);
            }
        } else {
            command = programs.command("mdp_broker")?;
            command.args(["--bind", &bind, "--heartbeat-ms", &self.timeout_ms.to_string()]);
        }
        Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
    }

    /// Our worker works for all brokers; a stock one has one.
    fn workers(&self, programs: &Programs, endpoints: &[String]) -> Result<Vec<ServerSpec>> {
        let mut commands = Vec::new();
        if self.ours {
            let mut command = programs.command("tow_ends")?;
            command.args(["work", "--jobs", &self.ahead.to_string()]);
            command.args(endpoints.iter().flat_map(|endpoint| ["--connect", endpoint]));
            commands.push(command);
        } else {
            for endpoint in endpoints {
                let mut command = programs.command("zmq_worker")?;
                command.args(["--endpoint", endpoint, "--heartbeat-ms", &self.timeout_ms.to_string()]);
                commands.push(command);
            }
        }
        let spec = |command| ServerSpec { command, ready: Ready::Line, life: Life::Long };
        Ok(commands.into_iter().map(spec).collect())
    }

    fn client(&self, programs: &Programs, endpoints: &[String]) -> Result<Command> {
        let mut command;
        if self.ours {
            command = programs.command("tow_ends")?;
            command.args(["call", "--requests", REQUESTS, "--ahead", &self.ahead.to_string()]);
            command.args(["--seconds", &ASKING.as_secs_f64().to_string()]);
            command.args(endpoints.iter().flat_map(|endpoint| ["--connect", endpoint]));
        } else {
            command = programs.command("zmq_caller")?;
            command.args(["--requests", REQUESTS, "--milliseconds", &ASKING.as_millis().to_string()]);
            command.args(["--timeout-ms", &self.timeout_ms.to_string()]);
            command.args(endpoints.iter().flat_map(|endpoint| ["--endpoint", endpoint]));
        }
        Ok(command)
    }
}

fn how(bench: &Bench, scenario: Scenario) -> String {
    let programs = &bench.programs;
    let endpoints = vec!["tcp://127.0.0.1:PORT".to_owned(); if scenario.standby { 2 } else { 1 }];
    let shown = || -> Result<String> {
        let mut shown = vec![show(&scenario.broker(programs, &bench.folder.join("journal"), 0)?.command)];
        if scenario.cell {
            shown[0] += " --queue nats://... --cell bench";
            shown.insert(0, "3 nats-server with sync_interval: always".to_owned());
        }
        shown.extend(scenario.workers(programs, &endpoints)?.iter().map(|worker| show(&worker.command)));
        shown.push(show(&scenario.client(programs, &endpoints)?));
        Ok(bench.anonymous(&shown.join(" ; ")))
    };
    shown().unwrap_or_else(|why| format!("({why:#})"))
}

fn fail_over(bench: &Bench, scenario: Scenario) -> Result<Sample> {
    let (programs, logs) = (&bench.programs, bench.folder.path());
    let state = emptied(logs, "journal")?;
    let ports = [free_port()?, free_port()?];
    let ports = if scenario.standby { &ports[..] } else { &ports[..1] };
    let endpoints: Vec<String> = ports.iter().map(|port| format!("tcp://127.0.0.1:{port}")).collect();
    let cell = if scenario.cell { Some(Cell::start(bench)?) } else { None };
    let mut brokers: Vec<Server> = Vec::new();
    let start = |port: &u16| match &cell {
        Some(cell) => Server::start(cell.broker(bench, *port)?, logs),
        None => Server::start(scenario.broker(programs, &state, *port)?, logs),
    };
    for port in ports {
        brokers.push(match &cell {
            Some(cell) if brokers.is_empty() => cell.leader(bench, *port)?,
            _ => start(port)?,
        });
    }
    let workers = scenario.workers(programs, &endpoints)?;
    let workers = workers.into_iter().map(|spec| Server::start(spec, logs)).collect::<Result<Vec<_>>>()?;
    thread::sleep(SETTLE);
    let client = Running::start(scenario.client(programs, &endpoints)?, logs)?;
    thread::sleep(KILLED_AFTER);
    let first = brokers.remove(0);
    if scenario.killed {
        first.kill()?;
    } else {
        first.stop()?;
    }
    if !scenario.standby {
        brokers.push(start(ports.first().context("no port")?)?);
    }
    let finished = client.finish(LIMIT)?;
    let stores = cell.map_or_else(Vec::new, |cell| cell.nats.servers);
    for server in workers.into_iter().chain(brokers).chain(stores) {
        server.stop()?;
    }
    let report: Report = serde_json::from_str(&finished.stdout)?;
    anyhow::ensure!(report.replies == report.requests, "{} of {} replies", report.replies, report.requests);
    let pause = report.longest_pause_ms.context("no pause reported")?;
    Ok(Sample { seconds: pause / 1e3, resent: Some(report.resent), ..Sample::default() })
}

fn content() -> Content {
    Content {
        title: "A broker is killed".to_owned(),
        about: format!(
            "A client sends one request after another, or keeps 100 in flight; {} ms later its broker gets SIGKILL. Shown is the \
             longest time between two replies: until the first reply through another broker that is already running, or through the \
             same one, restarted at once. Our ends notice the lost connection, and the client sends again what has no outcome. \
             Stock ends can't notice it: the client asks again at the next endpoint when its timeout ends, and a \
             worker registers again when a broker that doesn't know it answers its heartbeat, which it sends at the same interval. \
             Every reply arrives, and once. The brokers of a cell share one queue: what was accepted is there at the next one, which waits 3 s for a \
             leader that says nothing, or takes over at once from one that ends after SIGTERM.",
            KILLED_AFTER.as_millis()
        ),
        peer: GUIDE.to_owned(),
        layout: Layout::Pauses,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let pause_ms = |text, most, name| {
        rows.compared(text, Bound::AtMost(most), (name, name, ""), |row, _| Some(row.seconds()? * 1e3))
    };
    vec![
        pause_ms("to the next of two brokers, ms", 100.0, OURS),
        pause_ms("a broker that is started again, ms", 1000.0, OURS_AGAIN),
        pause_ms("to the next broker of a cell, ms", 5000.0, CELL_KILLED),
        pause_ms("to the next broker of a cell, planned, ms", 500.0, CELL_STOPPED),
    ]
}
