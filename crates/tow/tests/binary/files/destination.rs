//! Destinations that are full, closed, or something else already.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use tempfile::tempdir;

use crate::support::process::{Outcome, Process, Server, get, get_command, run, unprivileged_tow};
use crate::support::proxy::Proxy;
use crate::support::skip;
use crate::support::tree::{assert_same, digest, mixed, random_file, snapshot, write};

/// Runs a shell script with a tmpfs of this many MiB on `mount`, in a mount namespace of its own. `None`, and the test is
/// skipped, where neither root nor a user namespace may do that.
pub(super) fn with_small_disk(mount: &Path, mebibytes: u32, script: &str) -> Option<Outcome> {
    let options: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let works = |flags: &&&[&str]| {
        let mut probe = Command::new("unshare");
        probe.args(**flags).args(["mount", "-t", "tmpfs", "tmpfs"]).arg(mount);
        probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let Some(flags) = options.iter().find(works) else {
        skip("no tmpfs can be mounted here, neither by unshare --mount nor in a user namespace");
        return None;
    };
    let script = format!("mount -t tmpfs -o size={mebibytes}m tmpfs \"$1\" && {script}");
    let mut command = Command::new("unshare");
    command.args(*flags).args(["sh", "-c", &script, "sh"]).arg(mount).env("TOW", env!("CARGO_BIN_EXE_tow"));
    Some(run(&mut command))
}

#[test]
fn get_larger_than_the_disk_fails_at_once() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    let mount = folder.path().join("mount");
    fs::create_dir_all(&mount).expect("mkdir");
    write(&served.join("a"), b"");
    random_file(&served.join("a"), 24 << 20, 1);
    let server = Server::start(&served);
    let script = format!("\"$TOW\" get {} \"$1/copy\" --json; code=$?; ls -A \"$1\" >&2; exit $code", server.url("a"));
    let Some(outcome) = with_small_disk(&mount, 8, &script) else { return };
    let outcome = outcome.expect_code(1);
    assert!(outcome.stderr.to_lowercase().contains("space"), "{}", outcome.stderr);
    assert!(!outcome.stderr.lines().any(|line| line == "copy"), "{}", outcome.stderr);
}

/// The tree doesn't fit, or the disk fills up during the transfer; files that are there are complete.
#[test]
fn full_disk_leaves_only_complete_files() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    let mount = folder.path().join("mount");
    fs::create_dir_all(&mount).expect("mkdir");
    mixed(&served, 20, 4);
    let server = Server::start(&served);
    let survivors = folder.path().join("survivors");
    let script = format!(
        "\"$TOW\" get {} \"$1/copy\" --json; code=$?; [ ! -e \"$1/copy\" ] || cp -a \"$1/copy\" '{}'; exit $code",
        server.url(""),
        survivors.display()
    );
    let Some(outcome) = with_small_disk(&mount, 10, &script) else { return };
    let outcome = outcome.expect_code(1);
    assert!(outcome.stderr.to_lowercase().contains("space"), "{}", outcome.stderr);
    if survivors.exists() {
        for path in snapshot(&survivors).keys().filter(|path| !is_temporary(path)) {
            let (copy, source) = (survivors.join(path), served.join(path));
            assert!(source.exists(), "{} is not in the source", path.display());
            assert!(copy.is_dir() || digest(&copy) == digest(&source), "{} is not whole", path.display());
        }
    }
}

/// True for names of incomplete files.
fn is_temporary(path: &Path) -> bool {
    path.iter().any(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// EFBIG stands for every other write error.
#[test]
fn write_error_fails_the_get_and_installs_nothing() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("a"), b"");
    random_file(&served.join("a"), 24 << 20, 1);
    let mut server = Server::start(&served);
    let copy = folder.path().join("copy");
    // The signal is ignored, also across exec, so write() fails with EFBIG.
    let script = format!("trap '' XFSZ; ulimit -f 4096; exec \"$0\" get {} \"$1\" --json", server.url("a"));
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tow")]).arg(&copy);
    let outcome = run(&mut command).expect_code(1);
    assert!(!outcome.stderr.is_empty() && !outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    assert!(!copy.exists());
    // At most the credit was transferred.
    assert!(outcome.number("received_bytes") < 16 << 20, "{}", outcome.summary());
    // Without the limit it resumes.
    get(&server.url("a"), &copy).expect_code(0);
    assert_eq!(digest(&copy), digest(&served.join("a")));
    server.expect_alive();
}

#[test]
fn full_standard_output_fails_the_get() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("a"), 1 << 20, 1);
    let server = Server::start(folder.path());
    let mut command = Command::new("sh");
    let script = format!("exec \"$0\" get {} - > /dev/full", server.url("a"));
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tow")]);
    let outcome = run(&mut command).expect_code(1);
    assert!(!outcome.stderr.is_empty() && !outcome.stderr.contains("panicked"), "{}", outcome.stderr);
}

#[test]
fn unwritable_destination_is_reported() {
    let folder = tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let served = folder.path().join("served");
    write(&served.join("a"), b"contents");
    let server = Server::start(&served);
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).expect("mkdir");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).expect("chmod");
    for (url, destination) in [(server.url("a"), closed.join("copy")), (server.url(""), closed.join("tree"))] {
        let arguments = [OsStr::new("get"), url.as_ref(), destination.as_ref(), "--json".as_ref()];
        let outcome = run(&mut unprivileged_tow(folder.path(), arguments)).expect_code(1);
        assert!(outcome.stderr.to_lowercase().contains("permission denied"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(closed.to_str().expect("letters")), "{}", outcome.stderr);
        assert!(!destination.exists());
    }
    assert_eq!(fs::read_dir(&closed).expect("read").count(), 0);
}

/// The second fails at once and the first isn't disturbed. Other files may be fetched into the same place meanwhile.
#[test]
fn second_transfer_into_the_same_tree_is_refused() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    mixed(&served, 30, 3);
    write(&folder.path().join("served/other/b"), b"b");
    let server = Server::start(&served);
    let proxy = Proxy::start(server.port());
    proxy.hold_after(5 << 20);
    let mut first = Process::start(&mut get_command(&proxy.url(""), &copy));
    proxy.wait_held(&mut first);
    for _ in 0..2 {
        let second = get(&server.url(""), &copy).expect_code(1);
        assert!(second.stderr.contains("another transfer"), "{}", second.stderr);
        assert!(second.stderr.contains(copy.to_str().expect("letters")), "{}", second.stderr);
        assert!(second.stderr.contains("holds .tow-"), "{}", second.stderr);
        assert_eq!(second.number("received_bytes"), 0);
    }
    get(&server.url("other"), &copy).expect_code(0);
    proxy.release();
    first.finish().expect_code(0);
    assert_eq!(fs::read(copy.join("b")).expect("read"), b"b");
    fs::remove_file(copy.join("b")).expect("remove");
    assert_same(&served, &copy);

    // A killed transfer holds no lock.
    fs::remove_dir_all(&copy).expect("remove");
    proxy.hold_after(5 << 20);
    let mut killed = Process::start(&mut get_command(&proxy.url(""), &copy));
    proxy.wait_held(&mut killed);
    drop(killed);
    get(&server.url(""), &copy).expect_code(0);
    assert_same(&served, &copy);
}

/// The destination is checked before the file is fetched, for any destination and size.
#[test]
fn file_that_cannot_be_written_is_not_fetched() {
    let folder = tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let served = folder.path().join("served");
    for name in ["large", "sub/large", "small"] {
        write(&served.join(name), b"");
        random_file(&served.join(name), if name == "small" { 5000 } else { 3 << 20 }, 1);
    }
    let server = Server::start(&served);
    // One of them is empty, the other isn't.
    let (empty, closed) = (folder.path().join("empty"), folder.path().join("closed"));
    fs::create_dir(&empty).expect("mkdir");
    write(&closed.join("mine"), b"mine");
    for dir in [&empty, &closed] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o555)).expect("chmod");
        for source in ["large", "small", "", "**/large"] {
            let url = server.url(source);
            let arguments = [OsStr::new("get"), url.as_ref(), dir.as_ref(), "--json".as_ref()];
            let outcome = run(&mut unprivileged_tow(folder.path(), arguments)).expect_code(1);
            assert!(outcome.stderr.contains("cannot write into"), "{source}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(dir.to_str().expect("letters")), "{source}: {}", outcome.stderr);
            assert_eq!(outcome.number("received_bytes"), 0, "{source}: {}", outcome.stderr);
        }
    }
}

#[test]
fn tree_into_a_file_is_refused() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    mixed(&served, 5, 0);
    let server = Server::start(&served);
    let destination = folder.path().join("file");
    write(&destination, b"precious");
    let outcome = get(&server.url(""), &destination).expect_code(1);
    assert!(!outcome.stderr.is_empty());
    assert_eq!(fs::read(&destination).expect("read"), b"precious");
}

/// The directory's contents are not touched.
#[test]
fn file_does_not_replace_a_directory() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("a/b"), b"a file here");
    write(&served.join("z"), b"last");
    symlink("z", served.join("link")).expect("link");
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    write(&copy.join("a/b/precious"), b"do not touch");
    write(&copy.join("link/precious"), b"nor this");
    let outcome = get(&server.url(""), &copy).expect_code(1);
    assert!(outcome.stderr.contains("a/b") && outcome.stderr.contains("link"), "{}", outcome.stderr);
    let names = |folder: &Path| -> Vec<_> {
        fs::read_dir(folder).expect("read").map(|entry| entry.expect("an entry").file_name()).collect()
    };
    assert_eq!((names(&copy.join("a")).len(), names(&copy).len()), (1, 3), "nothing else is left: {:?}", names(&copy));
    assert_eq!(fs::read(copy.join("a/b/precious")).expect("read"), b"do not touch");
    assert_eq!(fs::read(copy.join("z")).expect("read"), b"last", "the others arrive");
}

/// Neither directly nor through a link such as /dev/stdout.
#[test]
fn device_or_pipe_is_not_replaced() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    for name in ["a", "folder/inner"] {
        write(&served.join(name), b"contents");
    }
    symlink("a", served.join("link")).expect("link");
    let server = Server::start(&served);
    let (pipe, to_pipe) = (folder.path().join("pipe"), folder.path().join("to-pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    symlink("pipe", &to_pipe).expect("link");
    for source in ["a", "link"] {
        for destination in [&pipe, &to_pipe] {
            let outcome = get(&server.url(source), destination).expect_code(1);
            assert!(
                outcome.stderr.contains("in the way") || outcome.stderr.contains("is a link to pipe"),
                "{}",
                outcome.stderr
            );
            assert_eq!(outcome.number("received_bytes"), 0);
        }
    }
    // The same within a tree.
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).expect("mkdir");
    for name in ["a", "folder", "link"] {
        assert!(Command::new("mkfifo").arg(copy.join(name)).status().expect("mkfifo").success());
    }
    let outcome = get(&server.url(""), &copy).expect_code(1);
    assert!(outcome.stderr.contains("in the way"), "{}", outcome.stderr);
    let is_pipe = |path: &Path| path.symlink_metadata().is_ok_and(|there| there.file_type().is_fifo());
    let pipes = [pipe, copy.join("a"), copy.join("folder"), copy.join("link")];
    assert!(pipes.iter().all(|path| is_pipe(path)));
    assert_eq!(fs::read_link(&to_pipe).expect("a link"), Path::new("pipe"));
    // A link to a file is replaced itself.
    let (mine, to_mine) = (folder.path().join("mine"), folder.path().join("to-mine"));
    write(&mine, b"mine");
    symlink("mine", &to_mine).expect("link");
    get(&server.url("a"), &to_mine).expect_code(0);
    assert_eq!(
        (fs::read(&to_mine).expect("read"), fs::read(&mine).expect("read")),
        (b"contents".to_vec(), b"mine".to_vec())
    );
}

/// A private directory stays private.
#[test]
fn new_directory_gets_mode_and_time_of_its_source() {
    let folder = tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let served = folder.path().join("served");
    write(&served.join("private/sub/a"), b"contents");
    write(&served.join("closed/a"), b"contents");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let set = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
        fs::File::open(path).and_then(|dir| dir.set_modified(long_ago)).expect("set the time");
    };
    for (name, mode) in [("private", 0o700), ("closed", 0o555), ("", 0o750)] {
        set(&served.join(name), mode);
    }
    let server = Server::start(&served);
    let is = |path: &Path| {
        let metadata = fs::metadata(path).expect("stat");
        (metadata.mode() & 0o7777, metadata.modified().expect("a time"))
    };
    let copies = folder.path().join("copies");
    fs::create_dir(&copies).expect("mkdir");
    fs::set_permissions(&copies, fs::Permissions::from_mode(0o777)).expect("chmod");
    // The second get finds the directories of the first one.
    for _ in 0..2 {
        for (source, name, mode) in [("private", "new/private", 0o700), ("closed", "closed", 0o555), ("", "all", 0o750)]
        {
            let copy = copies.join(name);
            // Each round changes something, also in the closed directory.
            let _ = fs::remove_file(copy.join("a"));
            get(&server.url(source), &copy).expect_code(0);
            assert_eq!(is(&copy), (mode, long_ago), "{name}");
        }
        assert_same(&served, &copies.join("all"));
    }
    // As a user without root's rights.
    for bytes in [&b"contents"[..], b"others"] {
        set(&served.join("closed"), 0o755);
        write(&served.join("closed/a"), bytes);
        set(&served.join("closed"), 0o555);
        let (url, copy) = (server.url("closed"), copies.join("unprivileged"));
        let arguments = [OsStr::new("get"), url.as_ref(), copy.as_ref(), "--json".as_ref()];
        run(&mut unprivileged_tow(folder.path(), arguments)).expect_code(0);
        assert_eq!(is(&copy), (0o555, long_ago));
        assert_eq!(fs::read(copy.join("a")).expect("read"), bytes);
    }
    // An existing directory keeps its mode.
    let mine = copies.join("mine");
    write(&mine.join("mine"), b"mine");
    set(&mine, 0o755);
    get(&server.url("private"), &mine).expect_code(0);
    assert_eq!(is(&mine), (0o755, long_ago));
    get(&server.url("priv*"), &copies.join("glob")).expect_code(0);
    assert_eq!(is(&copies.join("glob/private")), (0o700, long_ago));
}

/// The next transfer adds the owner's permissions that it needs.
#[test]
fn directory_without_owner_permissions_can_be_updated() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can serve what may not be read");
    }
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copies/all"));
    let set = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
    fs::create_dir(folder.path().join("copies")).expect("mkdir");
    set(folder.path(), 0o755);
    set(&folder.path().join("copies"), 0o777);
    for mode in [0o000, 0o200, 0o300, 0o400] {
        let dir = served.join(format!("dir-{mode:03o}"));
        write(&dir.join("sub/file"), b"below");
        write(&served.join(format!("file-{mode:03o}")), b"contents");
        set(&dir, mode);
        set(&served.join(format!("file-{mode:03o}")), mode);
    }
    let server = Server::start(&served);
    let url = server.url("");
    let arguments = [OsStr::new("get"), url.as_ref(), copy.as_ref(), "--json".as_ref()];
    let update = || run(&mut unprivileged_tow(folder.path(), arguments)).expect_code(0);
    assert_eq!(update().number("skipped"), 0);
    assert_eq!(update().number("skipped"), 8);
    for mode in [0o000, 0o200] {
        set(&served.join(format!("file-{mode:03o}")), 0o640);
        set(&served.join(format!("dir-{mode:03o}")), 0o750);
    }
    assert_eq!(update().number("skipped"), 8);
    assert_same(&served, &copy);
    write(&served.join("dir-300/sub/file"), b"other contents");
    write(&served.join("file-300"), b"other contents");
    assert_eq!(update().number("skipped"), 6);
    assert_same(&served, &copy);
}

/// Between two gets, each type of entry becomes each other type.
#[test]
fn changed_types_are_followed_except_nonempty_directories() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    for name in ["file-to-directory", "file-to-link", "directory-to-file/x", "directory-to-link/x"] {
        write(&served.join(name), b"before");
    }
    fs::create_dir(served.join("empty-to-file")).expect("mkdir");
    for name in ["link-to-file", "link-to-directory"] {
        symlink("file-to-directory", served.join(name)).expect("link");
    }
    let server = Server::start(&served);
    get(&server.url(""), &copy).expect_code(0);
    assert_same(&served, &copy);

    fs::remove_dir_all(&served).expect("remove");
    for name in ["file-to-directory/y", "link-to-directory/y", "link-to-file", "directory-to-file", "empty-to-file"] {
        write(&served.join(name), b"after");
    }
    for name in ["file-to-link", "directory-to-link"] {
        symlink("link-to-file", served.join(name)).expect("link");
    }
    // Another folder is served now.
    let server = Server::start(&served);
    let outcome = get(&server.url(""), &copy).expect_code(1);
    for name in ["directory-to-file", "directory-to-link"] {
        assert!(outcome.stderr.contains(name), "{}", outcome.stderr);
        assert_eq!(fs::read(copy.join(name).join("x")).expect("read"), b"before");
        fs::remove_dir_all(copy.join(name)).expect("remove");
    }
    get(&server.url(""), &copy).expect_code(0);
    assert_same(&served, &copy);
}

#[test]
fn other_files_in_the_destination_stay() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    mixed(&served, 10, 0);
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    write(&copy.join("mine"), b"mine");
    get(&server.url(""), &copy).expect_code(0);
    assert_eq!(fs::read(copy.join("mine")).expect("read"), b"mine");
    fs::remove_file(copy.join("mine")).expect("remove");
    assert_same(&served, &copy);
}

#[test]
fn sparse_file_needs_space_for_its_data_only() {
    let folder = tempdir().expect("a folder");
    let (served, mount) = (folder.path().join("served"), folder.path().join("mount"));
    fs::create_dir_all(&mount).expect("mkdir");
    let bytes = random_file(&served.join("sparse"), 2 << 20, 1);
    let sparse = fs::OpenOptions::new().write(true).open(served.join("sparse")).expect("open");
    sparse.write_all_at(&bytes, 40 << 20).expect("write");
    sparse.set_len(64 << 20).expect("set the length");
    // Bytes just written may not be allocated on the disk yet.
    sparse.sync_all().expect("sync");
    let server = Server::start(&served);
    let script = format!(
        "\"$TOW\" get {} \"$1/copy\" && cmp \"$1/copy\" {}",
        server.url("sparse"),
        served.join("sparse").display()
    );
    let Some(outcome) = with_small_disk(&mount, 8, &script) else { return };
    outcome.expect_code(0);
}

/// A command that runs `tow get` to `copy` with these options of strace. `None`, and the test is skipped, where it can't be used.
fn traced(trace: &Path, options: &[&str], url: &str, copy: &Path) -> Option<Command> {
    let probe = Command::new("strace").args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("skipped: strace can't be used here");
        return None;
    }
    let get = get_command(url, copy);
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o"]).arg(trace).args(options).arg(get.get_program()).args(get.get_args());
    Some(traced)
}

/// A file without a name can't be given one everywhere.
#[test]
fn small_file_arrives_where_links_are_forbidden() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    write(&served.join("a"), b"contents");
    let server = Server::start(&served);
    let options = ["-e", "trace=linkat", "-e", "inject=linkat:error=EPERM"];
    let Some(mut traced) = traced(&folder.path().join("trace"), &options, &server.url(""), &copy) else { return };
    run(&mut traced).expect_code(0);
    assert_same(&served, &copy);
}

/// strace makes the disk look as if it were another one.
#[test]
fn no_space_is_reserved_where_the_file_system_copies_on_write() {
    let folder = tempdir().expect("a folder");
    let bytes = random_file(&folder.path().join("served/large.bin"), 3 << 20, 1);
    let server = Server::start(&folder.path().join("served"));
    let ext4 = "53ef000000000000";
    for (system, reserves) in
        [(ext4, true), ("3e68239100000000", false), ("c12fc12f00000000", false), ("4e1a45ca00000000", false)]
    {
        let (trace, copy) = (folder.path().join("trace"), folder.path().join(system));
        let inject = format!("inject=fstatfs:poke_exit=@arg2={system}");
        let options = ["-e", "trace=fallocate,fstatfs", "-e", &inject];
        let Some(mut traced) = traced(&trace, &options, &server.url("large.bin"), &copy) else { return };
        run(&mut traced).expect_code(0);
        assert!(fs::read(&copy).expect("read") == bytes);
        let trace = fs::read_to_string(&trace).expect("the trace");
        assert_eq!(trace.contains("fallocate("), reserves, "{system}: {trace}");
    }
}

#[test]
fn file_size_limit_is_an_error_not_a_signal() {
    let folder = tempdir().expect("a folder");
    let bytes = random_file(&folder.path().join("served/large.bin"), 6 << 20, 1);
    let server = Server::start(&folder.path().join("served"));
    let copy = folder.path().join("copy");
    for (kibibytes, code) in [("2048", 1), ("unlimited", 0)] {
        let mut limited = Command::new("bash");
        limited.args(["-c", "ulimit -f $0 && exec \"$@\"", kibibytes]);
        let get = get_command(&server.url("large.bin"), &copy);
        let outcome = run(limited.arg(get.get_program()).args(get.get_args()));
        let outcome = outcome.expect_code(code);
        assert_eq!(code == 1, outcome.stderr.contains("large.bin: "), "{}", outcome.stderr);
        assert_eq!(code == 1, outcome.stderr.contains("File too large"), "{}", outcome.stderr);
    }
    assert!(fs::read(&copy).expect("read") == bytes);
}
