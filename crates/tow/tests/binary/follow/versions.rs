//! `tow publish`, `tow follow --versions` and `tow versions`: releases, and who has them.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::support::process::{Outcome, Process, Server, run, tow};
use crate::support::proxy::Proxy;
use crate::support::tree::{random_file, write};
use crate::support::wait_until;

/// A server with versions of a directory.
struct Publisher {
    folder: TempDir,
    server: Server,
}

impl Publisher {
    fn start(options: &[&str]) -> Publisher {
        let folder = tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("source/app")).expect("mkdir");
        Publisher { server: serve(folder.path(), options), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn publish(&self, path: &str, options: &[&str]) -> Outcome {
        run(tow(["publish", &self.server.url(path)]).args(options).args(["--timeout", "20s"]))
    }

    fn versions(&self, options: &[&str]) -> Outcome {
        self.versions_of("", options)
    }

    fn versions_of(&self, path: &str, options: &[&str]) -> Outcome {
        run(tow(["versions", &self.server.url(path)]).args(options))
    }

    /// The lines of versions.
    fn listed(&self) -> String {
        listed(&self.server.url(""))
    }
}

fn serve(folder: &Path, options: &[&str]) -> Server {
    let mut command = tow(["serve", "--watch", "--settle", "200ms", "--bind", "tcp://127.0.0.1:0"]);
    command.arg(folder.join("source")).arg("--state").arg(folder.join("state"));
    Server::from_command(command.args(options))
}

fn text(outcome: &Outcome) -> String {
    String::from_utf8(outcome.stdout.clone()).expect("UTF-8")
}

fn listed(url: &str) -> String {
    let printed = text(&run(&mut tow(["versions", url])).expect_code(0));
    let (versions, now) = printed.rsplit_once("now at ").expect("the present number");
    assert!(now.split('\n').next().is_some_and(|number| number.parse::<u64>().is_ok()), "{printed}");
    versions.to_owned()
}

/// The one JSON object that was printed.
fn object(outcome: &Outcome) -> Value {
    serde_json::from_slice(&outcome.stdout).expect("JSON")
}

fn follow(url: &str, copy: &Path, name: &str) -> Process {
    Process::start(tow(["follow", url, "--versions", "--name", name]).arg(copy))
}

#[test]
fn versions_appear_as_a_whole_and_the_server_knows_where() {
    let publisher = Publisher::start(&["--accept-publish"]);
    let (source, copy) = (publisher.path("source"), publisher.path("copy"));
    random_file(&source.join("app/large"), 4 << 20, 1);
    write(&source.join("app/config"), b"one");
    fs::create_dir(source.join("app/empty")).expect("mkdir");
    std::os::unix::fs::symlink("config", source.join("app/link")).expect("symlink");
    let first = object(&publisher.publish("", &["v1", "--json"]).expect_code(0));
    assert_eq!((first["label"].as_str(), first["files"].as_u64()), (Some("v1"), Some(2)));
    let proxy = Proxy::start(publisher.server.port());
    let follower = follow(&proxy.url(""), &copy, "gpu-1");
    let current = copy.join("current");
    wait_until("the first version is there", || current.join("app/config").exists());
    assert_eq!(fs::read(current.join("app/large")).expect("read"), fs::read(source.join("app/large")).expect("read"));
    assert_eq!(fs::read_link(current.join("app/link")).expect("a link"), Path::new("config"));
    assert!(current.join("app/empty").is_dir());
    publisher.versions(&["--wait", "v1"]).expect_code(0);

    // Live changes aren't a version; a new version brings only what is new, and the old one stays beside it.
    let old = fs::read_link(&current).expect("a link");
    write(&source.join("app/config"), b"two");
    let before = proxy.passed();
    let second = object(&publisher.publish("", &["v2", "--json"]).expect_code(0));
    let who = object(&publisher.versions(&["--wait", "v2", "--json"]).expect_code(0));
    assert_eq!(fs::read(current.join("app/config")).expect("read"), b"two");
    assert_eq!(fs::read(copy.join(&old).join("app/config")).expect("read"), b"one");
    assert!(proxy.passed() - before < 1 << 20, "{} bytes were sent", proxy.passed() - before);
    assert_eq!(who["version"], second["version"]);
    assert_eq!((&who["holders"][0]["name"], &who["holders"][0]["verified"]), (&"gpu-1".into(), &true.into()));
    let who = object(&publisher.versions(&["--who", "v1", "--json"]).expect_code(1));
    assert_eq!((who["holders"].as_array().map(Vec::len), &who["missing"][0]), (Some(0), &"gpu-1".into()));
    let listed = publisher.listed();
    assert!(listed.lines().count() == 2 && listed.contains("  v1\n") && listed.ends_with("  v2\n"), "{listed}");
    assert!(follower.output().contains("version v2 "), "{}", follower.output());
    follower.signal(Signal::INT);
    follower.finish();
    // What nobody gets isn't waited for for ever.
    publisher.versions(&["--wait", "v2", "--count", "2", "--timeout", "1s"]).expect_code(1);
    publisher.versions(&["--who", "v9"]).expect_code(4);
    publisher.versions(&["--who", "999999"]).expect_code(4);
    publisher.versions(&["--who", &"f".repeat(64)]).expect_code(4);

    // An old version can be had as any other files, and survives a restart.
    let Publisher { folder, server } = publisher;
    server.stop(Signal::TERM).expect_code(0);
    let publisher = Publisher { server: serve(folder.path(), &[]), folder };
    let url = publisher.server.url(".tow-versions/v1/tree/app/config");
    run(tow(["get", &url]).arg(publisher.path("old"))).expect_code(0);
    assert_eq!(fs::read(publisher.path("old")).expect("read"), b"one");
    assert_eq!(publisher.listed(), listed);
    let outcome = run(tow(["follow", &publisher.server.url(""), "--versions", "--once"]).arg(publisher.path("other")));
    outcome.expect_code(0);
    assert_eq!(fs::read(publisher.path("other/current/app/config")).expect("read"), b"two");
    // A follower that is started again keeps the version before.
    let outcome = run(tow(["follow", &publisher.server.url(""), "--versions", "--once"]).arg(&copy));
    outcome.expect_code(0);
    assert!(copy.join(&old).join("app/config").exists());
    // A follower of everything receives no versions.
    run(tow(["follow", &publisher.server.url(""), "--once"]).arg(publisher.path("all"))).expect_code(0);
    assert!(publisher.path("all/app/config").exists() && !publisher.path("all/.tow-versions").exists());
}

#[test]
fn other_names_of_files_keep_no_version_from_being_published() {
    let publisher = Publisher::start(&["--accept-publish"]);
    let (file, elsewhere) = (publisher.path("source/app/f"), publisher.path("elsewhere"));
    write(&file, b"one");
    publisher.publish("app", &["v1"]).expect_code(0);
    // As a backup does it; no event comes of it.
    fs::hard_link(&file, &elsewhere).expect("ln");
    publisher.publish("app", &["v2"]).expect_code(0);
    // Nor of what is written there. It is noticed now.
    write(&elsewhere, b"another");
    publisher.publish("app", &["v3"]).expect_code(0);
    let listed = text(&publisher.versions(&[]));
    assert!(listed.contains("v1") && listed.contains("v3"), "{listed}");
    let frozen = |label: &str| fs::read(publisher.path(&format!("state/versions/=app/{label}/tree/app/f")));
    assert_eq!((frozen("v1").expect("v1"), frozen("v3").expect("v3")), (b"one".to_vec(), b"another".to_vec()));
}

#[test]
fn versions_never_change_and_old_ones_make_way() {
    let publisher = Publisher::start(&["--accept-publish"]);
    let source = publisher.path("source");
    write(&source.join("app/f"), b"one");
    write(&source.join("other"), b"other");
    let outcome = publisher.publish("nowhere", &["v1"]).expect_code(4);
    assert!(outcome.stderr.contains("no such directory"), "{}", outcome.stderr);
    publisher.publish("app", &["v1"]).expect_code(0);
    let again = object(&publisher.publish("app", &["v1", "--json"]).expect_code(0));
    assert_eq!((&again["same"], again["files"].as_u64()), (&true.into(), Some(1)));
    write(&source.join("app/f"), b"two");
    wait_until("the label is another version's", || {
        let outcome = publisher.publish("app", &["v1"]);
        outcome.status.code() == Some(1) && outcome.stderr.contains("never changes: use another label")
    });
    // Without a label it has its digest's.
    let second = object(&publisher.publish("app", &["--json"]).expect_code(0));
    assert!(second["version"].as_str().expect("a digest").starts_with(second["label"].as_str().expect("a label")));
    write(&source.join("app/g"), b"three");
    publisher.publish("app", &["v3", "--keep", "2"]).expect_code(0);
    let kept = publisher.path("state/versions/=app");
    assert!(!kept.join("v1").exists() && kept.join("v3/tree/app/g").exists() && !kept.join("v3/tree/other").exists());
    let listed = publisher.listed();
    assert_eq!(listed.lines().count(), 2, "{listed}");
    // What is kept is no other name of what is served.
    write(&source.join("app/g"), b"changed in place");
    assert_eq!(fs::read(kept.join("v3/tree/app/g")).expect("read"), b"three");
    publisher.publish("app", &["../v"]).expect_code(1);
}

#[test]
fn strangers_may_not_publish() {
    let folder = tempdir().expect("a folder");
    fs::create_dir_all(folder.path().join("source")).expect("mkdir");
    let socket = format!("ipc://{}", folder.path().join("socket").display());
    let server = serve(folder.path(), &["--bind", &socket]);
    let outcome = run(&mut tow(["publish", &server.url("")])).expect_code(5);
    assert!(outcome.stderr.contains("--accept-publish"), "{}", outcome.stderr);
    // Its own user over ipc.
    run(&mut tow(["publish", &format!("{socket}:/"), "v1"])).expect_code(0);
    // There are none to follow before.
    let other = Publisher::start(&[]);
    let outcome = run(tow(["follow", &other.server.url(""), "--versions", "--once"]).arg(other.path("copy")));
    outcome.expect_code(4);
}

/// A relay of versions has them as the first server has, and who is behind it is known there.
#[test]
fn versions_come_through_a_relay_and_holders_behind_it_are_known() {
    let publisher = Publisher::start(&["--accept-publish"]);
    let source = publisher.path("source");
    random_file(&source.join("app/large"), 3 << 20, 1);
    write(&source.join("app/config"), b"one");
    let at = |name: &str| format!("ipc://{}", publisher.path(name).display());
    let relay = |name: &str, url: &str| {
        let mut command = tow(["follow", url, "--versions", "--name", name, "--serve", &at(&format!("{name}.sock"))]);
        Process::start(command.arg(publisher.path(name)))
    };
    // Two in a row, before there is anything.
    let first = relay("first", &publisher.server.url(""));
    wait_until("the first relay serves", || publisher.path("first.sock").exists());
    let _second = relay("second", &format!("{}:/", at("first.sock")));
    wait_until("the second relay serves", || publisher.path("second.sock").exists());
    let _child = follow(&format!("{}:/", at("second.sock")), &publisher.path("child"), "child");
    publisher.publish("", &["v1"]).expect_code(0);
    publisher.versions(&["--wait", "v1", "--count", "3"]).expect_code(0);
    let current = publisher.path("child/current");
    assert_eq!(fs::read(current.join("app/config")).expect("read"), b"one");
    assert_eq!(fs::read(current.join("app/large")).expect("read"), fs::read(source.join("app/large")).expect("read"));
    assert_eq!(fs::read(publisher.path("first/current/app/config")).expect("read"), b"one");
    assert_eq!(listed(&format!("{}:/", at("second.sock"))), publisher.listed());
    // It isn't taken for a server that has no files.
    let outcome = run(tow(["follow", &format!("{}:/", at("first.sock")), "--once"]).arg(publisher.path("all")));
    assert!(outcome.status.code() == Some(1) && outcome.stderr.contains("versions only"), "{outcome:?}");

    // One that was away goes on, and keeps the version before.
    drop(first);
    write(&source.join("app/config"), b"two");
    publisher.publish("", &["v2"]).expect_code(0);
    let _first = relay("first", &publisher.server.url(""));
    publisher.versions(&["--wait", "v2", "--count", "3"]).expect_code(0);
    assert_eq!(fs::read(current.join("app/config")).expect("read"), b"two");
    let old = format!("{}:/.tow-versions/v1/tree/app/config", at("first.sock"));
    run(tow(["get", &old]).arg(publisher.path("old"))).expect_code(0);
    assert_eq!(fs::read(publisher.path("old")).expect("read"), b"one");
    // A label may come again for another version.
    write(&source.join("app/config"), b"three");
    publisher.publish("", &["v3", "--keep", "1"]).expect_code(0);
    publisher.versions(&["--wait", "v3", "--count", "3"]).expect_code(0);
    write(&source.join("app/config"), b"four");
    publisher.publish("", &["v2", "--keep", "1"]).expect_code(0);
    publisher.versions(&["--wait", "v2", "--count", "3"]).expect_code(0);
    assert_eq!(fs::read(current.join("app/config")).expect("read"), b"four");
    let who = object(&publisher.versions(&["--who", "v2", "--json"]).expect_code(0));
    let names: Vec<_> = who["holders"].as_array().expect("a list").iter().map(|holder| &holder["name"]).collect();
    assert_eq!(names, ["child", "first", "second"]);
    assert_eq!(
        fs::read_dir(publisher.path("second/.tow-versions")).expect("read").count(),
        2,
        "the one before is kept"
    );
}

/// The right to publish one path affects neither other paths' followers, nor their labels, nor the versions that are kept.
#[test]
fn a_version_belongs_to_its_path() {
    let publisher = Publisher::start(&["--accept-publish"]);
    let (source, url) = (publisher.path("source"), publisher.server.url(""));
    write(&source.join("app/config"), b"right");
    write(&source.join("scratch/x"), b"evil");
    publisher.publish("", &["v1"]).expect_code(0);
    publisher.publish("scratch", &["evil"]).expect_code(0);
    publisher.publish("scratch", &["v1", "--keep", "1"]).expect_code(0);
    assert!(publisher.path("state/versions/v1").exists() && publisher.path("state/versions/=scratch/v1").exists());
    assert!(!publisher.path("state/versions/=scratch/evil").exists());
    let once = |url: &str, copy: &str| run(tow(["follow", url, "--versions", "--once"]).arg(publisher.path(copy)));
    once(&url, "all").expect_code(0);
    assert_eq!(fs::read(publisher.path("all/current/app/config")).expect("read"), b"right");
    once(&publisher.server.url("scratch"), "scratch").expect_code(0);
    let current = publisher.path("scratch/current");
    assert_eq!(fs::read(current.join("scratch/x")).expect("read"), b"evil");
    assert!(!current.join("app").exists());
    // Both are listed, and each is known by its path.
    let listed = publisher.listed();
    assert!(
        listed.lines().count() == 2 && listed.contains("  v1\n") && listed.contains("  v1 of scratch\n"),
        "{listed}"
    );
    // One destination has one `current`.
    let outcome = once(&publisher.server.url("scratch"), "all").expect_code(2);
    assert!(outcome.stderr.contains("--adopt"), "{}", outcome.stderr);
    assert_eq!(fs::read(publisher.path("all/current/app/config")).expect("read"), b"right");
    // A follower of one path lacks nothing of another one.
    let _one = follow(&url, &publisher.path("one"), "one");
    let _other = follow(&publisher.server.url("scratch"), &publisher.path("other"), "other");
    publisher.versions(&["--wait", "v1", "--count", "2"]).expect_code(0);
    publisher.versions_of("scratch", &["--wait", "v1", "--count", "2"]).expect_code(0);
    let who = object(&publisher.versions(&["--who", "v1", "--json"]).expect_code(0));
    assert_eq!((&who["holders"][0]["name"], who["missing"].as_array().map(Vec::len)), (&"one".into(), Some(0)));
}

/// Two followers on one host have the same name by default.
#[test]
fn versions_of_nothing_are_not_found() {
    let publisher = Publisher::start(&["--accept-publish"]);
    publisher.publish("app", &["v1"]).expect_code(0);
    publisher.versions_of("app", &[]).expect_code(0);
    let outcome = publisher.versions_of("apq", &[]).expect_code(4);
    assert!(
        outcome.stdout.is_empty() && outcome.stderr.contains("apq: the server says: not found"),
        "{}",
        outcome.stderr
    );
    let outcome = publisher.versions(&["--who", "app/v1"]).expect_code(4);
    assert!(outcome.stderr.contains("tow versions HOST:/ lists all"), "{}", outcome.stderr);
}

#[test]
fn followers_of_one_name_are_distinct() {
    let publisher = Publisher::start(&["--accept-publish"]);
    let url = publisher.server.url("");
    write(&publisher.path("source/app/config"), b"one");
    publisher.publish("", &["v1"]).expect_code(0);
    // One of versions and two of everything.
    let _versions = follow(&url, &publisher.path("versions"), "host");
    let live = |copy: &str| Process::start(tow(["follow", &url, "--name", "host"]).arg(publisher.path(copy)));
    let (_one, _other) = (live("one"), live("other"));
    publisher.versions(&["--wait", "v1"]).expect_code(0);
    let who = object(&publisher.versions(&["--who", "v1", "--json"]).expect_code(0));
    assert_eq!((who["holders"].as_array().map(Vec::len), &who["missing"]), (Some(1), &Value::Array(Vec::new())));
    let now = || {
        let printed = text(&publisher.versions(&["--json"]).expect_code(0));
        serde_json::from_str::<Value>(printed.lines().last().expect("a line")).expect("JSON")
    };
    wait_until("both have everything", || now()["holders"].as_array().map(Vec::len) == Some(3));
    let seq = now()["version"].to_string();
    publisher.versions(&["--wait", &seq, "--count", "3"]).expect_code(0);
    let who = text(&publisher.versions(&["--who", &seq]).expect_code(0));
    assert_eq!(who.lines().filter(|line| line.starts_with("host copy ")).count(), 3, "{who}");
}
