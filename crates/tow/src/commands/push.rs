//! `tow push`: sends files to a server that takes them.

use super::get::{cancel_on_signal, failure_at, status_of_code};
use crate::cli::connect_args::FileServerArgs;
use crate::cli::escape::{Json, Line};
use crate::cli::exit::{Failure, Status};
use crate::cli::location::Location;
use crate::cli::output::{eprint_line, print_line};
use crate::cli::progress::Bar;
use crate::cli::units::bytes_per_second;
use crate::runtime::watchdog::{END_TIMEOUT, Watchdog, exit_now};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_files::client::push::{PushEvent, PushFile, PushOptions, push};
use towpath_files::client::{Error, Fault};
use towpath_files::digest::Digest;
use towpath_files::path::RelPath;
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::{Expected, WirePath};

/// Advice after a push that ended early.
const RESUME_HINT: &str = "What has arrived is kept for a day; run the same command again to resume.";

/// Arguments of `tow push`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Files, and where they go: HOST:/PATH, HOST:PORT/PATH or ipc://SOCKET:/PATH; with / at the end into it.
    #[arg(required = true, num_args = 2.., value_names = ["FILE", "LOCATION"])]
    words: Vec<OsString>,
    /// Only if the target doesn't exist.
    #[arg(long, conflicts_with = "if_digest")]
    if_absent: bool,
    /// Only to replace a file with this BLAKE3 digest.
    #[arg(long = "if", value_name = "DIGEST")]
    if_digest: Option<Digest>,
    /// Remove each local file once the server has confirmed it.
    #[arg(long)]
    remove_source: bool,
    /// Sync each file on the server before it is confirmed.
    #[arg(long)]
    fsync: bool,
    /// Limit the transfer to this many bytes per second.
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_second)]
    bwlimit: Option<u64>,
    /// Print one JSON object for each file.
    #[arg(long)]
    pub json: bool,
    /// Show no progress bar.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    server: FileServerArgs,
}

/// Results of the files.
#[derive(Debug, Default)]
struct Outcome {
    pushed: u64,
    failed: u64,
    /// Of the first that failed.
    status: Option<Status>,
}

/// Pushes, shows progress, and prints a line for each file.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Some((target, files)) = arguments.words.split_last() else {
        return Err(Failure::usage("which files, and where to?"));
    };
    let location = Location::parse(target)?;
    let mut options = PushOptions::new(location.endpoint.clone(), places(files, target, &location)?);
    options.connect = arguments.server.options(location.endpoint)?;
    options.expected = match (arguments.if_absent, arguments.if_digest) {
        (true, _) => Expected::Nothing,
        (_, Some(digest)) => Expected::Digest(digest),
        _ => Expected::Anything,
    };
    options.durable = arguments.fsync;
    options.bytes_per_second = arguments.bwlimit;
    options.remove_source = arguments.remove_source;
    let watchdog = Watchdog::new();
    let cancel = cancel_on_signal(watchdog.heartbeat())?;
    let bar = Bar::new(arguments.quiet);
    let (outcome, as_json) = (Arc::new(Mutex::new(Outcome::default())), arguments.json);
    let (shown, noted) = (bar.clone(), Arc::clone(&outcome));
    let ended = watchdog.run(None, END_TIMEOUT, move || {
        let mut on_event = |event: PushEvent| {
            noted.lock().unwrap_or_else(PoisonError::into_inner).note(&event);
            if as_json { show_json(&event) } else { show(&event) }
        };
        let mut progress = |progress: towpath_files::client::push::PushProgress| {
            let files = match progress.files {
                0 | 1 => String::new(),
                files => format!("{} of {files} files", progress.files_done),
            };
            shown.set(progress.bytes_done, progress.bytes, files);
        };
        push(&options, &mut on_event, &mut progress, &cancel)
    })?;
    bar.finish();
    let Ok(ended) = ended else {
        let interrupted = Error::Cancelled;
        exit_now(failure_at(target, &interrupted, &arguments.server), || {})
    };
    if let Err(error) = ended {
        let failure = failure_at(target, &error, &arguments.server);
        let is_kept = !matches!(error, Error::Connect { .. } | Error::Rejected { .. }) && error.fault() != Fault::Local;
        return Err(if is_kept { failure.with(format_args!("\n{RESUME_HINT}")) } else { failure });
    }
    let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(outcome.status().map_or(ExitCode::SUCCESS, |status| ExitCode::from(status as u8)))
}

/// The target path of each file.
fn places(files: &[OsString], target: &OsStr, location: &Location) -> Result<Vec<PushFile>, Failure> {
    let wrong = |what: &OsStr, why: &dyn std::fmt::Display| Failure::usage(format!("{}: {why}", what.display()));
    let path = location.literal().unwrap_or_else(|| location.path.clone());
    let path = RelPath::new(path).map_err(|error| wrong(target, &error))?;
    let into = files.len() > 1 || path.is_root() || target.as_bytes().ends_with(b"/");
    let place = |file: &OsString| {
        let remote = match into {
            false => path.clone(),
            true => {
                let name = Path::new(file).file_name().ok_or_else(|| wrong(file, &"it has no name of its own"))?;
                path.join(name.as_bytes()).map_err(|error| wrong(file, &error))?
            }
        };
        Ok(PushFile { local: PathBuf::from(file), remote })
    };
    let places = files.iter().map(place).collect::<Result<Vec<_>, Failure>>()?;
    let mut names: Vec<_> = places.iter().map(|place| &place.remote).collect();
    names.sort();
    match names.windows(2).find(|pair| pair.first() == pair.last()).and_then(|pair| pair.first()) {
        Some(twice) => Err(wrong(target, &format!("two of the files would be {twice} there"))),
        None => Ok(places),
    }
}

impl Outcome {
    fn note(&mut self, event: &PushEvent) {
        match event {
            PushEvent::Pushed { .. } => self.pushed += 1,
            PushEvent::Failed { code, .. } => {
                self.failed += 1;
                self.status.get_or_insert(status_of(*code));
            }
            _ => {}
        }
    }

    /// The reason of one file counts only if it was the only one.
    fn status(&self) -> Option<Status> {
        match (self.failed, self.pushed) {
            (0, _) => None,
            (1, 0) => self.status,
            _ => Some(Status::Failed),
        }
    }
}

fn status_of(code: Option<ErrorCode>) -> Status {
    match code {
        Some(ErrorCode::Conflict | ErrorCode::Full | ErrorCode::Unsupported) => Status::Refused,
        Some(code) => status_of_code(code),
        None => Status::Failed,
    }
}

fn line(line: impl std::fmt::Display) -> io::Result<()> {
    print_line(line).map_err(|failure| io::Error::other(failure.to_string()))
}

/// A line for each file.
fn show(event: &PushEvent) -> io::Result<()> {
    match event {
        PushEvent::Pushed { file, size, seq, same, .. } => {
            let sign = if *same { '=' } else { '+' };
            let number = seq.map(|seq| format!(" at {seq}")).unwrap_or_default();
            line(format_args!("{sign} {} {size}{number}", file.remote))
        }
        PushEvent::Failed { file, reason, .. } => {
            eprint_line(format_args!("tow: {}: {}", Line(&file.local.display().to_string()), Line(reason)));
            Ok(())
        }
        PushEvent::Interrupted { reason } | PushEvent::Warning(reason) => {
            eprint_line(format_args!("tow: {}", Line(reason)));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A JSON object for each file.
fn show_json(event: &PushEvent) -> io::Result<()> {
    let with_path = |object: Value, file: &PushFile| {
        let path = serde_json::to_value(WirePath::from(&file.remote)).unwrap_or_default();
        match (object, path) {
            (Value::Object(mut object), Value::Object(path)) => {
                object.extend(path);
                Value::Object(object)
            }
            (object, _) => object,
        }
    };
    let object = match event {
        PushEvent::Pushed { file, size, digest, seq, durable, same, resumed_bytes } => with_path(
            json!({
                "event": "pushed", "file": file.local.to_string_lossy(), "size": size, "digest": digest.to_string(), "seq": seq,
                "durable": durable, "same": same, "resumed_bytes": resumed_bytes,
            }),
            file,
        ),
        PushEvent::Failed { file, code, reason } => {
            let status = status_of(*code);
            let code = code.map(ErrorCode::as_str);
            with_path(
                json!({ "event": "failed", "file": file.local.to_string_lossy(), "reason": reason, "error": code, "status": status as u8 }),
                file,
            )
        }
        PushEvent::Interrupted { reason } => json!({ "event": "interrupted", "reason": reason }),
        PushEvent::Warning(reason) => json!({ "event": "warning", "reason": reason }),
        _ => return Ok(()),
    };
    line(Json(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(files: &[&str], target: &str) -> Result<Vec<String>, String> {
        let files: Vec<OsString> = files.iter().map(OsString::from).collect();
        let location = Location::parse(OsStr::new(target)).map_err(|failure| failure.to_string())?;
        let places = places(&files, OsStr::new(target), &location).map_err(|failure| failure.to_string())?;
        Ok(places.iter().map(|place| place.remote.to_string()).collect())
    }

    #[test]
    fn one_file_gets_the_name_and_several_go_into_it() {
        for (files, target, remote) in [
            (&["a"][..], "h:/in/b", &["in/b"][..]),
            (&["x/a"], "h:/in/", &["in/a"]),
            (&["a"], "h:/", &["a"]),
            (&["x/a", "b"], "h:/in", &["in/a", "in/b"]),
        ] {
            assert_eq!(placed(files, target), Ok(remote.iter().map(ToString::to_string).collect()), "{files:?}");
        }
        assert!(placed(&["x/a", "y/a"], "h:/in").is_err_and(|error| error.contains("two of the files")));
        assert!(placed(&[".."], "h:/in/").is_err());
    }
}
