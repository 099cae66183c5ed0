//! The state of a server as text.

use super::cell;
use super::rows::{bytes, counted_of, name, text, time};
use crate::cli::escape::Line;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use towpath_files::counted;
use towpath_files::path::Escaped;

/// The state of a server, a line for each kind of thing.
pub fn render(status: &Value) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string doesn't fail.
        let _ = writeln!(lines, "{name:<12}{}", Line(&value));
    };
    let [program, version, state] = ["program", "version", "state"].map(|name| text(&status[name]));
    line(
        "server",
        format!("tow {program} {version}, pid {}, {state}, up {}", status["pid"], time(&status["uptime_seconds"])),
    );
    let endpoints: Vec<_> = status["endpoints"].as_array().into_iter().flatten().map(text).collect();
    line("listens on", endpoints.join(", "));
    match (status["page"].as_str(), status["token_file"].as_str()) {
        (Some(page), Some(token_file)) => line("page", format!("{page}, token in {token_file}; tow page opens it")),
        (Some(page), None) => line("page", format!("{page}; tow page opens it")),
        (None, _) => {}
    }
    if status["root"].is_string() {
        line("serves", text(&status["root"]));
    }
    if status["peers"].is_null() {
        return lines;
    }
    if status["draining"] == true {
        line("DRAINING", format!("{} left; nothing new is taken; tow drain --cancel", status["left"]));
        for never in status["left_never"].as_array().into_iter().flatten() {
            line("NEVER ENDS", never_ends(never));
        }
    }
    let gone = &status["gone"];
    let ended: u64 = ["closed", "protocol", "other"].iter().filter_map(|name| gone[*name].as_u64()).sum();
    line(
        "peers",
        format!(
            "{} connected, {} in handshake; gone: {ended}, of these {} broke the protocol; {}",
            status["peers"],
            status["handshakes"],
            gone["protocol"],
            counted_of(&gone["handshake"], "failed handshake")
        ),
    );
    if status["blocked"].as_u64().is_some_and(|blocked| blocked > 0) {
        let refused = counted_of(&gone["blocked"], "connection");
        line("blocked", format!("{}, {refused} refused or ended; tow block lists them", status["blocked"]));
    }
    let [received, sent, queued] = ["received_bytes", "sent_bytes", "queued_bytes"].map(|name| bytes(&status[name]));
    line("traffic", format!("{received} received, {sent} sent, {queued} queued"));
    if status["requests"].is_u64() {
        let (memory, limit) = (bytes(&status["memory_bytes"]), bytes(&status["memory_bytes_max"]));
        let [services, workers] = ["service", "worker"].map(|name| counted_of(&status[format!("{name}s")], name));
        line("requests", format!("{} held, {memory} of {limit}; {services}, {workers}", status["requests"]));
        let spool = &status["spool"];
        line("spool", format!("{} of {}", bytes(&spool["bytes"]), bytes(&spool["most"])));
        let paused: Vec<_> = status["paused"].as_array().into_iter().flatten().map(service).collect();
        if !paused.is_empty() {
            line("PAUSED", format!("{}; tow resume SERVICE", paused.join(", ")));
        }
        let in_cell = &status["cell"];
        if in_cell.is_object() {
            for (name, value) in cell::lines(in_cell) {
                line(name, value);
            }
        }
        line(
            if in_cell.is_object() { "log" } else { "journal" },
            status["journal"].as_str().unwrap_or("none").to_owned(),
        );
    }
    if status["catalogue"].is_object() {
        catalogue(&status["catalogue"], &mut line);
    }
    line("counters", numbers(&status["counters"]));
    for pool in status["pools"].as_array().into_iter().flatten() {
        let busy = ["running", "waiting", "hung"].iter().any(|name| pool[*name] != 0);
        if busy {
            let [running, waiting, hung] = ["running", "waiting", "hung"].map(|name| &pool[name]);
            line("jobs", format!("{}: {running} running, {waiting} waiting, {hung} hung", text(&pool["name"])));
        }
    }
    lines
}

/// A thing that a drained server has and that never ends by itself.
pub fn never_ends(entry: &Value) -> String {
    let (kind, service) = (text(&entry["kind"]), Escaped(&name(entry, "service").0).to_string());
    let what = counted_of(&entry["count"], if kind == "dead_letters" { "dead letter" } else { "request" });
    let argument = entry["service_b64"].as_str().map_or_else(|| service.clone(), |b64| format!("--b64 {b64}"));
    let advice = match &*kind {
        "paused" => format!("tow resume {argument}, or tow purge {argument}"),
        "no_worker" => format!("tow work {argument}, or tow purge {argument}"),
        "worker_hangs" => format!("tow kick {}", text(&entry["peer"])),
        _ => format!("tow dead-letters {argument}"),
    };
    format!("{what} of {service}: {}; {advice}", text(&entry["reason"]))
}

/// A line that says whether the server can be restarted at once, if it knows.
pub fn restart(status: &Value) -> String {
    let restart = &status["restart"];
    let Some(safe) = restart["safe"].as_bool() else { return String::new() };
    let [lost, again] = ["lost", "again"].map(|name| restart[name].as_u64().unwrap_or(0));
    let runs = if status["program"] == "serve" { "would be interrupted" } else { "run again" };
    let costs =
        [(lost, "would be lost"), (again, runs)].map(|(count, what)| (count > 0).then(|| format!("{count} {what}")));
    let said = match (safe, costs.into_iter().flatten().collect::<Vec<_>>().join(", ")) {
        (true, _) => "safe".to_owned(),
        (false, costs) if costs.is_empty() => "not safe".to_owned(),
        (false, costs) if lost == 0 => format!("nothing is lost; {costs}"),
        (false, costs) => costs,
    };
    format!("{:<12}{}\n", "restart now", Line(&format!("{said} ({})", text(&restart["why"]))))
}

/// A service of a list of names: text, or an object if it isn't UTF-8.
fn service(listed: &Value) -> String {
    let named = if listed.is_object() { listed.clone() } else { json!({ "service": listed }) };
    Escaped(&name(&named, "service").0).to_string()
}

/// The state of a journal and the spool.
pub fn render_journal(reply: &Value) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string doesn't fail.
        let _ = writeln!(lines, "{name:<12}{}", Line(&value));
    };
    let milliseconds = |value: &Value| format!("{:.1} ms", value.as_f64().unwrap_or(0.0) * 1000.0);
    let journal = &reply["journal"];
    if journal.is_null() {
        line("journal", "none".to_owned());
    } else {
        let error = journal["error"].as_str().map(|error| format!(": {error}")).unwrap_or_default();
        line(
            "journal",
            format!("{}{error}; {}", text(&journal["state"]), counted_of(&journal["errors"], "failed write")),
        );
        let [all, needed, pending] = ["bytes", "needed_bytes", "pending_bytes"].map(|name| bytes(&journal[name]));
        line("files", format!("{}, {all}, of which {needed} are needed", counted_of(&journal["segments"], "segment")));
        line("requests", format!("{} that a restart would bring back", journal["requests"]));
        let writing = milliseconds(&journal["writing_seconds"]);
        line("pending", format!("{pending}; the write that goes on now: {writing}"));
        let mean = journal["sync_seconds"].as_f64().unwrap_or(0.0) / journal["syncs"].as_f64().unwrap_or(0.0).max(1.0);
        let [last, max] = ["sync_seconds_last", "sync_seconds_max"].map(|name| milliseconds(&journal[name]));
        let mean = milliseconds(&mean.into());
        line("syncs", format!("{}; mean {mean}, last {last}, longest {max}", journal["syncs"]));
    }
    let spool = &reply["spool"];
    let files = counted_of(&spool["files"], "file");
    line("spool", format!("{} of {} in {files}", bytes(&spool["bytes"]), bytes(&spool["most"])));
    lines
}

/// Lines about the catalogue: what is published, and who follows.
fn catalogue(catalogue: &Value, line: &mut impl FnMut(&str, String)) {
    let [paths, versions] = ["path", "version"].map(|name| counted_of(&catalogue[format!("{name}s")], name));
    let [seq, followers] = ["seq", "followers"].map(|name| &catalogue[name]);
    let watch = &catalogue["watch"];
    let looked = match watch["looked_seconds"].is_null() {
        true => "not read yet".to_owned(),
        false => format!("read {} ago in {} s", time(&watch["looked_seconds"]), watch["look_seconds"]),
    };
    line("publishes", format!("{paths} up to number {seq}, {versions}; {looked}"));
    let behind = match catalogue["behind"].as_u64() {
        None | Some(0) => "none is behind".to_owned(),
        Some(changes) => {
            format!("the last is {} behind, for {}", counted(changes, "change"), time(&catalogue["behind_seconds"]))
        }
    };
    line("followers", format!("{followers}, {behind}; {} known by what they have", catalogue["holders"]));
    if watch["waiting_files"] != 0 && watch.is_object() {
        line("unfinished", counted_of(&watch["waiting_files"], "file"));
    }
}

fn numbers(counters: &Value) -> String {
    let none = Map::new();
    let counters = counters.as_object().unwrap_or(&none).iter().filter(|(_, count)| **count != 0);
    let counters: Vec<_> = counters.map(|(name, count)| format!("{} {count}", name.replace('_', " "))).collect();
    if counters.is_empty() { "all 0".to_owned() } else { counters.join(", ") }
}
