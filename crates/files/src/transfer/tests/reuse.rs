//! Leaves of older files, which aren't fetched again.

use proptest::prelude::*;

use super::MIB;
use super::server::SimFile;
use super::world::{Faults, World, noise};
use crate::transfer::Found;

/// An older version with other bytes in these leaves, of this size.
fn older_than(content: &[u8], changed: &[bool], size: usize) -> Vec<u8> {
    let mut older = content.to_vec();
    for (leaf, _) in changed.iter().enumerate().filter(|(_, is_changed)| **is_changed) {
        if let Some(byte) = older.get_mut(leaf * MIB + 77) {
            *byte ^= 1;
        }
    }
    older.resize(size, 5);
    older
}

fn found(content: &[u8], older: &[u8]) -> Found {
    match older.len() == content.len() {
        true => Found::SameSize(SimFile::new(older.to_vec()).digest),
        false => Found::Older { bytes: older.len() as u64 },
    }
}

/// Bytes of the leaves that differ.
fn bytes_that_differ(content: &[u8], older: &[u8]) -> u64 {
    let leaves = content.chunks(MIB).enumerate();
    let differing = leaves.filter(|(leaf, bytes)| older.get(leaf * MIB..leaf * MIB + bytes.len()) != Some(*bytes));
    differing.map(|(_, bytes)| bytes.len() as u64).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn only_leaves_that_differ_are_fetched(
        size in 4 * MIB..7 * MIB,
        changed in proptest::collection::vec(any::<bool>(), 7),
        grown in prop_oneof![Just(0i64), -3 * MIB as i64..2 * MIB as i64],
        seed in any::<u64>(),
    ) {
        let mut world = World::new(seed);
        let content = noise(size, seed);
        let older = older_than(&content, &changed, (size as i64 + grown) as usize);
        world.server.add("f", content.clone());
        world.server.add("small", noise(100, 1));
        world.disk.found.insert(b"f".to_vec(), found(&content, &older));
        world.disk.older.insert(b"f".to_vec(), older.clone());
        let outcome = world.run();
        prop_assert_eq!((outcome.failure, outcome.totals.failed, outcome.totals.verified), (None, 0, 2));
        let is_same = content == older;
        let sent = if is_same { 0 } else { bytes_that_differ(&content, &older) };
        prop_assert_eq!(outcome.totals.received_bytes, sent + 100);
        prop_assert_eq!(outcome.totals.reused_bytes, if is_same { 0 } else { size as u64 - sent });
        prop_assert_eq!((outcome.totals.resumed_bytes, outcome.totals.unfinished_bytes), (0, 0));
        if !is_same {
            world.check_installed()?;
        }
        prop_assert_eq!(world.server.confirmed.len(), 2);
    }

    #[test]
    fn older_files_do_no_harm_in_spite_of_faults(
        sizes in proptest::collection::vec(4 * MIB..5 * MIB, 1..4),
        changed in proptest::collection::vec(any::<bool>(), 5),
        grown in -(MIB as i64)..MIB as i64,
        seed in any::<u64>(),
        space in proptest::option::of((1usize..3, 1usize..5)),
    ) {
        let mut world = World::new(seed);
        for (index, size) in sizes.iter().enumerate() {
            let (path, content) = (format!("f{index}"), noise(*size, seed ^ index as u64));
            let older = older_than(&content, &changed, (*size as i64 + grown) as usize);
            world.disk.found.insert(path.clone().into_bytes(), found(&content, &older));
            world.disk.older.insert(path.clone().into_bytes(), older);
            world.server.add(&path, content);
        }
        world.server.space = space;
        world.faults = Faults { cuts: 5, voids: 1, changes: 1, corruptions: 2 };
        let outcome = world.run();
        prop_assert_eq!((outcome.failure, outcome.totals.failures), (None, vec![]));
        prop_assert_eq!(outcome.totals.files, sizes.len() as u64);
        prop_assert_eq!(outcome.totals.unfinished_bytes, 0);
        if outcome.totals.skipped == 0 {
            world.check_installed()?;
        }
    }
}

/// The sample shows that there is no use in reading all of it.
#[test]
fn file_with_nothing_in_common_is_fetched_as_a_whole() {
    let mut world = World::new(3);
    let content = noise(40 * MIB, 3);
    world.server.add("f", content.clone());
    world.disk.found.insert(b"f".to_vec(), Found::Older { bytes: 39 * MIB as u64 });
    let mut older = noise(39 * MIB, 4);
    // One leaf in common that isn't in the sample.
    older[3 * MIB..4 * MIB].copy_from_slice(&content[3 * MIB..4 * MIB]);
    world.disk.older.insert(b"f".to_vec(), older);
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.received_bytes), (None, 40 * MIB as u64));
    assert_eq!((outcome.totals.reused_bytes, outcome.totals.verified), (0, 1));
}

#[test]
fn server_that_sends_no_values_is_asked_for_everything() {
    let mut world = World::new(4);
    let content = noise(5 * MIB, 4);
    world.server.add("f", content.clone());
    world.server.has_no_leaves = true;
    world.disk.found.insert(b"f".to_vec(), Found::Older { bytes: 4 * MIB as u64 });
    world.disk.older.insert(b"f".to_vec(), content[..4 * MIB].to_vec());
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.received_bytes), (None, 5 * MIB as u64));
    assert_eq!((outcome.totals.reused_bytes, outcome.totals.files), (0, 1));
}

#[test]
fn many_older_files_are_reused_a_few_at_a_time() {
    let mut world = World::new(5);
    for index in 0..20 {
        let (path, content) = (format!("f{index}"), noise(4 * MIB + 5, index));
        world.disk.found.insert(path.clone().into_bytes(), Found::Older { bytes: 4 * MIB as u64 });
        world.disk.older.insert(path.clone().into_bytes(), content[..4 * MIB].to_vec());
        world.server.add(&path, content);
    }
    let outcome = world.run();
    assert_eq!((outcome.failure, outcome.totals.files, outcome.totals.received_bytes), (None, 20, 20 * 5));
    assert!(world.disk.open_max <= 16, "{} at a time", world.disk.open_max);
}
