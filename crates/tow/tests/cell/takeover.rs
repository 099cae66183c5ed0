//! A takeover reads nothing again; and the cost of many pending requests.
//!
//! TOWPATH_CELL_PENDING says how many: 1000000, say, of a release build. The figures are printed (`--nocapture`).

use std::time::Instant;

use rustix::process::Signal;

use super::Cell;
use super::members::Member;
use crate::support::broker::{Broker, call, work};
use crate::support::process::Process;
use crate::support::wait_until;

/// Clients that the requests are of: a broker takes 262,144 of one.
const CLIENTS: u64 = 10;

/// Requests that nobody serves yet.
fn waiting(brokers: &[&Broker], count: u64) -> Process {
    let [count, clients, ahead] = [count, CLIENTS, count.div_ceil(CLIENTS)].map(|number| number.to_string());
    let words = ["later", "--count", &count, "--clients", &clients, "--ahead", &ahead, "--size", "200"];
    Process::start(call(brokers, &words).args(["--timeout", "7200", "--json"]))
}

/// A figure of this broker's part in the cell.
fn of_cell(member: &Member, name: &str) -> u64 {
    member.status()["cell"][name].as_u64().expect("a number")
}

/// Requests in the log, as far as this broker has read it.
fn requests(member: &Member) -> u64 {
    let journal = member.operate(&["journal", "--json"]).expect_code(0).summary();
    journal["journal"]["requests"].as_u64().expect("a number")
}

/// Waits until so many requests are in the log. Each wait is for some more of them.
fn await_requests(member: &Member, is_enough: impl Fn(u64) -> bool) {
    let mut last = requests(member);
    while !is_enough(last) {
        let before = last;
        wait_until(&format!("the requests in the log aren't {before} any more"), || {
            last = requests(member);
            last != before
        });
    }
}

#[test]
fn takeover_reads_nothing_again() {
    let Some(cell) = Cell::start(1) else { return };
    let one = Member::start(&cell, "one");
    one.await_leading();
    let two = Member::start(&cell, "two");
    two.await_standby();
    let load = waiting(&[&one.broker, &two.broker], 500);
    await_requests(&two, |requests| requests == 500);
    let status = two.status();
    assert!(status["cell"]["read"] == status["cell"]["seen"], "each message was read once: {status}");
    one.broker.signal(Signal::KILL);
    two.await_leading();
    let (read, seen) = (of_cell(&two, "read"), of_cell(&two, "seen"));
    assert!(read < seen, "{read} messages were read of a log that has {seen}, of which it has appended some itself");
    assert!(two.broker.log().contains("requests=500"), "{}", two.broker.log());
    drop(load);
}

#[test]
fn many_pending_requests_survive_the_leader() {
    let count = std::env::var("TOWPATH_CELL_PENDING").ok().and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let Some(cell) = Cell::with_size(1, &(count * 1024 + (64 << 20)).to_string()) else { return };
    let most = (2 * count).to_string();
    let member = |name| Member::with(&cell, name, &["--max-waiting", &most, "--max-memory", "8G"]);
    let one = member("one");
    one.await_leading();
    let two = member("two");
    two.await_standby();
    let began = Instant::now();
    let mut load = waiting(&[&one.broker, &two.broker], count);
    await_requests(&two, |requests| requests == count);
    println!("{count} requests of 200 bytes in the log after {:.1} s", began.elapsed().as_secs_f64());
    let mib = |bytes: u64| bytes >> 20;
    let status = cell.status();
    let stream = |name: &str| status[name].as_u64().expect("a number");
    println!(
        "log: {} MiB, {} of them needed, {} messages",
        mib(stream("bytes")),
        mib(stream("needed_bytes")),
        stream("messages")
    );
    let memory = |member: &Member| mib(member.broker.peak_memory());
    println!("memory at most: leader {} MiB, standby {} MiB", memory(&one), memory(&two));
    one.broker.signal(Signal::KILL);
    let killed = Instant::now();
    two.await_leading();
    println!("takeover: {:.2} s after the kill, with --takeover-after 2s", killed.elapsed().as_secs_f64());
    assert!(two.broker.log().contains(&format!("requests={count}")), "{}", two.broker.log());
    let _later = work(&[&two.broker], &["later", "--echo", "--jobs", "1000"]);
    await_requests(&two, |requests| requests < count);
    println!("first outcomes: {:.2} s after the kill", killed.elapsed().as_secs_f64());
    let began = Instant::now();
    await_requests(&two, |requests| requests == 0);
    println!("all outcomes: {:.1} s later", began.elapsed().as_secs_f64());
    println!("memory at most: the new leader {} MiB", memory(&two));
    wait_until("the client has all replies", || load.ended());
    let outcome = load.finish().expect_code(0);
    let numbers = ["replies", "failed", "wrong"].map(|name| outcome.number(name));
    assert_eq!(numbers, [count, 0, 0], "{}", outcome.summary());
}
