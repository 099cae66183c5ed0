//! `tow audit`.

use super::rows::{name, text};
use super::{Arguments, print_list};
use crate::admin::client::find_one;
use crate::cli::exit::Failure;
use crate::cli::table::Table;
use serde_json::Value;
use std::process::ExitCode;

/// Lists what operators have done.
pub fn audit(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let client = find_one(&arguments.server, None)?;
    print_list(arguments, table, || client.list("/api/v1/audit", "audit", None))
}

fn table(entries: &[Value]) -> String {
    let mut table = Table::new(["TIME ", "BY ", "ACTION ", "OF ", "COUNT", "OUTCOME "]);
    for action in entries {
        let [time, by, what, outcome] = ["time", "by", "action", "outcome"].map(|member| text(&action[member]));
        let count = action["count"].as_u64().map_or_else(|| "-".to_owned(), |count| count.to_string());
        table.push([&time, &by, &what, &name(action, "object"), &count, &outcome]);
    }
    table.render()
}
