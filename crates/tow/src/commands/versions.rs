//! `tow versions`: what a server has published, and who holds it.

use super::get::{cancel_on_signal, failure_at};
use super::ls::date;
use crate::cli::connect_args::FileServerArgs;
use crate::cli::escape::{Json, Line};
use crate::cli::exit::{Failure, Status};
use crate::cli::location::Location;
use crate::cli::output::print_line;
use crate::runtime::watchdog::{END_TIMEOUT, Watchdog, exit_now};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use towpath_files::client::follow::{Version, versions};
use towpath_files::client::{Asker, CancelToken, ConnectOptions, GetError, Holding, TransferError};
use towpath_files::digest::Digest;
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::{HoldersWanted, KnownHolder};

/// Time between questions.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Arguments of `tow versions`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Server: HOST:/, HOST:PORT/ or ipc://SOCKET:/.
    location: OsString,
    /// Show who has a version (its label or digest) or, for a number, everything up to it.
    #[arg(long, value_name = "VERSION")]
    who: Option<String>,
    /// Wait until enough have it; end with 1 if nobody else gets it for --timeout.
    #[arg(long, value_name = "VERSION", conflicts_with = "who")]
    wait: Option<String>,
    /// How many are enough.
    #[arg(long, value_name = "M", default_value_t = 1, requires = "wait")]
    count: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    server: FileServerArgs,
}

/// What is asked.
enum Question {
    Who(String),
    Wait(String, u32),
    All,
}

/// Asks, and prints the answer.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let location = Location::parse(&arguments.location)?;
    if !location.path.is_empty() {
        return Err(Failure::usage("versions are of a whole server: leave out what follows HOST:/"));
    }
    let connect = arguments.server.options(location.endpoint)?;
    let question = match (arguments.who, arguments.wait) {
        (Some(version), _) => Question::Who(version),
        (None, Some(version)) => Question::Wait(version, arguments.count),
        (None, None) => Question::All,
    };
    let watchdog = Watchdog::new();
    let cancel = cancel_on_signal(watchdog.heartbeat())?;
    let as_json = arguments.json;
    let outcome = watchdog.run(None, END_TIMEOUT, move || answer(&connect, &question, as_json, &cancel))?;
    let outcome = outcome.unwrap_or_else(|_| {
        let interrupted = GetError::Transfer(TransferError::Cancelled);
        exit_now(failure_at(&arguments.location, &interrupted, &arguments.server), || {})
    });
    match outcome.map_err(|error| failure_at(&arguments.location, &error, &arguments.server))? {
        Answer::Printed => Ok(ExitCode::SUCCESS),
        Answer::TooFew(count) => {
            Err(Failure::new(Status::Failed, format_args!("only {count} have it, and nobody else gets it")))
        }
    }
}

enum Answer {
    Printed,
    TooFew(u32),
}

fn answer(
    connect: &ConnectOptions,
    question: &Question,
    as_json: bool,
    cancel: &CancelToken,
) -> Result<Answer, GetError> {
    let known = versions(connect, cancel)?;
    let version = match question {
        Question::Who(version) | Question::Wait(version, _) => version,
        Question::All => {
            print_versions(&known, as_json).map_err(broken)?;
            return Ok(Answer::Printed);
        }
    };
    let mut asker = Asker::open(connect, cancel)?;
    let wanted = wanted(version, &known)?;
    if let Question::Wait(_, count) = question {
        let (mut most, mut since) = (0, Instant::now());
        loop {
            let holding = asker.holding(wanted, false)?.holding;
            if holding >= *count {
                break;
            }
            if holding > most {
                (most, since) = (holding, Instant::now());
            }
            if since.elapsed() > connect.idle_timeout {
                return Ok(Answer::TooFew(holding));
            }
            std::thread::sleep(ASK_EVERY);
        }
    }
    let holding = asker.holding(wanted, true)?;
    asker.close();
    print(wanted, &holding, as_json).map_err(broken)?;
    Ok(Answer::Printed)
}

fn broken(failure: Failure) -> std::io::Error {
    std::io::Error::other(failure.to_string())
}

/// What is asked for: a label, a digest or its first digits, or else the number of a change.
fn wanted(version: &str, known: &[Version]) -> Result<HoldersWanted, GetError> {
    if let Some(version) = known.iter().find(|of| of.label == version) {
        return Ok(HoldersWanted::Version(version.digest));
    }
    if let Ok(seq) = version.parse() {
        return Ok(HoldersWanted::Seq(seq));
    }
    let mut same = known.iter().filter(|of| version.len() >= 8 && of.digest.to_string().starts_with(version));
    match (same.next(), version.parse::<Digest>()) {
        (Some(version), _) => Ok(HoldersWanted::Version(version.digest)),
        // Holders may have one that the server has removed.
        (None, Ok(digest)) => Ok(HoldersWanted::Version(digest)),
        (None, Err(_)) => {
            let message = format!("there is no version {version}");
            Err(TransferError::Unmet { code: ErrorCode::NotFound, message }.into())
        }
    }
}

fn print_versions(known: &[Version], as_json: bool) -> Result<(), Failure> {
    known.iter().try_for_each(|version| {
        let Version { label, digest, seq, published, .. } = version;
        if as_json {
            let published = [published.seconds, published.nanoseconds.into()];
            let object = json!({ "label": label, "version": digest.to_string(), "seq": seq, "published": published });
            return print_line(Json(object));
        }
        print_line(format_args!("{}  {digest}  {seq}  {label}", date(published.seconds)))
    })
}

fn print(wanted: HoldersWanted, holding: &Holding, as_json: bool) -> Result<(), Failure> {
    let (holders, others): (Vec<_>, Vec<_>) = holding.holders.iter().partition(|known| known.holds);
    // Who follows no versions lacks none.
    let is_missing = |known: &&&KnownHolder| match wanted {
        HoldersWanted::Seq(_) => known.holder.version.is_none(),
        HoldersWanted::Version(_) => known.holder.version.is_some(),
    };
    let missing: Vec<_> = others.iter().filter(is_missing).collect();
    if as_json {
        let holders: Vec<_> = holders.into_iter().map(holder_json).collect();
        let missing: Vec<_> = missing.iter().map(|known| known.holder.name.as_str()).collect();
        let version: Value = match wanted {
            HoldersWanted::Seq(seq) => seq.into(),
            HoldersWanted::Version(version) => version.to_string().into(),
        };
        return print_line(Json(json!({ "version": version, "holders": holders, "missing": missing })));
    }
    for known in holders {
        let durable = if known.holder.durable { ", durable" } else { "" };
        print_line(format_args!("{} verified{durable}, seen {} s ago", name(known), known.age_ms / 1000))?;
    }
    missing.into_iter().try_for_each(|known| {
        print_line(format_args!(
            "{} missing, is at {}, seen {} s ago",
            name(known),
            known.holder.cursor.seq,
            known.age_ms / 1000
        ))
    })
}

fn name(known: &KnownHolder) -> String {
    let of = known.user.as_ref().map(|user| format!(" ({user})")).unwrap_or_default();
    Line(&format!("{}{of}", known.holder.name.as_str())).to_string()
}

fn holder_json(known: &KnownHolder) -> Value {
    let mut object = json!({
        "name": known.holder.name.as_str(),
        "verified": true,
        "durable": known.holder.durable,
        "seen": known.age_ms as f64 / 1e3,
        "seq": known.holder.cursor.seq,
    });
    if let (Some(user), Some(object)) = (&known.user, object.as_object_mut()) {
        object.insert("user".to_owned(), user.clone().into());
    }
    object
}
