//! `tow requests`.

use super::{Arguments, print_list, rows, service_path};
use crate::admin::client::find_one;
use crate::cli::exit::Failure;
use crate::cli::output::{eprint_line, print_line};
use crate::cli::service_name::NameArgs;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::process::ExitCode;
use towpath_files::counted;

/// Arguments of `tow requests`.
#[derive(clap::Args)]
pub struct RequestsArguments {
    /// The service.
    service: OsString,
    #[command(flatten)]
    name: NameArgs,
    /// How many are listed, the oldest first.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// End this one, by its ID in the list: its client gets status 499.
    #[arg(long, value_name = "ID", conflicts_with_all = ["limit", "json", "watch"])]
    end: Option<String>,
    #[command(flatten)]
    list: Arguments,
}

/// Lists the oldest requests of a service, or ends one.
pub fn requests(arguments: &RequestsArguments) -> Result<ExitCode, Failure> {
    let RequestsArguments { service, name, limit, end, list } = arguments;
    let service = name.name(service)?;
    if let Some(id) = end {
        if id.is_empty() || !id.chars().all(|one| one.is_ascii_digit() || one == '.') {
            return Err(Failure::usage(format!("{id}: an id is two numbers, such as 3.0; see tow requests {service}")));
        }
        let client = find_one(&list.server, Some("broker"))?;
        client.post(&service_path(&service, &format!("requests/{id}/end")), &json!({}))?;
        print_line(format_args!("ended {id} of {service}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = find_one(&list.server, Some("broker"))?;
    print_list(list, rows::requests, || {
        let (mut oldest, mut all) = (Vec::new(), 0);
        client.each_page(&service_path(&service, "requests"), "requests", None, None, |page| {
            all += page.len();
            oldest.extend(page);
            oldest.sort_by(|one: &Value, other| age(other).total_cmp(&age(one)));
            oldest.truncate(*limit);
        })?;
        if all > oldest.len() {
            let more = counted((all - oldest.len()) as u64, "younger request");
            eprint_line(format_args!("tow: {more} of {service} not shown; --limit shows more"));
        }
        Ok(oldest)
    })
}

fn age(request: &Value) -> f64 {
    request["seconds"].as_f64().unwrap_or(0.0)
}
