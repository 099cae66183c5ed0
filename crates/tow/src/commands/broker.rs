//! `tow broker`: an asynchronous Majordomo broker.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in the help of arguments are no links")]

use crate::cli::auth_args::Passwords;
use crate::cli::connect_args::seconds;
use crate::cli::exit::Failure;
use crate::cli::location::to_listen_on;
use crate::cli::units::positive;
use crate::runtime::rlimits;
use crate::runtime::watchdog::{Attended, end_anyway};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_broker::server::{Admit, Broker, BrokerOptions, Heartbeats};
use towpath_sockets::Endpoint;

/// What the end may take beyond the grace time: replies leave, and what is in memory goes to the journal. Nothing of what it doesn't
/// get there has been acknowledged.
const ENDING: Duration = Duration::from_secs(5);

/// What `tow broker` is told.
#[derive(clap::Args)]
pub struct Arguments {
    /// Where to listen: tcp://IP:PORT, tcp://[IPV6]:PORT or ipc://PATH; port 0 picks one. May be given several times.
    #[arg(long = "bind", value_name = "ENDPOINT", value_parser = to_listen_on, default_value = "tcp://127.0.0.1:5555")]
    endpoints: Vec<Endpoint>,
    /// Keeps numbered requests and their outcomes in this directory: they are acknowledged when they are on the disk, and
    /// survive any crash. Stock clients get Titanic's services from it.
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Where bodies of over 1 MiB are while they are here [default: below the journal's directory, or the system's for temporary
    /// files].
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// MiB of such bodies at a time, with those in the journal; requests may have three quarters of it [default: half of what the
    /// disk has room for at the start, so that clients can't fill it].
    #[arg(long, value_name = "MIB")]
    max_spool: Option<u64>,
    /// Seconds that a request waits for its outcome, if its client doesn't say.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, allow_negative_numbers = true)]
    request_timeout: f64,
    /// Seconds that a worker may take for a request [default: as long as it is connected].
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    busy_timeout: Option<f64>,
    /// How often a request is given to workers that die over it. One that is in the journal is kept for workers of aside.SERVICE then.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive::<u16>, allow_negative_numbers = true)]
    attempts: u16,
    /// Seconds between two heartbeats; a peer that is silent for five times as long is gone, a worker for which bytes wait meanwhile for ten times, a stock worker that is idle for four times.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, allow_negative_numbers = true)]
    heartbeat: f64,
    /// Requests of one service that may wait for a worker. Then ours are refused for a while, and stock clients not read any further.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = positive::<usize>, allow_negative_numbers = true)]
    max_waiting: usize,
    /// MiB of memory for all requests and replies [default: 1024, or a quarter of what this machine or container has if that is less].
    #[arg(long, value_name = "MIB", value_parser = positive::<usize>, allow_negative_numbers = true)]
    max_memory: Option<usize>,
    /// Seconds that what belongs to a numbered client is kept while the client isn't connected.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, allow_negative_numbers = true)]
    absent_timeout: f64,
    /// The same for what is in the journal; seven days by default. A restart of the broker begins them anew.
    #[arg(long, value_name = "SECONDS", default_value_t = 604_800.0, allow_negative_numbers = true)]
    journal_retention: f64,
    /// Seconds that workers may finish what they have, and clients read what there is for them, when the broker is told to end; a second
    /// signal ends it at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, allow_negative_numbers = true)]
    grace: f64,
    /// Connections in all.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = positive::<usize>, allow_negative_numbers = true)]
    max_peers: usize,
    /// Connections from one IP address.
    #[arg(long, value_name = "N", default_value_t = 12_288, value_parser = positive::<usize>, allow_negative_numbers = true)]
    max_peers_per_address: usize,
    /// Lets in only users named in this file, one USER:PASSWORD a line, by ZMTP's PLAIN. The wire is not encrypted.
    #[arg(long, value_name = "FILE")]
    plain_passwords: Option<PathBuf>,
    /// Microseconds for which a broker that was busy a moment ago looks again before it sleeps: short round trips become shorter,
    /// for some of a processor's time. 0: it sleeps at once.
    #[arg(long, value_name = "US", default_value_t = 50)]
    busy_poll: u16,
}

/// Bytes for requests and replies, if nobody says how many. Messages that aren't whole, what peers haven't read yet, connections and
/// the allocator need some beside.
fn default_memory() -> usize {
    const MOST: usize = 1 << 30;
    const LEAST: usize = 1 << 20;
    let quarter = rlimits::memory_bytes().map_or(MOST, |all| usize::try_from(all / 4).unwrap_or(MOST));
    let bytes = quarter.clamp(LEAST, MOST);
    if bytes < MOST {
        let mib = bytes >> 20;
        tracing::info!(mib, "memory for requests and replies: a quarter of what there is for this process");
    }
    bytes
}

fn millis(name: &str, value: f64) -> Result<u64, Failure> {
    Ok(seconds(name, value)?.as_millis() as u64)
}

impl Arguments {
    fn options(self) -> Result<BrokerOptions, Failure> {
        let mut options = BrokerOptions::new(self.endpoints);
        options.journal = self.journal;
        options.spool = self.spool;
        options.max_spool_bytes = self.max_spool.map(|mib| mib.saturating_mul(1 << 20));
        options.grace = if self.grace == 0.0 { Duration::ZERO } else { seconds("grace", self.grace)? };
        options.max_peers = self.max_peers;
        options.max_peers_per_address = self.max_peers_per_address;
        if let Some(path) = &self.plain_passwords {
            let passwords = Passwords::read(path)?;
            options.admit = Some(Admit::by(move |user, password| passwords.admit(user, password)));
        }
        options.busy_poll = Duration::from_micros(u64::from(self.busy_poll));
        let interval = seconds("heartbeat", self.heartbeat)?;
        options.heartbeats = Heartbeats { interval, timeout: interval * 4 };
        let settings = &mut options.settings;
        settings.heartbeat_ms = millis("heartbeat", self.heartbeat)?.max(1);
        settings.ttl_ms = millis("request-timeout", self.request_timeout)?;
        settings.busy_timeout_ms = self.busy_timeout.map(|busy| millis("busy-timeout", busy)).transpose()?;
        settings.attempts_max = self.attempts;
        settings.service_requests_max = self.max_waiting;
        settings.bytes_max = self.max_memory.map_or_else(default_memory, |mib| mib.saturating_mul(1 << 20));
        settings.service_bytes_max = settings.bytes_max / 2;
        settings.client_bytes_max = settings.client_bytes_max.min(settings.bytes_max / 2);
        settings.absent_client_ms = millis("absent-timeout", self.absent_timeout)?;
        settings.journal_retention_ms = millis("journal-retention", self.journal_retention)?;
        Ok(options)
    }
}

/// Serves until a signal ends it.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let disks: Vec<_> =
        arguments.journal.iter().chain(&arguments.spool).map(|path| path.display().to_string()).collect();
    let options = arguments.options()?;
    let ending = options.grace + ENDING;
    let broker = Broker::bind(options).map_err(Failure::failed)?;
    let (handle, attended) = (broker.stop_handle(), Attended::new());
    let pulse = attended.pulse();
    let before = AtomicBool::new(false);
    crate::runtime::signals::on_end(move || {
        // The second one is for who doesn't want to wait for workers.
        match before.swap(true, Ordering::Relaxed) {
            false => handle.stop(),
            true => handle.stop_at_once(),
        }
        pulse.interrupted();
    })?;
    let mut output = std::io::stdout().lock();
    for endpoint in broker.endpoints() {
        // Whoever started us may have closed our output; that is no reason not to serve.
        let _ = writeln!(output, "broker on {endpoint}");
    }
    let _ = output.flush();
    drop(output);
    let ended = attended.run(None, ending, move || broker.run())?;
    let ended = ended.unwrap_or_else(|_| {
        let place = if disks.is_empty() { String::new() } else { format!(" ({})", disks.join(", ")) };
        let why = "it doesn't end: the disk hangs";
        end_anyway(&Failure::failed(format!("{why}{place}; what isn't on it was never acknowledged")), || {})
    });
    ended.map_err(Failure::failed)?;
    Ok(ExitCode::SUCCESS)
}
