//! `tow completions`: scripts for shells.

use crate::cli::exit::Failure;
use crate::cli::output::print_bytes;
use clap::Command;
use clap_complete::Shell;
use std::process::ExitCode;

/// Arguments of `tow completions`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Shell to print it for.
    shell: Shell,
}

/// Prints the script.
pub fn run(arguments: Arguments, command: &mut Command) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, command, "tow", &mut script);
    print_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
