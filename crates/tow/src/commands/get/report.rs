//! Output of `tow get`: lines for people, and JSON.

use super::failure::status_of_summary;
use crate::cli::escape::Json;
use crate::cli::exit::Status;
use crate::cli::output::try_print_line;
use crate::cli::progress::human_bytes;
use crate::runtime::rlimits::own_usage;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io;
use std::time::Duration;
use towpath_files::client::{Planned, PlannedChange, PlannedKind, Progress, Summary};
use towpath_files::counted;
use towpath_files::protocol::control::WirePath;

/// Summary in one line.
pub fn describe(summary: &Summary) -> String {
    let per_second = (summary.received_bytes as f64 / summary.seconds.max(1e-3)) as u64;
    let mut line = format!("{}, {}", counted(summary.files, "file"), human_bytes(summary.bytes));
    if summary.received_bytes > 0 {
        // Resumed, sparse and compressed files receive fewer bytes than they have; the speed is of those received.
        if summary.received_bytes != summary.bytes {
            line += &format!("; {} received", human_bytes(summary.received_bytes));
        }
        let how = if summary.verified { "verified" } else { "not verified" };
        let speed = human_bytes(per_second);
        line += &format!(" in {:.1} s, {speed}/s, {how}", summary.seconds);
    }
    if summary.resumed_bytes > 0 {
        line += &format!("; {} resumed", human_bytes(summary.resumed_bytes));
    }
    if summary.reused_bytes > 0 {
        line += &format!("; {} reused", human_bytes(summary.reused_bytes));
    }
    if summary.deleted > 0 {
        line += &format!("; {} deleted", summary.deleted);
    }
    if summary.skipped > 0 {
        // Not all of them may have been compared by digest.
        let how = if summary.verified_files >= summary.files { "verified" } else { "by size and time" };
        line += &format!("; {} already there, {how}", counted(summary.skipped, "file"));
    }
    line
}

/// Summary of a dry run, in one line.
pub fn describe_plan(summary: &Summary) -> String {
    let (files, bytes) = (counted(summary.planned_files, "file"), human_bytes(summary.planned_bytes));
    format!("dry run: {files} of {} to receive, {bytes}; {} to delete", summary.files, summary.deleted)
}

/// Prints what a transfer would do.
pub fn show_planned(planned: &Planned, as_json: bool) -> io::Result<()> {
    let Planned { local, change, kind } = planned;
    if as_json {
        let event = match change {
            PlannedChange::New => "new",
            PlannedChange::Changed => "changed",
            PlannedChange::Deleted => "gone",
        };
        let (of, size) = match kind {
            PlannedKind::File(size) => ("file", *size),
            PlannedKind::Dir => ("dir", None),
            PlannedKind::Link => ("link", None),
        };
        let mut object = json!({ "event": event, "type": of });
        if let (Some(members), Ok(Value::Object(path))) =
            (object.as_object_mut(), serde_json::to_value(WirePath::from(local)))
        {
            members.extend(path);
            members.extend(size.map(|size| ("size".to_owned(), size.into())));
        }
        try_print_line(Json(object))
    } else {
        let sign = match change {
            PlannedChange::New => '+',
            PlannedChange::Changed => '~',
            PlannedChange::Deleted => '-',
        };
        match kind {
            PlannedKind::File(Some(size)) => try_print_line(format_args!("{sign} {local} {size}")),
            PlannedKind::File(None) | PlannedKind::Link => try_print_line(format_args!("{sign} {local}")),
            PlannedKind::Dir => try_print_line(format_args!("{sign} {local}/")),
        }
    }
}

/// JSON object of a transfer that ended early.
pub fn failure_object(
    source: &OsStr,
    progress: &Progress,
    error: &str,
    status: Status,
    taken: Duration,
) -> serde_json::Value {
    let usage = own_usage();
    json!({
        "source": source.to_string_lossy(),
        "error": error,
        "status": status as u8,
        "code": status.code(),
        "files": progress.files_done,
        "bytes": progress.bytes_done,
        "received_bytes": progress.received_bytes,
        "resumed_bytes": progress.resumed_bytes,
        "skipped": progress.skipped,
        // The transfer failed, even if no single file did.
        "failed": progress.failed.max(1),
        "seconds": taken.as_secs_f64(),
        "verified": false,
        "verified_files": progress.verified_files,
        "metadata_refused": 0,
        "cpu_seconds": usage.cpu_seconds,
        "peak_memory_bytes": usage.peak_memory_bytes,
        "failures": [],
        "warnings": [],
        "deleted": 0,
        "held": 0,
    })
}

/// JSON object of a complete transfer.
pub fn summary_object(source: &OsStr, summary: &Summary, is_plan: bool) -> serde_json::Value {
    let usage = own_usage();
    let status = status_of_summary(summary);
    let mut object = json!({
        "source": source.to_string_lossy(),
        "status": status.map_or(0, |status| status as u8),
        "code": status.map_or("done", Status::code),
        "files": summary.files,
        "bytes": summary.bytes,
        "received_bytes": summary.received_bytes,
        "resumed_bytes": summary.resumed_bytes,
        "reused_bytes": summary.reused_bytes,
        "skipped": summary.skipped,
        "failed": summary.failed,
        "seconds": summary.seconds,
        "verified": summary.verified,
        "verified_files": summary.verified_files,
        "metadata_refused": summary.metadata_refused,
        "cpu_seconds": usage.cpu_seconds,
        "peak_memory_bytes": usage.peak_memory_bytes,
        "failures": summary.failures.iter().map(|failure| json!({"path": failure.path, "reason": failure.reason}))
            .collect::<Vec<_>>(),
        "warnings": summary.warnings,
        "deleted": summary.deleted,
        "held": summary.held,
    });
    if let Some(members) = object.as_object_mut().filter(|_| is_plan) {
        members.insert("planned_files".to_owned(), summary.planned_files.into());
        members.insert("planned_bytes".to_owned(), summary.planned_bytes.into());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_of_received_bytes() {
        let whole = Summary {
            files: 2,
            bytes: 3 << 30,
            received_bytes: 3 << 30,
            seconds: 2.0,
            verified: true,
            verified_files: 1,
            ..Summary::default()
        };
        assert_eq!(describe(&whole), "2 files, 3.00 GiB in 2.0 s, 1.50 GiB/s, verified");
        let part = Summary { received_bytes: 1 << 30, skipped: 1, ..whole.clone() };
        let line = "2 files, 3.00 GiB; 1.00 GiB received in 2.0 s, 512.00 MiB/s, verified; 1 file already there, by size and time";
        assert_eq!(describe(&part), line);
        let none = Summary { received_bytes: 0, skipped: 2, verified_files: 2, ..whole };
        assert_eq!(describe(&none), "2 files, 3.00 GiB; 2 files already there, verified");
    }
}
