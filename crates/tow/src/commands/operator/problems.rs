//! Problems of a server as text.

use super::rows::{counted_of, text, time};
use crate::cli::escape::Line;
use crate::cli::exit::Status;
use serde_json::Value;

/// The exit status of `tow status --check` for problems, if there are any.
pub fn worst(problems: &Value) -> Option<Status> {
    let is_there = |severity: &str| problems[severity].as_u64().is_some_and(|count| count > 0);
    is_there("warning").then_some(Status::Problems).max(is_there("critical").then_some(Status::Critical))
}

/// How many there are.
pub fn sum(problems: &Value) -> String {
    let (critical, warning) = (problems["critical"].as_u64(), problems["warning"].as_u64());
    match (critical.unwrap_or(0), warning.unwrap_or(0)) {
        _ if problems.is_null() => "its problems aren't known yet".to_owned(),
        (0, 0) => "no problems known".to_owned(),
        (0, all) => counted_of(&all.into(), "problem"),
        (all, 0) => format!("{}, critical", counted_of(&all.into(), "problem")),
        (critical, warning) => {
            format!("{}, {critical} of them critical", counted_of(&(critical + warning).into(), "problem"))
        }
    }
}

/// How many there are, then a line for each, and one that says what to do.
pub fn render(problems: &Value) -> String {
    lines(problems, usize::MAX, true)
}

/// How many there are, then a line for each of the first few.
pub fn first(problems: &Value, most: usize) -> String {
    lines(problems, most, false)
}

fn lines(problems: &Value, most: usize, with_advice: bool) -> String {
    let mut lines = format!("{:<12}{}\n", "problems", sum(problems));
    let listed = problems["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
    let listed = &listed[..listed.len().min(most)];
    for problem in listed {
        let name = if problem["severity"] == "critical" { "CRITICAL" } else { "WARNING" };
        let [subject, cause, advice] = ["subject", "cause", "advice"].map(|member| text(&problem[member]));
        let since = time(&problem["seconds"]);
        lines.push_str(&format!("{name:<12}{}\n", Line(&format!("{subject}: {cause} (for {since})"))));
        if with_advice {
            lines.push_str(&format!("{:<12}{}\n", "", Line(&advice.replace('`', ""))));
        }
    }
    for problem in problems["muted"].as_array().into_iter().flatten().take(most) {
        let [subject, cause] = ["subject", "cause"].map(|member| text(&problem[member]));
        let (left, by) = (time(&problem["mute"]["left_seconds"]), text(&problem["mute"]["by"]));
        let line = format!("{subject}: {cause} (muted by {by} for another {left})");
        lines.push_str(&format!("{:<12}{}\n", "muted", Line(&line)));
    }
    let all = ["critical", "warning"].iter().filter_map(|severity| problems[*severity].as_u64()).sum::<u64>();
    match all.saturating_sub(listed.len() as u64) {
        0 => {}
        more => lines.push_str(&format!("{:<12}and {more} more\n", "")),
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn problems_are_counted_and_the_worst_decides() {
        let of = |critical: u64, warning: u64| json!({ "problems": [], "critical": critical, "warning": warning });
        assert_eq!(
            [of(0, 0), of(0, 2), of(1, 0), of(1, 2)].map(|all| worst(&all)),
            [None, Some(Status::Problems), Some(Status::Critical), Some(Status::Critical)]
        );
        assert_eq!(
            [of(0, 0), of(0, 1), of(1, 2), of(1, 0), of(2, 0)].map(|all| sum(&all)),
            [
                "no problems known",
                "1 problem",
                "3 problems, 1 of them critical",
                "1 problem, critical",
                "2 problems, critical"
            ]
        );
        assert_eq!(sum(&Value::Null), "its problems aren't known yet");
        assert!(render(&of(0, 25)).contains("and 25 more"));
    }

    #[test]
    fn a_problem_is_two_lines_whatever_its_names() {
        let problem = json!({
            "severity": "critical", "subject": "a\nCRITICAL b", "cause": "no worker; 1 waits\u{202e}", "seconds": 480, "advice": "Start a `worker`",
        });
        let text = render(&json!({ "problems": [problem], "critical": 1, "warning": 0 }));
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("(for 8min)\n            Start a worker\n"), "{text}");
    }
}
