//! The size of a cell's log over time.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::broker::{call, work};
use crate::support::process::Process;
use crate::support::wait_until;
use crate::{ANY, Cell, await_leader, expect_all};

/// Requests that wait all the time, and their bytes.
const WAITING: u64 = 1_500;
const BYTES: &str = "2000";
/// Requests that go through the log beside them: with their outcomes several times what it may have.
const PASSING: u64 = 15_000;
/// A log has about four times what is needed, and is trimmed in steps of a 32nd of what it may have.
const TIMES: u64 = 5;

#[test]
fn small_log_has_a_few_times_what_is_needed_however_much_goes_through() {
    let Some(cell) = Cell::with_size(1, "32M") else { return };
    let one = cell.broker(ANY);
    await_leader(&one);
    let two = cell.broker(ANY);
    let asked = |service: &str, count: u64, ahead: &str| {
        let count = count.to_string();
        let words = [service, "--count", &count, "--size", BYTES, "--ahead", ahead, "--timeout", "200", "--json"];
        Process::start(&mut call(&[&one, &two], &words))
    };
    let waiting = asked("later", WAITING, "1500");
    wait_until("they are in the log", || cell.status()["requests"] == WAITING);
    let _echo = work(&[&one, &two], &["echo", "--echo"]);
    let mut passing = asked("echo", PASSING, "200");
    let number = |status: &Value, name: &str| status[name].as_u64().expect("a number");
    let (mut looks, mut last) = (0, 0);
    while !passing.ended() {
        let status = cell.status();
        let (bytes, needed) = (number(&status, "bytes"), number(&status, "needed_bytes"));
        assert!(bytes < TIMES * needed, "{bytes} bytes for {needed}");
        (looks, last) = (looks + 1, number(&status, "last"));
    }
    expect_all(passing.finish(), PASSING);
    let messages = number(&cell.status(), "messages");
    assert!(looks > 3 && messages < last / 2, "it was trimmed: {messages} of {last} messages after {looks} looks");
    // The standby has read all that, and knows what is left.
    one.signal(Signal::KILL);
    await_leader(&two);
    assert!(two.log().contains(&format!("requests={WAITING}")), "{}", two.log());
    let _later = work(&[&two], &["later", "--echo"]);
    // A request that comes again over a new connection may have an outcome already, which is sent again.
    let outcome = waiting.finish().expect_code(0);
    let numbers = ["replies", "failed", "wrong"].map(|name| outcome.number(name));
    assert_eq!(numbers, [WAITING, 0, 0], "{}", outcome.summary());
}
