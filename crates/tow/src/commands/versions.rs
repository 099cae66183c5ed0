//! `tow versions`: published versions of a server, and their holders.

use super::follow::with_path;
use super::get::{cancel_on_signal, failure_at, source_of};
use super::ls::date;
use crate::cli::connect_args::FileServerArgs;
use crate::cli::escape::{Json, Line};
use crate::cli::exit::{Failure, Status};
use crate::cli::location::Location;
use crate::cli::output::{eprint_line, print_line};
use crate::cli::progress::human_bytes;
use crate::runtime::watchdog::{END_TIMEOUT, Watchdog, exit_now};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use towpath_files::client::follow::{Version, Versions};
use towpath_files::client::{Error, FileClient, Holding, ListOptions, Source};
use towpath_files::counted;
use towpath_files::digest::Digest;
use towpath_files::path::RelPath;
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::{FollowLinks, Holder, HoldersWanted, KnownHolder, Left, VersionsOf};
use towpath_files::protocol::manifest::VersionName;

/// Time between questions.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Arguments of `tow versions`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Path of a server, and all below it: HOST:/, HOST:PORT/PATH or ipc://SOCKET:/PATH.
    location: OsString,
    /// Show who has a version (label or digest), or all up to a number; exit 1 unless all have it.
    #[arg(long, value_name = "VERSION")]
    who: Option<String>,
    /// Wait until enough followers have it; exit 1 if no other gets it within --timeout.
    #[arg(long, value_name = "VERSION", conflicts_with = "who")]
    wait: Option<String>,
    /// Number of followers that are enough.
    #[arg(long, value_name = "M", default_value_t = 1, requires = "wait")]
    count: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    server: FileServerArgs,
}

/// The question to the server.
enum Question {
    Who(String),
    Wait(String, u32),
    All,
}

/// Asks, and prints the answer.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let location = Location::parse(&arguments.location)?;
    let Source::Path(of) = source_of(&location)? else {
        return Err(Failure::usage(format!("{}: versions are of a path", arguments.location.display())));
    };
    let mut connect = arguments.server.options(location.endpoint)?;
    let question = match (arguments.who, arguments.wait) {
        (Some(version), _) => Question::Who(version),
        (None, Some(version)) => Question::Wait(version, arguments.count),
        (None, None) => Question::All,
    };
    let watchdog = Watchdog::new();
    connect.cancel = cancel_on_signal(watchdog.heartbeat())?;
    let (client, as_json) = (FileClient::new(connect), arguments.json);
    let outcome = watchdog.run(None, END_TIMEOUT, move || answer(&client, &of, &question, as_json))?;
    let outcome = outcome.unwrap_or_else(|_| {
        let interrupted = Error::Cancelled;
        exit_now(failure_at(&arguments.location, &interrupted, &arguments.server), || {})
    });
    // The answer is printed, and what it says is no failure to answer.
    let incomplete = |why: String| {
        if !as_json {
            eprint_line(format_args!("tow: {why}"));
        }
        Ok(ExitCode::from(Status::Failed as u8))
    };
    match outcome.map_err(|error| failure_at(&arguments.location, &error, &arguments.server))? {
        Answer::Printed => Ok(ExitCode::SUCCESS),
        Answer::TooFew(count) => {
            let have = if count == 1 { "has" } else { "have" };
            Err(Failure::new(Status::Failed, format_args!("only {count} {have} it, and nobody else gets it")))
        }
        Answer::Missing(0) => incomplete("nobody has said that it has it".to_owned()),
        Answer::Missing(1) => incomplete("one doesn't have it".to_owned()),
        Answer::Missing(count) => incomplete(format!("{count} don't have it")),
    }
}

enum Answer {
    Printed,
    TooFew(u32),
    /// So many don't have it; none: nobody has it, nor is known to lack it.
    Missing(usize),
}

fn answer(client: &FileClient, of: &RelPath, question: &Question, as_json: bool) -> Result<Answer, Error> {
    let known = client.versions()?;
    let (version, is_now) = match question {
        Question::Who(version) => (version, true),
        Question::Wait(version, _) => (version, false),
        Question::All => {
            let wanted = HoldersWanted::Seq(known.head);
            let holding = match client.holding(wanted, true) {
                // The rules let it know of versions, and not of others.
                Err(Error::Refused { code: ErrorCode::Denied, .. }) => None,
                holding => Some(holding?),
            };
            if !known.versions.iter().any(|version| version.name.of.below(of).is_some()) {
                check_there(client, of)?;
            }
            print_versions(&known, of, as_json).map_err(broken)?;
            if let Some(holding) = holding {
                print(wanted, &Answered { holding, known }, as_json).map_err(broken)?;
            }
            return Ok(Answer::Printed);
        }
    };
    let wanted = wanted(version, of, &known, is_now)?;
    if let Question::Wait(_, count) = question {
        let (mut most, mut since) = (0, Instant::now());
        loop {
            let holding = client.holding(wanted, false)?.holding;
            if holding >= *count {
                break;
            }
            if holding > most {
                (most, since) = (holding, Instant::now());
            }
            if since.elapsed() > client.options().idle_timeout {
                return Ok(Answer::TooFew(holding));
            }
            std::thread::sleep(ASK_EVERY);
        }
    }
    let holding = client.holding(wanted, true)?;
    let is_known = known.versions.iter().any(|version| HoldersWanted::Version(version.digest) == wanted);
    if matches!(wanted, HoldersWanted::Version(_)) && !is_known && holding.holding == 0 {
        return Err(no_version(version));
    }
    let answered = Answered { holding, known };
    print(wanted, &answered, as_json).map_err(broken)?;
    let missing = answered.missing(wanted).count();
    let is_everywhere = missing == 0 && answered.holding.holding > 0;
    Ok(if is_now && !is_everywhere { Answer::Missing(missing) } else { Answer::Printed })
}

/// An error if nothing is at a path. What may not be listed may be there.
fn check_there(client: &FileClient, of: &RelPath) -> Result<(), Error> {
    let options = ListOptions { follow: FollowLinks::Path, ..ListOptions::new(Source::Path(of.clone())) };
    // The first entry is enough.
    match client.list(options)?.next() {
        Some(Err(error @ (Error::Refused { code: ErrorCode::NotFound, .. } | Error::Cancelled))) => Err(error),
        _ => Ok(()),
    }
}

fn broken(failure: Failure) -> std::io::Error {
    std::io::Error::other(failure.to_string())
}

fn no_version(version: &str) -> Error {
    let message = format!("there is no version {version} of this path; tow versions HOST:/ lists all that there are");
    Error::Unmet { code: ErrorCode::NotFound, message }
}

/// The version asked for: a label, a digest or its first digits, or else the number of a change, which was given out if it is about now.
fn wanted(version: &str, of: &RelPath, known: &Versions, is_now: bool) -> Result<HoldersWanted, Error> {
    if let Some(version) = known.versions.iter().find(|known| known.name.of == *of && known.name.label == version) {
        return Ok(HoldersWanted::Version(version.digest));
    }
    if let Ok(digest) = version.parse::<Digest>() {
        // Holders may have one that the server has removed.
        return Ok(HoldersWanted::Version(digest));
    }
    if let Ok(seq) = version.parse() {
        if is_now && seq > known.head {
            let message = format!("there is no number {seq} yet: the newest one is {}", known.head);
            return Err(Error::Unmet { code: ErrorCode::NotFound, message });
        }
        return Ok(HoldersWanted::Seq(seq));
    }
    let begins = |known: &&Version| version.len() >= 8 && known.digest.to_string().starts_with(version);
    let found = known.versions.iter().find(begins);
    found.map(|version| HoldersWanted::Version(version.digest)).ok_or_else(|| no_version(version))
}

/// A line for each version, and one for the present number.
fn print_versions(known: &Versions, of: &RelPath, as_json: bool) -> Result<(), Failure> {
    let mut below = known.versions.iter().filter(|version| version.name.of.below(of).is_some());
    below.try_for_each(|version| {
        let Version { name: VersionName { of, label }, digest, seq, published, .. } = version;
        if as_json {
            let published = [published.seconds, published.nanoseconds.into()];
            let object = json!({ "label": label, "version": digest.to_string(), "seq": seq, "published": published });
            return print_line(Json(Value::Object(with_path(object, of))));
        }
        let of = if of.is_root() { String::new() } else { format!(" of {of}") };
        print_line(format_args!("{}  {digest}  {seq}  {label}{of}", date(published.seconds)))
    })?;
    if as_json { Ok(()) } else { print_line(format_args!("now at {}", known.head)) }
}

/// The holders, and the known versions.
struct Answered {
    holding: Holding,
    known: Versions,
}

impl Answered {
    /// The path that a version is of, if the server has it.
    fn path_of(&self, digest: Digest) -> Option<&RelPath> {
        let mut versions = self.known.versions.iter();
        versions.find(|version| version.digest == digest).map(|version| &version.name.of)
    }

    /// Followers that should have it and don't. A follower of no versions lacks none, nor does one of another path's versions, or one that has
    /// ended by itself.
    fn missing(&self, wanted: HoldersWanted) -> impl Iterator<Item = &KnownHolder> {
        let is_asked = move |holder: &Holder| match (wanted, holder.version) {
            (HoldersWanted::Seq(_), version) => version.is_none() && holder.versions_of.is_none(),
            (HoldersWanted::Version(wanted), None) => {
                let of = holder.versions_of.as_ref().map(VersionsOf::path);
                of.is_some() && of == self.path_of(wanted)
            }
            (HoldersWanted::Version(wanted), Some(version)) => {
                let paths = self.path_of(wanted).zip(self.path_of(version));
                paths.is_none_or(|(wanted, version)| wanted == version)
            }
        };
        let is_missed = |holder: &Holder| holder.left != Some(Left::Ended);
        self.holding
            .holders
            .iter()
            .filter(move |known| !known.holds && is_missed(&known.holder) && is_asked(&known.holder))
    }
}

fn print(wanted: HoldersWanted, answered: &Answered, as_json: bool) -> Result<(), Failure> {
    let holding = &answered.holding;
    let holders: Vec<_> = holding.holders.iter().filter(|known| known.holds).collect();
    let missing: Vec<_> = answered.missing(wanted).collect();
    if as_json {
        let holders: Vec<_> = holders.into_iter().map(holder_json).collect();
        let lacking: Vec<_> = missing.iter().map(|known| lacking_json(known)).collect();
        let missing: Vec<_> = missing.iter().map(|known| known.holder.name.as_str()).collect();
        let version: Value = match wanted {
            HoldersWanted::Seq(seq) => seq.into(),
            HoldersWanted::Version(version) => version.to_string().into(),
        };
        return print_line(Json(
            json!({ "version": version, "holders": holders, "missing": missing, "lacking": lacking }),
        ));
    }
    for known in holders {
        let durable = if known.holder.durable { ", durable" } else { "" };
        let name = name(known, holding);
        print_line(format_args!("{name} verified{durable}, seen {} s ago", known.age_ms / 1000))?;
    }
    missing.into_iter().try_for_each(|known| {
        let name = name(known, holding);
        let at = known.holder.cursor.map_or_else(|| "has nothing".to_owned(), |cursor| format!("is at {}", cursor.seq));
        print_line(format_args!("{name} missing, {at}{}, seen {} s ago", why(&known.holder), known.age_ms / 1000))
    })
}

/// Why a follower lacks something, as far as it says so.
fn why(holder: &Holder) -> String {
    let error = holder.error.as_ref().map(|error| format!(", {} ({} times)", error.text.as_str(), error.tries));
    let lacks = holder.lacks.map(|lacks| {
        let left = lacks
            .seconds_left
            .filter(|_| error.is_none() && holder.left.is_none())
            .map(|left| format!(", {left} s left"));
        format!(", lacks {} and {}{}", counted(lacks.files, "file"), human_bytes(lacks.bytes), left.unwrap_or_default())
    });
    let left = match holder.left {
        Some(Left::Lost) => ", gone",
        Some(Left::Ended) | None => "",
    };
    Line(&format!("{}{}{left}", error.unwrap_or_default(), lacks.unwrap_or_default())).to_string()
}

/// A name; with the number of the copy if there are several of that name.
fn name(known: &KnownHolder, holding: &Holding) -> String {
    let of = known.user.as_ref().map(|user| format!(" ({user})")).unwrap_or_default();
    let same = |other: &&KnownHolder| (&other.holder.name, &other.user) == (&known.holder.name, &known.user);
    let copy = known.holder.copy.filter(|_| holding.holders.iter().filter(same).count() > 1);
    let copy = copy.map(|copy| format!(" copy {:.8}", copy.to_string())).unwrap_or_default();
    Line(&format!("{}{of}{copy}", known.holder.name.as_str())).to_string()
}

/// One that lacks what was asked for, and why.
fn lacking_json(known: &KnownHolder) -> Value {
    let Holder { name, cursor, error, lacks, left, .. } = &known.holder;
    json!({
        "name": name.as_str(),
        "user": known.user,
        "seen": known.age_ms as f64 / 1e3,
        "seq": cursor.map(|cursor| cursor.seq),
        "error": error.as_ref().map(|error| error.text.as_str()),
        "tries": error.as_ref().map(|error| error.tries),
        "files": lacks.map(|lacks| lacks.files),
        "bytes": lacks.map(|lacks| lacks.bytes),
        "seconds_left": lacks.and_then(|lacks| lacks.seconds_left),
        "gone": *left == Some(Left::Lost),
    })
}

fn holder_json(known: &KnownHolder) -> Value {
    let mut object = json!({
        "name": known.holder.name.as_str(),
        "verified": true,
        "durable": known.holder.durable,
        "seen": known.age_ms as f64 / 1e3,
        "seq": known.holder.cursor.map(|cursor| cursor.seq),
    });
    if let Some(object) = object.as_object_mut() {
        object.extend(known.user.iter().map(|user| ("user".to_owned(), user.as_str().into())));
        object.extend(known.holder.copy.map(|copy| ("copy".to_owned(), copy.to_string().into())));
    }
    object
}
