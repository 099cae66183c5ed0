//! `tow dead-letters` and `tow requeue`.

use super::rows::counted_of;
use super::{Arguments, print_list, rows};
use crate::admin::List;
use crate::admin::client::{Client, ServerArgs, find_one};
use crate::cli::escape::Json;
use crate::cli::exit::{Failure, Status};
use crate::cli::output::print_line;
use crate::cli::service_name::{NameArgs, ServiceName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};
use towpath_files::counted;

/// Arguments of `tow dead-letters`.
#[derive(clap::Args)]
pub struct LettersArguments {
    /// List those of this service, one by one.
    service: Option<OsString>,
    #[command(flatten)]
    name: NameArgs,
    /// Write each of them to a file of its number here, and what is known of it to NUMBER.json.
    #[arg(long, value_name = "DIR", requires = "service", conflicts_with_all = ["json", "watch"])]
    save: Option<PathBuf>,
    /// Save only this one.
    #[arg(long, value_name = "N", requires = "save")]
    id: Option<u64>,
    #[command(flatten)]
    list: Arguments,
}

/// Arguments of `tow requeue`.
#[derive(clap::Args)]
pub struct RequeueArguments {
    /// The service, without `dlq.`.
    service: OsString,
    #[command(flatten)]
    name: NameArgs,
    /// How many dead letters it has, from `tow dead-letters`. If it is another number by now, nothing is done.
    #[arg(long, value_name = "N", group = "which")]
    expect: Option<usize>,
    /// Only this one, by its ID in `tow dead-letters SERVICE`.
    #[arg(long, value_name = "N", group = "which")]
    id: Option<u64>,
    /// Remove them instead.
    #[arg(long, requires = "which")]
    drop: bool,
    /// At most this many per second, the oldest first.
    #[arg(long, value_name = "N", conflicts_with_all = ["id", "drop"], value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: Option<u32>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Lists services with dead letters, or the dead letters of one, or saves these.
pub fn list(arguments: &LettersArguments) -> Result<ExitCode, Failure> {
    let service = arguments.service.as_deref().map(|service| arguments.name.name(service)).transpose()?;
    let client = find_one(&arguments.list.server, Some("broker"))?;
    if let (Some(service), Some(directory)) = (&service, &arguments.save) {
        return save(&client, service, directory, arguments.id);
    }
    print_list(
        &arguments.list,
        |entries| match service {
            Some(_) => rows::letters(entries),
            None => rows::render(List::DeadLetters, entries),
        },
        || match &service {
            Some(service) => client.list(&path_of(service), "letters", None),
            None => client.list(List::DeadLetters.path(), List::DeadLetters.name(), None),
        },
    )
}

/// Writes the dead letters of a service, or one of them, to files.
fn save(client: &Client, service: &ServiceName, directory: &Path, id: Option<u64>) -> Result<ExitCode, Failure> {
    let failed = |error| Failure::failed(format_args!("{}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(failed)?;
    let mut letters = client.list(&path_of(service), "letters", None)?;
    letters.retain(|letter| id.is_none_or(|id| letter["id"] == id));
    if letters.is_empty() {
        return Err(none(service));
    }
    for letter in &letters {
        let path = directory.join(letter["id"].to_string());
        let failed = |error| Failure::failed(format_args!("{}: {error}", path.display()));
        // What was saved before isn't written over.
        let file = File::create_new(&path).map_err(failed)?;
        let written = save_body(client, &letter_path(service, letter), file, &path).and_then(|()| {
            let known = format!("{}\n", Json(letter));
            std::fs::write(directory.join(format!("{}.json", letter["id"])), known).map_err(failed)
        });
        if written.is_err() {
            // A part of it would look like all.
            let _ = std::fs::remove_file(&path);
        }
        written?;
    }
    let count = counted(letters.len() as u64, "dead letter");
    print_line(format_args!("saved {count} of {service} in {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the body of a dead letter to a file.
fn save_body(client: &Client, from: &str, mut file: File, path: &Path) -> Result<(), Failure> {
    let mut next = Some(0);
    while let Some(offset) = next {
        let part = client.get(&format!("{from}?offset={offset}"))?;
        let bytes = STANDARD.decode(part["part_b64"].as_str().unwrap_or_default()).map_err(Failure::failed)?;
        file.write_all(&bytes).map_err(|error| Failure::failed(format_args!("{}: {error}", path.display())))?;
        next = part["next"].as_u64().filter(|next| *next > offset);
    }
    Ok(())
}

/// Sends the dead letters of a service to it again, or removes them.
pub fn requeue(arguments: &RequeueArguments) -> Result<ExitCode, Failure> {
    let RequeueArguments { service, name, expect, id, drop, rate, server } = arguments;
    let service = &name.name(service)?;
    let client = find_one(server, Some("broker"))?;
    let (verb, done) = if *drop { ("drop", "dropped") } else { ("requeue", "requeued") };
    let count = match (id, rate) {
        (Some(id), _) => {
            client.post(&format!("{}/{id}/{verb}", path_of(service)), &json!({}))?;
            1.into()
        }
        (_, Some(rate)) => requeue_slowly(&client, service, *expect, *rate)?.into(),
        _ => {
            let expect = match expect {
                Some(expect) => *expect,
                None => count(&client, service)?,
            };
            client.post(&format!("{}/{verb}", path_of(service)), &json!({ "expect": expect }))?[done].clone()
        }
    };
    print_line(format_args!("{done} {} of {service}", counted_of(&count, "dead letter")))?;
    Ok(ExitCode::SUCCESS)
}

/// Sends the dead letters that a service has now to it again, one by one, and says how many.
fn requeue_slowly(client: &Client, service: &ServiceName, expect: Option<usize>, rate: u32) -> Result<u64, Failure> {
    let letters = client.list(&path_of(service), "letters", None)?;
    match expect {
        Some(expect) if expect != letters.len() => {
            let why = format!("dead letters: {}, expected: {expect}; nothing was done", letters.len());
            return Err(Failure::new(Status::Refused, why));
        }
        _ if letters.is_empty() => return Err(none(service)),
        _ => {}
    }
    let (mut done, mut next) = (0, Instant::now());
    // Those that a worker has stay.
    for letter in letters.iter().filter(|letter| letter["state"] != "worker") {
        sleep(next.saturating_duration_since(Instant::now()));
        next = Instant::now().max(next) + Duration::from_secs(1) / rate;
        match client.post(&format!("{}/requeue", letter_path(service, letter)), &json!({})) {
            Ok(_) => done += 1,
            // Somebody else was faster.
            Err(failure) if failure.status == Status::NotFound => {}
            Err(failure) => {
                let so_far = counted(done, "dead letter");
                return Err(Failure::new(failure.status, format!("requeued {so_far} of {service}; then: {failure}")));
            }
        }
    }
    Ok(done)
}

/// How many dead letters a service has.
fn count(client: &Client, service: &ServiceName) -> Result<usize, Failure> {
    let services = client.list(List::DeadLetters.path(), List::DeadLetters.name(), Some(service))?;
    let count = services.first().and_then(|service| usize::try_from(service["letters"].as_u64()?).ok());
    count.filter(|count| *count > 0).ok_or_else(|| none(service))
}

fn none(service: &ServiceName) -> Failure {
    Failure::new(Status::NotFound, format!("{service} has no such dead letters; see tow dead-letters"))
}

fn path_of(service: &ServiceName) -> String {
    format!("{}/{}", List::DeadLetters.path(), service.in_path())
}

fn letter_path(service: &ServiceName, letter: &Value) -> String {
    format!("{}/{}", path_of(service), letter["id"])
}
