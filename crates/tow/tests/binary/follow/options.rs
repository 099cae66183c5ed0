//! Options of `tow follow`: what is left out, the trash, and the command that acts on changes.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir_in;

use crate::follow::copies::{Pair, contents, text};
use crate::support::tree::write;
use crate::support::wait_until;

fn names(root: &Path) -> Vec<String> {
    contents(root).into_keys().map(|path| path.display().to_string()).collect()
}

#[test]
fn what_is_excluded_stays_out_and_another_filter_begins_anew() {
    let mut pair = Pair::start();
    let (source, copy) = (pair.source(), pair.copy());
    for path in ["keep", "a.tmp", "dir/b.tmp", "dir/c", "cache/x", "dir/cache/y"] {
        write(&source.join(path), b"x");
    }
    pair.serve();
    let excludes = ["--mirror", "--exclude", "*.tmp", "--exclude", "/cache"];
    pair.once(&excludes).expect_code(0);
    assert_eq!(names(&copy), ["dir", "dir/c", "dir/cache", "dir/cache/y", "keep"]);
    // What another filter has put here isn't deleted by this one, and the other way round. Only new entries are printed.
    fs::remove_file(copy.join("dir/c")).expect("remove");
    let printed = text(&pair.once(&["--mirror"]).expect_code(0));
    assert!(printed.contains("+ a.tmp ") && printed.contains("+ dir/c ") && !printed.contains("keep"), "{printed}");
    assert_eq!(names(&copy), names(&source));
    write(&source.join("later.tmp"), b"x");
    write(&source.join("later"), b"x");
    wait_until("it goes on", || {
        pair.once(&excludes).expect_code(0);
        copy.join("later").exists()
    });
    assert!(copy.join("a.tmp").exists() && !copy.join("later.tmp").exists());
    let outcome = pair.once(&["--exclude", "[z-a]"]).expect_code(2);
    assert!(outcome.stderr.contains("--exclude"), "{}", outcome.stderr);
}

#[test]
fn what_is_deleted_or_replaced_is_in_the_trash() {
    let elsewhere = tempdir_in("/dev/shm").expect("a folder");
    let mut pair = Pair::start();
    let here = pair.folder.path().join("trash");
    let (source, copy) = (pair.source(), pair.copy());
    let device = |path: &Path| fs::metadata(path).expect("stat").dev();
    let is_other_device = device(elsewhere.path()) != device(pair.folder.path());
    let trashes: [PathBuf; 2] = [here, elsewhere.path().to_owned()];
    for path in ["one/changed", "one/deleted", "two/changed", "two/deleted", "other"] {
        write(&source.join(path), b"old");
    }
    symlink("other", source.join("one/link")).expect("symlink");
    pair.serve();
    pair.once(&["--mirror"]).expect_code(0);
    for (dir, trash) in ["one", "two"].into_iter().zip(&trashes) {
        let options = ["--mirror", "--trash", trash.to_str().expect("UTF-8")];
        let kept = |path: String| fs::read_to_string(trash.join(path)).unwrap_or_default();
        write(&source.join(dir).join("changed"), b"new");
        fs::remove_file(source.join(dir).join("deleted")).expect("rm");
        let _ = fs::remove_file(source.join(dir).join("link"));
        wait_until("the copy is as its source", || {
            pair.once(&options).expect_code(0);
            contents(&source) == contents(&copy)
        });
        assert_eq!(kept(format!("{dir}/changed")), "old", "another file system: {is_other_device}");
        assert_eq!(kept(format!("{dir}/deleted")), "old");
        assert_eq!(trash.join(dir).join("link").is_symlink(), dir == "one");
        // The name is taken.
        write(&source.join(dir).join("changed"), b"newer");
        let mut printed = String::new();
        wait_until("it is printed", || {
            printed += &text(&pair.once(&[&options[..], &["--json"]].concat()).expect_code(0));
            printed.contains("\"changed\"")
        });
        let event = printed.lines().find(|line| line.contains("\"changed\"")).expect("a line");
        let seq = serde_json::from_str::<Value>(event).expect("JSON")["seq"].clone();
        assert_eq!(kept(format!("{dir}/changed.{seq}")), "new");
        assert_eq!(fs::read_dir(trash.join(dir)).expect("read").count(), if dir == "one" { 4 } else { 3 });
    }
}

#[test]
fn command_gets_the_changes_each_time_the_copy_is_up_to_date() {
    let mut pair = Pair::start();
    let source = pair.source();
    let printed = pair.folder.path().join("printed");
    let script = format!("cat >> {0}; echo \"seq $TOW_FOLLOW_SEQ\" >> {0}; echo printed", printed.display());
    let lines =
        || -> Vec<String> { fs::read_to_string(&printed).unwrap_or_default().lines().map(ToOwned::to_owned).collect() };
    write(&source.join("a"), b"hello");
    write(&source.join("b"), b"b");
    pair.serve();
    let follower = pair.follow(&["--mirror", "--exec", &script]);
    wait_until("it is run", || lines().iter().any(|line| line.starts_with("seq ")));
    let first = lines();
    let event = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    assert_eq!((&event(&first[0])["event"], first.len()), (&"new".into(), 3), "{first:?}");
    let last = event(&first[1])["seq"].clone();
    assert_eq!(first[2], format!("seq {last}"));
    fs::remove_file(source.join("b")).expect("rm");
    wait_until("it is run again", || lines().len() == 5);
    assert_eq!((&event(&lines()[3])["event"], &event(&lines()[3])["path"]), (&"gone".into(), &"b".into()));
    // What it prints doesn't get between the lines of this program.
    wait_until("it has ended", || follower.log().matches("printed").count() == 2);
    assert!(!follower.output().contains("printed"));
    follower.signal(Signal::INT);
    follower.finish();
    // Without changes it isn't run.
    pair.once(&["--mirror", "--exec", &script]).expect_code(0);
    assert_eq!(lines().len(), 5);
}

#[test]
fn a_failed_command_is_reported_and_a_killed_follower_repeats_the_event() {
    let mut pair = Pair::start();
    let printed = pair.folder.path().join("printed");
    write(&pair.source().join("a"), b"hello");
    pair.serve();
    let outcome = pair.once(&["--exec", "exit 3"]).expect_code(1);
    assert!(outcome.stderr.contains("exit status: 3"), "{}", outcome.stderr);
    write(&pair.source().join("b"), b"b");
    wait_until("it is killed", || {
        let outcome = pair.once(&["--exec", "kill -9 $PPID"]);
        outcome.status.code().is_none()
    });
    pair.once(&["--exec", &format!("cat > {}", printed.display())]).expect_code(0);
    let printed = fs::read_to_string(printed).expect("read");
    assert!(printed.lines().count() == 1 && printed.contains("\"b\""), "{printed}");
    // Nothing of it is left.
    let left = fs::read_dir(pair.copy()).expect("read").filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert_eq!(left.filter(|name| name.ends_with(".changes") || name.ends_with(".acting")).count(), 0);
}
