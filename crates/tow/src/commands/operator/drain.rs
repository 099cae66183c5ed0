//! `tow drain`.

use super::status::never_ends;
use crate::admin::client::{ServerArgs, find_one};
use crate::cli::escape::Line;
use crate::cli::exit::Failure;
use crate::cli::output::{eprint_line, print_line};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// Pause between two looks at how much is left.
const PAUSE: Duration = Duration::from_millis(200);

/// Arguments of `tow drain`.
#[derive(clap::Args)]
pub struct DrainArguments {
    /// Wait until nothing is left to do. Then the server can be stopped.
    #[arg(long)]
    wait: bool,
    /// End the drain.
    #[arg(long, conflicts_with = "wait")]
    cancel: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Makes a server accept nothing new, and finish its work.
pub fn drain(arguments: &DrainArguments) -> Result<ExitCode, Failure> {
    let client = find_one(&arguments.server, None)?;
    let mut state = client.post("/api/v1/drain", &json!({ "on": !arguments.cancel }))?;
    if arguments.cancel {
        print_line("no longer drains")?;
        return Ok(ExitCode::SUCCESS);
    }
    let left = |state: &Value| state["left"].as_u64().unwrap_or(0);
    let (mut said, mut never_said) = (None, Vec::new());
    loop {
        if said.replace(left(&state)) != Some(left(&state)) {
            print_line(format_args!("drains: {} left", left(&state)))?;
        }
        // Each once, and again if its number is another one.
        let never: Vec<_> = state["left_never"].as_array().into_iter().flatten().map(never_ends).collect();
        for line in never.iter().filter(|line| !never_said.contains(*line)) {
            eprint_line(format_args!("tow: never ends: {}", Line(line)));
        }
        never_said = never;
        if !arguments.wait || left(&state) == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(PAUSE);
        state = client.get("/api/v1/status")?;
        if state["draining"] != true {
            return Err(Failure::failed("somebody has ended the drain, or restarted the server"));
        }
    }
}
