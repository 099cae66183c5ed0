//! `tow requests`.

use super::{ListArguments, print_list, rows, service_path};
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
    /// How many are listed, up to 1000; the oldest first, or as --sort says.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// End this one, by its ID in the list: its client gets status 499.
    #[arg(long, value_name = "ID", conflicts_with_all = ["limit", "search", "sort", "json", "watch"])]
    end: Option<String>,
    #[command(flatten)]
    list: ListArguments,
}

/// Lists the oldest requests of a service, or ends one.
pub fn requests(arguments: &RequestsArguments) -> Result<ExitCode, Failure> {
    let RequestsArguments { service, name, limit, end, list } = arguments;
    let ListArguments { search, sort, common } = list;
    let service = name.name(service)?;
    if let Some(id) = end {
        if id.is_empty() || !id.chars().all(|one| one.is_ascii_digit() || one == '.') {
            return Err(Failure::usage(format!("{id}: an id is two numbers, such as 3.0; see tow requests {service}")));
        }
        let client = find_one(&common.server, Some("broker"))?;
        client.post(&service_path(&service, &format!("requests/{id}/end")), &json!({}))?;
        print_line(format_args!("ended {id} of {service}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = find_one(&common.server, Some("broker"))?;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", &limit.to_string()).append_pair("sort", sort.as_deref().unwrap_or("-seconds"));
    if let Some(search) = search {
        query.append_pair("search", search);
    }
    let path = format!("{}?{}", service_path(&service, "requests"), query.finish());
    print_list(common, rows::requests, || {
        let mut reply = client.get(&path)?;
        let listed: Vec<Value> = serde_json::from_value(reply["requests"].take()).unwrap_or_default();
        let others = reply["found"].as_u64().unwrap_or(0).saturating_sub(listed.len() as u64);
        if others > 0 {
            let others = counted(others, "other request");
            eprint_line(format_args!("tow: {others} of {service} not shown; --limit shows more"));
        }
        Ok(listed)
    })
}
