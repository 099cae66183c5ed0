//! Progress bar on standard error, if that is a terminal.

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt;
use std::io::IsTerminal;

/// Redraws per second.
const REDRAWS_PER_SECOND: u8 = 10;

/// Style before anything has arrived.
const WITHOUT_RATE: &str = "{wide_bar} {binary_bytes}/{binary_total_bytes}  {msg}";

/// Handle on a bar for bytes and files; invisible if standard error is not a terminal.
#[derive(Clone)]
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar of bytes, of unknown length.
    pub fn new(quiet: bool) -> Bar {
        Bar::with_style(
            quiet,
            "{wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  ETA {left}  {msg}",
        )
    }

    /// A bar of something other than bytes.
    pub fn counting(quiet: bool) -> Bar {
        Bar::with_style(quiet, "{wide_bar} {human_pos}/{human_len}  {rate}  ETA {left}  {msg}")
    }

    fn with_style(quiet: bool, style: &str) -> Bar {
        let visible = !quiet && std::io::stderr().is_terminal();
        let target =
            if visible { ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.with_key("left", left).with_key("rate", rate));
        }
        Bar { bar }
    }

    /// Sets the amounts done and in all, and a message.
    pub fn set(&self, done: u64, total: u64, message: String) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_message(message);
    }

    /// Sets the amount that was done before the transfer began, and leaves it out of the rate.
    pub fn start_at(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        // `update` records the position at once, before the rate is reset. It draws too, which would show a wrong rate.
        let style = self.bar.style();
        if let Ok(without_rate) = ProgressStyle::with_template(WITHOUT_RATE) {
            self.bar.set_style(without_rate);
        }
        self.bar.update(|state| state.set_pos(done));
        self.bar.set_style(style);
        self.bar.reset_eta();
    }

    /// True if the bar is shown.
    pub fn is_visible(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Remaining time; unknown while nothing arrives.
fn left(state: &ProgressState, to: &mut dyn fmt::Write) {
    let _ = match state.per_sec() > 0.0 {
        true => write!(to, "{:#}", HumanDuration(state.eta())),
        false => write!(to, "-"),
    };
}

/// Amount per second.
fn rate(state: &ProgressState, to: &mut dyn fmt::Write) {
    let _ = write!(to, "{}/s", per_second(state.per_sec()));
}

/// Rate as a whole number, or with one decimal below 10.
fn per_second(rate: f64) -> String {
    match rate {
        // `as` saturates.
        10.0.. => HumanCount(rate.round() as u64).to_string(),
        _ => format!("{rate:.1}"),
    }
}

/// Size in binary units, such as `1.5 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::per_second;

    #[test]
    fn rates_are_rounded() {
        let rates = [0.0, 0.26, 9.94, 10.4, 1_082.579_6, 1e9].map(per_second);
        assert_eq!(rates, ["0.0", "0.3", "9.9", "10", "1,083", "1,000,000,000"]);
    }
}
