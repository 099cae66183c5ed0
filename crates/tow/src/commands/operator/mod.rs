//! The commands of the operator, such as `tow status`, `peers`, `top`, `kick`, `pause` and `drain`: what a server or broker does, and a hand on it.

mod audit;
mod block;
pub mod cell;
mod drain;
mod letters;
mod mute;
mod page;
mod problems;
mod requests;
mod rows;
mod status;
mod token;
mod top;

pub use audit::audit;
pub use block::{BlockArguments, UnblockArguments, block, unblock};
pub use drain::{DrainArguments, drain};
pub use letters::{LettersArguments, RequeueArguments, list as list_letters, requeue};
pub use mute::{MuteArguments, mute};
pub use page::{PageArguments, page};
pub use requests::{RequestsArguments, requests};
pub use token::{TokenArguments, token};
pub use top::top;

use crate::admin::client::{Client, Found, ServerArgs, describe, find_one, search};
use crate::admin::{List, sort};
use crate::cli::escape::{Json, Line, Printable};
use crate::cli::exit::{Failure, Status};
use crate::cli::output::{eprint_line, print_bytes, print_line};
use crate::cli::service_name::{NameArgs, ServiceName};
use crate::cli::units::duration;
use crate::runtime::screen;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rows::counted_of;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Begins a new picture on a terminal: the cursor home, and all below it erased.
const NEW_PICTURE: &str = "\x1b[H\x1b[J";

/// Problems of each of several servers that are shown.
const FIRST: usize = 5;

/// Arguments of `tow status`.
#[derive(clap::Args)]
pub struct StatusArguments {
    /// Print only problems; the exit status is 10 if there are any, 11 if one is critical.
    #[arg(long, conflicts_with = "watch")]
    check: bool,
    #[command(flatten)]
    common: Arguments,
}

/// Arguments of `tow status` and of the lists.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print one JSON object per entry.
    #[arg(long)]
    json: bool,
    /// Refresh at this interval.
    #[arg(long, value_name = "TIME", value_parser = duration, num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    watch: Option<Duration>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of the lists.
#[derive(clap::Args)]
pub struct ListArguments {
    /// Only entries with this text in a name, address, path or other text; in any case of letters.
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Sort by a member of --json, such as waiting; -waiting for the largest first.
    #[arg(long, value_name = "MEMBER", allow_hyphen_values = true)]
    sort: Option<String>,
    #[command(flatten)]
    common: Arguments,
}

/// Arguments of `tow services` and `tow workers`.
#[derive(clap::Args)]
pub struct ServiceArguments {
    /// Only this one.
    service: Option<OsString>,
    #[command(flatten)]
    name: NameArgs,
    #[command(flatten)]
    list: ListArguments,
}

/// Arguments of `tow kick`.
#[derive(clap::Args)]
pub struct KickArguments {
    /// Id of the peer, from `tow peers`. No later peer has the same.
    id: String,
    /// Reason that the peer is given.
    #[arg(long, value_name = "TEXT", default_value = "ended by the operator")]
    reason: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `tow forget`.
#[derive(clap::Args)]
pub struct ForgetArguments {
    /// Name of the follower, from `tow followers`.
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `tow pause` and `tow resume`.
#[derive(clap::Args)]
pub struct PauseArguments {
    /// The service.
    service: OsString,
    #[command(flatten)]
    name: NameArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// Arguments of `tow purge`.
#[derive(clap::Args)]
pub struct PurgeArguments {
    /// The service.
    #[arg(required_unless_present = "outcomes")]
    service: Option<OsString>,
    #[command(flatten)]
    name: NameArgs,
    /// How many requests wait, from `tow services`. If it is another number by now, nothing is purged.
    #[arg(long, value_name = "N")]
    expect: Option<usize>,
    /// Drop the outcomes of clients that are gone, rather than requests.
    #[arg(long, conflicts_with_all = ["service", "expect"])]
    outcomes: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints the state of each server.
pub fn status(StatusArguments { check, common: arguments }: &StatusArguments) -> Result<ExitCode, Failure> {
    let (mut worst, mut failed) = (None, None);
    repeat(arguments, arguments.watch, || {
        let mut text = String::new();
        let (found, hung) = search(&arguments.server, None)?;
        match hung {
            Some(failure) if *check => failed = Some(failure),
            Some(failure) => eprint_line(format_args!("tow: {}", Printable(&failure.to_string()))),
            None => {}
        }
        for Found { client, status } in &found {
            let problems = match client.get("/api/v1/problems") {
                Ok(problems) => problems,
                // It is starting, or of another version.
                Err(failure) => {
                    failed = failed.take().or(Some(failure).filter(|_| *check));
                    Value::Null
                }
            };
            worst = worst.max(problems::worst(&problems));
            let shown = match (arguments.json, check, &found[..]) {
                (true, ..) => {
                    let mut status = status.clone();
                    status["problems"] = problems["problems"].clone();
                    status["muted"] = problems["muted"].clone();
                    format!("{}\n", Json(&status))
                }
                (_, true, [_]) => problems::render(&problems),
                (_, true, _) => format!("{}\n{}", Line(&describe(status, client)), problems::render(&problems)),
                (_, _, [_]) => status::restart(status) + &problems::render(&problems) + &status::render(status),
                _ => format!(
                    "{}\n{}{}\n",
                    Line(&describe(status, client)),
                    status::restart(status),
                    problems::first(&problems, FIRST)
                ),
            };
            text.push_str(&shown);
        }
        Ok(text)
    })?;
    let worst = worst.filter(|_| *check);
    match failed {
        // What is known to be critical is worse.
        Some(failure) if worst == Some(Status::Critical) => {
            eprint_line(format_args!("tow: {}", Printable(&failure.to_string())));
        }
        Some(failure) => return Err(failure),
        None => {}
    }
    Ok(worst.map_or(ExitCode::SUCCESS, |status| ExitCode::from(status as u8)))
}

/// Prints a list of a server.
pub fn list(list: List, arguments: &ListArguments) -> Result<ExitCode, Failure> {
    list_of(list, None, arguments)
}

/// Prints a list of a broker.
pub fn list_by_service(list: List, arguments: &ServiceArguments) -> Result<ExitCode, Failure> {
    let ServiceArguments { service, name, list: arguments } = arguments;
    let service = service.as_deref().map(|service| name.name(service)).transpose()?;
    list_of(list, service.as_ref(), arguments)
}

fn list_of(list: List, service: Option<&ServiceName>, arguments: &ListArguments) -> Result<ExitCode, Failure> {
    let program = match list {
        List::Transfers | List::Followers | List::Versions | List::Failures => Some("serve"),
        List::Services | List::Workers | List::DeadLetters => Some("broker"),
        List::Peers | List::Gone => None,
    };
    let ListArguments { search, sort, common: arguments } = arguments;
    let client = find_one(&arguments.server, program)?;
    let entries = || {
        let entries = client.search(list.path(), list.name(), service, search.as_deref())?;
        Ok(match sort {
            Some(by) => sort_entries(entries, by)?,
            None => entries,
        })
    };
    print_list(arguments, |entries| rows::render(list, entries), entries)
}

/// Sorts a whole list, which has no bound here.
fn sort_entries(entries: Vec<Value>, by: &str) -> Result<Vec<Value>, Failure> {
    let member = by.strip_prefix('-').unwrap_or(by);
    if !entries.is_empty() && entries.iter().all(|entry| entry.get(member).is_none()) {
        return Err(Failure::usage(format!("--sort {by}: no entry has this member; --json shows them")));
    }
    Ok(sort(entries, by))
}

/// Prints entries as objects, or as a table.
fn print_list(
    arguments: &Arguments,
    table: impl Fn(&[Value]) -> String,
    mut entries: impl FnMut() -> Result<Vec<Value>, Failure>,
) -> Result<ExitCode, Failure> {
    repeat(arguments, arguments.watch, || {
        let entries = entries()?;
        Ok(match arguments.json {
            true => entries.iter().map(|entry| format!("{}\n", Json(entry))).collect(),
            false => table(&entries),
        })
    })
}

/// Prints the state of a broker's journal.
pub fn journal(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let client = find_one(&arguments.server, Some("broker"))?;
    repeat(arguments, arguments.watch, || {
        let journal = client.get("/api/v1/journal")?;
        Ok(if arguments.json { format!("{}\n", Json(&journal)) } else { status::render_journal(&journal) })
    })
}

/// Disconnects a peer.
pub fn kick(arguments: &KickArguments) -> Result<ExitCode, Failure> {
    let client = find_one(&arguments.server, None)?;
    disconnect(&client, &arguments.id, &arguments.reason)?;
    print_line(format_args!("disconnected {}", arguments.id))?;
    Ok(ExitCode::SUCCESS)
}

/// Forgets a follower that isn't there any more.
pub fn forget(arguments: &ForgetArguments) -> Result<ExitCode, Failure> {
    let client = find_one(&arguments.server, Some("serve"))?;
    let name = URL_SAFE_NO_PAD.encode(&arguments.name);
    let reply = client.post(&format!("/api/v1/followers/{name}/forget"), &json!({}))?;
    let copies = reply["forgotten"].as_u64().filter(|copies| *copies > 1);
    let copies = copies.map(|copies| format!(", {copies} copies")).unwrap_or_default();
    print_line(format_args!("forgot {}{copies}", Line(&arguments.name)))?;
    Ok(ExitCode::SUCCESS)
}

/// Pauses a service, or resumes it.
pub fn pause(arguments: &PauseArguments, paused: bool) -> Result<ExitCode, Failure> {
    let service = arguments.name.name(&arguments.service)?;
    let client = find_one(&arguments.server, Some("broker"))?;
    let (verb, said) = if paused { ("pause", "paused") } else { ("resume", "resumed") };
    client.post(&service_path(&service, verb), &json!({}))?;
    print_line(format_args!("{said} {service}"))?;
    // It may come later, or be a slip of the pen.
    if paused && client.list(List::Services.path(), List::Services.name(), Some(&service))?.is_empty() {
        eprint_line(format_args!("tow: {service} has no worker and no request; tow services lists those that have"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the requests that wait for a service, or drops outcomes of clients that are gone.
pub fn purge(arguments: &PurgeArguments) -> Result<ExitCode, Failure> {
    let service = arguments.service.as_deref().map(|service| arguments.name.name(service)).transpose()?;
    let client = find_one(&arguments.server, Some("broker"))?;
    if let Some(service) = &service {
        let body = json!({ "expect_waiting": arguments.expect });
        let reply = client.post(&service_path(service, "purge"), &body)?;
        print_line(format_args!("purged {} of {service}", counted_of(&reply["purged"], "request")))?;
    } else {
        let reply = client.post("/api/v1/drop-outcomes", &json!({}))?;
        print_line(format_args!("dropped {} of clients that are gone", counted_of(&reply["dropped"], "outcome")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn service_path(service: &ServiceName, verb: &str) -> String {
    format!("/api/v1/services/{}/{verb}", service.in_path())
}

fn disconnect(client: &Client, id: &str, reason: &str) -> Result<Value, Failure> {
    if !id.chars().all(|one| one.is_ascii_digit() || one == '.') {
        return Err(Failure::usage(format!("{id}: an id is two numbers, such as 3.0; see tow peers")));
    }
    client.post(&format!("/api/v1/peers/{id}/disconnect"), &json!({ "reason": reason }))
}

/// Prints something once, or at an interval until a signal ends it: in place on a terminal.
fn repeat(
    arguments: &Arguments,
    pause: Option<Duration>,
    mut picture: impl FnMut() -> Result<String, Failure>,
) -> Result<ExitCode, Failure> {
    let is_in_place = pause.is_some() && !arguments.json && std::io::stdout().is_terminal();
    loop {
        let text = picture()?;
        let shown = if is_in_place { format!("{NEW_PICTURE}{}", fitted(&text, screen::size())) } else { text };
        print_bytes(shown.as_bytes())?;
        let Some(pause) = pause else { return Ok(ExitCode::SUCCESS) };
        std::thread::sleep(pause);
    }
}

/// The part of a picture that fits a terminal, its first lines: nothing scrolls away or wraps.
fn fitted(text: &str, (columns, rows): (usize, usize)) -> String {
    let line = |line: &str| line.chars().take(columns).collect::<String>();
    let lines: Vec<_> = text.lines().take(rows.saturating_sub(1)).map(line).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_cut_to_the_terminal() {
        let text = (0..30).map(|row| format!("row {row:2} {}\n", "x".repeat(200))).collect::<String>();
        for (columns, rows) in [(80, 24), (40, 15)] {
            let fitted = fitted(&text, (columns, rows));
            assert_eq!(fitted.lines().count(), rows - 1);
            assert!(fitted.starts_with("row  0") && fitted.lines().all(|line| line.chars().count() == columns));
        }
        assert_eq!(fitted("short\n", (40, 15)), "short\n");
    }
}
