//! `tow get`: a file, a directory or a glob from a server.

use crate::cli::connect_args::FileServerArgs;
use crate::cli::escape::Shown;
use crate::cli::exit::Failure;
use crate::cli::location::Location;
use crate::cli::output::{put_out, say};
use crate::cli::progress::{Bar, human_bytes};
use crate::cli::units::size;
use crate::runtime::rlimits::own_usage;
use crate::runtime::watchdog::{Attended, ENDING, Hangs, Pulse, end_anyway};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_files::client::{
    CancelHandle, Destination, GetError, GetOptions, Progress, Source, Summary, TransferError, get,
};
use towpath_files::limits::{CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, CREDIT_BYTES_MAX};
use towpath_files::path::RelPath;
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::Compression;

/// Failures of single files that are printed, and warnings.
const LINES_SHOWN_MAX: usize = 20;

/// The transfer gives up by itself when nothing happens, and says more than who attends to it can.
const SILENCE_BEYOND: Duration = Duration::from_secs(1);

/// What is good about a transfer that ended early.
const KEPT: &str = "What has arrived is kept, and the same command goes on with it.";

/// Explains why a transfer failed, and what to do. Errors of connecting and of the destination name their place themselves.
pub fn failure_at(location: &OsStr, error: &GetError, server: &FileServerArgs) -> Failure {
    let is_glob = || Location::parse(location).is_ok_and(|location| location.is_glob());
    match error {
        GetError::Transfer(
            TransferError::Refused { code: ErrorCode::NotFound, .. }
            | TransferError::Unmet { code: ErrorCode::NotFound, .. },
        ) if is_glob() => Failure::failed(format!(
            "{}: {error}; to take * ? [ or {{ literally, put a \\ before it",
            location.display()
        )),
        GetError::Transfer(_) => Failure::failed(format!("{}: {error}", location.display())),
        GetError::Refused { .. } => Failure::failed(format!("{error} ({})", server.login_hint())),
        _ => Failure::failed(error),
    }
}

/// Arguments of `tow get`.
#[derive(clap::Args)]
pub struct Arguments {
    /// File, directory or glob (* ? [a-z] {a,b} **): tcp://HOST:PORT/PATH or ipc://SOCKET:/PATH.
    location: OsString,
    /// Where to write; - is standard output [default: the source's name; of a glob .]
    destination: Option<PathBuf>,
    /// Print one JSON object at the end, also of a failed transfer.
    #[arg(long)]
    json: bool,
    /// Show no progress bar.
    #[arg(long, short)]
    quiet: bool,
    /// Don't check files against their BLAKE3 digests.
    #[arg(long)]
    no_verify: bool,
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

/// Of a compressed piece nothing can be kept before it is whole, and it comes over a slow link.
const COMPRESSED_CHUNK_BYTES: u64 = 256 << 10;

/// What a location names: a path, or a pattern.
pub fn source_of(location: &Location) -> Result<Source, Failure> {
    let wrong = |why: String| Failure::usage(format!("{}: {why}", String::from_utf8_lossy(&location.path)));
    match location.literal() {
        Some(path) => RelPath::new(path).map(Source::Path).map_err(|error| wrong(error.to_string())),
        None => {
            let glob =
                String::from_utf8(location.path.clone()).map_err(|_| wrong("a glob must be UTF-8".to_owned()))?;
            Ok(Source::Glob(glob))
        }
    }
}

/// A handle that Ctrl-C and SIGTERM use, so that what has arrived is kept in order; whoever attends to the work hears of it. A second
/// signal ends at once.
pub fn end_on_interrupt(pulse: Pulse) -> Result<CancelHandle, Failure> {
    let cancel = CancelHandle::new();
    let handle = cancel.clone();
    crate::runtime::signals::on_end(move || {
        if handle.is_cancelled() {
            std::process::exit(1);
        }
        handle.cancel();
        pulse.interrupted();
    })?;
    Ok(cancel)
}

/// Gets.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let location = Location::parse(&arguments.location)?;
    let mut options = GetOptions::new(location.endpoint.clone(), source_of(&location)?);
    options.connect = arguments.server.options(location.endpoint)?;
    options.verify = !arguments.no_verify;
    options.compress = arguments.zstd.then_some(Compression::Zstd);
    let chunk_bytes = if arguments.zstd { COMPRESSED_CHUNK_BYTES } else { CHUNK_BYTES_DEFAULT };
    options.chunk_bytes = arguments.chunk.unwrap_or(chunk_bytes.min(arguments.window));
    options.window_bytes = arguments.window;
    if !(CHUNK_BYTES_MIN..=CREDIT_BYTES_MAX).contains(&arguments.window) {
        return Err(Failure::usage("--window is from 4K to 8388608G"));
    }
    if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&options.chunk_bytes) {
        return Err(Failure::usage("--chunk is from 4K to 4M"));
    }
    if options.chunk_bytes > options.window_bytes {
        return Err(Failure::usage("--chunk is not over --window"));
    }
    options.durable = arguments.fsync;
    let to_output = arguments.destination.as_deref().is_some_and(|path| path.as_os_str() == "-");
    let is_path = !to_output && !arguments.discard;
    let place = arguments.destination.as_deref().unwrap_or(Path::new(".")).display().to_string();
    options.destination = match arguments.destination {
        _ if arguments.discard => Destination::Discard,
        _ if to_output => Destination::Writer(Box::new(std::io::stdout())),
        path => Destination::Path(path),
    };
    let attended = Attended::new();
    let cancel = end_on_interrupt(attended.pulse())?;
    let bar = Bar::new(arguments.quiet);
    let (last, begun) = (Arc::new(Mutex::new(Progress::default())), Instant::now());
    // A disk that does nothing for so long hangs. The other end of a pipe may take all the time that it likes.
    let silence = is_path.then_some(options.connect.idle_timeout.saturating_add(SILENCE_BEYOND));
    let mut follow = Following { bar: bar.clone(), last: Arc::clone(&last), pulse: attended.pulse(), started: false };
    let outcome =
        attended.run(silence, ENDING, move || get(options, &mut |progress| follow.progress(progress), &cancel))?;
    bar.finish();
    let last = *last.lock().unwrap_or_else(PoisonError::into_inner);
    let as_json = arguments.json;
    let show = move |object: serde_json::Value| match as_json {
        // With the file itself on standard output, the summary would be part of it.
        true if to_output => {
            say(object);
            Ok(())
        }
        true => put_out(object),
        false => Ok(()),
    };
    let outcome = outcome.unwrap_or_else(|hangs| {
        let why = match hangs {
            Hangs::Interrupted => TransferError::Cancelled.to_string(),
            Hangs::Silent(silence) => {
                format!("the disk hangs: nothing came of {place} for {} s", silence.as_secs())
            }
        };
        let object = failure_object(&last, &why, begun.elapsed());
        let kept = if is_path { format!("\n{KEPT}") } else { String::new() };
        let failure = Failure::failed(format!("{}: {why}{kept}", arguments.location.display()));
        end_anyway(&failure, move || drop(show(object)))
    });
    let summary = match outcome {
        Ok(summary) => summary,
        Err(error) => {
            // What the transfer failed of is what the person wants to know.
            let _ = show(failure_object(&last, &error.to_string(), begun.elapsed()));
            let failure = failure_at(&arguments.location, &error, &arguments.server);
            let is_kept =
                is_path && last.received_bytes > 0 && matches!(error, GetError::Transfer(_) | GetError::Hangs { .. });
            return Err(if is_kept { Failure::failed(format!("{failure}\n{KEPT}")) } else { failure });
        }
    };
    let and_more = |count: u64| match count.checked_sub(LINES_SHOWN_MAX as u64) {
        None | Some(0) => {}
        Some(more) => say(format_args!("tow: and {more} more")),
    };
    for warning in summary.warnings.iter().take(LINES_SHOWN_MAX) {
        say(format_args!("tow: {}", Shown(warning)));
    }
    and_more(summary.warned);
    for failure in summary.failures.iter().take(LINES_SHOWN_MAX) {
        say(format_args!("tow: {}: {}", Shown(&failure.path), Shown(&failure.reason)));
    }
    and_more(summary.failed);
    if bar.is_visible() && summary.failed == 0 {
        say(format_args!("tow: {}", told(&summary)));
    }
    show(summary_object(&summary))?;
    Ok(ExitCode::from(u8::from(summary.failed > 0)))
}

/// What is done with the progress of a transfer, on its thread.
struct Following {
    bar: Bar,
    last: Arc<Mutex<Progress>>,
    pulse: Pulse,
    started: bool,
}

impl Following {
    fn progress(&mut self, progress: Progress) {
        self.pulse.beat();
        if !self.started && progress.bytes_total > 0 {
            // What was here before must not look like speed. It is known before anything comes.
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

/// For a person: what came, and how fast.
fn told(summary: &Summary) -> String {
    let count = |count: u64, of: &str| format!("{count} {of}{}", if count == 1 { "" } else { "s" });
    let per_second = (summary.received_bytes as f64 / summary.seconds.max(1e-3)) as u64;
    let mut line = format!("{}, {}", count(summary.files, "file"), human_bytes(summary.bytes));
    if summary.received_bytes > 0 {
        // Some was here, or is holes, or came compressed: the speed is that of what came.
        if summary.received_bytes != summary.bytes {
            line += &format!("; {} received", human_bytes(summary.received_bytes));
        }
        let how = if summary.verified { "verified" } else { "not verified" };
        let speed = human_bytes(per_second);
        line += &format!(" in {:.1} s, {speed}/s, {how}", summary.seconds);
    }
    if summary.resumed_bytes > 0 {
        line += &format!("; {} had come before", human_bytes(summary.resumed_bytes));
    }
    if summary.skipped > 0 {
        line += &format!(
            "; {} {} here already",
            count(summary.skipped, "file"),
            if summary.skipped == 1 { "was" } else { "were" }
        );
    }
    line
}

/// Of a transfer that ended early: how far it came, and why it ended.
fn failure_object(progress: &Progress, error: &str, taken: Duration) -> serde_json::Value {
    let usage = own_usage();
    json!({
        "error": error,
        "files": progress.files_done,
        "bytes": progress.bytes_done,
        "received_bytes": progress.received_bytes,
        "resumed_bytes": progress.resumed_bytes,
        "skipped": progress.skipped,
        // Something did, even if it was no single file.
        "failed": progress.failed.max(1),
        "seconds": taken.as_secs_f64(),
        "verified": false,
        "cpu_seconds": usage.cpu_seconds,
        "peak_memory_bytes": usage.peak_memory_bytes,
        "failures": [],
        "warnings": [],
    })
}

fn summary_object(summary: &Summary) -> serde_json::Value {
    let usage = own_usage();
    json!({
        "files": summary.files,
        "bytes": summary.bytes,
        "received_bytes": summary.received_bytes,
        "resumed_bytes": summary.resumed_bytes,
        "skipped": summary.skipped,
        "failed": summary.failed,
        "seconds": summary.seconds,
        "verified": summary.verified,
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
    fn the_speed_is_that_of_what_is_named_before_it() {
        let whole = Summary {
            files: 2,
            bytes: 3 << 30,
            received_bytes: 3 << 30,
            seconds: 2.0,
            verified: true,
            ..Summary::default()
        };
        assert_eq!(told(&whole), "2 files, 3.00 GiB in 2.0 s, 1.50 GiB/s, verified");
        let part = Summary { received_bytes: 1 << 30, skipped: 1, ..whole.clone() };
        let line = "2 files, 3.00 GiB; 1.00 GiB received in 2.0 s, 512.00 MiB/s, verified; 1 file was here already";
        assert_eq!(told(&part), line);
        let none = Summary { received_bytes: 0, skipped: 2, ..whole };
        assert_eq!(told(&none), "2 files, 3.00 GiB; 2 files were here already");
    }
}
