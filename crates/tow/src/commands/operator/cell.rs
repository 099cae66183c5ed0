//! A cell as text.

use super::rows::{bytes, counted_of, text, time};
use serde_json::Value;

/// Clocks that differ by less aren't mentioned, in seconds.
const SKEW: f64 = 0.5;

/// Lines about a cell, each with its name.
pub fn lines(cell: &Value) -> Vec<(&'static str, String)> {
    let mut lines = vec![("cell", headline(cell))];
    lines.extend(members(&cell["members"]).into_iter().map(|member| ("member", member)));
    lines.push(("queue", queue(&cell["queue"])));
    lines.push(("NATS", nats(&cell["queue"], cell["nats_server"].as_str().unwrap_or_default())));
    lines.push(("sync", sync(&cell["monitored"])));
    let failures = [&cell["failure"], &cell["bodies_failure"], &cell["nats_failure"]]
        .into_iter()
        .filter_map(Value::as_str)
        .map(str::to_owned);
    let wrong = cell["queue"]["wrong"].as_array().into_iter().flatten().map(text);
    lines.extend(failures.chain(wrong).map(|wrong| ("WRONG", wrong)));
    lines
}

fn headline(cell: &Value) -> String {
    let (name, role, epoch) = (text(&cell["name"]), text(&cell["role"]), &cell["epoch"]);
    let since =
        cell["led_seconds"].as_f64().map(|_| format!(" for {}", time(&cell["led_seconds"]))).unwrap_or_default();
    match cell["leader"].as_str().unwrap_or_default() {
        _ if role == "leading" => format!("{name}: leading{since}, epoch {epoch}"),
        "" => format!("{name}: {role}; nobody has led yet"),
        leader => format!("{name}: {role}; {leader} leads{since}, epoch {epoch}"),
    }
}

/// A line for each member.
pub fn members(members: &Value) -> Vec<String> {
    members.as_array().into_iter().flatten().map(member).collect()
}

fn member(member: &Value) -> String {
    let endpoint = text(&member["endpoint"]);
    if member["there"] == false {
        return format!("{endpoint} MISSING for {}, it was {}", time(&member["age_seconds"]), text(&member["role"]));
    }
    let mut said = vec![text(&member["role"])];
    match member["behind"].as_u64().unwrap_or(0) {
        _ if member["role"] == "leading" => {}
        0 => said.push("up to date".to_owned()),
        _ => said.push(format!("{} behind", counted_of(&member["behind"], "message"))),
    }
    let skew = member["skew_seconds"].as_f64().unwrap_or(0.0);
    if skew.abs() >= SKEW {
        said.push(format!("clock {skew:+.1} s"));
    }
    said.extend(member["failure"].as_str().map(str::to_owned));
    let is_self = if member["self"] == true { " (this one)" } else { "" };
    format!("{endpoint}{is_self} {}", said.join(", "))
}

/// How much is in the queue.
pub fn queue(queue: &Value) -> String {
    let [all, most] = ["bytes", "bytes_max"].map(|name| bytes(&queue[name]));
    let needed = queue["needed_bytes"].as_u64().map(|_| format!(", {} needed", bytes(&queue["needed_bytes"])));
    format!("{all} of {most}{}, in {}", needed.unwrap_or_default(), counted_of(&queue["messages"], "message"))
}

/// Whether the NATS servers sync always.
pub fn sync(monitored: &Value) -> String {
    let servers: Vec<_> = monitored.as_array().into_iter().flatten().collect();
    if servers.is_empty() {
        return "unknown: only the monitoring ports of NATS show it (--queue-monitor)".to_owned();
    }
    let one = |server: &&Value| match server["sync_seconds"].as_f64() {
        Some(0.0) => format!("{} always", text(&server["server"])),
        Some(_) => format!("{} only every {}", text(&server["server"]), time(&server["sync_seconds"])),
        None => format!("{} unknown: {}", text(&server["url"]), text(&server["failure"])),
    };
    servers.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The nodes of NATS that have the stream.
pub fn nats(queue: &Value, server: &str) -> String {
    let leader = queue["nats_leader"].as_str().map(|leader| format!("{leader} leads the stream"));
    let followers = queue["nats_followers"].as_array().into_iter().flatten();
    let followers = followers.map(|node| format!("{} {}", text(&node["name"]), text(&node["state"])));
    let nodes: Vec<_> = leader.into_iter().chain(followers).collect();
    let nodes = if nodes.is_empty() { String::new() } else { format!(": {}", nodes.join(", ")) };
    let connected = if server.is_empty() { String::new() } else { format!("; connected to {server}") };
    format!("{}{nodes}{connected}", counted_of(&queue["replicas"], "replica"))
}
