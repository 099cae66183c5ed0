//! `tow demo`: the whole thing on this machine, in one command.

mod files;
mod requests;
mod running;

use crate::cli::exit::Failure;
use crate::cli::output::put_out;
use crate::cli::units::size;
use running::Processes;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Arguments of `tow demo`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Size of the file.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    size: u64,
    /// Number of requests.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    requests: u64,
    /// Where to make a temporary directory [default: the system's place for them]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

fn this_program() -> Result<Command, Failure> {
    Ok(Command::new(std::env::current_exe().map_err(Failure::failed)?))
}

/// Runs the demo. However it ends, unless by SIGKILL, it leaves no process and no file.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    // Before there is anything that an interruption would leave behind.
    let processes = Processes::until_interrupted()?;
    let folder = match &arguments.folder {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder = folder.map_err(|error| Failure::failed(format!("no temporary folder: {error}")))?;
    let outcome = both_halves(&processes, folder.path(), &arguments);
    // What an interruption made fail isn't what the person wants to know.
    let outcome = processes.go_on().and(outcome);
    let removed = folder.close().map_err(|error| Failure::failed(format!("the temporary folder stays: {error}")));
    outcome.and_then(|code| removed.map(|()| code))
}

fn both_halves(processes: &Processes, folder: &Path, arguments: &Arguments) -> Result<ExitCode, Failure> {
    put_out(format_args!("Files\n"))?;
    files::run(processes, folder, arguments.size)?;
    put_out(format_args!("\nRequests\n"))?;
    requests::run(processes, folder, arguments.requests)?;
    Ok(ExitCode::SUCCESS)
}
