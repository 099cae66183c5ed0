//! The steps of `cargo xtask test`, and the summary at the end.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{cargo, python};

/// One step of `cargo xtask test`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Formatting.
    Fmt,
    /// Lints, warnings refused.
    Clippy,
    /// The documentation of the API, warnings refused.
    Docs,
    /// Unit and property tests of all crates.
    Unit,
    /// Tests of the real `tow` binary.
    Integration,
    /// Clients written with pyzmq.
    Python,
    /// Clients in Java, Go and JavaScript.
    Stacks,
}

impl Step {
    /// Cheap ones first, so that a slip shows at once.
    pub const ALL: [Self; 7] =
        [Self::Fmt, Self::Clippy, Self::Docs, Self::Unit, Self::Integration, Self::Stacks, Self::Python];

    /// As `--only` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Docs => "docs",
            Self::Unit => "unit",
            Self::Integration => "integration",
            Self::Python => "python",
            Self::Stacks => "stacks",
        }
    }

    /// One line for the usage and the headings.
    pub fn about(self) -> &'static str {
        match self {
            Self::Fmt => "formatting",
            Self::Clippy => "lints; a warning is an error",
            Self::Docs => "the API's documentation; a warning is an error",
            Self::Unit => "unit and property tests of all crates",
            Self::Integration => "tests of the real tow binary: features, bad input, faults",
            Self::Python => "pyzmq against tow serve and tow broker; bad input to the broker, and faults",
            Self::Stacks => {
                "JeroMQ, go-zeromq and zeromq.js against tow serve and tow broker, as far as they can be installed; \
                in CI one of the first two must be"
            }
        }
    }

    fn run(self) -> Result<Outcome, String> {
        match self {
            Self::Python => return python::pytest(&["interop/python", "--ignore=interop/python/test_other_stacks.py"]),
            Self::Stacks => return python::pytest(&["interop/python/test_other_stacks.py"]),
            Self::Fmt => check(cargo().args(["fmt", "--all", "--", "--check"])),
            Self::Clippy => check(
                cargo().args(["clippy", "--workspace", "--all-targets"]).args(locked()).args(["--", "-D", "warnings"]),
            ),
            Self::Docs => check(
                cargo().args(["doc", "--workspace", "--no-deps"]).args(locked()).env("RUSTDOCFLAGS", "-D warnings"),
            ),
            Self::Unit => {
                check(cargo().args(["test", "--workspace", "--exclude", "towpath"]).args(locked()))?;
                check(cargo().args(["test", "--package", "towpath", "--bins"]).args(locked()))
            }
            Self::Integration => check(cargo().args(["test", "--package", "towpath", "--test", "*"]).args(locked())),
        }?;
        Ok(Outcome::Passed)
    }
}

/// How a step ended that did not fail.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All of it ran and passed.
    Passed,
    /// What it needs isn't here; it has said what.
    Skipped,
}

/// In CI the lock file decides, as it was committed.
fn locked() -> Option<&'static str> {
    in_ci().then_some("--locked")
}

/// Whether this is CI, where what must be tested may not be skipped.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Runs a command, shows it, and turns every end but success into a line that says what failed.
pub fn check(command: &mut Command) -> Result<(), String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
    println!("$ {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: can't be started: {error}")),
    }
}

/// Runs the steps in order and prints a summary. Stops at the first that fails, unless told to keep going. Tells whether none
/// failed.
pub fn run(steps: &[Step], keep_going: bool) -> bool {
    let mut results: Vec<(Step, Duration, Result<Outcome, String>)> = Vec::new();
    for (position, step) in steps.iter().enumerate() {
        println!("\n==== {}/{} {}: {}", position + 1, steps.len(), step.name(), step.about());
        let start = Instant::now();
        let result = step.run();
        if let Err(why) = &result {
            println!("{} failed: {why}", step.name());
        }
        let failed = result.is_err();
        results.push((*step, start.elapsed(), result));
        if failed && !keep_going {
            break;
        }
    }
    summarize(steps, &results)
}

fn summarize(steps: &[Step], results: &[(Step, Duration, Result<Outcome, String>)]) -> bool {
    println!("\n==== summary");
    for (step, took, result) in results {
        let word = match result {
            Ok(Outcome::Passed) => "passed",
            Ok(Outcome::Skipped) => "skipped",
            Err(_) => "FAILED",
        };
        println!("{:<12} {word} in {:.0} s", step.name(), took.as_secs_f64());
    }
    for step in steps.iter().skip(results.len()) {
        println!("{:<12} not run", step.name());
    }
    let failed = results.iter().filter(|(_, _, result)| result.is_err()).count();
    let passed = results.iter().filter(|(_, _, result)| matches!(result, Ok(Outcome::Passed))).count();
    println!("steps: {passed} passed, {failed} failed, {} skipped", results.len() - passed - failed);
    failed == 0
}
