//! Files that another user has put where this one writes. That user may keep them open, and lock them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use tempfile::{TempDir, tempdir};

use crate::support::process::{Process, Server, get, get_command, run, tow, unprivileged_tow};
use crate::support::proxy::Proxy;
use crate::support::tree::{digest, random_file, write};
use crate::support::{skip, wait_until};

/// Not root, and not the user of unprivileged runs.
const OTHER: u32 = 12_345;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

/// Names of the partial file and its state for a file of this name.
fn partial_names(folder: &Path, name: &[u8]) -> (PathBuf, PathBuf) {
    let hash = blake3::hash(name).to_hex();
    let path = |suffix: &str| folder.join(format!(".tow-{}.{suffix}", &hash[..16]));
    (path("part"), path("state"))
}

/// A folder for everybody, with files to fetch beside it. `None`, and the test is skipped, if files can't be given away.
fn shared() -> Option<(TempDir, PathBuf, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can give files away");
        return None;
    }
    let folder = tempdir().expect("a folder");
    chmod(folder.path(), 0o755);
    let (served, shared) = (folder.path().join("served"), folder.path().join("shared"));
    fs::create_dir_all(&shared).expect("mkdir");
    chmod(&shared, 0o1777);
    random_file_at(&served.join("large"), 3 << 20);
    random_file_at(&served.join("small"), 5000);
    Some((folder, served, shared))
}

fn random_file_at(path: &Path, size: usize) {
    write(path, b"");
    random_file(path, size, size as u64);
}

/// Puts a file of another user there, which that user has locked, and could write into later.
fn plant(path: &Path, content: &[u8]) -> File {
    let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(path).expect("create");
    file.write_all(content).expect("write");
    flock(&file, FlockOperation::NonBlockingLockExclusive).expect("lock");
    chmod(path, 0o666);
    chown(path, Some(OTHER), Some(OTHER)).expect("chown");
    file
}

/// Of an interrupted transfer, say, that wasn't this user's.
#[test]
fn partial_file_of_another_user_is_not_resumed() {
    let Some((_folder, served, shared)) = shared() else { return };
    let server = Server::start(&served);
    let (part, state) = partial_names(&shared, b"large");
    for foreign in [vec![&part, &state], vec![&part], vec![&state]] {
        let proxy = Proxy::start(server.port());
        proxy.hold_after(2 << 20);
        let interrupted = Process::start(&mut get_command(&proxy.url("large"), &shared.join("large")));
        wait_until("a leaf is recorded", || fs::metadata(&state).is_ok_and(|state| state.len() > 104));
        drop(interrupted);
        let opened = OpenOptions::new().write(true).open(&part).expect("its partial file");
        for path in &foreign {
            chown(path, Some(OTHER), Some(OTHER)).expect("chown");
        }
        let is_part_foreign = foreign.contains(&&part);
        if is_part_foreign {
            flock(&opened, FlockOperation::NonBlockingLockExclusive).expect("lock");
        }
        let outcome = get(&server.url("large"), &shared.join("large")).expect_code(0);
        assert_eq!(outcome.number("resumed_bytes"), 0);
        assert!(outcome.stderr.contains("not this user's alone"), "{}", outcome.stderr);
        if is_part_foreign {
            opened.write_all_at(b"evil", 0).expect("the other user writes");
        }
        assert_eq!(digest(&shared.join("large")), digest(&served.join("large")));
        assert_eq!(fs::metadata(shared.join("large")).expect("stat").uid(), 0);
        assert!(!part.exists() && !state.exists());
        fs::remove_file(shared.join("large")).expect("remove");
    }
}

/// Whatever has the names of partial files and of the lock of a tree.
#[test]
fn names_taken_by_another_user_stop_no_transfer() {
    let Some((folder, served, shared)) = shared() else { return };
    let server = Server::start(&served);
    write(&folder.path().join("precious"), b"precious");
    let (lock, _) = partial_names(&shared, b"/path/");
    let names = |name: &str| partial_names(&shared, name.as_bytes());
    for what in ["files", "links", "hard links", "writable", "folders"] {
        let mut planted = vec![plant(&lock, b"")];
        for name in ["large", "small", "link"] {
            for path in [names(name).0, names(name).1] {
                match what {
                    "files" => planted.push(plant(&path, b"planted")),
                    "links" => symlink("../precious", &path).expect("link"),
                    "hard links" => fs::hard_link(folder.path().join("precious"), &path).expect("link"),
                    "writable" => {
                        write(&path, b"mine, but for everybody");
                        chmod(&path, 0o666);
                    }
                    _ => fs::create_dir(&path).expect("mkdir"),
                }
            }
        }
        // Installed by way of the partial file's name.
        write(&shared.join("small"), b"before");
        let outcome = get(&server.url(""), &shared).expect_code(0);
        for name in ["large", "small"] {
            assert_eq!(digest(&shared.join(name)), digest(&served.join(name)), "{what}");
            assert_eq!(fs::metadata(shared.join(name)).expect("stat").nlink(), 1, "{what}");
        }
        assert!(outcome.stderr.contains("not this user's alone"), "{what}: {}", outcome.stderr);
        assert_eq!(fs::read(folder.path().join("precious")).expect("read"), b"precious", "{what}");
        fs::remove_dir_all(&shared).expect("remove");
        fs::create_dir(&shared).expect("mkdir");
        chmod(&shared, 0o1777);
    }
}

/// In a sticky directory they can't even be removed.
#[test]
fn names_that_cannot_be_freed_are_avoided() {
    let Some((folder, served, shared)) = shared() else { return };
    symlink("small", served.join("link")).expect("link");
    let server = Server::start(&served);
    let mut planted = Vec::new();
    for name in [&b"large"[..], b"small", b"link", b"/path/"] {
        let (part, state) = partial_names(&shared, name);
        planted.extend([(part.clone(), plant(&part, b"planted")), (state.clone(), plant(&state, b"planted"))]);
    }
    // Only the state of another one.
    for source in ["", "", "large"] {
        let copy = if source.is_empty() { shared.clone() } else { shared.join("copied") };
        if source == "large" {
            let (_, state) = partial_names(&shared, b"copied");
            planted.push((state.clone(), plant(&state, b"planted")));
        } else {
            let _ = fs::remove_file(shared.join("large"));
        }
        let url = server.url(source);
        let mut command = unprivileged_tow(
            folder.path(),
            [b"get", url.as_bytes(), copy.as_os_str().as_bytes()].map(std::ffi::OsStr::from_bytes),
        );
        let outcome = run(command.arg("--json")).expect_code(0);
        assert!(outcome.stderr.contains("not this user's alone"), "{}", outcome.stderr);
        assert_eq!(outcome.number("failed"), 0);
    }
    for name in ["large", "small"] {
        assert_eq!(digest(&shared.join(name)), digest(&served.join(name)));
    }
    assert_eq!(fs::read_link(shared.join("link")).expect("a link"), Path::new("small"));
    for (path, _) in &planted {
        assert_eq!(fs::read(path).expect("it is still there"), b"planted");
    }
    let left = fs::read_dir(&shared).expect("read").count();
    assert_eq!(left, planted.len() + 4, "no partial file is left");
}

/// Size and time are easily made right, and a user who has it open can go on writing.
#[test]
fn file_of_another_user_is_replaced_not_skipped() {
    let Some((_folder, served, shared)) = shared() else { return };
    let server = Server::start(&served);
    for name in ["large", "small"] {
        let source = served.join(name);
        let modified = fs::metadata(&source).and_then(|metadata| metadata.modified()).expect("a time");
        let planted = plant(&shared.join(name), &fs::read(&source).expect("read"));
        planted.set_modified(modified).expect("set the time");
        let outcome = get(&server.url(name), &shared.join(name)).expect_code(0);
        assert_eq!((outcome.number("skipped"), outcome.number("verified_files")), (0, 1), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("of another user was replaced"), "{}", outcome.stderr);
        planted.write_all_at(b"evil", 0).expect("the other user writes");
        assert_eq!(digest(&shared.join(name)), digest(&source));
        assert_eq!(get(&server.url(name), &shared.join(name)).expect_code(0).number("skipped"), 1);
    }
}

/// A user who can write to it could say what the digests are.
#[test]
fn digest_file_of_another_user_is_not_used() {
    let Some((_folder, served, shared)) = shared() else { return };
    let path = shared.join("digests");
    for what in ["a file", "a link"] {
        let planted = match what {
            "a file" => Some(plant(&path, b"TOWDIG2\n")),
            _ => {
                symlink("target", &path).expect("link");
                assert!(Command::new("chown").args(["-h", "12345"]).arg(&path).status().expect("chown").success());
                None
            }
        };
        let mut command =
            tow([std::ffi::OsStr::new("serve"), served.as_ref(), "--digest-file".as_ref(), path.as_ref()]);
        let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]));
        get(&server.url("large"), &shared.join(what)).expect_code(0);
        assert!(server.log().contains("another user"), "{what}: {}", server.log());
        let own = fs::symlink_metadata(&path).expect("a file of digests");
        assert!(own.is_file() && own.uid() == 0, "{what}");
        assert!(!shared.join("target").exists());
        drop((server, planted));
        fs::remove_file(&path).expect("remove");
    }
}

/// A user who can write to it could say what was put there, and so what may be deleted.
#[test]
fn record_of_a_follower_that_is_another_users_is_not_used() {
    let Some((_folder, served, shared)) = shared() else { return };
    let serve =
        ["serve", served.to_str().expect("UTF-8"), "--watch", "--settle", "100ms", "--bind", "tcp://127.0.0.1:0"];
    let server = Server::from_command(&mut tow(serve));
    let record = partial_names(&shared, b"/path/").0.with_extension("follow");
    let _planted = plant(&record, b"TOWFOL1\n");
    let url = server.url("");
    let mut follow = tow(["follow", &url, shared.to_str().expect("UTF-8"), "--once"]);
    let outcome = run(follow.env("TOW_LOG", "warn")).expect_code(0);
    assert!(outcome.stderr.contains("not this user's alone"), "{}", outcome.stderr);
    assert_eq!(digest(&shared.join("large")), digest(&served.join("large")));
    assert_eq!(fs::metadata(&record).expect("a record").uid(), 0);
}

/// A user who can write into the destination could redirect them, or invent changes for the command.
#[test]
fn files_of_exec_that_are_another_users_are_not_used() {
    let Some((folder, served, shared)) = shared() else { return };
    chmod(&shared, 0o777);
    let serve =
        ["serve", served.to_str().expect("UTF-8"), "--watch", "--settle", "100ms", "--bind", "tcp://127.0.0.1:0"];
    let server = Server::from_command(&mut tow(serve));
    let precious = folder.path().join("precious");
    write(&precious, b"precious\n");
    let name = |suffix: &str| partial_names(&shared, b"/path/").0.with_extension(suffix);
    let reported = folder.path().join("reported");
    let command = format!("cat >> {}", reported.display());
    for what in ["a link", "a hard link", "a file"] {
        match what {
            "a link" => symlink("../precious", name("changes")).expect("link"),
            "a hard link" => fs::hard_link(&precious, name("changes")).expect("link"),
            _ => drop(plant(&name("changes"), b"forged\n")),
        }
        let _planted = plant(&name("acting"), b"forged\n");
        let mut follow =
            tow(["follow", &server.url(""), shared.to_str().expect("UTF-8"), "--once", "--exec", &command]);
        let outcome = run(&mut follow).expect_code(0);
        assert!(outcome.stderr.contains("isn't this user's alone"), "{what}: {}", outcome.stderr);
        assert_eq!(fs::read(&precious).expect("read"), b"precious\n", "{what}");
        let events = fs::read_to_string(&reported).unwrap_or_default();
        assert!(!events.contains("forged") && events.contains("\"small\""), "{what}: {events}");
        assert!(!name("changes").exists() && !name("acting").exists(), "{what}");
        fs::remove_file(&reported).expect("remove");
        fs::remove_dir_all(&shared).expect("remove");
        fs::create_dir(&shared).expect("mkdir");
        chmod(&shared, 0o777);
    }
}

/// A link would have a version written wherever it leads.
#[test]
fn place_of_a_version_that_is_another_users_is_not_used() {
    let Some((folder, served, shared)) = shared() else { return };
    let state = folder.path().join("state");
    let serve =
        ["serve", served.to_str().expect("UTF-8"), "--watch", "--settle", "100ms", "--bind", "tcp://127.0.0.1:0"];
    let server = Server::from_command(tow(serve).arg("--state").arg(&state).arg("--accept-publish"));
    wait_until("it is published", || run(&mut tow(["publish", &server.url(""), "v1"])).status.success());
    let url = server.url("");
    let follow = |to: &Path| run(tow(["follow", &url, "--versions", "--once"]).arg(to));
    let first = folder.path().join("first");
    follow(&first).expect_code(0);
    let name = fs::read_link(first.join("current")).expect("a link");
    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("mkdir");
    for place in [name.clone(), Path::new(&format!(".{}.new", name.display())).to_owned()] {
        symlink("../elsewhere", shared.join(&place)).expect("link");
        let outcome = follow(&shared).expect_code(1);
        assert!(outcome.stderr.contains("no directory of this user's"), "{}", outcome.stderr);
        assert_eq!(fs::read_dir(&elsewhere).expect("read").count(), 0);
        fs::remove_file(shared.join(&place)).expect("remove");
    }
    follow(&shared).expect_code(0);
}

/// Its owner knows it.
#[test]
fn token_of_another_user_is_refused() {
    let Some((folder, served, _)) = shared() else { return };
    let token = folder.path().join("admin.token");
    fs::write(&token, "0123456789012345678901234567890123456789\n").expect("write");
    chmod(&token, 0o600);
    chown(&token, Some(OTHER), Some(OTHER)).expect("chown");
    let mut serve =
        tow([std::ffi::OsStr::new("serve"), served.as_ref(), "--admin-token-file".as_ref(), token.as_ref()]);
    let outcome = run(serve.args(["--admin", "127.0.0.1:0", "--bind", "tcp://127.0.0.1:0"])).expect_code(1);
    assert!(outcome.stderr.contains("another user's"), "{}", outcome.stderr);
}
