//! Processes of the `tow` binary, killed at the end of the test.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, test_kill_process};
use serde_json::Value;

use super::wait_until;

/// Process whose id is in a file, if it runs.
pub fn is_running(pid_file: &Path) -> Option<Pid> {
    let pid = std::fs::read_to_string(pid_file).ok()?.trim().parse().ok().and_then(Pid::from_raw)?;
    test_kill_process(pid).is_ok().then_some(pid)
}

/// User of unprivileged runs when the tests run as root.
const NOBODY: u32 = 65_534;

/// A `tow` command with its arguments, not yet started.
pub fn tow<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tow"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The same as a user to whom file permissions apply. `folder` is for a copy of the binary that this
/// user may run, since the target folder may be closed to others.
pub fn unprivileged_tow<S: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = S>) -> Command {
    if !rustix::process::geteuid().is_root() {
        return tow(arguments);
    }
    let copy = folder.join("tow");
    if !copy.exists() {
        // By another process: a child that another test starts meanwhile would inherit the file open for writing, and it couldn't be run.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tow")).arg(&copy).status().expect("run cp");
        assert!(copied.success(), "copy the binary: {copied}");
    }
    let mut command = Command::new(copy);
    // The home directory of who runs the tests may be closed to this user.
    command.args(arguments).stdin(Stdio::null()).uid(NOBODY).gid(NOBODY).env("HOME", folder);
    command
}

/// Output of a process, read by a thread of its own so that the process never blocks.
struct Collected {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collected {
    fn of(mut stream: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 8192];
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                shared.lock().expect("no panic holds it").extend_from_slice(&piece[..count]);
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn so_far(&self) -> Vec<u8> {
        self.text.lock().expect("no panic holds it").clone()
    }

    fn whole(&mut self) -> Vec<u8> {
        if let Some(reader) = self.reader.take() {
            // Something that it has started may keep its output open.
            wait_until("its output ends", || reader.is_finished());
            reader.join().expect("the reader doesn't panic");
        }
        self.so_far()
    }
}

/// A process that is killed, by its id, when the test is over.
pub struct Process {
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

impl Process {
    /// Starts `command`.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the process");
        let stdout = Collected::of(child.stdout.take().expect("piped"));
        let stderr = Collected::of(child.stderr.take().expect("piped"));
        Self { child, stdout, stderr }
    }

    /// Starts `command` with this as standard output.
    pub fn with_output(command: &mut Command, output: Stdio) -> Self {
        let mut child = command.stdout(output).stderr(Stdio::piped()).spawn().expect("start the process");
        let stderr = Collected::of(child.stderr.take().expect("piped"));
        Self { child, stdout: Collected::of(std::io::empty()), stderr }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        // Fails if the process has ended already, which is no error.
        let _ = kill_process(self.pid(), signal);
    }

    /// Process id, which isn't reused while this value exists.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// True if it has ended.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// Standard error so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Standard output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.stdout.so_far()).into_owned()
    }

    /// Peak resident memory, in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.status_kib("VmHWM:") * 1024
    }

    fn status_kib(&self, member: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("/proc");
        let line = status.lines().find_map(|line| line.strip_prefix(member));
        let number = line.and_then(|rest| rest.trim().strip_suffix("kB")).and_then(|text| text.trim().parse().ok());
        number.unwrap_or_else(|| panic!("no {member} in /proc/PID/status"))
    }

    /// Waits until it ends by itself.
    pub fn finish(mut self) -> Outcome {
        let start = Instant::now();
        wait_until(&format!("process {} ended; it said: {}", self.pid(), self.log()), || self.ended());
        let status = self.child.wait().expect("wait");
        Outcome {
            status,
            stdout: self.stdout.whole(),
            stderr: String::from_utf8_lossy(&self.stderr.whole()).into_owned(),
            seconds: start.elapsed().as_secs_f64(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// End of a process.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub seconds: f64,
}

impl Outcome {
    /// Panics unless the exit status is `code`.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(
            self.status.code(),
            Some(code),
            "{}; stdout: {}; stderr: {}",
            self.status,
            String::from_utf8_lossy(&self.stdout),
            self.stderr
        );
        self
    }

    /// Panics unless it ended by this signal.
    #[track_caller]
    pub fn expect_signal(self, signal: Signal) -> Self {
        assert_eq!(self.status.signal(), Some(signal.as_raw()), "{}; stderr: {}", self.status, self.stderr);
        self
    }

    /// JSON object on standard output.
    #[track_caller]
    pub fn summary(&self) -> Value {
        match serde_json::from_slice(&self.stdout) {
            Ok(value) => value,
            Err(error) => panic!("{error}: {:?}; stderr: {}", String::from_utf8_lossy(&self.stdout), self.stderr),
        }
    }

    /// A number of the summary.
    #[track_caller]
    pub fn number(&self, member: &str) -> u64 {
        let summary = self.summary();
        summary[member].as_u64().unwrap_or_else(|| panic!("no number {member} in {summary}"))
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Outcome {
    Process::start(command).finish()
}

/// `tow get URL DEST --json`, to its end.
pub fn get(url: &str, destination: &Path) -> Outcome {
    run(&mut get_command(url, destination))
}

/// `tow get URL DEST --json`, not yet started.
pub fn get_command(url: &str, destination: &Path) -> Command {
    tow([OsStr::new("get"), url.as_ref(), destination.as_ref(), "--json".as_ref()])
}

/// A running `tow serve`.
pub struct Server {
    process: Process,
    endpoint: String,
}

impl Server {
    /// Serves `path` on a port that the system picks.
    pub fn start(path: &Path) -> Self {
        Self::from_command(tow([OsStr::new("serve"), path.as_ref()]).args(["--bind", "tcp://127.0.0.1:0"]))
    }

    /// Starts a `tow serve` of any kind and waits for its line on standard output.
    pub fn from_command(command: &mut Command) -> Self {
        let mut process = Process::start(command);
        wait_until("the server listens", || process.output().contains('\n') || process.ended());
        let output = process.output();
        let line = output.lines().next().unwrap_or_default();
        let endpoint = line.rsplit_once(" on ").map(|(_, endpoint)| endpoint.to_owned());
        let (true, Some(endpoint)) = (line.starts_with("serving "), endpoint) else {
            panic!("no 'serving PATH on ENDPOINT' but {line:?}; it said: {}", process.log());
        };
        Self { process, endpoint }
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Endpoint from its first line.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The URL of a path below what it serves.
    pub fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.endpoint)
    }

    /// Processor time so far, in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.pid())).expect("stat");
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        // User and system time.
        fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
    }

    /// Its TCP port.
    pub fn port(&self) -> u16 {
        let port = self.endpoint.rsplit(':').next().and_then(|port| port.parse().ok());
        port.unwrap_or_else(|| panic!("no port in {}", self.endpoint))
    }

    /// Log so far.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Panics if it has ended.
    #[track_caller]
    pub fn expect_alive(&mut self) {
        assert!(!self.process.ended(), "the server has ended; it said: {}", self.log());
    }

    /// Resident memory in KiB, as the kernel counts it, without pages of files.
    pub fn resident_kib(&self) -> u64 {
        self.process.status_kib("RssAnon:")
    }

    /// Sets its limit of open files from now on; `None` restores it.
    pub fn limit_descriptors(&self, most: Option<u64>) {
        let pid = Some(self.process.pid());
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: most.or(maximum), maximum };
        rustix::process::prlimit(pid, Resource::Nofile, limit).expect("set its limit");
    }

    /// Number of open files and sockets.
    pub fn open_descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.child.id())).expect("/proc").count()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Stops all its threads until SIGCONT. The signal alone is sent before they have stopped.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP);
        let stopped = rustix::process::waitpid(Some(self.process.pid()), WaitOptions::UNTRACED).expect("wait");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()), "the server has ended; it said: {}", self.log());
    }

    /// Sends a signal and waits for the end.
    pub fn stop(self, signal: Signal) -> Outcome {
        self.process.signal(signal);
        self.process.finish()
    }

    /// Kills it by SIGKILL.
    pub fn kill(self) {
        drop(self.process);
    }
}
