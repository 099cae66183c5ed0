//! The project's own commands: `cargo xtask check` before a commit, `cargo xtask test` for everything, as CI does.

mod browser;
mod crates;
mod dist;
mod python;
mod site;
mod steps;
mod tests;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use steps::{Options, Step};

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  check [OPTION]...     what to run before a commit, in a minute or two: fmt, tidy, clippy, quick
  test [OPTION]...      everything, as in CI: all steps but quick
  docs                  the documentation as a site in target/site/book: the step `site` alone
  tidy                  the step of that name alone
  dist [OPTION]...      a tarball, a .deb, an .rpm, a wheel and an image of a release build, and Python's wheel, the same bytes each time:
                        --out DIR [default: target/packages]; --binary PROGRAM instead of building one; --check packs twice and tries them
  torture [OPTION]...   random operations and faults on real servers and followers: --minutes N [default: 10], --seed N
  bench micro [FILTER]  microbenchmarks of codecs and of the broker's core
  bench [ARGUMENT]...   the tables of docs/benchmarks.md; `bench --help` lists them

Options:
  --only STEP           run this step alone; may be repeated
  --keep-going          go on after a step that failed
  --jobs N              test binaries that run at a time [default: 2]
  --long                about ten times as many random cases and seeds: sets PROPTEST_CASES, TOWPATH_MODEL_CASES
                        and TOWPATH_SEEDS, which may also be set by hand

Environment:
  CI=true               Cargo.lock is used as it is, and the Python step may not be skipped
  TOWPATH_SEED          runs one seed of the broker's simulation, as its failure names it

Steps, in order:";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((command, rest)) if command == "check" => run(&Step::CHECK, rest),
        Some((command, rest)) if command == "test" => run(&Step::TEST, rest),
        Some((command, rest)) if command == "tidy" && rest.is_empty() => run(&[Step::Tidy], rest),
        Some((command, rest)) if command == "docs" && rest.is_empty() => run(&[Step::Site], rest),
        Some((command, rest)) if command == "bench" => bench(rest),
        Some((command, rest)) if command == "torture" => torture(rest),
        Some((command, rest)) if command == "dist" => dist(rest),
        Some((command, _)) if ["help", "--help", "-h"].contains(&command.as_str()) => {
            println!("{}", usage());
            Ok(())
        }
        Some((command, _)) => Err(Failure::Usage(format!("there is no command '{command}'"))),
        None => Err(Failure::Usage("a command is missing".into())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Step) => ExitCode::FAILURE,
        Err(Failure::Usage(message)) => {
            eprintln!("xtask: {message}\n\n{}", usage());
            ExitCode::from(2)
        }
    }
}

/// Why xtask ends with a status other than 0.
enum Failure {
    /// A step failed; it has said why.
    Step,
    /// The arguments make no sense.
    Usage(String),
}

fn usage() -> String {
    let steps = Step::ALL.map(|step| format!("\n  {:<12} {}", step.name(), step.about()));
    USAGE.to_owned() + &steps.concat()
}

fn run(steps: &[Step], arguments: &[String]) -> Result<(), Failure> {
    let mut only = Vec::new();
    let mut options = Options { keep_going: false, jobs: 2, long: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--keep-going" => options.keep_going = true,
            "--long" => options.long = true,
            "--jobs" => {
                let jobs = arguments.next().and_then(|jobs| jobs.parse().ok()).filter(|jobs| *jobs > 0);
                options.jobs = jobs.ok_or_else(|| Failure::Usage("--jobs takes a number from 1".into()))?;
            }
            "--only" => {
                let name = arguments.next().map_or("", String::as_str);
                let step = Step::ALL.into_iter().find(|step| step.name() == name);
                only.push(step.ok_or_else(|| Failure::Usage(format!("there is no step '{name}'")))?);
            }
            "--help" | "-h" => {
                println!("{}", usage());
                return Ok(());
            }
            other => return Err(Failure::Usage(format!("there is no option '{other}'"))),
        }
    }
    let steps = if only.is_empty() { steps } else { &only };
    if steps::run(steps, &options) { Ok(()) } else { Err(Failure::Step) }
}

fn dist(arguments: &[String]) -> Result<(), Failure> {
    let mut options = dist::Options::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--check" => options.check = true,
            "--out" | "--binary" => {
                let path = arguments.next().ok_or_else(|| Failure::Usage(format!("{argument} takes a path")))?;
                let path = Some(PathBuf::from(path));
                if argument == "--out" { options.out = path } else { options.binary = path }
            }
            other => return Err(Failure::Usage(format!("there is no option '{other}'"))),
        }
    }
    dist::dist(&options).map_err(|why| {
        eprintln!("xtask: {why}");
        Failure::Step
    })
}

fn torture(arguments: &[String]) -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["test", "--package", "towpath", "--test", "torture", "--", "--nocapture"]);
    command.env("TOWPATH_TORTURE_MINUTES", "10");
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let variable = match argument.as_str() {
            "--minutes" => "TOWPATH_TORTURE_MINUTES",
            "--seed" => "TOWPATH_SEED",
            other => return Err(Failure::Usage(format!("there is no option '{other}'"))),
        };
        let value = arguments.next().filter(|value| value.parse::<u32>().is_ok());
        command.env(variable, value.ok_or_else(|| Failure::Usage(format!("{argument} takes a whole number")))?);
    }
    succeeds(&mut command)
}

fn bench(arguments: &[String]) -> Result<(), Failure> {
    let mut command = cargo();
    match arguments.split_first() {
        Some((first, rest)) if first == "micro" => {
            command.args(["bench", "--package", "bench", "--bench", "micro", "--"]).args(rest)
        }
        _ => command.args(["run", "--release", "--package", "bench", "--"]).args(arguments),
    };
    succeeds(&mut command)
}

fn succeeds(command: &mut Command) -> Result<(), Failure> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Failure::Step),
        Err(error) => {
            eprintln!("xtask: cargo cannot be started: {error}");
            Err(Failure::Step)
        }
    }
}

/// The workspace's folder.
fn workspace() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Cargo's target folder.
fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => workspace().join(folder),
        None => workspace().join("target"),
    }
}

/// The cargo that runs this, in the workspace's folder.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    command
}
