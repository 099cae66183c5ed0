//! Rules of who may do what: files in every dialect, requests, and what happens when the rules change.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::support::broker::{Broker, call};
use crate::support::process::{Outcome, Process, Server, get, run, tow};
use crate::support::tree::{write, write_secret};
use crate::support::wait_until;
use crate::support::wire::{Wire, command, greeting};

/// A folder with files of rules and the like.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file for an option.
    fn file(&self, name: &str, text: &str) -> String {
        write_secret(&self.path(name), text);
        self.path(name).display().to_string()
    }

    /// Keys of the server and of others, and a file of rules with those of the others.
    fn keys(&self, names: &[&str], rules: &str) -> String {
        let mut text = String::new();
        for name in ["server"].iter().chain(names) {
            run(&mut tow([OsStr::new("key"), "new".as_ref(), self.path(name).as_ref()])).expect_code(0);
            if *name != "server" {
                text += &format!("key {name} {}\n", self.key(name));
            }
        }
        self.file("rules", &(text + rules))
    }

    fn key(&self, name: &str) -> String {
        let shown = run(&mut tow([OsStr::new("key"), "show".as_ref(), self.path(name).as_ref(), "--json".as_ref()]));
        shown.expect_code(0).summary()["key"].as_str().expect("a key").to_owned()
    }

    fn server(&self) -> String {
        self.path("server_secret").display().to_string()
    }

    /// Options of a client.
    fn client(&self, name: &str) -> [String; 4] {
        let secret = self.path(&format!("{name}_secret")).display().to_string();
        ["--key".into(), secret, "--server-key".into(), self.key("server")]
    }
}

fn serve(path: &Path, options: &[&str]) -> Server {
    Server::from_command(tow([OsStr::new("serve"), path.as_ref()]).args(["--bind", "tcp://127.0.0.1:0"]).args(options))
}

/// A tree with readable, visible and secret files.
fn tree(folder: &Folder) -> PathBuf {
    let served = folder.path("served");
    for name in ["open/a", "names/n", "secret/s", "deep/er/in/x", "deep/er/y"] {
        write(&served.join(name), format!("content of {name}").as_bytes());
    }
    std::os::unix::fs::symlink("../secret/s", served.join("open/link")).expect("a link");
    std::os::unix::fs::symlink("../secret", served.join("open/dir")).expect("a link");
    served
}

const RULES: &str =
    "allow anyone to read open deep/er/in\nallow anyone to list names\ndeny anyone to list open/hidden\n";

/// The answer without what the question brought.
fn without_id(mut answer: Value) -> Value {
    if let Some(answer) = answer.as_object_mut() {
        answer.remove("id");
        answer.remove("n");
    }
    answer
}

#[test]
fn what_may_not_be_seen_is_not_there_in_any_dialect() {
    let folder = Folder::new();
    let server = serve(&tree(&folder), &["--rules", &folder.file("rules", RULES)]);
    let mut wire = Wire::dealer(server.port());
    let mut list = |request: Value| -> Vec<String> {
        let answer = wire.ask(&request);
        let entries = answer["entries"].as_array().unwrap_or_else(|| panic!("{answer}"));
        entries.iter().map(|entry| entry["path"].as_str().expect("a path").to_owned()).collect()
    };
    let seen = [
        "deep",
        "deep/er",
        "deep/er/in",
        "deep/er/in/x",
        "names",
        "names/n",
        "open",
        "open/a",
        "open/dir",
        "open/link",
    ];
    assert_eq!(list(json!({"op": "list", "id": 1, "recursive": true})), seen);
    assert_eq!(list(json!({"op": "list", "id": 1, "path": "deep/er"})), ["deep/er/in"]);
    assert_eq!(list(json!({"op": "list", "id": 1, "glob": "**/[asy]"})), ["open/a"]);
    assert_eq!(list(json!({"op": "list", "id": 1, "glob": "secret/*"})), [""; 0]);
    let through = wire.ask(&json!({"op": "list", "id": 1, "path": "open", "recursive": true, "follow_links": "all"}));
    assert!(!through.to_string().contains("secret/s\",\"") && !through.to_string().contains("open/dir/s"), "{through}");
    let digests = wire.ask(&json!({"op": "list", "id": 1, "path": "names", "digest": true}));
    assert_eq!((&digests["entries"][0]["type"], &digests["entries"][0]["digest"]), (&json!("file"), &Value::Null));

    let nothing = without_id(wire.ask(&json!({"op": "list", "id": 2, "path": "nothing"})));
    for path in ["secret", "secret/s", "open/link/x", "open/dir/s", "deep/er/y"] {
        let answer = without_id(wire.ask(&json!({"op": "list", "id": 2, "path": path})));
        assert_eq!(answer, nothing, "{path}");
    }
    let secret = blake3::hash(b"content of secret/s").to_hex().to_string();
    let mut fetch = |file: Value| {
        let files = wire.ask(&json!({"op": "fetch", "id": 3, "credit_bytes": 100_000, "files": [file]}));
        let answer = without_id(files["files"][0].clone());
        while wire.receive().expect("done").last().is_none_or(|frame| !frame.windows(4).any(|word| word == b"done")) {}
        answer
    };
    let nothing = fetch(json!({"path": "nothing"}));
    assert_eq!(nothing["error"]["code"], "not-found");
    for path in ["secret", "secret/s", "open/link", "open/dir/s", "deep/er/y"] {
        for file in [
            json!({"path": path}),
            json!({"path": path, "ranges": []}),
            json!({"path": path, "unless": {"digest": secret}}),
        ] {
            assert_eq!(fetch(file), nothing, "{path}");
        }
    }
    assert_eq!(fetch(json!({"path": "names/n"}))["error"]["code"], "denied");
    assert_eq!(fetch(json!({"path": "open/a"}))["size"], 17);
    let leaves = |path: &str| json!({"op": "leaves", "id": 4, "path": path, "digest": secret, "from": 0, "count": 1});
    assert_eq!(without_id(wire.ask(&leaves("secret/s"))), without_id(wire.ask(&leaves("nothing"))));

    let mut plain = |path: &str| {
        wire.send(&[b"fetch".as_slice(), path.as_bytes(), b"0", b"100"]).expect("send");
        wire.receive().expect("an answer")
    };
    let nothing = plain("nothing");
    assert_eq!(nothing[0], b"error");
    for path in ["secret", "secret/s", "open/link", "open/dir/s", "deep/er/y"] {
        assert_eq!(plain(path), nothing, "{path}");
    }
    assert_eq!(plain("open/a"), [b"content of open/a"]);
    assert_eq!(plain("names/n")[0], b"error");

    // Names of others, and what only those may do whom a line allows it.
    for request in [json!({"op": "holders", "id": 5, "seq": 0}), json!({"op": "publish", "id": 5, "path": "open"})] {
        let answer = wire.ask(&request);
        assert_eq!(answer["code"], "denied", "{answer}");
        assert!(answer["message"].as_str().is_some_and(|message| message.contains("rules")), "{answer}");
    }

    // The whole tree, as far as it may be had.
    let outcome = get(&server.url("open/a"), &folder.path("copy"));
    assert_eq!(outcome.expect_code(0).number("files"), 1);
    assert_eq!(get(&server.url("secret/s"), &folder.path("no")).status.code(), Some(4));
    assert_eq!(get(&server.url("names/n"), &folder.path("no")).status.code(), Some(5));
}

#[test]
fn followers_receive_only_what_they_may_follow() {
    let folder = Folder::new();
    let served = tree(&folder);
    let rules = folder
        .file("rules", "allow anyone to follow open\ndeny anyone to read open/hidden\nallow anyone to read names\n");
    let server = serve(&served, &["--rules", &rules, "--watch", "--settle", "10ms"]);
    let (mut wire, mut plain) = (Wire::dealer(server.port()), Wire::dealer(server.port()));
    wire.request(&json!({"op": "follow", "id": 1})).expect("send");
    plain.send(&[b"follow".as_slice(), b""]).expect("send");
    plain.send(&[b"credit".as_slice(), b"1000000"]).expect("send");
    let mut changes = |until: &str| {
        let mut received: Vec<(String, String)> = Vec::new();
        while !received.iter().any(|(path, _)| path == until) {
            let page = wire.control();
            for change in page["changes"].as_array().into_iter().flatten() {
                let text = |member: &str| change[member].as_str().expect("text").to_owned();
                received.push((text("path"), text("type")));
            }
            if page["re"] == "changes" {
                wire.request(&json!({"op": "more", "id": 1})).expect("send");
            }
        }
        received
    };
    let mut pieces = |until: &str| {
        let mut received: Vec<String> = Vec::new();
        while !received.iter().any(|path| path == until) {
            let frames = plain.receive().expect("a change");
            if !frames[1].is_empty() {
                received.push(String::from_utf8(frames[1].clone()).expect("text"));
            }
        }
        received
    };
    for received in [changes("open/a").into_iter().map(|(path, _)| path).collect(), pieces("open/a")] {
        assert!(received.iter().all(|path| path.starts_with("open")), "{received:?}");
    }
    // Files that are made, renamed or removed out of sight aren't announced either.
    write(&served.join("secret/new"), b"1");
    write(&served.join("open/hidden/x"), b"1");
    write(&served.join("open/moves"), b"1");
    changes("open/moves");
    pieces("open/moves");
    std::fs::rename(served.join("open/moves"), served.join("secret/moved")).expect("rename");
    std::fs::remove_file(served.join("secret/new")).expect("remove");
    std::fs::remove_file(served.join("open/hidden/x")).expect("remove");
    write(&served.join("open/last"), b"1");
    let received = changes("open/last");
    assert!(received.contains(&("open/moves".to_owned(), "gone".to_owned())), "{received:?}");
    for received in [received.into_iter().map(|(path, _)| path).collect(), pieces("open/last")] {
        let is_fine = |path: &String| path.starts_with("open") && !path.contains("hidden");
        assert!(received.iter().all(is_fine), "{received:?}");
    }
}

#[test]
fn rules_are_checked_and_asked() {
    let folder = Folder::new();
    let rules = folder.file(
        "rules",
        "user ann bob\nallow ann to read a\ndeny ann to read a/secret\nallow bob to call echo\nallow ann to call *\n",
    );
    let check = run(&mut tow(["rules", "check", &rules])).expect_code(0);
    assert!(String::from_utf8_lossy(&check.stdout).contains("2 names, 0 keys, 0 groups, 4 rules"));
    let ask = |arguments: &[&str]| run(tow(["rules", "test", &rules]).args(arguments));
    let text = |outcome: Outcome| String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert_eq!(text(ask(&["--as", "ann", "read", "/a/b"]).expect_code(0)), "allowed by line 2: allow ann to read a\n");
    assert_eq!(
        text(ask(&["--as", "ann", "follow", "a/secret/x"]).expect_code(5)),
        "refused by line 3: deny ann to read a/secret\n"
    );
    // As the broker decides: dead letters are for operators.
    ask(&["--as", "ann", "call", "other"]).expect_code(0);
    ask(&["--as", "ann", "call", "aside.other"]).expect_code(5);
    assert_eq!(text(ask(&["read", "a"]).expect_code(5)), "refused: no line allows it\n");
    // In base64, for names that aren't UTF-8.
    for (subject, code) in [("L2EvYg==", 0), ("L2Ev/w==", 0), ("YS9zZWNyZXQvZQ==", 5), ("a/b", 2)] {
        ask(&["--as", "ann", "read", "--b64", subject]).expect_code(code);
    }
    let missing = run(&mut tow(["rules", "check", "none-of-ours"])).expect_code(1);
    assert!(missing.stderr.contains("cannot read the rules in none-of-ours: "), "{}", missing.stderr);
    let json = ask(&["--as", "bob", "call", "echo", "--json"]).expect_code(0).summary();
    assert_eq!(json, json!({"allowed": true, "line": 4, "rule": "allow bob to call echo"}));
    assert!(ask(&["--as", "eve", "read", "a"]).expect_code(2).stderr.contains("ann, bob"));
    let wrong = folder.file("wrong", "user ann\nalow ann to read a\nallow ann to raed a\n");
    let outcome = run(&mut tow(["rules", "check", &wrong])).expect_code(1);
    assert!(outcome.stderr.contains("line 2") && outcome.stderr.contains("line 3"), "{}", outcome.stderr);
    let outcome =
        run(&mut tow(["serve", "/usr/share", "--bind", "tcp://127.0.0.1:0", "--rules", &wrong])).expect_code(1);
    assert!(outcome.stderr.contains("read was meant?"), "{}", outcome.stderr);
    let keys = Folder::new();
    let rules = keys.keys(&["alice"], "allow alice to read **\n");
    run(&mut tow(["serve", "/usr/share", "--bind", "tcp://127.0.0.1:0", "--rules", &rules])).expect_code(2);
}

#[test]
fn revoked_keys_go_and_a_broken_file_changes_nothing() {
    let folder = Folder::new();
    let rules = folder.keys(&["alice", "bob"], "allow alice bob to follow **\n");
    let text = std::fs::read_to_string(&rules).expect("text");
    let audit = folder.path("audit").display().to_string();
    let options = ["--key", &folder.server(), "--rules", &rules, "--watch", "--audit", &audit];
    let server = serve(&tree(&folder), &options);
    let fetch = |name: &str| run(tow(["get", &server.url("open/a"), "-"]).args(folder.client(name)));
    fetch("alice").expect_code(0);
    run(&mut tow([OsStr::new("key"), "new".as_ref(), folder.path("eve").as_ref()])).expect_code(0);
    fetch("eve").expect_code(5);
    let mut follow = tow([OsStr::new("follow"), server.url("open").as_ref(), folder.path("copy").as_ref()]);
    let follow = Process::start(follow.args(folder.client("alice")));
    wait_until("alice follows", || folder.path("copy/a").exists());
    // Broken: everything stays as it was.
    folder.file("rules", "allow alice to raed **\n");
    wait_until("the server complains", || server.log().contains("NOT read again") && server.log().contains("raed"));
    fetch("bob").expect_code(0);
    // Cut off in the middle of a line, and emptied, as by an editor that is just writing: valid, and not used.
    for cut in [text.trim_end(), ""] {
        let before = server.log().matches("NOT read again").count();
        folder.file("rules", cut);
        server.signal(Signal::HUP);
        wait_until("the server complains", || server.log().matches("NOT read again").count() > before);
        assert!(server.log().contains("is it complete?"), "{}", server.log());
        fetch("bob").expect_code(0);
    }
    // Without alice.
    let of_alice = |line: &&str| !line.starts_with("key alice");
    let without: Vec<&str> = text.lines().filter(of_alice).collect();
    folder.file("rules", &(without.join("\n").replace("alice ", "") + "\n"));
    wait_until("alice is disconnected", || server.log().contains("not admitted any more"));
    let refused = fetch("alice").expect_code(5);
    assert!(refused.stderr.contains("400"), "{}", refused.stderr);
    fetch("bob").expect_code(0);
    drop(follow);
    // Bob may do something else, at once.
    folder.file(
        "rules",
        &(without.join("\n").replace("alice bob to follow", "bob to list").replace("bob to follow", "bob to list")
            + "\n"),
    );
    server.signal(Signal::HUP);
    wait_until("the rules are read", || fetch("bob").status.code() == Some(5));
    let lines: Vec<Value> = std::fs::read_to_string(&audit)
        .expect("an audit file")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let has = |event: &str, name: &str| lines.iter().any(|line| line["event"] == event && line["name"] == name);
    let of_eve = folder.key("eve");
    let is_of_eve = |line: &Value| line["event"] == "login-refused" && line["key"] == of_eve;
    assert!(lines.iter().any(|line| is_of_eve(line) && line["address"].as_str().is_some()), "{lines:?}");
    assert!(has("login", "alice") && has("revoked", "alice") && has("refused", "bob"), "{lines:?}");
    let refused = lines.iter().rfind(|line| line["event"] == "refused").expect("one");
    assert_eq!((&refused["verb"], &refused["subject"]), (&json!("read"), &json!("open/a")));
}

#[test]
fn services_are_called_and_served_by_the_rules_in_every_dialect() {
    let folder = Folder::new();
    let passwords = folder.file("passwords", "ann:1\nbob:1\n");
    let rules = folder.file(
        "rules",
        "user ann bob\nallow ann to call *\nallow ann to work echo\nallow bob to call echo\ndeny ann to call other\n",
    );
    let journal = folder.path("journal").display().to_string();
    let broker = Broker::with(&["--plain-passwords", &passwords, "--rules", &rules, "--journal", &journal]);
    let start = |service: &str, user: &str| {
        let mut command = tow(["work", service, "--echo", "--connect", broker.endpoint(), "--user", user]);
        Process::start(command.env("TOW_PASSWORD", "1"))
    };
    let _worker = start("echo", "ann");
    let ask = |user: &str, arguments: &[&str]| {
        run(call(&[&broker], arguments).args(["--timeout", "20", "--user", user]).env("TOW_PASSWORD", "1"))
    };
    assert_eq!(ask("bob", &["echo", "hello"]).expect_code(0).stdout, b"hello");
    for arguments in [&["other", "x"][..], &["dlq.echo", "x"], &["aside.echo", "x"]] {
        for user in ["ann", "bob"] {
            let outcome = ask(user, arguments).expect_code(5);
            assert!(outcome.stderr.contains("403"), "{}", outcome.stderr);
            let dialect = [arguments, &["--dialect", "mdp01"]].concat();
            let outcome = ask(user, &dialect);
            assert!(!outcome.status.success() && outcome.stderr.contains("403"), "{}", outcome.stderr);
        }
    }
    // Workers of what they may not serve.
    for (service, user) in [("other", "ann"), ("dlq.echo", "ann"), ("echo", "bob")] {
        let before = broker.log().matches("not allowed to serve").count();
        let worker = start(service, user);
        wait_until("the worker is refused", || broker.log().matches("not allowed to serve").count() > before);
        drop(worker);
    }
    // Lists have only what may be seen.
    let list = |user: &str, what: &str| -> Value { ask(user, &[what, ""]).expect_code(0).summary() };
    assert_eq!(list("bob", "mmi.services"), json!(["echo"]));
    assert_eq!(list("bob", "mmi.workers"), json!([]));
    assert_eq!(list("ann", "mmi.workers")[0]["service"], "echo");
    ask("ann", &["mmi.spool", ""]).expect_code(4);
    // What somebody has stored is nobody else's.
    let name = ask("ann", &["--frames", "titanic.request", "echo", "mine"]).expect_code(0).stdout;
    let name = String::from_utf8(name).expect("a name");
    wait_until("it is done", || ask("ann", &["titanic.reply", &name]).stdout == b"mine");
    let [of_other, unknown] = [&*name, &"0".repeat(32)].map(|name| ask("bob", &["titanic.reply", name]));
    assert_eq!((of_other.status.code(), &of_other.stdout), (unknown.status.code(), &unknown.stdout));
    ask("bob", &["titanic.close", &name]).expect_code(0);
    assert_eq!(ask("ann", &["titanic.reply", &name]).expect_code(0).stdout, b"mine");
    let refused = ask("bob", &["--frames", "titanic.request", "other", "x"]);
    assert!(!refused.status.success() && refused.stderr.contains("403"), "{}", refused.stderr);
}

#[test]
fn a_revoked_workers_request_goes_to_another_worker() {
    let folder = Folder::new();
    let rules = folder.keys(&["alice", "bob"], "allow alice bob to work, call slow\n");
    let text = std::fs::read_to_string(&rules).expect("text");
    let broker = Broker::with(&["--key", &folder.server(), "--rules", &rules]);
    let start = |name: &str, command: &[&str]| {
        let mut worker = tow(["work", "slow", "--connect", broker.endpoint()]);
        let worker = Process::start(worker.args(folder.client(name)).arg("--").args(command));
        wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
        worker
    };
    let begun = folder.path("begun");
    let script = format!("touch '{}'; sleep 100", begun.display());
    let _hanging = start("alice", &["sh", "-c", &script]);
    let mut asking = tow(["call", "slow", "hello", "--connect", broker.endpoint(), "--timeout", "50"]);
    let asking = Process::start(asking.args(folder.client("bob")));
    wait_until("alice has the request", || begun.exists());
    let _other = start("bob", &["cat"]);
    let without: Vec<&str> = text.lines().filter(|line| !line.starts_with("key alice")).collect();
    folder.file("rules", &(without.join("\n").replace("alice ", "") + "\n"));
    broker.signal(Signal::HUP);
    assert_eq!(asking.finish().expect_code(0).stdout, b"hello");
    wait_until("the broker logs why", || broker.log().contains("not admitted any more"));
}

#[test]
fn another_password_ends_connections() {
    let folder = Folder::new();
    let passwords = folder.file("passwords", "ann:1\nbob:1\n");
    let broker = Broker::with(&["--plain-passwords", &passwords]);
    let start = |user: &str| {
        let mut worker = tow(["work", "echo", "--echo", "--connect", broker.endpoint(), "--user", user]);
        let worker = Process::start(worker.env("TOW_PASSWORD", "1"));
        wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
        worker
    };
    let (ann, bob) = (start("ann"), start("bob"));
    // One who has shown the old password, and takes its time with the rest of its handshake.
    let mut halfway = Wire::connect(broker.port());
    halfway.write(&[greeting("PLAIN"), command("HELLO", b"\x03ann\x011")].concat()).expect("write");
    halfway.read_exact(&mut [0; 64]).expect("a greeting");
    assert!(halfway.read_frame().expect("a command").1.ends_with(b"WELCOME"));
    folder.file("passwords", "ann:2\nbob:1\ncy:1\n");
    broker.signal(Signal::HUP);
    wait_until("ann is refused", || ann.log().contains("refuses this worker"));
    let _ = halfway.write(&command("INITIATE", b"\x0bSocket-Type\x00\x00\x00\x06DEALER"));
    assert!(halfway.read_frame().is_err(), "the old password got in");
    let mut command = call(&[&broker], &["echo", "hello", "--user", "cy", "--timeout", "20"]);
    assert_eq!(run(command.env("TOW_PASSWORD", "1")).expect_code(0).stdout, b"hello");
    assert_eq!(bob.log().matches("connected to a broker").count(), 1, "{}", bob.log());
    // Others may read the file: it isn't used until that is mended, by chmod alone.
    let set_mode = |mode| std::fs::set_permissions(&passwords, PermissionsExt::from_mode(mode)).expect("set the mode");
    set_mode(0o644);
    broker.signal(Signal::HUP);
    wait_until("the broker complains", || broker.log().contains("NOT read again"));
    let before = broker.log().matches("were read again").count();
    set_mode(0o600);
    wait_until("it is read", || broker.log().matches("were read again").count() > before);
}

#[test]
fn the_audit_file_alone_is_opened_anew_on_sighup() {
    let folder = Folder::new();
    let audit = folder.path("audit");
    let server = serve(&tree(&folder), &["--audit", &audit.display().to_string()]);
    let rotated = folder.path("audit.1");
    std::fs::rename(&audit, &rotated).expect("rename");
    server.signal(Signal::HUP);
    wait_until("it is there again", || audit.exists());
    get(&server.url("open/a"), &folder.path("copy")).expect_code(0);
    wait_until("a login is noted", || std::fs::read_to_string(&audit).is_ok_and(|text| text.contains("login")));
    assert_eq!(std::fs::read(&rotated).expect("the old file"), b"");
}

#[test]
fn files_are_pushed_only_where_the_rules_allow() {
    let folder = Folder::new();
    let served = folder.path("served");
    std::fs::create_dir_all(served.join("inbox")).expect("a folder");
    write(&served.join("inbox/bob/there"), b"content");
    let passwords = folder.file("passwords", "ann:1\n");
    let rules = folder.file("rules", "user ann\nallow ann to push inbox/{name}\nallow ann to list inbox/ann\n");
    let options = ["--plain-passwords", &passwords, "--rules", &rules, "--accept-push", "inbox"];
    let server = serve(&served, &options);
    let file = folder.file("there", "content");
    let push = |path: &str| {
        let mut command = tow(["push", &file, &server.url(path), "--user", "ann"]);
        run(command.env("TOW_PASSWORD", "1"))
    };
    push("inbox/ann/x").expect_code(0);
    assert_eq!(std::fs::read(served.join("inbox/ann/x")).expect("it is there"), b"content");
    // The answer doesn't reveal whether the file exists.
    for path in ["inbox/bob/there", "inbox/bob/new", "inbox/x"] {
        let outcome = push(path).expect_code(5);
        assert!(outcome.stderr.contains("rules don't allow"), "{}", outcome.stderr);
    }
    assert!(!served.join("inbox/bob/new").exists());
}

/// A relay applies rules of its own to what it passes on.
#[test]
fn relay_has_keys_and_rules() {
    let folder = Folder::new();
    let rules = folder.keys(&["alice", "relay"], "allow alice to follow open\n");
    let served = tree(&folder);
    let origin = serve(&served, &["--watch", "--settle", "100ms"]);
    let key = folder.path("relay_secret").display().to_string();
    let copy = folder.path("copy");
    let url = origin.url("");
    let words = ["follow", &url, copy.to_str().expect("UTF-8"), "--serve", "tcp://127.0.0.1:0"];
    // Below the copy everybody could read it.
    let inside = copy.join("rules");
    std::fs::create_dir(&copy).expect("mkdir");
    std::fs::copy(&rules, &inside).expect("copy");
    let refused = run(tow(words).args(["--rules", inside.to_str().expect("UTF-8")])).expect_code(2);
    assert!(refused.stderr.contains("which is served"), "{}", refused.stderr);
    std::fs::remove_file(&inside).expect("remove");
    let relay = Process::start(tow(words).args(["--key", &key, "--rules", &rules]));
    let mut port = None;
    wait_until("it serves", || {
        let log = relay.log();
        let endpoint = log.lines().find_map(|line| line.split_once("serving ")?.1.rsplit_once(" on "));
        port = endpoint.map(|(_, endpoint)| endpoint.trim_start_matches("tcp://").to_owned());
        port.is_some() && copy.join("open/a").exists()
    });
    let url = format!("{}/", port.expect("an endpoint"));
    let follow = |name: &str, to: &str| {
        let [key, secret, server, _] = folder.client(name);
        let to = folder.path(to).display().to_string();
        let mut command = tow(["follow", &url, &to, "--once", "--timeout", "5s", &key, &secret, &server]);
        run(command.arg(folder.key("relay")))
    };
    follow("alice", "of-alice").expect_code(0);
    let of_alice = folder.path("of-alice");
    assert!(of_alice.join("open/a").exists() && !of_alice.join("names").exists() && !of_alice.join("secret").exists());
    // The key of the origin's server isn't among them.
    assert_ne!(follow("server", "of-nobody").status.code(), Some(0));
}
