//! `tow rules`: checks files of rules, and asks them.

use crate::cli::admission::read_rules;
use crate::cli::escape::Line;
use crate::cli::exit::{Failure, Status};
use crate::cli::output::print_line;
use crate::cli::service_name::NameArgs;
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use towpath_broker::asked_of_rules;
use towpath_files::counted;
use towpath_rules::{Origin, Verb};

/// Arguments of `tow rules`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Check that a file can be used.
    Check {
        /// File of rules.
        file: PathBuf,
    },
    /// Say whether somebody may do something, and which line decides. Exit status 5: no.
    Test {
        /// File of rules.
        file: PathBuf,
        /// A name in the file [default: somebody without a name]
        #[arg(long = "as", value_name = "NAME")]
        name: Option<String>,
        /// An IP address, or ipc.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
        from: Origin,
        /// list, read, follow, push, publish, call, work or admin.
        #[arg(value_parser = verb)]
        verb: Verb,
        /// A path below the root, or a service.
        #[arg(value_name = "SUBJECT")]
        service: OsString,
        #[command(flatten)]
        encoding: NameArgs,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
}

fn verb(text: &str) -> Result<Verb, String> {
    Verb::named(text).ok_or_else(|| format!("use {}", Verb::ALL.map(Verb::name).join(", ")))
}

fn trim_slashes(mut path: &[u8]) -> &[u8] {
    while let [b'/', rest @ ..] | [rest @ .., b'/'] = path {
        path = rest;
    }
    path
}

/// Checks or asks rules.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Check { file } => {
            let rules = read_rules(&file)?;
            let counts = [
                (rules.names().count(), "name"),
                (rules.keys(), "key"),
                (rules.groups(), "group"),
                (rules.lines(), "rule"),
            ];
            let counts = counts.map(|(count, what)| counted(count as u64, what));
            print_line(format_args!("{}: {}", Line(&file.display().to_string()), counts.join(", ")))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Test { file, name, from, verb, service, encoding, json } => {
            let rules = read_rules(&file)?;
            if let Some(name) = name.as_deref().filter(|name| !rules.names().any(|known| known == *name)) {
                let known = rules.names().collect::<Vec<_>>().join(", ");
                return Err(Failure::usage(format!("nobody is called {name} in {}, but {known}", file.display())));
            }
            // As in a URL, the root is the slash.
            let subject = encoding.name(&service)?;
            let (verb, subject) = match verb.is_of_paths() {
                true => (verb, trim_slashes(subject.as_ref()).into()),
                false => asked_of_rules(verb, subject.as_ref()),
            };
            let permissions = rules.permissions(name.as_deref().map(str::as_bytes), from);
            let decision = permissions.decide(verb, &subject);
            if json {
                let (number, text) = decision.line.as_ref().map(|line| (line.number, &*line.text)).unzip();
                print_line(json!({"allowed": decision.is_allowed, "line": number, "rule": text}))?;
            } else {
                let answer = if decision.is_allowed { "allowed" } else { "refused" };
                match &decision.line {
                    Some(line) => {
                        print_line(format_args!("{answer} by line {}: {}", line.number, Line(&line.text)))?;
                    }
                    None => print_line(format_args!("{answer}: no line allows it"))?,
                }
            }
            Ok(if decision.is_allowed { ExitCode::SUCCESS } else { ExitCode::from(Status::Refused as u8) })
        }
    }
}
