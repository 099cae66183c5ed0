//! What the tests of the binary stand on: processes with deadlines, raw ZMTP written by hand, a proxy that holds and
//! cuts, and trees of files.

pub mod broker;
pub mod process;
pub mod proxy;
pub mod random;
pub mod tree;
pub mod wire;

use std::time::{Duration, Instant};

/// The longest that anything may take before a test gives up on it. Generous: machines that run tests are busy.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds, looking again each few milliseconds. Panics with `what` after [`DEADLINE`].
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Says that a test can't be made here. In CI that is a failure: what must be tested may not be skipped there.
#[track_caller]
pub fn skip(why: &str) {
    let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!in_ci, "{why}, and in CI that may not be skipped");
    println!("skipped: {why}");
}
