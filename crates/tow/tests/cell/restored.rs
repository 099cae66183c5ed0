//! A stream that isn't the one that was there: nothing is accepted, and it is said.

use std::path::Path;
use std::process::Command;

use super::Cell;
use super::members::Member;
use crate::support::broker::{call, work};
use crate::support::process::run;
use crate::support::wait_until;

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp");
    assert!(copied.success(), "cp {} {}", from.display(), to.display());
}

#[test]
fn stream_restored_from_an_older_copy_accepts_nothing() {
    let Some(mut cell) = Cell::start(1) else { return };
    let one = Member::start(&cell, "one");
    one.await_leading();
    let two = Member::start(&cell, "two");
    two.await_standby();
    let _echo = work(&[&one.broker], &["echo", "--echo"]);
    let answered =
        |member: &Member, timeout: &str| run(&mut call(&[&member.broker], &["echo", "hello", "--timeout", timeout]));
    answered(&one, "50").expect_code(0);
    let backup = tempfile::tempdir().expect("a folder");
    let (store, copied) = (cell.nats.store(0), backup.path().join("store"));
    cell.nats.kill_node(0);
    copy(&store, &copied);
    cell.nats.start_node(0);
    // What was accepted since isn't in the copy.
    wait_until("it goes on", || answered(&one, "50").status.code() == Some(0));
    // A standby that hasn't seen it can't know that it is missing.
    let seen = |member: &Member| member.status()["cell"]["seen"].as_u64();
    wait_until("the standby has read it", || seen(&one).is_some_and(|all| seen(&two) >= Some(all)));
    cell.nats.kill_node(0);
    std::fs::remove_dir_all(&store).expect("remove");
    copy(&copied, &store);
    cell.nats.start_node(0);
    // At first NATS doesn't answer.
    let is_said = |said: String| said.contains("restored from an old copy") && said.contains("Nothing is accepted");
    wait_until("it is said", || one.problem("cell_stopped").is_some_and(is_said));
    let refused = answered(&one, "2");
    assert!(refused.stderr.contains("503"), "{}", refused.stderr);
    assert!(!super::leads(&two.broker), "{}", two.broker.log());
    // Who wants to go on with what is there starts all brokers again.
    drop((one, two));
    let again = Member::start(&cell, "one");
    again.await_leading();
    let _echo = work(&[&again.broker], &["echo", "--echo"]);
    answered(&again, "50").expect_code(0);
}

#[test]
fn newer_format_stops_old_brokers() {
    let Some(cell) = Cell::start(1) else { return };
    let one = Member::start(&cell, "one");
    one.await_leading();
    let two = Member::start(&cell, "two");
    two.await_standby();
    // Of format 99, as a broker of the future would write it.
    let message = format!("TOWCELL\n\u{63}\0{}", "\0".repeat(62));
    cell.nats.publish("tow.cell.test", &message);
    for member in [&one, &two] {
        let says = || {
            member.status()["cell"]["failure"]
                .as_str()
                .is_some_and(|why| why.contains("format 99; this build knows format"))
        };
        wait_until("it says so", says);
        let cause = member.await_problem("cell_stopped");
        assert!(cause.contains("Use a build that knows it"), "{cause}");
    }
    let refused = run(&mut call(&[&one.broker], &["echo", "hello", "--timeout", "2"]));
    assert_ne!(refused.status.code(), Some(0));
    assert_ne!(one.status()["cell"]["role"], "leading");
}
