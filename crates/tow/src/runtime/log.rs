//! Log on standard error. Peers cause most of its lines, and a hostile one as many as it likes, so each kind of line (a place in the
//! source) is rate-limited; lines beyond the limit are counted and reported in one. A layer does it for all places at once.

use crate::cli::escape;
use crate::cli::exit::Failure;
use crate::runtime::log_format::{LogFormat, Structured};
use crate::runtime::log_output::{Output, is_journal};
use crate::runtime::log_rate::{Limiter, RateLimit, Suppressed};
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

/// Limit of warnings and errors. A single peer that tries again each second must not fill the log.
const WARNINGS: RateLimit = RateLimit { burst: 20, per_window: 1 };
/// Limit of the level info. A burst of clients is still logged one by one.
const INFORMATION: RateLimit = RateLimit { burst: 1000, per_window: 100 };
/// Limit of confirmed files. They are looked up later, one client at a time, so the limit only protects the disk.
const RECEIPTS: RateLimit = RateLimit { burst: 10_000, per_window: 10_000 };

/// Target of lines that report suppressed ones.
const TARGET: &str = "suppressed";
/// Filter that lets these through: they occur only where lines of their kind are logged.
const TARGET_DIRECTIVE: &str = "suppressed=info";

/// Longest sleep of the reporting thread: another kind's window may end before the one that it waits for.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Log of this process. Reports suppressed lines when it is dropped.
pub struct Log(RateLimited);

/// Environment variable that sets the level.
const VARIABLE: &str = "TOW_LOG";

/// Levels. Directives such as `towpath_sockets=debug` are accepted too.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Parses the value of `TOW_LOG`. Any other word is refused: as the name of a module it would silence all others.
fn parse_filter(wanted: &str) -> Result<EnvFilter, Failure> {
    let is_level = LEVELS.iter().any(|level| wanted.eq_ignore_ascii_case(level));
    let filter = EnvFilter::try_new(wanted).ok().filter(|_| is_level || wanted.contains('='));
    filter.ok_or_else(|| Failure::usage(format!("{VARIABLE}={wanted}: use error, warn, info, debug or trace")))
}

/// Level of a command, with this many `--verbose`.
fn level_of(is_server: bool, verbose: u8) -> &'static str {
    match u16::from(verbose) + u16::from(is_server) {
        0 => "error",
        1 => "info",
        2 => "debug",
        _ => "trace",
    }
}

/// Starts the log. `--verbose` overrides the environment, which overrides the level of the command.
pub fn start(is_server: bool, verbose: u8, format: LogFormat) -> Result<Log, Failure> {
    let wanted = std::env::var_os(VARIABLE).filter(|wanted| verbose == 0 && !wanted.is_empty());
    let mut filter = match wanted {
        Some(wanted) => parse_filter(&wanted.to_string_lossy())?,
        // The client of NATS logs what its user reports itself.
        None => EnvFilter::new(format!("{},async_nats=off", level_of(is_server, verbose))),
    };
    if let Ok(directive) = TARGET_DIRECTIVE.parse() {
        filter = filter.add_directive(directive);
    }
    let rate_limited = RateLimited::default();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .fmt_fields(escape::log_fields())
        .with_writer(Output)
        .with_ansi(format == LogFormat::Text && has_colours())
        .with_target(false)
        // It would report on standard error that standard error can't be written, and so panic.
        .log_internal_errors(false);
    match format {
        LogFormat::Text if is_journal() => lines.without_time().finish().with(rate_limited.clone()).init(),
        LogFormat::Text => lines.finish().with(rate_limited.clone()).init(),
        LogFormat::Logfmt | LogFormat::Json => {
            let format = Structured { is_json: format == LogFormat::Json };
            lines.event_format(format).finish().with(rate_limited.clone()).init();
        }
    }
    Ok(Log(rate_limited))
}

impl Drop for Log {
    fn drop(&mut self) {
        let suppressed = self.0.state().limiter.finish(Instant::now());
        suppressed.iter().for_each(report);
    }
}

/// Level and message of a suppressed line.
type Line = (Level, String);

#[derive(Default)]
struct State {
    limiter: Limiter<Identifier, Line>,
    /// A thread is there that reports suppressed lines.
    is_reporting: bool,
}

/// Suppresses lines beyond the limit of their kind.
#[derive(Clone, Default)]
struct RateLimited(Arc<Mutex<State>>);

impl RateLimited {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports suppressed lines at the end of each window, until there are none.
    fn report_when_due(&self) {
        loop {
            let now = Instant::now();
            let mut state = self.state();
            let due = state.limiter.take_ended(now);
            let next = state.limiter.next_end();
            state.is_reporting = next.is_some();
            drop(state);
            due.iter().for_each(report);
            let Some(next) = next else { return };
            std::thread::sleep(next.saturating_duration_since(now).min(REPORT_INTERVAL));
        }
    }
}

impl<S: Subscriber> Layer<S> for RateLimited {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let level = *metadata.level();
        if level > Level::INFO || metadata.target() == TARGET {
            return true;
        }
        let limit = match level {
            _ if metadata.target() == towpath_files::server::RECEIPTS => RECEIPTS,
            Level::INFO => INFORMATION,
            _ => WARNINGS,
        };
        let describe = || {
            let mut message = Message(String::new());
            event.record(&mut message);
            (level, message.0)
        };
        let mut state = self.state();
        let is_logged = state.limiter.try_log(Instant::now(), metadata.callsite(), limit, describe);
        if !is_logged && !state.is_reporting {
            let rate_limited = self.clone();
            // Without the thread, the end of the process reports.
            let thread =
                std::thread::Builder::new().name("log".to_owned()).spawn(move || rate_limited.report_when_due());
            state.is_reporting = thread.is_ok();
        }
        is_logged
    }
}

/// Message of a line, without its fields.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// The last warnings that were suppressed: when their window ended, how many, and the first one.
static LAST_SUPPRESSED: Mutex<Option<(Instant, u64, String)>> = Mutex::new(None);

/// When warnings of one kind were last suppressed, how many, and the message of the first of them.
pub fn last_suppressed() -> Option<(Instant, u64, String)> {
    LAST_SUPPRESSED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn report(suppressed: &Suppressed<Line>) {
    let Suppressed { count, over, first: (level, message) } = suppressed;
    if *level < Level::INFO {
        let last = (Instant::now(), *count, message.clone());
        *LAST_SUPPRESSED.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
    }
    let (count, seconds) = (HumanCount(*count), over.as_secs_f64().ceil());
    if *level == Level::INFO {
        tracing::info!(target: TARGET, "{count} more like this in the last {seconds} s: {message}");
    } else {
        tracing::warn!(target: TARGET, "{count} more like this in the last {seconds} s: {message}");
    }
}

/// True if standard error is a terminal with colours and `NO_COLOR` isn't set (<https://no-color.org>).
fn has_colours() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts lines that are logged.
    #[derive(Clone, Default)]
    struct Counted(Arc<AtomicUsize>);

    impl<S: Subscriber> Layer<S> for Counted {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn word_that_is_no_level_is_refused() {
        for good in ["off", "error", "WARN", "info", "debug", "trace", "towpath_sockets=debug", "warn,towpath=info"] {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for wrong in ["foo", "verbose", "info,warn", "towpath=much"] {
            let failure = parse_filter(wrong).err().map(|failure| failure.to_string()).unwrap_or_default();
            assert_eq!(failure, format!("TOW_LOG={wrong}: use error, warn, info, debug or trace"));
        }
    }

    #[test]
    fn a_peer_that_tries_again_each_second_does_not_fill_the_log() {
        let (mut limiter, begin) = (Limiter::default(), Instant::now());
        let mut is_logged = |second| limiter.try_log(begin + Duration::from_secs(second), (), WARNINGS, || ());
        let logged = (0..3600).filter(|second| is_logged(*second)).count();
        assert!((300..=400).contains(&logged), "{logged}");
    }

    #[test]
    fn all_levels_but_debug_and_trace_are_limited() {
        let counted = Counted::default();
        let rate_limited = RateLimited::default();
        let log = tracing_subscriber::registry().with(counted.clone()).with(rate_limited.clone());
        let logged = |line: fn(u32)| {
            let before = counted.0.load(Ordering::Relaxed);
            (0..15_000).for_each(line);
            counted.0.load(Ordering::Relaxed) - before
        };
        tracing::subscriber::with_default(log, || {
            assert_eq!(logged(|n| tracing::error!("an error: {n}")), 20);
            assert_eq!(logged(|n| tracing::warn!(n, "a warning")), 20);
            assert_eq!(logged(|n| tracing::warn!(n, "another kind")), 20);
            assert_eq!(logged(|n| tracing::info!(n, "information")), 1000);
            assert_eq!(logged(|n| tracing::info!(target: towpath_files::server::RECEIPTS, n, "a receipt")), 10_000);
            assert_eq!(logged(|n| tracing::debug!(n, "a detail")), 15_000);
            assert_eq!(logged(|n| tracing::trace!(n, "a detail")), 15_000);
        });
        let suppressed = rate_limited.state().limiter.finish(Instant::now());
        let mut suppressed: Vec<_> = suppressed.into_iter().map(|lines| (lines.first.1, lines.count)).collect();
        suppressed.sort();
        let expected = [
            ("a receipt", 5_000),
            ("a warning", 14_980),
            ("an error: 20", 14_980),
            ("another kind", 14_980),
            ("information", 14_000),
        ];
        assert_eq!(suppressed, expected.map(|(first, count)| (first.to_owned(), count)));
    }
}
