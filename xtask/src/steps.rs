//! The steps of `cargo xtask test` and `cargo xtask check`, and the summary at the end.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::tests::{self, Selection};
use crate::{browser, cargo, crates, dist, python, site, target, tidy};

/// A step of `cargo xtask test` or `cargo xtask check`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Formatting.
    Fmt,
    /// The repository's own rules.
    Tidy,
    /// Licences and sources of dependencies.
    Deny,
    /// Lints, warnings refused.
    Clippy,
    /// The crates as others use them.
    Crates,
    /// The documentation of the API, warnings refused.
    Docs,
    /// Unit tests within `src` alone.
    Quick,
    /// Unit and property tests of all crates.
    Unit,
    /// Tests of the real `tow` binary.
    Integration,
    /// Clients and workers in other languages.
    Stacks,
    /// Clients written with pyzmq.
    Python,
    /// The page for browsers.
    Browser,
    /// The packages.
    Dist,
    /// The documentation as a site.
    Site,
}

/// Few cases, for a step that runs before each commit.
const QUICK: &[(&str, &str)] = &[("PROPTEST_CASES", "32")];

/// Tests of real processes mostly wait, so more of them run than there are processors.
const WAITING: &[(&str, &str)] = &[("RUST_TEST_THREADS", "4")];

/// Ten times as many cases and seeds as by default.
const LONG: &[(&str, &str)] =
    &[("PROPTEST_CASES", "2560"), ("TOWPATH_MODEL_CASES", "30000"), ("TOWPATH_SEEDS", "3000")];

/// Features that are off by default. Packages have them, and the steps share one build with them.
pub const FEATURES: &str = "towpath/nats,towpath/s3";

/// How to run the steps.
pub struct Options {
    /// Go on after a step that failed.
    pub keep_going: bool,
    /// Test binaries that run at a time.
    pub jobs: usize,
    /// Ask tests that search at random for their long form.
    pub long: bool,
}

impl Step {
    /// Cheap ones first, so that a slip shows at once.
    pub const ALL: [Self; 14] = [
        Self::Fmt,
        Self::Tidy,
        Self::Deny,
        Self::Clippy,
        Self::Crates,
        Self::Docs,
        Self::Quick,
        Self::Unit,
        Self::Integration,
        Self::Stacks,
        Self::Python,
        Self::Browser,
        Self::Dist,
        Self::Site,
    ];

    /// The steps of `cargo xtask test`.
    pub const TEST: [Self; 13] = [
        Self::Fmt,
        Self::Tidy,
        Self::Deny,
        Self::Clippy,
        Self::Crates,
        Self::Docs,
        Self::Unit,
        Self::Integration,
        Self::Stacks,
        Self::Python,
        Self::Browser,
        Self::Dist,
        Self::Site,
    ];

    /// The steps of `cargo xtask check`.
    pub const CHECK: [Self; 4] = [Self::Fmt, Self::Tidy, Self::Clippy, Self::Quick];

    /// As `--only` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Tidy => "tidy",
            Self::Deny => "deny",
            Self::Clippy => "clippy",
            Self::Crates => "crates",
            Self::Docs => "docs",
            Self::Site => "site",
            Self::Quick => "quick",
            Self::Unit => "unit",
            Self::Integration => "integration",
            Self::Stacks => "stacks",
            Self::Python => "python",
            Self::Browser => "browser",
            Self::Dist => "dist",
        }
    }

    /// One line for the usage and the headings.
    pub fn about(self) -> &'static str {
        match self {
            Self::Fmt => "formatting",
            Self::Tidy => {
                "the rules in xtask/src/tidy: layers, pure modules, words, lengths, documents, commit subjects"
            }
            Self::Deny => "licences and sources of dependencies, where cargo-deny is installed",
            Self::Clippy => "lints; a warning is an error",
            Self::Crates => "the crates as others use them: zmtp without its features, and packages",
            Self::Site => {
                "the documentation as a site in target/site, by mdBook, which it installs; no broken link, and its search in Chromium"
            }
            Self::Docs => "the API's documentation; a warning is an error",
            Self::Quick => "unit tests within src, with few cases of property tests",
            Self::Unit => "unit and property tests of all crates, and the examples in their documentation",
            Self::Integration => {
                "tests of the real tow binary: features, bad input, faults; with NATS and S3, where their servers can be installed"
            }
            Self::Stacks => {
                "the examples in other languages, and JeroMQ, go-zeromq and zeromq.js, as far as they can be installed"
            }
            Self::Dist => "the packages, of a debug build: the same bytes twice; the manual and the units in them",
            Self::Python => {
                "pyzmq against tow serve and tow broker; bad input to the broker, and faults; the package in python/"
            }
            Self::Browser => "the page for browsers in Chromium, where that and npm's packages can be installed",
        }
    }

    fn run(self, options: &Options) -> Result<Outcome, String> {
        let long = if options.long { LONG } else { &[] };
        match self {
            Self::Tidy => return tidy::run(),
            Self::Deny => return deny(),
            Self::Python => {
                // They mostly wait, so more than there are processors.
                let beside = ["-n", "4", "-m", "not alone"];
                let ignored = python::STACKS.map(|file| format!("--ignore={file}"));
                let ours = ["conformance/python", &ignored[0], &ignored[1]];
                if let skipped @ Outcome::Skipped(_) = python::pytest(&[&ours[..], &beside].concat())? {
                    return Ok(skipped);
                }
                python::pytest(&[&ours[..], &["-m", "alone"]].concat())?;
                return python::package();
            }
            Self::Browser => return browser::run(),
            Self::Site => return site::run(),
            Self::Stacks => return python::stacks(),
            Self::Fmt => check(cargo().args(["fmt", "--all", "--", "--check"])),
            Self::Clippy => clippy(),
            Self::Crates => crates::check(),
            Self::Docs => {
                let doc = ["doc", "--workspace", "--no-deps", "--features", FEATURES];
                check(cargo().args(doc).args(locked()).env("RUSTDOCFLAGS", "-D warnings"))
            }
            Self::Quick => tests::run(Selection::Quick, options.jobs, QUICK),
            Self::Unit => {
                tests::run(Selection::Unit, options.jobs, long)?;
                check(cargo().args(["test", "--workspace", "--doc", "--features", FEATURES]).args(locked()))
            }
            Self::Integration => integration(options.jobs, long),
            Self::Dist => {
                build()?;
                let binary = Some(target().join("debug/tow"));
                dist::dist(&dist::Options { binary, check: true, ..dist::Options::default() })
            }
        }?;
        Ok(Outcome::Passed)
    }
}

/// Builds `tow` and the examples, as the tests of the workspace do: a smaller selection would have other features, and compile once more.
pub fn build() -> Result<(), String> {
    check(cargo().args(["test", "--workspace", "--no-run", "--features", FEATURES]).args(locked()))
}

/// Lints all targets with all features, then the default build, whose code differs.
fn clippy() -> Result<(), String> {
    let refused = ["--", "-D", "warnings"];
    let all = ["clippy", "--workspace", "--all-targets", "--all-features"];
    check(cargo().args(all).args(locked()).args(refused))?;
    let by_default = ["clippy", "--workspace", "--lib", "--bins"];
    check(cargo().args(by_default).args(locked()).args(refused))
}

/// Tests that need NATS or S3 are skipped where the server is missing; in CI that is a failure.
fn integration(jobs: usize, long: &[(&str, &str)]) -> Result<(), String> {
    let mut servers = Vec::new();
    for (name, found) in [("NATS_SERVER", python::nats_server()), ("WEED", python::weed())] {
        match found {
            Ok(path) => servers.push((name, path.to_string_lossy().into_owned())),
            Err(why) if in_ci() => return Err(why),
            Err(why) => println!("skipped: tests that need {name}: {why}"),
        }
    }
    let servers: Vec<_> = servers.iter().map(|(name, path)| (*name, path.as_str())).collect();
    tests::run(Selection::Integration, jobs, &[long, WAITING, &servers].concat())
}

/// Checks deny.toml's rules, where cargo-deny is installed.
fn deny() -> Result<Outcome, String> {
    let installed = cargo().args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) {
        return Ok(Outcome::Skipped("cargo-deny is not installed (cargo install cargo-deny --locked)".to_owned()));
    }
    check(cargo().args(["deny", "--offline", "check", "bans", "licenses", "sources"]))?;
    Ok(Outcome::Passed)
}

/// How a step ended that did not fail.
pub enum Outcome {
    /// All of it ran and passed.
    Passed,
    /// Skipped, since this is missing.
    Skipped(String),
}

/// In CI the lock file decides, as it was committed.
pub fn locked() -> Option<&'static str> {
    in_ci().then_some("--locked")
}

/// Whether this is CI, where what must be tested may not be skipped.
pub fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Installs packages of Debian's in CI, as root, where nothing is lost by it.
pub fn apt_install(packages: &[&str]) -> Result<(), String> {
    if !in_ci() {
        return Ok(());
    }
    let options = ["-o", "DPkg::Lock::Timeout=500", "install", "--yes", "--quiet", "--no-install-recommends"];
    check(Command::new("apt-get").arg("update").arg("--quiet=2"))?;
    let mut install = Command::new("apt-get");
    install.args(options).args(packages).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
    check(&mut install)
}

/// A command's words, for people.
pub fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Runs a command, shows it, and turns every end but success into a line that says what failed.
pub fn check(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    println!("$ {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(error) => Err(format!("{shown}: cannot be started: {error}")),
    }
}

/// Runs the steps in order and prints a summary. Stops at the first that fails, unless it should keep going. Returns whether none
/// failed.
pub fn run(steps: &[Step], options: &Options) -> bool {
    let mut results: Vec<(Step, Duration, Result<Outcome, String>)> = Vec::new();
    for (position, step) in steps.iter().enumerate() {
        println!("\n==== {}/{} {}: {}", position + 1, steps.len(), step.name(), step.about());
        let start = Instant::now();
        let result = step.run(options);
        if let Err(why) = &result {
            println!("{} failed: {why}", step.name());
        }
        let failed = result.is_err();
        results.push((*step, start.elapsed(), result));
        if failed && !options.keep_going {
            break;
        }
    }
    summarize(steps, &results)
}

fn summarize(steps: &[Step], results: &[(Step, Duration, Result<Outcome, String>)]) -> bool {
    println!("\n==== summary");
    for (step, took, result) in results {
        let how = match result {
            Ok(Outcome::Passed) => format!("passed in {:.0} s", took.as_secs_f64()),
            Ok(Outcome::Skipped(why)) => format!("skipped: {why}"),
            Err(_) => format!("FAILED in {:.0} s", took.as_secs_f64()),
        };
        println!("{:<12} {how}", step.name());
    }
    for step in steps.iter().skip(results.len()) {
        println!("{:<12} not run", step.name());
    }
    let failed = results.iter().filter(|(_, _, result)| result.is_err()).count();
    let passed = results.iter().filter(|(_, _, result)| matches!(result, Ok(Outcome::Passed))).count();
    println!("steps: {passed} passed, {failed} failed, {} skipped", results.len() - passed - failed);
    failed == 0
}
