//! `tow get`: fetches a file, a directory or a glob.

use crate::cli::connect_args::FileServerArgs;
use crate::cli::escape::{Json, Printable};
use crate::cli::exit::{Failure, Status};
use crate::cli::location::Location;
use crate::cli::output::{eprint_line, print_line};
use crate::cli::progress::{Bar, human_bytes};
use crate::cli::units::{positive, size};
use crate::runtime::rlimits::own_usage;
use crate::runtime::watchdog::{END_TIMEOUT, Hang, Heartbeat, Watchdog, exit_now};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_files::client::{
    CancelToken, Destination, GetError, GetOptions, Modes, Progress, Source, Summary, TransferError, get,
};
use towpath_files::limits::{CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, CREDIT_BYTES_MAX};
use towpath_files::path::RelPath;
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::{Compression, FollowLinks};
use towpath_sockets::Refusal;

/// Failures of single files, and warnings, that are printed.
const LINES_SHOWN_MAX: usize = 20;

/// Silence of the watchdog beyond the idle timeout, after which the transfer itself fails with a better message.
const EXTRA_SILENCE: Duration = Duration::from_secs(1);

/// Advice after a transfer that ended early.
const RESUME_HINT: &str = "What has arrived is kept; run the same command again to resume.";

/// Explains why a transfer failed, and what to do. Errors of connecting and of the destination name their place themselves.
pub fn failure_at(location: &OsStr, error: &GetError, server: &FileServerArgs) -> Failure {
    let is_glob = || Location::parse(location).is_ok_and(|location| location.is_glob());
    let status = status_of(error);
    match error {
        GetError::Transfer(
            TransferError::Refused { code: ErrorCode::NotFound, .. }
            | TransferError::Unmet { code: ErrorCode::NotFound, .. },
        ) if is_glob() => Failure::new(
            status,
            format_args!("{}: {error}; to take * ? [ or {{ literally, put a \\ before it", location.display()),
        ),
        GetError::Transfer(TransferError::Limit(_)) => Failure::new(
            status,
            format_args!("{}: {error}; --max-bytes and --max-files set the limits", location.display()),
        ),
        GetError::Transfer(_) => Failure::new(status, format_args!("{}: {error}", location.display())),
        GetError::Refused { refusal: Refusal::Login, .. } => {
            Failure::new(status, format_args!("{error} ({})", server.login_hint()))
        }
        _ => Failure::new(status, error),
    }
}

/// Exit status of a transfer or a listing that failed.
fn status_of(error: &GetError) -> Status {
    match error {
        GetError::Connect { .. } | GetError::Refused { refusal: Refusal::Peer, .. } => Status::NoServer,
        GetError::Refused { refusal: Refusal::Login, .. } => Status::Refused,
        GetError::Transfer(TransferError::Stalled { connected: false, .. }) => Status::NoServer,
        GetError::Transfer(TransferError::Cancelled) => Status::Interrupted,
        GetError::Transfer(TransferError::Refused { code, .. } | TransferError::Unmet { code, .. }) => {
            status_of_code(*code)
        }
        _ => Status::Failed,
    }
}

/// Exit status for a server's code.
pub fn status_of_code(code: ErrorCode) -> Status {
    match code {
        ErrorCode::NotFound => Status::NotFound,
        ErrorCode::Denied => Status::Refused,
        _ => Status::Failed,
    }
}

/// Why a transfer is incomplete, if it is. The reason of one file counts only if nothing else was to be had.
fn incomplete(summary: &Summary) -> Option<Status> {
    match (summary.failed, summary.files) {
        (0, _) => None,
        (1, 0) => {
            Some(summary.failures.first().and_then(|failure| failure.code).map_or(Status::Failed, status_of_code))
        }
        _ => Some(Status::Failed),
    }
}

/// Arguments of `tow get`.
#[derive(clap::Args)]
pub struct Arguments {
    /// File, directory or glob (* ? [a-z] {a,b} **): HOST:/PATH, HOST:PORT/PATH or ipc://SOCKET:/PATH.
    location: OsString,
    /// Where to write; - is standard output [default: the source's name; of a glob .]
    destination: Option<PathBuf>,
    /// Print one JSON object at the end, also of a failed transfer.
    #[arg(long)]
    json: bool,
    /// Show no progress bar.
    #[arg(long, short)]
    quiet: bool,
    /// Copy what links lead to, as long as it is below the root, instead of the links.
    #[arg(long, short = 'L', conflicts_with = "links")]
    follow_links: bool,
    /// Copy a link that is named as it is [default: what it leads to]
    #[arg(long)]
    links: bool,
    /// Don't check files against their BLAKE3 digests.
    #[arg(long)]
    no_verify: bool,
    /// Compare files that are there already by digest, not by size and time.
    #[arg(long, conflicts_with = "no_verify")]
    check: bool,
    /// Give files and directories the mode of what is made here.
    #[arg(long)]
    no_mode: bool,
    /// Don't set times.
    #[arg(long)]
    no_times: bool,
    /// Keep permission bits that the umask takes away, except set-id bits and others' write.
    #[arg(long, conflicts_with = "no_mode")]
    preserve_modes: bool,
    /// Fail if the files have more bytes in all [default: no limit, but 1T of holes]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,
    /// Fail if there are more files, directories and links [default: 4194304, which is the most]
    #[arg(long, value_name = "COUNT", value_parser = positive::<u32>)]
    max_files: Option<u32>,
    /// Let the server compress what shrinks, for slow links.
    #[arg(long)]
    zstd: bool,
    /// Largest piece in one frame, from 4K to 4M [default: 1M, with --zstd 256K, at most the window]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunk: Option<u64>,
    /// How much may be in flight; raise it for long fat links.
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = size)]
    window: u64,
    /// Sync each file before it gets its name, and its directory after.
    #[arg(long)]
    fsync: bool,
    // Drops what arrives, for measuring.
    #[arg(long, hide = true)]
    discard: bool,
    #[command(flatten)]
    server: FileServerArgs,
}

/// Default chunk size with compression. An incomplete piece is lost with the connection, and compression is for slow links.
const COMPRESSED_CHUNK_BYTES: u64 = 256 << 10;

/// Path or glob of a location.
pub fn source_of(location: &Location) -> Result<Source, Failure> {
    let wrong = |why: String| Failure::usage(format!("{}: {why}", String::from_utf8_lossy(&location.path)));
    match location.literal() {
        Some(path) => RelPath::new(path).map(Source::Path).map_err(|error| wrong(error.to_string())),
        None => {
            let glob = String::from_utf8(location.path.clone())
                .map_err(|_| wrong("a glob must be UTF-8; escape * ? [ { by \\ to name one file".to_owned()))?;
            Ok(Source::Glob(glob))
        }
    }
}

/// Cancels the transfer at the first signal, so that what has arrived is kept in order. The second signal ends the process.
pub fn cancel_on_signal(heartbeat: Heartbeat) -> Result<CancelToken, Failure> {
    let cancel = CancelToken::new();
    let handle = cancel.clone();
    crate::runtime::signals::on_stop_signal(move || {
        if handle.is_cancelled() {
            crate::runtime::signals::end_by_signal();
        }
        handle.cancel();
        heartbeat.interrupted();
    })?;
    Ok(cancel)
}

/// Fetches, shows progress, and prints the summary.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let location = Location::parse(&arguments.location)?;
    let mut options = GetOptions::new(location.endpoint.clone(), source_of(&location)?);
    options.connect = arguments.server.options(location.endpoint)?;
    options.follow = match (arguments.follow_links, arguments.links) {
        (true, _) => FollowLinks::All,
        (false, true) => FollowLinks::None,
        (false, false) => FollowLinks::Path,
    };
    options.verify = !arguments.no_verify;
    options.compress = arguments.zstd.then_some(Compression::Zstd);
    let chunk_bytes = if arguments.zstd { COMPRESSED_CHUNK_BYTES } else { CHUNK_BYTES_DEFAULT };
    options.chunk_bytes = arguments.chunk.unwrap_or(chunk_bytes.min(arguments.window));
    options.window_bytes = arguments.window;
    if !(CHUNK_BYTES_MIN..=CREDIT_BYTES_MAX).contains(&arguments.window) {
        return Err(Failure::usage("--window: use a size from 4K to 8388608G"));
    }
    if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&options.chunk_bytes) {
        return Err(Failure::usage("--chunk: use a size from 4K to 4M"));
    }
    if options.chunk_bytes > options.window_bytes {
        return Err(Failure::usage("--chunk: use a size of at most --window"));
    }
    options.durable = arguments.fsync;
    options.check = arguments.check;
    options.modes = match (arguments.no_mode, arguments.preserve_modes) {
        (true, _) => Modes::Ignore,
        (_, true) => Modes::Preserve,
        _ => Modes::Umask,
    };
    options.times = !arguments.no_times;
    options.max_bytes = arguments.max_bytes;
    if let Some(max) = arguments.max_files {
        options.max_entries = max as usize;
    }
    let to_output = arguments.destination.as_deref().is_some_and(|path| path.as_os_str() == "-");
    let is_path = !to_output && !arguments.discard;
    let place = arguments.destination.as_deref().unwrap_or(Path::new(".")).display().to_string();
    options.destination = match arguments.destination {
        _ if arguments.discard => Destination::Discard,
        _ if to_output => Destination::Writer(Box::new(std::io::stdout())),
        path => Destination::Path(path),
    };
    let watchdog = Watchdog::new();
    let cancel = cancel_on_signal(watchdog.heartbeat())?;
    let bar = Bar::new(arguments.quiet);
    let (last, begun) = (Arc::new(Mutex::new(Progress::default())), Instant::now());
    // A disk without progress for so long hangs. The reader of a pipe may take its time.
    let silence = is_path.then_some(options.connect.idle_timeout.saturating_add(EXTRA_SILENCE));
    let mut follow =
        ProgressFollower { bar: bar.clone(), last: Arc::clone(&last), heartbeat: watchdog.heartbeat(), started: false };
    let outcome =
        watchdog.run(silence, END_TIMEOUT, move || get(options, &mut |progress| follow.progress(progress), &cancel))?;
    bar.finish();
    let last = *last.lock().unwrap_or_else(PoisonError::into_inner);
    let as_json = arguments.json;
    let show = move |object: serde_json::Value| match as_json {
        // Standard output has the file itself.
        true if to_output => {
            eprint_line(Json(object));
            Ok(())
        }
        true => print_line(Json(object)),
        false => Ok(()),
    };
    let outcome = outcome.unwrap_or_else(|hang| {
        let why = match hang {
            Hang::Interrupted => TransferError::Cancelled.to_string(),
            Hang::Silent(silence) => {
                format!("the disk hangs: no progress at {place} for {} s", silence.as_secs())
            }
        };
        let status = if hang == Hang::Interrupted { Status::Interrupted } else { Status::Failed };
        let failure = Failure::new(status, format_args!("{}: {why}", arguments.location.display()));
        let object = failure_object(&last, &why, status, begun.elapsed());
        let failure = if is_path { failure.with(format_args!("\n{RESUME_HINT}")) } else { failure };
        exit_now(failure, move || drop(show(object)))
    });
    let summary = match outcome {
        Ok(summary) => summary,
        Err(error) => {
            // The failure of the transfer is more important than one of the output.
            let _ = show(failure_object(&last, &error.to_string(), status_of(&error), begun.elapsed()));
            let failure = failure_at(&arguments.location, &error, &arguments.server);
            let is_kept =
                is_path && last.received_bytes > 0 && matches!(error, GetError::Transfer(_) | GetError::Hangs { .. });
            return Err(if is_kept { failure.with(format_args!("\n{RESUME_HINT}")) } else { failure });
        }
    };
    let and_more = |count: u64| match count.checked_sub(LINES_SHOWN_MAX as u64) {
        None | Some(0) => {}
        Some(more) => eprint_line(format_args!("tow: and {more} more")),
    };
    for warning in summary.warnings.iter().take(LINES_SHOWN_MAX) {
        eprint_line(format_args!("tow: {}", Printable(warning)));
    }
    and_more(summary.warned);
    for failure in summary.failures.iter().take(LINES_SHOWN_MAX) {
        eprint_line(format_args!("tow: {}: {}", Printable(&failure.path), Printable(&failure.reason)));
    }
    and_more(summary.failed);
    if bar.is_visible() && summary.failed == 0 {
        eprint_line(format_args!("tow: {}", describe(&summary)));
    }
    show(summary_object(&summary))?;
    Ok(ExitCode::from(incomplete(&summary).map_or(0, |status| status as u8)))
}

/// Follows the progress of a transfer, on its thread.
struct ProgressFollower {
    bar: Bar,
    last: Arc<Mutex<Progress>>,
    heartbeat: Heartbeat,
    started: bool,
}

impl ProgressFollower {
    fn progress(&mut self, progress: Progress) {
        self.heartbeat.beat();
        if !self.started && progress.bytes_total > 0 {
            // Bytes of an earlier transfer don't count for the speed. They are known before anything arrives.
            self.bar.start_at(progress.bytes_done, progress.bytes_total);
            self.started = progress.received_bytes > 0;
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = progress;
        let files = match progress.files_total {
            0 | 1 => String::new(),
            total => format!("{} of {total}{} files", progress.files_done, if progress.listed { "" } else { "+" }),
        };
        self.bar.set(progress.bytes_done, progress.bytes_total, files);
    }
}

/// Summary in one line.
fn describe(summary: &Summary) -> String {
    let count = |count: u64, of: &str| format!("{count} {of}{}", if count == 1 { "" } else { "s" });
    let per_second = (summary.received_bytes as f64 / summary.seconds.max(1e-3)) as u64;
    let mut line = format!("{}, {}", count(summary.files, "file"), human_bytes(summary.bytes));
    if summary.received_bytes > 0 {
        // Resumed, sparse and compressed files receive fewer bytes than they have; the speed is of those received.
        if summary.received_bytes != summary.bytes {
            line += &format!("; {} received", human_bytes(summary.received_bytes));
        }
        let how = if summary.verified { "verified" } else { "not verified" };
        let speed = human_bytes(per_second);
        line += &format!(" in {:.1} s, {speed}/s, {how}", summary.seconds);
    }
    if summary.resumed_bytes > 0 {
        line += &format!("; {} resumed", human_bytes(summary.resumed_bytes));
    }
    if summary.reused_bytes > 0 {
        line += &format!("; {} reused", human_bytes(summary.reused_bytes));
    }
    if summary.skipped > 0 {
        // Not all of them may have been compared by digest.
        let how = if summary.verified_files >= summary.files { "verified" } else { "by size and time" };
        line += &format!("; {} already there, {how}", count(summary.skipped, "file"));
    }
    line
}

/// JSON object of a transfer that ended early.
fn failure_object(progress: &Progress, error: &str, status: Status, taken: Duration) -> serde_json::Value {
    let usage = own_usage();
    json!({
        "error": error,
        "status": status as u8,
        "code": status.code(),
        "files": progress.files_done,
        "bytes": progress.bytes_done,
        "received_bytes": progress.received_bytes,
        "resumed_bytes": progress.resumed_bytes,
        "skipped": progress.skipped,
        // The transfer failed, even if no single file did.
        "failed": progress.failed.max(1),
        "seconds": taken.as_secs_f64(),
        "verified": false,
        "verified_files": progress.verified_files,
        "metadata_refused": 0,
        "cpu_seconds": usage.cpu_seconds,
        "peak_memory_bytes": usage.peak_memory_bytes,
        "failures": [],
        "warnings": [],
    })
}

/// JSON object of a complete transfer.
fn summary_object(summary: &Summary) -> serde_json::Value {
    let usage = own_usage();
    let status = incomplete(summary);
    json!({
        "status": status.map_or(0, |status| status as u8),
        "code": status.map_or("done", Status::code),
        "files": summary.files,
        "bytes": summary.bytes,
        "received_bytes": summary.received_bytes,
        "resumed_bytes": summary.resumed_bytes,
        "reused_bytes": summary.reused_bytes,
        "skipped": summary.skipped,
        "failed": summary.failed,
        "seconds": summary.seconds,
        "verified": summary.verified,
        "verified_files": summary.verified_files,
        "metadata_refused": summary.metadata_refused,
        "cpu_seconds": usage.cpu_seconds,
        "peak_memory_bytes": usage.peak_memory_bytes,
        "failures": summary.failures.iter().map(|failure| json!({"path": failure.path, "reason": failure.reason}))
            .collect::<Vec<_>>(),
        "warnings": summary.warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_of_received_bytes() {
        let whole = Summary {
            files: 2,
            bytes: 3 << 30,
            received_bytes: 3 << 30,
            seconds: 2.0,
            verified: true,
            verified_files: 1,
            ..Summary::default()
        };
        assert_eq!(describe(&whole), "2 files, 3.00 GiB in 2.0 s, 1.50 GiB/s, verified");
        let part = Summary { received_bytes: 1 << 30, skipped: 1, ..whole.clone() };
        let line = "2 files, 3.00 GiB; 1.00 GiB received in 2.0 s, 512.00 MiB/s, verified; 1 file already there, by size and time";
        assert_eq!(describe(&part), line);
        let none = Summary { received_bytes: 0, skipped: 2, verified_files: 2, ..whole };
        assert_eq!(describe(&none), "2 files, 3.00 GiB; 2 files already there, verified");
    }
}
