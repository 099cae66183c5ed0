//! `tow work`: a worker that runs a command for each request, or echoes it.

pub mod guard;
mod job;

use crate::cli::connect_args::BrokerArgs;
use crate::cli::exit::Failure;
use crate::cli::output::announce;
use crate::cli::service_name::NameArgs;
use crate::cli::units::{duration, positive};
use crate::runtime::which::check_executable;
use guard::Guard;
use job::Job;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_client::worker::{Worker, WorkerOptions};

/// Default of `--jobs` with `--echo`.
const ECHO_JOBS: u32 = 4096;

/// Arguments of `tow work`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Service to work for.
    service: OsString,
    #[command(flatten)]
    name: NameArgs,
    /// Command to run for each request, from standard input to standard output.
    #[arg(last = true, required_unless_present = "echo", conflicts_with = "echo")]
    command: Vec<OsString>,
    /// Concurrent requests per broker [default: 1; with --echo 4096]
    #[arg(long, value_name = "N", value_parser = positive::<u32>)]
    jobs: Option<u32>,
    /// Reply with the request instead of running a command.
    #[arg(long)]
    echo: bool,
    /// How long each echo takes.
    #[arg(long, value_name = "TIME", requires = "echo", conflicts_with = "command", value_parser = duration)]
    work_time: Option<Duration>,
    #[command(flatten)]
    brokers: BrokerArgs,
}

/// Works until a signal ends it.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let service = arguments.name.name(&arguments.service)?;
    if !arguments.echo && service.as_ref().contains(&0) {
        return Err(Failure::usage(format!(
            "{service}: a name with a zero byte can't be passed to a command (TOW_SERVICE)"
        )));
    }
    let jobs = arguments.jobs.unwrap_or(if arguments.echo { ECHO_JOBS } else { 1 });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    // A missing command would take request after request and fail each.
    arguments.command.first().map(|program| check_executable(program)).transpose()?;
    let outcome = runtime.block_on(async {
        let link = arguments.brokers.link()?;
        let spool = link.spool_folder.clone();
        let options = WorkerOptions { credit: jobs, link };
        let endpoints = &arguments.brokers.endpoints;
        let at_once = arguments.echo && arguments.work_time.is_none();
        let worker = if at_once {
            Worker::at_once(endpoints, &service, options, std::convert::identity)
        } else {
            Worker::connect(endpoints, &service, options)
        };
        let worker = Arc::new(worker.map_err(Failure::usage)?);
        drain_on_signal(&worker)?;
        announce([format!("working on {service}")]);
        if let Some(work) = arguments.work_time {
            worker
                .run(|request| async move {
                    tokio::time::sleep(work).await;
                    Ok(request.body().clone())
                })
                .await;
        } else if at_once {
            worker.closed().await;
        } else {
            let guard = Guard::start()
                .map_err(|error| Failure::failed(format!("cannot start the process that guards commands: {error}")))?;
            let most = endpoints.len().saturating_mul(jobs as usize);
            let job = Job::new(arguments.command.clone(), service.clone(), spool, guard, most);
            worker
                .run_with_retries(|request| {
                    let job = Arc::clone(&job);
                    async move { job.run(request).await }
                })
                .await;
            job.all_ended().await;
        }
        Ok(ExitCode::SUCCESS)
    });
    // Don't wait for threads that write to a disk: no broker takes their replies any more.
    runtime.shutdown_background();
    outcome
}

/// Drains the worker at the first signal, ends it at the second. Then the guard kills its commands.
fn drain_on_signal(worker: &Arc<Worker>) -> Result<(), Failure> {
    let worker = Arc::downgrade(worker);
    let is_draining = AtomicBool::new(false);
    crate::runtime::signals::on_stop_signal(move || {
        if is_draining.swap(true, Ordering::Relaxed) {
            crate::runtime::signals::end_by_signal();
        }
        tracing::info!("draining: running requests are finished, no new ones taken; a second signal ends at once");
        if let Some(worker) = worker.upgrade() {
            worker.leave();
        }
    })
}
