//! Progress on standard error, if that is a terminal: one line, which is never longer than the terminal is wide.

use console::Term;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt;
use std::io::IsTerminal;

/// Redraws per second.
const REDRAWS_PER_SECOND: u8 = 10;

/// Style of words alone, which are cut where the terminal ends.
const WORDS: &str = "{wide_msg}";

/// Styles of bytes, with the columns that each needs: what is left out is what a narrow terminal can best do without. All parts at their
/// widest, and a bar of ten columns, fit.
const BYTES: [(u16, &str); 4] = [
    (90, "{wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  ETA {left}  {msg}"),
    (66, "{wide_bar} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  ETA {left}"),
    (40, "{binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}"),
    (0, "{binary_bytes}"),
];

/// The same of something else.
const COUNTS: [(u16, &str); 3] = [
    (80, "{wide_bar} {human_pos}/{human_len}  {rate}  ETA {left}"),
    (50, "{human_pos}/{human_len} {rate}"),
    (0, "{human_pos}"),
];

/// Handle on a bar for bytes and files; invisible if standard error is not a terminal.
#[derive(Clone)]
pub struct Bar {
    bar: ProgressBar,
    styles: &'static [(u16, &'static str)],
}

impl Bar {
    /// A bar of bytes, of unknown length.
    pub fn new(quiet: bool) -> Bar {
        Bar::with_styles(quiet, &BYTES)
    }

    /// A bar of something other than bytes.
    pub fn counting(quiet: bool) -> Bar {
        Bar::with_styles(quiet, &COUNTS)
    }

    fn with_styles(quiet: bool, styles: &'static [(u16, &'static str)]) -> Bar {
        let visible = !quiet && std::io::stderr().is_terminal();
        let target =
            if visible { ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND) } else { ProgressDrawTarget::hidden() };
        let bar = Bar { bar: ProgressBar::with_draw_target(Some(0), target), styles };
        bar.set_style(bar.fitting());
        bar
    }

    /// The style for the terminal as it is now.
    fn fitting(&self) -> &'static str {
        let (_, columns) = Term::stderr().size();
        fitting(self.styles, columns)
    }

    fn set_style(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.with_key("left", left).with_key("rate", rate));
        }
    }

    /// Sets the amounts done and in all, and a message.
    pub fn set(&self, done: u64, total: u64, message: String) {
        if self.is_visible() {
            self.set_style(self.fitting());
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.bar.set_message(message);
    }

    /// Shows words in place of the bar.
    pub fn say(&self, words: String) {
        if self.is_visible() {
            self.set_style(WORDS);
            self.bar.set_message(words);
            self.bar.tick();
        }
    }

    /// Sets the amount that was done before the transfer began, and leaves it out of the rate.
    pub fn start_at(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        // `update` records the position at once, before the rate is reset. It draws too, which would show a wrong rate.
        self.set_style(WORDS);
        self.bar.update(|state| state.set_pos(done));
        self.set_style(self.fitting());
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

/// The first style that a terminal has enough columns for.
fn fitting(styles: &[(u16, &'static str)], columns: u16) -> &'static str {
    styles.iter().find(|(needed, _)| *needed <= columns).map_or(WORDS, |(_, style)| style)
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
    use super::*;

    #[test]
    fn rates_are_rounded() {
        let rates = [0.0, 0.26, 9.94, 10.4, 1_082.579_6, 1e9].map(per_second);
        assert_eq!(rates, ["0.0", "0.3", "9.9", "10", "1,083", "1,000,000,000"]);
    }

    #[test]
    fn narrow_terminals_get_less() {
        for (columns, has_bar, has_rate) in [(200, true, true), (80, true, true), (40, false, true), (20, false, false)]
        {
            let style = fitting(&BYTES, columns);
            assert_eq!((style.contains("wide_bar"), style.contains("per_sec")), (has_bar, has_rate), "{columns}");
        }
    }
}
