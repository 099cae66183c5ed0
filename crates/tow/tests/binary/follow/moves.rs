//! Files that `tow follow --mirror` moves instead of fetching, and full disks.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::process::Signal;
use tempfile::tempdir;
use towpath_slow_disk::WritableDisk;

use crate::follow::copies::{Pair, contents, lines};
use crate::support::process::{Process, tow};
use crate::support::tree::{random_file, write};
use crate::support::wait_until;

/// More than may be deleted without being allowed.
const FILES: usize = 1200;

/// A directory with small files, empty ones, some of the same content, links and empty directories.
fn many(pair: &Pair) {
    for index in 0..FILES {
        let content = vec![u8::try_from(index % 251).expect("a byte"); [4096, 0, 10, 4096][index % 4]];
        write(&pair.source().join(format!("d/{}/{index}", index % 7)), &content);
    }
    for index in 0..50 {
        fs::create_dir(pair.source().join(format!("d/empty-{index}"))).expect("mkdir");
        symlink("0/0", pair.source().join(format!("d/link-{index}"))).expect("symlink");
    }
    write(&pair.source().join("other"), b"stays");
}

/// Nothing but directories is new, and nothing is deleted but directories.
fn assert_only_moved(printed: &str) {
    let new: Vec<_> = [lines(printed, "+ "), lines(printed, "~ ")].concat();
    assert!(new.iter().all(|line| line.ends_with('/')), "{new:?}");
    assert_eq!(lines(printed, "> ").len(), FILES + 50, "{printed}");
    assert!(lines(printed, "- ").iter().all(|line| !line.contains("link-")), "{printed}");
}

#[test]
fn moved_directory_costs_no_content_and_is_no_deletion() {
    let mut pair = Pair::start();
    pair.settle = "2s";
    many(&pair);
    pair.serve();
    let follower = pair.follow(&["--mirror"]);
    pair.wait_same();
    fs::rename(pair.source().join("d"), pair.source().join("e")).expect("rename");
    pair.wait_same();
    wait_until("it says so", || lines(&follower.output(), "> ").len() == FILES + 50);
    let printed = follower.output();
    let first = printed.find("up to date").expect("the first state");
    assert_only_moved(&printed[first..]);
    follower.signal(Signal::TERM);
    drop(follower);

    // Away meanwhile, and sent by a server that knows nothing of what was there: in several pages.
    fs::rename(pair.source().join("e"), pair.source().join("f")).expect("rename");
    pair.serve();
    let outcome = pair.once(&["--mirror"]).expect_code(0);
    assert_only_moved(&String::from_utf8_lossy(&outcome.stdout));
    assert_eq!(contents(&pair.source()), contents(&pair.copy()));
}

#[test]
fn what_makes_space_does_not_wait_for_what_needs_it() {
    let mut pair = Pair::start();
    let folder = tempdir().expect("a folder");
    let disk = match WritableDisk::mount(folder.path()) {
        Ok(disk) => disk,
        Err(error) => return println!("skipped: no FUSE file system can be mounted here: {error}"),
    };
    disk.limit(8 << 20);
    let (source, copy) = (pair.source(), folder.path().join("copy"));
    random_file(&source.join("old"), 5 << 20, 1);
    pair.serve();
    let url = pair.server().url("");
    let words = ["follow", &url, copy.to_str().expect("UTF-8"), "--mirror"];
    let follower = Process::start(&mut tow(words));
    let has = |name: &str| fs::read(copy.join(name)).ok() == fs::read(source.join(name)).ok();
    wait_until("the first file is there", || has("old"));
    random_file(&source.join("new"), 5 << 20, 2);
    wait_until("there is no space for the second", || follower.log().contains("no space left"));
    write(&source.join("small"), b"fits");
    wait_until("a small one is there all the same", || has("small"));
    assert!(!copy.join("new").exists());
    fs::remove_file(source.join("old")).expect("rm");
    wait_until("the second has the space of the first", || has("new"));
    assert!(!copy.join("old").exists());
    wait_until("all is in place", || {
        follower.output().lines().last().is_some_and(|line| line.starts_with("up to date"))
    });
}

#[test]
fn held_deletions_that_would_make_space_are_named() {
    let mut pair = Pair::start();
    let folder = tempdir().expect("a folder");
    let disk = match WritableDisk::mount(folder.path()) {
        Ok(disk) => disk,
        Err(error) => return println!("skipped: no FUSE file system can be mounted here: {error}"),
    };
    disk.limit(8 << 20);
    let (source, copy) = (pair.source(), folder.path().join("copy"));
    for (name, seed) in [("old-1", 1), ("old-2", 2), ("other", 3)] {
        random_file(&source.join(name), 2 << 20, seed);
    }
    pair.serve();
    let url = pair.server().url("");
    let once = |most| {
        let words = ["follow", &url, copy.to_str().expect("UTF-8"), "--mirror", "--once", "--max-delete", most];
        crate::support::process::run(&mut tow(words))
    };
    once("1").expect_code(0);
    random_file(&source.join("new"), 5 << 20, 4);
    for name in ["old-1", "old-2"] {
        fs::remove_file(source.join(name)).expect("rm");
    }
    let held = "2 deletions are held, start again with --max-delete 2 to make space";
    wait_until("both are held", || once("1").stderr.contains(held));
    once("2").expect_code(0);
    assert_eq!(contents(&source), contents(&copy));
}
