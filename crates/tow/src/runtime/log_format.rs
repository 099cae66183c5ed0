//! Log lines for programs: logfmt, and JSON. Each event is one line, in which invisible characters are escaped.

use crate::cli::escape::Json;
use serde_json::{Map, Value};
use std::fmt::{self, Debug, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

// No doc comments on the values: each would be a line of the help.
/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Logfmt,
    Json,
}

/// Writes events with their time as `ts`, the level, and the message as `msg`, in front of their own fields.
pub struct Structured {
    /// Or else logfmt.
    pub is_json: bool,
}

impl<S, N> FormatEvent<S, N> for Structured
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let level = event.metadata().level().as_str().to_lowercase();
        let mut fields = Fields { message: String::new(), others: Vec::new() };
        event.record(&mut fields);
        let first = [("ts", time), ("level", level), ("msg", fields.message)];
        let first = first.map(|(name, value)| (name, Value::from(value)));
        let all = first.into_iter().chain(fields.others);
        if self.is_json {
            let object: Map<String, Value> = all.map(|(name, value)| (name.to_owned(), value)).collect();
            return writeln!(writer, "{}", Json(Value::Object(object)));
        }
        for (number, (name, value)) in all.enumerate() {
            let space = if number == 0 { "" } else { " " };
            write!(writer, "{space}{name}={}", Logfmt(&value))?;
        }
        writeln!(writer)
    }
}

/// A value of logfmt: a string is quoted as in JSON unless it is a plain word.
struct Logfmt<'a>(&'a Value);

impl fmt::Display for Logfmt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) => {
                let is_plain = |one: u8| one.is_ascii_graphic() && !matches!(one, b'"' | b'=' | b'\\');
                if !text.is_empty() && text.bytes().all(is_plain) {
                    return f.write_str(text);
                }
                write!(f, "{}", Json(self.0))
            }
            other => write!(f, "{other}"),
        }
    }
}

/// Fields of an event, in their order.
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.others.push((field.name(), value.into()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.add(field, format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" { self.message.push_str(value) } else { self.add(field, value) }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, value.to_string());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn line(is_json: bool) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let log =
            tracing_subscriber::fmt().event_format(Structured { is_json }).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || {
            let path = "a b\n\u{202e}\"c";
            tracing::info!(%path, bytes = 7_u64, seconds = 0.5, ok = true, word = "x/y", none = "", "sent {path}");
        });
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn lines_can_be_read_by_programs() {
        let json = line(true);
        assert_eq!(json.lines().count(), 1);
        let object: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(object["path"], "a b\n\u{202e}\"c");
        assert_eq!((&object["bytes"], &object["seconds"], &object["ok"]), (&7.into(), &0.5.into(), &true.into()));
        assert_eq!((&object["level"], &object["msg"]), (&"info".into(), &"sent a b\n\u{202e}\"c".into()));
        assert!(!json.contains('\u{202e}'));
        let logfmt = line(false);
        let (time, rest) = logfmt.split_once(" level=").unwrap();
        assert!(time.starts_with("ts=2") && !time.contains(' '), "{time}");
        let expected =
            r#"info msg="sent a b\n\u202e\"c" path="a b\n\u202e\"c" bytes=7 seconds=0.5 ok=true word=x/y none="""#;
        assert_eq!(rest, format!("{expected}\n"));
    }
}
