//! The log on standard error. Peers cause most of its lines, and a hostile one as many as it likes: connections that are refused,
//! requests that make no sense. So each kind of line (a place in the source) has an allowance; what goes beyond is counted, and told
//! in one line. It is done here for all places at once, so that none can be forgotten.

use crate::cli::escape;
use crate::cli::exit::Failure;
use crate::runtime::log_rate::{Accounts, Allowance, HeldBack};
use indicatif::HumanCount;
use std::fmt::Debug;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Complaints, at the levels warn and error.
const COMPLAINTS: Allowance = Allowance { at_once: 20, in_window: 10 };
/// Who came, and what was asked: at the level info. A burst of clients is still seen one by one.
const NEWS: Allowance = Allowance { at_once: 1000, in_window: 100 };
/// Who has which file: it is what somebody may look for later, one client at a time, and so only bounded as the disk needs it.
const RECEIPTS: Allowance = Allowance { at_once: 10_000, in_window: 10_000 };

/// Marks lines that tell what was held back.
const TARGET: &str = "held_back";
/// As a filter that lets them through: they are only there if lines of their kind are.
const TARGET_DIRECTIVE: &str = "held_back=info";

/// A kind may end its window before the one that is waited for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The log of this process, as long as this is kept.
pub struct Log(Bounded);

/// The environment variable that says how much is logged.
const VARIABLE: &str = "TOW_LOG";

/// What it may say, but for directives such as `towpath_sockets=debug`, which are for programmers.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The filter that somebody asked for. Any other word would be taken for the name of a part of the program, and silence all others.
fn filter_of(wanted: &str) -> Result<EnvFilter, Failure> {
    let is_level = LEVELS.iter().any(|level| wanted.eq_ignore_ascii_case(level));
    let filter = EnvFilter::try_new(wanted).ok().filter(|_| is_level || wanted.contains('='));
    filter.ok_or_else(|| Failure::usage(format!("{VARIABLE}={wanted}: it is error, warn, info, debug or trace")))
}

/// Starts to log, from this level on if the environment doesn't say otherwise.
pub fn start(default_level: &str) -> Result<Log, Failure> {
    let wanted = std::env::var_os(VARIABLE).filter(|wanted| !wanted.is_empty());
    let mut filter = match wanted {
        Some(wanted) => filter_of(&wanted.to_string_lossy())?,
        None => EnvFilter::new(default_level),
    };
    if let Ok(directive) = TARGET_DIRECTIVE.parse() {
        filter = filter.add_directive(directive);
    }
    let bounded = Bounded::default();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .fmt_fields(escape::log_fields())
        .with_writer(std::io::stderr)
        .with_ansi(has_colours())
        .with_target(false)
        // It would complain on standard error that standard error can't be written (a full disk, a pipe that nobody reads), and
        // that is a panic.
        .log_internal_errors(false)
        .finish()
        .with(bounded.clone())
        .init();
    Ok(Log(bounded))
}

impl Drop for Log {
    fn drop(&mut self) {
        let held_back = self.0.state().accounts.finish(Instant::now());
        held_back.iter().for_each(tell);
    }
}

/// What a line that was held back is about: its level, and its message.
type About = (Level, String);

#[derive(Default)]
struct State {
    accounts: Accounts<Identifier, About>,
    /// A thread is there that tells.
    is_told: bool,
}

/// Holds back lines beyond the allowance of their kind.
#[derive(Clone, Default)]
struct Bounded(Arc<Mutex<State>>);

impl Bounded {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of what is held back, until nothing is.
    fn tell_when_due(&self) {
        loop {
            let now = Instant::now();
            let mut state = self.state();
            let due = state.accounts.ended(now);
            let next = state.accounts.next_end();
            state.is_told = next.is_some();
            drop(state);
            due.iter().for_each(tell);
            let Some(next) = next else { return };
            std::thread::sleep(next.saturating_duration_since(now).min(LOOK_EVERY));
        }
    }
}

impl<S: Subscriber> Layer<S> for Bounded {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let level = *metadata.level();
        if level > Level::INFO || metadata.target() == TARGET {
            return true;
        }
        let allowance = match level {
            _ if metadata.target() == towpath_files::server::RECEIPTS => RECEIPTS,
            Level::INFO => NEWS,
            _ => COMPLAINTS,
        };
        let about = || {
            let mut message = Message(String::new());
            event.record(&mut message);
            (level, message.0)
        };
        let mut state = self.state();
        let is_said = state.accounts.may_say(Instant::now(), metadata.callsite(), allowance, about);
        if !is_said && !state.is_told {
            let bounded = self.clone();
            // Without it, the end of the process tells.
            let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || bounded.tell_when_due());
            state.is_told = thread.is_ok();
        }
        is_said
    }
}

/// Takes the message of a line, without its fields.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

fn tell(held_back: &HeldBack<About>) {
    let HeldBack { count, over, about: (level, message) } = held_back;
    let (count, seconds) = (HumanCount(*count), over.as_secs_f64().ceil());
    if *level == Level::INFO {
        tracing::info!(target: TARGET, "and {count} more in the last {seconds} s: {message}");
    } else {
        tracing::warn!(target: TARGET, "and {count} more in the last {seconds} s: {message}");
    }
}

/// Whether standard error is a terminal that shows colours, and nobody has asked for none (<https://no-color.org>).
fn has_colours() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts what gets through.
    #[derive(Clone, Default)]
    struct Counted(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Counted {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_wrong_usage() {
        for good in ["off", "error", "WARN", "info", "debug", "trace", "towpath_sockets=debug", "warn,towpath=info"] {
            assert!(filter_of(good).is_ok(), "{good}");
        }
        for wrong in ["foo", "verbose", "info,warn", "towpath=much"] {
            let failure = filter_of(wrong).err().map(|failure| failure.to_string()).unwrap_or_default();
            assert_eq!(failure, format!("TOW_LOG={wrong}: it is error, warn, info, debug or trace"));
        }
    }

    #[test]
    fn complaints_news_and_receipts_have_an_allowance_and_details_have_none() {
        let counted = Counted::default();
        let bounded = Bounded::default();
        let log = tracing_subscriber::registry().with(counted.clone()).with(bounded.clone());
        let said = |line: fn(u32)| {
            let before = counted.0.load(Ordering::Relaxed);
            (0..15_000).for_each(line);
            counted.0.load(Ordering::Relaxed) - before
        };
        tracing::subscriber::with_default(log, || {
            assert_eq!(said(|n| tracing::error!("an error: {n}")), 20);
            assert_eq!(said(|n| tracing::warn!(n, "a complaint")), 20);
            assert_eq!(said(|n| tracing::warn!(n, "another, of another kind")), 20);
            assert_eq!(said(|n| tracing::info!(n, "news")), 1000);
            assert_eq!(said(|n| tracing::info!(target: towpath_files::server::RECEIPTS, n, "a receipt")), 10_000);
            assert_eq!(said(|n| tracing::debug!(n, "a detail")), 15_000);
            assert_eq!(said(|n| tracing::trace!(n, "a detail")), 15_000);
        });
        let held_back = bounded.state().accounts.finish(Instant::now());
        let mut held_back: Vec<_> = held_back.into_iter().map(|held| (held.about.1, held.count)).collect();
        held_back.sort();
        let expected = [
            ("a complaint", 14_980),
            ("a receipt", 5_000),
            ("an error: 20", 14_980),
            ("another, of another kind", 14_980),
            ("news", 14_000),
        ];
        assert_eq!(held_back, expected.map(|(about, count)| (about.to_owned(), count)));
    }
}
