//! Standard error as the log writes it: for systemd's journal each line has its priority in front (sd-daemon(3)).

use rustix::fs::fstat;
use std::io::{self, Write};
use std::sync::LazyLock;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// True if standard error goes to the journal, which notes the time by itself.
pub fn is_journal() -> bool {
    static IS_JOURNAL: LazyLock<bool> = LazyLock::new(|| {
        // Of what systemd has connected: standard error may be another file since.
        let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
        fstat(io::stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
    });
    *IS_JOURNAL
}

/// The beginning of a line of this level: empty, or its priority as the journal takes it.
pub fn prefix(level: Level) -> &'static str {
    match level {
        _ if !is_journal() => "",
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

/// Standard error.
pub struct Output;

/// One line of the log.
pub struct Line(&'static str);

impl<'a> MakeWriter<'a> for Output {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line("")
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        Line(prefix(*metadata.level()))
    }
}

impl Write for Line {
    /// Takes a whole line at a time, which leaves in one piece: other threads write too.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.0 {
            "" => io::stderr().write(line),
            prefix => io::stderr().write_all(&[prefix.as_bytes(), line].concat()).map(|()| line.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
