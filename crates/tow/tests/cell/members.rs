//! Operators of a cell: each broker shows all of them, and what is wrong with the cell.

use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Cell, await_leader};
use crate::support::broker::Broker;
use crate::support::process::{Outcome, run, tow};
use crate::support::wait_until;

/// A broker of a cell with a name, and with a socket of its own for its operator.
pub struct Member {
    pub broker: Broker,
    folder: TempDir,
}

impl Member {
    pub fn start(cell: &Cell, name: &str) -> Member {
        Member::with(cell, name, &[])
    }

    /// With more options, and environment.
    pub fn with(cell: &Cell, name: &str, options: &[&str]) -> Member {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = tow(["broker", "--bind", super::ANY, "--grace", "0.1", "--takeover-after", "2s"]);
        cell.options(&mut command);
        command.args(["--advertise", &endpoint(name)]).args(options);
        here(&mut command, &folder);
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
