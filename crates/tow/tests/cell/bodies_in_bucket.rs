//! Bodies over 16 MiB of a cell, in a bucket of a real S3 server.

use rustix::process::Signal;
use tempfile::TempDir;

use super::Cell;
use super::bodies::{content, sent};
use super::members::Member;
use super::s3::{BUCKET, S3};
use crate::support::broker::{call, work};
use crate::support::process::run;
use crate::support::wait_until;

const LARGE: usize = (40 << 20) + 77;

/// A cell whose large bodies are in a bucket.
struct Shared {
    cell: Cell,
    s3: S3,
    folder: TempDir,
}

impl Shared {
    fn on(s3: S3) -> Option<Shared> {
        let shared = Shared { cell: Cell::start(1)?, s3, folder: tempfile::tempdir().expect("a folder") };
        run(shared.s3.known_to(shared.cell.queue("init").args(["--bodies", &shared.url()]))).expect_code(0);
        Some(shared)
    }

    fn url(&self) -> String {
        format!("s3://{BUCKET}/bodies")
    }

    fn member(&self, name: &str) -> Member {
        Member::prepared(&self.cell, name, &["--bodies", &self.url()], |command| _ = self.s3.known_to(command))
    }

    /// Keys of bodies.
    fn bodies(&self) -> Vec<String> {
        self.s3.keys().into_iter().filter(|key| key.ends_with(".body")).collect()
    }
}

#[test]
fn large_body_in_a_bucket_survives_the_leader_and_is_removed_afterwards() {
    for s3 in S3::each() {
        let Some(shared) = Shared::on(s3) else { return };
        let one = shared.member("one");
        one.await_leading();
        let two = shared.member("two");
        two.await_standby();
        let load = sent(&shared.folder, &[&one, &two], LARGE, "100");
        wait_until("it is in the log", || shared.cell.status()["requests"] == 1);
        let bodies = shared.bodies();
        assert!(bodies.len() == 1 && bodies[0].starts_with("bodies/test/"), "{bodies:?}");
        assert!(shared.s3.content(&bodies[0]) == content(LARGE));
        one.broker.signal(Signal::KILL);
        two.await_leading();
        let _echo = work(&[&two.broker], &["echo", "--echo"]);
        assert!(load.finish().expect_code(0).stdout == content(LARGE), "the reply is another");
        wait_until("its objects are removed", || shared.bodies().is_empty());
        assert_eq!(shared.s3.uploads(), Vec::<String>::new());
    }
}

#[test]
fn while_the_store_is_away_large_requests_are_refused_and_small_ones_go_on() {
    let Some(mut shared) = S3::any().and_then(Shared::on) else { return };
    let one = shared.member("one");
    one.await_leading();
    let _echo = work(&[&one.broker], &["echo", "--echo"]);
    let answered = sent(&shared.folder, &[&one], LARGE, "100").finish().expect_code(0);
    assert_eq!(answered.stdout.len(), LARGE);
    shared.s3.kill();
    wait_until("it is refused", || {
        let refused = sent(&shared.folder, &[&one], 17 << 20, "3").finish();
        refused.stderr.contains("503") && refused.stderr.contains("have large bodies")
    });
    let small = run(&mut call(&[&one.broker], &["echo", "hello", "--timeout", "50"])).expect_code(0);
    assert_eq!(small.stdout, b"hello");
    shared.s3.run();
    wait_until("it is there again", || one.broker.log().contains("the place of large bodies is there again"));
    let answered = sent(&shared.folder, &[&one], 17 << 20, "100").finish().expect_code(0);
    assert_eq!(answered.stdout.len(), 17 << 20);
}

#[test]
fn a_body_that_was_replaced_in_the_bucket_is_given_to_nobody() {
    let Some(shared) = S3::any().and_then(Shared::on) else { return };
    let one = shared.member("one");
    one.await_leading();
    let two = shared.member("two");
    two.await_standby();
    let load = sent(&shared.folder, &[&one, &two], LARGE, "100");
    wait_until("it is in the log", || shared.cell.status()["requests"] == 1);
    one.broker.signal(Signal::KILL);
    let body = shared.bodies().remove(0);
    shared.s3.put(&body, &vec![9; LARGE]);
    two.await_leading();
    let _echo = work(&[&two.broker], &["echo", "--echo"]);
    wait_until("it is noticed", || two.broker.log().contains("isn't what was put there"));
    // After as many attempts as any request has.
    let failed = load.finish();
    assert!(failed.stdout.is_empty() && failed.status.code() != Some(0), "{}", failed.stderr);
}

#[test]
fn a_broker_whose_place_was_not_made_does_not_start() {
    let Some(shared) = S3::any().and_then(Shared::on) else { return };
    let mut command = shared.cell.broker_command(super::ANY);
    let failed = run(shared.s3.known_to(command.args(["--bodies", "s3://bucket/elsewhere"]))).expect_code(1);
    assert!(failed.stderr.contains("tow queue init --bodies"), "{}", failed.stderr);
}
