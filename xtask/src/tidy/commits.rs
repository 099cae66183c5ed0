//! Commit subjects.

use std::process::Command;

use super::Problem;
use crate::workspace;

const RULE: &str = "commit-subject";

/// Longest subject of a commit.
const SUBJECT: usize = 72;

/// The last commit that this rule doesn't apply to.
const SINCE: &str = "f940f1b";

/// Checks the commits since `SINCE`; none where the history is too shallow to have it.
pub fn check() -> Result<Vec<Problem>, String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(workspace()).output();
        output.map_err(|error| format!("cannot run git: {error}"))
    };
    if !git(&["merge-base", "--is-ancestor", SINCE, "HEAD"])?.status.success() {
        println!("commit subjects are not checked: {SINCE} is not in this history");
        return Ok(Vec::new());
    }
    let log = git(&["log", "--format=%h %s", &format!("{SINCE}..HEAD")])?;
    Ok(String::from_utf8_lossy(&log.stdout).lines().filter_map(problem).collect())
}

/// The violation of one line of `git log`, if it is one.
fn problem(commit: &str) -> Option<Problem> {
    let (hash, subject) = commit.split_once(' ').unwrap_or((commit, ""));
    let length = subject.chars().count();
    let advice = || format!("{length} characters of at most {SUBJECT}; say the rest in the body");
    (length > SUBJECT).then(|| Problem::new(&format!("commit {hash}"), 0, RULE, advice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_subjects_are_reported() {
        assert_eq!(problem(&format!("abc1234 {}", "é".repeat(SUBJECT))), None);
        assert!(problem(&format!("abc1234 {}", "e".repeat(SUBJECT + 1))).is_some());
    }
}
