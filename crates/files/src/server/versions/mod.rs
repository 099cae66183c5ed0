//! Published versions: what was below a path, kept beside the state.
//!
//! A version is a directory of its label with a manifest and the files. Clients find it below [`VERSIONS`], and learn of it by the
//! catalogue's entry of its manifest.
// docs/formats/version.md has the bytes.

mod freeze;

pub(in crate::server) use freeze::{Freezing, begin};

use super::catalogue_view::VersionStats;
use super::watch::SharedCatalogue;
use crate::catalogue::{Catalogue, Content, Entry, Identity};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::protocol::control::ChangeContent;
use crate::protocol::manifest::{MANIFEST, OF_PREFIX, VERSIONS, VersionName, decode, is_label};
use crate::root::{FileStat, Links, Root, RootError, check_own_dir, make_private_dir};
use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of directories that aren't complete.
const NEW_PREFIX: &str = ".new-";
/// Mode of directories: the files in them may be anybody's.
const DIR_MODE: u32 = 0o700;
/// Bytes of a manifest that is read only to count its files.
const COUNTED_BYTES_MAX: u64 = 8 << 20;

/// The directory of versions.
#[derive(Debug)]
pub(in crate::server) struct Versions {
    path: PathBuf,
    root: Arc<Root>,
    is_busy: AtomicBool,
    /// Files and bytes of versions, as far as they are known.
    sizes: Mutex<HashMap<Digest, Option<(u64, u64)>>>,
}

impl Versions {
    /// Opens the directory in that of the state, and removes what wasn't completed.
    pub(in crate::server) fn open(state: &Path) -> Result<Versions, RootError> {
        let path = state.join("versions");
        check_own_dir(&path).and_then(|()| make_private_dir(&path)).map_err(RootError::Io)?;
        for entry in std::fs::read_dir(&path).map_err(RootError::Io)?.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(NEW_PREFIX.as_bytes()) {
                remove_tree(&entry.path());
            }
        }
        let root = Arc::new(Root::directory(&path, Links::Never)?);
        Ok(Versions { path, root, is_busy: AtomicBool::new(false), sizes: Mutex::default() })
    }

    /// The directory, to serve from.
    pub(in crate::server) fn root(&self) -> Arc<Root> {
        Arc::clone(&self.root)
    }

    /// Puts into the catalogue what is in the directory, and takes out what isn't.
    pub(in crate::server) fn publish_stored(&self, published: &SharedCatalogue) {
        let names = self.stored().into_iter();
        let mut stored: Vec<_> =
            names.filter_map(|name| self.manifest(&name).ok().map(|(digest, stat)| (name, digest, stat))).collect();
        // The order in which they were published, if their numbers are lost.
        stored.sort_by_key(|(_, _, stat)| stat.modified);
        published.change(|catalogue| {
            let there: HashSet<_> = stored.iter().map(|(name, ..)| name).collect();
            list(catalogue)
                .iter()
                .filter(|(name, _)| !there.contains(name))
                .for_each(|(name, _)| forget(catalogue, name));
            for (name, digest, stat) in &stored {
                note(catalogue, name, *digest, stat);
            }
        });
    }

    /// The versions in the directory.
    fn stored(&self) -> Vec<VersionName> {
        let (mut stored, mut directories) = (Vec::new(), vec![(self.path.clone(), RelPath::root())]);
        while let Some((directory, of)) = directories.pop() {
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if let Some(name) = name.as_bytes().strip_prefix(&[OF_PREFIX]) {
                    directories.extend(of.join(name).ok().map(|of| (entry.path(), of)));
                } else if let Some(label) = name.to_str().filter(|label| is_label(label)) {
                    stored.push(VersionName { of: of.clone(), label: label.to_owned() });
                }
            }
        }
        stored
    }

    /// Digest and metadata of a version's manifest.
    fn manifest(&self, name: &VersionName) -> Result<(Digest, FileStat), RootError> {
        let path = name.directory()?.join(MANIFEST.as_bytes())?;
        let (file, stat) = self.root.open_file(&path)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file).map_err(RootError::Io)?;
        Ok((Digest(*hasher.finalize().as_bytes()), stat))
    }

    /// The versions of a catalogue, the oldest first. Reads manifests that were never counted.
    pub(in crate::server) fn listed(&self, published: &SharedCatalogue) -> Vec<VersionStats> {
        let versions = list(&published.read());
        let listed = versions.into_iter().filter_map(|(name, entry)| {
            let Content::File { digest, modified, size: bytes, .. } = entry.content else { return None };
            let known = self.sizes().get(&digest).copied();
            let size = known.unwrap_or_else(|| {
                let counted = if bytes <= COUNTED_BYTES_MAX { self.count(&name).ok() } else { None };
                self.sizes().insert(digest, counted);
                counted
            });
            let VersionName { of, label } = name;
            Some(VersionStats { of, label, digest, seq: entry.seq, published: modified, size, holders: 0, missing: 0 })
        });
        let listed: Vec<_> = listed.collect();
        self.sizes().retain(|digest, _| listed.iter().any(|version| version.digest == *digest));
        listed
    }

    fn sizes(&self) -> MutexGuard<'_, HashMap<Digest, Option<(u64, u64)>>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files and bytes of a version, by its manifest.
    fn count(&self, name: &VersionName) -> Result<(u64, u64), RootError> {
        let path = name.directory()?.join(MANIFEST.as_bytes())?;
        let (file, _) = self.root.open_file(&path)?;
        let (mut files, mut bytes) = (0, 0_u64);
        let mut manifest = Vec::new();
        file.take(COUNTED_BYTES_MAX).read_to_end(&mut manifest).map_err(RootError::Io)?;
        for entry in decode(&manifest).map_err(|error| RootError::Io(io::Error::other(error.to_string())))? {
            if let ChangeContent::File { size, .. } = entry.content {
                (files, bytes) = (files + 1, bytes.saturating_add(size));
            }
        }
        Ok((files, bytes))
    }

    /// Lets one at a time publish.
    fn claim(self: &Arc<Versions>) -> Option<Claim> {
        (!self.is_busy.swap(true, Ordering::Acquire)).then(|| Claim(Arc::clone(self)))
    }

    /// Removes all but the newest versions of a path. Those of others aren't its publisher's.
    fn keep(&self, published: &SharedCatalogue, of: &RelPath, count: usize) {
        let gone = published.change(|catalogue| {
            let versions = list(catalogue).into_iter().map(|(name, _)| name).filter(|name| name.of == *of);
            let gone: Vec<_> = versions.rev().skip(count).collect();
            gone.iter().for_each(|name| forget(catalogue, name));
            gone
        });
        for name in gone {
            tracing::info!(path = %name.of, label = %name.label, "an old version is removed");
            if let Ok(directory) = name.directory() {
                remove_tree(&self.path.join(directory.as_os_str()));
            }
        }
    }
}

/// The right to publish, until it is dropped.
#[derive(Debug)]
struct Claim(Arc<Versions>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Release);
    }
}

/// For each version that isn't the newest of its path: the number of the next one, and the label of the newest.
pub(in crate::server) fn newer_versions(published: &SharedCatalogue) -> HashMap<Digest, (u64, String)> {
    let versions = list(&published.read()).into_iter().filter_map(|(name, entry)| match entry.content {
        Content::File { digest, .. } => Some((name, digest, entry.seq)),
        _ => None,
    });
    newer(versions.collect())
}

/// The newest version of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewestVersion {
    /// Its label.
    pub label: String,
    /// Digest of its manifest.
    pub digest: Digest,
    /// Its number.
    pub seq: u64,
}

/// The newest version of each path.
pub(in crate::server) fn newest_versions(published: &SharedCatalogue) -> HashMap<RelPath, NewestVersion> {
    let versions = list(&published.read()).into_iter().filter_map(|(name, entry)| match entry.content {
        Content::File { digest, .. } => Some((name.of, NewestVersion { label: name.label, digest, seq: entry.seq })),
        _ => None,
    });
    versions.collect()
}

/// The same of versions with their numbers, the oldest first.
fn newer(versions: Vec<(VersionName, Digest, u64)>) -> HashMap<Digest, (u64, String)> {
    let mut newest: HashMap<RelPath, (u64, String, Digest)> = HashMap::new();
    let mut newer = HashMap::new();
    for (VersionName { of, label }, digest, seq) in versions.into_iter().rev() {
        let Some((next, label, latest)) = newest.get_mut(&of) else {
            newest.insert(of, (seq, label, digest));
            continue;
        };
        // Else it is the same content under another name.
        if *latest != digest {
            newer.entry(digest).or_insert((*next, label.clone()));
        }
        *next = seq;
    }
    newest.values().for_each(|(_, _, latest)| _ = newer.remove(latest));
    newer
}

/// The versions in a catalogue, oldest first.
fn list(catalogue: &Catalogue) -> Vec<(VersionName, Entry)> {
    let name = |path: &[u8]| {
        let (name, rest) = VersionName::split_known(path)?;
        (rest == MANIFEST.as_bytes()).then_some(name)
    };
    let versions = catalogue.below(VERSIONS.as_bytes());
    let mut versions: Vec<_> = versions.filter_map(|(path, entry)| Some((name(path)?, entry.clone()))).collect();
    versions.sort_by_key(|(_, entry)| entry.seq);
    versions
}

/// Notes a version: its number, if it is new.
fn note(catalogue: &mut Catalogue, name: &VersionName, digest: Digest, stat: &FileStat) -> Option<u64> {
    let path = name.manifest().ok()?;
    let FileStat { size, modified, mode, .. } = *stat;
    let content = Content::File { size, modified, mode, digest };
    catalogue.put(&path, content, Identity::of(stat, true)).ok().flatten()
}

fn forget(catalogue: &mut Catalogue, name: &VersionName) {
    if let Ok(path) = name.manifest() {
        catalogue.remove(path.as_bytes());
    }
}

fn remove_tree(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a version can't be removed");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_version_is_old_if_its_path_has_another_one_since() {
        let name = |of: &str, label: &str| VersionName { of: RelPath::new(of).unwrap(), label: label.to_owned() };
        let digest = |number| Digest([number; 32]);
        let versions = [
            ("a", "v1", 1, 5),
            ("a", "v2", 2, 6),
            ("b", "v1", 4, 7),
            ("a", "v3", 3, 8),
            ("a", "same", 3, 9),
            ("b", "v2", 1, 10),
        ];
        let versions = versions.map(|(of, label, number, seq)| (name(of, label), digest(number), seq));
        let newer = newer(versions.to_vec());
        // The first one of `a` is the newest of `b`.
        let expected = [(digest(2), (8, "same".to_owned())), (digest(4), (10, "v2".to_owned()))];
        assert_eq!(newer, HashMap::from(expected));
    }
}
