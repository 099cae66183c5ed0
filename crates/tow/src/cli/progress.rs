//! The progress bar: on a terminal only, on standard error, so that output can be piped.

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt;
use std::io::IsTerminal;

/// Redraws a second.
const REDRAWS_PER_SECOND: u8 = 10;

/// Before anything has come. The bar takes what the rest of the line leaves of the terminal's width.
const WITHOUT_RATE: &str = "{wide_bar} {binary_bytes}/{binary_total_bytes}  {msg}";

/// A bar for bytes and files, or another handle on it; invisible when standard error is not a terminal.
#[derive(Clone)]
pub struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar of which the length is not known yet.
    pub fn new(quiet: bool) -> Bar {
        Bar::with_style(
            quiet,
            "{wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  ETA {left}  {msg}",
        )
    }

    /// A bar that counts something other tha bytes.
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

    /// Bytes done, bytes in all, and what else to say.
    pub fn set(&self, done: u64, total: u64, message: String) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_message(message);
    }

    /// What was there when this began doesn't count for the rate.
    pub fn start_at(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        // The bar takes note of a position now and then only: this notes it before it begins to count anew. That draws it too, and
        // the rate would be of what was there.
        let style = self.bar.style();
        if let Ok(without_rate) = ProgressStyle::with_template(WITHOUT_RATE) {
            self.bar.set_style(without_rate);
        }
        self.bar.update(|state| state.set_pos(done));
        self.bar.set_style(style);
        self.bar.reset_eta();
    }

    /// Whether anybody sees it.
    pub fn is_visible(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The time that is left. While nothing comes nobody knows it.
fn left(state: &ProgressState, to: &mut dyn fmt::Write) {
    let _ = match state.per_sec() > 0.0 {
        true => write!(to, "{:#}", HumanDuration(state.eta())),
        false => write!(to, "-"),
    };
}

/// What is done in a second.
fn rate(state: &ProgressState, to: &mut dyn fmt::Write) {
    let _ = write!(to, "{}/s", per_second(state.per_sec()));
}

/// Whole numbers, as digits behind the point of ever new ones can't be read; small ones with one digit.
fn per_second(rate: f64) -> String {
    match rate {
        // `as` ends at the largest number there is.
        10.0.. => HumanCount(rate.round() as u64).to_string(),
        _ => format!("{rate:.1}"),
    }
}

/// Bytes for people, such as `1.5 GiB`.
pub fn human_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::per_second;

    #[test]
    fn a_rate_can_be_read() {
        let rates = [0.0, 0.26, 9.94, 10.4, 1_082.579_6, 1e9].map(per_second);
        assert_eq!(rates, ["0.0", "0.3", "9.9", "10", "1,083", "1,000,000,000"]);
    }
}
