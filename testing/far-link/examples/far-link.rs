//! Runs a shell script beside a link: `far-link ROUND_TRIP_MS MBIT SEND_KIB RECEIVE_KIB SCRIPT`. In it, `$NEAR` and `$FAR` run a program at an end.

use std::process::{Command, ExitCode};
use std::time::Duration;
use towpath_far_link::{End, FarLink, Link};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = || -> Result<u64, Box<dyn std::error::Error>> { Ok(arguments.next().ok_or("a number")?.parse()?) };
    let round_trip = Duration::from_millis(number()?);
    let bits_per_second = number()? * 1_000_000;
    let buffers_max = (number()? << 10, number()? << 10);
    let link = FarLink::start(Link { round_trip, bits_per_second, buffers_max, ..Link::default() })?;
    let script = arguments.next().ok_or("a script")?;
    let mut shell = Command::new("sh");
    for (name, end) in [("NEAR", End::Near), ("FAR", End::Far)] {
        let command = link.command(end, "env");
        let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
        shell.env(name, words.join(" ".as_ref()));
    }
    let status = shell.args(["-c", &script]).status()?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1))?))
}
