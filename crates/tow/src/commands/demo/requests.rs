//! Second half of the demo: requests through a broker and four workers, while a worker and the broker are killed.

use super::running::{Processes, Running};
use super::this_program;
use crate::cli::exit::Failure;
use crate::cli::output::print_line;
use crate::cli::progress::human_bytes;
use crate::runtime::rlimits::usage_of;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use towpath_client::client::{CallOptions, Client, ClientOptions, Completed};
use towpath_requests::numbered::Status;

pub(super) const SERVICE: &str = "echo";
const WORKERS: usize = 4;

/// Requests in flight.
pub(super) const AHEAD: u64 = 1_000;

/// Time without a reply after which the demo fails.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends the requests and accounts for every reply.
pub fn run(processes: &Processes, folder: &Path, requests: u64) -> Result<(), Failure> {
    let journal = folder.join("journal");
    print_line(format_args!("1. tow broker --journal {}", journal.display()))?;
    let (broker, endpoint) = start_broker(processes, &journal, "tcp://127.0.0.1:0")?;
    print_line(format_args!("   broker on {endpoint}"))?;
    print_line(format_args!("2. {WORKERS} times tow work {SERVICE} --echo --connect {endpoint}"))?;
    let workers = (0..WORKERS).map(|_| start_worker(processes, &endpoint)).collect::<Result<Vec<_>, _>>()?;
    print_line(format_args!(
        "3. {requests} requests, {AHEAD} ahead; a worker is killed after a third of them, the broker after a half"
    ))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let mut load = Load {
        replies: Replies::new(requests)?,
        requests,
        processes,
        journal: &journal,
        endpoint: &endpoint,
        broker,
        workers,
        restart: None,
    };
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = load.run() => outcome,
            () = processes.interrupted() => Err(Failure::failed("interrupted")),
        }
    })?;
    report(&load, &outcome)
}

fn start_broker(processes: &Processes, journal: &Path, endpoint: &str) -> Result<(Running, String), Failure> {
    let mut broker = this_program()?;
    broker.args(["broker", "--bind", endpoint, "--journal"]).arg(journal);
    broker.arg("--admin-socket").arg(journal.with_extension("admin"));
    processes.start_listening(&mut broker)
}

fn start_worker(processes: &Processes, endpoint: &str) -> Result<Running, Failure> {
    let mut worker = this_program()?;
    worker.args(["work", SERVICE, "--echo", "--jobs", "64", "--connect", endpoint]);
    processes.start(worker.env("TOW_LOG", "error").stdout(Stdio::null()))
}

/// Which requests have their reply.
pub(super) struct Replies(Vec<bool>);

impl Replies {
    /// None of so many.
    pub fn new(requests: u64) -> Result<Replies, Failure> {
        Ok(Replies(vec![false; usize::try_from(requests).map_err(Failure::failed)?]))
    }

    /// Checks that each request has exactly one reply, its own.
    pub fn account(&mut self, status: Status, body: &[u8]) -> Result<(), Failure> {
        if !status.is_ok() {
            return Err(Failure::failed(format!("a request failed: {status}: {}", String::from_utf8_lossy(body))));
        }
        let number = std::str::from_utf8(body).ok().and_then(|text| text.parse::<usize>().ok());
        let Some(replied) = number.and_then(|number| self.0.get_mut(number)) else {
            return Err(Failure::failed("a reply belongs to no request"));
        };
        if std::mem::replace(replied, true) {
            return Err(Failure::failed("a request got two replies"));
        }
        Ok(())
    }

    /// How many have one.
    pub fn count(&self) -> usize {
        self.0.iter().filter(|replied| **replied).count()
    }
}

struct Load<'a> {
    replies: Replies,
    requests: u64,
    processes: &'a Processes,
    journal: &'a Path,
    endpoint: &'a str,
    broker: Running,
    workers: Vec<Running>,
    /// When the broker was restarted, and how long the first reply took from then.
    restart: Option<(Instant, Option<Duration>)>,
}

struct Outcome {
    seconds: f64,
    resent: u64,
}

impl Load<'_> {
    async fn run(&mut self) -> Result<Outcome, Failure> {
        let endpoint = self.endpoint.parse().map_err(Failure::failed)?;
        let client = Client::connect(&[endpoint], ClientOptions::default()).map_err(Failure::failed)?;
        let bar = ProgressBar::new(self.requests).with_finish(ProgressFinish::AndClear);
        if let Ok(style) = ProgressStyle::with_template("   {wide_bar} {pos}/{len} {per_sec}") {
            bar.set_style(style);
        }
        let started = Instant::now();
        let (mut sent, mut done, mut completed) = (0, 0, Vec::new());
        while done < self.requests {
            while sent < self.requests && sent - done < AHEAD {
                client.send(SERVICE, sent.to_string(), CallOptions::default()).await.map_err(Failure::failed)?;
                sent += 1;
            }
            match tokio::time::timeout(REPLY_TIMEOUT, client.receive_many(&mut completed)).await {
                Ok(received) if received > 0 => {}
                _ => {
                    return Err(Failure::failed(format!(
                        "no reply for {REPLY_TIMEOUT:?}: {}",
                        client.status().failure
                    )));
                }
            }
            if let Some((since, None)) = self.restart {
                self.restart = Some((since, Some(since.elapsed())));
            }
            for Completed { status, body, .. } in completed.drain(..) {
                self.replies.account(status, body.single().unwrap_or_default())?;
                done += 1;
                self.inject_crashes(&bar, done)?;
            }
            bar.set_position(done);
        }
        bar.finish_and_clear();
        let seconds = started.elapsed().as_secs_f64();
        let resent = client.status().counters.resent;
        client.close().await;
        Ok(Outcome { seconds, resent })
    }

    /// Kills a worker or the broker after certain numbers of replies.
    fn inject_crashes(&mut self, bar: &ProgressBar, done: u64) -> Result<(), Failure> {
        if done == self.requests / 3 {
            bar.suspend(|| {
                print_line(format_args!("   after {done} replies a worker is killed, and another one started"))
            })?;
            if let Some(worker) = self.workers.first_mut() {
                worker.crash();
                *worker = start_worker(self.processes, self.endpoint)?;
            }
        }
        if done == self.requests / 2 {
            bar.suspend(|| {
                print_line(format_args!(
                    "   after {done} replies the broker is killed, and started again on its journal"
                ))
            })?;
            self.broker.crash();
            (self.broker, _) = start_broker(self.processes, self.journal, self.endpoint)?;
            self.restart = Some((Instant::now(), None));
        }
        Ok(())
    }
}

fn report(load: &Load<'_>, outcome: &Outcome) -> Result<(), Failure> {
    let broker = usage_of(load.broker.child.id());
    let accounted = load.replies.count();
    print_line("")?;
    print_line(format_args!("{accounted} of {} requests have their reply, each exactly one", load.requests))?;
    print_line(format_args!(
        "{:.0} a second, each in the journal before it was replied to; {} were sent again",
        load.requests as f64 / outcome.seconds,
        outcome.resent
    ))?;
    if let Some((_, Some(silence))) = load.restart {
        print_line(format_args!(
            "the first reply came {:.0} ms after the new broker listened",
            silence.as_secs_f64() * 1e3
        ))?;
    }
    print_line(format_args!(
        "the new broker used {:.2} s of CPU and at most {} of memory",
        broker.cpu_seconds,
        human_bytes(broker.peak_memory_bytes)
    ))
}
