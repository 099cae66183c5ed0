//! Makes and compares trees of files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::random::Random;

/// Type and attributes of an entry that a transfer keeps.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// Permission bits.
    Directory(u32),
    /// Target.
    Link(PathBuf),
    /// Size, BLAKE3, permission bits, mtime in seconds and nanoseconds.
    File(u64, blake3::Hash, u32, (i64, i64)),
    /// Anything else.
    Other,
}

/// All entries below `root`, by path from it.
pub fn snapshot(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for child in fs::read_dir(&folder).expect("read a folder") {
            let path = child.expect("read a folder").path();
            let metadata = fs::symlink_metadata(&path).expect("stat");
            let mode = metadata.mode() & 0o7777;
            let entry = if metadata.is_dir() {
                folders.push(path.clone());
                Entry::Directory(mode)
            } else if metadata.is_symlink() {
                Entry::Link(fs::read_link(&path).expect("read a link"))
            } else if metadata.is_file() {
                let mtime = (metadata.mtime(), metadata.mtime_nsec());
                Entry::File(metadata.len(), digest(&path), mode, mtime)
            } else {
                Entry::Other
            };
            let relative = path.strip_prefix(root).expect("it is below").as_os_str().as_bytes().to_vec();
            found.insert(PathBuf::from(std::ffi::OsString::from_vec(relative)), entry);
        }
    }
    found
}

/// Panics at the first difference of two trees.
#[track_caller]
pub fn assert_same(left: &Path, right: &Path) {
    let (left, right) = (snapshot(left), snapshot(right));
    for path in left.keys().chain(right.keys()) {
        assert_eq!(left.get(path), right.get(path), "{} differs", path.display());
    }
}

/// BLAKE3 of a file's contents.
pub fn digest(path: &Path) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::open(path).expect("open")).expect("read");
    hasher.finalize()
}

/// Writes a file of `size` random bytes and returns them.
pub fn random_file(path: &Path, size: usize, seed: u64) -> Vec<u8> {
    let bytes = Random::new(seed).bytes(size);
    write(path, &bytes);
    bytes
}

/// Writes a file, and the folders above it.
pub fn write(path: &Path, bytes: &[u8]) {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).expect("make a folder");
    }
    fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// A tree of some small and some larger files in a few folders: about `large` times 4 MiB.
pub fn mixed(root: &Path, small: usize, large: usize) {
    for index in 0..small {
        let path = root.join(format!("folder {}/small-{index}", index % 7));
        random_file(&path, index * 131 % 9000, index as u64);
    }
    for index in 0..large {
        random_file(&root.join(format!("large/{index}.bin")), (4 << 20) + index * 4099, 1000 + index as u64);
    }
}

/// Writes a file that only this user can read.
pub fn write_secret(path: &Path, text: &str) {
    write(path, b"");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set the mode");
    write(path, text.as_bytes());
}
