//! Starting, measuring and ending the programs under test. Each process that is started here is waited for, or killed by its id.
//!
//! CPU time comes from two places. While a process runs, its CPU clock is read, which is exact to nanoseconds; when it has ended, the
//! system's account of waited-for children grows by what it and its own children used. The bench has one thread, so
//! the difference around a wait belongs to the process that was waited for.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// How long a server may take to say that it is ready.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a server may take to end when asked to.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long a program may take.
const RUN_LIMIT: Duration = Duration::from_secs(120);

/// A server under test: what to run and how it says that it accepts connections.
pub struct ServerSpec {
    pub command: Command,
    pub ready: Ready,
    pub life: Life,
}

/// Lifetime of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Serves until it is ended.
    Long,
    /// The same, but it takes seconds to notice that it should end: it is killed.
    Killed,
    /// Each client gets a process of its own, whose memory can't be known when it is over.
    Forks,
    /// Ends after the first client.
    Once,
}

/// How a server is known to accept connections.
pub enum Ready {
    /// Prints a line on standard output that ends in its port.
    Line,
    /// Was given this port and accepts a connection on it.
    Port(u16),
    /// The same in a network namespace of its own: it has this port.
    Listening(u16),
    /// Accepts no connection, and prints a line.
    Said,
}

/// A server that runs. It is killed when dropped.
pub struct Server {
    child: Child,
    pub port: u16,
    life: Life,
    cpu_at_start: f64,
    cpu_at_end: Option<f64>,
    log: PathBuf,
}

/// Resources that a server used since it was ready.
#[derive(Clone, Copy, Debug)]
pub struct ServerUsage {
    pub cpu_seconds: f64,
    pub peak_bytes: Option<u64>,
}

impl Server {
    /// Starts a server and waits until it accepts connections. Its standard error goes to a file below `logs`.
    pub fn start(mut spec: ServerSpec, logs: &Path) -> Result<Self> {
        let program = show_program(&spec.command);
        let log = logs.join(format!("{program}.log"));
        spec.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let child = spec.command.spawn().with_context(|| format!("{program} can't be started"))?;
        let mut server = Self { child, port: 0, life: spec.life, cpu_at_start: 0.0, cpu_at_end: None, log };
        let ready = match spec.ready {
            Ready::Line => server.await_line().and_then(|line| port_in(&line)),
            Ready::Port(port) => server.await_port(port, |_| TcpStream::connect(("127.0.0.1", port)).is_ok()),
            Ready::Listening(port) => server.await_port(port, |id| listens(id, port)),
            Ready::Said => server.await_line().map(|_| 0),
        };
        server.port =
            ready.map_err(|error| anyhow!("{program} did not get ready: {error:#}; its log: {}", server.log_tail()))?;
        server.start_counting();
        Ok(server)
    }

    fn await_line(&mut self) -> Result<String> {
        let stdout = self.child.stdout.take().context("no standard output")?;
        let (sender, receiver) = mpsc::channel();
        // Reads to the end, so that a server that prints more never blocks; ends with the server.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        receiver.recv_timeout(START_LIMIT).map_err(|_| anyhow!("no line on standard output"))
    }

    fn await_port(&mut self, port: u16, is_ready: impl Fn(u32) -> bool) -> Result<u16> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            if is_ready(self.child.id()) {
                return Ok(port);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("ended with {status}");
            }
            thread::sleep(Duration::from_millis(2));
        }
        bail!("port {port} accepts no connection")
    }

    /// The end of what the server wrote to standard error.
    pub fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let tail = log.get(log.len().saturating_sub(1000)..).unwrap_or(&log);
        String::from_utf8_lossy(tail).into_owned()
    }

    /// Everything before this call is not counted as the server's CPU time.
    pub fn start_counting(&mut self) {
        self.cpu_at_start = self.cpu_now();
    }

    /// Everything after this call isn't either.
    pub fn stop_counting(&mut self) {
        self.cpu_at_end = Some(self.cpu_now());
    }

    /// CPU seconds of the server and its running children since they began.
    pub fn cpu_now(&self) -> f64 {
        process_tree(self.child.id()).into_iter().map(cpu_clock).sum()
    }

    /// Ends the server and says what it used.
    pub fn stop(mut self) -> Result<ServerUsage> {
        let peak_bytes = matches!(self.life, Life::Long | Life::Killed)
            .then(|| process_tree(self.child.id()).into_iter().map(peak_bytes).sum());
        let before = children_cpu()?;
        if self.life == Life::Once {
            wait_until(&mut self.child, STOP_LIMIT)?;
        }
        match self.child.try_wait()? {
            Some(status) if self.life == Life::Once && status.success() => {}
            Some(status) => bail!("the server ended early with {status}: {}", self.log_tail()),
            None => {
                let signal = if self.life == Life::Killed { Signal::KILL } else { Signal::TERM };
                kill_process(Pid::from_child(&self.child), signal)?;
                if wait_until(&mut self.child, STOP_LIMIT)?.is_none() {
                    self.child.kill()?;
                    self.child.wait()?;
                }
            }
        }
        let cpu_at_end = self.cpu_at_end.unwrap_or(children_cpu()? - before);
        Ok(ServerUsage { cpu_seconds: (cpu_at_end - self.cpu_at_start).max(0.0), peak_bytes })
    }
}

impl Server {
    /// Ends the server without a warning.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A server with children of its own ends them when it is asked to, not when it is killed.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            if !matches!(wait_until(&mut self.child, STOP_LIMIT), Ok(Some(_))) {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

/// Whether somebody listens on a port in the network namespace of a process.
fn listens(process: u32, port: u16) -> bool {
    let sockets = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    let listening = format!(":{port:04X} 00000000:0000 0A ");
    sockets.lines().any(|line| line.contains(&listening))
}

/// A program that has run to its end.
pub struct Finished {
    /// From before it was started to its end.
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub stdout: String,
}

/// Runs a program to its end. It must print less than a pipe holds.
pub fn run(command: Command, logs: &Path) -> Result<Finished> {
    Running::start(command, logs)?.finish(RUN_LIMIT)
}

/// A program that is waited for. It is killed when dropped.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    shown: String,
    log: PathBuf,
    begin: Instant,
    cpu_before: f64,
}

impl Running {
    pub fn start(command: Command, logs: &Path) -> Result<Self> {
        Self::spawn(command, logs, Stdio::null())
    }

    fn spawn(mut command: Command, logs: &Path, stdin: Stdio) -> Result<Self> {
        let log = logs.join("receiver.log");
        let shown = show(&command);
        command.stdin(stdin).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let (cpu_before, begin) = (children_cpu()?, Instant::now());
        let mut child = command.spawn().with_context(|| format!("{shown} can't be started"))?;
        let stdout = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, stdout, shown, log, begin, cpu_before })
    }

    /// Starts a program that says when it is connected, and waits until then. It begins at [`Self::go`]; what CPU time it took before
    /// isn't counted.
    pub fn connect(command: Command, logs: &Path) -> Result<Self> {
        let mut running = Self::spawn(command, logs, Stdio::piped())?;
        let mut line = String::new();
        running.stdout.read_line(&mut line)?;
        if line != "connected\n" {
            bail!("{} did not connect: {}", running.shown, fs::read_to_string(&running.log)?.trim());
        }
        running.cpu_before += cpu_clock(running.child.id());
        Ok(running)
    }

    /// Lets a program begin that is connected.
    pub fn go(mut self) -> Result<Self> {
        let mut stdin = self.child.stdin.take().context("it needs no start")?;
        stdin.write_all(b"go\n")?;
        Ok(self)
    }

    /// Waits for its end; kills it after the limit. Its CPU time has that of all other children in it that have been waited for since
    /// it was started.
    pub fn finish(mut self, limit: Duration) -> Result<Finished> {
        let shown = &self.shown;
        let Some(status) = wait_until(&mut self.child, limit)? else {
            self.child.kill()?;
            self.child.wait()?;
            bail!("{shown} took longer than {} s", limit.as_secs());
        };
        let seconds = self.begin.elapsed().as_secs_f64();
        let cpu_seconds = children_cpu()? - self.cpu_before;
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout)?;
        if !status.success() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            bail!("{shown} ended with {status}: {}", log.trim());
        }
        Ok(Finished { seconds, cpu_seconds, stdout })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A command as one would type it, programs by their names.
pub fn show(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)));
    let ours = variables.filter(|(name, _)| name.starts_with("TOW_"));
    let mut shown: String = ours.map(|(name, value)| format!("{name}={value} ")).collect();
    shown.push_str(&show_program(command));
    for argument in command.get_args() {
        shown.push(' ');
        shown.push_str(&argument.to_string_lossy());
    }
    shown
}

/// The port that a line ends in.
fn port_in(line: &str) -> Result<u16> {
    let port = line.rsplit([':', ' ']).next().unwrap_or_default();
    port.trim().parse().with_context(|| format!("no port in {line:?}"))
}

fn show_program(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// Waits for a child without polling, so that its time is exact. `None`: it still runs.
pub fn wait_until(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left)?;
        let mut ready = [PollFd::new(&handle, PollFlags::IN)];
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(child.wait()?)),
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
    }
}

/// CPU seconds of all children that have been waited for.
fn children_cpu() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// A process and those below it that run.
pub fn process_tree(root: u32) -> Vec<u32> {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&pid) = tree.get(next) {
        next += 1;
        // Each thread has those that it started.
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            tree.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    tree
}

pub fn cpu_clock(pid: u32) -> f64 {
    let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
    nix::time::clock_getcpuclockid(pid)
        .and_then(nix::time::clock_gettime)
        .map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}

/// CPU seconds of those below a process that it has waited for.
pub fn reaped_cpu(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks: f64 = fields.split(' ').skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Lets [`peak_bytes`] begin again.
pub fn reset_peak(pid: u32) {
    // It fails if the process has ended.
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// Memory that a process has resident.
pub fn resident_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmRSS:")
}

/// The most memory that a process has had resident.
pub fn peak_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmHWM:")
}

fn status_bytes(pid: u32, member: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix(member))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}
