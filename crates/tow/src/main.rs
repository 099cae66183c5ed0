//! `tow`: moves files and requests over ZeroMQ's wire protocol. A module a command.

// They panic where standard output is closed; `cli::output` doesn't.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod cli;
mod commands;
mod runtime;

use crate::admin::List;
use crate::cli::escape::{Json, Printable};
use crate::cli::exit::{Failure, Status};
use crate::cli::output::{eprint_line, print_line};
use crate::cli::tips::with_tip;
use crate::commands::{
    broker, call, completions, demo, follow, get, key, ls, manual, operator, password, publish, push, queue, rules,
    serve, trust, versions, work,
};
use crate::runtime::log_format::LogFormat;
use crate::runtime::{log, log_output, rlimits, signals};
use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::json;
use std::process::ExitCode;

/// Options of all commands stand behind those of one.
const LAST: usize = 900;

const AFTER_HELP: &str = "\
Files:
  tow serve /srv/data                          # on tcp://127.0.0.1:5571
  tow ls localhost:/
  tow get localhost:/dir ./dir                 # again: fetches only what is missing
  tow follow localhost:/dir ./dir              # of tow serve --watch: goes on with what changes
Requests:
  tow broker --journal /var/lib/tow            # on tcp://127.0.0.1:5555
  tow work shout -- tr a-z A-Z                 # runs `tr` for each request
  tow call shout hello                         # prints HELLO
On the machine of a server or broker:
  tow status                                   # what runs; tow peers, tow transfers, tow services

A TIME is in seconds or has a unit: 0.5, 500ms, 2min. A SIZE is in bytes, or in K, M, G or T.
Exit status: 0 done, 1 failed or incomplete, 2 usage, 3 deletions are held, 4 not found,
5 refused, 6 no server, 7 expired, 8 lost with a worker, 9 the worker failed, 10 problems,
11 a critical problem (both of tow status --check); after an interrupt the signal's.
TOW_CONNECT sets --connect, TOW_MAX_MEMORY --max-memory, and so on.
-v logs more on standard error, -vv even more. TOW_LOG sets the level: error, warn, info, debug or trace.";

/// Moves files and requests between machines over ZeroMQ's wire protocol, ZMTP 3.1.
#[derive(Parser)]
#[command(name = "tow", version, about, max_term_width = 100, after_help = AFTER_HELP)]
struct Arguments {
    /// Log more to standard error; -vv even more.
    #[arg(long, short, global = true, action = ArgAction::Count, display_order = LAST)]
    verbose: u8,
    /// Write log lines as text, logfmt or json [default: text]
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value = "text", env = "TOW_LOG_FORMAT")]
    #[arg(hide_env = true, hide_possible_values = true, hide_default_value = true, display_order = LAST)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a directory or a file.
    Serve(serve::Arguments),
    /// List what a server has.
    Ls(ls::Arguments),
    /// Fetch a file, a directory or a glob, and resume it.
    Get(get::Arguments),
    /// Keep a local copy of a path on a server up to date, change by change.
    Follow(follow::Arguments),
    /// Send files, directories or standard input to a server that takes them, and resume.
    Push(push::Arguments),
    /// Freeze a directory of a server as a version.
    Publish(publish::Arguments),
    /// List a server's versions, and which followers have them.
    Versions(versions::Arguments),
    /// Queue requests and give them to workers; an asynchronous Majordomo broker.
    Broker(broker::Arguments),
    /// Serve requests by running a command for each.
    Work(work::Arguments),
    /// Send a request, or a load test.
    Call(call::Arguments),
    /// Show the servers and brokers that run on this machine.
    Status(operator::StatusArguments),
    /// Don't count a kind of problem for a time, or list those that aren't counted.
    Mute(operator::MuteArguments),
    /// List who is connected.
    Peers(operator::ListArguments),
    /// List recent disconnects and their reasons.
    Gone(operator::ListArguments),
    /// List a file server's transfers, and what each one waits for.
    Transfers(operator::ListArguments),
    /// List who follows a file server, and how far behind they are.
    Followers(operator::ListArguments),
    /// List what a file server refused lately, and what failed.
    Failures(operator::ListArguments),
    /// List a broker's services and their queues.
    Services(operator::ServiceArguments),
    /// List a service's requests, or end one.
    Requests(operator::RequestsArguments),
    /// List a broker's workers.
    Workers(operator::ServiceArguments),
    /// Print the address of a server's page for browsers, and open it.
    Page(operator::PageArguments),
    /// Disconnect a peer.
    Kick(operator::KickArguments),
    /// Forget a follower that is gone for good.
    Forget(operator::ForgetArguments),
    /// Disconnect a peer and keep it out, or list those that are kept out.
    #[command(visible_alias = "blocked")]
    Block(operator::BlockArguments),
    /// Let a blocked peer connect again.
    Unblock(operator::UnblockArguments),
    /// Stop giving a service's requests to workers until it is resumed.
    Pause(operator::PauseArguments),
    /// Resume a service that is paused.
    Resume(operator::PauseArguments),
    /// End the requests that wait for a service.
    Purge(operator::PurgeArguments),
    /// List a broker's dead letters.
    DeadLetters(operator::LettersArguments),
    /// Requeue a service's dead letters, or drop them.
    Requeue(operator::RequeueArguments),
    /// Accept nothing new and finish what has been accepted.
    Drain(operator::DrainArguments),
    /// List what operators have done, and who.
    Audit(operator::Arguments),
    /// Show the state of a broker's journal.
    Journal(operator::Arguments),
    /// Make, show or check the queue of a cell of brokers.
    Queue(queue::Arguments),
    /// Show what a server does, refreshed continuously, with rates.
    Top(operator::Arguments),
    /// Make, list and revoke tokens of operators, by name.
    Token(operator::TokenArguments),
    /// Make and show keys for encrypted connections.
    Key(key::Arguments),
    /// Make a line for a password file.
    Password(password::Arguments),
    /// Manage the known server keys.
    Trust(trust::Arguments),
    /// Check a rules file, or ask what it allows.
    Rules(rules::Arguments),
    /// Try files and requests on this machine, crashes included.
    Demo(demo::Arguments),
    /// Print a shell completion script.
    Completions(completions::Arguments),
    /// Write the manual pages.
    Manual(manual::Arguments),
}

impl Command {
    /// With `--json` it prints objects as they come, of which the last one may be about its failure. Others have that in their only object.
    fn prints_json_lines(&self) -> bool {
        match self {
            Command::Ls(arguments) => arguments.json,
            Command::Follow(arguments) => arguments.json,
            Command::Push(arguments) => arguments.json,
            Command::Publish(arguments) => arguments.json,
            Command::Versions(arguments) => arguments.json,
            _ => false,
        }
    }
}

/// The command line. A negative number is a value that its option refuses, not an unknown option.
fn command() -> clap::Command {
    let take_negative = |arg: Arg| {
        let has_value = !arg.is_positional() && arg.get_action().takes_values();
        if has_value { arg.allow_negative_numbers(true) } else { arg }
    };
    Arguments::command().mut_subcommands(|command| command.mut_args(|arg| with_variable(take_negative(arg))))
}

/// Takes an option's value from the environment too: of `--max-memory` from `TOW_MAX_MEMORY`.
fn with_variable(arg: Arg) -> Arg {
    let Some(long) = arg.get_long() else { return arg };
    let variable = format!("TOW_{}", long.to_uppercase().replace('-', "_"));
    // Each option has its name once in the life of the process.
    let arg = arg.env(&*variable.leak()).hide_env(true);
    if matches!(arg.get_action(), ArgAction::SetTrue) { arg.value_parser(FalseyValueParser::new()) } else { arg }
}

fn parse_arguments() -> Arguments {
    let mut command = command();
    let parsed = command.try_get_matches_from_mut(std::env::args_os());
    parsed.and_then(|matches| Arguments::from_arg_matches(&matches)).unwrap_or_else(|error| {
        let words: Vec<_> = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        with_tip(error, &command, &words).exit()
    })
}

fn main() -> ExitCode {
    // Not for people, so that help and completions don't have it.
    if std::env::args_os().nth(1).is_some_and(|command| command == work::guard::COMMAND) {
        return work::guard::run().unwrap_or_else(report);
    }
    let arguments = parse_arguments();
    let is_server = matches!(arguments.command, Command::Serve(_) | Command::Broker(_) | Command::Work(_));
    // Reports the lines that it suppressed when it is dropped.
    let log = match log::start(is_server, arguments.verbose, arguments.log_format) {
        Ok(log) => log,
        Err(failure) => return report(failure),
    };
    rlimits::raise_file_limit();
    if let Err(failure) = rlimits::check_descriptors() {
        return report(failure);
    }
    signals::handle_harmless();
    if matches!(arguments.command, Command::Broker(_) | Command::Call(_) | Command::Work(_)) {
        rlimits::keep_freed_memory();
    }
    let is_in_lines = arguments.command.prints_json_lines();
    let outcome = match arguments.command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Ls(arguments) => ls::run(arguments),
        Command::Get(arguments) => get::run(arguments),
        Command::Follow(arguments) => follow::run(arguments),
        Command::Push(arguments) => push::run(arguments),
        Command::Publish(arguments) => publish::run(arguments),
        Command::Versions(arguments) => versions::run(arguments),
        Command::Broker(arguments) => broker::run(arguments),
        Command::Call(arguments) => call::run(arguments),
        Command::Work(arguments) => work::run(arguments),
        Command::Status(arguments) => operator::status(&arguments),
        Command::Mute(arguments) => operator::mute(&arguments),
        Command::Peers(arguments) => operator::list(List::Peers, &arguments),
        Command::Gone(arguments) => operator::list(List::Gone, &arguments),
        Command::Transfers(arguments) => operator::list(List::Transfers, &arguments),
        Command::Followers(arguments) => operator::list(List::Followers, &arguments),
        Command::Failures(arguments) => operator::list(List::Failures, &arguments),
        Command::Services(arguments) => operator::list_by_service(List::Services, &arguments),
        Command::Requests(arguments) => operator::requests(&arguments),
        Command::Workers(arguments) => operator::list_by_service(List::Workers, &arguments),
        Command::Page(arguments) => operator::page(&arguments),
        Command::Kick(arguments) => operator::kick(&arguments),
        Command::Forget(arguments) => operator::forget(&arguments),
        Command::Block(arguments) => operator::block(&arguments),
        Command::Unblock(arguments) => operator::unblock(&arguments),
        Command::Pause(arguments) => operator::pause(&arguments, true),
        Command::Resume(arguments) => operator::pause(&arguments, false),
        Command::Purge(arguments) => operator::purge(&arguments),
        Command::DeadLetters(arguments) => operator::list_letters(&arguments),
        Command::Requeue(arguments) => operator::requeue(&arguments),
        Command::Drain(arguments) => operator::drain(&arguments),
        Command::Audit(arguments) => operator::audit(&arguments),
        Command::Journal(arguments) => operator::journal(&arguments),
        Command::Queue(arguments) => queue::run(arguments),
        Command::Top(arguments) => operator::top(&arguments),
        Command::Token(arguments) => operator::token(&arguments),
        Command::Key(arguments) => key::run(arguments),
        Command::Password(arguments) => password::run(arguments),
        Command::Trust(arguments) => trust::run(arguments),
        Command::Rules(arguments) => rules::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::Completions(arguments) => completions::run(arguments, &mut command()),
        Command::Manual(arguments) => manual::run(&arguments, command()),
    };
    match &outcome {
        Err(failure) if is_in_lines && failure.status != Status::ReaderGone => {
            let (error, status) = (failure.to_string(), failure.status);
            // The exit status says it too, and nothing can be done about a closed output.
            let _ = print_line(Json(json!({ "error": error, "status": status as u8, "code": status.code() })));
        }
        _ => {}
    }
    match outcome {
        Ok(code) => code,
        Err(failure) if failure.status == Status::ReaderGone => ExitCode::SUCCESS,
        Err(failure) if failure.status == Status::Interrupted => {
            report(failure);
            drop(log);
            signals::end_by_signal()
        }
        Err(failure) => report(failure),
    }
}

fn report(failure: Failure) -> ExitCode {
    let prefix = log_output::prefix(tracing::Level::ERROR);
    eprint_line(format_args!("{prefix}tow: {}", Printable(&failure.to_string())));
    failure.into()
}
