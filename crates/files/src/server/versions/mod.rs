//! Published versions: what was below a path, kept beside the state.
//!
//! A version is a directory of its label with a manifest and the files ([`docs/formats/version.md`]). Clients find it below
//! [`VERSIONS`], and learn of it by the catalogue's entry of its manifest.

mod freeze;

pub(in crate::server) use freeze::{Freezing, begin};

use super::catalogue_view::VersionStats;
use super::watch::Published;
use crate::catalogue::{Catalogue, Content, Entry, Identity};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::protocol::control::ChangeContent;
use crate::protocol::manifest::{MANIFEST, VERSIONS, decode, is_label};
use crate::root::{FileStat, Links, Root, RootError, check_own_dir, make_private_dir};
use std::collections::HashMap;
use std::io::{self, Read};
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
    pub(in crate::server) fn publish_stored(&self, published: &Published) {
        let mut stored: Vec<_> = std::fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok().filter(|label| is_label(label)))
            .filter_map(|label| self.manifest(&label).ok().map(|(digest, stat)| (label, digest, stat)))
            .collect();
        // The order in which they were published, if their numbers are lost.
        stored.sort_by_key(|(_, _, stat)| stat.modified);
        published.change(|catalogue| {
            let is_stored = |label: &str| stored.iter().any(|(of, ..)| of == label);
            let gone: Vec<_> = list(catalogue).into_iter().filter(|(label, _)| !is_stored(label)).collect();
            for (label, _) in gone {
                catalogue.remove(entry_path(&label).as_bytes());
            }
            for (label, digest, stat) in &stored {
                note(catalogue, label, *digest, stat);
            }
        });
    }

    /// Digest and metadata of a version's manifest.
    fn manifest(&self, label: &str) -> Result<(Digest, FileStat), RootError> {
        let path = RelPath::new(format!("{label}/{MANIFEST}"))?;
        let (file, stat) = self.root.open_file(&path)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file).map_err(RootError::Io)?;
        Ok((Digest(*hasher.finalize().as_bytes()), stat))
    }

    /// The versions of a catalogue, the oldest first. Reads manifests that were never counted.
    pub(in crate::server) fn listed(&self, published: &Published) -> Vec<VersionStats> {
        let versions = list(&published.read());
        let listed = versions.into_iter().filter_map(|(label, entry)| {
            let Content::File { digest, modified, size: bytes, .. } = entry.content else { return None };
            let known = self.sizes().get(&digest).copied();
            let size = known.unwrap_or_else(|| {
                let counted = if bytes <= COUNTED_BYTES_MAX { self.count(&label).ok() } else { None };
                self.sizes().insert(digest, counted);
                counted
            });
            Some(VersionStats { label, digest, seq: entry.seq, published: modified, size, holders: 0, missing: 0 })
        });
        let listed: Vec<_> = listed.collect();
        self.sizes().retain(|digest, _| listed.iter().any(|version| version.digest == *digest));
        listed
    }

    fn sizes(&self) -> MutexGuard<'_, HashMap<Digest, Option<(u64, u64)>>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files and bytes of a version, by its manifest.
    fn count(&self, label: &str) -> Result<(u64, u64), RootError> {
        let path = RelPath::new(format!("{label}/{MANIFEST}"))?;
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

    /// Removes all but the newest versions.
    fn keep(&self, published: &Published, count: usize) {
        let gone = published.change(|catalogue| {
            let versions = list(catalogue);
            let gone: Vec<_> = versions.into_iter().rev().skip(count).map(|(label, _)| label).collect();
            gone.iter().for_each(|label| catalogue.remove(entry_path(label).as_bytes()));
            gone
        });
        for label in gone {
            tracing::info!(%label, "an old version is removed");
            remove_tree(&self.path.join(label));
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

/// The versions in a catalogue, oldest first.
fn list(catalogue: &Catalogue) -> Vec<(String, Entry)> {
    let label = |path: &[u8]| {
        let rest = path.strip_prefix(VERSIONS.as_bytes())?.strip_prefix(b"/")?;
        let label = rest.strip_suffix(MANIFEST.as_bytes())?.strip_suffix(b"/")?;
        String::from_utf8(label.to_vec()).ok()
    };
    let versions = catalogue.below(VERSIONS.as_bytes());
    let mut versions: Vec<_> = versions.filter_map(|(path, entry)| Some((label(path)?, entry.clone()))).collect();
    versions.sort_by_key(|(_, entry)| entry.seq);
    versions
}

/// Notes a version: its number, if it is new.
fn note(catalogue: &mut Catalogue, label: &str, digest: Digest, stat: &FileStat) -> Option<u64> {
    let path = RelPath::new(entry_path(label)).ok()?;
    let FileStat { size, modified, mode, .. } = *stat;
    let content = Content::File { size, modified, mode, digest };
    catalogue.put(&path, content, Identity::of(stat, true)).ok().flatten()
}

fn entry_path(label: &str) -> String {
    format!("{VERSIONS}/{label}/{MANIFEST}")
}

fn remove_tree(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a version can't be removed");
    }
}
