//! `tow follow`: keeps a directory as a path on a server is.

use super::follow_exec::Exec;
use super::get::{cancel_on_signal, failure_at, source_of};
use super::relay::{self, RelayArgs};
use crate::cli::connect_args::FileServerArgs;
use crate::cli::escape::{Json, Line};
use crate::cli::exit::{Failure, Status};
use crate::cli::location::Location;
use crate::cli::output::{eprint_line, try_print_line as line};
use crate::cli::units::bytes_per_second;
use crate::runtime::watchdog::{END_TIMEOUT, Watchdog, exit_now};
use serde_json::{Map, Value, json};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use towpath_files::client::follow::{ALL_EXCLUDED, Excludes, FollowEnd, FollowEvent, FollowOptions, HeldWhy, PutKind};
use towpath_files::client::{Error, FileClient, Source};
use towpath_files::counted_are;
use towpath_files::path::{Escaped, RelPath};
use towpath_files::protocol::control::{Compression, HolderName, LinkTarget, WirePath};

/// Paths of held deletions that are printed.
const HELD_SHOWN_MAX: usize = 20;

/// Arguments of `tow follow`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Path or glob (* ? [a-z] {a,b} **): HOST:/PATH, HOST:PORT/PATH or ipc://SOCKET:/PATH.
    location: OsString,
    /// Directory to keep up to date [default: the path's name; of a glob .]
    destination: Option<PathBuf>,
    /// Exit once up to date.
    #[arg(long)]
    once: bool,
    /// Delete what the server has deleted, but nothing that was changed locally.
    #[arg(long)]
    mirror: bool,
    /// Hold deletions back if more than N are due [default: 1000 if over a tenth, or everything]
    #[arg(long, value_name = "N", requires = "mirror")]
    max_delete: Option<u64>,
    /// Skip what matches a pattern, as in .gitignore. Repeatable.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Move deleted and replaced files into this directory.
    #[arg(long, value_name = "DIR")]
    trash: Option<PathBuf>,
    /// Continue although the copy is of another or an unknown server or path; compares everything.
    #[arg(long)]
    adopt: bool,
    /// Run this shell command once up to date after changes; it reads them as JSON lines.
    #[arg(long, value_name = "CMD")]
    exec: Option<OsString>,
    /// Print one JSON object for each event.
    #[arg(long)]
    pub json: bool,
    /// Sync each file before it is renamed into place, its directory afterwards, and the progress record.
    #[arg(long)]
    fsync: bool,
    /// Name of this copy in the server's list of followers [default: the host's]
    #[arg(long, value_name = "NAME", value_parser = holder_name)]
    name: Option<HolderName>,
    /// Limit the transfer to this many bytes per second.
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_second)]
    bwlimit: Option<u64>,
    #[command(flatten)]
    relay: RelayArgs,
    /// Fetch published versions, each as a whole, and point the link DIR/current to the newest.
    #[arg(long, conflicts_with_all = ["mirror", "trash", "exclude"])]
    versions: bool,
    /// Compress data that shrinks, for slow links.
    #[arg(long)]
    zstd: bool,
    #[command(flatten)]
    server: FileServerArgs,
}

/// Follows until it is interrupted, or up to date.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let location = Location::parse(&arguments.location)?;
    let source = source_of(&location)?;
    if arguments.versions && !matches!(&source, Source::Path(_)) {
        return Err(Failure::usage("--versions follows what is published of one path: HOST:/ or HOST:/PATH"));
    }
    let destination = match arguments.destination {
        Some(destination) => destination,
        None if matches!(&source, Source::Path(path) if path.is_root()) => {
            let location = arguments.location.display();
            return Err(Failure::usage(format!("{location}: {}", Error::NoDestination)));
        }
        None => own_name(&source),
    };
    if arguments.relay.is_encrypted() {
        arguments.server.serve_with_key();
    }
    let mut connect = arguments.server.options(location.endpoint)?;
    let mut options = FollowOptions::new(source, destination);
    options.versions = arguments.versions;
    options.once = arguments.once;
    options.mirror = arguments.mirror;
    options.max_delete = arguments.max_delete;
    options.exclude = Excludes::new(arguments.exclude).map_err(|why| Failure::usage(format!("--exclude: {why}")))?;
    options.trash = arguments.trash;
    options.adopt = arguments.adopt;
    options.durable = arguments.fsync;
    options.bytes_per_second = arguments.bwlimit;
    options.compress = arguments.zstd.then_some(Compression::Zstd);
    options.name = arguments.name.unwrap_or(options.name);
    let (key, mechanism) = (arguments.server.key_file(), &connect.mechanism);
    let relay = relay::start(arguments.relay, key, mechanism, &mut options)?;
    let watchdog = Watchdog::new();
    connect.cancel = cancel_on_signal(watchdog.heartbeat())?;
    let client = FileClient::new(connect);
    let (as_json, is_mirror) = (arguments.json, arguments.mirror);
    let exec = arguments.exec.map(|command| Exec::start(command, options.destination.clone(), options.changes_names()));
    let exec = exec.transpose();
    let exec = exec.map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
    let (destination, of) = (options.destination.clone(), arguments.location.clone());
    let mut is_looked_at = arguments.versions;
    let outcome = watchdog.run(None, END_TIMEOUT, move || {
        let mut on_event = |event: FollowEvent| {
            is_looked_at |= matches!(&event, FollowEvent::Warning(why) if why == ALL_EXCLUDED);
            if matches!(event, FollowEvent::UpToDate { .. })
                && !std::mem::replace(&mut is_looked_at, true)
                && has_nothing(&destination)
            {
                let of = of.display().to_string();
                eprint_line(format_args!("tow: {}: nothing to follow is there yet", Line(&of)));
            }
            if let Some(exec) = &exec {
                act(exec, &event)?;
            }
            if as_json { show_json(&event) } else { show(&event, is_mirror) }
        };
        let outcome = client.follow_with(&options, &mut on_event);
        // Of one that ends by itself.
        let has_acted = outcome.is_err() || exec.is_none_or(Exec::finish);
        outcome.map(|end| if has_acted || end != FollowEnd::UpToDate { end } else { FollowEnd::Incomplete })
    })?;
    let Ok(outcome) = outcome else {
        let interrupted = Error::Cancelled;
        exit_now(failure_at(&arguments.location, &interrupted, &arguments.server), || {})
    };
    drop(relay);
    match outcome {
        Ok(FollowEnd::UpToDate) => Ok(ExitCode::SUCCESS),
        Ok(FollowEnd::Held) => Ok(ExitCode::from(Status::Held as u8)),
        Ok(FollowEnd::Incomplete) => Ok(ExitCode::FAILURE),
        Err(error) => Err(failure_at(&arguments.location, &error, &arguments.server)),
    }
}

/// Whether a directory has nothing but what following needs: the path may be misspelt.
fn has_nothing(destination: &Path) -> bool {
    let entries = std::fs::read_dir(destination).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).all(|name| name.as_bytes().starts_with(b".tow-"))
}

fn holder_name(text: &str) -> Result<HolderName, String> {
    HolderName::new(text)
}

/// Passes an event to the command of `--exec`.
fn act(exec: &Exec, event: &FollowEvent) -> io::Result<()> {
    match event {
        FollowEvent::Put { .. } | FollowEvent::Gone { .. } | FollowEvent::Renamed { .. } => {
            exec.note(&Json(Value::Object(object(event))).to_string())
        }
        FollowEvent::UpToDate { seq } => {
            exec.up_to_date(*seq);
            Ok(())
        }
        FollowEvent::Version { seq, .. } => {
            exec.note(&Json(Value::Object(object(event))).to_string())?;
            exec.up_to_date(*seq);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn own_name(source: &Source) -> PathBuf {
    match source {
        Source::Path(path) => path.name().map_or_else(|| Path::new(".").into(), |name| OsStr::from_bytes(name).into()),
        Source::Glob(_) => ".".into(),
    }
}

/// A line for each change.
fn show(event: &FollowEvent, is_mirror: bool) -> io::Result<()> {
    match event {
        FollowEvent::Put { path, is_new, kind, .. } => {
            let sign = if *is_new { '+' } else { '~' };
            match kind {
                PutKind::File { size, .. } => line(format_args!("{sign} {path} {size}")),
                PutKind::Dir => line(format_args!("{sign} {path}/")),
                PutKind::Link { target } => line(format_args!("{sign} {path} -> {}", Escaped(target))),
            }
        }
        FollowEvent::Gone { path, kept: true, .. } if is_mirror => {
            line(format_args!("- {path} (stays: it was changed here, or has something else in it)"))
        }
        FollowEvent::Gone { path, kept: true, .. } => line(format_args!("- {path} (stays without --mirror)")),
        FollowEvent::Gone { path, .. } => line(format_args!("- {path}")),
        FollowEvent::Renamed { from, to, .. } => line(format_args!("> {from} {to}")),
        FollowEvent::UpToDate { seq } => line(format_args!("up to date at {seq}")),
        FollowEvent::Version { label, version, .. } => line(format_args!("version {label} {version}")),
        FollowEvent::Conflict { path, kept_as } => {
            eprint_line(format_args!("tow: {path}: it was changed here; that is kept as {kept_as}"));
            Ok(())
        }
        FollowEvent::Held { paths, why } => {
            let count = paths.len();
            let held = counted_are(count as u64, "deletion");
            match why {
                HeldWhy::TooMany => {
                    eprint_line(format_args!("tow: {held} held; start again with --max-delete {count} to allow that:"))
                }
                HeldWhy::UnknownServer => eprint_line(format_args!(
                    "tow: {held} held: the server has no lasting number (tow serve --state), so it may be \
                     another one than before; if it is the right one, start again with --adopt to allow that:"
                )),
            }
            for path in paths.iter().take(HELD_SHOWN_MAX) {
                eprint_line(format_args!("tow:   {path}"));
            }
            if paths.len() > HELD_SHOWN_MAX {
                eprint_line(format_args!("tow:   and {} more", paths.len() - HELD_SHOWN_MAX));
            }
            Ok(())
        }
        FollowEvent::Failed { path, reason } => {
            eprint_line(format_args!("tow: {path}: {}", Line(reason)));
            Ok(())
        }
        FollowEvent::Interrupted { reason } => {
            eprint_line(format_args!("tow: {}", Line(reason)));
            Ok(())
        }
        FollowEvent::Warning(text) => {
            eprint_line(format_args!("tow: {}", Line(text)));
            Ok(())
        }
    }
}

/// A JSON object for each event.
fn show_json(event: &FollowEvent) -> io::Result<()> {
    line(Json(Value::Object(object(event))))
}

fn object(event: &FollowEvent) -> Map<String, Value> {
    match event {
        FollowEvent::Put { path, seq, is_new, kind } => {
            let event = if *is_new { "new" } else { "changed" };
            let mut object = with_path(json!({ "event": event, "seq": seq }), path);
            match kind {
                PutKind::File { size, digest } => {
                    object.extend([
                        ("type".to_owned(), "file".into()),
                        ("size".to_owned(), (*size).into()),
                        ("digest".to_owned(), digest.to_string().into()),
                    ]);
                }
                PutKind::Dir => object.extend([("type".to_owned(), "dir".into())]),
                PutKind::Link { target } => {
                    object.extend([("type".to_owned(), "link".into())]);
                    object.extend(members(&LinkTarget::from(target.clone())));
                }
            }
            object
        }
        FollowEvent::Gone { path, seq, kept } => with_path(json!({ "event": "gone", "seq": seq, "kept": kept }), path),
        FollowEvent::Renamed { from, to, seq } => {
            let mut object = with_path(json!({ "event": "renamed", "seq": seq }), to);
            let from =
                members(&WirePath::from(from)).into_iter().map(|(name, value)| (name.replace("path", "from"), value));
            object.extend(from);
            object
        }
        FollowEvent::UpToDate { seq } => members(&json!({ "event": "up-to-date", "seq": seq })),
        FollowEvent::Version { label, version, seq } => {
            members(&json!({ "event": "version", "label": label, "version": version.to_string(), "seq": seq }))
        }
        FollowEvent::Conflict { path, kept_as } => {
            with_path(json!({ "event": "conflict", "kept_as": kept_as.to_string() }), path)
        }
        FollowEvent::Held { paths, why } => {
            let shown: Vec<_> = paths.iter().take(HELD_SHOWN_MAX).map(ToString::to_string).collect();
            let why = match why {
                HeldWhy::TooMany => "too-many",
                HeldWhy::UnknownServer => "unknown-server",
            };
            members(&json!({ "event": "held", "count": paths.len(), "paths": shown, "why": why }))
        }
        FollowEvent::Failed { path, reason } => with_path(json!({ "event": "failed", "reason": reason }), path),
        FollowEvent::Interrupted { reason } => members(&json!({ "event": "interrupted", "reason": reason })),
        FollowEvent::Warning(text) => members(&json!({ "event": "warning", "reason": text })),
    }
}

/// An object with the members of a path.
pub fn with_path(object: Value, path: &RelPath) -> Map<String, Value> {
    let mut object = members(&object);
    object.extend(members(&WirePath::from(path)));
    object
}

/// The members of an object.
fn members(value: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}
