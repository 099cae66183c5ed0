//! Where the processors' time of a request goes, in the broker, the worker and the client: the table of docs/internals/performance.md.
//!
//! Needs perf(1) and may need `kernel.perf_event_paranoid` of 1 or less. What a process uses for a request is counted in a run without
//! perf; how that is divided, in a second one, by where the stacks of its samples are.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Samples a second of each process.
const FREQUENCY: &str = "4000";
/// Workers get no answer to their registration, and perf says nothing when it has begun.
const SETTLE: Duration = Duration::from_millis(400);

const SENDING: &str = "kernel: sending, and waking who receives";
const RECEIVING: &str = "kernel: receiving";
const WAITING: &str = "kernel: waiting, and looking again";
const INTERRUPTS: &str = "kernel: interrupts and the rest";
const COPYING: &str = "copying and comparing bytes";
const CORE: &str = "own: numbers, services, workers";
const RECORDS: &str = "own: records and frames, in and out";
const OTHER: &str = "own: the rest";
const PARTS: [&str; 8] = [SENDING, RECEIVING, WAITING, INTERRUPTS, COPYING, RECORDS, CORE, OTHER];
const PROCESSES: [&str; 3] = ["broker", "worker", "client"];

/// Where the processors' time of a request goes.
#[derive(Parser)]
struct Arguments {
    /// The tow to look at
    #[arg(long)]
    tow: PathBuf,
    /// Requests in flight
    #[arg(long, default_value_t = 1000)]
    ahead: u64,
    /// Bytes of a body
    #[arg(long, default_value_t = 30)]
    size: u64,
    #[arg(long, default_value_t = 3_000_000)]
    requests: u64,
    /// Each figure is the median of this many
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A process that is killed when it goes out of scope.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Microseconds of a request, by process and part; and requests a second.
struct Profile {
    parts: BTreeMap<(&'static str, &'static str), f64>,
    per_second: f64,
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir()?;
    let profiles = (0..arguments.runs).map(|_| profile(&arguments, folder.path())).collect::<Outcome<Vec<_>>>()?;
    let of = |process: &str, part: &str| {
        let all = |profile: &Profile| {
            let counts =
                profile.parts.iter().filter(|((of, at), _)| *of == process && (part.is_empty() || *at == part));
            // The sum of nothing is -0.
            counts.map(|(_, us)| us).sum::<f64>() + 0.0
        };
        median(profiles.iter().map(all).collect())
    };
    let rate = median(profiles.iter().map(|profile| profile.per_second).collect());
    println!("{} bytes, {} ahead: {rate:.0} requests a second\n", arguments.size, arguments.ahead);
    println!("| us a request | {} |\n|---|---|---|---|", PROCESSES.join(" | "));
    for part in PARTS {
        let figures = PROCESSES.map(|process| format!("{:.3}", of(process, part)));
        println!("| {part} | {} |", figures.join(" | "));
    }
    println!("| **all** | {} |", PROCESSES.map(|process| format!("**{:.3}**", of(process, ""))).join(" | "));
    Ok(())
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

fn profile(arguments: &Arguments, folder: &Path) -> Outcome<Profile> {
    let tow = |options: &[&str]| {
        let mut command = Command::new(&arguments.tow);
        command.args(options).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    let mut broker = Running(tow(&["broker", "--bind", "tcp://127.0.0.1:0"]).spawn()?);
    let mut line = String::new();
    BufReader::new(broker.0.stdout.as_mut().ok_or("no output")?).read_line(&mut line)?;
    let endpoint = line.split_whitespace().last().ok_or("no endpoint")?;
    let worker = Running(tow(&["work", "echo", "--echo", "--connect", endpoint]).spawn()?);
    thread::sleep(SETTLE);
    let counts = [arguments.requests, arguments.ahead, arguments.size].map(|count| count.to_string());
    let [count, ahead, size] = counts.each_ref().map(String::as_str);
    let load = ["call", "echo", "--connect", endpoint, "--json", "--count", count, "--ahead", ahead, "--size", size];

    let both = [broker.0.id(), worker.0.id()];
    let before = both.map(cpu_us);
    let report: Value = serde_json::from_slice(&tow(&load).output()?.stdout)?;
    let figure = |name: &str| report.get(name).and_then(Value::as_f64).ok_or_else(|| format!("no {name} in {report}"));
    let requests = figure("replies")?;
    let [broker_us, worker_us] = [0, 1].map(|index| (cpu_us(both[index]) - before[index]) / requests);
    let used = [broker_us, worker_us, figure("cpu_seconds")? * 1e6 / requests];

    let data = PROCESSES.map(|process| folder.join(process));
    let record = |to: &Path| {
        let mut command = Command::new("perf");
        command.args(["record", "--quiet", "-g", "-F", FREQUENCY, "-o"]).arg(to);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut watching = Vec::new();
    for (pid, to) in both.iter().zip(&data) {
        watching.push(Running(record(to).args(["-p", &pid.to_string()]).spawn()?));
    }
    thread::sleep(SETTLE);
    let status = record(&data[2]).arg("--").arg(&arguments.tow).args(load).status()?;
    if !status.success() {
        return Err(format!("perf and the load under it: {status}").into());
    }
    for mut perf in watching {
        kill_process(Pid::from_child(&perf.0), Signal::INT)?;
        perf.0.wait()?;
    }
    let mut parts = BTreeMap::new();
    for ((process, data), us) in PROCESSES.into_iter().zip(&data).zip(used) {
        let samples = samples(data)?;
        let all: u64 = samples.values().sum();
        for (part, count) in samples {
            parts.insert((process, part), us * count as f64 / all.max(1) as f64);
        }
    }
    Ok(Profile { parts, per_second: figure("per_second")? })
}

/// Microseconds that the threads of a process have run.
fn cpu_us(pid: u32) -> f64 {
    let of_thread = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.filter_map(of_thread).sum::<f64>() / 1e3
}

/// How many of a process's samples are in which part.
fn samples(data: &Path) -> Outcome<BTreeMap<&'static str, u64>> {
    let mut command = Command::new("perf");
    command.args(["script", "-F", "ip,sym,dso", "-i"]).arg(data).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut perf = Running(command.spawn()?);
    let mut text = String::new();
    perf.0.stdout.take().ok_or("no output")?.read_to_string(&mut text)?;
    let mut samples = BTreeMap::new();
    for stack in text.split("\n\n").map(str::trim).filter(|stack| !stack.is_empty()) {
        *samples.entry(part_of(stack)).or_default() += 1;
    }
    if samples.is_empty() { Err("perf saw nothing: is kernel.perf_event_paranoid over 1?".into()) } else { Ok(samples) }
}

/// The part of a stack that it was in, the innermost function first, a line each.
fn part_of(stack: &str) -> &'static str {
    let has = |names: &[&str]| names.iter().any(|name| stack.contains(name));
    let innermost = stack.lines().next().unwrap_or_default();
    // The kernel's half of the addresses.
    let in_kernel = innermost.trim_start().starts_with("ffff");
    let own = || stack.lines().find(|line| line.contains("towpath_")).unwrap_or(innermost);
    if in_kernel {
        return match () {
            () if has(&["sendmsg", "sendto"]) => SENDING,
            () if has(&["recvfrom", "recvmsg"]) => RECEIVING,
            () if has(&["epoll", "sched_yield"]) => WAITING,
            () => INTERRUPTS,
        };
    }
    if innermost.contains("libc") {
        return COPYING;
    }
    if innermost.contains("vdso") {
        return WAITING;
    }
    let line = own();
    match () {
        () if line.contains("towpath_broker::core") => CORE,
        () if ["::wire::", "inbound", "outbound", "on_block", "on_message", "towpath_zmtp", "towpath_sockets"]
            .iter()
            .any(|name| line.contains(name)) =>
        {
            RECORDS
        }
        () => OTHER,
    }
}
