//! `tow ls`: lists files on a server.

use crate::cli::connect_args::FileServerArgs;
use crate::cli::escape::Json;
use crate::cli::exit::Failure;
use crate::cli::location::Location;
use crate::cli::progress::human_bytes;
use crate::commands::get::{cancel_on_signal, failure_at, source_of};
use crate::runtime::watchdog::{END_TIMEOUT, Watchdog, exit_now};
use clap::ArgAction;
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use towpath_files::client::{Error, FileClient, ListOptions, Source};
use towpath_files::path::Escaped;
use towpath_files::protocol::control::{EntryKind, FollowLinks, ListEntry};

/// Arguments of `tow ls`.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// File, directory or glob (* ? [a-z] {a,b} **): HOST:/PATH, HOST:PORT/PATH or ipc://SOCKET:/PATH.
    location: OsString,
    /// List everything below directories.
    #[arg(long, short)]
    recursive: bool,
    /// List what symbolic links point to, inside the root, instead of the links.
    #[arg(long, short = 'L')]
    follow_links: bool,
    /// Sizes in bytes, times to the second.
    #[arg(long, short)]
    long: bool,
    /// Sizes with units, also with -l.
    #[arg(long, short = 'h')]
    human_readable: bool,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Show the BLAKE3 digest of each file; hashing may take a while.
    #[arg(long)]
    digest: bool,
    /// Print one JSON object per entry.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    server: FileServerArgs,
}

/// Lists, and prints each entry as it arrives.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let location = Location::parse(&arguments.location)?;
    let options = ListOptions {
        source: source_of(&location)?,
        recursive: arguments.recursive,
        digest: arguments.digest,
        follow: match arguments.follow_links {
            true => FollowLinks::All,
            // As with ls(1), a slash asks for what the link leads to.
            false if arguments.location.as_bytes().ends_with(b"/") => FollowLinks::Path,
            false => FollowLinks::None,
        },
    };
    let mut connect = arguments.server.options(location.endpoint)?;
    let watchdog = Watchdog::new();
    connect.cancel = cancel_on_signal(watchdog.heartbeat())?;
    let style = match (arguments.json, arguments.long) {
        (true, _) => Style::Json,
        (false, long) => Style::Line { seconds: long, units: !long || arguments.human_readable },
    };
    // The reader of the output may take its time, except after an interruption.
    let listed = watchdog.run(None, END_TIMEOUT, move || print(&FileClient::new(connect), options, style))?;
    let listed = listed.unwrap_or_else(|_| {
        let interrupted = Error::Cancelled;
        exit_now(failure_at(&arguments.location, &interrupted, &arguments.server), || {})
    });
    let unreadable = listed.map_err(|error| failure_at(&arguments.location, &error, &arguments.server))?;
    Ok(ExitCode::from(u8::from(unreadable > 0)))
}

/// How entries are printed.
#[derive(Clone, Copy)]
enum Style {
    Json,
    /// A line, with the time to the second, and the size with a unit.
    Line {
        seconds: bool,
        units: bool,
    },
}

/// Prints the entries; returns how many couldn't be read.
fn print(client: &FileClient, options: ListOptions, style: Style) -> Result<u64, Error> {
    let mut output = BufWriter::new(std::io::stdout().lock());
    let is_glob = matches!(options.source, Source::Glob(_));
    let (mut unreadable, mut listed) = (0, false);
    for entry in client.list(options)? {
        let entry = entry?;
        listed = true;
        unreadable += u64::from(entry.kind == EntryKind::Error);
        match style {
            Style::Json => {
                writeln!(output, "{}", Json(serde_json::to_string(&entry).map_err(std::io::Error::from)?))?;
            }
            Style::Line { seconds, units } => writeln!(output, "{}", line(&entry, seconds, units))?,
        }
    }
    output.flush()?;
    if is_glob && !listed {
        return Err(Error::nothing_matches());
    }
    Ok(unreadable)
}

/// Entry as a line: mode, size, time, digest if any, name.
fn line(entry: &ListEntry, seconds: bool, units: bool) -> String {
    let kind = match entry.kind {
        EntryKind::File => '-',
        EntryKind::Dir => 'd',
        EntryKind::Link => 'l',
        EntryKind::Other => '?',
        EntryKind::Error => '!',
    };
    let size = match entry.kind {
        EntryKind::File if units => human_bytes(entry.size),
        EntryKind::File => entry.size.to_string(),
        _ => "-".to_owned(),
    };
    let second = if seconds { format!(":{:02}", entry.mtime.seconds.rem_euclid(60)) } else { String::new() };
    let digest = entry.digest.map(|digest| format!("{digest}  ")).unwrap_or_default();
    let slash = if entry.kind == EntryKind::Dir { "/" } else { "" };
    let target = entry.target.as_ref().map(|target| format!(" -> {}", Escaped(target.as_bytes()))).unwrap_or_default();
    let message = entry.message.as_ref().map(|message| format!("  ({})", message.escape_debug())).unwrap_or_default();
    format!(
        "{kind}{:04o} {size:>11}  {}{second}  {digest}{}{slash}{target}{message}",
        entry.mode,
        date(entry.mtime.seconds),
        Escaped(entry.path.as_bytes())
    )
}

/// Formats a Unix time as `YYYY-MM-DD hh:mm` in UTC.
pub fn date(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Count days from 1 March of year 0, which puts the leap day at the end of a year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", second / 3600, second % 3600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn dates_are_in_utc() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(951_827_696), "2000-02-29 12:34");
        assert_eq!(date(1_795_270_859), "2026-11-21 14:20");
        assert_eq!(date(-1), "1969-12-31 23:59");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        assert!(date(now) > date(1_700_000_000));
    }
}
