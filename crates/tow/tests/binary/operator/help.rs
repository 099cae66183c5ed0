//! `--help` of each command: short, and in the words of the glossary. What `--verbose` adds.

use tempfile::tempdir;

use crate::support::process::{Server, run, tow};
use crate::support::tree::write;

const COMMANDS: &[&str] = &[
    "",
    "serve",
    "ls",
    "get",
    "follow",
    "push",
    "publish",
    "versions",
    "broker",
    "work",
    "call",
    "status",
    "mute",
    "peers",
    "gone",
    "transfers",
    "followers",
    "failures",
    "services",
    "requests",
    "workers",
    "page",
    "kick",
    "block",
    "unblock",
    "forget",
    "pause",
    "resume",
    "purge",
    "dead-letters",
    "requeue",
    "drain",
    "audit",
    "journal",
    "queue",
    "top",
    "token",
    "key",
    "password",
    "trust",
    "rules",
    "demo",
    "completions",
    "manual",
];

/// Widest line.
const COLUMNS: usize = 100;

/// Most lines of one option or argument.
const LINES_PER_OPTION: usize = 2;

/// Most lines in all: the overview has a line for each command.
const LINES: usize = 78;

/// Phrases that the glossary replaces; `cargo xtask tidy` has words that are banned everywhere.
const BANNED: [&str; 2] = ["whoever", "what there is"];

fn help_of(command: &str, option: &str) -> String {
    let arguments = [command, option].into_iter().filter(|argument| !argument.is_empty());
    let outcome = run(tow(arguments).env("COLUMNS", "200")).expect_code(0);
    String::from_utf8(outcome.stdout).expect("UTF-8")
}

/// Lines of each option, argument or command, its own and those that continue it.
fn lines_per_option(help: &str) -> Vec<(&str, usize)> {
    let mut options: Vec<(&str, usize)> = Vec::new();
    let indent = |line: &str| line.len() - line.trim_start().len();
    for line in help.lines().filter(|line| line.starts_with("  ")) {
        match options.last_mut() {
            Some((_, lines)) if indent(line) > 6 => *lines += 1,
            _ => options.push((line, 1)),
        }
    }
    options
}

#[test]
fn help_is_short() {
    for command in COMMANDS {
        let help = help_of(command, "--help");
        // As with ls(1), -h of `tow ls` is something else.
        if *command != "ls" {
            assert_eq!(help, help_of(command, "-h"), "tow {command}: one help, short or long");
        }
        assert!(help.lines().count() <= LINES, "tow {command} --help has over {LINES} lines:\n{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= COLUMNS, "tow {command} --help: over {COLUMNS} columns: {line}");
        }
        for (option, lines) in lines_per_option(&help) {
            assert!(lines <= LINES_PER_OPTION, "tow {command} --help: {lines} lines, shorten it: {option}");
        }
    }
}

#[test]
fn help_uses_the_words_of_the_glossary() {
    for command in COMMANDS {
        let help = help_of(command, "--help");
        let text = help.to_lowercase();
        for word in BANNED {
            assert!(!text.contains(word), "tow {command} --help says '{word}':\n{help}");
        }
    }
}

#[test]
fn overview_says_what_to_type() {
    let help = help_of("", "--help");
    for command in COMMANDS.iter().filter(|command| !command.is_empty()) {
        assert!(help.contains(&format!("\n  {command} ")), "tow --help doesn't list {command}:\n{help}");
    }
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    assert_eq!(listed.count(), COMMANDS.len(), "without \"\" and with help: a new command belongs into COMMANDS");
    for example in ["tow serve ", "tow get ", "tow broker ", "tow work ", "tow call "] {
        assert!(help.contains(example), "tow --help has no example of '{example}':\n{help}");
    }
    let version = run(&mut tow(["--version"])).expect_code(0);
    assert_eq!(String::from_utf8_lossy(&version.stdout), format!("tow {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn renamed_options_keep_their_old_names() {
    for (arguments, option) in [
        (["serve", "/", "--max-clients", "0"], "--max-peers"),
        (["serve", "/", "--max-clients-per-address", "0"], "--max-peers-per-address"),
    ] {
        let outcome = run(&mut tow(arguments)).expect_code(2);
        assert!(outcome.stderr.contains(option), "tow {arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn times_and_sizes_have_units() {
    for (arguments, is_good) in [
        (["broker", "--grace", "500ms"], true),
        (["broker", "--journal-retention", "7days"], true),
        (["broker", "--max-memory", "2G"], true),
        (["broker", "--max-memory", "100"], false),
        (["broker", "--heartbeat", "0.5"], true),
        (["broker", "--grace", "-1"], false),
        (["broker", "--max-memory", "8MB"], true),
        (["broker", "--attempts", "1k"], true),
        (["broker", "--max-memory", "8 bytes"], false),
    ] {
        // Refused for the endpoint alone, if the value is good.
        let outcome = run(tow(arguments).args(["--bind", "inproc://nobody"])).expect_code(2);
        let names_endpoint = outcome.stderr.contains("inproc");
        assert_eq!(names_endpoint, is_good, "tow {arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn options_come_from_the_environment_too() {
    for (variable, value, says) in [
        ("TOW_BIND", "inproc://nobody", "inproc works only within a process"),
        ("TOW_GRACE", "soon", "use seconds"),
        ("TOW_MAX_MEMORY", "1 elephant", "use a number of bytes"),
    ] {
        let outcome = run(tow(["broker"]).env(variable, value)).expect_code(2);
        assert!(outcome.stderr.contains(says), "{variable}={value}: {}", outcome.stderr);
    }
    // The command line has precedence.
    let outcome = run(tow(["call", "x", "--connect", "inproc://a"]).env("TOW_CONNECT", "tcp://b:0")).expect_code(2);
    assert!(outcome.stderr.contains("inproc"), "{}", outcome.stderr);
}

#[test]
fn words_of_other_programs_and_commands_are_answered_with_ours() {
    for (line, tip) in [
        ("get a:/b --mirror", "tip: '--delete' deletes"),
        ("get -av a:/b c", "tip: leave it out: directories"),
        ("follow a:/b c --delete", "tip: '--mirror' deletes"),
        ("push -r a b:/", "tip: leave it out: a directory is sent"),
        ("work shout tr a-z A-Z", "tip: '--' comes before the command: tow work SERVICE -- tr ..."),
        ("status broker", "'--admin broker'"),
        ("peers --watch 1", "'--watch=1'"),
        ("call a --broker b", "'--connect'"),
        ("call a -x", "'-- -x'"),
        ("completions", "bash, elvish, fish, powershell or zsh"),
        ("manual", "man -l"),
        ("manual get", "`tow get --help`"),
        ("key nwe", "similar subcommand exists: 'new'"),
        ("cp a:/b c", "similar subcommand exists: 'get'"),
        ("upload a b:/", "similar subcommand exists: 'push'"),
        ("ls a:b/c", "is it a:/b/c?"),
        ("ls a::b", "is it a:/b?"),
        ("ls a", "is it a:/?"),
        ("ls ann@a:/b", "--user ann"),
        ("get a:/b ann@a:c", "name a destination"),
        ("get /etc/passwd a:/b", "tow push sends files"),
    ] {
        let folder = tempdir().expect("a folder");
        let outcome = run(tow(line.split(' ')).current_dir(folder.path())).expect_code(2);
        assert!(outcome.stderr.contains(tip), "tow {line}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("as a value") || line.starts_with("call"), "tow {line}: {}", outcome.stderr);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "tow {line} made a file");
    }
}

#[test]
fn a_slip_of_the_keyboard_is_answered_with_the_word_that_was_meant() {
    for (arguments, meant) in
        [(["brokr", "--spool=x"], "'broker'"), (["serve", "--bnid"], "'--bind'"), (["call", "--conect"], "'--connect'")]
    {
        let outcome = run(&mut tow(arguments)).expect_code(2);
        assert!(outcome.stderr.contains(meant), "tow {arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn endpoints_are_said_to_be_wrong_with_the_cure() {
    for (arguments, says) in [
        (["call", "x", "--connect", "tcp://a,tcp://b"], "repeat the option"),
        (["broker", "--journal", "/nowhere", "--bind=::1"], "goes in brackets"),
        (["get", "--json", "--quiet", "models/weights"], "HOST:/PATH"),
        (["ls", "-r", "-l", "models/weights"], "is it models:/weights?"),
    ] {
        let outcome = run(&mut tow(arguments)).expect_code(2);
        assert!(outcome.stderr.contains(says), "tow {arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn shells_complete_each_command() {
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let script = String::from_utf8(run(&mut tow(["completions", shell])).expect_code(0).stdout).expect("UTF-8");
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command}");
        }
        assert!(script.contains("max-memory"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().expect("a directory");
    run(tow(["manual"]).arg(directory.path().join("man1"))).expect_code(0);
    for command in COMMANDS {
        let name = if command.is_empty() { "tow.1".to_owned() } else { format!("tow-{command}.1") };
        let page = std::fs::read_to_string(directory.path().join("man1").join(&name)).expect(&name);
        for section in ["NAME", "SYNOPSIS", "OPTIONS", "\"EXIT STATUS\"", "EXAMPLES"] {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{name}: {section}\n{page}");
        }
    }
}

#[test]
fn verbose_get_says_how_large_its_buffers_are() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("file");
    write(&source, b"content");
    let server = Server::start(&source);
    let copy = folder.path().join("copy");
    let log_of = |options: &[&str], level: &str| {
        let mut command = tow(options);
        command.args(["get", server.endpoint(), "--json"]).arg(&copy).env("TOW_LOG", level);
        run(&mut command).expect_code(0).stderr
    };
    assert_eq!(log_of(&[], ""), "", "nothing by default");
    for (options, level) in [(&[][..], "info"), (&["-v"], ""), (&["--verbose"], "error"), (&["-vv"], "")] {
        let log = log_of(options, level);
        assert!(log.contains("INFO buffers of ") && log.contains(" KiB: "), "{options:?}, TOW_LOG={level}: {log}");
        assert_eq!(log.contains("DEBUG"), options == ["-vv"], "{options:?}, TOW_LOG={level}: {log}");
    }
}
