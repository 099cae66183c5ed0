//! Operators of a cell: each broker shows all of them, and what is wrong with the cell.

use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::nats::Nats;
use super::{Cell, await_leader};
use crate::support::broker::Broker;
use crate::support::process::{Outcome, run, tow};
use crate::support::{skip, wait_until};

/// A broker of a cell with a name, and with a socket of its own for its operator.
pub struct Member {
    pub broker: Broker,
    folder: TempDir,
}

impl Member {
    pub fn start(cell: &Cell, name: &str) -> Member {
        Member::with(cell, name, &[])
    }

    /// With more options.
    pub fn with(cell: &Cell, name: &str, options: &[&str]) -> Member {
        Member::prepared(cell, name, options, |_| {})
    }

    /// With more options, and whatever else its command is to have.
    pub fn prepared(cell: &Cell, name: &str, options: &[&str], prepare: impl FnOnce(&mut Command)) -> Member {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = tow(["broker", "--bind", super::ANY, "--grace", "0.1"]);
        if !options.contains(&"--takeover-after") {
            command.args(["--takeover-after", "2s"]);
        }
        cell.options(&mut command);
        command.args(["--advertise", &endpoint(name)]).args(options);
        here(&mut command, &folder);
        prepare(&mut command);
        Member { broker: Broker::from_command(&mut command), folder }
    }

    /// A command of its operator.
    pub fn operate(&self, words: &[&str]) -> Outcome {
        let mut command = tow(words);
        here(&mut command, &self.folder);
        run(&mut command)
    }

    pub fn status(&self) -> Value {
        self.operate(&["status", "--json"]).expect_code(0).summary()
    }

    /// The member of this name, as this one sees it.
    pub fn sees(&self, name: &str) -> Value {
        let status = self.status();
        let members = status["cell"]["members"].as_array().cloned().unwrap_or_default();
        members.into_iter().find(|member| member["endpoint"] == endpoint(name)).unwrap_or_default()
    }

    /// Waits for a problem of this kind, and returns its subject and cause.
    #[track_caller]
    pub fn await_problem(&self, kind: &str) -> String {
        let mut found = None;
        wait_until(&format!("there is a problem {kind}"), || {
            found = self.problem(kind);
            found.is_some()
        });
        found.unwrap_or_default()
    }

    pub fn problem(&self, kind: &str) -> Option<String> {
        // Its status is that of the gravest problem.
        let problems: Value = self.operate(&["status", "--check", "--json"]).summary();
        let found = problems["problems"].as_array()?.iter().find(|problem| problem["kind"] == kind)?.clone();
        Some(format!("{}: {}", found["subject"].as_str()?, found["cause"].as_str()?))
    }

    pub fn await_leading(&self) {
        await_leader(&self.broker);
    }

    pub fn await_standby(&self) {
        wait_until("it stands by", || self.broker.log().contains("standby"));
    }
}

fn here(command: &mut Command, folder: &TempDir) {
    command.env("XDG_RUNTIME_DIR", folder.path()).env("XDG_STATE_HOME", folder.path());
    command.env_remove("RUNTIME_DIRECTORY").env_remove("STATE_DIRECTORY");
}

pub fn endpoint(name: &str) -> String {
    format!("tcp://{name}.example:5555")
}

/// An account of a member that isn't there.
fn account(name: &str, unix_ms: u64, changes: &Value) -> String {
    let mut account = json!({
        "version": 1, "broker": "ab".repeat(16), "endpoint": endpoint(name), "role": "standby", "epoch": 1, "leads_ms": null,
        "seen": 5, "behind": 0, "format": 1, "program": "9.9", "failure": null, "unix_ms": unix_ms,
    });
    let changes = changes.as_object().expect("an object").clone();
    account.as_object_mut().expect("an object").extend(changes);
    account.to_string()
}

#[test]
fn each_member_shows_all_of_them() {
    let Some(cell) = Cell::start(1) else { return };
    let one = Member::start(&cell, "one");
    one.await_leading();
    let two = Member::start(&cell, "two");
    two.await_standby();
    wait_until("they know each other", || one.sees("two")["there"] == true && two.sees("two")["role"] == "standby");
    let status = two.status();
    let of_cell = &status["cell"];
    assert_eq!((&of_cell["role"], &of_cell["leader"]), (&json!("standby"), &json!(endpoint("one"))), "{status}");
    assert!(of_cell["led_seconds"].as_f64().is_some_and(|led| led > 0.0), "{status}");
    assert_eq!(of_cell["queue"]["bytes_max"], 64 << 20, "{status}");
    assert_eq!((two.sees("two")["self"].clone(), two.sees("two")["behind"].clone()), (json!(true), json!(0)));
    let text = String::from_utf8(two.operate(&["status"]).stdout).expect("text");
    for part in [
        "cell        test: standby; tcp://one.example:5555 leads for",
        "two.example:5555 (this one) standby, up to date",
        "NATS        1 replica",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Somebody who isn't a member sees them, too.
    let seen = cell.status();
    let roles: Vec<_> =
        seen["members"].as_array().expect("members").iter().map(|member| member["role"].clone()).collect();
    assert_eq!(roles, ["leading", "standby"], "{seen}");
    // A killed one is missing, and one that ends in good order isn't.
    two.broker.signal(Signal::KILL);
    wait_until("it is missing", || one.sees("two")["there"] == false);
    let three = Member::start(&cell, "three");
    wait_until("it is there", || one.sees("three")["there"] == true);
    three.broker.signal(Signal::TERM);
    wait_until("it is forgotten", || one.sees("three").is_null());
    assert_eq!(one.sees("two")["there"], false);
}

/// Milliseconds since 1970, and so many more.
fn unix_ms(more: i64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time");
    (now.as_millis() as u64).saturating_add_signed(more)
}

#[test]
fn what_is_wrong_with_members_is_a_problem() {
    let Some(cell) = Cell::start(1) else { return };
    let one = Member::start(&cell, "one");
    one.await_leading();
    let publish = |skew: i64, changes: Value| {
        cell.nats.publish("tow.cell.test.members", &account("odd", unix_ms(skew), &changes));
    };
    // Its clock is wrong, and it is behind for long.
    let mut cause = None;
    wait_until("its clock is a problem", || {
        publish(30_000, json!({ "behind": 5000 }));
        cause = one.problem("clock_skew");
        cause.is_some()
    });
    let cause = cause.unwrap_or_default();
    assert!(cause.starts_with("member tcp://odd.example:5555: its clock is ") && cause.contains("ahead"), "{cause}");
    wait_until("it is behind", || {
        publish(0, json!({ "behind": 5000 }));
        one.problem("standby_behind").is_some_and(|cause| cause.ends_with("5,000 messages behind"))
    });
    // It is gone, and comes again.
    one.await_problem("standby_missing");
    let newer = json!({ "failure": "it is of format 2", "format": 2 });
    wait_until("it can't read the log", || {
        publish(0, newer.clone());
        one.problem("standby_behind").is_some_and(|cause| cause.ends_with("can't read the log: it is of format 2"))
    });
    assert_eq!(one.problem("standby_missing"), None);
    publish(0, json!({ "role": "left" }));
    wait_until("it is forgotten", || one.sees("odd").is_null());
}

#[test]
fn a_setting_that_was_changed_is_a_problem() {
    let Some(cell) = Cell::start(1) else { return };
    let one = Member::start(&cell, "one");
    one.await_leading();
    let two = Member::start(&cell, "two");
    two.await_standby();
    let config = r#"{"name":"TOW_test","subjects":["tow.cell.test"],"storage":"file","num_replicas":1,"retention":"limits",
        "discard":"new","max_bytes":67108864,"max_age":3600000000000,"allow_direct":true,"deny_delete":true}"#;
    let updated = cell.nats.request("$JS.API.STREAM.UPDATE.TOW_test", &config.replace('\n', " "));
    assert!(!updated.contains("\"error\""), "{updated}");
    for member in [&one, &two] {
        let cause = member.await_problem("queue_settings");
        assert!(cause.starts_with("queue of the cell: max_age is 3600000000000"), "{cause}");
    }
    let check = run(&mut cell.queue("check")).expect_code(1);
    assert!(String::from_utf8_lossy(&check.stdout).contains("max_age is"));
}

#[test]
fn lost_quorum_is_a_problem_of_all_members() {
    let Some(mut cell) = Cell::start(3) else { return };
    let one = Member::start(&cell, "one");
    one.await_leading();
    let two = Member::start(&cell, "two");
    two.await_standby();
    let (leader, standby) = (&one, &two);
    cell.nats.kill_node(2);
    leader.await_problem("replica_behind");
    cell.nats.kill_node(1);
    for member in [leader, standby] {
        let cause = member.await_problem("cell_stopped");
        assert!(cause.starts_with("cell: nothing can be appended to its log: "), "{cause}");
    }
    wait_until("the status is that of a problem", || leader.operate(&["status", "--check"]).status.code() == Some(11));
    cell.nats.start_node(1);
    cell.nats.start_node(2);
    let is_over =
        || [leader, standby].iter().all(|member| member.operate(&["status", "--check"]).status.code() == Some(0));
    wait_until("all is well again", is_over);
}

#[test]
fn how_nats_syncs_is_shown_by_its_monitoring_port() {
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
    let store = tempfile::tempdir().expect("a folder");
    let rarely = format!(
        "server_name: rare\nhttp: 127.0.0.1:{port}\njetstream {{ store_dir: \"{}\", sync_interval: 10s }}\n",
        store.path().display()
    );
    let monitor = format!("http://127.0.0.1:{port}");
    let Some(nats) = Nats::start_with(1, &rarely) else { return skip("there is no nats-server") };
    let cell = Cell::on(nats, "1", "64M");
    let one = Member::with(&cell, "one", &["--queue-monitor", &monitor]);
    let cause = one.await_problem("queue_settings");
    assert!(cause.contains("sync_interval of the NATS server rare is 10 s, not `always`"), "{cause}");
    let check = run(cell.queue("check").args(["--queue-monitor", &monitor])).expect_code(1);
    assert!(String::from_utf8_lossy(&check.stdout).contains("rare only every 10s"), "{:?}", check.stdout);
    let two = Member::with(&cell, "two", &["--queue-monitor", "http://127.0.0.1:9"]);
    wait_until("it is unknown", || {
        String::from_utf8_lossy(&two.operate(&["status"]).stdout).contains("http://127.0.0.1:9 unknown: ")
    });
    assert_eq!(two.problem("queue_settings"), None);
    assert!(run(&mut cell.queue("check")).stderr.contains("is unknown"));
}
