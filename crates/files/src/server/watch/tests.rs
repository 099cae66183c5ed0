//! A watched directory in which things happen that events don't show plainly.

use super::simulated::{SimulatedServer, as_plain_user, has_own_mounts};
use crate::catalogue::Content;
use crate::digest::Digest;
use crate::root::{Links, Root};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

struct Watched {
    temp: TempDir,
    server: SimulatedServer,
}

impl Watched {
    /// A directory with these files, which are published.
    fn with(files: &[&str]) -> Watched {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("source")).unwrap();
        files.iter().for_each(|path| write(&temp.path().join("source").join(path), path));
        let server = start(temp.path());
        let mut watched = Watched { temp, server };
        watched.server.settle();
        assert!(watched.server.is_complete());
        watched
    }

    fn at(&self, path: &str) -> PathBuf {
        self.temp.path().join("source").join(path)
    }

    /// Whether a file is published with this content.
    fn has(&self, path: &str, content: &str) -> bool {
        let live = self.server.live();
        let content = Digest::of(content.as_bytes());
        live.get(path).is_some_and(|entry| matches!(entry.content, Content::File { digest, .. } if digest == content))
    }
}

fn start(temp: &Path) -> SimulatedServer {
    SimulatedServer::start(&temp.join("source"), &temp.join("state"), 1, 1, 1000)
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_directory_that_was_made_anew_is_read_and_watched() {
    let mut watched = Watched::with(&["dist/f", "dist/deep/g", "other"]);
    for round in 0..5 {
        // The next one has the same inode, on most file systems.
        fs::remove_dir_all(watched.at("dist")).unwrap();
        write(&watched.at("dist/f"), &format!("f {round}"));
        write(&watched.at("dist/deep/g"), &format!("g {round}"));
        watched.server.settle();
        assert!(watched.has("dist/f", &format!("f {round}")) && watched.has("dist/deep/g", &format!("g {round}")));
        write(&watched.at("dist/deep/later"), &format!("later {round}"));
        watched.server.settle();
        assert!(watched.has("dist/deep/later", &format!("later {round}")));
    }
}

#[test]
fn directories_that_changed_places_are_watched_where_they_are() {
    let mut watched = Watched::with(&["a/in/x", "b/in/y"]);
    for (from, to) in [("a", "t"), ("b", "a"), ("t", "b")] {
        fs::rename(watched.at(from), watched.at(to)).unwrap();
    }
    watched.server.settle();
    assert!(watched.has("a/in/y", "b/in/y") && watched.has("b/in/x", "a/in/x"));
    write(&watched.at("a/in/new"), "a");
    write(&watched.at("b/in/new"), "b");
    watched.server.settle();
    assert!(watched.has("a/in/new", "a") && watched.has("b/in/new", "b"));
}

#[test]
fn unreadable_files_are_reported_and_published_once_they_can_be_read() {
    let mut watched = Watched::with(&["f"]);
    write(&watched.at("secret/deep/x"), "x");
    write(&watched.at("names/y"), "y");
    write(&watched.at("g"), "g");
    let hidden = [("secret", 0o000), ("names", 0o600), ("g", 0o000)];
    hidden.iter().for_each(|(path, mode)| chmod(&watched.at(path), *mode));
    as_plain_user(|| watched.server.settle());
    assert_eq!(watched.server.unread(), ["g", "names", "secret"]);
    assert!(watched.server.live().keys().all(|path| !path.contains('/') && path != "g"));
    for (path, _) in hidden {
        chmod(&watched.at(path), 0o755);
        as_plain_user(|| watched.server.settle());
    }
    assert!(watched.server.unread().is_empty());
    assert!(watched.has("secret/deep/x", "x") && watched.has("names/y", "y") && watched.has("g", "g"));
    // What was published stays, and is said not to be known.
    chmod(&watched.at("secret"), 0o000);
    as_plain_user(|| watched.server.settle());
    assert!(watched.server.unread() == ["secret"] && watched.has("secret/deep/x", "x"));
    fs::remove_dir_all(watched.at("secret")).unwrap();
    as_plain_user(|| watched.server.settle());
    assert!(watched.server.unread().is_empty() && !watched.has("secret/deep/x", "x"));
}

#[test]
fn files_unreadable_at_the_start_are_reported_before_anybody_is_up_to_date() {
    let temp = tempfile::tempdir().unwrap();
    write(&temp.path().join("source/a/in/x"), "x");
    write(&temp.path().join("source/f"), "f");
    chmod(&temp.path().join("source/a"), 0o000);
    let mut server = start(temp.path());
    as_plain_user(|| server.settle());
    assert!(server.is_complete() && server.unread() == ["a"]);
    // No event comes when it is made readable by a mount, a group or another rule: it is tried again.
    chmod(&temp.path().join("source/a"), 0o755);
    let mut watched = Watched { temp, server };
    watched.server.lose_events();
    watched.server.look_at_unread();
    watched.server.settle();
    assert!(watched.server.unread().is_empty() && watched.has("a/in/x", "x"));
}

#[test]
fn a_file_written_under_one_of_its_names_is_noticed_under_all() {
    let mut watched = Watched::with(&["a/one", "other"]);
    fs::create_dir(watched.at("b")).unwrap();
    fs::hard_link(watched.at("a/one"), watched.at("b/two")).unwrap();
    fs::hard_link(watched.at("a/one"), watched.at("three")).unwrap();
    watched.server.settle();
    let names = ["a/one", "b/two", "three"];
    for (written, content) in names.iter().zip(["x", "y", "z"]) {
        write(&watched.at(written), content);
        watched.server.settle();
        assert!(names.iter().all(|name| watched.has(name, content)), "{written}");
    }
    // One that has the name no more isn't another name.
    fs::remove_file(watched.at("three")).unwrap();
    write(&watched.at("three"), "own");
    watched.server.settle();
    write(&watched.at("a/one"), "of two");
    watched.server.settle();
    assert!(watched.has("three", "own") && watched.has("b/two", "of two"));
}

#[test]
fn a_file_written_under_a_new_name_is_noticed_under_the_old_one() {
    let mut watched = Watched::with(&["a/one", "other"]);
    // Before either event is looked at.
    fs::hard_link(watched.at("a/one"), watched.at("two")).unwrap();
    write(&watched.at("two"), "x");
    watched.server.settle();
    assert!(watched.has("two", "x") && watched.has("a/one", "x"));
    // The new name takes the place of another file.
    fs::remove_file(watched.at("other")).unwrap();
    fs::hard_link(watched.at("a/one"), watched.at("other")).unwrap();
    write(&watched.at("other"), "y");
    watched.server.settle();
    assert!(["a/one", "two", "other"].iter().all(|name| watched.has(name, "y")));
    // A name that is gone isn't taken for one that was renamed.
    fs::remove_file(watched.at("two")).unwrap();
    write(&watched.at("a/one"), "z");
    watched.server.settle();
    assert!(watched.has("a/one", "z") && watched.has("other", "z") && !watched.server.live().contains_key("two"));
}

#[test]
fn another_name_elsewhere_is_no_change() {
    let mut watched = Watched::with(&["f"]);
    let head = watched.server.head();
    fs::hard_link(watched.at("f"), watched.temp.path().join("elsewhere")).unwrap();
    let (root, path) = (Root::directory(watched.at(""), Links::Never).unwrap(), "f".parse().unwrap());
    // No event comes of it; somebody who reads the file finds another time.
    watched.server.found(&path, &root.stat(&path).unwrap());
    watched.server.settle();
    assert!(watched.server.head() == head && watched.has("f", "f"));
    // Nor does one come of what is written there.
    fs::write(watched.temp.path().join("elsewhere"), "g").unwrap();
    watched.server.settle();
    assert!(watched.has("f", "f"));
    watched.server.found(&path, &root.stat(&path).unwrap());
    watched.server.settle();
    assert!(watched.has("f", "g"));
}

/// Does something in a thread that has mounts of its own, if it may.
fn with_mounts(act: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| has_own_mounts().then(act)).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn mount_empty(path: &Path) {
    mount("none", path, "tmpfs", MountFlags::empty(), None).unwrap();
}

#[test]
fn a_file_system_that_is_gone_or_empty_deletes_nothing_also_after_a_restart() {
    with_mounts(|| {
        let temp = tempfile::tempdir().unwrap();
        let disk = temp.path().join("source/data/disk");
        let fill = || ["x", "y", "deep/z"].iter().for_each(|name| write(&disk.join(name), name));
        write(&temp.path().join("source/other"), "other");
        write(&temp.path().join("source/later"), "later");
        fs::create_dir_all(&disk).unwrap();
        mount_empty(&disk);
        fill();
        let mut watched = Watched { server: start(temp.path()), temp };
        let has_all =
            |watched: &Watched| ["x", "y", "deep/z"].iter().all(|name| watched.has(&format!("data/disk/{name}"), name));
        watched.server.settle();
        assert!(has_all(&watched) && !watched.server.is_holding());
        unmount(&disk, UnmountFlags::empty()).unwrap();
        watched.server.settle();
        assert!(has_all(&watched) && watched.server.is_holding());
        // Other deletions go on.
        fs::remove_file(watched.at("other")).unwrap();
        watched.server.settle();
        assert!(!watched.has("other", "other") && has_all(&watched));
        let state = watched.temp.path().join("nothing");
        watched.server = SimulatedServer::start(&watched.at(""), &state, 9, 1, 1000);
        fs::remove_file(watched.at("later")).unwrap();
        watched.server = start(watched.temp.path());
        watched.server.settle();
        assert!(!watched.has("later", "later") && has_all(&watched) && watched.server.is_holding());
        // Nor does the mount point itself go, nor what is above it.
        fs::remove_dir_all(watched.at("data")).unwrap();
        watched.server.settle();
        assert!(has_all(&watched) && watched.server.is_holding());
        fs::create_dir_all(&disk).unwrap();
        mount_empty(&disk);
        watched.server.settle();
        assert!(has_all(&watched) && watched.server.is_holding(), "another one, which is empty");
        fill();
        watched.server.rescan();
        watched.server.settle();
        assert!(has_all(&watched) && !watched.server.is_holding());
        unmount(&disk, UnmountFlags::empty()).unwrap();
        watched.server.settle();
        watched.server.release();
        watched.server.settle();
        assert!(watched.server.live().into_keys().eq(["data", "data/disk"]) && !watched.server.is_holding());
        // It is a directory like any other from now on.
        write(&disk.join("x"), "x");
        watched.server.settle();
        fs::remove_file(disk.join("x")).unwrap();
        watched.server.settle();
        assert!(!watched.has("data/disk/x", "x") && !watched.server.is_holding());
    });
}

#[test]
fn a_file_system_that_is_mounted_is_published_and_watched() {
    with_mounts(|| {
        let mut watched = Watched::with(&["disk/below", "f"]);
        mount_empty(&watched.at("disk"));
        write(&watched.at("disk/x"), "x");
        watched.server.settle();
        assert!(watched.has("disk/x", "x") && !watched.has("disk/below", "disk/below"));
        write(&watched.at("disk/deep/y"), "y");
        watched.server.settle();
        assert!(watched.has("disk/deep/y", "y"));
        unmount(watched.at("disk"), UnmountFlags::empty()).unwrap();
    });
}

#[test]
fn what_changed_just_before_it_was_hidden_is_seen_when_it_is_back() {
    with_mounts(|| {
        let mut watched = Watched::with(&["disk/deep/x", "f"]);
        write(&watched.at("disk/deep/x"), "changed");
        mount_empty(&watched.at("disk"));
        // The events are of a directory that isn't to be seen now.
        watched.server.settle();
        assert!(watched.has("disk/deep/x", "disk/deep/x"), "what was published stays");
        unmount(watched.at("disk"), UnmountFlags::empty()).unwrap();
        watched.server.settle();
        assert!(watched.has("disk/deep/x", "changed"));
        write(&watched.at("disk/deep/y"), "y");
        watched.server.settle();
        assert!(watched.has("disk/deep/y", "y"), "it is still watched");
    });
}
