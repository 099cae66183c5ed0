//! `tow`: moves files and requests over ZeroMQ's wire protocol. A module a command.

// They panic where nobody reads: `say` has what doesn't.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod commands;
mod runtime;

use crate::cli::escape::Shown;
use crate::cli::exit::Failure;
use crate::cli::output::say;
use crate::commands::{broker, call, demo, get, ls, serve, work};
use crate::runtime::{log, rlimits, signals};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// What holds for all subcommands.
const AFTER_HELP: &str = "\
Exit status: 0 done, 1 failed or incomplete, 2 wrong usage.
Logs go to standard error; the environment variable TOW_LOG says how much: error, warn, info, debug or trace.
Of a kind of line that comes too often, some are logged and the rest counted; those of debug and trace are all logged.";

/// Moves files and requests between machines over ZeroMQ's wire protocol, ZMTP 3.1.
#[derive(Parser)]
#[command(name = "tow", version, about, max_term_width = 110, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a directory, or one file.
    Serve(serve::Arguments),
    /// List what a server has: names, sizes, times in UTC.
    Ls(ls::Arguments),
    /// Get a file, a directory with all below it, or a glob.
    Get(get::Arguments),
    /// Take requests from clients, and give them to workers: an asynchronous Majordomo broker.
    Broker(broker::Arguments),
    /// Ask a service for something, once or as a load.
    Call(call::Arguments),
    /// Work for a service: each request is given to a command, or echoed.
    Work(work::Arguments),
    /// Show the whole thing on this machine: a file served, got and verified; requests while broker and worker are killed.
    Demo(demo::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let default_level = if matches!(arguments.command, Command::Serve(_) | Command::Broker(_) | Command::Work(_)) {
        "info"
    } else {
        "error"
    };
    // What it held back is told when it ends, and so does `main`.
    let _log = match log::start(default_level) {
        Ok(log) => log,
        Err(failure) => return told(failure),
    };
    rlimits::raise_file_limit();
    if let Err(failure) = rlimits::check_descriptors() {
        return told(failure);
    }
    signals::let_writes_fail();
    if matches!(arguments.command, Command::Broker(_) | Command::Call(_) | Command::Work(_)) {
        rlimits::keep_freed_memory();
    }
    let outcome = match arguments.command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Ls(arguments) => ls::run(arguments),
        Command::Get(arguments) => get::run(arguments),
        Command::Broker(arguments) => broker::run(arguments),
        Command::Call(arguments) => call::run(arguments),
        Command::Work(arguments) => work::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
    };
    outcome.unwrap_or_else(told)
}

fn told(failure: Failure) -> ExitCode {
    say(format_args!("tow: {}", Shown(&failure.to_string())));
    failure.into()
}
