//! Starts `tow broker`, `tow work` and `tow call`.

use std::process::Command;

use rustix::process::Signal;

use super::process::{Outcome, Process, run, tow};
use super::wait_until;

/// Running `tow broker`.
pub struct Broker {
    process: Process,
    endpoint: String,
}

impl Broker {
    /// A broker on a free port.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A broker with these arguments; by default on a free port with a short grace time.
    pub fn with(arguments: &[&str]) -> Self {
        let mut command = tow(["broker"]);
        for (option, value) in [("--bind", "tcp://127.0.0.1:0"), ("--grace", "0.1")] {
            if !arguments.contains(&option) {
                command.args([option, value]);
            }
        }
        Self::from_command(command.args(arguments))
    }

    /// A broker of any kind; waits for its line on standard output.
    pub fn from_command(command: &mut Command) -> Self {
        Self::try_start(command).unwrap_or_else(|log| panic!("no 'broker on ENDPOINT'; it said: {log}"))
    }

    /// The same; its log is the error if it ends instead.
    pub fn try_start(command: &mut Command) -> Result<Self, String> {
        let mut process = Process::start(command);
        wait_until("the broker listens", || process.output().contains('\n') || process.ended());
        let output = process.output();
        let endpoint = output.lines().next().and_then(|line| line.strip_prefix("broker on ")).map(str::to_owned);
        let Some(endpoint) = endpoint else { return Err(process.log()) };
        Ok(Self { process, endpoint })
    }

    /// Endpoint from its first line.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        let port = self.endpoint.rsplit(':').next().and_then(|port| port.parse().ok());
        port.unwrap_or_else(|| panic!("no port in {}", self.endpoint))
    }

    /// Log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Peak resident memory, in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.process.peak_memory()
    }

    /// Bytes written so far to files and sockets. Received large bodies are spliced and don't count as read.
    pub fn bytes_written(&self) -> u64 {
        let counts = std::fs::read_to_string(format!("/proc/{}/io", self.process.pid())).expect("/proc/PID/io");
        let bytes = counts.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse().ok());
        bytes.unwrap_or_else(|| panic!("no wchar in {counts:?}"))
    }

    /// Waits until it ends.
    pub fn finish(self) -> Outcome {
        self.process.finish()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }
}

fn connecting(subcommand: &str, brokers: &[&Broker]) -> Command {
    let mut command = tow([subcommand]);
    for broker in brokers {
        command.args(["--connect", broker.endpoint()]);
    }
    command
}

/// `tow work SERVICE` with these arguments, connected to all of these brokers.
pub fn work(brokers: &[&Broker], arguments: &[&str]) -> Process {
    let worker = Process::start(connecting("work", brokers).args(arguments));
    let connected = || worker.log().matches("connected to a broker").count();
    wait_until("the worker is connected", || connected() >= brokers.len());
    worker
}

/// Workers of a service that the broker knows.
pub fn workers_of(broker: &Broker, service: &str) -> Vec<serde_json::Value> {
    let workers = run(&mut call(&[broker], &["mmi.workers", service])).expect_code(0).stdout;
    serde_json::from_slice(&workers).expect("JSON")
}

/// Waits until a load test runs: a worker holds requests and has replied to those queued before now.
pub fn await_progress(broker: &Broker, service: &str) {
    let is_given = || {
        let workers = workers_of(broker, service);
        workers.iter().any(|worker| worker["held"].as_u64().expect("a number") > 0)
    };
    wait_until("a worker has requests", is_given);
    run(&mut call(&[broker], &[service, "behind them"])).expect_code(0);
}

/// `tow call SERVICE` with these arguments, not yet started.
pub fn call(brokers: &[&Broker], arguments: &[&str]) -> Command {
    let mut command = connecting("call", brokers);
    command.args(arguments);
    command
}
