//! `tow dead-letters` and `tow requeue`.

use super::{Arguments, encoded, print_list, rows};
use crate::admin::List;
use crate::admin::client::{Client, ServerArgs, find_one};
use crate::cli::escape::Line;
use crate::cli::exit::{Failure, Status};
use crate::cli::output::print_line;
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `tow dead-letters`.
#[derive(clap::Args)]
pub struct LettersArguments {
    /// List those of this service, one by one.
    service: Option<String>,
    #[command(flatten)]
    list: Arguments,
}

/// Arguments of `tow requeue`.
#[derive(clap::Args)]
pub struct RequeueArguments {
    /// The service, without `dlq.`.
    service: String,
    /// How many dead letters it has, from `tow dead-letters`. If it is another number by now, nothing is done.
    #[arg(long, value_name = "N")]
    expect: Option<usize>,
    /// Remove them instead.
    #[arg(long, requires = "expect")]
    drop: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Lists services with dead letters, or the dead letters of one.
pub fn list(arguments: &LettersArguments) -> Result<ExitCode, Failure> {
    let client = find_one(&arguments.list.server, Some("broker"))?;
    print_list(
        &arguments.list,
        |entries| match arguments.service {
            Some(_) => rows::letters(entries),
            None => rows::render(List::DeadLetters, entries),
        },
        || match &arguments.service {
            Some(service) => client.list(&path_of(service), "letters", None),
            None => client.list(List::DeadLetters.path(), List::DeadLetters.name(), None),
        },
    )
}

/// Sends the dead letters of a service to it again, or removes them.
pub fn requeue(arguments: &RequeueArguments) -> Result<ExitCode, Failure> {
    let RequeueArguments { service, expect, drop, server } = arguments;
    let client = find_one(server, Some("broker"))?;
    let expect = match expect {
        Some(expect) => *expect,
        None => count(&client, service)?,
    };
    let (verb, done) = if *drop { ("drop", "dropped") } else { ("requeue", "requeued") };
    let reply = client.post(&format!("{}/{verb}", path_of(service)), &json!({ "expect": expect }))?;
    print_line(Line(&format!("{done} {} dead letters of {service}", reply[done])))?;
    Ok(ExitCode::SUCCESS)
}

/// How many dead letters a service has.
fn count(client: &Client, service: &str) -> Result<usize, Failure> {
    let services = client.list(List::DeadLetters.path(), List::DeadLetters.name(), Some(service))?;
    let count = services.first().and_then(|service| usize::try_from(service["letters"].as_u64()?).ok());
    count
        .filter(|count| *count > 0)
        .ok_or_else(|| Failure::new(Status::NotFound, format!("{service} has no dead letters; see tow dead-letters")))
}

fn path_of(service: &str) -> String {
    format!("{}/{}", List::DeadLetters.path(), encoded(service))
}
