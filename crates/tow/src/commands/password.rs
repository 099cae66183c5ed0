//! `tow password`: a line for a file of passwords.

use crate::cli::auth_args::{PASSWORD, read_secret};
use crate::cli::exit::Failure;
use crate::cli::output::print_line;
use crate::cli::passwords::hashed_line;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use zeroize::Zeroizing;

/// Maximum bytes read of a password that comes from a pipe.
const INPUT_BYTES_MAX: u64 = 1024;

/// Arguments of `tow password`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The user's name.
    user: String,
    /// The password is the first line of this file [default: TOW_PASSWORD, or else standard input]
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

/// Prints the line.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let text = match &arguments.password_file {
        Some(path) => Zeroizing::new(read_secret("--password-file", path)?),
        None => match std::env::var(PASSWORD) {
            Ok(password) => Zeroizing::new(password),
            Err(_) => asked()?,
        },
    };
    let password = text.lines().next().unwrap_or_default();
    print_line(hashed_line(&arguments.user, password)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The password as it is typed, twice, or as it comes from a pipe.
fn asked() -> Result<Zeroizing<String>, Failure> {
    let failed = |error| Failure::failed(format!("reading the password: {error}"));
    let mut text = Zeroizing::new(String::new());
    let input = std::io::stdin();
    if !input.is_terminal() {
        input.lock().take(INPUT_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        return Ok(text);
    }
    let ask = |prompt| rpassword::prompt_password(prompt).map(Zeroizing::new).map_err(failed);
    let (first, again) = (ask("Password: ")?, ask("Again: ")?);
    if first == again { Ok(first) } else { Err(Failure::failed("the two are not the same")) }
}
