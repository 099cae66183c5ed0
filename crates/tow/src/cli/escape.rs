//! Text that somebody else may have made up, on its way to a terminal or a log: what a peer says must neither move the cursor nor
//! look like a line of ours.

use std::fmt::{self, Debug, Write};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// What can't be seen is shown by its number. The complaint of a command may have several lines: all but the first are indented.
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|one| match one {
            '\n' => f.write_str("\n  "),
            '\t' => f.write_char(one),
            _ => write_visible(f, one),
        })
    }
}

/// How fields of log lines are written: each event stays on its line.
pub fn log_fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    let field = |writer: &mut Writer<'_>, field: &Field, value: &dyn Debug| {
        if field.name() != "message" {
            write!(writer, "{}=", field.name())?;
        }
        write!(OneLine(writer), "{value:?}")
    };
    debug_fn(field).delimited(" ")
}

/// Passes on what can be seen, and escapes the rest.
struct OneLine<'a, W>(&'a mut W);

impl<W: Write> Write for OneLine<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|one| write_visible(self.0, one))
    }
}

fn write_visible(to: &mut impl Write, one: char) -> fmt::Result {
    match one {
        // These would be escaped for a string literal, which this isn't.
        '\'' | '"' | '\\' => to.write_char(one),
        _ => write!(to, "{}", one.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_escaped() {
        let text = "a\u{1b}[31m\u{9b}\r\u{7}\u{202e}\n\t'\"\\ ü";
        assert_eq!(Shown(text).to_string(), "a\\u{1b}[31m\\u{9b}\\r\\u{7}\\u{202e}\n  \t'\"\\ ü");
        let mut line = String::new();
        OneLine(&mut line).write_str("one\nline\u{1b}").unwrap();
        assert_eq!(line, "one\\nline\\u{1b}");
    }
}
