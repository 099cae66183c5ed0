//! Tips for command lines that are wrong: what other programs, or other commands of this one, call it.

use clap::Command;
use clap::Error;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Edits that make another command of a word, such as two letters that are exchanged.
const EDITS_MAX: usize = 1;

/// Commands as other programs call them.
const COMMANDS: &[(&str, &str)] = &[
    ("copy", "get"),
    ("cp", "get"),
    ("dir", "ls"),
    ("download", "get"),
    ("fetch", "get"),
    ("list", "ls"),
    ("mirror", "get"),
    ("put", "push"),
    ("request", "call"),
    ("send", "push"),
    ("server", "serve"),
    ("sync", "get"),
    ("upload", "push"),
    ("worker", "work"),
];

/// The command, the unknown option, and the options that it has.
const OPTIONS: &[(&str, &str, &str)] = &[
    ("get", "--mirror", "'--delete' deletes what the source doesn't have"),
    ("get", "-a", "leave it out: directories, modes and times are always copied"),
    ("get", "-r", "leave it out: a directory is fetched with all that is in it"),
    ("get", "-P", "leave it out: a transfer can always be resumed"),
    ("get", "-z", "'--zstd' compresses"),
    ("get", "-c", "'--check' compares by digest; a transfer can always be resumed"),
    ("get", "-C", "leave it out: a transfer can always be resumed"),
    ("get", "-o", "the destination comes last, without an option"),
    ("get", "-O", "leave it out: a file keeps its name"),
    ("get", "--archive", "leave it out: directories, modes and times are always copied"),
    ("get", "--recursive", "leave it out: a directory is fetched with all that is in it"),
    ("get", "--partial", "leave it out: a transfer can always be resumed"),
    ("get", "--compress", "'--zstd' compresses"),
    ("get", "--checksum", "'--check' compares by digest"),
    ("follow", "--delete", "'--mirror' deletes what is gone at the server"),
    ("push", "-r", "leave it out: a directory is sent with all that is in it"),
    ("push", "-a", "leave it out: a directory is sent with all that is in it"),
    ("push", "--recursive", "leave it out: a directory is sent with all that is in it"),
    ("call", "--broker", "'--connect' says where the broker is"),
    ("call", "--server", "'--connect' says where the broker is"),
    ("work", "--broker", "'--connect' says where the broker is"),
    ("work", "--server", "'--connect' says where the broker is"),
];

/// The command, and what helps where an argument is missing.
const MISSING: &[(&str, &str)] = &[
    ("completions", "a SHELL is bash, elvish, fish, powershell or zsh"),
    ("manual", "'man -l DIRECTORY/tow-get.1' shows a page; 'tow get --help' is its short form"),
    ("purge", "'tow services' says how many requests wait"),
];

/// The error with a tip that fits this program better than those that are made for all. `words` is the command line behind the program's name.
pub fn with_tip(mut error: Error, command: &Command, words: &[String]) -> Error {
    let commands = commands_in(command, words);
    let last = commands.last().map_or("", |command| command.get_name());
    let text = |error: &Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = text(&error, ContextKind::InvalidSubcommand);
            if let Some(meant) = command_meant(&word, commands.last().copied().unwrap_or(command)) {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![meant]));
            }
        }
        ErrorKind::UnknownArgument => {
            let argument = text(&error, ContextKind::InvalidArg);
            let known = OPTIONS.iter().find(|(command, option, _)| *command == last && *option == argument);
            let tip = match (last, known) {
                (_, Some((_, _, tip))) => Some((*tip).to_owned()),
                ("work", None) if !argument.starts_with('-') => {
                    Some(format!("'--' comes before the command: tow work SERVICE -- {argument} ..."))
                }
                (
                    "status" | "top" | "peers" | "gone" | "transfers" | "followers" | "versions" | "failures"
                    | "journal",
                    None,
                ) if !argument.starts_with('-') => {
                    let is_number = argument.starts_with(|first: char| first.is_ascii_digit());
                    let option = if is_number { "--watch=" } else { "--admin " };
                    Some(format!("an option says what that is: '{option}{argument}'"))
                }
                _ => None,
            };
            // A word that begins with - is rarely meant as a value, but for a request.
            if tip.is_some() || last != "call" {
                error.remove(ContextKind::Suggested);
            }
            if let Some(tip) = tip {
                error.remove(ContextKind::SuggestedArg);
                insert(&mut error, tip);
            }
        }
        ErrorKind::MissingRequiredArgument => {
            if let Some((_, tip)) = MISSING.iter().find(|(command, _)| *command == last) {
                insert(&mut error, (*tip).to_owned());
            }
        }
        _ => {}
    }
    error
}

fn insert(error: &mut Error, tip: String) {
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
}

/// The commands that the words name, each of the one before, the program first.
fn commands_in<'a>(program: &'a Command, words: &[String]) -> Vec<&'a Command> {
    let mut commands = vec![program];
    for word in words.iter().take_while(|word| *word != "--") {
        let inner = commands.last().and_then(|command| command.find_subcommand(word));
        commands.extend(inner);
    }
    commands
}

/// The command that a word is meant to be.
fn command_meant(word: &str, of: &Command) -> Option<String> {
    let known = |name: &str| of.find_subcommand(name).map(|command| command.get_name().to_owned());
    let called = COMMANDS.iter().find(|(theirs, _)| *theirs == word).and_then(|(_, ours)| known(ours));
    called.or_else(|| {
        let alike = of.get_subcommands().map(|command| (strsim::osa_distance(word, command.get_name()), command));
        let nearest = alike.min_by_key(|(edits, _)| *edits)?;
        (nearest.0 <= EDITS_MAX).then(|| nearest.1.get_name().to_owned())
    })
}
