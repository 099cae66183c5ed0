//! Commands: their start, input, output and end.

use super::guard::{Guard, Watched};
use crate::cli::auth_args::PASSWORD;
use crate::cli::body_io::{BodyBuilder, PIECE_BYTES, ReadBodyError, SpoolError, open_large};
use crate::cli::service_name::ServiceName;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use towpath_buffers::PageBuffer;
use towpath_client::worker::{Request, WorkError};
use towpath_requests::Body;

/// Bytes at the end of a command's standard error that go into the reason of a failure.
const STDERR_BYTES: usize = 2048;

/// How long the output of a command may stay open after its end: other processes, which it has started, may never close it.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Most bytes that are read after that: what a pipe can hold, so all that the command has written.
const PIPE_BYTES_MAX: usize = 1024 * 1024;

/// From SIGTERM to SIGKILL.
const TERM_TIMEOUT: Duration = Duration::from_secs(3);

/// How often to look whether a process group is gone.
const GROUP_INTERVAL: Duration = Duration::from_millis(50);

/// Exit status of a command that may succeed later: EX_TEMPFAIL of sysexits.h.
const TEMPORARY_FAILURE: i32 = 75;

/// Exit statuses by which shells, env, nice and the like say that there is no such command, or that it can't be started.
const NOT_STARTED: [i32; 2] = [126, 127];

/// How long a command is tried that can't be started for a request of a stock broker, which takes none back. It may be being replaced.
const STOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between these attempts.
const STOCK_PAUSE: Duration = Duration::from_millis(100);

/// The command didn't start, which isn't the request's fault.
fn not_started(reason: String) -> WorkError {
    tracing::warn!(reason, "cannot start the command: the request is given back, and this worker rests");
    WorkError::GiveBack(reason)
}

/// Unix time of a moment to come, in seconds.
fn unix_seconds(at: Instant) -> u64 {
    let at = SystemTime::now() + at.saturating_duration_since(Instant::now());
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Command to run for each request.
pub struct Job {
    command: Vec<OsString>,
    service: ServiceName,
    spool: Option<PathBuf>,
    guard: Arc<Guard>,
    /// Commands that may run, including those of cancelled requests that haven't ended yet.
    slots: Arc<Semaphore>,
    slots_max: u32,
}

impl Job {
    /// At most `most` commands run at a time.
    pub fn new(
        command: Vec<OsString>,
        service: ServiceName,
        spool: Option<PathBuf>,
        guard: Arc<Guard>,
        most: usize,
    ) -> Arc<Job> {
        let most = most.min(Semaphore::MAX_PERMITS).try_into().unwrap_or(u32::MAX);
        let slots = Arc::new(Semaphore::new(most as usize));
        Arc::new(Job { command, service, spool, guard, slots, slots_max: most })
    }

    /// Waits until no command runs, not even one that is being terminated.
    pub async fn all_ended(&self) {
        let _ = self.slots.acquire_many(self.slots_max).await;
    }

    fn start(&self, program: &OsStr, rest: &[OsString], request: &Request) -> io::Result<Child> {
        let large = open_large(request.body()).transpose()?;
        Command::new(program)
            .args(rest)
            .env_remove(PASSWORD)
            .env("TOW_SERVICE", OsStr::from_bytes(self.service.as_ref()))
            .env("TOW_ATTEMPT", request.attempt().to_string())
            .envs(request.id().map(|id| ("TOW_REQUEST", id.to_string())))
            .envs(request.expires().map(|expires| ("TOW_DEADLINE", unix_seconds(expires).to_string())))
            .stdin(large.map_or_else(Stdio::piped, Stdio::from))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own can be killed as a whole, and gets no signals from the terminal.
            .process_group(0)
            .spawn()
    }

    /// Runs the command for a request.
    pub async fn run(&self, request: Request) -> Result<Body, WorkError> {
        let failed = WorkError::Failed;
        let Some((program, rest)) = self.command.split_first() else { return Err(failed("no command".to_owned())) };
        let name = program.display();
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(|error| failed(error.to_string()))?;
        let began = Instant::now();
        let mut child = loop {
            match self.start(program, rest, &request) {
                Ok(child) => break child,
                Err(_) if !request.may_be_given_back() && began.elapsed() < STOCK_TIMEOUT => {
                    tokio::time::sleep(STOCK_PAUSE).await;
                }
                Err(error) => return Err(not_started(format!("{name}: {error}"))),
            }
        };
        let (input, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut command = Running::new(child, &self.guard, slot);
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(failed(format!("{name}: no output pipe")));
        };
        let feeding = async {
            if let Some(input) = input {
                feed(input, request.body()).await;
            }
            std::future::pending::<Infallible>().await
        };
        let (open, closing) = watch::channel(());
        let output = async {
            let reply = read_reply(Output::new(stdout, closing.clone()), self.spool.clone());
            tokio::join!(reply, read_end(Output::new(stderr, closing)))
        };
        let working = async {
            tokio::pin!(output);
            tokio::select! {
                output = &mut output => (output, command.ended().await),
                status = command.ended() => match tokio::time::timeout(OUTPUT_TIMEOUT, &mut output).await {
                    Ok(output) => (output, status),
                    Err(_) => {
                        tracing::warn!(command = %name, "the command has ended, and another process keeps its output open: not waiting for that");
                        drop(open);
                        (output.await, status)
                    }
                },
            }
        };
        // A command may end without having read its input.
        let ((reply, errors), status) = tokio::select! {
            ended = working => ended,
            never = feeding => match never {},
        };
        // Failed output may have ended the command, so it comes before the exit status.
        let reply = reply.map_err(|error| {
            tracing::warn!(command = %name, %error, "cannot read the output of the command");
            failed(format!("{name}: its output: {error}"))
        })?;
        let status = status.map_err(|error| failed(format!("{name}: {error}")))?;
        if !status.success() {
            let errors = String::from_utf8_lossy(&errors);
            let errors = errors.trim();
            let reason = format!("{name}: {status}{}{errors}", if errors.is_empty() { "" } else { ": " });
            if status.code().is_some_and(|code| NOT_STARTED.contains(&code)) {
                return Err(not_started(reason));
            }
            tracing::info!(command = %name, %status, stderr = errors, "the command failed");
            return Err(if status.code() == Some(TEMPORARY_FAILURE) {
                WorkError::TryLater(reason)
            } else {
                failed(reason)
            });
        }
        Ok(reply)
    }
}

/// A command that runs. Dropped before its end, it is terminated: its reply isn't wanted any more.
struct Running(Option<Parts>);

struct Parts {
    child: Child,
    /// `None` only if it has ended at once.
    watched: Option<Watched>,
    _slot: OwnedSemaphorePermit,
}

impl Running {
    fn new(child: Child, guard: &Arc<Guard>, slot: OwnedSemaphorePermit) -> Running {
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Running(Some(Parts { child, watched: group.map(|group| guard.watch(group)), _slot: slot }))
    }

    /// Waits for the end of the command, though not of what it leaves behind. Cancel-safe.
    async fn ended(&mut self) -> io::Result<ExitStatus> {
        let Some(parts) = &mut self.0 else { return Err(io::Error::other("it has ended before")) };
        let status = parts.child.wait().await;
        self.0 = None;
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Without a runtime this process ends, and the guard does it.
        if let (Some(parts), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(parts.terminate());
        }
    }
}

impl Parts {
    /// Sends SIGTERM to the process group, and SIGKILL if it isn't gone soon.
    async fn terminate(mut self) {
        let Some(group) = self.watched.as_ref().map(Watched::group) else { return };
        let _ = kill_process_group(group, Signal::TERM);
        let gone = async {
            // As long as it isn't waited for, the group is there.
            let _ = self.child.wait().await;
            while test_kill_process_group(group).is_ok() {
                tokio::time::sleep(GROUP_INTERVAL).await;
            }
        };
        if tokio::time::timeout(TERM_TIMEOUT, gone).await.is_err() {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Output of a command. It ends with the pipe, or after the command if another process keeps the pipe open.
struct Output<R> {
    pipe: R,
    /// Without a sender, what is in the pipe is the end.
    closing: watch::Receiver<()>,
    left: usize,
}

impl<R: AsyncRead + Unpin> Output<R> {
    fn new(pipe: R, closing: watch::Receiver<()>) -> Output<R> {
        Output { pipe, closing, left: PIPE_BYTES_MAX }
    }

    /// Reads some bytes; none at the end.
    async fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let is_closing = self.closing.has_changed().is_err();
        if is_closing && self.left == 0 {
            return Ok(0);
        }
        let bytes = tokio::select! {
            biased;
            bytes = self.pipe.read(piece) => bytes?,
            _ = self.closing.changed() => 0,
        };
        if is_closing {
            self.left = self.left.saturating_sub(bytes);
        }
        Ok(bytes)
    }
}

/// Writes the request to the command, as much as it reads.
async fn feed(mut input: ChildStdin, body: &Body) {
    for frame in body.frames().into_iter().flatten() {
        if input.write_all(frame).await.is_err() {
            return;
        }
    }
}

/// Reads a reply. Large ones are written to the spool by other threads: this one has heartbeats and other requests to answer.
async fn read_reply(mut from: Output<impl AsyncRead + Unpin>, folder: Option<PathBuf>) -> Result<Body, ReadBodyError> {
    let mut collector = BodyBuilder::new(folder);
    let mut piece = PageBuffer::zeroed(PIECE_BYTES);
    loop {
        match from.read(&mut piece).await? {
            0 => return Ok(collector.finish()),
            bytes if !collector.needs_disk(bytes) => collector.push(&piece[..bytes])?,
            bytes => {
                let pushed = tokio::task::spawn_blocking(move || {
                    collector.push(&piece[..bytes])?;
                    Ok::<_, SpoolError>((collector, piece))
                });
                (collector, piece) = pushed.await.map_err(std::io::Error::other)??;
            }
        }
    }
}

/// Reads to the end; returns the last bytes.
async fn read_end(mut from: Output<impl AsyncRead + Unpin>) -> Vec<u8> {
    let (mut end, mut piece) = (Vec::new(), vec![0; STDERR_BYTES]);
    while let Ok(bytes @ 1..) = from.read(&mut piece).await {
        end.extend_from_slice(&piece[..bytes]);
        end.drain(..end.len().saturating_sub(STDERR_BYTES));
    }
    end
}
