//! `tow get`: fetches files, directories and globs.

mod bucket;
mod failure;
mod filter_args;
mod following;
mod report;

pub use failure::{failure_at, status_of_code};
pub use filter_args::FilterArgs;

use crate::cli::connect_args::FileServerArgs;
use crate::cli::escape::{Json, Line, Printable};
use crate::cli::exit::{Failure, Status};
use crate::cli::location::Location;
use crate::cli::output::{eprint_line, print_line};
use crate::cli::progress::Bar;
use crate::cli::units::{bytes_per_second, count, positive, size};
use crate::runtime::watchdog::{END_TIMEOUT, Hang, Heartbeat, Watchdog, exit_now};
use bucket::is_bucket;
use failure::{status_of, status_of_summary};
use following::ProgressFollower;
use report::{describe, describe_plan, failure_object, show_planned, summary_object};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_files::client::objects::ABORT_WITHIN;
use towpath_files::client::{
    CancelToken, ConnectOptions, Destination, Error, FileClient, GetOptions, Modes, Progress, Source, Summary,
};
use towpath_files::counted_are;
use towpath_files::limits::{CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, CREDIT_BYTES_MAX};
use towpath_files::path::RelPath;
use towpath_files::protocol::control::{Compression, FollowLinks};

/// Failures of single files, and warnings, that are printed.
const LINES_SHOWN_MAX: usize = 20;

/// Silence of the watchdog beyond the idle timeout, after which the transfer itself fails with a better message.
const EXTRA_SILENCE: Duration = Duration::from_secs(1);

/// Time from an interruption to the end if parts of objects have to be removed.
const END_IN_BUCKET: Duration = ABORT_WITHIN.saturating_add(Duration::from_secs(1));

/// Advice after a transfer that ended early.
const RESUME_HINT: &str = "What has arrived is kept; run the same command again to resume.";

/// Arguments of `tow get`.
#[derive(clap::Args)]
#[command(override_usage = "tow get [OPTIONS] <LOCATION>... [DESTINATION]")]
pub struct Arguments {
    /// Files, directories, globs (* ? [a-z] {a,b} **), as HOST:/PATH or HOST:PORT/PATH;
    /// then a path, - or s3://BUCKET/PREFIX [default: the source's name; of a glob .]
    #[arg(required = true, value_name = "LOCATION")]
    places: Vec<OsString>,
    /// Print one JSON object at the end, also if the transfer fails.
    #[arg(long)]
    json: bool,
    /// Show no progress bar.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    filter: FilterArgs,
    /// Afterwards delete what the source doesn't have, except what --exclude matches.
    #[arg(long)]
    delete: bool,
    /// Delete nothing if more than N paths would be deleted [default: 1000 if over a tenth]
    #[arg(long, value_name = "N", requires = "delete", value_parser = count)]
    max_delete: Option<u64>,
    /// Change nothing; print what would be received and deleted.
    #[arg(long, short = 'n', conflicts_with = "check")]
    dry_run: bool,
    /// Limit the transfer to this many bytes per second.
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_second)]
    bwlimit: Option<u64>,
    /// Copy what symbolic links point to, inside the root, instead of the links.
    #[arg(long, short = 'L', conflicts_with = "links")]
    follow_links: bool,
    /// Copy a named symbolic link as a link [default: what it points to]
    #[arg(long)]
    links: bool,
    /// Don't check files against their BLAKE3 digests.
    #[arg(long)]
    no_verify: bool,
    /// Compare existing files by digest, not by size and time.
    #[arg(long, conflicts_with = "no_verify")]
    check: bool,
    /// Don't copy permission bits; new files get the default mode.
    #[arg(long)]
    no_mode: bool,
    /// Don't set times.
    #[arg(long)]
    no_times: bool,
    /// Keep permission bits that the umask would clear, except setuid, setgid and world-writable.
    #[arg(long, conflicts_with = "no_mode")]
    preserve_modes: bool,
    /// Fail if the files have more bytes in all [default: no limit; 1T of holes]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,
    /// Fail if there are more entries [default: 4194304]
    #[arg(long, value_name = "COUNT", value_parser = positive::<u32>)]
    max_files: Option<u32>,
    /// Compress data that shrinks, for slow links.
    #[arg(long)]
    zstd: bool,
    /// Largest data frame, from 4K to 4M [default: 1M, with --zstd 256K, at most the window]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    chunk: Option<u64>,
    /// Most bytes in flight; from 8M the window grows to it as far links need it.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    window: u64,
    /// Sync each file before it is renamed into place, and its directory afterwards.
    #[arg(long)]
    fsync: bool,
    /// URL of the store of s3://BUCKET, if it isn't AWS or the one in AWS_ENDPOINT_URL.
    #[arg(long, value_name = "URL")]
    s3_endpoint: Option<String>,
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

impl Arguments {
    /// The locations, and the destination if there is one: the last of several.
    fn places(&self) -> Result<(&[OsString], Option<&Path>), Failure> {
        let Some((last, sources)) = self.places.split_last() else { return Ok((&[], None)) };
        if sources.is_empty() {
            return Ok((&self.places, None));
        }
        let last_is_bucket = is_bucket(Path::new(last));
        let is_location = last.as_bytes().windows(3).any(|three| three == b"://") || Location::parse(last).is_ok();
        let text = last.to_string_lossy();
        let server = text.split('/').next().unwrap_or_default();
        // USER@HOST:PATH of scp and rsync.
        let is_location = is_location || server.split_once('@').is_some_and(|(_, host)| host.contains(':'));
        if is_location && !last_is_bucket {
            if sources.iter().all(|source| Location::parse(source).is_err() && Path::new(source).exists()) {
                return Err(Failure::usage(format!(
                    "{}: it is here; tow push sends files to a server",
                    sources[0].display()
                )));
            }
            let last = last.display();
            return Err(Failure::usage(format!(
                "{last}: name a destination behind it; . is this directory (if it is the name of one, put ./ before it)"
            )));
        }
        if sources.len() > 1 && (last == "-" || self.delete) {
            let what = if self.delete { "--delete" } else { "standard output" };
            return Err(Failure::usage(format!("{what} takes one source")));
        }
        Ok((sources, Some(Path::new(last))))
    }

    /// Checks that are the same for all sources; returns the size of chunks.
    fn check(&self) -> Result<u64, Failure> {
        let chunk_bytes = if self.zstd { COMPRESSED_CHUNK_BYTES } else { CHUNK_BYTES_DEFAULT };
        let chunk_bytes = self.chunk.unwrap_or(chunk_bytes.min(self.window));
        if !(CHUNK_BYTES_MIN..=CREDIT_BYTES_MAX).contains(&self.window) {
            return Err(Failure::usage("--window: use a size from 4K to 8388608G"));
        }
        if !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes) {
            return Err(Failure::usage("--chunk: use a size from 4K to 4M"));
        }
        if chunk_bytes > self.window {
            return Err(Failure::usage("--chunk: use a size of at most --window"));
        }
        Ok(chunk_bytes)
    }

    fn options(&self, source: Source) -> Result<GetOptions, Failure> {
        let mut options = GetOptions::new(source);
        options.follow = match (self.follow_links, self.links) {
            (true, _) => FollowLinks::All,
            (false, true) => FollowLinks::None,
            (false, false) => FollowLinks::Path,
        };
        options.verify = !self.no_verify;
        options.compress = self.zstd.then_some(Compression::Zstd);
        options.chunk_bytes = self.check()?;
        options.window_bytes = self.window;
        options.durable = self.fsync;
        options.check = self.check;
        options.modes = match (self.no_mode, self.preserve_modes) {
            (true, _) => Modes::Ignore,
            (_, true) => Modes::Preserve,
            _ => Modes::Umask,
        };
        options.times = !self.no_times;
        options.max_bytes = self.max_bytes;
        if let Some(max) = self.max_files {
            options.max_entries = max as usize;
        }
        options.filter = self.filter.filter()?;
        options.delete = self.delete;
        options.max_delete = self.max_delete;
        options.bytes_per_second = self.bwlimit;
        Ok(options)
    }
}

/// Fetches each source, shows progress, and prints summaries.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let (places, destination) = arguments.places()?;
    // All that is wrong with the command line is said before anything is done.
    let mut sources = Vec::with_capacity(places.len());
    for place in places {
        let location = Location::parse(place)?;
        let source = source_of(&location)?;
        if arguments.delete && matches!(source, Source::Glob(_)) {
            return Err(Failure::usage(format!("{}: --delete needs a directory, not a glob", place.display())));
        }
        sources.push((place, arguments.server.options(location.endpoint)?, arguments.options(source)?));
    }
    let is_one = sources.len() == 1;
    if !arguments.discard
        && let Some(name) = name_of_two(sources.iter().map(|(_, _, options)| &options.source))
    {
        return Err(Failure::usage(format!(
            "two of the sources would be {name} there; get one after the other, each to a place of its own"
        )));
    }
    let to_output = destination.is_some_and(|path| path.as_os_str() == "-");
    if to_output && (arguments.delete || arguments.dry_run) {
        return Err(Failure::usage("standard output: --delete and --dry-run need a directory"));
    }
    let bucket = destination.filter(|path| is_bucket(path));
    if bucket.is_some() && (arguments.delete || arguments.dry_run) {
        return Err(Failure::usage("a bucket: --delete and --dry-run need a directory"));
    }
    if bucket.is_none() && arguments.s3_endpoint.is_some() {
        return Err(Failure::usage("--s3-endpoint is for a bucket as destination: s3://BUCKET/PREFIX"));
    }
    let watchdog = Watchdog::new();
    let cancel = cancel_on_signal(watchdog.heartbeat())?;
    let mut outcomes = Vec::with_capacity(sources.len());
    for (place, connect, mut options) in sources {
        options.destination = match destination {
            _ if arguments.discard => Destination::Discard,
            _ if to_output => Destination::Writer(Box::new(std::io::stdout())),
            Some(path) if bucket.is_some() => bucket::destination(path, arguments.s3_endpoint.as_deref(), !is_one)?,
            Some(path) if !is_one => Destination::Into(path.to_owned()),
            path => Destination::Path(path.map(PathBuf::from)),
        };
        let place = Place {
            name: place,
            destination,
            to_output,
            is_path: !to_output && !arguments.discard && bucket.is_none(),
        };
        let connect = ConnectOptions { cancel: cancel.clone(), ..connect };
        match one(&arguments, &place, FileClient::new(connect), options, &watchdog) {
            Ok(status) => outcomes.push(status),
            Err(failure) if is_one || failure.status == Status::Interrupted => return Err(failure),
            Err(failure) => {
                eprint_line(format_args!("tow: {}", Printable(&failure.to_string())));
                outcomes.push(Some(failure.status));
            }
        }
    }
    let failed: Vec<Status> = outcomes.into_iter().flatten().collect();
    let status = match failed[..] {
        [] => 0,
        // Several that failed for different reasons, or some of several.
        [first, ..] if is_one || (failed.len() == places.len() && failed.iter().all(|status| *status == first)) => {
            first as u8
        }
        _ => Status::Failed as u8,
    };
    Ok(ExitCode::from(status))
}

/// A name that two of several sources would have at the destination. What a glob matches, or a whole server has, may be there already.
fn name_of_two<'a>(sources: impl Iterator<Item = &'a Source>) -> Option<RelPath> {
    let mut names: Vec<RelPath> = sources
        .filter_map(|source| match source {
            Source::Path(path) => RelPath::new(path.name()?).ok(),
            Source::Glob(_) => None,
        })
        .collect();
    names.sort();
    names.windows(2).find(|pair| pair.first() == pair.last())?.first().cloned()
}

/// A source, and where it goes.
struct Place<'a> {
    name: &'a OsString,
    destination: Option<&'a Path>,
    to_output: bool,
    is_path: bool,
}

impl Place<'_> {
    /// Prints a JSON object, if that is wanted.
    fn show(&self, as_json: bool, object: serde_json::Value) -> Result<(), Failure> {
        show(self.to_output, as_json, object)
    }
}

fn show(to_output: bool, as_json: bool, object: serde_json::Value) -> Result<(), Failure> {
    match as_json {
        // Standard output has the file itself.
        true if to_output => {
            eprint_line(Json(object));
            Ok(())
        }
        true => print_line(Json(object)),
        false => Ok(()),
    }
}

/// Fetches one source. The status is why it is incomplete, if it is.
fn one(
    arguments: &Arguments,
    place: &Place<'_>,
    client: FileClient,
    mut options: GetOptions,
    watchdog: &Watchdog,
) -> Result<Option<Status>, Failure> {
    let (name, as_json) = (place.name, arguments.json);
    let is_plan = arguments.dry_run && place.is_path;
    if is_plan {
        options.dry_run = Some(Box::new(move |planned| show_planned(planned, as_json)));
    }
    let bar = Bar::new(arguments.quiet || is_plan);
    let (last, begun) = (Arc::new(Mutex::new(Progress::default())), Instant::now());
    // A disk without progress for so long hangs. The reader of a pipe may take its time.
    let silence = (place.is_path && !is_plan).then_some(client.options().idle_timeout.saturating_add(EXTRA_SILENCE));
    let endpoint = client.options().endpoint.to_string();
    let end_timeout = if place.destination.is_some_and(is_bucket) { END_IN_BUCKET } else { END_TIMEOUT };
    let mut follow = ProgressFollower::new(endpoint, bar.clone(), Arc::clone(&last), watchdog.heartbeat());
    let outcome =
        watchdog.run(silence, end_timeout, move || client.get(options, &mut |progress| follow.progress(progress)))?;
    bar.finish();
    let last = *last.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = outcome.unwrap_or_else(|hang| {
        let why = match hang {
            Hang::Interrupted => Error::Cancelled.to_string(),
            Hang::Silent(silence) => {
                let destination = place.destination.unwrap_or(Path::new(".")).display();
                format!("the disk hangs: no progress at {destination} for {} s", silence.as_secs())
            }
        };
        let status = if hang == Hang::Interrupted { Status::Interrupted } else { Status::Failed };
        let failure = Failure::new(status, format_args!("{}: {why}", name.display()));
        let object = failure_object(name, &last, &why, status, begun.elapsed());
        let failure = if place.is_path { failure.with(format_args!("\n{RESUME_HINT}")) } else { failure };
        let to_output = place.to_output;
        exit_now(failure, move || drop(show(to_output, as_json, object)))
    });
    let summary = match outcome {
        Ok(summary) => summary,
        Err(error) => {
            // The failure of the transfer is more important than one of the output.
            let object = failure_object(name, &last, &error.to_string(), status_of(&error), begun.elapsed());
            let _ = place.show(as_json, object);
            let failure = failure_at(name, &error, &arguments.server);
            let is_kept = place.is_path && last.received_bytes > 0;
            return Err(if is_kept { failure.with(format_args!("\n{RESUME_HINT}")) } else { failure });
        }
    };
    print_summary(&summary);
    if is_plan && !as_json {
        eprint_line(format_args!("tow: {}", describe_plan(&summary)));
    } else if bar.is_visible() && summary.failed == 0 {
        eprint_line(format_args!("tow: {}", describe(&summary)));
    }
    place.show(as_json, summary_object(name, &summary, is_plan))?;
    Ok(status_of_summary(&summary))
}

/// Prints warnings, what failed, and what is held.
fn print_summary(summary: &Summary) {
    let and_more = |count: u64| match count.checked_sub(LINES_SHOWN_MAX as u64) {
        None | Some(0) => {}
        Some(more) => eprint_line(format_args!("tow: and {more} more")),
    };
    for warning in summary.warnings.iter().take(LINES_SHOWN_MAX) {
        eprint_line(format_args!("tow: {}", Line(warning)));
    }
    and_more(summary.warned);
    for failure in summary.failures.iter().take(LINES_SHOWN_MAX) {
        eprint_line(format_args!("tow: {}: {}", Line(&failure.path), Line(&failure.reason)));
    }
    and_more(summary.failed);
    if summary.held > 0 {
        let held = summary.held;
        eprint_line(format_args!(
            "tow: {} held; --max-delete {held} allows that, and with --dry-run it lists what would be deleted",
            counted_are(held, "deletion")
        ));
    }
}
