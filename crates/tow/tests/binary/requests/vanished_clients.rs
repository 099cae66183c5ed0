//! Clients that vanish before they have confirmed what they were sent: they cost others nothing, and nothing is left of them.

use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::operator::status::Place;
use crate::support::broker::{Broker, call, work};
use crate::support::process::run;
use crate::support::wait_until;
use crate::support::wire::Wire;

const REQUEST_BYTES: usize = 20_000;

/// Time of a request, in milliseconds.
const TTL_MS: u32 = 3_000;

fn hello(client: u32) -> Vec<u8> {
    let mut block = vec![0x01];
    block.extend_from_slice(&[0; 12]);
    block.extend_from_slice(&client.to_be_bytes());
    block.extend_from_slice(&1_u64.to_be_bytes());
    block
}

fn request(number: u64) -> Vec<u8> {
    let mut block = vec![0x02, 0];
    block.extend_from_slice(&number.to_be_bytes());
    block.extend_from_slice(&TTL_MS.to_be_bytes());
    block.extend_from_slice(b"\x04echo");
    block.extend_from_slice(&(REQUEST_BYTES as u32).to_be_bytes());
    block.resize(block.len() + REQUEST_BYTES, 7);
    block
}

/// The status of the first outcome that a client receives; 0 if it is refused.
fn outcome(wire: &mut Wire) -> u16 {
    loop {
        let frames = wire.receive().expect("a message");
        let mut block = &frames[1][..];
        while let Some(kind) = block.first() {
            let length = match kind {
                0x41 => 22,
                0x43 => 13,
                0x42 => return u16::from_be_bytes([block[10], block[11]]),
                _ => return 0,
            };
            block = &block[length..];
        }
    }
}

/// A client asks once, is answered, and vanishes.
fn vanish(broker: &Broker, client: u32) -> u16 {
    let mut wire = Wire::dealer(broker.port());
    wire.send(&[b"TWPC02".to_vec(), [hello(client), request(1)].concat()]).expect("send");
    outcome(&mut wire)
}

fn status(place: &Place) -> Value {
    place.json(&["status"]).remove(0)
}

fn leave_nothing(arguments: &[&str]) {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let journal = folder.path().join("journal");
    let mut all = vec!["--max-memory", "8M", "--outcome-grace", "3s", "--max-peers-per-address", "10000"];
    all.extend(arguments);
    let is_journalled = arguments == ["--journal"];
    all.extend(is_journalled.then(|| journal.to_str().expect("UTF-8")));
    let broker = place.broker(&all);
    let echo = work(&[&broker], &["echo", "--echo"]);
    // Three times what all outcomes may take.
    for client in 0..1_200 {
        assert_eq!(vanish(&broker, client), 200, "of client {client}");
    }
    let kept = status(&place);
    assert_eq!((&kept["counters"]["refused"], &kept["full"]), (&0.into(), &false.into()), "{kept}");
    wait_until("they give way", || status(&place)["outcome_bytes"].as_u64().is_some_and(|bytes| bytes <= 4 << 20));
    wait_until("nothing is left", || status(&place)["requests"] == 0);
    // The number is over all the same.
    let dispatched = status(&place)["counters"]["dispatched"].clone();
    assert_eq!((vanish(&broker, 0), vanish(&broker, 1_199)), (410, 410));
    assert_eq!(status(&place)["counters"]["dispatched"], dispatched);
    assert_eq!(vanish(&broker, 2_000), 200);
    if is_journalled {
        broker.signal(Signal::KILL);
        drop((broker, echo));
        let broker = place.broker(&all);
        let _echo = work(&[&broker], &["echo", "--echo"]);
        assert_eq!(status(&place)["outcomes"], 1);
        assert_eq!(run(&mut call(&[&broker], &["echo", "hello"])).expect_code(0).stdout, b"hello");
        // Not three seconds from the restart on.
        wait_until("nothing is left in the journal either", || status(&place)["outcomes"] == 0);
        // What was dropped isn't executed again.
        assert_eq!((vanish(&broker, 0), vanish(&broker, 2_000)), (410, 410));
    } else {
        let dropped = place.tow(&["purge", "--outcomes"]).expect_code(0);
        assert_eq!(dropped.stdout, b"dropped 1 outcome of clients that are gone\n");
        assert_eq!(status(&place)["requests"], 0);
    }
}

#[test]
fn outcomes_of_vanished_clients_cost_nothing_with_a_journal() {
    leave_nothing(&["--journal"]);
}

#[test]
fn outcomes_of_vanished_clients_cost_nothing_without_a_journal() {
    leave_nothing(&[]);
}
