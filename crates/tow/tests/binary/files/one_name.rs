//! Destinations that take two names of a tree for one.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

use tempfile::tempdir;
use towpath_slow_disk::WritableDisk;

use crate::support::process::{Server, get, get_command, run, tow};
use crate::support::tree::{random_file, write};

/// Ignores case, and how an é is composed.
fn fold(name: &OsStr) -> OsString {
    name.to_string_lossy().to_lowercase().replace("e\u{301}", "é").into()
}

fn disk_in(folder: &Path) -> Option<WritableDisk> {
    fs::create_dir(folder).expect("mkdir");
    let disk = WritableDisk::mount_folding(folder, fold);
    disk.inspect_err(|error| println!("skipped: no FUSE file system can be mounted here: {error}")).ok()
}

#[test]
fn second_name_of_what_is_installed_fails() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    for (name, size) in [("A", 100), ("a", 200), ("caf\u{e9}", 300), ("cafe\u{301}", 300), ("other", 5)] {
        write(&served.join(name), &vec![b'x'; size]);
    }
    for name in ["Large", "large"] {
        random_file(&served.join(name), 2 << 20, name.len() as u64);
    }
    for name in ["Dir/x", "Dir/only", "dir/x", "dir/y"] {
        write(&served.join(name), name.as_bytes());
    }
    fs::create_dir(served.join("Thing")).expect("mkdir");
    write(&served.join("thing"), b"a file");
    let server = Server::start(&served);
    let mount = folder.path().join("mount");
    let Some(_disk) = disk_in(&mount) else { return };
    let mut before: Option<Vec<String>> = None;
    // The second one finds what the first has installed.
    for round in 0..3 {
        let outcome = get(&server.url(""), &mount.join("copy")).expect_code(1);
        let summary = outcome.summary();
        let failures = summary["failures"].as_array().expect("failures");
        for (one, two) in [
            ("A", "a"),
            ("caf\u{e9}", "cafe\u{301}"),
            ("Large", "large"),
            ("Dir", "dir"),
            ("Dir/x", "dir/x"),
            ("Thing", "thing"),
        ] {
            let of_pair = failures.iter().filter(|failure| failure["path"] == one || failure["path"] == two);
            let reasons: Vec<&str> = of_pair.map(|failure| failure["reason"].as_str().expect("text")).collect();
            assert_eq!(reasons.len(), 1, "round {round}, {one} and {two}: {summary}");
            // If both arrive at the same moment, the second one finds the first one's partial file.
            let says_why = |text: &str| reasons[0].contains(text);
            let is_named = says_why("are one name at the destination");
            assert!(is_named || says_why("another transfer is receiving this file"), "round {round}: {summary}");
        }
        assert_eq!(failures.len(), 6, "{summary}");
        assert_eq!(fs::read(mount.join("copy/other")).expect("read"), b"xxxxx");
        assert_eq!(fs::read(mount.join("copy/dir/y")).expect("read"), b"dir/y");
        // What was first stays.
        let names = || fs::read_dir(mount.join("copy")).expect("read").map(|entry| entry.expect("one").file_name());
        // The part of a large file that failed may be left.
        let mut contents: Vec<String> = names()
            .filter(|name| !name.as_encoded_bytes().starts_with(b".tow-"))
            .map(|name| {
                format!(
                    "{name:?} {:?}",
                    fs::read(mount.join("copy").join(&name)).map(|content| blake3::hash(&content)).ok()
                )
            })
            .collect();
        contents.sort();
        assert_eq!(contents.len(), 6, "{contents:?}");
        if let Some(before) = before.replace(contents.clone()) {
            assert_eq!(contents, before, "it settles");
        }
    }
}

/// Names that differ by case are different where the file system says so, and hard links are different names of one file.
#[test]
fn names_of_their_own_are_no_collision() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    for name in ["A", "a", "caf\u{e9}", "cafe\u{301}", "one", "two", "three"] {
        write(&served.join(name), name.as_bytes());
    }
    let server = Server::start(&served);
    get(&server.url(""), &copy).expect_code(0);
    // The same content and time in all three.
    for name in ["two", "three"] {
        fs::remove_file(copy.join(name)).expect("remove");
        fs::hard_link(copy.join("one"), copy.join(name)).expect("link");
    }
    for check in [false, true] {
        let mut command = get_command(&server.url(""), &copy);
        run(if check { command.arg("--check") } else { &mut command }).expect_code(0);
    }
    for name in ["A", "a", "caf\u{e9}", "cafe\u{301}", "one", "two", "three"] {
        assert_eq!(fs::read(copy.join(name)).expect("read"), name.as_bytes());
    }
}

#[test]
fn second_name_fails_where_each_spelling_has_an_inode_of_its_own() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    for name in ["README", "readme", "Dir/x", "dir/x", "other"] {
        write(&served.join(name), name.as_bytes());
    }
    for name in ["Large", "large"] {
        random_file(&served.join(name), 2 << 20, name.len() as u64);
    }
    let mut command =
        tow([OsStr::new("serve"), served.as_ref(), "--watch".as_ref(), "--settle".as_ref(), "200ms".as_ref()]);
    let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]));
    let mount = folder.path().join("mount");
    fs::create_dir(&mount).expect("mkdir");
    let disk = match WritableDisk::mount_unstable(&mount, fold) {
        Ok(disk) => disk,
        Err(error) => return println!("skipped: no FUSE file system can be mounted here: {error}"),
    };
    let is_whole = |path: &Path| {
        let name = path.strip_prefix(&mount).expect("below").iter().skip(1).collect::<std::path::PathBuf>();
        fs::read(path).expect("read") == fs::read(served.join(name)).expect("read")
    };
    // The second time, and in the second half of a follow, what is there was put there before.
    for round in 0..2 {
        let outcome = get(&server.url(""), &mount.join("copy")).expect_code(1);
        assert_eq!(outcome.number("failed"), 4, "round {round}: {}", outcome.summary());
        let names = fs::read_dir(mount.join("copy")).expect("read").map(|entry| entry.expect("one").path());
        let files: Vec<_> = names.filter(|path| path.is_file() && !path.to_string_lossy().contains(".tow-")).collect();
        assert!(files.len() == 3 && files.iter().all(|path| is_whole(path)), "round {round}: {files:?}");
    }
    for _ in 0..2 {
        let (url, place) = (server.url(""), mount.join("followed"));
        let words = [OsStr::new("follow"), url.as_ref(), place.as_ref(), "--once".as_ref()];
        let outcome = run(&mut tow(words)).expect_code(1);
        assert!(outcome.stderr.contains("ignores case"), "{}", outcome.stderr);
        let names = fs::read_dir(mount.join("followed")).expect("read").map(|entry| entry.expect("one").path());
        let files: Vec<_> = names.filter(|path| path.is_file() && !path.to_string_lossy().contains(".tow-")).collect();
        assert!(files.len() == 3 && files.iter().all(|path| is_whole(path)), "{files:?}");
    }
    drop(disk);
}
