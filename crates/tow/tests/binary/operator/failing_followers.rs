//! Followers that fail, are gone, or have ended, as an operator sees them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::operator::file_servers::{follower, list, serve};
use crate::operator::problems::problems;
use crate::operator::status::{Place, get};
use crate::support::process::{Process, Server, run, tow};
use crate::support::tree::{random_file, write};
use crate::support::{skip, wait_until};

/// A follower whose disk is full, until there is space.
struct Full {
    process: Process,
    space: PathBuf,
    _folder: TempDir,
}

impl Full {
    /// Follows to a tmpfs of 40 MiB, in which a file leaves so many KiB. None, and the test is skipped, where none can be mounted.
    fn start(arguments: &[&str], free_kib: u64) -> Option<Full> {
        let folder = tempdir().expect("a folder");
        let (mount, space) = (folder.path().join("disk"), folder.path().join("space"));
        fs::create_dir(&mount).expect("mkdir");
        let options: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
        let works = |flags: &&&[&str]| {
            let mut probe = Command::new("unshare");
            probe.args(**flags).args(["mount", "-t", "tmpfs", "tmpfs"]).arg(&mount);
            probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        let Some(flags) = options.iter().find(works) else {
            skip("no tmpfs can be mounted here, neither by unshare --mount nor in a user namespace");
            return None;
        };
        let script = format!(
            "mount -t tmpfs -o size=40m tmpfs \"$1\" || exit 70
            dd if=/dev/zero of=\"$1/ballast\" bs=1k count={} 2>/dev/null
            (while [ -d \"$1\" ] && [ ! -e \"$2\" ]; do sleep 0.1; done; rm \"$1/ballast\") >/dev/null 2>&1 &
            at=\"$1/copy\"; shift 2; exec \"$TOW\" follow \"$@\" \"$at\"",
            (40 << 10) - free_kib
        );
        let mut command = Command::new("unshare");
        command.args(*flags).args(["sh", "-c", &script, "sh"]).args([&mount, &space]).args(arguments);
        let process = Process::start(command.env("TOW", env!("CARGO_BIN_EXE_tow")));
        Some(Full { process, space, _folder: folder })
    }

    fn make_space(&self) {
        fs::write(&self.space, b"").expect("write");
    }
}

/// A server that publishes versions of a directory.
struct Publisher {
    place: Place,
    folder: TempDir,
    server: Server,
}

impl Publisher {
    fn start(options: &[&str]) -> Publisher {
        let (place, folder) = (Place::new(), tempdir().expect("a folder"));
        write(&folder.path().join("source/small"), b"one");
        let server = Publisher::serve(&place, folder.path(), options);
        Publisher { place, folder, server }
    }

    fn serve(place: &Place, folder: &Path, options: &[&str]) -> Server {
        let state = folder.join("state");
        let state = ["--watch", "--settle", "200ms", "--accept-publish", "--state", state.to_str().expect("UTF-8")];
        serve(place, &folder.join("source"), &[&state, options].concat())
    }

    fn restart(self, options: &[&str]) -> Publisher {
        let Publisher { place, folder, server } = self;
        server.stop(Signal::TERM).expect_code(0);
        let server = Publisher::serve(&place, folder.path(), options);
        Publisher { place, folder, server }
    }

    fn publish(&self, label: &str) {
        run(&mut tow(["publish", &self.server.url(""), label, "--timeout", "20s"])).expect_code(0);
    }

    fn follow(&self, name: &str, arguments: &[&str]) -> Process {
        let mut command = tow(["follow", &self.server.url(""), "--name", name]);
        Process::start(command.args(arguments).arg(self.folder.path().join(name)))
    }

    fn state(&self, name: &str) -> Option<String> {
        follower(&self.place, name).and_then(|of| of["state"].as_str().map(str::to_owned))
    }

    fn wait_for(&self, name: &str, state: &str) {
        wait_until(&format!("{name} is {state}: {:?}", follower(&self.place, name)), || {
            self.state(name).as_deref() == Some(state)
        });
    }

    /// The reply for a version.
    fn version(&self, label: &str) -> Value {
        let reply = get(&self.place.socket(), &format!("/api/v1/versions/{}", URL_SAFE_NO_PAD.encode(label)));
        serde_json::from_str(reply.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
    }
}

/// The only problem of a kind, once there is one.
fn problem(place: &Place, kind: &str) -> Value {
    wait_until(kind, || !problems(place, kind).is_empty());
    let mut found = problems(place, kind);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn a_version_that_a_full_disk_lacks_is_a_problem_in_the_followers_words() {
    let publisher = Publisher::start(&[]);
    let place = &publisher.place;
    let fine = publisher.follow("fine", &["--versions"]);
    let url = publisher.server.url("");
    let Some(full) = Full::start(&[&url, "--versions", "--name", "db-3"], 4 << 10) else { return };
    // It is known before there is anything to have.
    publisher.wait_for("db-3", "up_to_date");
    assert_eq!(follower(place, "db-3").expect("one")["versions_of"], "");
    random_file(&publisher.folder.path().join("source/large"), 16 << 20, 1);
    publisher.publish("v1");

    let failing = problem(place, "follower_failing");
    assert_eq!((&failing["subject"], &failing["severity"]), (&"follower db-3".into(), &"warning".into()));
    let cause = failing["cause"].as_str().expect("text");
    assert!(cause.starts_with("version v1: no space left: ") && cause.contains(" for "), "{cause}");
    assert!(failing["evidence"]["tries"].as_u64() >= Some(1), "{failing}");
    publisher.wait_for("fine", "up_to_date");
    wait_until("the other one has it", || publisher.version("v1")["version"]["holders"] == 1);
    let missing = problem(place, "version_missing");
    let cause = missing["cause"].as_str().expect("text");
    assert_eq!(missing["subject"], "versions of /");
    assert!(cause.starts_with("1 of 2 has v1; db-3: version v1: no space left: "), "{cause}");
    let metrics = get(&place.socket(), "/metrics");
    for kind in ["follower_failing", "version_missing"] {
        assert!(metrics.contains(&format!("towpath_problems{{kind=\"{kind}\"}} 1\n")), "{metrics}");
    }

    publisher.wait_for("db-3", "failing");
    let row = follower(place, "db-3").expect("one");
    assert_eq!((&row["lacks_files"], &row["wants"]), (&1.into(), &"v1".into()), "{row}");
    assert!(row["lacks_bytes"].as_u64().is_some_and(|bytes| bytes > 0 && bytes <= 16 << 20), "{row}");
    let table = String::from_utf8(place.tow(&["followers"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.contains("db-3  failing ") && table.contains("\ndb-3 fails: version v1: no space left"), "{table}");
    let version = publisher.version("v1");
    let shown: Vec<_> =
        version["followers"].as_array().expect("followers").iter().map(|of| (&of["name"], &of["has"])).collect();
    assert_eq!(shown, [(&"db-3".into(), &false.into()), (&"fine".into(), &true.into())], "{version}");
    assert_eq!(version["followers"][0]["error"], row["error"]);
    let who = run(&mut tow(["versions", &url, "--who", "v1"])).expect_code(1);
    let who = String::from_utf8(who.stdout).expect("UTF-8");
    assert!(who.contains("fine verified") && who.contains("db-3 missing") && who.contains("no space left"), "{who}");

    full.make_space();
    publisher.wait_for("db-3", "up_to_date");
    for kind in ["follower_failing", "version_missing"] {
        wait_until(&format!("{kind} is over"), || problems(place, kind).is_empty());
    }
    let row = follower(place, "db-3").expect("one");
    assert_eq!((&row["error"], &row["lacks_bytes"]), (&Value::Null, &Value::Null), "{row}");
    // One that ends by itself isn't missed.
    full.process.signal(Signal::TERM);
    full.process.finish();
    publisher.wait_for("db-3", "ended");
    write(&publisher.folder.path().join("source/small"), b"two");
    publisher.publish("v2");
    wait_until("the other one has it", || publisher.version("v2")["version"]["holders"] == 1);
    assert_eq!(publisher.version("v2")["version"]["missing"], 0);
    drop(fine);
}

#[test]
fn a_slow_follower_says_what_it_lacks_and_how_long_it_takes() {
    let publisher = Publisher::start(&[]);
    random_file(&publisher.folder.path().join("source/large"), 24 << 20, 1);
    publisher.publish("v1");
    let slow = publisher.follow("slow", &["--versions", "--bwlimit", "1M"]);
    let row = || follower(&publisher.place, "slow").unwrap_or_default();
    wait_until("it says how long it takes", || row()["seconds_left"].as_u64() > Some(1));
    let first = row();
    assert_eq!((&first["state"], &first["version"], &first["wants"]), (&"behind".into(), &Value::Null, &"v1".into()));
    let lacks = |row: &Value| row["lacks_bytes"].as_u64().unwrap_or(u64::MAX);
    assert!(lacks(&first) <= 24 << 20 && first["lacks_files"].as_u64() >= Some(1), "{first}");
    wait_until("it lacks less", || lacks(&row()) < lacks(&first));
    // It takes its time: that alone is no problem yet.
    assert!(problems(&publisher.place, "version_missing").is_empty());
    drop(slow);
    publisher.wait_for("slow", "gone");
}

#[test]
fn a_follower_behind_a_relay_speaks_through_it() {
    let publisher = Publisher::start(&[]);
    let socket = format!("ipc://{}", publisher.folder.path().join("relay.sock").display());
    let _relay = publisher.follow("relay", &["--serve", &socket]);
    wait_until("the relay serves", || publisher.folder.path().join("relay.sock").exists());
    let Some(full) = Full::start(&[&format!("{socket}:/"), "--name", "leaf"], 0) else { return };
    let failing = problem(&publisher.place, "follower_failing");
    let cause = failing["cause"].as_str().expect("text");
    assert!(cause.contains("no space left") && cause.ends_with(", via relay"), "{failing}");
    full.make_space();
    wait_until("it is over", || problems(&publisher.place, "follower_failing").is_empty());
    publisher.wait_for("leaf", "up_to_date");
    full.process.signal(Signal::KILL);
    drop(full);
    publisher.wait_for("leaf", "gone");
}

#[test]
fn a_plain_follower_onto_a_full_disk_is_listed_with_its_error_until_there_is_space() {
    let publisher = Publisher::start(&[]);
    let url = publisher.server.url("");
    // Not even the record of what was followed can be written.
    let Some(full) = Full::start(&[&url, "--name", "edge-7"], 0) else { return };
    let failing = problem(&publisher.place, "follower_failing");
    let cause = failing["cause"].as_str().expect("text");
    assert!(cause.contains("no space left") && failing["subject"] == "follower edge-7", "{failing}");
    publisher.wait_for("edge-7", "failing");
    full.make_space();
    publisher.wait_for("edge-7", "up_to_date");
    wait_until("it is over", || problems(&publisher.place, "follower_failing").is_empty());
}

#[test]
fn a_follower_is_remembered_across_a_restart_until_it_is_forgotten() {
    let publisher = Publisher::start(&[]);
    let killed = publisher.follow("db-3", &[]);
    publisher.wait_for("db-3", "up_to_date");
    let once = publisher.follow("cron", &["--once"]);
    once.finish().expect_code(0);
    publisher.wait_for("cron", "ended");
    let refused = publisher.place.tow(&["forget", "db-3"]).expect_code(5);
    assert!(refused.stderr.contains("it is connected"), "{}", refused.stderr);
    killed.signal(Signal::KILL);
    drop(killed);
    publisher.wait_for("db-3", "gone");
    let names = publisher.folder.path().join("names");
    fs::write(&names, "# machines\ndb-3\nnever   # not yet installed\n\n").expect("write");
    let publisher = publisher.restart(&["--followers", names.to_str().expect("UTF-8")]);
    publisher.wait_for("db-3", "gone");
    assert_eq!(publisher.state("cron").as_deref(), Some("ended"));
    assert_eq!(publisher.state("never").as_deref(), Some("never_seen"));
    let table = String::from_utf8(publisher.place.tow(&["followers"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.contains("never  never seen"), "{table}");
    // The file is read again when it changes; one with a mistake isn't taken.
    fs::write(&names, format!("{}\n", "n".repeat(65))).expect("write");
    wait_until("it says so", || publisher.server.log().contains("was NOT read again"));
    assert_eq!(publisher.state("never").as_deref(), Some("never_seen"));
    fs::write(&names, "db-3\nlater\n").expect("write");
    publisher.wait_for("later", "never_seen");
    assert_eq!(publisher.state("never"), None);
    fs::write(&names, "db-3\n").expect("write");
    publisher.server.signal(Signal::HUP);
    wait_until("it isn't expected any more", || publisher.state("later").is_none());
    publisher.place.tow(&["forget", "cron"]).expect_code(0);
    assert_eq!(publisher.state("cron"), None);
    let refused = publisher.place.tow(&["forget", "cron"]).expect_code(5);
    assert!(refused.stderr.contains("no follower of this name"), "{}", refused.stderr);
    let audit = list(&publisher.place, "/api/v1/audit", "audit");
    assert_eq!((&audit[1]["action"], &audit[1]["object"]), (&"forget".into(), &"cron".into()), "{audit:?}");
    // It comes back, and has not been forgotten.
    let back = publisher.follow("db-3", &[]);
    publisher.wait_for("db-3", "up_to_date");
    assert_eq!(publisher.place.json(&["followers"]).iter().filter(|of| of["name"] == "db-3").count(), 1);
    drop(back);
}

#[test]
fn names_of_followers_are_checked() {
    let folder = tempdir().expect("a folder");
    let names = folder.path().join("names");
    let serve = || {
        let mut command = tow(["serve", "--watch", "--bind", "tcp://127.0.0.1:0", "--followers"]);
        run(command.arg(&names).arg(folder.path())).expect_code(2)
    };
    assert!(serve().stderr.contains("No such file"));
    fs::write(&names, format!("good\n{}\n", "n".repeat(65))).expect("write");
    let refused = serve();
    assert!(refused.stderr.contains("line 2: a name has 1 to 64 bytes"), "{}", refused.stderr);
}
