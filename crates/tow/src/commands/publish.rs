//! `tow publish`: freezes a directory of a server as a version.

use super::get::{cancel_on_signal, failure_at, source_of};
use crate::cli::connect_args::FileServerArgs;
use crate::cli::escape::Json;
use crate::cli::exit::Failure;
use crate::cli::location::Location;
use crate::cli::output::print_line;
use crate::cli::units::positive;
use crate::runtime::watchdog::{END_TIMEOUT, Watchdog, exit_now};
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use towpath_files::client::{Error, FileClient, Source};
use towpath_files::counted;
use towpath_files::path::RelPath;
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::PublishedReply;

/// Time between attempts while something is being written.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Arguments of `tow publish`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Directory of a server with --watch and --state: HOST:/, HOST:PORT/PATH or ipc://SOCKET:/PATH.
    location: OsString,
    /// Name of the version: letters, digits, . _ and - [default: the first digits of its digest]
    label: Option<String>,
    /// Remove all versions but the newest N.
    #[arg(long, value_name = "N", value_parser = positive::<u32>)]
    keep: Option<u32>,
    /// Print a JSON object.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    server: FileServerArgs,
}

/// Publishes, and prints what.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let location = Location::parse(&arguments.location)?;
    let Source::Path(path) = source_of(&location)? else {
        return Err(Failure::usage(format!("{}: a version is of a directory", arguments.location.display())));
    };
    let mut connect = arguments.server.options(location.endpoint)?;
    let watchdog = Watchdog::new();
    connect.cancel = cancel_on_signal(watchdog.heartbeat())?;
    let client = FileClient::new(connect);
    let (label, keep) = (arguments.label, arguments.keep);
    let outcome = watchdog.run(None, END_TIMEOUT, move || publish(&client, &path, label.as_deref(), keep))?;
    let outcome = outcome.unwrap_or_else(|_| {
        let interrupted = Error::Cancelled;
        exit_now(failure_at(&arguments.location, &interrupted, &arguments.server), || {})
    });
    let published = outcome.map_err(|error| failure_at(&arguments.location, &error, &arguments.server))?;
    let PublishedReply { version, label, seq, files, bytes, same, .. } = published;
    if arguments.json {
        print_line(Json(json!({
            "version": version.to_string(), "label": label, "seq": seq, "files": files, "bytes": bytes, "same": same,
        })))?;
    } else {
        let same = if same { ", there before" } else { "" };
        print_line(format_args!(
            "{label} {version} {}, {}, at {seq}{same}",
            counted(files, "file"),
            counted(bytes, "byte")
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Publishes; what is being written is waited for.
fn publish(
    client: &FileClient,
    path: &RelPath,
    label: Option<&str>,
    keep: Option<u32>,
) -> Result<PublishedReply, Error> {
    let begun = Instant::now();
    loop {
        match client.publish(path, label, keep) {
            Err(Error::Refused { code: ErrorCode::Changed | ErrorCode::Busy, .. })
                if begun.elapsed() < client.options().idle_timeout && !client.options().cancel.is_cancelled() =>
            {
                std::thread::sleep(AGAIN_AFTER);
            }
            outcome => return outcome,
        }
    }
}
