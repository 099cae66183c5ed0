//! `tow`: moves files over ZeroMQ's wire protocol. A module a subcommand.

mod exit;
mod resources;
mod serve;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Moves files between machines over ZeroMQ's wire protocol, ZMTP 3.1.
#[derive(Parser)]
#[command(name = "tow", version, about, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a directory, or one file.
    Serve(serve::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let default_level = if matches!(arguments.command, Command::Serve(_)) { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env("TOW_LOG").unwrap_or_else(|_| EnvFilter::new(default_level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    resources::raise_file_limit();
    let outcome = match arguments.command {
        Command::Serve(arguments) => serve::run(arguments),
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("tow: {failure}");
        failure.into()
    })
}
