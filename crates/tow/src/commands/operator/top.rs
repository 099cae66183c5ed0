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
use crate::runtime::screen::{Input, Key, Screen};
use crate::runtime::signals::end_by_signal;
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
    let interval = arguments.watch.unwrap_or(INTERVAL);
    let screen = if arguments.json { None } else { Screen::open()? };
    if let Some(screen) = screen {
        return interact(screen, interval, || look(&client, &mut before));
    }
    repeat(arguments, Some(interval), || {
        let picture = look(&client, &mut before)?;
        Ok(if arguments.json {
            format!("{}\n", Json(&picture))
        } else {
            problems::first(&picture["problems"], PROBLEMS_MAX) + &render(&picture)
        })
    })
}

/// Shows pictures until the user quits. Problems stay at the top; below them the rest is scrolled.
fn interact(
    mut screen: Screen,
    interval: Duration,
    mut look: impl FnMut() -> Result<Value, Failure>,
) -> Result<ExitCode, Failure> {
    let mut first = 0;
    loop {
        let picture = look()?;
        let (problems, rest) = (problems::first(&picture["problems"], PROBLEMS_MAX), render(&picture));
        let until = Instant::now() + interval;
        loop {
            let page = Page::new(&problems, &rest, screen.size());
            first = first.min(page.last);
            screen.draw(&page.from(first))?;
            first = match screen.input(until) {
                None => break,
                Some(Input::Resized) => first,
                Some(Input::Key(key)) => match key {
                    Key::Quit => return Ok(ExitCode::SUCCESS),
                    Key::Interrupt => {
                        drop(screen);
                        return Ok(end_by_signal());
                    }
                    Key::Up => first.saturating_sub(1),
                    Key::Down => first + 1,
                    Key::PageUp => first.saturating_sub(page.height),
                    Key::PageDown => first + page.height,
                    Key::Home => 0,
                    Key::End => page.last,
                },
            };
        }
    }
}

/// A picture on a terminal of some size.
struct Page<'a> {
    /// Lines that stay at the top.
    top: Vec<&'a str>,
    rest: Vec<&'a str>,
    columns: usize,
    /// Rows for the rest.
    height: usize,
    /// The last line of the rest at which a page may begin.
    last: usize,
}

impl<'a> Page<'a> {
    fn new(top: &'a str, rest: &'a str, (columns, rows): (usize, usize)) -> Page<'a> {
        // Half of a small terminal is left to the rest, and one row says which keys there are.
        let top: Vec<_> = top.lines().take(rows / 2).collect();
        let rest: Vec<_> = rest.lines().collect();
        let height = rows.saturating_sub(top.len() + 1);
        let last = rest.len().saturating_sub(height);
        Page { top, rest, columns, height, last }
    }

    /// All lines of the terminal, when the rest begins at this one.
    fn from(&self, first: usize) -> Vec<String> {
        let rest = self.rest.iter().skip(first).take(self.height).copied();
        let gap = self.height.saturating_sub(self.rest.len());
        let shown = self.top.iter().copied().chain(rest).chain(std::iter::repeat_n("", gap));
        let (end, all) = ((first + self.height).min(self.rest.len()), self.rest.len());
        let keys = format!("q quits  lines {}-{end} of {all}: \u{2191} \u{2193} PgUp PgDn", first + 1);
        shown.chain([keys.as_str()]).map(|line| line.chars().take(self.columns).collect()).collect()
    }
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
    format!("{}{rates}\n\n{others}\n{}", status::render(status), peers.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_stay_and_the_rest_is_scrolled_in_any_terminal() {
        let top = (0..6).map(|row| format!("WARNING {row} {}\n", "p".repeat(100))).collect::<String>();
        let rest = (0..40).map(|row| format!("row {row} {}\n", "x".repeat(100))).collect::<String>();
        for (columns, rows) in [(80, 24), (40, 15), (10, 3), (1, 1)] {
            let page = Page::new(&top, &rest, (columns, rows));
            for first in [0, 1, page.last] {
                let lines = page.from(first);
                assert!(lines.len() == rows && lines.iter().all(|line| line.chars().count() <= columns), "{lines:?}");
            }
            if rows > 10 {
                let (begin, end) = (page.from(0), page.from(page.last));
                assert!(begin[0] == end[0] && begin[0].starts_with("WARNING 0 "), "{begin:?}");
                assert!(begin[6].starts_with("row 0 ") && end[rows - 2].starts_with("row 39 "), "{end:?}");
                assert!(end[rows - 1].starts_with("q quits"), "{end:?}");
            }
        }
        let short = Page::new("problems none\n", "one\n", (40, 15));
        assert_eq!((short.last, short.from(0).len()), (0, 15));
    }

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
