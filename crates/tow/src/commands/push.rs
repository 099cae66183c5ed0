//! `tow push`: sends files, directories and standard input to a server that takes them.

use super::get::{FilterArgs, cancel_on_signal, failure_at, status_of_code};
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
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_files::client::push::{PushEvent, PushFile, PushOptions, PushProgress, PushSource};
use towpath_files::client::{Error, Fault, FileClient, Filter};
use towpath_files::digest::Digest;
use towpath_files::path::RelPath;
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::{Expected, WirePath};

/// Advice after a push that ended early.
const RESUME_HINT: &str = "What has arrived is kept for a day; run the same command again to resume.";

/// Stands for standard input.
const STDIN: &str = "-";

/// Arguments of `tow push`.
#[derive(clap::Args)]
#[command(mut_arg("exclude", |arg| arg.help("Skip what matches in directories, as in .gitignore: *.tmp, /cache/")))]
#[command(mut_arg("include", |arg| arg.help("Push only what matches in directories; the first matching pattern wins")))]
pub struct Arguments {
    /// Files, directories, or - for standard input, and where they go:
    /// HOST:/PATH, HOST:PORT/PATH or ipc://SOCKET:/PATH; with / at the end into it.
    #[arg(required = true, num_args = 2.., value_names = ["FILE", "LOCATION"])]
    words: Vec<OsString>,
    #[command(flatten)]
    filter: FilterArgs,
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
    /// Show no progress bar, and no lines but of what failed.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    server: FileServerArgs,
}

/// Results of the files.
#[derive(Debug, Default)]
struct Outcome {
    pushed: u64,
    /// Why files failed, each reason once.
    failed: Vec<Status>,
}

/// Pushes, shows progress, and prints a line for each file.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Some((target, files)) = arguments.words.split_last() else {
        return Err(Failure::usage("which files, and where to?"));
    };
    let location = Location::parse(target)?;
    let has_stdin = files.iter().any(|file| file == STDIN);
    if has_stdin && arguments.remove_source {
        return Err(Failure::usage("standard input can't be removed: leave out --remove-source"));
    }
    let mut options = PushOptions::new(sources(files, target, &location, &arguments.filter.filter()?)?);
    let mut connect = arguments.server.options(location.endpoint)?;
    options.expected = match (arguments.if_absent, arguments.if_digest) {
        (true, _) => Expected::Nothing,
        (_, Some(digest)) => Expected::Digest(digest),
        _ => Expected::Anything,
    };
    options.durable = arguments.fsync;
    options.bytes_per_second = arguments.bwlimit;
    options.remove_source = arguments.remove_source;
    let watchdog = Watchdog::new();
    connect.cancel = cancel_on_signal(watchdog.heartbeat())?;
    let client = FileClient::new(connect);
    let bar = Bar::new(arguments.quiet);
    let (outcome, as_json, is_quiet) = (Arc::new(Mutex::new(Outcome::default())), arguments.json, arguments.quiet);
    let (shown, noted) = (bar.clone(), Arc::clone(&outcome));
    let ended = watchdog.run(None, END_TIMEOUT, move || {
        let mut on_event = |event: PushEvent| {
            noted.lock().unwrap_or_else(PoisonError::into_inner).note(&event);
            match event {
                _ if as_json => show_json(&event),
                PushEvent::Pushed { .. } if is_quiet => Ok(()),
                _ => show(&event),
            }
        };
        let mut progress = |progress: PushProgress| {
            let files = match progress.files {
                0 | 1 => String::new(),
                files => format!("{} of {files} files", progress.files_done),
            };
            shown.set(progress.bytes_done, progress.bytes, files);
        };
        client.push(options, &mut on_event, &mut progress)
    })?;
    bar.finish();
    let Ok(ended) = ended else {
        let interrupted = Error::Cancelled;
        exit_now(failure_at(target, &interrupted, &arguments.server), || {})
    };
    if let Err(error) = ended {
        let failure = failure_at(target, &error, &arguments.server);
        let is_kept = !has_stdin
            && !matches!(error, Error::Connect { .. } | Error::Rejected { .. })
            && error.fault() != Fault::Local;
        return Err(if is_kept { failure.with(format_args!("\n{RESUME_HINT}")) } else { failure });
    }
    let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(outcome.status().map_or(ExitCode::SUCCESS, |status| ExitCode::from(status as u8)))
}

/// The sources, and where each goes.
fn sources(
    files: &[OsString],
    target: &OsStr,
    location: &Location,
    filter: &Filter,
) -> Result<Vec<PushSource>, Failure> {
    let wrong = |what: &OsStr, why: &dyn std::fmt::Display| Failure::usage(format!("{}: {why}", what.display()));
    let path = location.literal().unwrap_or_else(|| location.path.clone());
    let path = RelPath::new(path).map_err(|error| wrong(target, &error))?;
    let into = files.len() > 1 || path.is_root() || target.as_bytes().ends_with(b"/");
    let mut names = Vec::with_capacity(files.len());
    let mut source = |file: &OsString| {
        let (is_stdin, local) = (file == STDIN, PathBuf::from(file));
        let is_dir = !is_stdin && local.is_dir();
        let remote = match (into, local.file_name()) {
            (false, _) => path.clone(),
            (true, _) if is_stdin => return Err(wrong(file, &"name the file that standard input goes to")),
            // Such as . and ..: what is in it goes directly into the other one.
            (true, None) if is_dir => path.clone(),
            (true, None) => return Err(wrong(file, &"it has no name of its own")),
            (true, Some(name)) => path.join(name.as_bytes()).map_err(|error| wrong(file, &error))?,
        };
        names.push(remote.clone());
        Ok(match is_dir {
            _ if is_stdin => PushSource::Reader { reader: Box::new(io::stdin()), remote },
            true => PushSource::Tree { local, remote, filter: filter.clone() },
            false => PushSource::File(PushFile { local, remote }),
        })
    };
    let sources = files.iter().map(&mut source).collect::<Result<Vec<_>, Failure>>()?;
    names.sort();
    match names.windows(2).find(|pair| pair.first() == pair.last()).and_then(|pair| pair.first()) {
        Some(twice) => Err(wrong(target, &format!("two of the files would be {twice} there"))),
        None => Ok(sources),
    }
}

impl Outcome {
    fn note(&mut self, event: &PushEvent) {
        match event {
            PushEvent::Pushed { .. } => self.pushed += 1,
            PushEvent::Failed { code, .. } if !self.failed.contains(&status_of(*code)) => {
                self.failed.push(status_of(*code));
            }
            _ => {}
        }
    }

    /// The reason counts only if nothing was pushed, and all failed by the same.
    fn status(&self) -> Option<Status> {
        match (&self.failed[..], self.pushed) {
            ([], _) => None,
            ([status], 0) => Some(*status),
            _ => Some(Status::Failed),
        }
    }
}

/// The name of a file here.
fn local_name(file: &PushFile) -> String {
    if file.local.as_os_str().is_empty() { STDIN.to_owned() } else { file.local.to_string_lossy().into_owned() }
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
            eprint_line(format_args!("tow: {}: {}", Line(&local_name(file)), Line(reason)));
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
                "event": "pushed", "file": local_name(file), "size": size, "digest": digest.to_string(), "seq": seq,
                "durable": durable, "same": same, "resumed_bytes": resumed_bytes,
            }),
            file,
        ),
        PushEvent::Failed { file, code, reason } => {
            let status = status_of(*code);
            let code = code.map(ErrorCode::as_str);
            with_path(
                json!({ "event": "failed", "file": local_name(file), "reason": reason, "error": code, "status": status as u8 }),
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
        let sources = sources(&files, OsStr::new(target), &location, &Filter::default());
        let remote = |source: &PushSource| match source {
            PushSource::File(PushFile { remote, .. })
            | PushSource::Tree { remote, .. }
            | PushSource::Reader { remote, .. } => remote.to_string(),
        };
        sources.map(|sources| sources.iter().map(remote).collect()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn one_file_gets_the_name_and_several_go_into_it() {
        for (files, target, remote) in [
            (&["a"][..], "h:/in/b", &["in/b"][..]),
            (&["x/a"], "h:/in/", &["in/a"]),
            (&["a"], "h:/", &["a"]),
            (&["x/a", "b"], "h:/in", &["in/a", "in/b"]),
            // Directories: this one, and one that has no name of its own.
            (&["../tow"], "h:/in", &["in"]),
            (&["../tow", "a"], "h:/in", &["in/tow", "in/a"]),
            (&[".", "a"], "h:/in", &["in", "in/a"]),
            (&["-"], "h:/in/a", &["in/a"]),
        ] {
            assert_eq!(placed(files, target), Ok(remote.iter().map(ToString::to_string).collect()), "{files:?}");
        }
        assert!(placed(&["x/a", "y/a"], "h:/in").is_err_and(|error| error.contains("two of the files")));
        assert!(placed(&["-"], "h:/in/").is_err_and(|error| error.contains("name the file")));
        assert!(placed(&["-", "-"], "h:/in").is_err() && placed(&["missing/.."], "h:/in/").is_err());
    }
}
