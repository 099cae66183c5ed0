//! `tow manual`: the manual pages. Options come from the command line's definition; files, exit statuses and examples are written by hand,
//! in a file for each command.

use crate::cli::exit::Failure;
use clap::Command;
use clap_mangen::Man;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Sections that follow the generated ones, by command.
const SECTIONS: &[(&str, &str)] = &[
    ("tow", include_str!("tow.roff")),
    ("tow-serve", include_str!("serve.roff")),
    ("tow-ls", include_str!("ls.roff")),
    ("tow-get", include_str!("get.roff")),
    ("tow-follow", include_str!("follow.roff")),
    ("tow-push", include_str!("push.roff")),
    ("tow-publish", include_str!("publish.roff")),
    ("tow-versions", include_str!("versions.roff")),
    ("tow-broker", include_str!("broker.roff")),
    ("tow-work", include_str!("work.roff")),
    ("tow-call", include_str!("call.roff")),
    ("tow-status", include_str!("status.roff")),
    ("tow-mute", include_str!("mute.roff")),
    ("tow-peers", include_str!("peers.roff")),
    ("tow-gone", include_str!("gone.roff")),
    ("tow-transfers", include_str!("transfers.roff")),
    ("tow-followers", include_str!("followers.roff")),
    ("tow-failures", include_str!("failures.roff")),
    ("tow-services", include_str!("services.roff")),
    ("tow-workers", include_str!("workers.roff")),
    ("tow-page", include_str!("page.roff")),
    ("tow-kick", include_str!("kick.roff")),
    ("tow-forget", include_str!("forget.roff")),
    ("tow-block", include_str!("block.roff")),
    ("tow-unblock", include_str!("unblock.roff")),
    ("tow-pause", include_str!("pause.roff")),
    ("tow-resume", include_str!("resume.roff")),
    ("tow-purge", include_str!("purge.roff")),
    ("tow-dead-letters", include_str!("dead-letters.roff")),
    ("tow-requests", include_str!("requests.roff")),
    ("tow-requeue", include_str!("requeue.roff")),
    ("tow-drain", include_str!("drain.roff")),
    ("tow-audit", include_str!("audit.roff")),
    ("tow-journal", include_str!("journal.roff")),
    ("tow-queue", include_str!("queue.roff")),
    ("tow-top", include_str!("top.roff")),
    ("tow-token", include_str!("token.roff")),
    ("tow-key", include_str!("key.roff")),
    ("tow-password", include_str!("password.roff")),
    ("tow-trust", include_str!("trust.roff")),
    ("tow-rules", include_str!("rules.roff")),
    ("tow-demo", include_str!("demo.roff")),
    ("tow-completions", include_str!("completions.roff")),
    ("tow-manual", include_str!("manual.roff")),
];

/// The section that all of them have.
const EXIT_STATUS: &str = include_str!("exit.roff");

/// Arguments of `tow manual`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Directory to write tow.1, tow-get.1 and so on to; it is made if needed.
    directory: PathBuf,
}

/// Writes a page for each command.
pub fn run(arguments: &Arguments, command: Command) -> Result<ExitCode, Failure> {
    let directory = &arguments.directory;
    if !directory.exists()
        && let Some(named) = directory.to_str().and_then(|word| command.find_subcommand(word))
    {
        let name = named.get_name();
        return Err(Failure::usage(format!(
            "{name} is a command, and a directory for all pages is wanted; `tow {name} --help`, or ./{name} for the directory"
        )));
    }
    let cannot = |error| Failure::failed(format!("{}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(cannot)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    for command in command.get_subcommands().chain([&command]) {
        write(command.clone(), directory).map_err(cannot)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(command: Command, directory: &Path) -> std::io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = Man::new(command).source(concat!("tow ", env!("CARGO_PKG_VERSION"))).manual("Towpath");
    let mut file = std::fs::File::create(directory.join(page.get_filename()))?;
    page.render(&mut file)?;
    if let Some((_, sections)) = SECTIONS.iter().find(|(of, _)| *of == name) {
        file.write_all(EXIT_STATUS.as_bytes())?;
        file.write_all(sections.as_bytes())?;
    }
    file.flush()
}
