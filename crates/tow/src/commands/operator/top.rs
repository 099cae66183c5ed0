//! `tow top`: the state of a server and what is busiest there, with rates. It is drawn again and again, in place on a terminal.
//!
//! Rates are differences between two replies: the server keeps no history.

use super::rows::{bytes, text};
use super::{Arguments, problems, repeat, status};
use crate::admin::List;
use crate::admin::client::{Client, find_one};
use crate::cli::escape::Json;
use crate::cli::exit::Failure;
use crate::cli::table::Table;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Rows of each table.
const ROWS_MAX: usize = 10;

/// Problems that are shown.
const PROBLEMS_MAX: usize = 5;

/// Between two pictures.
const INTERVAL: Duration = Duration::from_secs(2);

/// The previous counts by name, and their time.
struct Before {
    at: Instant,
    counts: HashMap<String, u64>,
}

impl Before {
    /// The rate of a counter since the last picture; 0 in the first.
    fn rate(&self, now: &mut Before, name: String, count: &Value) -> u64 {
        let count = count.as_u64().unwrap_or(0);
        let seconds = now.at.saturating_duration_since(self.at).as_secs_f64();
        let rate =
            self.counts.get(&name).map_or(0.0, |before| count.saturating_sub(*before) as f64 / seconds.max(0.001));
        now.counts.insert(name, count);
        rate as u64
    }
}

/// Prints the state of a server and what is busiest, again and again.
pub fn top(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let client = find_one(&arguments.server, None)?;
    let mut before = Before { at: Instant::now(), counts: HashMap::new() };
    repeat(arguments, Some(arguments.watch.unwrap_or(INTERVAL)), || {
        let picture = look(&client, &mut before)?;
        Ok(if arguments.json { format!("{}\n", Json(&picture)) } else { render(&picture) })
    })
}

fn look(client: &Client, before: &mut Before) -> Result<Value, Failure> {
    let mut status = client.get("/api/v1/status")?;
    let mut now = Before { at: Instant::now(), counts: HashMap::new() };
    for counter in ["received_bytes", "sent_bytes"] {
        status[format!("{counter}_per_second")] = before.rate(&mut now, counter.to_owned(), &status[counter]).into();
    }
    for counter in ["accepted", "replied", "failed", "requests"] {
        let count = &status["counters"][counter];
        if count.is_u64() {
            status[format!("{counter}_per_second")] = before.rate(&mut now, counter.to_owned(), count).into();
        }
    }
    let problems = client.get("/api/v1/problems").unwrap_or_default();
    let mut peers = client.list(List::Peers.path(), List::Peers.name(), None)?;
    for peer in &mut peers {
        for counter in ["received_bytes", "sent_bytes"] {
            let rate = before.rate(&mut now, format!("{} {counter}", peer["id"]), &peer[counter]);
            peer[format!("{counter}_per_second")] = rate.into();
        }
    }
    let sum = |peer: &Value| {
        let rate = |name: &str| peer[name].as_u64().unwrap_or(0);
        Reverse((rate("received_bytes_per_second") + rate("sent_bytes_per_second"), rate("queued_bytes")))
    };
    peers.sort_by_key(sum);
    peers.truncate(ROWS_MAX);
    let list = list_of(&status);
    let mut others = client.list(list.path(), list.name(), None)?;
    others.sort_by_key(|entry| Reverse(weight(list, entry)));
    others.truncate(ROWS_MAX);
    *before = now;
    Ok(json!({ "status": status, "problems": problems, "peers": peers, list.name(): others }))
}

/// The list that is shown below a server's figures.
fn list_of(status: &Value) -> List {
    if status["program"] == "broker" { List::Services } else { List::Transfers }
}

/// How busy an entry is: the longest queues come first, or the fastest transfers, and of these those that have moved most.
fn weight(list: List, entry: &Value) -> (u64, u64) {
    let number = |name: &str| entry[name].as_u64().unwrap_or(0);
    match list {
        List::Transfers => (number("bytes_per_second"), number("sent_bytes") + number("received_bytes")),
        _ => (number("waiting"), 0),
    }
}

fn render(picture: &Value) -> String {
    let entries = |name: &str| picture[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let rate = |of: &Value, name: &str| format!("{}/s", bytes(&of[name]));
    let status = &picture["status"];
    let (received, sent) = (rate(status, "received_bytes_per_second"), rate(status, "sent_bytes_per_second"));
    let mut rates = format!("{:<12}{received} received, {sent} sent", "now");
    for counter in ["accepted", "replied", "failed"] {
        if let Some(count) = status[format!("{counter}_per_second")].as_u64() {
            rates.push_str(&format!(", {count}/s {counter}"));
        }
    }
    let mut peers = Table::new(["PEER ", "ADDRESS ", "IN", "OUT", "QUEUED", "DOES "]);
    for peer in entries("peers") {
        let (received, sent) = (rate(peer, "received_bytes_per_second"), rate(peer, "sent_bytes_per_second"));
        let (id, address) = (text(&peer["id"]), text(&peer["address"]));
        peers.push([&id, &address, &received, &sent, &bytes(&peer["queued_bytes"]), &super::rows::does(peer)]);
    }
    let list = list_of(status);
    let others = super::rows::render(list, entries(list.name()));
    let problems = problems::first(&picture["problems"], PROBLEMS_MAX);
    format!("{problems}{}{rates}\n\n{others}\n{}", status::render(status), peers.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_push_comes_before_a_large_fetch_that_waits() {
        let of = |kind: &str, moved: [u64; 2], rate: Option<u64>| json!({ "kind": kind, "sent_bytes": moved[0], "received_bytes": moved[1], "bytes_per_second": rate });
        let large = of("fetch", [1 << 40, 0], Some(0));
        let push = of("push", [0, 1 << 20], Some(1000));
        assert!(weight(List::Transfers, &push) > weight(List::Transfers, &large));
        // Before rates are known.
        assert!(
            weight(List::Transfers, &of("push", [0, 2], None)) > weight(List::Transfers, &of("fetch", [1, 0], None))
        );
    }
}
