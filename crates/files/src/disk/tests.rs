//! The end of a disk, and other programs at its files.

use super::*;
use crate::digest::LeafSize;
use crate::root::Timestamp;
use crate::transfer::names::partial_names;
use crate::transfer::{ContentSpec, FileKey, Version};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Instant;

/// A file of this many bytes takes minutes to hash.
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

const MODIFIED: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };

/// Installs a small file, and waits for it.
fn put_small(disk: &mut Disk, local: &str, content: &'static [u8]) {
    let version = Version { size: content.len() as u64, modified: MODIFIED, mode: 0o644, sparse: false };
    let (local, data) = (local.parse().unwrap(), vec![Bytes::from_static(content)]);
    disk.command(DiskCommand::Small(SmallFile { file: FileKey(1), local, version, digest: None, data, credit: 0 }));
    disk.flush();
    let report = disk.wait_report(Duration::from_secs(10));
    assert!(matches!(&report, Some(DiskReport::Small { result: Ok(_), .. })), "{report:?}");
}

/// Other programs move, remove and exchange directories at any time: a file goes where its path leads.
#[test]
fn files_follow_their_path_and_not_a_directory_that_was_moved() {
    let folder = tempfile::tempdir().unwrap();
    let (top, elsewhere) = (folder.path().join("top"), folder.path().join("elsewhere"));
    std::fs::create_dir(&top).unwrap();
    let mut disk = Disk::start(&top, DiskOptions { workers: 1, ..DiskOptions::default() }, || {}).unwrap();
    put_small(&mut disk, "d/1", b"1");
    std::fs::rename(top.join("d"), &elsewhere).unwrap();
    put_small(&mut disk, "d/2", b"2");
    std::fs::remove_dir_all(top.join("d")).unwrap();
    put_small(&mut disk, "d/3", b"3");
    put_small(&mut disk, "e/4", b"4");
    for (from, to) in [("d", "t"), ("e", "d"), ("t", "e")] {
        std::fs::rename(top.join(from), top.join(to)).unwrap();
    }
    put_small(&mut disk, "e/5", b"5");
    let names = |dir: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&elsewhere), ["1"]);
    assert_eq!((names(&top.join("d")), names(&top.join("e"))), (vec!["4".into()], vec!["3".into(), "5".into()]));
}

/// Nor does a large file get its name in a directory that isn't at its path any more, and nothing of it stays there.
#[test]
fn large_file_of_a_moved_directory_fails() {
    const LEAF: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let (top, elsewhere) = (folder.path().join("top"), folder.path().join("elsewhere"));
    std::fs::create_dir(&top).unwrap();
    let mut disk = Disk::start(&top, DiskOptions { workers: 2, ..DiskOptions::default() }, || {}).unwrap();
    let version = Version { size: 2 * LEAF as u64, modified: MODIFIED, mode: 0o644, sparse: false };
    let (content, leaves) = (ContentKey(2), LeafSize::for_file(version.size));
    let local = "d/f".parse().unwrap();
    let (verify, digest, values, resume, reuse) = (false, None, None, false, false);
    disk.command(DiskCommand::Begin(ContentSpec {
        content,
        local,
        version,
        leaves,
        verify,
        digest,
        values,
        resume,
        reuse,
    }));
    for leaf in 0..2 {
        let part = Part { leaf, offset: leaf * LEAF as u64, length: LEAF as u64, credit: 0 };
        disk.command(DiskCommand::Write { content, part, data: vec![7; LEAF].into() });
        disk.wait_report(Duration::from_secs(10)).unwrap();
    }
    std::fs::rename(top.join("d"), &elsewhere).unwrap();
    std::fs::create_dir(top.join("d")).unwrap();
    disk.command(DiskCommand::Install { file: FileKey(1), content });
    let report = disk.wait_report(Duration::from_secs(10));
    let Some(DiskReport::Installed { result: Err(error), .. }) = report else { panic!("{report:?}") };
    assert!(error.message.contains("its directory was moved or replaced meanwhile"), "{error}");
    drop(disk);
    assert!([elsewhere, top.join("d")].iter().all(|dir| std::fs::read_dir(dir).unwrap().count() == 0));
}
