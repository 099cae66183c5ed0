//! Files that are there for nobody: of transfers in progress, and secrets; and what rules hide under other spellings.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::tempdir;
use towpath_slow_disk::WritableDisk;

use crate::support::process::{Server, get, run, tow};
use crate::support::tree::{write, write_secret};
use crate::support::wait_until;
use crate::support::wire::{Piece, Wire, data_message};

const PART: &str = ".tow-0123456789abcdef.part";

fn serve(path: &Path) -> Command {
    let mut command = tow([OsStr::new("serve"), path.as_ref()]);
    command.args(["--bind", "tcp://127.0.0.1:0"]);
    command
}

fn paths(answer: &Value) -> Vec<&str> {
    let entries = answer["entries"].as_array().unwrap_or_else(|| panic!("{answer}"));
    entries.iter().map(|entry| entry["path"].as_str().expect("a path")).collect()
}

fn code(answer: &Value) -> &str {
    answer["code"].as_str().unwrap_or("none")
}

/// Asks for a file in its whole.
fn fetch(wire: &mut Wire, path: &str) -> Value {
    let request = json!({"op": "fetch", "id": 3, "credit_bytes": 100_000, "files": [{"path": path}]});
    let answer = wire.ask(&request)["files"][0].clone();
    while wire.receive().expect("done").last().is_none_or(|frame| !frame.windows(4).any(|word| word == b"done")) {}
    answer
}

fn push(id: u32, path: &str, bytes: &[u8], condition: Option<Value>) -> Value {
    let digest = blake3::hash(bytes).to_hex().to_string();
    let mut request = json!({"op": "push", "id": id, "path": path, "size": bytes.len(), "mtime": [1, 0], "mode": 420, "digest": digest});
    if let Some(condition) = condition {
        request["if"] = condition;
    }
    request
}

#[test]
fn incomplete_files_are_there_for_nobody() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    for name in ["in/a", &format!("in/{PART}"), "in/.tow-0123456789abcdef.follow", "in/.tow-notes"] {
        write(&served.join(name), b"secret");
    }
    write_secret(
        &folder.path().join("rules"),
        "allow anyone to read **\nallow anyone to push in\ndeny anyone to list in/b\n",
    );
    let rules = folder.path().join("rules");
    let digest = blake3::hash(b"secret").to_hex().to_string();
    for with_rules in [false, true] {
        let mut command = serve(&served);
        command.args(["--accept-push", "in"]);
        if with_rules {
            command.arg("--rules").arg(&rules);
        }
        let server = Server::from_command(&mut command);
        let mut wire = Wire::dealer(server.port());
        let seen = ["in", "in/.tow-notes", "in/a"];
        assert_eq!(paths(&wire.ask(&json!({"op": "list", "id": 1, "recursive": true, "digest": true}))), seen);
        assert_eq!(paths(&wire.ask(&json!({"op": "list", "id": 1, "glob": "**/.tow-*"}))), ["in/.tow-notes"]);
        for path in [format!("in/{PART}"), format!("in/{}", PART.to_uppercase())] {
            assert_eq!(code(&wire.ask(&json!({"op": "list", "id": 1, "path": path}))), "not-found");
            assert_eq!(fetch(&mut wire, &path)["error"]["code"], "not-found");
            assert_eq!(
                code(
                    &wire.ask(&json!({"op": "leaves", "id": 1, "path": path, "digest": digest, "from": 0, "count": 1}))
                ),
                "not-found"
            );
            assert_eq!(code(&wire.ask(&push(4, &path, b"x", Some(Value::Null)))), "denied");
            // In the plain dialect.
            wire.send(&[b"fetch".as_slice(), path.as_bytes(), b"0", b"100"]).expect("send");
            let answer = wire.receive().expect("an answer");
            assert!(!answer.iter().any(|frame| frame == b"secret"), "{answer:?}");
            get(&server.url(&path), &folder.path().join("copy")).expect_code(4);
        }
        get(&server.url("in/a"), &folder.path().join("copy")).expect_code(0);
    }
}

#[test]
fn secrets_below_the_root_stop_the_start_and_are_never_served() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("file"), b"x");
    let key = |at: &Path| {
        run(&mut tow([OsStr::new("key"), "new".as_ref(), at.as_ref()])).expect_code(0);
        at.with_file_name(format!("{}_secret", at.file_name().expect("a name").display()))
    };
    let inside = key(&served.join("server"));
    for (option, path) in [
        ("--key", inside.clone()),
        ("--rules", served.join("rules")),
        ("--audit", served.join("audit")),
        ("--digest-file", served.join("digests")),
        ("--plain-passwords", served.join("passwords")),
    ] {
        let mut command = serve(&served);
        command.arg(option).arg(&path);
        if option == "--key" {
            command.arg("--anyone");
        }
        if option != "--key" && option != "--audit" && option != "--digest-file" {
            write_secret(&path, "");
        }
        let outcome = run(&mut command);
        assert!(outcome.stderr.contains("which is served"), "{option}: {}", outcome.stderr);
        if option != "--key" {
            assert!(
                outcome.stderr.contains("is below")
                    && (option == "--rules" || option == "--plain-passwords" || !path.exists()),
                "{option}"
            );
        }
    }
    fs::remove_file(&inside).expect("remove");
    // It gets there later, by another name.
    let outside = key(&folder.path().join("server"));
    let rules = folder.path().join("rules");
    write_secret(&rules, "allow anyone to read **\n");
    let mut command = serve(&served);
    let server =
        Server::from_command(command.arg("--rules").arg(&rules).arg("--audit").arg(folder.path().join("audit")));
    fs::hard_link(&rules, served.join("link")).expect("link");
    let mut wire = Wire::dealer(server.port());
    assert_eq!(fetch(&mut wire, "link")["error"]["code"], "not-found");
    assert!(!paths(&wire.ask(&json!({"op": "list", "id": 1, "recursive": true}))).contains(&"link"));
    // Another file is read from then on.
    let next = folder.path().join("next");
    write_secret(&next, "allow anyone to read **\ndeny anyone to list nothing\n");
    fs::hard_link(&next, served.join("next")).expect("link");
    fs::rename(&next, &rules).expect("rename");
    wait_until("it is known", || fetch(&mut wire, "next")["error"]["code"] == "not-found");
    drop(outside);
}

#[test]
fn all_that_the_state_has_is_private() {
    let folder = tempdir().expect("a folder");
    let (served, state) = (folder.path().join("served"), folder.path().join("made/state"));
    write(&served.join("dir/file"), b"x");
    fs::set_permissions(served.join("dir/file"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "umask 000 && exec \"$@\"", "sh"]).arg(env!("CARGO_BIN_EXE_tow"));
    command.arg("serve").arg(&served).args(["--bind", "tcp://127.0.0.1:0", "--watch", "--settle", "100ms"]);
    let server = Server::from_command(command.arg("--state").arg(&state).arg("--accept-publish"));
    wait_until("it is published", || run(&mut tow(["publish", &server.url(""), "v1"])).status.success());
    let mut below = vec![state.parent().expect("a parent").to_owned()];
    while let Some(path) = below.pop() {
        let metadata = fs::symlink_metadata(&path).expect("stat");
        let wanted = if metadata.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(metadata.mode() & 0o777, wanted, "{}", path.display());
        if metadata.is_dir() {
            below.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("an entry").path()));
        }
    }
    assert!(state.join("versions/v1/manifest").exists());
}

/// Where others can write into the directory of the state.
#[test]
fn state_that_others_have_planted_is_not_used() {
    let folder = tempdir().expect("a folder");
    let (served, state) = (folder.path().join("served"), folder.path().join("state"));
    write(&served.join("file"), b"x");
    fs::create_dir_all(folder.path().join("elsewhere")).expect("mkdir");
    fs::create_dir(&state).expect("mkdir");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).expect("chmod");
    for (name, target) in [("catalogue", "../precious"), ("versions", "../elsewhere")] {
        write(&folder.path().join("precious"), b"precious");
        symlink(target, state.join(name)).expect("link");
        let mut command = serve(&served);
        run(command.arg("--watch").arg("--state").arg(&state)).expect_code(1);
        assert_eq!(fs::read(folder.path().join("precious")).expect("read"), b"precious");
        assert_eq!(fs::read_dir(folder.path().join("elsewhere")).expect("read").count(), 0);
        fs::remove_file(state.join(name)).expect("remove");
    }
}

/// A client that may only push learns neither which files exist nor their content.
#[test]
fn conditions_and_answers_of_pushes_take_the_right_to_know() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("in/theirs"), b"secret");
    let (rules, audit) = (folder.path().join("rules"), folder.path().join("audit"));
    write_secret(&rules, "allow anyone to push in\n");
    let mut command = serve(&served);
    command.args(["--accept-push", "in"]).arg("--rules").arg(&rules).arg("--audit").arg(&audit);
    let server = Server::from_command(&mut command);
    let mut wire = Wire::dealer(server.port());
    let of = |bytes: &[u8]| json!({"digest": blake3::hash(bytes).to_hex().to_string()});
    for path in ["in/theirs", "in/nothing"] {
        for condition in [Value::Null, of(b"secret"), of(b"other")] {
            assert_eq!(code(&wire.ask(&push(1, path, b"new", Some(condition)))), "denied", "{path}");
        }
    }
    wait_until("the probes are written down", || {
        let text = fs::read_to_string(&audit).unwrap_or_default();
        text.contains("\"verb\":\"list\"") && text.contains("\"verb\":\"read\"") && text.contains("in/nothing")
    });
    // A right guess isn't confirmed before all of it was sent.
    let mut put = |id: u32, path: &str, bytes: &[u8]| {
        assert_eq!(wire.ask(&push(id, path, bytes, None))["re"], "push");
        wire.send(&data_message(id, &[Piece::of(0, 0, 0, bytes)])).expect("send");
        let answer = wire.control();
        assert_eq!(
            (&answer["re"], answer.get("same").and_then(Value::as_bool).unwrap_or(false)),
            (&json!("pushed"), false),
            "{answer}"
        );
    };
    put(2, "in/theirs", b"secret");
    put(3, "in/own", b"own");
    // What this user has put there itself it may know.
    let answer = wire.ask(&push(4, "in/own", b"own", None));
    assert_eq!((&answer["re"], &answer["same"]), (&json!("pushed"), &json!(true)), "{answer}");
    assert_eq!(wire.ask(&push(5, "in/own", b"next", Some(of(b"own"))))["re"], "push");
    wire.ask(&json!({"op": "cancel", "id": 5}));
    // It was replaced by somebody else.
    write(&served.join("in/own"), b"secret");
    assert_eq!(code(&wire.ask(&push(6, "in/own", b"next", Some(of(b"secret"))))), "denied");
    assert_eq!(wire.ask(&push(7, "in/own", b"secret", None))["re"], "push");
}

/// Size and time of a directory depend on all that is in it.
#[test]
fn directories_with_something_hidden_have_no_time() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    for name in ["open/a", "mixed/seen", "mixed/hidden"] {
        write(&served.join(name), b"x");
    }
    write_secret(&folder.path().join("rules"), "allow anyone to read open mixed\ndeny anyone to list mixed/hidden\n");
    let mut command = serve(&served);
    let server = Server::from_command(command.arg("--rules").arg(folder.path().join("rules")));
    let mut wire = Wire::dealer(server.port());
    let answer = wire.ask(&json!({"op": "list", "id": 1}));
    assert_eq!(answer["dir"]["mtime"], json!([0, 0]), "{answer}");
    for entry in answer["entries"].as_array().expect("entries") {
        let hides = entry["path"] == "mixed";
        assert_eq!(entry["mtime"] == json!([0, 0]), hides, "{entry}");
        assert!(!hides || entry["size"] == 0, "{entry}");
    }
}

/// Ignores case, and has short names as FAT has.
fn fold(name: &OsStr) -> OsString {
    let name = name.to_string_lossy().to_lowercase();
    match name.split_once('~') {
        Some((start, _)) => start.into(),
        None if name.len() > 8 => name.chars().take(6).collect::<String>().into(),
        None => name.into(),
    }
}

#[test]
fn rules_are_about_names_as_directories_spell_them() {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    fs::create_dir(&served).expect("mkdir");
    let disk = WritableDisk::mount_folding(&served, fold);
    let Ok(_disk) = disk.inspect_err(|error| println!("skipped: no FUSE file system can be mounted here: {error}"))
    else {
        return;
    };
    for name in ["secret/s.txt", "open/A.txt", "20240102-03/x"] {
        write(&served.join(name), b"content");
    }
    let rules = folder.path().join("rules");
    write_secret(
        &rules,
        "allow anyone to read **\nallow anyone to push **\ndeny anyone to list secret 20240102-03\ndeny anyone to push secret\n",
    );
    let mut command = serve(&served);
    let server = Server::from_command(command.args(["--accept-push", "."]).arg("--rules").arg(&rules));
    let mut wire = Wire::dealer(server.port());
    assert!(served.join("SECRET/S.txt").exists() && served.join("202401~1/x").exists());
    for path in ["SECRET/s.txt", "Secret/s.txt", "secret/s.txt", "202401~1/x", "open/a.txt", "OPEN/A.txt"] {
        assert_eq!(fetch(&mut wire, path)["error"]["code"], "not-found", "{path}");
        assert_eq!(code(&wire.ask(&json!({"op": "list", "id": 1, "path": path}))), "not-found", "{path}");
        // Found in the kernel's cache, too.
        for _ in 0..2 {
            wire.send(&[b"fetch".as_slice(), path.as_bytes(), b"0", b"100"]).expect("send");
            let answer = wire.receive().expect("an answer");
            assert!(!answer.iter().any(|frame| frame == b"content"), "{path}: {answer:?}");
        }
    }
    assert_eq!(fetch(&mut wire, "open/A.txt")["error"], Value::Null);
    assert_eq!(code(&wire.ask(&push(1, "SECRET/new", b"x", None))), "conflict");
    assert_eq!(code(&wire.ask(&push(2, "open/a.TXT", b"x", None))), "conflict");
    assert_eq!(wire.ask(&push(3, "open/new", b"x", None))["re"], "push");
}
