//! Two transfers of the same file into the same directory, step by step.

use std::fs;
use std::path::PathBuf;

use super::lock::{Unclaimed, claim, create, hold};
use super::*;
use crate::digest::{Digest, LeafSize};
use crate::root::{Dir, Links, Root, Timestamp};
use crate::transfer::names::partial_names;
use crate::transfer::{ContentSpec, FileKey, Found, SmallOutcome, Version};

const LEAF: usize = 1 << 20;
const MODIFIED: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
const VERSION: Version = Version { size: 3 * LEAF as u64, modified: MODIFIED, mode: 0o644, sparse: false };

/// A directory that the file `f` is received into.
struct Folder {
    temp: tempfile::TempDir,
    part: PathBuf,
    state: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let (part, state) = partial_names(b"f");
        let path = |name: Vec<u8>| temp.path().join(String::from_utf8(name).unwrap());
        let (part, state) = (path(part), path(state));
        Self { temp, part, state }
    }

    fn dir(&self) -> Dir {
        Root::directory(self.temp.path(), Links::Never).unwrap().open_dir(&RelPath::root()).unwrap()
    }

    fn destination(&self) -> Destination {
        Destination::new(self.temp.path(), DiskOptions::default(), Arc::default()).unwrap()
    }

    fn disk(&self) -> Disk {
        let options = DiskOptions { verify: true, workers: 1, ..DiskOptions::default() };
        Disk::start(self.temp.path(), options, || {}).unwrap()
    }

    fn place(&self) -> PathBuf {
        self.temp.path().join("f")
    }
}

fn begin(disk: &mut Disk, content: u64, resume: bool) -> ContentKey {
    let content = ContentKey(content);
    let (local, leaves) = ("f".parse().unwrap(), LeafSize::for_file(VERSION.size));
    let spec = ContentSpec {
        content,
        local,
        version: VERSION,
        leaves,
        verify: true,
        digest: None,
        values: None,
        resume,
        reuse: false,
    };
    disk.command(DiskCommand::Begin(spec));
    content
}

fn report(disk: &mut Disk) -> DiskReport {
    disk.wait_report(Duration::from_secs(60)).expect("a report")
}

fn write(disk: &mut Disk, content: ContentKey, leaf: u64) -> Result<(), String> {
    let part = Part { leaf, offset: leaf * LEAF as u64, length: LEAF as u64, credit: 0 };
    disk.command(DiskCommand::Write { content, part, data: vec![7; LEAF].into() });
    match report(disk) {
        DiskReport::Written { result, .. } => result.map(drop).map_err(|error| error.message),
        other => panic!("{other:?}"),
    }
}

fn install(disk: &mut Disk, content: ContentKey) -> Result<(), String> {
    disk.command(DiskCommand::Install { file: FileKey(1), content });
    match report(disk) {
        DiskReport::Installed { result, .. } => result.map_err(|error| error.message),
        other => panic!("{other:?}"),
    }
}

/// The first has created its partial file, and not locked it, when the second takes it for left over.
#[test]
fn late_locker_creates_another_partial_file() {
    let folder = Folder::new();
    let (destination, dir, name) = (folder.destination(), folder.dir(), partial_names(b"f").0);
    let late = dir.create_file(&name, 0o600).unwrap();
    let (second, names) = create(&destination, &dir, b"f").unwrap();
    assert_eq!(names.0, name);
    assert!(hold(&dir, &name, late).unwrap().is_none());
    // It creates another one, and finds that the name is taken.
    assert!(create(&destination, &dir, b"f").unwrap_err().message.contains("another transfer"));
    assert!(matches!(claim(&destination, &dir, &name), Err(Unclaimed::Taken(_))));
    // The second has all of it, and installs it.
    fs::rename(&folder.part, folder.place()).unwrap();
    assert!(hold(&dir, &name, second).unwrap().is_none());
    create(&destination, &dir, b"f").unwrap();
}

#[test]
fn incomplete_file_of_another_transfer_is_not_installed() {
    let folder = Folder::new();
    let mut disk = folder.disk();
    let content = begin(&mut disk, 2, false);
    (0..3).for_each(|leaf| write(&mut disk, content, leaf).unwrap());
    fs::remove_file(&folder.part).unwrap();
    fs::write(&folder.part, b"half").unwrap();
    let error = install(&mut disk, content).unwrap_err();
    assert!(error.contains("replaced"), "{error}");
    drop(disk);
    assert!(!folder.place().exists());
    assert_eq!(fs::read(&folder.part).unwrap(), b"half");
}

/// Abandoned files are removed, but not other files that have their names by then.
#[test]
fn partial_file_of_another_transfer_is_not_removed() {
    let folder = Folder::new();
    let mut disk = folder.disk();
    let content = begin(&mut disk, 2, false);
    write(&mut disk, content, 0).unwrap();
    for path in [&folder.part, &folder.state] {
        fs::remove_file(path).unwrap();
        fs::write(path, b"another's").unwrap();
    }
    disk.command(DiskCommand::ForgetLeaves { content, leaves: vec![0] });
    disk.command(DiskCommand::Abandon { content });
    drop(disk);
    for path in [&folder.part, &folder.state] {
        assert_eq!(fs::read(path).unwrap(), b"another's");
    }
}

/// A partial file isn't locked between being found and being resumed.
#[test]
fn partial_file_that_changed_since_inspection_is_not_resumed() {
    let folder = Folder::new();
    let mut first = folder.disk();
    let content = begin(&mut first, 2, false);
    write(&mut first, content, 0).unwrap();
    drop(first);
    let mut second = folder.disk();
    let local: RelPath = "f".parse().unwrap();
    second.command(DiskCommand::Inspect { file: FileKey(1), local, listed: VERSION, digest: None });
    let found = report(&mut second);
    assert!(matches!(found, DiskReport::Inspected { found: Ok(Found::Partial(_)), .. }), "{found:?}");
    let mut third = folder.disk();
    let content = begin(&mut third, 3, false);
    write(&mut third, content, 1).unwrap();
    drop(third);
    let content = begin(&mut second, 4, true);
    let error = write(&mut second, content, 2).unwrap_err();
    assert!(error.contains("another program has written"), "{error}");
    assert!(install(&mut second, content).is_err() && !folder.place().exists());
}

/// A file is installed through the name of its partial file.
#[test]
fn small_file_leaves_the_partial_file_of_another_transfer_alone() {
    let folder = Folder::new();
    fs::write(folder.place(), b"before").unwrap();
    let small = || {
        let local = "f".parse().unwrap();
        let (data, digest) = (vec![Bytes::from_static(b"after")], Some(Digest::of(b"after")));
        let version = Version { size: 5, ..VERSION };
        DiskCommand::Small(SmallFile { file: FileKey(1), local, version, digest, data, credit: 0 })
    };
    let mut disk = folder.disk();
    let mut put = || {
        disk.command(small());
        disk.flush();
        match report(&mut disk) {
            DiskReport::Small { result, .. } => result,
            other => panic!("{other:?}"),
        }
    };
    let mut other = folder.disk();
    let content = begin(&mut other, 2, false);
    write(&mut other, content, 0).unwrap();
    assert!(put().unwrap_err().message.contains("another transfer"));
    assert_eq!(fs::read(folder.place()).unwrap(), b"before");
    // The other one goes on undisturbed, and then there is nobody else.
    (1..3).for_each(|leaf| write(&mut other, content, leaf).unwrap());
    install(&mut other, content).unwrap();
    assert_eq!(put().unwrap(), SmallOutcome::Installed);
    assert_eq!(fs::read(folder.place()).unwrap(), b"after");
    assert!(!folder.part.exists());
}
