//! Modes and times: which ones arrive, and destinations that refuse them. And what is known of files that are there
//! already.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use tempfile::tempdir;

use crate::files::hanging_disk::disk_in;
use crate::support::process::{Server, get, get_command, run};
use crate::support::tree::{digest, random_file, write};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("stat").mode() & 0o7777
}

/// `tow get` with this umask.
fn with_umask(umask: &str, get: &Command) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask $0 && exec \"$@\"", umask]).arg(get.get_program()).args(get.get_args());
    command
}

/// As with cp and rsync: nobody gets more than the user gives.
#[test]
fn umask_applies_to_files_and_directories() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    random_file(&served.join("dir/large"), 3 << 20, 1);
    write(&served.join("dir/script"), b"#!/bin/sh");
    for (name, mode) in [("dir", 0o1777), ("dir/large", 0o6777), ("dir/script", 0o777)] {
        chmod(&served.join(name), mode);
    }
    let server = Server::start(&served);
    let cases: [(&str, &[&str], [u32; 3]); 5] = [
        ("022", &[], [0o1755, 0o755, 0o755]),
        ("077", &[], [0o1700, 0o700, 0o700]),
        ("002", &[], [0o1775, 0o775, 0o775]),
        ("077", &["--preserve-modes"], [0o1775, 0o775, 0o775]),
        ("027", &["--no-mode"], [0o750, 0o640, 0o640]),
    ];
    for (umask, options, expected) in cases {
        let copy = folder.path().join("copy");
        // The second one finds nothing to change.
        for skipped in [0, 2] {
            let mut get = get_command(&server.url(""), &copy);
            let outcome = run(&mut with_umask(umask, get.args(options))).expect_code(0);
            assert_eq!(outcome.number("skipped"), skipped, "{umask} {options:?}");
            let modes = ["dir", "dir/large", "dir/script"].map(|name| mode(&copy.join(name)));
            assert_eq!(modes, expected, "{umask} {options:?}: {modes:?}");
        }
        // A file whose mode was changed gets it again, unless modes are left alone.
        chmod(&copy.join("dir/script"), 0o600);
        let mut get = get_command(&server.url(""), &copy);
        run(&mut with_umask(umask, get.args(options))).expect_code(0);
        let kept = options.contains(&"--no-mode");
        assert_eq!(mode(&copy.join("dir/script")), if kept { 0o600 } else { expected[2] });
        fs::remove_dir_all(&copy).expect("remove");
    }
}

/// In the folder of a group all that is made belongs to the group.
#[test]
fn inherited_set_group_id_is_kept() {
    let folder = tempdir().expect("a folder");
    let (served, shared) = (folder.path().join("served"), folder.path().join("shared"));
    write(&served.join("dir/sub/file"), b"contents");
    for name in ["dir", "dir/sub"] {
        chmod(&served.join(name), 0o750);
    }
    fs::create_dir(&shared).expect("mkdir");
    if rustix::process::geteuid().is_root() {
        chown(&shared, None, Some(12_345)).expect("chown");
    }
    chmod(&shared, 0o2775);
    let group = fs::metadata(&shared).expect("stat").gid();
    let server = Server::start(&served);
    for options in [&[][..], &["--fsync"], &["--preserve-modes"]] {
        for (source, copy) in [("dir", "new"), ("", ".")] {
            for _ in 0..2 {
                run(get_command(&server.url(source), &shared.join(copy)).args(options)).expect_code(0);
            }
        }
        for name in ["new", "new/sub", "dir", "dir/sub"] {
            let metadata = fs::metadata(shared.join(name)).expect("stat");
            assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (0o2750, group), "{name}");
        }
        assert_eq!(fs::metadata(shared.join("dir/sub/file")).expect("stat").gid(), group);
        for name in ["new", "dir"] {
            fs::remove_dir_all(shared.join(name)).expect("remove");
        }
    }
}

/// As FAT and network shares do. The content is there, and that is what counts.
#[test]
fn refused_modes_and_times_are_counted_not_fatal() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    random_file(&served.join("large"), 3 << 20, 1);
    write(&served.join("dir/small"), b"contents");
    for name in ["large", "dir/small"] {
        chmod(&served.join(name), 0o640);
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::options()
            .write(true)
            .open(served.join(name))
            .and_then(|file| file.set_modified(long_ago))
            .expect("touch");
    }
    let server = Server::start(&served);
    let mount = folder.path().join("mount");
    let Some(disk) = disk_in(&mount) else { return };
    disk.refuse_metadata();
    let copy = mount.join("copy");
    let outcome = get(&server.url(""), &copy).expect_code(0);
    for name in ["large", "dir/small"] {
        assert_eq!(digest(&copy.join(name)), digest(&served.join(name)));
    }
    assert!(outcome.number("metadata_refused") >= 4, "{}", outcome.summary());
    for what in ["refused to set modes", "refused to set times"] {
        assert_eq!(outcome.stderr.matches(what).count(), 1, "{}", outcome.stderr);
    }
    assert_eq!((outcome.number("failed"), outcome.number("verified_files")), (0, 2));
    // Nothing crosses the wire again, though times differ.
    let again = get(&server.url(""), &copy).expect_code(0);
    assert_eq!((again.number("received_bytes"), again.number("skipped")), (0, 2), "{}", again.summary());
    // And without modes and times nothing is refused.
    let quiet =
        run(get_command(&server.url(""), &mount.join("quiet")).args(["--no-mode", "--no-times"])).expect_code(0);
    assert_eq!((quiet.number("metadata_refused"), quiet.stderr.as_str()), (0, ""), "{}", quiet.summary());
}

#[test]
fn times_are_left_alone_on_request() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    write(&served.join("dir/file"), b"contents");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for name in ["dir/file", "dir"] {
        File::open(served.join(name)).and_then(|file| file.set_modified(long_ago)).expect("touch");
    }
    let server = Server::start(&served);
    for skipped in [0, 1] {
        let outcome = run(get_command(&server.url(""), &copy).arg("--no-times")).expect_code(0);
        assert_eq!(outcome.number("skipped"), skipped);
        for name in ["dir/file", "dir"] {
            assert!(fs::metadata(copy.join(name)).and_then(|file| file.modified()).expect("a time") > long_ago);
        }
    }
}

/// Size and time are not a proof.
#[test]
fn damaged_copy_is_found_by_digest_and_not_called_verified() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    random_file(&served.join("large"), 3 << 20, 1);
    write(&served.join("small"), b"contents");
    let server = Server::start(&served);
    let first = get(&server.url(""), &copy).expect_code(0);
    assert_eq!((first.number("verified_files"), first.summary()["verified"].as_bool()), (2, Some(true)));
    let damage = |name: &str| {
        let modified = fs::metadata(copy.join(name)).and_then(|file| file.modified()).expect("a time");
        let file = File::options().write(true).open(copy.join(name)).expect("open");
        file.write_all_at(b"X", 3).and_then(|()| file.set_modified(modified)).expect("damage it");
    };
    damage("large");
    damage("small");
    let believed = get(&server.url(""), &copy).expect_code(0);
    assert_eq!((believed.number("skipped"), believed.number("verified_files")), (2, 0));
    assert_eq!(believed.summary()["verified"], false);
    let checked = run(get_command(&server.url(""), &copy).arg("--check")).expect_code(0);
    assert_eq!((checked.number("skipped"), checked.number("verified_files")), (0, 2), "{}", checked.summary());
    assert_eq!(checked.stderr.matches("has other content").count(), 2, "{}", checked.stderr);
    for name in ["large", "small"] {
        assert_eq!(digest(&copy.join(name)), digest(&served.join(name)));
    }
    let again = run(get_command(&server.url(""), &copy).arg("--check")).expect_code(0);
    let counts = ["skipped", "verified_files", "received_bytes"].map(|member| again.number(member));
    assert_eq!((counts, again.summary()["verified"].as_bool()), ([2, 2, 0], Some(true)));
}
