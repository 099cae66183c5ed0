//! A whole follow: a directory that programs change, a server that watches it, followers, and what goes wrong between them. One seed decides the
//! order of what happens, and the followers' time. Directories, the kernel's events, the stored catalogue and the followers' records are
//! real, and so is all that decides: watcher, catalogue, session, follower, transfer and disk. The network isn't, nor what serves content
//! (`SimServer`). The watcher's clock, leases and inode numbers are the machine's, so a seed may not fail each time: it takes a file system that
//! gives an inode's number to the next file, as ext4 does. File systems are mounted, and modes concern the server, if the test is run by root.
//!
//! What is checked, at every step (`checks`): 1. When all is quiet a mirror is what the source is, and any other follower has it all. 2. Under a
//! final name is only a content that the source had complete, or a person's. 3. A number never means two things, and a stored cursor, or one that
//! was said, means that everything up to it is in place. 4. Whichever events are lost, one scan makes the catalogue what the tree
//! is; and if none was lost, so do the events, but for unreadable paths, which followers learn of. 5. Nothing is published as deleted
//! that is there, nor because a file system isn't mounted, and never more than may be at a time, here and there, unless a person allows it.
//! 6. What was renamed isn't sent again, and what a person changed isn't lost.
//!
//! A run has some seeds that are always the same. TOWPATH_SEEDS=N adds N random ones, and prints them; TOWPATH_SEED=N runs one again,
//! TOWPATH_TRACE=1 shows what happens.
#![allow(clippy::unwrap_used)]

mod checks;
mod devices;
mod member;
mod source;
mod world;

use crate::server::simulated::has_own_mounts;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn traces() -> bool {
    std::env::var_os("TOWPATH_TRACE").is_some()
}

#[test]
fn followers_have_what_the_source_has_whatever_goes_wrong() {
    let (first, count) = (RandomState::new().hash_one(0) >> 16, number("TOWPATH_SEEDS").unwrap_or(0));
    let seeds = match number("TOWPATH_SEED") {
        Some(seed) => vec![seed],
        None => (1..=25).chain(first..first + count).collect(),
    };
    println!("random seeds: {count} from {first}");
    // In a thread of their own, which may have mounts of its own.
    let run = std::thread::spawn(move || run(seeds));
    run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn run(seeds: Vec<u64>) {
    let can_mount = has_own_mounts();
    let mut tally = std::collections::BTreeMap::new();
    for seed in seeds {
        let outcome = catch_unwind(AssertUnwindSafe(|| World::new(seed, can_mount).run(&mut tally)));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(why)) => panic!("TOWPATH_SEED={seed}: {why}"),
            Err(_) => panic!("TOWPATH_SEED={seed}: it panics, see above"),
        }
    }
    println!("{tally:?}");
}
