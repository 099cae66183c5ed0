//! Lists as tables.

use crate::admin::List;
use crate::admin::cause_of;
use crate::cli::escape::Line;
use crate::cli::progress::human_bytes;
use crate::cli::table::{Name, Table};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use towpath_files::counted;
use towpath_files::path::Escaped;

/// The entries of a list as a table.
pub fn render(list: List, entries: &[Value]) -> String {
    match list {
        List::Peers => peers(entries),
        List::Gone => gone(entries),
        List::Transfers => transfers(entries),
        List::Followers => followers(entries),
        List::Versions => versions(entries),
        List::Failures => failures(entries),
        List::Services => services(entries),
        List::Workers => workers(entries),
        List::DeadLetters => dead_letters(entries),
    }
}

fn peers(entries: &[Value]) -> String {
    let mut table = Table::new(["ID ", "ADDRESS ", "SINCE", "IN", "OUT", "QUEUED", "DOES "]);
    for peer in entries {
        let [received, sent, queued] = ["received_bytes", "sent_bytes", "queued_bytes"].map(|name| bytes(&peer[name]));
        let since = time(&peer["connected_seconds"]);
        table.push([&text(&peer["id"]), &text(&peer["address"]), &since, &received, &sent, &queued, &does(peer)]);
    }
    table.render()
}

/// A peer's activity, with its name if it has one.
pub fn does(peer: &Value) -> Name {
    let count = |name: &str| peer[name].as_u64().unwrap_or(0);
    let said = |member: &str, format: &dyn Fn(&str) -> String| peer[member].as_str().map(format).unwrap_or_default();
    let by = said("user", &|user| format!(" ({user})")) + &said("through", &|broker| format!(", through {broker}"));
    let work = match (peer["role"].as_str(), peer["protocol"].as_str()) {
        (Some("worker"), _) => {
            let has = format!(": {} of {}", count("requests"), count("credit"));
            return Name([&name(peer, "service").0, has.as_bytes(), by.as_bytes()].concat());
        }
        (_, Some("files")) => match (count("transfers"), count("queries")) {
            (0, 0) => "idle".to_owned(),
            (transfers, 0) => counted(transfers, "transfer"),
            (0, queries) => counted(queries, "listing"),
            (transfers, queries) => format!("{}, {}", counted(transfers, "transfer"), counted(queries, "listing")),
        },
        (Some(_), _) => counted(count("requests"), "request"),
        (None, _) => "nothing yet".to_owned(),
    };
    Name((work + &by).into_bytes())
}

fn gone(entries: &[Value]) -> String {
    let mut table = Table::new(["ID ", "ADDRESS ", "USER ", "AGO", "LASTED", "REASON "]);
    for peer in entries {
        let (ago, lasted) = (time(&peer["gone_seconds"]), time(&peer["lasted_seconds"]));
        let reason = match peer["attempts"].as_u64() {
            None | Some(0 | 1) => text(&peer["reason"]),
            Some(attempts) => format!("{} ({})", text(&peer["reason"]), counted(attempts, "attempt")),
        };
        table.push([&text(&peer["id"]), &text(&peer["address"]), &text(&peer["user"]), &ago, &lasted, &reason]);
    }
    table.render()
}

fn transfers(entries: &[Value]) -> String {
    let mut table = Table::new(["PEER ", "WHO ", "KIND ", "FILES", "DONE", "OF", "RATE", "SLOW ", "PATH "]);
    for transfer in entries {
        let ([peer, kind], path) = (["peer", "kind"].map(|name| text(&transfer[name])), name(transfer, "path"));
        let files = format!("{}/{}", transfer["files_done"], transfer["files"]);
        let (done, of) = progress(transfer);
        let rate = rate(&transfer["bytes_per_second"]);
        table.push([&peer, &who(transfer), &kind, &files, &done, &of, &rate, &slow(transfer), &path]);
    }
    table.render()
}

/// A follower's name, a user, or an address.
fn who(entry: &Value) -> String {
    let known = ["follower", "user", "address"].into_iter().find_map(|member| entry[member].as_str());
    known.unwrap_or("-").to_owned()
}

/// The part of all files' bytes that is done, or of the present file if the sizes of others aren't known, and these bytes.
fn progress(transfer: &Value) -> (String, String) {
    let [done, total] = match transfer["all_total_bytes"].as_u64() {
        Some(_) => ["all_done_bytes", "all_total_bytes"],
        None => ["done_bytes", "total_bytes"],
    };
    let part = match (transfer[done].as_u64(), transfer[total].as_u64()) {
        (Some(done), Some(total @ 1..)) => format!("{}%", (u128::from(done) * 100 / u128::from(total)).min(100)),
        _ => "-".to_owned(),
    };
    (part, bytes(&transfer[total]))
}

/// A rate, or a dash.
fn rate(value: &Value) -> String {
    if value.is_null() { "-".to_owned() } else { format!("{}/s", bytes(value)) }
}

/// Seconds without progress from which they are shown.
const STALLED_SECONDS: f64 = 2.0;

/// Why a transfer is slow, in words, and for how long it has had no progress.
fn slow(transfer: &Value) -> String {
    let cause = transfer["waits_for"].as_str().map_or("-", cause_of);
    match &transfer["stalled_seconds"] {
        stalled if stalled.as_f64() >= Some(STALLED_SECONDS) => format!("{cause} {}", time(stalled)),
        _ => cause.to_owned(),
    }
}

fn followers(entries: &[Value]) -> String {
    let columns =
        ["NAME ", "STATE ", "AT", "BEHIND", "FOR", "LACKS", "LEFT", "SAID", "PEER ", "ADDRESS ", "SLOW ", "FOLLOWS "];
    let mut table = Table::new(columns);
    for follower in entries {
        let [peer, name, address, state] = ["peer", "name", "address", "state"].map(|name| text(&follower[name]));
        let number = |name: &str| follower[name].as_u64().map_or_else(|| "-".to_owned(), |number| number.to_string());
        let at = if follower["seq"].is_null() { number("in_place_seq") } else { number("seq") };
        let lag = match follower["behind"].as_u64() {
            None | Some(0) => "-".to_owned(),
            Some(_) => time(&follower["behind_seconds"]),
        };
        let age = |name: &str| time_or_dash(&follower[name]);
        let (said, left, lacks) = (age("said_seconds"), age("seconds_left"), bytes(&follower["lacks_bytes"]));
        let (state, follows) = (state.replace('_', " "), follows(follower));
        // It isn't changes that it lacks.
        let behind = match follower["has_newest"] == false && follower["behind"] == 0 {
            true => "-".to_owned(),
            false => number("behind"),
        };
        table.push([
            &name,
            &state,
            &at,
            &behind,
            &lag,
            &lacks,
            &left,
            &said,
            &peer,
            &address,
            &slow(follower),
            &follows,
        ]);
    }
    let mut shown = table.render();
    // A line for each: the error is what matters, and has no space in a table.
    for follower in entries {
        if let Some(error) = follower["error"].as_str() {
            let tries = match follower["error_tries"].as_u64() {
                Some(1) => "1 try".to_owned(),
                tries => format!("{} tries", tries.unwrap_or(0)),
            };
            let (name, age) = (text(&follower["name"]), time(&follower["error_seconds"]));
            shown.push_str(&format!("{}\n", Line(&format!("{name} fails: {error} ({tries}, for {age})"))));
        }
    }
    shown
}

/// The followed paths or versions, and the version that the follower has.
fn follows(follower: &Value) -> String {
    let relay = follower["via"].as_str().map(|relay| format!("via {relay}"));
    let what = match (&follower["path"], &follower["glob"]) {
        _ if !follower["versions_of"].is_null() => {
            let of = name(follower, "versions_of");
            let of = format!("versions of /{}", Escaped(&of.0));
            relay.map_or(of.clone(), |relay| format!("{of} {relay}"))
        }
        (Value::String(path), _) => format!("/{path}"),
        (_, Value::String(glob)) => format!("/{glob}"),
        _ if relay.is_some() => relay.unwrap_or_default(),
        _ if follower["peer"].is_null() => "not connected".to_owned(),
        _ => "nothing at the moment".to_owned(),
    };
    let (version, wants) = (follower["version"].as_str(), follower["wants"].as_str());
    let has = match wants.filter(|_| follower["has_newest"] == true) {
        Some(newest) => format!(", has {newest}"),
        None => {
            let has = version.map(|version| format!(", has {}", version.get(..12).unwrap_or(version)));
            has.unwrap_or_default() + &wants.map(|wants| format!(", lacks {wants}")).unwrap_or_default()
        }
    };
    format!("{what}{has}")
}

fn versions(entries: &[Value]) -> String {
    let mut table = Table::new(["VERSION ", "FILES", "SIZE", "HOLDERS", "MISSING", "LABEL ", "PATH "]);
    for version in entries {
        let digest = text(&version["version"]);
        let files = version["files"].as_u64().map_or_else(|| "-".to_owned(), |files| files.to_string());
        let (holders, missing) = (&version["holders"], &version["missing"]);
        let size = bytes(&version["bytes"]);
        let (label, path) = (text(&version["label"]), format!("/{}", text(&version["path"])));
        table.push([&digest.get(..12).unwrap_or(&digest), &files, &size, holders, missing, &label, &path]);
    }
    table.render()
}

/// A line for each: the reason is what matters, and has no space in a table.
fn failures(entries: &[Value]) -> String {
    let line = |failure: &Value| {
        let [address, kind, code, reason] = ["address", "kind", "code", "reason"].map(|name| text(&failure[name]));
        let path = name(failure, "path");
        let path = Escaped(&path.0);
        let who: Vec<_> = ["follower", "user"].iter().filter_map(|name| failure[*name].as_str()).collect();
        let user = if who.is_empty() { String::new() } else { format!(" ({})", who.join(", ")) };
        let others = match failure["count"].as_u64() {
            None | Some(0 | 1) => String::new(),
            Some(count) => format!(" and {}", counted(count - 1, "other")),
        };
        let ago = time(&failure["ago_seconds"]);
        format!("{}\n", Line(&format!("{ago} ago  {address}{user}  {kind} {path}{others}: {code}: {reason}")))
    };
    entries.iter().map(line).collect()
}

fn services(entries: &[Value]) -> String {
    let mut table =
        Table::new(["WAITING", "OLDEST", "MEMORY", "DISK", "UNCONFIRMED", "FAILED", "WORKERS", "STATE ", "SERVICE "]);
    for service in entries {
        let [waiting, unconfirmed, failed, workers] =
            ["waiting", "unconfirmed", "failed", "workers"].map(|name| &service[name]);
        let (memory, disk) = (bytes(&service["memory_bytes"]), bytes(&service["waiting_spooled_bytes"]));
        let has_no_worker = service["waiting"] != 0
            && service["workers"] == 0
            && !service["service"].as_str().is_some_and(|name| name.starts_with("dlq."));
        let state = match service["paused"] == true {
            true => "PAUSED",
            false if has_no_worker => "NO WORKER",
            false => "-",
        };
        let oldest = time_or_dash(&service["oldest_seconds"]);
        let of = name(service, "service");
        table.push([waiting, &oldest, &memory, &disk, unconfirmed, failed, workers, &state, &of]);
    }
    table.render()
}

fn workers(entries: &[Value]) -> String {
    let mut table = Table::new([
        "PEER ",
        "ADDRESS ",
        "USER ",
        "HELD",
        "CREDIT",
        "BUSY",
        "FAILED",
        "RESTS",
        "PROTOCOL ",
        "SERVICE ",
    ]);
    for worker in entries {
        let [peer, address, user, protocol] = ["peer", "address", "user", "protocol"].map(|name| text(&worker[name]));
        let service = name(worker, "service");
        let [busy, rests] = ["busy_seconds", "rests_seconds"].map(|name| time_or_dash(&worker[name]));
        let [held, credit, failed] = ["held", "credit", "failed_in_a_row"].map(|name| &worker[name]);
        table.push([&peer, &address, &user, held, credit, &busy, failed, &rests, &protocol, &service]);
    }
    let mut shown = table.render();
    // A line for each: the reason has no space in a table.
    for worker in entries {
        if let Some(reason) = worker["gave_back"].as_str() {
            let (peer, service) = (text(&worker["peer"]), name(worker, "service"));
            let service = Escaped(&service.0);
            shown.push_str(&format!("{}\n", Line(&format!("{peer} gives requests for {service} back: {reason}"))));
        }
    }
    shown
}

fn dead_letters(entries: &[Value]) -> String {
    let mut table = Table::new(["LETTERS", "OLDEST", "WORKERS", "SERVICE "]);
    for service in entries {
        let oldest = time(&service["oldest_seconds"]);
        table.push([&service["letters"], &oldest, &service["workers"], &name(service, "service")]);
    }
    table.render()
}

/// Requests of a service as a table.
pub fn requests(entries: &[Value]) -> String {
    let mut table =
        Table::new(["ID ", "AGE", "STATE ", "ATTEMPTS", "SIZE", "EXPIRES", "CLIENT ", "PEER ", "WORKER ", "BODY "]);
    for request in entries {
        let [id, state, client, peer, worker] =
            ["id", "state", "client", "peer", "worker"].map(|of| text(&request[of]));
        let state = state.replace('_', " ");
        let (age, size) = (time(&request["seconds"]), bytes(&request["bytes"]));
        let expires = time_or_dash(&request["expires_seconds"]);
        let attempts = &request["attempts"];
        table.push([&id, &age, &state, attempts, &size, &expires, &client, &peer, &worker, &first_bytes(request)]);
    }
    table.render()
}

/// The first bytes of a body, or a dash if they aren't in memory.
fn first_bytes(entry: &Value) -> Name {
    let encoded = entry["first_b64"].as_str();
    let first = encoded.and_then(|encoded| STANDARD.decode(encoded).ok());
    Name(first.unwrap_or_else(|| b"-".to_vec()))
}

/// The dead letters of a service as a table.
pub fn letters(entries: &[Value]) -> String {
    let mut table = Table::new(["ID", "KEPT", "SIZE", "ATTEMPTS", "STATE ", "CLIENT ", "WORKER ", "BODY ", "REASON "]);
    for letter in entries {
        let (kept, size) = (time(&letter["kept_seconds"]), bytes(&letter["bytes"]));
        let [state, client, worker, reason] = ["state", "client", "worker", "reason"].map(|of| text(&letter[of]));
        let (id, attempts, body) = (&letter["id"], &letter["attempts"], first_bytes(letter));
        table.push([id, &kept, &size, attempts, &state, &client, &worker, &body, &reason]);
    }
    table.render()
}

/// A name as its bytes, which the member in base64 has if it isn't UTF-8; or a dash.
pub fn name(entry: &Value, member: &str) -> Name {
    let encoded = entry[format!("{member}_b64")].as_str();
    let decoded = encoded.and_then(|encoded| STANDARD.decode(encoded).ok());
    Name(decoded.unwrap_or_else(|| text(&entry[member]).into_bytes()))
}

/// A text, or a dash.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

/// A number of things, as in `1 file`.
pub fn counted_of(value: &Value, what: &str) -> String {
    counted(value.as_u64().unwrap_or(0), what)
}

/// A number of bytes with a unit.
pub fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), human_bytes)
}

/// A time as [`time`] has it, or a dash.
fn time_or_dash(value: &Value) -> String {
    if value.is_null() { "-".to_owned() } else { time(value) }
}

/// A time in seconds in its largest unit.
pub fn time(value: &Value) -> String {
    let seconds = value.as_f64().unwrap_or(0.0);
    match seconds {
        ..60.0 => format!("{seconds:.0}s"),
        60.0..3600.0 => format!("{:.0}min", seconds / 60.0),
        3600.0..172_800.0 => format!("{:.0}h", seconds / 3600.0),
        _ => format!("{:.0}d", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_failure_is_one_line_whatever_its_path() {
        let failure = json!({
            "address": "127.0.0.1:1", "kind": "fetch", "path": "a\n3s ago  127.0.0.1:2  fetch b", "code": "io", "reason": "x",
        });
        assert_eq!(failures(&[failure]).lines().count(), 1);
    }

    #[test]
    fn names_that_are_not_utf8_look_different() {
        let named = |b64: &str| json!({ "role": "worker", "service": "\u{fffd}\u{fffd}", "service_b64": b64, "gave_back": "x" });
        let entries = [named("//4="), named("/v8="), json!({ "role": "worker", "service": "\\xff\\xfe" })];
        for list in [List::Peers, List::Services, List::Workers, List::DeadLetters] {
            let shown = render(list, &entries);
            let has = |name: &str| shown.lines().any(|line| line.contains(&format!(" {name}")));
            assert!(has("\\xff\\xfe") && has("\\xfe\\xff") && has("\\\\xff\\\\xfe"), "{shown}");
        }
    }

    #[test]
    fn peers_say_what_they_do_whole_to_another_program() {
        let peer = json!({
            "id": "16383.12", "address": "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535", "user": "ann\u{202e}",
            "connected_seconds": 86_399.0, "received_bytes": 1_023_000_000_u64, "sent_bytes": 5, "queued_bytes": 0,
            "protocol": "numbered", "role": "worker", "service": "resize/thumbnails\n", "requests": 12, "credit": 1000,
        });
        let text = peers(&[peer]);
        assert!(
            text.lines().count() == 2 && text.contains("ffff]:65535 ") && text.ends_with("(ann\\u{202e})\n"),
            "{text}"
        );
        let files = json!({ "protocol": "files", "role": "client", "transfers": 2, "queries": 1 });
        assert_eq!(does(&files).0, b"2 transfers, 1 listing");
        let stock = json!({ "protocol": "MDP/0.1", "role": "client", "requests": 3, "through": "tcp://b:5555" });
        assert_eq!(does(&stock).0, b"3 requests, through tcp://b:5555");
        assert_eq!([59.4, 60.0, 7200.0, 172_800.0].map(|seconds| time(&json!(seconds))), ["59s", "1min", "2h", "2d"]);
    }
}
