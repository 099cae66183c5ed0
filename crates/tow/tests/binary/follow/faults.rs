//! Faults of a server that is followed, and of its followers: kills at random, lost events, missing watches, deletions by mistake.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::tempdir;

use crate::follow::copies::{Pair, contents, first_file};
use crate::support::process::{Process, Server, run, tow, unprivileged_tow};
use crate::support::random::Random;
use crate::support::tree::write;
use crate::support::{skip, wait_until};

/// Kills; `TOWPATH_KILLS` sets another number.
const KILLS: u64 = 20;

/// Whatever is killed when: nothing is lost, and under no name there is anything that its source didn't have as a whole.
#[test]
fn kills_at_random_lose_nothing() {
    let kills = std::env::var("TOWPATH_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let mut pair = Pair::start();
    pair.has_state = true;
    let (source, copy, staging) = (pair.source(), pair.copy(), pair.folder.path().join("staging"));
    let (mut random, mut had) = (Random::new(kills), HashSet::new());
    let put = |random: &mut Random, had: &mut HashSet<Vec<u8>>| {
        let size = if random.below(40) == 0 { 3 << 19 } else { random.below(9000) } as usize;
        let bytes = random.bytes(size);
        write(&staging, &bytes);
        let path = source.join(format!("dir-{}/{}", random.below(4), random.below(30)));
        fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
        fs::rename(&staging, path).expect("mv");
        had.insert(bytes);
    };
    (0..40).for_each(|_| put(&mut random, &mut had));
    pair.serve();
    let mut follower = pair.follow(&["--mirror"]);
    for _ in 0..kills {
        (0..6).for_each(|_| put(&mut random, &mut had));
        fs::remove_file(first_file(&source)).expect("rm");
        let dir = source.join(format!("dir-{}", random.below(4)));
        let _ = fs::rename(&dir, source.join(format!("dir-{}", random.below(8))));
        // Any moment of what they do now is as good as another.
        std::thread::sleep(Duration::from_millis(random.below(60)));
        // The server, the follower, or both.
        let who = random.below(3);
        if who != 0 {
            pair.server = None;
            pair.serve();
        }
        if who != 1 {
            drop(follower);
            follower = pair.follow(&["--mirror"]);
        }
        for (path, (_, bytes)) in contents(&copy) {
            let is_whole = bytes == b"a directory" || had.contains(&bytes);
            assert!(is_whole, "{} has something else", path.display());
        }
    }
    pair.wait_same();
}

#[test]
fn lost_events_are_made_up_for() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("read");
    let limit: usize = limit.trim().parse().expect("a number");
    if limit > 1_000_000 {
        return skip("the kernel's queue of events is too long to be filled");
    }
    let mut pair = Pair::start();
    let source = pair.source();
    write(&source.join("a"), b"a");
    write(&source.join("b"), b"b");
    pair.serve();
    let _follower = pair.follow(&["--mirror"]);
    pair.wait_same();
    let server = pair.server();
    server.pause();
    // Two in turn, since the kernel merges an event with an equal one before it.
    for index in 0..=limit {
        let name = if index % 2 == 0 { "a" } else { "b" };
        let mode = if index % 4 < 2 { 0o640 } else { 0o600 };
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).expect("chmod");
    }
    // Of these there is no event.
    for index in 0..300 {
        write(&source.join(format!("new-{}/{}/{index}", index % 3, index % 7)), format!("{index}").as_bytes());
    }
    fs::remove_file(source.join("b")).expect("rm");
    server.signal(Signal::CONT);
    pair.wait_same();
    wait_until("it is logged", || server.log().contains("overflowed"));
}

#[test]
fn directories_that_can_not_be_watched_are_looked_at() {
    let mut pair = Pair::start();
    pair.options = &["--max-watches", "3", "--rescan", "1s"];
    let source = pair.source();
    for index in 0..8 {
        write(&source.join(format!("{index}/below/file")), b"old");
    }
    pair.serve();
    let _follower = pair.follow(&["--mirror"]);
    pair.wait_same();
    assert!(pair.server().log().contains("can't be watched"), "{}", pair.server().log());
    for index in 0..8 {
        write(&source.join(format!("{index}/below/file")), b"another");
        write(&source.join(format!("{index}/new/file")), b"new");
    }
    fs::remove_dir_all(source.join("7")).expect("rm -r");
    pair.wait_same();
}

#[test]
fn a_directory_that_becomes_a_link_is_held_and_what_is_back_ends_that() {
    let mut pair = Pair::start();
    pair.options = &["--max-delete", "5", "--rescan", "1s"];
    let (source, copy) = (pair.source(), pair.copy());
    let (dir, away) = (source.join("dir"), pair.folder.path().join("away"));
    for index in 0..20 {
        write(&dir.join(format!("{index}")), b"x");
    }
    write(&source.join("other"), b"other");
    pair.serve();
    let _follower = pair.follow(&["--mirror", "--max-delete", "1000"]);
    pair.wait_same();
    let held = || pair.server().log().matches("what is missing stays published").count();
    for round in 0..2 {
        let before = held();
        fs::rename(&dir, &away).expect("mv");
        symlink(&away, &dir).expect("symlink");
        wait_until("it is logged, each time anew", || held() > before);
        let new = format!("new-{round}");
        write(&source.join(&new), b"new");
        wait_until("what is new comes", || copy.join(&new).exists());
        assert!(copy.join("dir/19").exists());
        fs::remove_file(&dir).expect("rm");
        fs::rename(&away, &dir).expect("mv");
        // Few deletions are published again.
        fs::remove_file(dir.join(format!("{round}"))).expect("rm");
        pair.wait_same();
    }
}

#[test]
fn another_root_is_the_served_one_when_nothing_is_missing_in_it() {
    let mut pair = Pair::start();
    pair.options = &["--rescan", "1s"];
    let (source, copy) = (pair.source(), pair.copy());
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| write(&source.join(name), b"x"));
    pair.serve();
    let _follower = pair.follow(&["--mirror", "--max-delete", "1000"]);
    pair.wait_same();
    fs::rename(&source, pair.folder.path().join("away")).expect("mv");
    fs::create_dir(&source).expect("mkdir");
    write(&source.join("a"), b"x");
    wait_until("it is noticed", || pair.server().log().contains("another directory has taken the place"));
    // Nor does a deletion that is seen by itself go through, in the old one or in this one.
    write(&source.join("new"), b"new");
    wait_until("what is new comes", || copy.join("new").exists());
    fs::remove_dir_all(pair.folder.path().join("away")).expect("rm -r");
    fs::remove_file(source.join("new")).expect("rm");
    write(&source.join("newer"), b"newer");
    wait_until("what is newer comes", || copy.join("newer").exists());
    assert!(copy.join("b").exists() && copy.join("new").exists());
    names.iter().for_each(|name| write(&source.join(name), b"x"));
    write(&source.join("new"), b"new");
    wait_until("it is taken", || pair.server().log().contains("is the served one from now on"));
    fs::remove_file(source.join("b")).expect("rm");
    pair.wait_same();
}

#[test]
fn without_an_instance_of_inotify_everything_is_looked_at() {
    let folder = tempdir().expect("a folder");
    let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
    write(&source.join("a/b"), b"x");
    // A user of a new kind, who may have none.
    let script = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    let limited = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", script, "sh"]).args(words).stdin(Stdio::null());
        command
    };
    if !limited(&["true"]).output().is_ok_and(|output| output.status.success()) {
        return skip("unshare(1) may not make a user here");
    }
    let source_text = source.to_str().expect("UTF-8");
    let words = [env!("CARGO_BIN_EXE_tow"), "serve", source_text, "--watch", "--settle", "100ms", "--rescan", "1s"];
    let server = Server::from_command(limited(&words).args(["--bind", "tcp://127.0.0.1:0"]));
    let _follower = Process::start(tow(["follow", &server.url(""), "--mirror"]).arg(&copy));
    wait_until("it is there", || contents(&source) == contents(&copy));
    assert!(server.log().contains("fs.inotify.max_user_instances"), "{}", server.log());
    write(&source.join("a/c"), b"y");
    fs::remove_file(source.join("a/b")).expect("rm");
    wait_until("it is the same", || contents(&source) == contents(&copy));
}

#[test]
fn directories_that_are_made_anew_at_once_are_published() {
    let mut pair = Pair::start();
    let source = pair.source();
    write(&source.join("dist/f"), b"0");
    write(&source.join("other"), b"stays");
    pair.serve();
    let _follower = pair.follow(&[]);
    pair.wait_same();
    for round in 1..20_u8 {
        fs::remove_dir_all(source.join("dist")).expect("rm -r");
        for names in [&["dist/f", "dist/g/h"][..], &["dist/g/later"]] {
            names.iter().for_each(|name| write(&source.join(name), &[round]));
            let is_there = |name: &&str| fs::read(pair.copy().join(name)).is_ok_and(|content| content == [round]);
            wait_until("all of it is there", || names.iter().all(is_there));
        }
    }
}

#[test]
fn a_follow_that_ends_does_not_end_well_without_what_the_server_can_not_read() {
    let folder = tempdir().expect("a folder");
    let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    chmod(folder.path(), 0o755);
    let source = folder.path().join("source");
    write(&source.join("f"), b"f");
    write(&source.join("secret/deep/x"), b"x");
    chmod(&source.join("secret"), 0o000);
    let words = ["serve", source.to_str().expect("UTF-8"), "--watch", "--settle", "100ms"];
    let mut command = unprivileged_tow(folder.path(), words);
    let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]));
    let follow = |copy: &str, options: &[&str]| {
        run(tow(["follow", &server.url(""), "--once"]).args(options).arg(folder.path().join(copy)))
    };
    let outcome = follow("copy", &[]).expect_code(1);
    let printed = &outcome.stderr;
    assert!(printed.contains("secret: the server can't read it") && folder.path().join("copy/f").exists(), "{printed}");
    assert!(String::from_utf8(outcome.stdout).is_ok_and(|text| !text.contains("up to date")));
    // From where it was, too.
    follow("copy", &[]).expect_code(1);
    follow("other", &["--exclude", "secret"]).expect_code(0);
    let _follower = Process::start(tow(["follow", &server.url("")]).arg(folder.path().join("copy")));
    chmod(&source.join("secret"), 0o755);
    wait_until("it is there", || folder.path().join("copy/secret/deep/x").exists());
    follow("other", &[]).expect_code(0);
}

/// Such as the leavings of a disk that was mounted there.
#[test]
fn a_directory_that_can_not_be_read_does_not_keep_another_root_out() {
    let folder = tempdir().expect("a folder");
    let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    chmod(folder.path(), 0o755);
    let source = folder.path().join("source");
    write(&source.join("a"), b"x");
    let words = ["serve", source.to_str().expect("UTF-8"), "--watch", "--settle", "100ms", "--rescan", "1s"];
    let mut command = unprivileged_tow(folder.path(), words);
    let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]));
    let copy = folder.path().join("copy");
    let words = ["follow", &server.url(""), copy.to_str().expect("UTF-8"), "--once"];
    run(&mut tow(words)).expect_code(0);
    assert!(copy.join("a").exists());
    fs::rename(&source, folder.path().join("away")).expect("mv");
    let closed = source.join("lost+found");
    fs::create_dir_all(&closed).expect("mkdir");
    chmod(&closed, 0);
    write(&source.join("a"), b"x");
    wait_until("it is taken", || server.log().contains("is the served one from now on"));
    assert!(server.log().contains("a directory can't be read"), "{}", server.log());
    chmod(&closed, 0o755);
}

#[test]
fn many_deletions_are_held_until_a_person_releases_them() {
    let mut pair = Pair::start();
    pair.options = &["--max-delete", "5"];
    let (source, copy) = (pair.source(), pair.copy());
    for index in 0..40 {
        write(&source.join(format!("{}/{index}", index % 4)), b"x");
    }
    pair.serve();
    let _follower = pair.follow(&["--mirror", "--max-delete", "1000"]);
    pair.wait_same();
    // A directory of another name isn't gone.
    fs::rename(source.join("3"), source.join("other")).expect("mv");
    pair.wait_same();
    // By events, one after another.
    for index in (0..40).filter(|index| index % 4 != 3) {
        fs::remove_file(source.join(format!("{}/{index}", index % 4))).expect("rm");
    }
    wait_until("they are held", || pair.server().log().contains("too many deletions at a time"));
    // Nor is anything else deleted meanwhile, while what is new comes.
    write(&source.join("new"), b"new");
    wait_until("what is new comes", || copy.join("new").exists());
    fs::remove_file(source.join("other/3")).expect("rm");
    write(&source.join("newer"), b"newer");
    wait_until("what is newer comes", || copy.join("newer").exists());
    let left = contents(&copy).keys().filter(|path| copy.join(path).is_file()).count();
    assert!(left >= 42 - 5 && copy.join("other/3").exists(), "{left} files are left");
    wait_until("they are released", || {
        pair.server().signal(Signal::USR1);
        contents(&source) == contents(&copy)
    });
    assert!(pair.server().log().contains("released"), "{}", pair.server().log());
    // From then on as before.
    fs::remove_file(source.join("new")).expect("rm");
    pair.wait_same();
}
