//! Whether a server can be restarted, and what keeps one from being drained.

use std::io::Read;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::operator::letters_and_drains::{at, service, with_dead_letters};
use crate::operator::status::Place;
use crate::support::broker::{call, work};
use crate::support::process::{Process, tow};
use crate::support::tree::write;
use crate::support::wait_until;

fn status(place: &Place) -> Value {
    place.json(&["status"]).remove(0)
}

/// The member `restart` of the status: lost and again.
fn cost(place: &Place) -> (u64, u64) {
    let restart = status(place)["restart"].clone();
    let [lost, again] = ["lost", "again"].map(|member| restart[member].as_u64().expect("a number"));
    assert_eq!(restart["safe"], lost + again == 0, "{restart}");
    (lost, again)
}

/// The first line of `tow status`.
fn first_line(place: &Place) -> String {
    let text = String::from_utf8(place.tow(&["status"]).expect_code(0).stdout).expect("UTF-8");
    text.lines().next().expect("a line").to_owned()
}

#[test]
fn a_restart_without_a_journal_loses_what_stock_clients_wait_for() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let worker = work(&[&broker], &["echo", "--jobs", "2", "--", "sleep", "100"]);
    let _held = Process::start(&mut call(&[&broker], &["echo", "numbered"]));
    wait_until("the worker has it", || cost(&place) == (0, 1));
    assert_eq!(first_line(&place), "restart now nothing is lost; 1 run again (1 with workers)");
    let _stock = [1, 2].map(|_| Process::start(&mut call(&[&broker], &["echo", "stock", "--dialect", "mdp01"])));
    wait_until("the worker has one of them, and another one waits", || service(&place, "echo", "waiting") == 1);
    assert_eq!(cost(&place), (2, 1));
    let line = first_line(&place);
    let expected =
        "restart now 2 would be lost, 1 run again (2 of stock clients, which don't ask again; 1 with workers)";
    assert_eq!(line, expected);
    drop(worker);
    wait_until("no worker has them", || service(&place, "echo", "waiting") == 3);
    assert_eq!(cost(&place), (2, 0));
}

#[test]
fn a_restart_with_a_journal_is_safe_unless_workers_have_something() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let arguments = ["--journal", folder.path().to_str().expect("UTF-8")];
    let broker = place.broker(&arguments);
    let gone = Process::start(&mut call(&[&broker], &["echo", "hello"]));
    let volatile = Process::start(&mut call(&[&broker], &["echo", "volatile", "--volatile"]));
    wait_until("both wait", || service(&place, "echo", "waiting") == 2);
    assert_eq!(first_line(&place), "restart now safe (what is held is in the journal, or its clients ask again)");
    // Without its client, the one that isn't in the journal would be lost.
    gone.signal(Signal::KILL);
    gone.finish();
    wait_until("a client is gone", || place.json(&["peers"]).len() == 1);
    assert_eq!(cost(&place), (0, 0));
    volatile.signal(Signal::KILL);
    volatile.finish();
    wait_until("both are gone", || place.json(&["peers"]).is_empty());
    assert_eq!(cost(&place), (1, 0));
    assert_eq!(first_line(&place), "restart now 1 would be lost (1 of clients that are away, in no journal)");
    broker.signal(Signal::KILL);
    broker.finish();
    let _broker = place.broker(&arguments);
    assert_eq!((service(&place, "echo", "waiting"), cost(&place)), (1, (0, 0)));
}

#[test]
fn a_restart_of_a_file_server_interrupts_transfers() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    write(&folder.path().join("large.bin"), &vec![7; 64 << 20]);
    let server = place.serve(folder.path());
    assert_eq!(first_line(&place), "restart now safe (there are no transfers)");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let client = Process::with_output(&mut tow(["get", &server.url("large.bin"), "-"]), writer.into());
    reader.read_exact(&mut [0; 1024]).expect("the transfer has begun");
    assert_eq!(cost(&place), (0, 1));
    let line = "restart now nothing is lost; 1 would be interrupted (1 transfer; clients resume with what they have)";
    assert_eq!(first_line(&place), line);
    std::io::copy(&mut reader, &mut std::io::sink()).expect("the content");
    client.finish().expect_code(0);
    wait_until("it is over", || cost(&place) == (0, 0));
}

#[test]
fn a_drain_says_what_never_ends_and_why() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let broker = with_dead_letters(&place, &folder.path().join("journal"), 2);
    let _worker = work(&[&broker], &["paused", "--", "cat"]);
    place.tow(&["pause", "paused"]).expect_code(0);
    assert_eq!(status(&place)["left_never"], Value::Null);
    let calls = [call(&[&broker], &["paused", "x"]), call(&[&broker], &["nobody", "x"]), {
        let mut command = tow(["call", "--b64", "//4=", "x"]);
        command.args(["--connect", broker.endpoint()]);
        command
    }];
    let calls = calls.map(|mut call| Process::start(&mut call));
    wait_until("three wait", || status(&place)["left"] == 3);
    let drained = place.tow(&["drain"]).expect_code(0);
    assert_eq!(drained.stdout, b"drains: 3 left\n");
    let expected = [
        "tow: never ends: 2 dead letters of echo: dead letters stay until they are requeued or dropped; tow dead-letters echo",
        "tow: never ends: 1 request of paused: the service is paused; tow resume paused, or tow purge paused",
        "tow: never ends: 1 request of nobody: no worker serves it; tow work nobody, or tow purge nobody",
        "tow: never ends: 1 request of \\xff\\xfe: no worker serves it; tow work --b64 //4=, or tow purge --b64 //4=",
    ];
    let mut said: Vec<_> = drained.stderr.lines().collect();
    said.sort_unstable();
    let mut lines = expected.to_vec();
    lines.sort_unstable();
    assert_eq!(said, lines);
    let never = status(&place)["left_never"].clone();
    let letters = never.as_array().expect("a list").iter().find(|entry| entry["kind"] == "dead_letters");
    assert_eq!(letters.map(|entry| (&entry["service"], &entry["count"])), Some((&"echo".into(), &2.into())), "{never}");
    let text = String::from_utf8(place.tow(&["status"]).expect_code(0).stdout).expect("UTF-8");
    assert!(text.contains("\nNEVER ENDS  1 request of paused: the service is paused; "), "{text}");

    // What ends after all ends the wait, whatever dead letters stay.
    let draining = Process::start(&mut at(&place, &["drain", "--wait"]));
    wait_until("it says so", || draining.output().contains("3 left"));
    place.tow(&["resume", "paused"]).expect_code(0);
    place.tow(&["purge", "nobody"]).expect_code(0);
    place.tow(&["purge", "--b64", "//4="]).expect_code(0);
    let drained = draining.finish().expect_code(0);
    assert_eq!(drained.stderr.matches("never ends: 1 request of paused").count(), 1, "{}", drained.stderr);
    calls.into_iter().for_each(|call| drop(call.finish()));
}
