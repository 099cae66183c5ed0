//! Paths that try to leave the served root, in both dialects. Nothing outside is sent, and the server continues.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::support::process::{Server, get, run, tow, unprivileged_tow};
use crate::support::tree::write;
use crate::support::wait_until;
use crate::support::wire::{Wire, parse_data_message};

const SECRET: &[u8] = b"this must never leave the machine";
const PUBLIC: &[u8] = b"anybody may read this";

/// A served folder beside a secret, with links that lead to it in several ways.
fn served_beside_a_secret() -> TempDir {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("inside/public"), PUBLIC);
    write(&folder.path().join("secret"), SECRET);
    write(&folder.path().join("secrets/secret"), SECRET);
    for (target, link) in [
        (folder.path().join("secret").as_path(), "absolute-link"),
        (Path::new("../secret"), "relative-link"),
        (Path::new("../../secret"), "inside/relative-link"),
        (Path::new("../secrets"), "folder-link"),
        (Path::new("/"), "slash"),
        (Path::new("inside/../../secret"), "winding-link"),
        (Path::new("/proc/self/root"), "magic-link"),
        (Path::new("link-to-link"), "loop"),
        (Path::new("loop"), "link-to-link"),
    ] {
        symlink(target, served.join(link)).expect("link");
    }
    folder
}

/// Paths out of the root, and invalid paths.
fn bad_paths(folder: &Path) -> Vec<Vec<u8>> {
    let outside = folder.to_str().expect("UTF-8").trim_start_matches('/');
    let texts = [
        "..",
        "../secret",
        "/../secret",
        "inside/../../secret",
        "inside/../inside/public",
        "./inside/public",
        "inside/./public",
        "inside//public",
        "inside/public/",
        "/inside/public",
        "../served/inside/public",
        &format!("/{outside}/secret"),
        &format!("//{outside}/secret"),
        &format!("slash/{outside}/secret"),
        &format!("magic-link/{outside}/secret"),
        "absolute-link",
        "relative-link",
        "inside/relative-link",
        "folder-link/secret",
        "winding-link",
        "loop",
        "inside/public\0",
        "\0",
        "inside/public/below-a-file",
        "missing",
        "inside/missing",
        &"n".repeat(256),
        &"n".repeat(4097),
        &"deep/".repeat(1000),
        &"x".repeat(1 << 20),
    ];
    let mut paths: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    paths.push(b"\xff\xfe/../secret".to_vec());
    paths
}

fn contains_secret(frames: &[Vec<u8>]) -> bool {
    frames.iter().any(|frame| frame.windows(SECRET.len()).any(|window| window == SECRET))
}

#[test]
fn the_plain_dialect_refuses_paths_that_leave_the_root() {
    let folder = served_beside_a_secret();
    let mut server = Server::start(&folder.path().join("served"));
    let mut wire = Wire::dealer(server.port());
    for path in bad_paths(folder.path()) {
        let shown = String::from_utf8_lossy(&path[..path.len().min(80)]).into_owned();
        for request in [vec![b"fetch", path.as_slice()], vec![b"fetch", path.as_slice(), b"0", b"100"]] {
            wire.send(&request).expect("send");
            let answer = wire.receive().expect("an answer");
            assert_eq!(answer.len(), 2, "{shown}: {answer:?}");
            assert_eq!(answer[0], b"error", "{shown}");
            assert!(std::str::from_utf8(&answer[1]).is_ok_and(|reason| !reason.is_empty()), "{shown}: {answer:?}");
        }
    }
    wire.send(&[b"fetch".as_slice(), b"inside/public", b"0", b"100"]).expect("send");
    assert_eq!(wire.receive().expect("an answer"), [PUBLIC]);
    server.expect_alive();
}

#[test]
fn fetch_refuses_paths_that_leave_the_root() {
    let folder = served_beside_a_secret();
    let mut server = Server::start(&folder.path().join("served"));
    let mut wire = Wire::dealer(server.port());
    for (id, path) in bad_paths(folder.path()).into_iter().enumerate() {
        let file = match std::str::from_utf8(&path) {
            Ok(text) => json!({ "path": text }),
            Err(_) => json!({"path_b64": base64(&path)}),
        };
        let shown = String::from_utf8_lossy(&path[..path.len().min(80)]).into_owned();
        let request = json!({"op": "fetch", "id": id, "credit_bytes": 1 << 20, "files": [file]});
        wire.request(&request).expect("send");
        let mut refused = false;
        loop {
            let frames = wire.receive().expect("an answer");
            assert!(!contains_secret(&frames), "{shown} gave the secret away");
            assert_eq!(frames[0], b"TOW1", "{shown} was answered with data");
            let answer: Value = serde_json::from_slice(&frames[1]).expect("JSON");
            if answer["id"] != json!(id) && !answer["id"].is_null() {
                continue;
            }
            refused |= answer["re"] == "error" || answer["files"][0]["error"].is_object();
            if answer["re"] == "error" || answer["re"] == "done" {
                break;
            }
        }
        assert!(refused, "{shown} was not refused");
    }
    server.expect_alive();
}

#[test]
fn path_b64_is_checked_like_path() {
    let folder = served_beside_a_secret();
    let server = Server::start(&folder.path().join("served"));
    let mut wire = Wire::dealer(server.port());
    for (id, file) in [
        json!({"path_b64": base64(b"../secret")}),
        json!({"path_b64": base64(b"/etc/passwd")}),
        json!({"path_b64": "not base64!"}),
        json!({"path_b64": 7}),
        json!({"path": 7}),
        json!({"path": null}),
        json!({}),
    ]
    .into_iter()
    .enumerate()
    {
        wire.request(&json!({"op": "fetch", "id": id, "credit_bytes": 1 << 20, "files": [file]})).expect("send");
        let answer = wire.control();
        let refused = answer["re"] == "error" || answer["files"][0]["error"].is_object();
        assert!(refused, "{file} was answered with {answer}");
        if answer["re"] == "files" {
            assert_eq!(wire.control()["re"], "done");
        }
    }
}

#[test]
fn listings_do_not_leave_the_root() {
    let folder = served_beside_a_secret();
    let mut server = Server::start(&folder.path().join("served"));
    let mut wire = Wire::dealer(server.port());
    let mut id = 0;
    for path in bad_paths(folder.path()) {
        let Ok(text) = std::str::from_utf8(&path) else {
            continue;
        };
        if ["absolute-link", "relative-link", "inside/relative-link", "winding-link", "loop"].contains(&text) {
            // A link may be listed: as a link.
            id += 1;
            let answer = wire.ask(&json!({"op": "list", "id": id, "path": text, "digest": true}));
            assert_eq!(answer["base"], "link", "{answer}");
            assert!(answer["entries"][0]["digest"].is_null(), "{answer}");
            continue;
        }
        for request in [json!({"path": text, "recursive": true}), json!({"glob": text, "recursive": true})] {
            id += 1;
            let mut request = request;
            request["op"] = "list".into();
            request["id"] = id.into();
            let answer = wire.ask(&request);
            let nothing = answer["re"] == "error" || answer["entries"].as_array().is_some_and(Vec::is_empty);
            assert!(nothing || request["glob"].is_string(), "{request} was answered with {answer}");
            assert!(!answer.to_string().contains("\"secret\""), "{answer}");
        }
    }
    let answer = wire.ask(&json!({"op": "list", "id": 9999, "path": "", "recursive": true, "digest": true}));
    let text = answer.to_string();
    assert!(!text.contains(&blake3::hash(SECRET).to_hex().to_string()), "a link was followed: {text}");
    assert!(!text.contains("folder-link/"), "a link was followed: {text}");
    server.expect_alive();
}

#[test]
fn links_out_of_the_root_bring_nothing_from_outside() {
    let folder = served_beside_a_secret();
    let server = Server::start(&folder.path().join("served"));
    let copy = folder.path().join("a/b/c/copy");
    let outcome = get(&server.url(""), &copy);
    assert!(matches!(outcome.status.code(), Some(0 | 1)), "{outcome:?}");
    assert_eq!(fs::read(copy.join("inside/public")).expect("read"), PUBLIC);
    for name in ["absolute-link", "relative-link", "folder-link", "slash", "magic-link", "inside/relative-link"] {
        let metadata = fs::symlink_metadata(copy.join(name));
        assert!(metadata.is_err(), "{name} leads out of the destination and was made");
    }
}

/// A folder becomes a link to outside again and again, between the server's check of a path and its open.
#[test]
fn link_swapped_in_while_serving_leaks_nothing() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("door/secret"), PUBLIC);
    write(&folder.path().join("outside/secret"), SECRET);
    symlink("../outside", served.join("spare-link")).expect("link");
    let mut server = Server::start(&served);
    let mut wire = Wire::dealer(server.port());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Bounded by the end of the requests below.
            while !over.load(Ordering::Relaxed) {
                let exchange = |from: &Path, to: &Path| {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags).expect("exchange");
                };
                exchange(&served.join("door"), &served.join("spare-link"));
            }
        });
        let mut given = 0;
        for id in 0..1500 {
            wire.send(&[b"fetch".as_slice(), b"door/secret", b"0", b"100"]).expect("send");
            let answer = wire.receive().expect("an answer");
            assert!(!contains_secret(&answer), "the secret was given away");
            given += usize::from(answer == [PUBLIC]);
            let fetch = json!({"op": "fetch", "id": id, "credit_bytes": 4096, "files": [{"path": "door/secret"}]});
            wire.request(&fetch).expect("send");
            loop {
                let frames = wire.receive().expect("an answer");
                assert!(!contains_secret(&frames), "the secret was given away");
                if frames[0].starts_with(b"TOWD") {
                    assert_eq!(parse_data_message(&frames).1[0].body, PUBLIC);
                    continue;
                }
                let answer: Value = serde_json::from_slice(&frames[1]).expect("JSON");
                if answer["re"] == "done" || answer["re"] == "error" {
                    break;
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(given > 0, "the file was never served: the test did not test anything");
    });
    server.expect_alive();
}

#[test]
fn unreadable_file_is_reported_and_others_served() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("a-readable"), PUBLIC);
    write(&served.join("b-unreadable"), SECRET);
    write(&served.join("c-closed/file"), SECRET);
    write(&served.join("d-readable"), PUBLIC);
    write(&served.join("e-search-only/file"), PUBLIC);
    fs::set_permissions(served.join("e-search-only"), fs::Permissions::from_mode(0o711)).expect("chmod");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::set_permissions(served.join("b-unreadable"), fs::Permissions::from_mode(0o000)).expect("chmod");
    fs::set_permissions(served.join("c-closed"), fs::Permissions::from_mode(0o000)).expect("chmod");
    let mut command = unprivileged_tow(folder.path(), [OsStr::new("serve"), served.as_ref()]);
    let mut server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]));

    let mut wire = Wire::dealer(server.port());
    wire.send(&[b"fetch".as_slice(), b"b-unreadable"]).expect("send");
    let answer = wire.receive().expect("an answer");
    assert_eq!((answer.len(), answer[0].as_slice()), (2, b"error".as_slice()));

    let one = get(&server.url("b-unreadable"), &folder.path().join("one")).expect_code(5);
    assert!(one.stderr.contains("b-unreadable"), "{}", one.stderr);
    assert_eq!((one.number("status"), &one.summary()["code"]), (5, &"refused".into()));
    assert!(!folder.path().join("one").exists());

    let copy = folder.path().join("copy");
    let all = get(&server.url(""), &copy).expect_code(1);
    assert!(all.stderr.contains("b-unreadable") && all.stderr.contains("c-closed"), "{}", all.stderr);
    assert_eq!(fs::read(copy.join("a-readable")).expect("read"), PUBLIC);
    assert_eq!(fs::read(copy.join("d-readable")).expect("read"), PUBLIC);
    assert!(!copy.join("b-unreadable").exists());
    assert_eq!(all.number("failed"), 3, "{}", all.stderr);

    // A closed directory may contain matches. Directories that can't aren't read.
    for (glob, failed) in
        [("{c,d,e}-*/file", 2), ("**/file", 2), ("[!ce]-*", 1), ("a-*{,/file}", 0), ("e-*/nothing", 1)]
    {
        let outcome = get(&server.url(glob), &folder.path().join("globbed"));
        let summary = outcome.summary();
        assert_eq!(summary["failed"], failed, "{glob}: {}", outcome.stderr);
    }
    let closed = run(&mut tow(["ls", &server.url("e-search-only")])).expect_code(5);
    assert!(closed.stderr.contains("permission"), "{}", closed.stderr);
    assert_eq!(get(&server.url("e-search-only/file"), &folder.path().join("found")).expect_code(0).number("files"), 1);
    server.expect_alive();
    // So that the folder can be removed.
    fs::set_permissions(served.join("c-closed"), fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::set_permissions(served.join("e-search-only"), fs::Permissions::from_mode(0o755)).expect("chmod");
}

/// Its path from the root is too long to be requested.
#[test]
fn too_deep_path_is_reported_and_the_rest_served() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("top"), b"content");
    let mut dir = File::open(&served).expect("open");
    let name = "d".repeat(250);
    for _ in 0..20 {
        mkdirat(&dir, &name, Mode::RWXU).expect("mkdir");
        dir = openat(&dir, &name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .expect("open")
            .into();
        drop(openat(&dir, "f", OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC, Mode::RWXU).expect("create"));
    }
    let server = Server::start(&served);
    let copy = folder.path().join("copy");
    for pattern in ["", "**"] {
        let outcome = get(&server.url(pattern), &copy).expect_code(1);
        assert!(outcome.stderr.contains("its path has over 4096 bytes: dddd"), "{}", outcome.stderr);
        assert_eq!(outcome.number("failed"), 1, "{}", outcome.summary());
        assert_eq!(fs::read(copy.join("top")).expect("read"), b"content");
        assert!(copy.join(&name).join("f").exists());
        fs::remove_dir_all(&copy).expect("remove");
    }
    run(&mut tow(["ls", "-r", &server.url("")])).expect_code(1);
}

#[test]
fn missing_file_is_reported() {
    let folder = tempdir().expect("a folder");
    write(&folder.path().join("here"), PUBLIC);
    let server = Server::start(folder.path());
    let outcome = get(&server.url("not-here"), &folder.path().join("copy")).expect_code(4);
    assert!(outcome.stderr.contains("not-here"), "{}", outcome.stderr);
    assert!(!folder.path().join("copy").exists());
}

#[test]
fn special_files_are_not_served_and_stall_no_one() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("file"), PUBLIC);
    let fifo = served.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o644.into(), 0).expect("mkfifo");
    let server = Server::start(&served);
    let mut wire = Wire::dealer(server.port());
    wire.send(&[b"fetch".as_slice(), b"fifo"]).expect("send");
    assert_eq!(wire.receive().expect("an answer")[0], b"error");
    let answer = wire.ask(&json!({"op": "fetch", "id": 1, "credit_bytes": 4096, "files": [{"path": "fifo"}]}));
    assert_eq!(answer["files"][0]["error"]["code"], "not-a-file", "{answer}");
    let copy = folder.path().join("copy");
    // The pipe is reported or skipped; the file arrives either way.
    let outcome = get(&server.url(""), &copy);
    assert!(matches!(outcome.status.code(), Some(0 | 1)), "{outcome:?}");
    assert_eq!(fs::read(copy.join("file")).expect("read"), PUBLIC);
    assert!(!copy.join("fifo").exists());
    // Nothing arrived, so nothing was verified.
    let outcome = get(&server.url("fifo"), &folder.path().join("nothing")).expect_code(1);
    assert_eq!(outcome.summary()["verified"], false, "{}", outcome.summary());
}

/// Characters that a terminal obeys or that reorder or hide text: none reaches a person's eyes.
#[test]
fn names_show_no_invisible_characters() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    let hidden =
        ['\u{1b}', '\u{9b}', '\u{85}', '\u{202e}', '\u{2066}', '\u{2028}', '\u{200b}', '\u{feff}', '\u{e0041}'];
    let name: String = hidden.iter().flat_map(|hidden| ['x', *hidden]).collect();
    write(&served.join(&name), b"content");
    symlink(&name, served.join("link")).expect("link");
    let server = Server::start(&served);
    let shows_none = |what: &str, bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        assert!(!text.contains(hidden), "{what}: {text:?}");
    };
    for options in [&[][..], &["--json"]] {
        let listed = run(tow(["ls", &server.url("")]).args(options)).expect_code(0);
        shows_none("ls", &listed.stdout);
    }
    let listed = run(tow(["ls", &server.url(&name)]).arg("--json")).expect_code(0);
    assert_eq!(listed.summary()["path"], name);
    let copy = folder.path().join("copy");
    get(&server.url(&name), &copy).expect_code(0);
    let missing = get(&server.url(&format!("{name}-missing")), &copy).expect_code(4);
    shows_none("standard error", missing.stderr.as_bytes());
    shows_none("standard output", &missing.stdout);
    wait_until("the file is confirmed", || server.log().contains("confirmed"));
    shows_none("log", server.log().as_bytes());
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
