//! `tow demo`: files, following and requests on this machine, in one command.

mod cell;
mod files;
mod following;
mod requests;
mod running;

use crate::cli::exit::Failure;
use crate::cli::output::print_line;
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
    /// Show a cell instead: three NATS servers and three brokers, each killed once. Needs nats-server.
    #[arg(long, conflicts_with = "size")]
    cell: bool,
    /// Where to make a temporary directory [default: the system's place for them]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// This program, with the options of the demo alone.
fn this_program() -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe().map_err(Failure::failed)?);
    for (variable, _) in std::env::vars_os() {
        if variable.as_encoded_bytes().starts_with(b"TOW_") && variable != "TOW_LOG" {
            command.env_remove(variable);
        }
    }
    Ok(command)
}

/// Runs the demo. Unless killed by SIGKILL, it leaves no process and no file.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    // Before there is anything to clean up.
    let processes = Processes::until_signal()?;
    let folder = match &arguments.folder {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder =
        folder.map_err(|error| Failure::failed(format!("cannot make a temporary directory: {error}; set --folder")))?;
    let outcome = all_parts(&processes, folder.path(), &arguments);
    // After an interruption, errors are its consequence.
    let outcome = processes.check().and(outcome);
    let removed =
        folder.close().map_err(|error| Failure::failed(format!("cannot remove the temporary directory: {error}")));
    outcome.and_then(|code| removed.map(|()| code))
}

fn all_parts(processes: &Processes, folder: &Path, arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.cell {
        print_line(format_args!("A cell\n"))?;
        cell::run(processes, folder, arguments.requests)?;
        return Ok(ExitCode::SUCCESS);
    }
    print_line(format_args!("Files\n"))?;
    files::run(processes, folder, arguments.size)?;
    print_line(format_args!("\nFollowing\n"))?;
    following::run(processes, folder)?;
    print_line(format_args!("\nRequests\n"))?;
    requests::run(processes, folder, arguments.requests)?;
    Ok(ExitCode::SUCCESS)
}
