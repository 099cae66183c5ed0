//! Resuming partial files after a crash of the machine, and without one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::super::state::{BootId, State, boot_id};
use super::super::{DiskOptions, lock};
use super::*;
use crate::root::Timestamp;

const MIB: usize = 1 << 20;
const MODIFIED: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 7 };

struct Partly {
    temp: tempfile::TempDir,
    content: Vec<u8>,
    leaves: LeafSize,
}

impl Partly {
    /// A partial file of 4 MiB and 100 bytes: leaves 0 and 2 are complete, and 1,000 bytes of leaf 3 are there.
    fn new(boot: BootId, verified: bool) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let mut content = vec![0; 4 * MIB + 100];
        blake3::Hasher::new().finalize_xof().fill(&mut content);
        let leaves = LeafSize::for_file(content.len() as u64);
        let value = |leaf: u64| (leaf, if verified { hash(leaves, leaf, &content) } else { [0; 32] });
        let path = Digest::of(b"f").0;
        let header = Header { verified, sparse: false, modified: MODIFIED, leaves, boot, path };
        let whole = BTreeMap::from([value(0), value(2)]);
        let state = State { header, digest: Some(Digest([5; 32])), whole, length: 0 };
        let (part, state_name) = names(temp.path());
        let mut there = content[..3 * MIB + 1000].to_vec();
        there[MIB..2 * MIB].fill(0);
        fs::write(part, there).unwrap();
        fs::write(state_name, state.encode()).unwrap();
        Self { temp, content, leaves }
    }

    fn inspect(&self, verify: bool) -> Option<Partial> {
        let size = self.content.len() as u64;
        self.inspect_as(Version { size, modified: MODIFIED, mode: 0o644, sparse: false }, verify)
    }

    fn inspect_as(&self, listed: Version, verify: bool) -> Option<Partial> {
        let destination = Destination::new(
            self.temp.path(),
            DiskOptions { verify, ..DiskOptions::default() },
            std::sync::Arc::default(),
        )
        .unwrap();
        match inspect(&destination, &"f".parse().unwrap(), &listed, None, &Cancelled::default()).unwrap() {
            Found::Partial(partial) => Some(partial),
            Found::Nothing => None,
            other => panic!("{other:?}"),
        }
    }

    fn value(&self, leaf: u64) -> (u64, Leaf) {
        (leaf, hash(self.leaves, leaf, &self.content))
    }
}

fn hash(leaves: LeafSize, leaf: u64, content: &[u8]) -> Leaf {
    let (offset, length) = leaves.range(leaf).unwrap();
    let mut hasher = LeafHasher::new(leaves, leaf).unwrap();
    hasher.update(&content[offset as usize..(offset + length) as usize]).unwrap();
    hasher.finish().unwrap()
}

fn names(directory: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
    let (part, state) = partial_names(b"f");
    (directory.join(String::from_utf8(part).unwrap()), directory.join(String::from_utf8(state).unwrap()))
}

#[test]
fn partial_file_is_trusted_within_a_boot() {
    let partly = Partly::new(boot_id(), true);
    // Not even read: this byte isn't noticed before the digest of the whole is checked.
    let (part, _) = names(partly.temp.path());
    let file = fs::OpenOptions::new().write(true).open(part).unwrap();
    file.write_all_at(b"x", 5).unwrap();
    let partial = partly.inspect(true).unwrap();
    assert_eq!(partial.whole, vec![partly.value(0), partly.value(2)]);
    assert_eq!(partial.tail, Some(Range { offset: 3 * MIB as u64, length: 1000 }));
    assert_eq!(partial.digest, Some(Digest([5; 32])));
}

#[test]
fn after_a_crash_only_leaves_that_hash_right_are_resumed() {
    for boot in [[1; 16], [0; 16]] {
        let partly = Partly::new(boot, true);
        let (part, state) = names(partly.temp.path());
        let file = fs::OpenOptions::new().write(true).open(part).unwrap();
        file.write_all_at(b"x", 2 * MIB as u64 + 5).unwrap();
        let partial = partly.inspect(true).unwrap();
        assert_eq!((partial.whole, partial.tail), (vec![partly.value(0)], None));
        // The result is recorded, so that the next time is as quick as any.
        let state = state::read(&fs::File::open(state).unwrap()).unwrap().unwrap();
        assert_eq!((state.header.boot, state.whole.len()), (boot_id(), 1));
    }
}

/// Cut off by another program: what is behind the cut is gone, also after more is written there.
#[test]
fn leaves_that_were_cut_off_are_not_resumed() {
    for verified in [true, false] {
        let partly = Partly::new(boot_id(), verified);
        let (part, _) = names(partly.temp.path());
        let file = fs::OpenOptions::new().write(true).open(part).unwrap();
        file.set_len(2 * MIB as u64 + 5).unwrap();
        let partial = partly.inspect(verified).unwrap();
        let (whole, _): (Vec<u64>, Vec<Leaf>) = partial.whole.into_iter().unzip();
        assert_eq!((whole, partial.tail), (vec![0], None));
        // Nor by the next one.
        file.set_len(4 * MIB as u64).unwrap();
        assert_eq!(partly.inspect(verified).unwrap().whole.len(), 1);
    }
}

#[test]
fn leaves_that_were_cut_off_are_not_resumed_after_the_file_grew_again() {
    let partly = Partly::new(boot_id(), true);
    let (part, _) = names(partly.temp.path());
    let file = fs::OpenOptions::new().write(true).open(part).unwrap();
    file.set_len(2 * MIB as u64 + 5000).unwrap();
    file.set_len(3 * MIB as u64 + 1000).unwrap();
    let partial = partly.inspect(true).unwrap();
    assert_eq!((partial.whole, partial.tail), (vec![partly.value(0)], None));
}

#[test]
fn unverified_leaves_are_hashed_before_they_are_resumed() {
    let partly = Partly::new(boot_id(), false);
    assert_eq!(partly.inspect(false).unwrap().whole, vec![(0, [0; 32]), (2, [0; 32])]);
    assert_eq!(partly.inspect(true).unwrap().whole, vec![partly.value(0), partly.value(2)]);
}

#[test]
fn partial_file_of_another_version_is_not_resumed() {
    let partly = Partly::new(boot_id(), true);
    let size = partly.content.len() as u64;
    let other_time = Timestamp { seconds: 1, nanoseconds: 0 };
    for listed in [
        Version { size: size + 1, modified: MODIFIED, mode: 0o644, sparse: false },
        Version { size, modified: other_time, mode: 0o644, sparse: false },
    ] {
        assert_eq!(partly.inspect_as(listed, true), None);
    }
}

#[test]
fn leaf_without_a_record_is_fetched_again() {
    let partly = Partly::new(boot_id(), true);
    let (part, _) = names(partly.temp.path());
    fs::OpenOptions::new().write(true).open(part).unwrap().set_len(4 * MIB as u64).unwrap();
    assert_eq!(partly.inspect(true).unwrap().tail, None);
}

/// A transfer that verified had all of it and the digest, but was killed before it knew which leaf is wrong.
#[test]
fn wrong_content_is_not_resumed_without_verification() {
    let partly = Partly::new(boot_id(), true);
    let (part, state_name) = names(partly.temp.path());
    fs::write(part, &partly.content).unwrap();
    let mut state = state::read(&File::open(&state_name).unwrap()).unwrap().unwrap();
    state.whole = (0..5).map(|leaf| partly.value(leaf)).collect();
    fs::write(&state_name, state.encode()).unwrap();
    assert_eq!(partly.inspect(true).unwrap().whole.len(), 5);
    let right = State { digest: Some(Digest::of(&partly.content)), ..state.clone() };
    fs::write(&state_name, right.encode()).unwrap();
    assert_eq!(partly.inspect(false).unwrap().whole.len(), 5);
    fs::write(&state_name, state.encode()).unwrap();
    assert_eq!(partly.inspect(false), None);
}

#[test]
fn leftovers_are_removed() {
    let listed = |size| Version { size, modified: MODIFIED, mode: 0o644, sparse: false };
    let left = |partly: &Partly| fs::read_dir(partly.temp.path()).unwrap().count();
    // The file is small now, or its version is another one.
    for size in [MIB as u64, 9 * MIB as u64] {
        let partly = Partly::new(boot_id(), true);
        assert_eq!(partly.inspect_as(listed(size), true), None);
        assert_eq!(left(&partly), 0);
    }
    // Another transfer is writing it.
    let partly = Partly::new(boot_id(), true);
    let (part, state) = names(partly.temp.path());
    let held = File::open(&part).unwrap();
    lock::lock(&held).unwrap();
    assert_eq!(partly.inspect_as(listed(MIB as u64), true), None);
    assert_eq!(left(&partly), 2);
    drop(held);
    // Killed between the file's getting its name and the end of its state.
    fs::remove_file(part).unwrap();
    assert!(state.exists());
    assert_eq!(partly.inspect(true), None);
    assert_eq!(left(&partly), 0);
}

#[test]
fn a_content_that_is_known_isnt_read() {
    let temp = tempfile::tempdir().unwrap();
    let (path, local) = (temp.path().join("f"), "f".parse::<RelPath>().unwrap());
    fs::write(&path, "content").unwrap();
    let ledger = std::sync::Arc::new(crate::disk::Ledger::default());
    let options = DiskOptions { verify: true, ..DiskOptions::default() };
    let destination = Destination::new(temp.path(), options, std::sync::Arc::clone(&ledger)).unwrap();
    // Another one than it has, which shows where it comes from.
    let (known, wanted) = (Digest([7; 32]), Digest([8; 32]));
    let stat = || destination.root().stat(&local).unwrap();
    let find = |modified, digest| {
        let listed = Version { size: 7, modified, mode: 0o644, sparse: false };
        inspect(&destination, &local, &listed, Some(digest), &Cancelled::default())
    };
    assert_eq!(find(MODIFIED, wanted), Ok(Found::SameSize(Digest::of(b"content"))));
    ledger.plan(&local, Some(stat()), true, vec![known, wanted]);
    assert_eq!(find(MODIFIED, wanted), Ok(Found::SameSize(known)));
    assert!(matches!(find(stat().modified, known), Ok(Found::Same { .. })));
    // It isn't known any more once it was put there, or somebody has changed it.
    destination.placed(&local, || Ok(stat())).unwrap();
    assert_eq!(find(MODIFIED, wanted), Ok(Found::SameSize(Digest::of(b"content"))));
    ledger.plan(&local, Some(stat()), true, vec![known, wanted]);
    fs::File::options().write(true).open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert!(find(MODIFIED, wanted).is_err());
}
