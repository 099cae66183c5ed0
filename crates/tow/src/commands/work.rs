//! `tow work`: a worker that gives each request to a command, or echoes it.

use crate::cli::body_io::{Collector, NoPlace, PIECE_BYTES, Unread, open_large};
use crate::cli::connect_args::BrokerArgs;
use crate::cli::exit::Failure;
use crate::cli::output::announce;
use crate::cli::units::positive;
use crate::runtime::which::executable;
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

/// Requests at a time for an echo, if nothing else is said.
const ECHO_JOBS: u32 = 4096;

/// Bytes of a command's complaints that go into the reason of a failure: their end.
const COMPLAINT_BYTES: usize = 2048;

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
    // Otherwise it would take request after request, and fail each.
    arguments.command.first().map(|program| executable(program)).transpose()?;
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
        end_on_signal(&worker, &commands)?;
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
    // Whoever waits for a disk writes a reply that nobody takes any more.
    runtime.shutdown_background();
    outcome
}

/// The first signal lets the worker leave, the second one ends it with its commands.
fn end_on_signal(worker: &Arc<Worker>, commands: &Arc<Running>) -> Result<(), Failure> {
    let (worker, commands) = (Arc::downgrade(worker), Arc::clone(commands));
    let before = AtomicBool::new(false);
    crate::runtime::signals::on_end(move || {
        if before.swap(true, Ordering::Relaxed) {
            commands.kill_all();
            std::process::exit(1);
        }
        tracing::info!("leaving: what is held is finished; a second signal ends at once");
        if let Some(worker) = worker.upgrade() {
            worker.leave();
        }
    })
}

/// Process groups of the commands under way.
#[derive(Default)]
struct Running {
    groups: Mutex<HashSet<Pid>>,
    /// They are being killed, and the worker ends: how they end says nothing about their requests.
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

/// A command's process group. It is killed if the command hasn't ended when this is dropped: nobody wants its reply.
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

    /// The command has ended, and its number may be another's from now on.
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

/// Until a command is tried again for which there were no descriptors, processes or memory.
const SHORTAGE_WAIT: Duration = Duration::from_millis(100);

/// Whether this machine has too little of something for now.
fn is_shortage(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM))
}

/// How long a command that was there when the worker started is waited for: it may be being replaced. Who takes request after request and
/// fails each would have all that wait for the service.
const MISSING_WAIT: Duration = Duration::from_secs(10);

/// Whether a program isn't there, or isn't whole yet.
fn is_missing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::TXTBSY | Errno::ACCESS))
}

/// What is done for each request.
struct Job {
    command: Vec<OsString>,
    service: String,
    spool: PathBuf,
    commands: Arc<Running>,
}

impl Job {
    fn start(&self, program: &OsStr, rest: &[OsString], request: &Request) -> io::Result<Child> {
        let large = open_large(request.body()).transpose()?;
        Command::new(program)
            .args(rest)
            .env("TOW_SERVICE", &self.service)
            .env("TOW_ATTEMPT", request.attempt().to_string())
            .stdin(large.map_or_else(Stdio::piped, Stdio::from))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own: signals from a terminal are for the worker, and all of it can be ended.
            .process_group(0)
            .spawn()
    }

    async fn run(&self, request: Request) -> Result<Body, String> {
        let Some((program, rest)) = self.command.split_first() else { return Err("no command".to_owned()) };
        let name = program.display();
        let (mut is_told, began) = (false, Instant::now());
        let mut child = loop {
            match self.start(program, rest, &request) {
                Ok(child) => break child,
                // It says nothing about the request: what other commands have comes back when they end, and a program that is replaced too.
                Err(error) if is_shortage(&error) || (is_missing(&error) && began.elapsed() < MISSING_WAIT) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(command = %name, %error, "the command can't be started now, and is tried again");
                    }
                    tokio::time::sleep(SHORTAGE_WAIT).await;
                }
                Err(error) => {
                    tracing::warn!(command = %name, %error, "the command can't be started");
                    return Err(format!("{name}: {error}"));
                }
            }
        };
        let is_large = child.stdin.is_none();
        let mut group = Group::new(&self.commands, &child);
        let input = child.stdin.take();
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(format!("{name}: it has no output"));
        };
        let feeding = async {
            if !is_large && let Some(input) = input {
                feed(input, request.body()).await;
            }
            std::future::pending::<Infallible>().await
        };
        let reading = async {
            let reply = read_reply(stdout, self.spool.clone());
            let (reply, complaint) = tokio::join!(reply, read_end(stderr));
            let status = child.wait().await;
            (reply, complaint, status)
        };
        // A command that doesn't read what it is given ends all the same.
        let (reply, complaint, status) = tokio::select! {
            ended = reading => ended,
            never = feeding => match never {},
        };
        group.ended();
        if self.commands.is_ending.load(Ordering::SeqCst) {
            // Another worker gets the request, as if this one had been killed.
            std::future::pending::<Infallible>().await;
        }
        // It may have been ended by that: nobody read the rest of its output.
        let reply = reply.map_err(|error| {
            tracing::warn!(command = %name, %error, "what the command replied isn't here");
            format!("{name}: its output: {error}")
        })?;
        let status = status.map_err(|error| format!("{name}: {error}"))?;
        if !status.success() {
            let complaint = String::from_utf8_lossy(&complaint);
            let complaint = complaint.trim();
            tracing::info!(command = %name, %status, complaint, "a request failed");
            return Err(format!("{name}: {status}{}{complaint}", if complaint.is_empty() { "" } else { ": " }));
        }
        Ok(reply)
    }
}

/// Writes as much of the request as the command takes.
async fn feed(mut input: ChildStdin, body: &Body) {
    for frame in body.frames().into_iter().flatten() {
        if input.write_all(frame).await.is_err() {
            return;
        }
    }
}

/// What goes to the disk does so on threads that may wait for it: this one has heartbeats to answer, and other requests to take.
async fn read_reply(mut from: impl AsyncReadExt + Unpin, folder: PathBuf) -> Result<Body, Unread> {
    let mut collector = Collector::new(folder);
    let mut piece = PageBuffer::zeroed(PIECE_BYTES);
    loop {
        match from.read(&mut piece).await? {
            0 => return Ok(collector.finish()),
            bytes if !collector.needs_disk(bytes) => collector.push(&piece[..bytes])?,
            bytes => {
                let pushed = tokio::task::spawn_blocking(move || {
                    collector.push(&piece[..bytes])?;
                    Ok::<_, NoPlace>((collector, piece))
                });
                (collector, piece) = pushed.await.map_err(std::io::Error::other)??;
            }
        }
    }
}

/// Reads everything, and gives the end of it.
async fn read_end(mut from: impl AsyncReadExt + Unpin) -> Vec<u8> {
    let (mut end, mut piece) = (Vec::new(), vec![0; COMPLAINT_BYTES]);
    while let Ok(bytes @ 1..) = from.read(&mut piece).await {
        end.extend_from_slice(&piece[..bytes]);
        end.drain(..end.len().saturating_sub(COMPLAINT_BYTES));
    }
    end
}
