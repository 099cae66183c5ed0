//! `tow demo`: the whole thing on this machine, in one command.

mod files;
mod requests;

use crate::exit::Failure;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

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

/// A child process that doesn't outlive this one.
struct Running(Child);

impl Running {
    /// Starts a program of ours that tells on its first line where it listens.
    fn listening(mut program: Command) -> Result<(Running, String), Failure> {
        program.env("TOW_LOG", "error").stdin(Stdio::null()).stdout(Stdio::piped());
        let started = program.spawn().map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
        let mut running = Running(started);
        let output = running.0.stdout.take().ok_or_else(|| Failure::failed("it has no output"))?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map_err(Failure::failed)?;
        let endpoint = line.trim().rsplit_once(" on ").map(|(_, endpoint)| endpoint.to_owned());
        let endpoint = endpoint.ok_or_else(|| Failure::failed(format!("it did not start: {line:?}")))?;
        Ok((running, endpoint))
    }

    /// Ends it with SIGKILL, as a crash would.
    fn crash(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn this_program() -> Result<Command, Failure> {
    Ok(Command::new(std::env::current_exe().map_err(Failure::failed)?))
}

/// Runs the demo.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let folder = match &arguments.folder {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let folder = folder.map_err(|error| Failure::failed(format!("no temporary folder: {error}")))?;
    println!("Files\n");
    files::run(folder.path(), arguments.size)?;
    println!("\nRequests\n");
    requests::run(folder.path(), arguments.requests)?;
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
