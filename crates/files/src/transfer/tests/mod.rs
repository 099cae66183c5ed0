//! The transfer against a simulated server and disk, in virtual time: any order of events that a seed can bring about,
//! with cuts, voids, changes and corruption.

mod disk;
mod hostile;
mod in_order;
mod reuse;
pub(crate) mod server;
mod timeouts;
pub(crate) mod world;

use std::time::Duration;

use proptest::prelude::*;

use super::{Error, Found, Partial};
use crate::digest::{LeafHasher, LeafSize};
use crate::protocol::control::{Compression, Range};
use server::SimFile;
use world::{Faults, World, noise};

const MIB: usize = 1 << 20;

/// Sizes around what matters: nothing, small files, one leaf, several.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![
        4 => 0usize..3000,
        2 => 60_000usize..70_000,
        1 => Just(MIB),
        1 => MIB..3 * MIB,
    ];
    proptest::collection::vec(size, 1..12)
}

fn world(sizes: &[usize], seed: u64) -> World {
    let mut world = World::new(seed);
    for (index, size) in sizes.iter().enumerate() {
        // Some deeper than others.
        let deeper = "in/".repeat(index / 3 % 3);
        world.server.add(&format!("d{}/{deeper}f{index:02}", index % 3), noise(*size, seed ^ index as u64));
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn tree_arrives_in_any_order_of_events(sizes in sizes(), seed in any::<u64>(), compress in any::<bool>(), fresh in any::<bool>()) {
        let mut world = world(&sizes, seed);
        world.options.compress = compress.then_some(Compression::Zstd);
        world.fresh = fresh;
        let outcome = world.run();
        prop_assert_eq!(outcome.failure, None);
        prop_assert_eq!((outcome.totals.failed, outcome.totals.files), (0, sizes.len() as u64), "{:?}", outcome.totals);
        prop_assert_eq!(outcome.totals.verified, sizes.len() as u64);
        prop_assert_eq!(outcome.totals.unfinished_bytes, 0);
        prop_assert_eq!(outcome.totals.bytes, sizes.iter().sum::<usize>() as u64);
        world.check_installed()?;
        // The destination itself was there.
        world.disk.made.insert(Vec::new());
        prop_assert_eq!(&world.disk.made, &world.disk.finished);
        prop_assert_eq!(world.server.confirmed.len(), sizes.len());
    }

    #[test]
    fn tree_arrives_in_spite_of_cuts_voids_changes_and_corruption(sizes in sizes(), seed in any::<u64>(), compress in any::<bool>()) {
        let mut world = world(&sizes, seed);
        world.options.compress = compress.then_some(Compression::Zstd);
        // All voids and changes may meet one file, which is retried `RETRIES_MAX` times.
        world.faults = Faults { cuts: 6, voids: 2, changes: 1, corruptions: 2 };
        assert!(world.faults.voids + world.faults.changes <= super::RETRIES_MAX as usize);
        let outcome = world.run();
        prop_assert_eq!(outcome.failure, None);
        prop_assert_eq!((outcome.totals.failed, outcome.totals.files), (0, sizes.len() as u64), "{:?}", outcome.totals);
        prop_assert_eq!(outcome.totals.unfinished_bytes, 0);
        world.check_installed()?;
    }

    /// A busy server is no failure and no attempt.
    #[test]
    fn busy_server_is_asked_for_less(
        sizes in sizes(), seed in any::<u64>(), fetches in 1usize..3, files in 1usize..5, cuts in 0usize..3,
    ) {
        let mut world = world(&sizes, seed);
        world.server.space = Some((fetches, files));
        world.faults.cuts = cuts;
        let outcome = world.run();
        prop_assert_eq!(outcome.failure, None);
        prop_assert_eq!((outcome.totals.failed, outcome.totals.files), (0, sizes.len() as u64), "{:?}", outcome.totals);
        world.check_installed()?;
    }

    /// Whatever was left by an earlier transfer isn't fetched again.
    #[test]
    fn resumed_bytes_are_not_fetched_again(size in 2 * MIB + 1..5 * MIB, kept in proptest::collection::vec(any::<bool>(), 5), tail in 0usize..MIB, seed in any::<u64>()) {
        let mut world = World::new(seed);
        let content = noise(size, seed);
        world.server.add("f", content.clone());
        let leaves = LeafSize::for_file(size as u64);
        let mut whole = Vec::new();
        let mut there = 0;
        for leaf in (0..leaves.count() - 1).filter(|leaf| kept[*leaf as usize]) {
            let (offset, length) = leaves.range(leaf).unwrap();
            let mut hasher = LeafHasher::new(leaves, leaf).unwrap();
            hasher.update(&content[offset as usize..(offset + length) as usize]).unwrap();
            whole.push((leaf, hasher.finish().unwrap()));
            there += length;
        }
        let (offset, length) = leaves.range(leaves.count() - 1).unwrap();
        let tail = (tail as u64).min(length - 1);
        let tail_range = (tail > 0).then_some(Range { offset, length: tail });
        world.disk.leave(b"f", &content, &whole, tail_range);
        world.disk.found.insert(b"f".to_vec(), Found::Partial(Partial { digest: None, leaves, whole, tail: tail_range }));
        let outcome = world.run();
        prop_assert_eq!(outcome.failure, None);
        prop_assert_eq!(outcome.totals.resumed_bytes, there + tail);
        prop_assert_eq!(outcome.totals.received_bytes, size as u64 - there - tail);
        world.check_installed()?;
    }

    /// The rest is of another version with the same size and time: that is noticed, and only what differs is
    /// fetched again.
    #[test]
    fn wrong_resumed_leaf_is_found_and_fetched_again(wrong_leaf in 0u64..3, seed in any::<u64>()) {
        let mut world = World::new(seed);
        let content = noise(4 * MIB, seed);
        world.server.add("f", content.clone());
        let mut wrong = content.clone();
        wrong[wrong_leaf as usize * MIB + 5] ^= 1;
        let leaves = LeafSize::for_file(content.len() as u64);
        let hash = |leaf| {
            let (offset, length) = leaves.range(leaf).unwrap();
            let mut hasher = LeafHasher::new(leaves, leaf).unwrap();
            hasher.update(&wrong[offset as usize..(offset + length) as usize]).unwrap();
            (leaf, hasher.finish().unwrap())
        };
        let whole: Vec<_> = (0..3).map(hash).collect();
        world.disk.leave(b"f", &wrong, &whole, None);
        world.disk.found.insert(b"f".to_vec(), Found::Partial(Partial { digest: None, leaves, whole, tail: None }));
        let outcome = world.run();
        prop_assert_eq!((outcome.failure, outcome.totals.failed), (None, 0));
        prop_assert_eq!(outcome.totals.received_bytes, 2 * MIB as u64);
        prop_assert_eq!(outcome.totals.resumed_bytes, 2 * MIB as u64);
        world.check_installed()?;
    }
}

#[test]
fn small_window_is_enough() {
    let mut world = world(&[3 * MIB, 100, 200_000], 3);
    (world.options.window_bytes, world.options.chunk_bytes) = (10_000, 1 << 20);
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.files), (None, 3));
}

#[test]
fn file_that_is_always_corrupt_fails_and_the_rest_arrives() {
    let mut world = world(&[2 * MIB, 5000, 100], 4);
    world.server.always_corrupt = Some("d1/f01".to_owned());
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.files, outcome.totals.failed), (None, 2, 1));
    assert!(outcome.totals.failures[0].reason.contains("digest"), "{:?}", outcome.totals.failures);
    assert!(!world.disk.installed.contains_key(b"d1/f01".as_slice()));

    let mut large = world_of_large_wrong();
    let outcome = large.run();
    assert_eq!((outcome.failure, outcome.totals.files, outcome.totals.failed), (None, 0, 1));
    // All of it once, and the wrong leaf three times more.
    assert_eq!(outcome.totals.received_bytes, 6 * MIB as u64);
}

fn world_of_large_wrong() -> World {
    let mut world = World::new(5);
    world.server.add("large", noise(3 * MIB, 5));
    world.server.always_corrupt = Some("large".to_owned());
    world
}

#[test]
fn file_that_is_always_void_fails() {
    let mut world = world(&[MIB, 100], 6);
    world.server.always_void = Some("d0/f00".to_owned());
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.files, outcome.totals.failed), (None, 1, 1));
    assert!(outcome.totals.failures[0].reason.contains("void"), "{:?}", outcome.totals.failures);
}

#[test]
fn server_that_is_always_busy_fails_the_files() {
    let mut world = world(&[5000, 100], 6);
    world.server.space = Some((0, 0));
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.files, outcome.totals.failed), (None, 0, 2));
    assert!(outcome.totals.failures[0].reason.contains("no space"), "{:?}", outcome.totals.failures);
    assert!(world.server.refused < 100, "{}", world.server.refused);
}

#[test]
fn full_disk_is_reported_before_anything_is_fetched() {
    let mut world = world(&[MIB, MIB], 7);
    world.disk.free = Some(2 * MIB as u64 - 1);
    let outcome = world.run();
    assert!(matches!(outcome.failure, Some(Error::DiskFull(_))), "{:?}", outcome.failure);
    assert_eq!(outcome.totals.received_bytes, 0);
}

#[test]
fn existing_files_need_no_space() {
    let mut world = world(&[2 * MIB, 2 * MIB, 100], 11);
    world.disk.free = Some(100);
    world.disk.found.insert(b"d0/f00".to_vec(), Found::Same { touch: true });
    let digest = SimFile::new(noise(2 * MIB, 11 ^ 1)).digest;
    world.disk.found.insert(b"d1/f01".to_vec(), Found::SameSize(digest));
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.files, outcome.totals.skipped), (None, 3, 2));
    assert_eq!(outcome.totals.received_bytes, 100);
}

#[test]
fn disk_error_fails_only_its_file() {
    let mut world = world(&[2 * MIB, MIB, 100], 8);
    world.disk.broken = Some(b"d0/f00".to_vec());
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.files, outcome.totals.failed), (None, 2, 1));
}

#[test]
fn directory_that_cannot_be_made_is_reported_once() {
    let mut world = world(&[100, 200, 300], 8);
    world.disk.broken = Some(b"d1".to_vec());
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.files, outcome.totals.failed), (None, 3, 1));
    assert_eq!(outcome.totals.failures[0].path, "d1");
}

#[test]
fn silent_server_stalls_the_transfer() {
    let mut world = world(&[100], 9);
    world.server.silent = true;
    let outcome = world.run();
    assert_eq!(outcome.failure, Some(Error::Stalled { seconds: 60, connected: true }));
    assert!(world.elapsed() <= Duration::from_secs(70));
}

#[test]
fn cancelling_cancels_the_requests() {
    let mut world = world(&[3 * MIB], 10);
    world.cancel_after_pieces = Some(1);
    let outcome = world.run();
    assert_eq!(outcome.failure, Some(Error::Cancelled));
    assert!(world.server.cancelled > 0);
}

#[test]
fn existing_files_are_skipped() {
    let mut world = world(&[100, 2 * MIB], 11);
    world.disk.found.insert(b"d0/f00".to_vec(), Found::Same { touch: true });
    let digest = SimFile::new(noise(2 * MIB, 11 ^ 1)).digest;
    world.disk.found.insert(b"d1/f01".to_vec(), Found::SameSize(digest));
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.files, outcome.totals.skipped), (None, 2, 2));
    assert_eq!(outcome.totals.received_bytes, 0);
}
