//! The end of a disk, and other programs at its files.

use super::super::transfer::{ContentSpec, FileKey, Version};
use super::*;
use crate::client::names::partial_names;
use crate::digest::LeafSize;
use crate::root::Timestamp;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Instant;

/// A file of so many bytes takes minutes to hash.
const SIZE: u64 = 1 << 40;

/// Wherever another program shortens a partial file: the transfer fails, and nothing is left that could be resumed.
#[test]
fn shortened_partial_file_fails_and_is_removed() {
    const LEAF: usize = 1 << 20;
    for (verify, sparse) in [(true, false), (false, false), (true, true)] {
        for cut_at in [1, 3] {
            let folder = tempfile::tempdir().unwrap();
            let modified = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
            let version = Version { size: 3 * LEAF as u64, modified, mode: 0o644, sparse };
            let (content, leaves) = (ContentKey(2), LeafSize::for_file(version.size));
            let local = "f".parse().unwrap();
            let spec = ContentSpec {
                content,
                local,
                version,
                leaves,
                verify,
                digest: None,
                values: None,
                resume: false,
                reuse: false,
            };
            let options = DiskOptions { verify, workers: 2, ..DiskOptions::default() };
            let mut disk = Disk::start(folder.path(), options, || {}).unwrap();
            disk.command(DiskCommand::Begin(spec));
            let (part, _) = partial_names(b"f");
            let part = folder.path().join(OsString::from_vec(part));
            let mut failed = None;
            for leaf in 0..4 {
                if leaf == cut_at {
                    std::fs::OpenOptions::new().write(true).open(&part).unwrap().set_len(5000).unwrap();
                }
                if leaf < 3 {
                    let part = Part { leaf, offset: leaf * LEAF as u64, length: LEAF as u64, credit: 0 };
                    disk.command(DiskCommand::Write { content, part, data: vec![7; LEAF].into() });
                } else {
                    disk.command(DiskCommand::Install { file: FileKey(1), content });
                }
                let report = disk.wait_report(Duration::from_secs(10)).unwrap();
                if let DiskReport::Written { result: Err(error), .. }
                | DiskReport::Installed { result: Err(error), .. } = report
                {
                    failed.get_or_insert(error.message);
                }
            }
            assert!(failed.is_some_and(|message| message.contains("shortened")), "{verify} {sparse} {cut_at}");
            drop(disk);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
}

#[test]
fn end_does_not_wait_for_hashing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::File::create(folder.path().join("there")).unwrap().set_len(SIZE).unwrap();
    let options = DiskOptions { verify: true, workers: 2, ..DiskOptions::default() };
    let modified = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    let version = Version { size: SIZE, modified, mode: 0o644, sparse: true };
    let (content, leaves) = (ContentKey(2), LeafSize::for_file(SIZE));
    let spec = ContentSpec {
        content,
        local: "hole".parse().unwrap(),
        version,
        leaves,
        verify: true,
        digest: None,
        values: None,
        resume: false,
        reuse: false,
    };
    let mut disk = Disk::start(folder.path(), options, || {}).unwrap();
    disk.command(DiskCommand::Begin(spec));
    disk.command(DiskCommand::Zeros { content, leaf: 0, offset: 0, length: SIZE, credit: 0 });
    disk.command(DiskCommand::Inspect {
        file: FileKey(1),
        local: "there".parse().unwrap(),
        listed: version,
        digest: None,
    });
    // Both workers have begun.
    let (part, _) = partial_names(b"hole");
    let part = folder.path().join(OsString::from_vec(part));
    let start = Instant::now();
    while !part.exists() && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(part.exists());
    assert!(disk.wait_report(Duration::from_millis(100)).is_none());
    let start = Instant::now();
    drop(disk);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

/// Wrong leaves are taken back in the state; and a transfer that resumes without verifying says so in it.
#[test]
fn state_records_verified_and_forgotten_leaves() {
    const LEAF: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let modified = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    let version = Version { size: 4 * LEAF as u64, modified, mode: 0o644, sparse: false };
    let (_, state_name) = partial_names(b"f");
    let state_name = folder.path().join(OsString::from_vec(state_name));
    let state = || state::read(&std::fs::File::open(&state_name).unwrap()).unwrap().unwrap();
    for verify in [true, false] {
        let content = ContentKey(2);
        let (local, leaves) = ("f".parse().unwrap(), LeafSize::for_file(version.size));
        let spec = ContentSpec {
            content,
            local,
            version,
            leaves,
            verify,
            digest: None,
            values: None,
            resume: !verify,
            reuse: false,
        };
        let mut disk =
            Disk::start(folder.path(), DiskOptions { verify, workers: 1, ..DiskOptions::default() }, || {}).unwrap();
        disk.command(DiskCommand::Begin(spec));
        for leaf in if verify { 0..3 } else { 1..2 } {
            let part = Part { leaf, offset: leaf * LEAF as u64, length: LEAF as u64, credit: 0 };
            disk.command(DiskCommand::Write { content, part, data: vec![7; LEAF].into() });
            disk.wait_report(Duration::from_secs(10)).unwrap();
        }
        if verify {
            assert_eq!(state().whole.len(), 3);
            disk.command(DiskCommand::ForgetLeaves { content, leaves: vec![1] });
            assert_eq!((state().header.verified, state().whole.into_keys().collect::<Vec<_>>()), (true, vec![0, 2]));
        } else {
            assert_eq!((state().header.verified, state().whole.len()), (false, 3));
        }
    }
}
