//! `tow dead-letters` and `tow requeue`.

use super::rows::counted_of;
use super::{Arguments, print_list, rows};
use crate::admin::List;
use crate::admin::client::{Client, ServerArgs, find_one};
use crate::cli::exit::{Failure, Status};
use crate::cli::output::print_line;
use crate::cli::service_name::{NameArgs, ServiceName};
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;

/// Arguments of `tow dead-letters`.
#[derive(clap::Args)]
pub struct LettersArguments {
    /// List those of this service, one by one.
    service: Option<OsString>,
    #[command(flatten)]
    name: NameArgs,
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
    let service = arguments.service.as_deref().map(|service| arguments.name.name(service)).transpose()?;
    let client = find_one(&arguments.list.server, Some("broker"))?;
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

/// Sends the dead letters of a service to it again, or removes them.
pub fn requeue(arguments: &RequeueArguments) -> Result<ExitCode, Failure> {
    let RequeueArguments { service, name, expect, drop, server } = arguments;
    let service = &name.name(service)?;
    let client = find_one(server, Some("broker"))?;
    let expect = match expect {
        Some(expect) => *expect,
        None => count(&client, service)?,
    };
    let (verb, done) = if *drop { ("drop", "dropped") } else { ("requeue", "requeued") };
    let reply = client.post(&format!("{}/{verb}", path_of(service)), &json!({ "expect": expect }))?;
    print_line(format_args!("{done} {} of {service}", counted_of(&reply[done], "dead letter")))?;
    Ok(ExitCode::SUCCESS)
}

/// How many dead letters a service has.
fn count(client: &Client, service: &ServiceName) -> Result<usize, Failure> {
    let services = client.list(List::DeadLetters.path(), List::DeadLetters.name(), Some(service))?;
    let count = services.first().and_then(|service| usize::try_from(service["letters"].as_u64()?).ok());
    count
        .filter(|count| *count > 0)
        .ok_or_else(|| Failure::new(Status::NotFound, format!("{service} has no dead letters; see tow dead-letters")))
}

fn path_of(service: &ServiceName) -> String {
    format!("{}/{}", List::DeadLetters.path(), service.in_path())
}
