//! Lines on standard output and standard error. Either may be closed, and then the standard library's macros panic.

use crate::cli::exit::{Failure, Status};
use std::fmt::Display;
use std::io::{self, Write};

/// Writes a line to standard error, if that can be written.
pub fn eprint_line(line: impl Display) {
    // In one call, so that lines of several threads stay whole.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Writes a line to standard output.
pub fn print_line(line: impl Display) -> Result<(), Failure> {
    print_bytes(format!("{line}\n").as_bytes())
}

/// The same for a caller that passes on errors of input and output, as they are.
pub fn try_print_line(line: impl Display) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(format!("{line}\n").as_bytes()).and_then(|()| output.flush())
}

/// Writes to standard output.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output.write_all(bytes).and_then(|()| output.flush()).map_err(stdout_failure)
}

/// Says where a server listens, on standard output. A closed one doesn't keep it from serving.
pub fn announce(lines: impl IntoIterator<Item: Display>) {
    for line in lines {
        let _ = print_line(line);
    }
}

/// Failure to write to standard output.
pub fn stdout_failure(error: io::Error) -> Failure {
    let status = if error.kind() == io::ErrorKind::BrokenPipe { Status::ReaderGone } else { Status::Failed };
    Failure::new(status, format_args!("standard output: {error}"))
}
