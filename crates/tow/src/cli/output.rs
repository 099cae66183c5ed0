//! What is said to the person who started this, and to whoever reads its output. Both may be gone, and then the standard library's
//! macros panic.

use crate::cli::exit::Failure;
use std::fmt::Display;
use std::io::{self, Write};

/// Says a line on standard error. That nobody hears it is no reason to fail.
pub fn say(line: impl Display) {
    // At once, so that lines of several threads stay whole.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Puts a line out on standard output: somebody who asked for it misses it if that can't be done.
pub fn put_out(line: impl Display) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output.write_all(format!("{line}\n").as_bytes()).and_then(|()| output.flush()).map_err(no_output)
}

/// Standard output doesn't take what is written.
pub fn no_output(error: io::Error) -> Failure {
    Failure::failed(format!("standard output: {error}"))
}
