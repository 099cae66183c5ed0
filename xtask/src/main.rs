//! The project's own commands: `cargo xtask test` is all that CI runs, `cargo xtask bench` measures.

mod python;
mod steps;

use std::path::Path;
use std::process::{Command, ExitCode};

use steps::Step;

const USAGE: &str = "\
usage: cargo xtask test [--only STEP]... [--keep-going]
       cargo xtask bench [ARGUMENT]...

steps of test, in order:";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((command, rest)) if command == "test" => test(rest),
        Some((command, rest)) if command == "bench" => bench(rest),
        _ => Err(Failure::Usage("no such command".into())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Step) => ExitCode::FAILURE,
        Err(Failure::Usage(message)) => {
            eprintln!("xtask: {message}\n\n{USAGE}");
            for step in Step::ALL {
                eprintln!("  {:<12} {}", step.name(), step.about());
            }
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

fn test(arguments: &[String]) -> Result<(), Failure> {
    let mut chosen = Vec::new();
    let mut keep_going = false;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--keep-going" => keep_going = true,
            "--only" => {
                let name = arguments.next().map_or("", String::as_str);
                let step = Step::ALL.into_iter().find(|step| step.name() == name);
                chosen.push(step.ok_or_else(|| Failure::Usage(format!("no step is called '{name}'")))?);
            }
            other => return Err(Failure::Usage(format!("test does not know '{other}'"))),
        }
    }
    if chosen.is_empty() {
        chosen.extend(Step::ALL);
    }
    if steps::run(&chosen, keep_going) { Ok(()) } else { Err(Failure::Step) }
}

fn bench(arguments: &[String]) -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["run", "--release", "--package", "bench", "--"]).args(arguments);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Failure::Step),
        Err(error) => {
            eprintln!("xtask: cargo can't be started: {error}");
            Err(Failure::Step)
        }
    }
}

/// The workspace's folder.
fn workspace() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The cargo that runs this, in the workspace's folder.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    command
}
