//! Escapes text for a terminal or a log. Text from a peer must neither move the cursor nor look like a line of ours.

use std::fmt::{self, Debug, Write};
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Text with invisible characters escaped. Lines after the first are indented.
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|one| match one {
            '\n' => f.write_str("\n  "),
            '\t' => f.write_char(one),
            _ => write_visible(f, one),
        })
    }
}

/// Text on one line, with invisible characters and line feeds escaped.
pub struct Line<'a>(pub &'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        OneLine(f).write_str(self.0)
    }
}

/// JSON text in which invisible characters are escaped that JSON allows as they are. It means the same.
pub struct Json<T>(pub T);

impl<T: fmt::Display> fmt::Display for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(JsonWriter(f), "{}", self.0)
    }
}

/// Writer of JSON. Beyond ASCII there are only characters of strings, and controls of ASCII but DEL are escaped already, or white space.
struct JsonWriter<'a, W>(&'a mut W);

impl<W: Write> Write for JsonWriter<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|one| {
            let is_visible = if one.is_ascii() { one != '\x7f' } else { one.escape_debug().len() == 1 };
            if is_visible {
                return self.0.write_char(one);
            }
            one.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(self.0, "\\u{unit:04x}"))
        })
    }
}

/// Formats the fields of log lines, each event on one line.
pub fn log_fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    let field = |writer: &mut Writer<'_>, field: &Field, value: &dyn Debug| {
        if field.name() != "message" {
            write!(writer, "{}=", field.name())?;
        }
        write!(OneLine(writer), "{value:?}")
    };
    debug_fn(field).delimited(" ")
}

/// Writer that escapes invisible characters and line feeds.
struct OneLine<'a, W>(&'a mut W);

impl<W: Write> Write for OneLine<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|one| write_visible(self.0, one))
    }
}

fn write_visible(to: &mut impl Write, one: char) -> fmt::Result {
    match one {
        // escape_debug would escape these as in a string literal.
        '\'' | '"' | '\\' => to.write_char(one),
        _ => write!(to, "{}", one.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped() {
        let text = "a\u{1b}[31m\u{9b}\r\u{7}\u{202e}\n\t'\"\\ ü";
        assert_eq!(Printable(text).to_string(), "a\\u{1b}[31m\\u{9b}\\r\\u{7}\\u{202e}\n  \t'\"\\ ü");
        assert_eq!(Line("one\nline\u{1b}").to_string(), "one\\nline\\u{1b}");
    }

    #[test]
    fn json_is_escaped_and_means_the_same() {
        let value = serde_json::json!({ "ü\u{9b}\n": ["\u{202e}\u{7f}\"", "\u{e0041}"] });
        let text = Json(&value).to_string();
        assert_eq!(text, r#"{"ü\u009b\n":["\u202e\u007f\"","\udb40\udc41"]}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
