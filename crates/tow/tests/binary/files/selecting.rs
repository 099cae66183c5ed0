//! Files that `tow get` fetches and deletes: several sources, patterns, --delete, --dry-run.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use tempfile::tempdir;

use crate::support::process::{Outcome, Server, get_command, run, tow, unprivileged_tow};
use crate::support::tree::{assert_same, random_file, snapshot, write};

/// Paths below a directory.
fn paths(root: &Path) -> BTreeSet<String> {
    snapshot(root).keys().map(|path| path.display().to_string()).collect()
}

fn set(paths: &[&str]) -> BTreeSet<String> {
    paths.iter().map(ToString::to_string).collect()
}

/// A tree with a few names, and its server.
fn tree(root: &Path) -> Server {
    for path in ["a.txt", "b.tmp", "build/c.txt", "build/d.o", "deep/er/e.txt", "deep/f.tmp"] {
        write(&root.join(path), path.as_bytes());
    }
    Server::start(root)
}

#[track_caller]
fn lines(outcome: &Outcome) -> Vec<String> {
    String::from_utf8_lossy(&outcome.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn several_sources_go_into_the_destination_under_their_names() {
    let folder = tempdir().expect("a folder");
    let (served, copies) = (folder.path().join("served"), folder.path().join("copies"));
    let server = tree(&served);
    let urls = ["a.txt", "build", "deep/**/*.txt"].map(|path| server.url(path));
    let outcome = run(tow(["get", "--json"]).args(&urls).arg(&copies)).expect_code(0);
    let expected = ["a.txt", "build", "build/c.txt", "build/d.o", "er", "er/e.txt"];
    assert_eq!(paths(&copies), set(&expected));
    let sources: Vec<_> = lines(&outcome)
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["source"].clone())
        .collect();
    assert_eq!(sources, urls.map(serde_json::Value::from));
    // One that is missing doesn't keep the others from coming.
    let others = folder.path().join("others");
    let urls = ["missing", "a.txt"].map(|path| server.url(path));
    let outcome = run(tow(["get"]).args(&urls).arg(&others)).expect_code(1);
    assert!(outcome.stderr.contains("missing: "), "{}", outcome.stderr);
    assert_eq!(paths(&others), set(&["a.txt"]));
    // The second would replace the first.
    let outcome = run(tow(["get"]).args([server.url("a.txt"), server.url("deep/a.txt")]).arg(&others)).expect_code(2);
    assert!(outcome.stderr.contains("two of the sources would be a.txt"), "{}", outcome.stderr);
    // All failed for the same reason.
    run(tow(["get"]).args([server.url("missing"), server.url("gone")]).arg(&others)).expect_code(4);
}

#[test]
fn sources_without_a_place_are_refused() {
    let folder = tempdir().expect("a folder");
    let server = tree(&folder.path().join("served"));
    let here = folder.path().join("here");
    fs::create_dir(&here).expect("mkdir");
    let url = server.url("");
    let refused: [(&[&str], &str); 4] = [
        (&[&url], "name a destination"),
        (&[&url, &url], "name a destination"),
        (&[&url, &url, "-"], "one source"),
        (&[&url, "x", "--max-delete", "1"], "--delete"),
    ];
    for (arguments, says) in refused {
        let outcome = run(tow(["get"]).args(arguments).current_dir(&here)).expect_code(2);
        assert!(outcome.stderr.contains(says), "{arguments:?}: {}", outcome.stderr);
    }
    assert_eq!(paths(&here), set(&[]));
    run(tow(["get", &url, "."]).current_dir(&here)).expect_code(0);
    assert!(here.join("deep/er/e.txt").exists());
}

#[test]
fn patterns_decide_what_is_taken() {
    let folder = tempdir().expect("a folder");
    let server = tree(&folder.path().join("served"));
    let cases: [(&[&str], &[&str]); 4] = [
        (&["--exclude", "*.tmp", "--exclude", "build/"], &["a.txt", "deep", "deep/er", "deep/er/e.txt"]),
        (&["--include", "*.tmp"], &["b.tmp", "deep", "deep/f.tmp"]),
        (
            &["--include", "f.tmp", "--exclude", "*.tmp", "--exclude", "/build"],
            &["a.txt", "deep", "deep/er", "deep/er/e.txt", "deep/f.tmp"],
        ),
        (&["--exclude", "f.tmp", "--include", "*.tmp", "--exclude", "*"], &["b.tmp"]),
    ];
    for (number, (options, expected)) in cases.iter().enumerate() {
        let copy = folder.path().join(number.to_string());
        run(get_command(&server.url(""), &copy).args(*options)).expect_code(0);
        assert_eq!(paths(&copy), set(expected), "{options:?}");
    }
    let outcome =
        run(get_command(&server.url(""), &folder.path().join("x")).args(["--exclude", "[z-a]"])).expect_code(2);
    assert!(
        outcome.stderr.contains("--exclude, --include: '[z-a]': [z-a] matches nothing: write the range from a to z"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn what_the_source_does_not_have_is_deleted_and_nothing_else() {
    let folder = tempdir().expect("a folder");
    let (served, copy, outside) = (folder.path().join("served"), folder.path().join("copy"), folder.path().join("out"));
    let server = tree(&served);
    write(&outside.join("precious"), b"");
    run(&mut get_command(&server.url(""), &copy)).expect_code(0);
    write(&copy.join("deep/old/older"), b"");
    write(&copy.join("build/local.log"), b"");
    symlink(&outside, copy.join("link")).expect("a link");
    fs::remove_file(served.join("b.tmp")).expect("remove");
    let delete = |options: &[&str]| run(get_command(&server.url(""), &copy).arg("--delete").args(options));

    let before = snapshot(&copy);
    let outcome = run(tow(["get", "--delete", "--dry-run", &server.url("")]).arg(&copy)).expect_code(0);
    let expected = ["- link", "- deep/old/older", "- deep/old/", "- build/local.log", "- b.tmp"];
    assert_eq!(lines(&outcome), expected);
    assert_eq!(snapshot(&copy), before, "a dry run changes nothing");

    let held = delete(&["--max-delete", "4"]).expect_code(3);
    assert_eq!((held.number("held"), held.number("deleted")), (5, 0));
    assert!(held.stderr.contains("--max-delete 5"), "{}", held.stderr);
    assert_eq!(snapshot(&copy), before, "deletions are held");

    let outcome = delete(&["--exclude", "*.log"]).expect_code(0);
    assert_eq!(outcome.number("deleted"), 4);
    assert!(copy.join("build/local.log").exists() && outside.join("precious").exists());
    assert_eq!(delete(&[]).expect_code(0).number("deleted"), 1);
    // Directories have their times although something was deleted in them.
    assert_same(&served, &copy);

    // A file goes beside what is there.
    run(get_command(&server.url("build/c.txt"), &copy).arg("--delete")).expect_code(0);
    assert!(copy.join("a.txt").exists() && copy.join("c.txt").exists());
    let glob = run(get_command(&server.url("*.txt"), &copy).arg("--delete")).expect_code(2);
    assert!(glob.stderr.contains("not a glob"), "{}", glob.stderr);
    // All that is there is too much.
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).expect("mkdir");
    let server = Server::start(&empty);
    let outcome = run(get_command(&server.url(""), &copy).arg("--delete")).expect_code(3);
    assert_eq!(outcome.number("deleted"), 0);
}

/// Unreadable files aren't known, and copies of them stay.
#[test]
fn nothing_is_deleted_after_an_incomplete_listing() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    write(&served.join("closed/a"), b"a");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("set the mode");
    run(&mut get_command(&Server::start(&served).url(""), &copy)).expect_code(0);
    write(&copy.join("old"), b"");
    let closed = served.join("closed");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o0)).expect("set the mode");
    let mut command = unprivileged_tow(folder.path(), ["serve"]);
    let server = Server::from_command(command.arg(&served).args(["--bind", "tcp://127.0.0.1:0"]));
    let outcome = run(get_command(&server.url(""), &copy).arg("--delete")).expect_code(1);
    assert_eq!(outcome.number("deleted"), 0);
    assert!(outcome.stderr.contains("nothing is deleted"), "{}", outcome.stderr);
    assert!(copy.join("old").exists() && copy.join("closed/a").exists());
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).expect("set the mode");
}

#[test]
fn dry_run_says_what_would_come() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    let server = tree(&served);
    let plan = |options: &[&str]| run(tow(["get", "-n", &server.url("")]).arg(&copy).args(options)).expect_code(0);
    let first = lines(&plan(&[]));
    assert!(first.contains(&"+ deep/er/".to_owned()) && first.contains(&"+ deep/er/e.txt 13".to_owned()), "{first:?}");
    assert!(!copy.exists());
    run(&mut get_command(&server.url(""), &copy)).expect_code(0);
    let outcome = plan(&[]);
    assert_eq!(lines(&outcome), [""; 0]);
    assert!(outcome.stderr.contains("0 files of 6"), "{}", outcome.stderr);
    write(&served.join("a.txt"), b"changed");
    let object = lines(&plan(&["--json"]));
    let [change, summary] = &object[..] else { panic!("two lines: {object:?}") };
    let change: serde_json::Value = serde_json::from_str(change).expect("JSON");
    assert_eq!(change, serde_json::json!({ "event": "changed", "type": "file", "path": "a.txt", "size": 7 }));
    let summary: serde_json::Value = serde_json::from_str(summary).expect("JSON");
    assert_eq!((&summary["planned_files"], &summary["planned_bytes"]), (&1.into(), &7.into()));
    assert_eq!(fs::read(copy.join("a.txt")).expect("read"), b"a.txt");
}

#[test]
fn listing_has_exact_sizes_and_times_if_asked() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 12_345, 1);
    let server = Server::start(folder.path());
    for (option, size, colons) in [("-r", "12.06 KiB", 1), ("-l", "12345", 2), ("-lh", "12.06 KiB", 2)] {
        let outcome = run(&mut tow(["ls", option, &server.url("")])).expect_code(0);
        let line = lines(&outcome).concat();
        assert!(line.contains(&format!(" {size} ")), "{option}: {line}");
        assert_eq!(line.matches(':').count(), colons, "{option}: {line}");
    }
}

#[test]
fn dry_run_deletes_what_the_real_run_does_and_no_more() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    write(&served.join("a"), b"a");
    write(&served.join("taken"), b"a file here");
    let server = Server::start(&served);
    let url = server.url("");
    for path in ["olddir/keep.tmp", "olddir/old", "deep/er/keep.tmp", "gone/old", "taken/something"] {
        write(&copy.join(path), b"");
    }
    let with = |options: &[&str]| run(tow(["get", "--delete", "--exclude", "*.tmp", &url]).arg(&copy).args(options));
    // What the real run can't replace, this one can't either; and then nothing is deleted.
    let outcome = with(&["-n"]).expect_code(1);
    assert_eq!(lines(&outcome), ["+ a 1"]);
    assert!(outcome.stderr.contains("a directory of this name is in the way"), "{}", outcome.stderr);
    fs::remove_file(served.join("taken")).expect("rm");
    let planned = ["+ a 1", "- taken/something", "- taken/", "- olddir/old", "- gone/old", "- gone/"];
    assert_eq!(lines(&with(&["-n"]).expect_code(0)), planned);
    // Held, none is made.
    let held = with(&["-n", "--max-delete", "1"]).expect_code(3);
    assert_eq!(lines(&held), ["+ a 1"]);
    assert!(held.stderr.contains("5 deletions are held"), "{}", held.stderr);
    with(&[]).expect_code(0);
    assert!(copy.join("olddir/keep.tmp").exists() && copy.join("deep/er/keep.tmp").exists());
    assert!(!copy.join("olddir/old").exists() && !copy.join("gone").exists() && !copy.join("taken").exists());
}

#[test]
fn patterns_are_those_of_gitignore_or_refused() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    for path in ["top", "{a,b}", "a", "d/below"] {
        write(&served.join(path), b"");
    }
    let server = Server::start(&served);
    for (number, (pattern, expected)) in [
        ("*/", &["a", "top", "{a,b}"][..]),
        ("**/", &["a", "top", "{a,b}"]),
        ("{a,b}", &["a", "d", "d/below", "top"]),
        ("*", &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let copy = folder.path().join(number.to_string());
        let outcome = run(tow(["get", &server.url(""), "--exclude", pattern]).arg(&copy)).expect_code(0);
        assert_eq!(paths(&copy), set(expected), "{pattern}");
        assert_eq!(outcome.stderr.contains("left out by --exclude"), expected.is_empty(), "{}", outcome.stderr);
    }
    for pattern in ["!keep", "/", "./a", "[[:alpha:]]"] {
        let copy = folder.path().join("refused");
        let outcome = run(tow(["get", &server.url(""), "--exclude", pattern]).arg(&copy)).expect_code(2);
        assert!(outcome.stderr.contains(pattern), "{}", outcome.stderr);
    }
}
