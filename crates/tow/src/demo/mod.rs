//! `tow demo`: the whole thing on this machine, in one command.

mod files;
mod requests;
mod running;

use crate::exit::Failure;
use running::Processes;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What `tow demo` is told.
#[derive(clap::Args)]
pub struct Arguments {
    /// How much data, such as 64M or 2G.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// How many requests.
    #[arg(long, default_value_t = 100_000)]
    requests: u64,
    /// Where to make the temporary folder.
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// Reads a size: digits, then K, M, G or T for powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        Some((at, 't' | 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "a size is a number, then K, M, G or T if need be".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than 64 bits can count".to_owned())
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
    println!("Files\n");
    files::run(processes, folder, arguments.size)?;
    println!("\nRequests\n");
    requests::run(processes, folder, arguments.requests)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("10"), Ok(10));
        assert_eq!(parse_size("3k"), Ok(3 << 10));
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        for wrong in ["", "G", "-1", "1.5G", "1é", "99999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
