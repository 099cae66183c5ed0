//! Work that takes its time, and nothing else.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Before work ends, its thread is awake: how late a system wakes it must not count as work.
const WAKING: Duration = Duration::from_micros(150);

/// Takes so long, as the peers' `work` does.
pub fn take(time: Duration) {
    let end = Instant::now() + time;
    // Without it a sleep takes 50 us longer.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    std::thread::sleep(time.saturating_sub(WAKING));
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
