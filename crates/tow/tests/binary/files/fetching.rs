//! Files, directories, globs and listings arrive as they are.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::tempdir;

use crate::support::process::{Server, get, get_command, run, tow};
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, digest, mixed, random_file, snapshot, write};

#[test]
fn file_arrives_with_contents_mode_and_mtime() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("served/report.bin");
    write(&source, b"");
    random_file(&source, 3_333_333, 1);
    fs::set_permissions(&source, fs::Permissions::from_mode(0o640)).expect("chmod");
    let mtime = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    File::options().write(true).open(&source).and_then(|file| file.set_modified(mtime)).expect("set the mtime");

    let server = Server::start(&folder.path().join("served"));
    let destination = folder.path().join("copy.bin");
    let outcome = get(&server.url("report.bin"), &destination).expect_code(0);

    assert_eq!(digest(&destination), digest(&source));
    let metadata = fs::metadata(&destination).expect("stat");
    assert_eq!(metadata.mode() & 0o7777, 0o640);
    assert_eq!(metadata.modified().expect("mtime"), mtime);
    assert_eq!(outcome.number("files"), 1);
    assert_eq!(outcome.number("bytes"), 3_333_333);
    assert!(outcome.number("received_bytes") >= 3_333_333, "{}", outcome.summary());
    assert_eq!(outcome.number("resumed_bytes"), 0);
    assert_eq!(outcome.summary()["verified"], Value::Bool(true));
    assert!(outcome.summary()["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
}

#[test]
fn single_served_file_needs_no_path() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("only.bin");
    random_file(&source, 70_000, 2);
    let server = Server::start(&source);
    let by_name = folder.path().join("by-name");
    get(&server.url("only.bin"), &by_name).expect_code(0);
    assert_eq!(digest(&by_name), digest(&source));
    let without = folder.path().join("without");
    get(server.endpoint(), &without).expect_code(0);
    assert_eq!(digest(&without), digest(&source));
    for url in [server.endpoint(), &server.url("")] {
        let outcome = run(&mut tow(["get", url, "-"])).expect_code(0);
        assert!(outcome.stdout == fs::read(&source).expect("the file"), "{url}");
    }
}

#[test]
fn tree_arrives_identical() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    mixed(&served, 150, 2);
    write(&served.join("empty file"), b"");
    fs::create_dir_all(served.join("empty/folder")).expect("mkdir");
    symlink("../large/0.bin", served.join("folder 1/link")).expect("link");
    symlink("nowhere", served.join("dangling")).expect("link");
    fs::set_permissions(served.join("empty"), fs::Permissions::from_mode(0o750)).expect("chmod");
    // Sticky directories stay so.
    fs::set_permissions(served.join("empty/folder"), fs::Permissions::from_mode(0o1755)).expect("chmod");
    fs::set_permissions(served.join("large/1.bin"), fs::Permissions::from_mode(0o755)).expect("chmod");

    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let outcome = get(&server.url(""), &copy).expect_code(0);
    assert_same(&served, &copy);
    assert_eq!(fs::metadata(copy.join("empty/folder")).expect("stat").mode() & 0o7777, 0o1755);
    assert_eq!(outcome.number("files"), 153);
    assert_eq!(outcome.summary()["verified"], Value::Bool(true));
}

#[test]
fn directory_below_the_root_arrives() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    mixed(&served, 30, 1);
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    get(&server.url("folder 3"), &copy).expect_code(0);
    assert_same(&served.join("folder 3"), &copy);
}

#[test]
fn empty_file_and_empty_directory_arrive() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("nothing"), b"");
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let outcome = get(&server.url("nothing"), &copy).expect_code(0);
    assert_eq!(fs::metadata(&copy).expect("stat").len(), 0);
    assert_eq!(outcome.number("bytes"), 0);

    fs::remove_file(served.join("nothing")).expect("remove");
    let tree = folder.path().join("tree");
    get(&server.url(""), &tree).expect_code(0);
    assert!(snapshot(&tree).is_empty());
}

#[test]
fn names_that_are_not_utf8_arrive() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    let name = OsStr::from_bytes(b"caf\xe9 \xff\x01.bin");
    random_file(&served.join("plain"), 10, 3);
    fs::write(served.join(name), b"bytes").expect("write");
    symlink(name, served.join(OsStr::from_bytes(b"\xfelink"))).expect("link");
    fs::create_dir(served.join(OsStr::from_bytes(b"\xf0dir"))).expect("mkdir");
    fs::write(served.join(OsStr::from_bytes(b"\xf0dir/\xf1")), b"below").expect("write");
    write(&served.join("Grüße/日本語.txt"), "UTF-8 too".as_bytes());

    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    get(&server.url(""), &copy).expect_code(0);
    assert_same(&served, &copy);
}

#[test]
fn awkward_but_valid_names_arrive() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    let names = [" ", "-", "--json", "a\\b", "quote\"'", "*", "[x]", "{a,b}", "...", "..a", "%2e%2e", "tab\tnewline\n"];
    for name in names {
        fs::create_dir_all(&served).expect("mkdir");
        fs::write(served.join(name), name).expect("write");
    }
    fs::write(served.join("n".repeat(255)), b"longest").expect("write");
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    get(&server.url(""), &copy).expect_code(0);
    assert_same(&served, &copy);
}

#[test]
fn glob_fetches_matching_files() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    for path in ["src/a.c", "src/a.h", "src/deep/b.c", "top.c", "other/x.txt"] {
        write(&served.join(path), path.as_bytes());
    }
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let outcome = get(&server.url("src/**/*.c"), &copy).expect_code(0);
    assert_eq!(outcome.number("files"), 2);
    let found = snapshot(&copy);
    let files: Vec<_> = found.keys().filter(|path| copy.join(path).is_file()).collect();
    assert_eq!(files.len(), 2, "{found:?}");
    assert!(files.iter().all(|path| path.extension() == Some(OsStr::new("c"))), "{found:?}");

    let none = folder.path().join("none");
    get(&server.url("*.nothing"), &none).expect_code(4);
}

#[test]
fn dash_writes_to_standard_output() {
    let folder = tempdir().expect("a folder");
    let source = folder.path().join("served/a.bin");
    write(&source, b"");
    let bytes = random_file(&source, 5_000_001, 4);
    let server = Server::start(&folder.path().join("served"));
    let outcome = run(&mut tow(["get", &server.url("a.bin"), "-"])).expect_code(0);
    assert!(outcome.stdout == bytes, "{} bytes came", outcome.stdout.len());
    let missing = run(&mut tow(["get", &server.url("b.bin"), "-"])).expect_code(4);
    assert!(missing.stdout.is_empty());
}

#[test]
fn second_get_transfers_nothing() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    mixed(&served, 60, 2);
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let first = get(&server.url(""), &copy).expect_code(0);
    assert!(first.number("received_bytes") > 8 << 20);
    let second = get(&server.url(""), &copy).expect_code(0);
    assert!(second.number("received_bytes") < 64 << 10, "{}", second.summary());
    assert_same(&served, &copy);

    // Only the changed file is transferred.
    random_file(&served.join("folder 2/small-9"), 5000, 77);
    let third = get(&server.url(""), &copy).expect_code(0);
    assert!(third.number("received_bytes") < 64 << 10, "{}", third.summary());
    assert_same(&served, &copy);
}

#[test]
fn many_small_files_and_deep_folders_arrive() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    // More files than one page of a listing or one fetch holds.
    for index in 0..6000_u32 {
        write(&served.join(format!("{}/{index}", index % 10)), &index.to_be_bytes());
    }
    write(&served.join("level/".repeat(250)).join("deep"), b"down here");
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let outcome = get(&server.url(""), &copy).expect_code(0);
    assert_eq!(outcome.number("files"), 6001);
    assert_same(&served, &copy);
}

#[test]
fn shorter_new_version_leaves_no_tail() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    let copy = folder.path().join("copy");
    write(&served.join("a"), b"");
    random_file(&served.join("a"), 3 << 20, 5);
    let server = Server::start(&served);
    get(&server.url("a"), &copy).expect_code(0);
    random_file(&served.join("a"), 1000, 6);
    get(&server.url("a"), &copy).expect_code(0);
    assert_eq!(digest(&copy), digest(&served.join("a")));
}

#[test]
fn sparse_file_over_4_gib_arrives_quickly_and_stays_sparse() {
    const SIZE: u64 = (4 << 30) + 12_345;
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    fs::create_dir(&served).expect("mkdir");
    let mut file = File::create(served.join("sparse")).expect("create");
    file.set_len(SIZE).expect("truncate");
    for offset in [0, 1 << 31, (1 << 32) - 10, SIZE - 100] {
        file.seek(SeekFrom::Start(offset)).expect("seek");
        file.write_all(b"here is data").expect("write");
    }
    drop(file);
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let outcome = get(&server.url("sparse"), &copy).expect_code(0);

    let metadata = fs::metadata(&copy).expect("stat");
    assert_eq!(metadata.len(), SIZE);
    assert!(metadata.blocks() * 512 < 64 << 20, "{} bytes are allocated", metadata.blocks() * 512);
    assert!(outcome.number("received_bytes") < 64 << 20, "{}", outcome.summary());
    let copied = File::open(&copy).expect("open");
    let mut bytes = [0; 12];
    for offset in [0, 1 << 31, (1 << 32) - 10, SIZE - 100] {
        copied.read_exact_at(&mut bytes, offset).expect("read");
        assert_eq!(&bytes, b"here is data", "at {offset}");
    }
}

#[test]
fn file_of_many_holes_stays_sparse() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    fs::create_dir(&served).expect("mkdir");
    let file = File::create(served.join("sparse")).expect("create");
    file.set_len(5_000 << 14).expect("truncate");
    for index in 0..5_000_u64 {
        file.write_all_at(format!("here is {index}").as_bytes(), index << 14).expect("write");
    }
    let before = file.metadata().expect("stat").blocks();
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let outcome = get(&server.url(""), &copy).expect_code(0);
    assert_same(&served, &copy);
    let after = fs::metadata(copy.join("sparse")).expect("stat").blocks();
    assert!(after < before + before / 4, "{after} blocks of {before}");
    assert!(outcome.number("received_bytes") < before * 512 * 5 / 4, "{}", outcome.summary());
}

#[test]
fn any_chunk_size_gives_the_same_file() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    random_file(&served.join("large.bin"), 9_999_999, 20);
    // Exactly one leaf, and one byte more.
    random_file(&served.join("leaf.bin"), 1 << 20, 21);
    random_file(&served.join("more.bin"), (1 << 20) + 1, 22);
    // After holes, pieces don't begin at a leaf.
    let sparse = File::create(served.join("sparse.bin")).expect("create");
    for (index, offset) in [300 << 10, 3_500 << 10, 5_000 << 10, 9_100 << 10].into_iter().enumerate() {
        let bytes = fs::read(served.join("more.bin")).expect("read");
        sparse.write_all_at(bytes.get(index..).unwrap_or_default(), offset).expect("write");
    }
    sparse.set_len(12_000_000).expect("set the length");

    let server = Server::start(&served);
    for (index, sizes) in [("3000000", "8M"), ("1048577", "2M"), ("4M", "4M"), ("100K", "1M")].into_iter().enumerate() {
        let copy = folder.path().join(index.to_string());
        let mut command = get_command(&server.url(""), &copy);
        command.args(["--chunk", sizes.0, "--window", sizes.1]);
        let outcome = run(&mut command).expect_code(0);
        assert_same(&served, &copy);
        assert_eq!(outcome.summary()["verified"], Value::Bool(true));
    }
}

#[test]
fn compressed_and_unverified_transfers_arrive() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("text"), "the same line, again and again\n".repeat(200_000).as_bytes());
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let outcome = run(get_command(&server.url("text"), &copy).arg("--zstd")).expect_code(0);
    assert_eq!(digest(&copy), digest(&served.join("text")));
    assert!(outcome.number("received_bytes") < outcome.number("bytes") / 10, "{}", outcome.summary());

    let unverified = folder.path().join("unverified");
    let outcome = run(get_command(&server.url("text"), &unverified).arg("--no-verify")).expect_code(0);
    assert_eq!(digest(&unverified), digest(&served.join("text")));
    assert_eq!(outcome.summary()["verified"], Value::Bool(false));
}

#[test]
fn escaped_wildcards_name_one_file() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("odd/we[1]ird*.txt"), b"contents");
    write(&served.join("odd/we1irder.txt"), b"another");
    let server = Server::start(&served);
    let url = server.url(r"odd/we\[1]ird\*.txt");
    let copy = folder.path().join("copy.txt");
    get(&url, &copy).expect_code(0);
    assert_eq!(fs::read(&copy).expect("a file"), b"contents");
    let output = run(&mut tow(["get", &url, "-"])).expect_code(0);
    assert_eq!(output.stdout, b"contents");
    let listed = run(&mut tow(["ls", &url])).expect_code(0);
    assert!(String::from_utf8_lossy(&listed.stdout).trim_end().ends_with("odd/we[1]ird*.txt"));
    // With one unescaped wildcard it is a glob, in which the escapes still hold.
    let copies = folder.path().join("copies");
    get(&server.url(r"odd/we\[1]*"), &copies).expect_code(0);
    assert_eq!(fs::read(copies.join("we[1]ird*.txt")).expect("a file"), b"contents");
    assert_eq!(fs::read_dir(&copies).expect("read").count(), 1);
}

#[test]
fn ls_prints_names_sizes_and_digests() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("sub/inner"), b"12345");
    let bytes = random_file(&served.join("top.bin"), 4321, 7);
    symlink("top.bin", served.join("link")).expect("link");
    let server = Server::start(&served);

    let text = run(&mut tow(["ls", &server.url("")])).expect_code(0);
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    assert!(text.contains("top.bin") && text.contains("sub") && text.contains("link"), "{text}");
    assert!(!text.contains('\x1b'), "no colours into a pipe: {text:?}");

    let digests = run(&mut tow(["ls", &server.url(""), "--digest", "--json"])).expect_code(0);
    let json = String::from_utf8(digests.stdout).expect("UTF-8");
    assert!(json.contains(&blake3::hash(&bytes).to_hex().to_string()), "{json}");
    assert!(json.contains("4321"), "{json}");

    run(&mut tow(["ls", &server.url("no-such-thing")])).expect_code(4);
}

#[test]
fn usage_errors_end_with_status_2() {
    for arguments in [
        vec!["get"],
        vec!["get", "http://127.0.0.1/"],
        vec!["get", "127.0.0.1/a"],
        vec!["get", "tcp://127.0.0.1:1/a", "--chunk", "1K"],
        vec!["get", "tcp://127.0.0.1:1/a", "--chunk", "5M"],
        vec!["get", "tcp://127.0.0.1:1/a", "--window", "0"],
        vec!["get", "tcp://127.0.0.1:1/a", "--window", "1M", "--chunk", "2M"],
        vec!["get", "tcp://127.0.0.1:1/a", "--timeout", "0"],
        vec!["get", "tcp://127.0.0.1:1/a", "--connect-timeout", "-1"],
        vec!["get", "tcp://127.0.0.1:1/a", "--timeout", "315360001"],
        vec!["get", "tcp://127.0.0.1:1/a", "--connect-timeout", "18446744073709551615"],
        vec!["ls", "tcp://127.0.0.1:1/a", "--timeout", "18446744073709551615"],
        vec!["call", "echo", "--count", "0"],
        vec!["call", "echo", "--count", "1", "--ahead", "0"],
        vec!["call", "echo", "--count", "1", "--clients", "0"],
        vec!["call", "echo", "--count", "1", "--size", "0"],
        vec!["call", "echo", "--count", "1", "--size", "65M"],
        vec!["call", "echo", "--count", "1000", "--size", "1", "--ahead", "257"],
        vec!["call", "echo", "--count", "1", "--clients", "65536"],
        vec!["call", "echo", "x", "--timeout", "-1"],
        vec!["broker", "--max-memory", "0"],
        vec!["broker", "--attempts", "0"],
        vec!["broker", "--max-waiting", "-1"],
        vec!["broker", "--grace", "-1"],
        vec!["serve", "/", "--bind", "carrier-pigeon://roof"],
        vec!["serve", "/", "--heartbeat", "0"],
        vec!["serve", "/", "--bind", "tcp://127.0.0.1:0", "--bind", "inproc://nobody"],
        vec!["broker", "--bind", "inproc://nobody"],
        vec!["ls", "tcp://"],
        vec!["frobnicate"],
    ] {
        let outcome = run(&mut tow(&arguments));
        assert_eq!(outcome.status.code(), Some(2), "tow {arguments:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.is_empty());
    }
}

#[test]
fn timeouts_of_ten_years_are_accepted() {
    let folder = tempdir().expect("a folder");
    write(&folder.path().join("served/a"), b"hello");
    let server = Server::start(&folder.path().join("served"));
    let copy = folder.path().join("copy");
    let output = OsStr::new("-");
    for (subcommand, destination) in [("get", Some(copy.as_os_str())), ("get", Some(output)), ("ls", None)] {
        let mut command = tow([subcommand]);
        command.arg(server.url("a")).args(destination);
        run(command.args(["--timeout", "315360000", "--connect-timeout", "315360000"])).expect_code(0);
    }
    assert_eq!(fs::read(copy).expect("the copy"), b"hello");
}

#[test]
fn file_goes_into_an_existing_directory() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("sub/name.bin"), b"contents");
    let server = Server::start(&served);
    let destination = folder.path().join("downloads");
    write(&destination.join("other"), b"stays");
    get(&server.url("sub/name.bin"), &destination).expect_code(0);
    assert_eq!(fs::read(destination.join("name.bin")).expect("read"), b"contents");
    assert_eq!(fs::read(destination.join("other")).expect("read"), b"stays");
}

#[test]
fn progress_bar_is_shown_on_terminals_only() {
    let folder = tempdir().expect("a folder");
    write(&folder.path().join("served/a"), b"");
    random_file(&folder.path().join("served/a"), 20 << 20, 8);
    let server = Server::start(&folder.path().join("served"));
    let proxy = Proxy::start(server.port());
    proxy.slow_down(20 << 20);

    let piped = run(&mut get_command(&proxy.url("a"), &folder.path().join("piped"))).expect_code(0);
    assert!(piped.stderr.is_empty(), "{:?}", piped.stderr);

    // script(1) gives it a terminal.
    let shell =
        format!("'{}' get {} '{}'", env!("CARGO_BIN_EXE_tow"), proxy.url("a"), folder.path().join("b").display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &shell, "/dev/null"]).stdin(Stdio::null());
    match script.output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            let shown = String::from_utf8_lossy(&output.stdout);
            assert!(shown.contains("MiB") && shown.contains('\r'), "no bar: {shown:?}");
            assert!(shown.contains("tow: 1 file, 20.00 MiB in") && shown.contains("/s, verified"), "{shown:?}");
        }
        Err(error) => println!("the half with a terminal is skipped: script: {error}"),
    }
}

/// Only errors sent by the server are reported as the server's.
#[test]
fn errors_found_by_the_client_are_not_blamed_on_the_server() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("sub/a"), b"a");
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    let get = |path: &str, destination: &Path| {
        let arguments = ["get".as_ref(), OsStr::new(&server.url(path)), destination.as_ref()].map(OsStr::to_owned);
        let outcome = run(&mut tow(arguments));
        assert!(matches!(outcome.status.code(), Some(1 | 4)), "{}: {}", outcome.status, outcome.stderr);
        outcome.stderr
    };
    let ls = |flag: &[&str]| run(tow(["ls", &server.url("**/*.gz")]).args(flag)).expect_code(4);
    for (reported, why) in [
        (get("**/*.gz", &copy), "nothing matches; to take * ? [ or { literally, put a \\ before it"),
        (ls(&[]).stderr, "nothing matches; to take * ? [ or { literally, put a \\ before it"),
        (ls(&["--json"]).stderr, "nothing matches"),
        (get("sub", Path::new("-")), "not a single file"),
        (get("sub/*", Path::new("-")), "a single file is needed"),
    ] {
        assert!(reported.contains(why) && !reported.contains("the server says"), "{reported}");
    }
    // No entry, and why.
    assert_eq!(ls(&["--json"]).summary()["code"], "not_found");
    let reported = get("missing", &copy);
    assert!(reported.contains("the server says: not found"), "{reported}");
}

#[test]
fn failures_name_paths_on_the_server() {
    let folder = tempdir().expect("a folder");
    let (served, copy) = (folder.path().join("served"), folder.path().join("copy"));
    write(&served.join("top/sub/dir/file"), b"a");
    symlink("file", served.join("top/sub/dir/link")).expect("a link");
    for name in ["dir/file", "dir/link"] {
        write(&copy.join(name).join("in the way"), b"");
    }
    let server = Server::start(&served);
    for source in ["top/sub", "top/sub/*"] {
        let summary = get(&server.url(source), &copy).expect_code(1).summary();
        let failures = summary["failures"].as_array().expect("failures").clone();
        let mut paths: Vec<_> = failures.iter().filter_map(|failure| failure["path"].as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["top/sub/dir/file", "top/sub/dir/link"], "{summary}");
    }
}

#[test]
fn only_the_first_warnings_are_printed() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("a"), b"a");
    for number in 0..33 {
        symlink("/", served.join(format!("link{number}"))).expect("a link");
    }
    let server = Server::start(&served);
    let outcome = get(&server.url(""), &folder.path().join("copy")).expect_code(0);
    assert_eq!(outcome.stderr.lines().filter(|line| line.contains("left out")).count(), 20, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("and 13 more"), "{}", outcome.stderr);
    assert_eq!(outcome.summary()["warnings"].as_array().map(Vec::len), Some(33));
}
