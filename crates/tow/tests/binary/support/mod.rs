//! Support for tests of the binary: processes with deadlines, raw ZMTP, a proxy that holds and
//! cuts, and trees of files.

pub mod broker;
pub mod middle;
pub mod process;
pub mod proxy;
pub mod random;
pub mod tree;
pub mod wire;

use std::time::{Duration, Instant};

/// Longest time that a test waits for anything. Generous, for busy machines.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds, looking again each few milliseconds. Panics with `what` after [`DEADLINE`].
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reports a skipped test. In CI that is a failure.
#[track_caller]
pub fn skip(why: &str) {
    let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!in_ci, "{why}, and in CI that may not be skipped");
    println!("skipped: {why}");
}
