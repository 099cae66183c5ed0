//! `tow broker`: an asynchronous Majordomo broker.

use crate::admin::{About, Admin, AdminArgs, Blocks, BrokerView};
use crate::cli::admission::Admission;
use crate::cli::endpoint::{REQUESTS_PORT, bind_endpoint};
use crate::cli::exit::Failure;
use crate::cli::listen_args::ListenArgs;
use crate::cli::output::announce;
use crate::cli::queue_args::QueueArgs;
use crate::cli::units::{duration, duration_or_zero, positive, short_duration, size_from_1m};
use crate::runtime::reload::{self, Reloaded};
use crate::runtime::rlimits;
use crate::runtime::signals::on_signals;
use crate::runtime::watchdog::{Watchdog, exit_now};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_broker::server::{Broker, BrokerOptions, Heartbeats};

/// How long the broker may take to end after its grace time: replies leave, and entries go to the journal. Those that don't get there
/// were never acknowledged.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Arguments of `tow broker`.
#[derive(clap::Args)]
#[command(
    mut_arg("endpoints", |arg| arg.value_parser(bind_endpoint::<REQUESTS_PORT>).default_value("tcp://127.0.0.1:5555")),
    mut_arg("heartbeat", |arg| arg.default_value("2s")),
)]
pub struct Arguments {
    /// Keep requests and outcomes in this directory, so that they survive crashes.
    #[arg(long, value_name = "DIR", conflicts_with = "queue")]
    journal: Option<PathBuf>,
    /// Start although part of the journal is damaged, without the requests in that part.
    #[arg(long, requires = "journal")]
    repair_journal: bool,
    /// Directory for bodies over 1 MiB [default: in the journal, or else in the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// Maximum size of all of them [default: half of the free space]
    #[arg(long, value_name = "SIZE", value_parser = size_from_1m)]
    max_spool: Option<u64>,
    /// Maximum memory for requests and replies [default: 1G, or a quarter of all]
    #[arg(long, value_name = "SIZE", value_parser = size_from_1m)]
    max_memory: Option<u64>,
    /// Maximum queued requests per service; beyond it, clients must wait or retry.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = positive::<usize>)]
    max_waiting: usize,
    /// Make a request a dead letter after this many workers have died handling it.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive::<u16>)]
    attempts: u16,
    /// How long a request may take, unless its client says otherwise.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    request_timeout: Duration,
    /// Longest time that a client may ask for.
    #[arg(long, value_name = "TIME", default_value = "7days", value_parser = duration)]
    max_ttl: Duration,
    /// How long a worker may take per request [default: unlimited]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    busy_timeout: Option<Duration>,
    /// How long to keep the requests of a disconnected client.
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = duration)]
    absent_timeout: Duration,
    /// How long to keep an outcome for a disconnected client after its request has expired.
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = duration_or_zero)]
    outcome_grace: Duration,
    /// How long to keep dead letters, stored requests, and clients with requests in the journal.
    #[arg(long, value_name = "TIME", default_value = "7days", value_parser = duration)]
    journal_retention: Duration,
    /// How long to wait for workers and clients at shutdown.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration_or_zero)]
    grace: Duration,
    /// How long to poll before sleeping; a longer time makes round trips shorter.
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = short_duration)]
    busy_poll: Duration,
    #[command(flatten)]
    queue: QueueArgs,
    /// Where others reach this broker [default: the first --bind]
    #[arg(long, value_name = "ENDPOINT", requires = "queue")]
    advertise: Option<String>,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Default of `--max-memory`, in bytes. Incomplete messages, backlogs of peers, connections and the allocator take more beside it.
fn default_memory() -> usize {
    const MOST: usize = 1 << 30;
    const LEAST: usize = 1 << 20;
    let quarter = rlimits::memory_limit().map_or(MOST, |all| usize::try_from(all / 4).unwrap_or(MOST));
    let bytes = quarter.clamp(LEAST, MOST);
    if bytes < MOST {
        let mib = bytes >> 20;
        tracing::info!(mib, "memory for requests and replies is limited to a quarter of what this process may have");
    }
    bytes
}

impl Arguments {
    fn options(self) -> Result<(BrokerOptions, AdminArgs, Option<Arc<Admission>>), Failure> {
        let security = self.listen.security()?;
        let max_peers_per_address = self.listen.max_peers_per_address();
        let mut options = BrokerOptions::new(self.listen.endpoints);
        options.authenticator = security.authenticator();
        options.mechanism = security.mechanism;
        options.open_to_all = security.open_to_all;
        options.journal = self.journal;
        let first = options.endpoints.first().map(ToString::to_string).unwrap_or_default();
        options.cell = self.queue.options(self.advertise.as_deref().unwrap_or(&first), self.spool.as_deref())?;
        options.repair_journal = self.repair_journal;
        options.spool = self.spool;
        options.max_spool_bytes = self.max_spool;
        options.grace = self.grace;
        options.max_peers = self.listen.max_peers;
        options.max_peers_per_address = max_peers_per_address;
        options.busy_poll = self.busy_poll;
        let interval = self.listen.heartbeat;
        options.heartbeats = Heartbeats { interval, timeout: interval * 4 };
        let ms = |duration: Duration| duration.as_millis() as u64;
        let settings = &mut options.settings;
        settings.heartbeat_ms = ms(interval);
        settings.ttl_ms = ms(self.request_timeout);
        settings.ttl_max_ms = ms(self.max_ttl);
        settings.busy_timeout_ms = self.busy_timeout.map(ms);
        settings.attempts_max = self.attempts;
        settings.service_requests_max = self.max_waiting;
        settings.bytes_max =
            self.max_memory.map_or_else(default_memory, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        settings.service_bytes_max = settings.bytes_max / 2;
        settings.client_bytes_max = settings.client_bytes_max.min(settings.bytes_max / 2);
        settings.absent_client_ms = ms(self.absent_timeout);
        settings.outcome_grace_ms = ms(self.outcome_grace);
        settings.journal_retention_ms = ms(self.journal_retention);
        Ok((options, self.admin, security.admission))
    }
}

/// Serves until a signal ends it.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let disks: Vec<_> =
        arguments.journal.iter().chain(&arguments.spool).map(|path| path.display().to_string()).collect();
    let (mut options, admin, admission) = arguments.options()?;
    let blocks = Blocks::open(options.journal.as_deref(), None)?;
    options.gate = Some(blocks.gate());
    let end_timeout = options.grace + END_TIMEOUT;
    let audit = admission.as_ref().and_then(|admission| admission.audit());
    let about = About { program: "broker", state: options.journal.as_deref(), served: None, audit, blocks: &blocks };
    let admin = Admin::start(admin, &about)?;
    let broker = Broker::bind(options).map_err(Failure::failed)?;
    let (handle, watchdog) = (broker.handle(), Watchdog::new());
    let (heartbeat, stopping) = (watchdog.heartbeat(), admin.stopping());
    let is_stopping = AtomicBool::new(false);
    let files = admission.as_ref().and_then(|admission| Reloaded::admission(admission, handle.clone()));
    let reload = reload::watch(admission, files)?;
    let stop = move || {
        stopping.begin();
        // The second signal doesn't wait for workers.
        match is_stopping.swap(true, Ordering::Relaxed) {
            false => handle.shutdown(),
            true => handle.shutdown_now(),
        }
        heartbeat.interrupted();
    };
    on_signals(stop, reload)?;
    admin.ready(
        BrokerView { handle: broker.handle(), operator: broker.operator(), questions: broker.questions() },
        broker.endpoints(),
    );
    announce(broker.endpoints().iter().map(|endpoint| format!("broker on {endpoint}")));
    let ended = watchdog.run(None, end_timeout, move || broker.run())?;
    let ended = ended.unwrap_or_else(|_| {
        let place = if disks.is_empty() { String::new() } else { format!(" ({})", disks.join(", ")) };
        let why =
            format!("cannot end in good order, the disk hangs{place}; entries not written were never acknowledged");
        exit_now(Failure::failed(why), || {})
    });
    ended.map_err(Failure::failed)?;
    Ok(ExitCode::SUCCESS)
}
