//! `tow block` and `tow unblock`.

use super::{Arguments, print_list};
use crate::admin::client::{ServerArgs, find_one};
use crate::cli::exit::Failure;
use crate::cli::output::{eprint_line, print_line};
use crate::cli::table::Table;
use crate::cli::units::duration;
use crate::commands::operator::rows::{counted_of, text, time};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;
use towpath_rules::Who;

/// Arguments of `tow block`.
#[derive(clap::Args)]
pub struct BlockArguments {
    /// An address, 10.0.0.0/8, a user, a key, uid:N, user:NAME or key:KEY [default: list those that are blocked]
    who: Option<String>,
    /// How long [default: until `tow unblock`]
    #[arg(long = "for", value_name = "TIME", value_parser = duration, requires = "who")]
    time: Option<Duration>,
    /// Reason that the peer is given.
    #[arg(long, value_name = "TEXT", requires = "who", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    list: Arguments,
}

/// Arguments of `tow unblock`.
#[derive(clap::Args)]
pub struct UnblockArguments {
    /// Name of the block, as `tow block` lists it.
    who: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Disconnects a peer and keeps it out, or lists those that are.
pub fn block(arguments: &BlockArguments) -> Result<ExitCode, Failure> {
    let BlockArguments { who, time, reason, list } = arguments;
    let Some(who) = who else {
        let client = find_one(&list.server, None)?;
        return print_list(list, table, || client.list("/api/v1/blocked", "blocked", None));
    };
    let who = parsed(who)?;
    let client = find_one(&list.server, None)?;
    let seconds = time.map(|time| time.as_secs().max(1));
    let body = json!({ "who": who.to_string(), "seconds": seconds, "reason": reason });
    let reply = client.post("/api/v1/block", &body)?;
    if list.json {
        print_line(&reply)?;
        return Ok(ExitCode::SUCCESS);
    }
    let time = seconds.map(|seconds| format!(" for {}", humantime::format_duration(Duration::from_secs(seconds))));
    let done = match reply["disconnected"].is_u64() {
        true => format!("{} disconnected", counted_of(&reply["disconnected"], "peer")),
        false => "its event loop hangs, and disconnects it when it goes on".to_owned(),
    };
    print_line(format_args!("blocked {who}{}; {done}", time.unwrap_or_default()))?;
    say_unkept(&reply);
    Ok(ExitCode::SUCCESS)
}

/// Ends a block.
pub fn unblock(arguments: &UnblockArguments) -> Result<ExitCode, Failure> {
    let who = parsed(&arguments.who)?;
    let client = find_one(&arguments.server, None)?;
    let reply = client.post("/api/v1/unblock", &json!({ "who": who.to_string() }))?;
    print_line(format_args!("unblocked {who}"))?;
    say_unkept(&reply);
    Ok(ExitCode::SUCCESS)
}

fn parsed(who: &str) -> Result<Who, Failure> {
    who.parse().map_err(|why: String| Failure::usage(format!("{why}; tow peers lists who is connected")))
}

fn say_unkept(reply: &Value) {
    if reply["kept"] == false {
        let why = "it has no --state (tow serve), --journal (tow broker) or $STATE_DIRECTORY, or can't write there";
        eprint_line(format_args!("tow: the server forgets this when it is restarted: {why}"));
    }
}

fn table(entries: &[Value]) -> String {
    let mut table = Table::new(["LEFT", "REFUSED", "LAST", "BY ", "WHO ", "REASON "]);
    for block in entries {
        let [left, last] = ["left_seconds", "refused_seconds"]
            .map(|name| if block[name].is_null() { "-".to_owned() } else { time(&block[name]) });
        let [by, who, reason] = ["by", "who", "reason"].map(|name| text(&block[name]));
        table.push([&left, &block["refused"], &last, &by, &who, &reason]);
    }
    table.render()
}
