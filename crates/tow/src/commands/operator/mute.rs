//! `tow mute`.

use super::rows::{text, time};
use crate::admin::client::{ServerArgs, find_one};
use crate::cli::escape::{Json, Line};
use crate::cli::exit::Failure;
use crate::cli::output::{print_bytes, print_line};
use crate::cli::table::Table;
use crate::cli::units::duration;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `tow mute`.
#[derive(clap::Args)]
pub struct MuteArguments {
    /// Kind of problem, such as no_worker [default: list those that are muted]
    kind: Option<String>,
    /// Only this subject, such as a service, as `tow status` shows it.
    subject: Option<String>,
    /// How long.
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "1h", conflicts_with = "end")]
    time: Duration,
    /// Count it again.
    #[arg(long, requires = "kind")]
    end: bool,
    /// Print one JSON object per mute.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Mutes a kind of problem, or one, for a time; ends that; or lists what is muted.
pub fn mute(arguments: &MuteArguments) -> Result<ExitCode, Failure> {
    let MuteArguments { kind, subject, time, end, json: is_json, server } = arguments;
    let client = find_one(server, None)?;
    let Some(kind) = kind else {
        let mut problems = client.get("/api/v1/problems")?;
        let Value::Array(mutes) = problems["mutes"].take() else { return Ok(ExitCode::SUCCESS) };
        let shown = match is_json {
            true => mutes.iter().map(|mute| format!("{}\n", Json(mute))).collect(),
            false => table(&mutes),
        };
        print_bytes(shown.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    let path = if *end { "/api/v1/problems/unmute" } else { "/api/v1/problems/mute" };
    let seconds = (!end).then(|| time.as_secs().max(1));
    let reply = client.post(path, &json!({ "kind": kind, "subject": subject, "seconds": seconds }))?;
    if *is_json {
        print_line(Json(&reply))?;
        return Ok(ExitCode::SUCCESS);
    }
    let of = subject.as_ref().map(|subject| format!(" of {subject}")).unwrap_or_default();
    let done = match seconds {
        Some(seconds) => {
            let time = humantime::format_duration(Duration::from_secs(seconds));
            format!("muted {kind}{of} for {time}, or until the server ends")
        }
        None => format!("{kind}{of} counts again"),
    };
    print_line(Line(&done))?;
    Ok(ExitCode::SUCCESS)
}

fn table(mutes: &[Value]) -> String {
    let mut table = Table::new(["LEFT", "KIND ", "OF ", "BY "]);
    for mute in mutes {
        let [kind, subject, by] = ["kind", "subject", "by"].map(|member| text(&mute[member]));
        table.push([&time(&mute["left_seconds"]), &kind, &subject, &by]);
    }
    table.render()
}
