//! Every command that README and guide show is run as it stands, in namespaces of its own: `HOST` is this machine, the default ports are
//! free, and `/srv`, `/var/lib` and the home directory are empty. Programs that aren't ours (`convert`, `b3sum`) are stood in for.
//!
//! A block whose first line is `# not run by tests: REASON` is left out. Servers, brokers and workers go on running until the next one of
//! the same kind (a worker: of the same service) takes their place; followers until they are up to date.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::tempdir;

use crate::support::process::run;
use crate::support::skip;

/// Marks a block that isn't run.
const LEFT_OUT: &str = "# not run by tests: ";

/// Blocks that may be marked so, in all pages.
const LEFT_OUT_MAX: usize = 11;

/// Files and servers that the pages mention.
const WORLD: &str = r#"
set -u -o pipefail
work=$1 tow=$2
ip link set lo up
ip link add eth0 type bridge && ip addr add 10.9.9.9/24 dev eth0 && ip link set eth0 up
mount -t tmpfs tmpfs /srv && mount -t tmpfs tmpfs /var/lib && mount -t tmpfs tmpfs /var/cache && mount -t tmpfs tmpfs /run || exit 70
printf '127.0.0.1 localhost HOST\n' > "$work/hosts" && mount --bind "$work/hosts" /etc/hosts || exit 70
mkdir -p "$work/home" "$work/bin" "$work/cwd" "$work/running"
ln -s "$tow" "$work/bin/tow"
printf '#!/bin/sh\nexec cat\n' > "$work/bin/convert"; chmod +x "$work/bin/convert"
# Of {} and a line feed.
printf '#!/bin/sh\necho a7c4d54776fcb179f048728766a52d75dc450cc2a5072b7e2c238aa9b2cff3b6\n' > "$work/bin/b3sum"; chmod +x "$work/bin/b3sum"
command -v curl > /dev/null || { printf '#!/bin/sh\n' > "$work/bin/curl"; chmod +x "$work/bin/curl"; }
export HOME=$work/home PATH=$work/bin:$PATH TMPDIR=$work XDG_RUNTIME_DIR=$work/runtime
mkdir -m 700 "$work/runtime"
cd /srv; mkdir -p data/incoming data/models data/logs/old data/dir
for file in a.txt notes.txt one.iso 'odd[1].txt' models/weights.bin models/config.json models/x.tmp logs/1.gz logs/old/2.gz dir/a; do
    printf 'this is %s\n' "$file" > "data/$file"
done
ln -s models data/current
printf '{}\n' > data/incoming/config.json
cd "$work/cwd"
printf 'a picture\n' > large.png; printf 'a note\n' > notes.txt
mkdir results; printf 'measured\n' | tee results/run.csv > results/x.tmp
printf '#!/bin/sh\necho "create table t;"\n' > "$work/bin/pg_dump"; chmod +x "$work/bin/pg_dump"
printf 'measured\n' > run7.dat; printf '{}\n' > old.json; printf '{"new": 1}\n' > new.json
# Options name these as SECRET and FILE.
tow key new sample > "$work/sample" && cp "$HOME/.config/tow/sample_secret" SECRET && chmod 600 SECRET || exit 70
printf 'sample %s\n' "$(tail -n 1 "$work/sample" | sed 's/.* //')" > FILE

# failed COMMAND: says what has failed, with the last lines of all logs.
failed() {
    echo "FAILED: $1" >&2
    for log in "$work"/running/*.log; do echo "== $log" >&2; tail -n 5 "$log" >&2; done
    exit 1
}
# stay KIND READY COMMAND: starts a command that goes on, instead of the last one of its kind, and waits until it says that it is ready.
stay() {
    log=$work/running/$1.log
    if [ -e "$work/running/$1.pid" ]; then kill "$(cat "$work/running/$1.pid")"; wait "$(cat "$work/running/$1.pid")"; fi
    bash -c "exec $3" < /dev/null > "$log" 2>&1 &
    echo $! > "$work/running/$1.pid"
    for _ in $(seq 1000); do
        if grep -q "$2" "$log"; then
            # Nothing else may work in its directory meanwhile.
            if [ "$1" = follow ]; then kill "$(cat "$work/running/$1.pid")"; wait "$(cat "$work/running/$1.pid")"; rm "$work/running/$1.pid"; fi
            return
        fi
        kill -0 "$(cat "$work/running/$1.pid")" 2>/dev/null || failed "$3"
        sleep 0.02
    done
    failed "$3"
}
# once COMMAND: runs a command to its end. What it prints is $last.
once() {
    # Who asks for a password gets it.
    last=$(echo secret | timeout 30 bash -o pipefail -c "$1" 2> "$work/running/once.log") || failed "$1"
}
"#;

/// A page, what it takes for granted, and words in it that stand for what a command has printed.
struct Page {
    path: &'static str,
    /// Commands, after the one of the page that begins so; "" is before all.
    given: (&'static str, &'static [&'static str]),
    /// Word, and the command whose output it is: its last word.
    printed: &'static [(&'static str, &'static str)],
}

const BROKER: &str = "tow broker";

const PAGES: [Page; 9] = [
    Page { path: "README.md", given: ("", &[]), printed: &[] },
    Page { path: "docs/guide/files.md", given: ("", &[]), printed: &[] },
    Page { path: "docs/guide/publishing.md", given: ("", &[]), printed: &[] },
    Page {
        path: "docs/guide/requests.md",
        given: ("tow broker --journal", &["tow work greet -- cat", "tow work echo --echo"]),
        printed: &[("NAME", "tow call --frames titanic.request")],
    },
    Page { path: "docs/cookbook/nightly-upload.md", given: ("", &[]), printed: &[] },
    Page { path: "docs/cookbook/thumbnails.md", given: ("", &[]), printed: &[] },
    Page { path: "docs/cookbook/models.md", given: ("", &[]), printed: &[] },
    Page { path: "docs/guide/operating.md", given: ("", &[BROKER]), printed: &[] },
    Page {
        path: "docs/guide/security.md",
        given: ("", &[]),
        printed: &[
            ("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "tow key new server"),
            ("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "tow key new alice"),
        ],
    },
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &str) -> String {
    std::fs::read_to_string(workspace().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Commands in a page's blocks, and the number of blocks that are left out.
fn blocks(text: &str) -> (Vec<String>, usize) {
    let (mut commands, mut left_out) = (Vec::new(), 0);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "```sh" {
            continue;
        }
        let block: Vec<_> = lines.by_ref().take_while(|line| line.trim() != "```").map(str::trim).collect();
        if block.first().is_some_and(|first| first.starts_with(LEFT_OUT)) {
            left_out += 1;
        } else {
            commands.extend(
                block.iter().filter(|line| !line.is_empty() && !line.starts_with('#')).map(ToString::to_string),
            );
        }
    }
    (commands, left_out)
}

/// Commands of ours in the second column of a page's tables.
fn cells(text: &str) -> Vec<String> {
    let rows = text.lines().filter(|line| line.starts_with('|'));
    let seconds = rows.filter_map(|row| {
        let row = row.replace(r"\|", "\u{0}");
        row.split('|').nth(2).map(|cell| cell.replace('\u{0}', "|"))
    });
    let quoted = |cell: String| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    seconds.flat_map(quoted).filter(|command| command.starts_with("tow ")).collect()
}

/// The kind of a command that goes on, and what it says when it is ready.
fn stays(command: &str) -> Option<(String, &'static str)> {
    let mut words = command.split_whitespace().skip_while(|word| *word != "tow").skip(1);
    match words.next()? {
        "serve" => Some(("serve".to_owned(), "^serving")),
        "broker" => Some(("broker".to_owned(), "^broker on")),
        "work" => Some((format!("work-{}", words.next()?), "connected to a broker")),
        "follow" if !command.contains("--once") => Some(("follow".to_owned(), r"^up to date\|^version ")),
        _ => None,
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The script that runs commands, and replaces words by what was printed.
fn script<'a>(commands: impl Iterator<Item = &'a str>, printed: &[(&str, &str)]) -> String {
    let mut script = WORLD.to_owned();
    let mut known: Vec<(&str, String)> = Vec::new();
    for command in commands {
        let mut text = quoted(command);
        for (word, variable) in &known {
            text = text.replace(&quoted(word)[1..=word.len()], &format!("'\"${variable}\"'"));
        }
        match stays(command) {
            Some((kind, ready)) => writeln!(script, "stay {kind} {} {text}", quoted(ready)),
            None => writeln!(script, "once {text}"),
        }
        .expect("a string");
        for (word, of) in printed.iter().filter(|(_, of)| command.starts_with(of)) {
            let variable = format!("printed{}", known.len());
            writeln!(script, "{variable}=${{last##* }}; [ -n \"${variable}\" ] || failed {}", quoted(of))
                .expect("a string");
            known.push((word, variable));
        }
    }
    script
}

/// Runs a script in namespaces of its own, in which all processes end with it.
fn run_script(name: &str, script: &str) {
    let folder = tempdir().expect("a folder");
    let file = folder.path().join("script");
    std::fs::write(&file, script).expect("write");
    let namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child"];
    let user: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    let works = |flags: &&&[&str]| {
        let mut probe = Command::new("unshare");
        probe.args(**flags).args(namespaces).args(["sh", "-c", "ip link set lo up && mount -t tmpfs tmpfs /srv"]);
        probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let Some(flags) = user.iter().find(works) else {
        return skip("no namespaces can be made here, neither by root nor in a user namespace");
    };
    let mut command = Command::new("unshare");
    command.args(*flags).args(namespaces).arg("bash").arg(&file).arg(folder.path()).arg(env!("CARGO_BIN_EXE_tow"));
    // Nothing of the machine that runs the tests.
    for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TOW_")) {
        command.env_remove(variable);
    }
    let outcome = run(&mut command);
    assert!(outcome.status.success(), "{name}: {}", outcome.stderr);
}

#[test]
fn examples_of_readme_and_guide_run_as_they_stand() {
    let mut left_out = 0;
    std::thread::scope(|scope| {
        for page in &PAGES {
            let (mut commands, left) = blocks(&read(page.path));
            left_out += left;
            assert!(!commands.is_empty(), "{} has no examples", page.path);
            let (behind, given) = page.given;
            let at = commands.iter().position(|command| !behind.is_empty() && command.starts_with(behind));
            let at = at.map_or(0, |at| at + 1);
            commands.splice(at..at, given.iter().map(ToString::to_string));
            scope.spawn(move || run_script(page.path, &script(commands.iter().map(String::as_str), page.printed)));
        }
    });
    assert!(left_out <= LEFT_OUT_MAX, "{left_out} blocks are left out");
}

#[test]
fn commands_for_people_from_elsewhere_run_as_they_stand() {
    let path = "docs/guide/coming-from.md";
    let commands = cells(&read(path));
    assert!(commands.len() > 40, "{commands:?}");
    let given = ["tow serve /srv/data", BROKER, "tow work shout -- tr a-z A-Z", "tow work resize -- cat"];
    let all = given.into_iter().chain(commands.iter().map(String::as_str));
    run_script(path, &script(all, &[]));
}

/// A page that isn't in the list would not be run.
#[test]
fn every_page_is_run() {
    for folder in ["docs/guide", "docs/cookbook"] {
        for entry in std::fs::read_dir(workspace().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            let path = format!("{folder}/{name}");
            if name.ends_with(".md") {
                let is_known = path == "docs/guide/coming-from.md" || PAGES.iter().any(|page| page.path == path);
                assert!(is_known || blocks(&read(&path)).0.is_empty(), "{path}: add it to PAGES");
            }
        }
    }
}
