//! `tow token`.

use super::print_list;
use super::{Arguments as ListArguments, rows::text, rows::time};
use crate::admin::client::{ServerArgs, find_one};
use crate::cli::exit::Failure;
use crate::cli::output::{eprint_line, print_line};
use crate::cli::table::Table;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Arguments of `tow token`.
#[derive(clap::Args)]
pub struct TokenArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a token for an operator, and print it once.
    New {
        /// The operator's name, for the audit: letters, digits and ._-@
        name: String,
        /// Let this operator see everything, and change nothing.
        #[arg(long)]
        read_only: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List the operators that have a token.
    List(ListArguments),
    /// Make a token invalid, at once.
    Revoke {
        /// The operator's name.
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Makes, lists and revokes tokens of a running server.
pub fn token(arguments: &TokenArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::New { name, read_only, server } => {
            let client = find_one(server, None)?;
            let reply = client.post("/api/v1/new-token", &json!({ "name": name, "read_only": read_only }))?;
            print_line(text(&reply["token"]))?;
            let page = match reply["page"].as_str() {
                Some(page) => format!("it opens {page}"),
                None => "the server has no page: start it with --admin ADDRESS".to_owned(),
            };
            let lasts = if reply["kept"] == false { "; it is valid until the server is restarted" } else { "" };
            eprint_line(format_args!("tow: shown only once; {page}{lasts}"));
        }
        Command::List(list) => {
            let client = find_one(&list.server, None)?;
            return print_list(list, table, || client.list("/api/v1/tokens", "tokens", None));
        }
        Command::Revoke { name, server } => {
            let client = find_one(server, None)?;
            client.post("/api/v1/revoke-token", &json!({ "name": name }))?;
            print_line(format_args!("revoked {name}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(entries: &[Value]) -> String {
    let mut table = Table::new(["MAY ", "AGE", "NAME "]);
    for token in entries {
        let may = if token["read_only"] == true { "read" } else { "everything" };
        table.push([&may, &time(&token["age_seconds"]), &text(&token["name"])]);
    }
    table.render()
}
