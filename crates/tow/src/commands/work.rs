//! `tow work`: a worker that runs a command for each request, or echoes it.

use crate::cli::auth_args::PASSWORD;
use crate::cli::body_io::{BodyBuilder, PIECE_BYTES, ReadBodyError, SpoolError, open_large};
use crate::cli::connect_args::BrokerArgs;
use crate::cli::exit::Failure;
use crate::cli::output::announce;
use crate::cli::units::positive;
use crate::runtime::which::check_executable;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashSet;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use towpath_buffers::PageBuffer;
use towpath_client::worker::{Request, Worker, WorkerOptions};
use towpath_requests::Body;

/// Default of `--jobs` with `--echo`.
const ECHO_JOBS: u32 = 4096;

/// Bytes at the end of a command's standard error that go into the reason of a failure.
const STDERR_BYTES: usize = 2048;

/// Arguments of `tow work`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Service to work for.
    service: String,
    /// Command to run for each request, from standard input to standard output.
    #[arg(last = true, required_unless_present = "echo", conflicts_with = "echo")]
    command: Vec<OsString>,
    /// Requests at a time from each broker [default: 1; with --echo 4096]
    #[arg(long, value_name = "N", value_parser = positive::<u32>)]
    jobs: Option<u32>,
    /// Reply with the request instead of running a command.
    #[arg(long)]
    echo: bool,
    /// Milliseconds that each echo takes.
    #[arg(long, value_name = "MS", requires = "echo", conflicts_with = "command")]
    work_ms: Option<u64>,
    #[command(flatten)]
    brokers: BrokerArgs,
}

/// Works until a signal ends it.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let jobs = arguments.jobs.unwrap_or(if arguments.echo { ECHO_JOBS } else { 1 });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    // A missing command would take request after request and fail each.
    arguments.command.first().map(|program| check_executable(program)).transpose()?;
    let outcome = runtime.block_on(async {
        let link = arguments.brokers.link()?;
        let spool = link.spool_folder.clone();
        let options = WorkerOptions { credit: jobs, link };
        let (endpoints, service) = (&arguments.brokers.endpoints, &arguments.service);
        let at_once = arguments.echo && arguments.work_ms.is_none();
        let worker = if at_once {
            Worker::at_once(endpoints, service, options, std::convert::identity)
        } else {
            Worker::connect(endpoints, service, options)
        };
        let worker = Arc::new(worker.map_err(Failure::usage)?);
        let commands = Arc::new(Running::default());
        drain_on_signal(&worker, &commands)?;
        announce([format!("working on {service}")]);
        if let Some(ms) = arguments.work_ms {
            let work = Duration::from_millis(ms);
            worker
                .run(|request| async move {
                    tokio::time::sleep(work).await;
                    Ok(request.body().clone())
                })
                .await;
        } else if at_once {
            worker.closed().await;
        } else {
            let job = Arc::new(Job { command: arguments.command.clone(), service: service.clone(), spool, commands });
            worker
                .run(|request| {
                    let job = Arc::clone(&job);
                    async move { job.run(request).await }
                })
                .await;
        }
        Ok(ExitCode::SUCCESS)
    });
    // Don't wait for threads that write to a disk: no broker takes their replies any more.
    runtime.shutdown_background();
    outcome
}

/// Drains the worker at the first signal, ends it and its commands at the second.
fn drain_on_signal(worker: &Arc<Worker>, commands: &Arc<Running>) -> Result<(), Failure> {
    let (worker, commands) = (Arc::downgrade(worker), Arc::clone(commands));
    let is_draining = AtomicBool::new(false);
    crate::runtime::signals::on_stop_signal(move || {
        if is_draining.swap(true, Ordering::Relaxed) {
            commands.kill_all();
            std::process::exit(1);
        }
        tracing::info!("draining: running requests are finished, no new ones taken; a second signal ends at once");
        if let Some(worker) = worker.upgrade() {
            worker.leave();
        }
    })
}

/// Process groups of running commands.
#[derive(Default)]
struct Running {
    groups: Mutex<HashSet<Pid>>,
    /// All are being killed with the worker; how they end says nothing about their requests.
    is_ending: AtomicBool,
}

impl Running {
    fn change(&self, change: impl FnOnce(&mut HashSet<Pid>)) {
        change(&mut self.groups.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn kill_all(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        self.change(|groups| {
            for group in groups.iter() {
                // It may just have ended.
                let _ = kill_process_group(*group, Signal::KILL);
            }
        });
    }
}

/// Process group of a command. Killed on drop if the command still runs: its reply isn't wanted any more.
struct Group<'a> {
    running: &'a Running,
    group: Option<Pid>,
}

impl<'a> Group<'a> {
    fn new(running: &'a Running, child: &Child) -> Group<'a> {
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        running.change(|groups| groups.extend(group));
        Group { running, group }
    }

    /// Forgets the group: the command has ended, and its id may be reused.
    fn ended(&mut self) {
        if let Some(group) = self.group.take() {
            self.running.change(|groups| {
                groups.remove(&group);
            });
        }
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.ended();
    }
}

/// Pause before a command is started again after a shortage of descriptors, processes or memory.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// True for a shortage of descriptors, processes or memory.
fn is_shortage(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM))
}

/// How long to wait for a command that has gone since the start: it may be being replaced. Failing at once would fail all queued
/// requests.
const MISSING_TIMEOUT: Duration = Duration::from_secs(10);

/// True if a program is missing or being written.
fn is_missing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::TXTBSY | Errno::ACCESS))
}

/// Command to run for each request.
struct Job {
    command: Vec<OsString>,
    service: String,
    spool: Option<PathBuf>,
    commands: Arc<Running>,
}

impl Job {
    fn start(&self, program: &OsStr, rest: &[OsString], request: &Request) -> io::Result<Child> {
        let large = open_large(request.body()).transpose()?;
        Command::new(program)
            .args(rest)
            .env_remove(PASSWORD)
            .env("TOW_SERVICE", &self.service)
            .env("TOW_ATTEMPT", request.attempt().to_string())
            .stdin(large.map_or_else(Stdio::piped, Stdio::from))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own can be killed as a whole, and gets no signals from the terminal.
            .process_group(0)
            .spawn()
    }

    async fn run(&self, request: Request) -> Result<Body, String> {
        let Some((program, rest)) = self.command.split_first() else { return Err("no command is given".to_owned()) };
        let name = program.display();
        let (mut is_logged, began) = (false, Instant::now());
        let mut child = loop {
            match self.start(program, rest, &request) {
                Ok(child) => break child,
                // Not the request's fault: a shortage ends with other commands, and a replaced program comes back.
                Err(error) if is_shortage(&error) || (is_missing(&error) && began.elapsed() < MISSING_TIMEOUT) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::warn!(command = %name, %error, "cannot start the command now, retrying");
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(command = %name, %error, "cannot start the command");
                    return Err(format!("{name}: {error}"));
                }
            }
        };
        let is_large = child.stdin.is_none();
        let mut group = Group::new(&self.commands, &child);
        let input = child.stdin.take();
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(format!("{name}: no output pipe"));
        };
        let feeding = async {
            if !is_large && let Some(input) = input {
                feed(input, request.body()).await;
            }
            std::future::pending::<Infallible>().await
        };
        let reading = async {
            let reply = read_reply(stdout, self.spool.clone());
            let (reply, errors) = tokio::join!(reply, read_end(stderr));
            let status = child.wait().await;
            (reply, errors, status)
        };
        // A command may end without having read its input.
        let (reply, errors, status) = tokio::select! {
            ended = reading => ended,
            never = feeding => match never {},
        };
        group.ended();
        if self.commands.is_ending.load(Ordering::SeqCst) {
            // Reply nothing, so that another worker gets the request.
            std::future::pending::<Infallible>().await;
        }
        // Failed output may have ended the command, so it comes before the exit status.
        let reply = reply.map_err(|error| {
            tracing::warn!(command = %name, %error, "cannot read the output of the command");
            format!("{name}: its output: {error}")
        })?;
        let status = status.map_err(|error| format!("{name}: {error}"))?;
        if !status.success() {
            let errors = String::from_utf8_lossy(&errors);
            let errors = errors.trim();
            tracing::info!(command = %name, %status, stderr = errors, "the command failed");
            return Err(format!("{name}: {status}{}{errors}", if errors.is_empty() { "" } else { ": " }));
        }
        Ok(reply)
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
async fn read_reply(mut from: impl AsyncReadExt + Unpin, folder: Option<PathBuf>) -> Result<Body, ReadBodyError> {
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
async fn read_end(mut from: impl AsyncReadExt + Unpin) -> Vec<u8> {
    let (mut end, mut piece) = (Vec::new(), vec![0; STDERR_BYTES]);
    while let Ok(bytes @ 1..) = from.read(&mut piece).await {
        end.extend_from_slice(&piece[..bytes]);
        end.drain(..end.len().saturating_sub(STDERR_BYTES));
    }
    end
}
