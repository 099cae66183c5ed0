//! Freezing what is below a path.

use super::{Claim, DIR_MODE, NEW_PREFIX, Versions, list, note, remove_tree};
use crate::catalogue::{Content, Entry};
use crate::digest::Digest;
use crate::limits::{MANIFEST_BYTES_MAX, VERSIONS_MAX};
use crate::path::{RelPath, is_reserved};
use crate::protocol::ErrorCode;
use crate::protocol::control::{Change, PublishRequest, PublishedReply};
use crate::protocol::manifest::{HEAD, MANIFEST, TREE, VersionName, line};
use crate::root::{Dir, FileKind, FileStat, Links, Root, RootError, make_private_dir, set_mode, set_modified};
use crate::server::Failure;
use crate::server::watch::{SharedCatalogue, open_below};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Entries, and bytes that are copied, before others have their turn.
const STEP_ENTRIES: usize = 256;
const STEP_BYTES: u64 = 32 << 20;
/// Names of one directory.
const NAMES_MAX: usize = 1 << 20;
const FILE_MODE: u32 = 0o600;
const BUFFER_BYTES: usize = 256 << 10;

/// A version that is being made.
#[derive(Debug)]
pub(in crate::server) struct Freezing {
    request: PublishRequest,
    /// The path, and the label there.
    name: VersionName,
    /// By path.
    entries: Vec<(Arc<[u8]>, Entry)>,
    manifest: Vec<u8>,
    digest: Digest,
    checked: usize,
    copied: usize,
    /// The tree, once it is begun.
    new: Option<New>,
    claim: Claim,
}

/// A directory that is removed if it doesn't become a version.
#[derive(Debug)]
struct New {
    path: PathBuf,
    tree: Root,
}

impl Drop for New {
    fn drop(&mut self) {
        if self.path.exists() {
            remove_tree(&self.path);
        }
    }
}

/// Begins: takes down what is published below the path.
pub(in crate::server) fn begin(
    versions: &Arc<Versions>,
    published: &SharedCatalogue,
    request: PublishRequest,
) -> Result<Freezing, Failure> {
    let claim = versions.claim();
    let claim = claim.ok_or_else(|| Failure::new(ErrorCode::Busy, "another version is being published"))?;
    let base = request.path.to_rel_path().map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string()))?;
    let entries: Vec<_> = {
        let catalogue = published.read();
        if !catalogue.is_complete() {
            return Err(Failure::new(ErrorCode::Busy, "the directory is still being read for the first time"));
        }
        let is_dir = |entry: &Entry| matches!(entry.content, Content::Dir { .. });
        if !base.is_root() && !catalogue.get(base.as_bytes()).is_some_and(is_dir) {
            return Err(Failure::new(ErrorCode::NotFound, "no such directory is published"));
        }
        // With the directories above it: paths in a version are those of the server.
        let names: Vec<_> = base.names().collect();
        let dirs = (1..=names.len()).map(|count| names.get(..count).unwrap_or_default().join(&b'/'));
        let dirs = dirs.filter_map(|dir| Some((dir.as_slice().into(), catalogue.get(&dir)?.clone())));
        let below = catalogue.below(base.as_bytes());
        let is_own = |path: &[u8]| !path.split(|byte| *byte == b'/').any(is_reserved);
        let below = below.filter(|(path, _)| is_own(path)).map(|(path, entry)| (Arc::clone(path), entry.clone()));
        dirs.chain(below).collect()
    };
    let mut manifest = HEAD.as_bytes().to_vec();
    for (index, (path, entry)) in entries.iter().enumerate() {
        let path = RelPath::new(path.to_vec()).map_err(RootError::from)?;
        let change = Change { seq: index as u64 + 1, path: (&path).into(), content: entry.content.to_wire() };
        manifest.extend(line(&change));
        if manifest.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(Failure::new(ErrorCode::BadRequest, "too much for one version"));
        }
    }
    let digest = Digest::of(&manifest);
    let label = request.label.clone().unwrap_or_else(|| digest.to_string().chars().take(16).collect());
    let name = VersionName { of: base, label };
    Ok(Freezing { request, name, entries, manifest, digest, checked: 0, copied: 0, new: None, claim })
}

impl Freezing {
    /// Goes on for a while: the answer, once it is done.
    pub(in crate::server) fn step(
        &mut self,
        root: &Root,
        published: &SharedCatalogue,
    ) -> Result<Option<PublishedReply>, Failure> {
        if self.new.is_none() {
            if let Some(there) = self.is_there(published)? {
                return Ok(Some(there));
            }
            if self.name.of.is_root() {
                self.check_names(root, published, &self.name.of)?;
            }
            self.new = Some(self.begin_tree()?);
        }
        if self.checked < self.entries.len() {
            let end = self.entries.len().min(self.checked + STEP_ENTRIES);
            for index in self.checked..end {
                self.check(root, published, index)?;
            }
            self.checked = end;
            return Ok(None);
        }
        let mut bytes = 0;
        for _ in 0..STEP_ENTRIES {
            if self.copied == self.entries.len() {
                return self.finish(published).map(Some);
            }
            bytes += self.copy(root, published, self.copied)?;
            self.copied += 1;
            if bytes > STEP_BYTES {
                break;
            }
        }
        Ok(None)
    }

    /// The answer if there is such a version; an error if the label is another one's, or there are too many.
    fn is_there(&self, published: &SharedCatalogue) -> Result<Option<PublishedReply>, Failure> {
        // A label belongs to the path, and so do the others that count.
        let mut versions = list(&published.read());
        versions.retain(|(name, _)| name.of == self.name.of);
        let is_this = |entry: &Entry| matches!(entry.content, Content::File { digest, .. } if digest == self.digest);
        if let Some((_, entry)) = versions.iter().find(|(name, _)| *name == self.name) {
            if is_this(entry) {
                return Ok(Some(self.reply(entry.seq, true)));
            }
            let message =
                format!("there is another version {}, and a version never changes: use another label", self.name.label);
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
        if versions.len() >= VERSIONS_MAX && self.request.keep.is_none_or(|keep| keep as usize > VERSIONS_MAX) {
            let message = format!("there are {VERSIONS_MAX} versions; --keep removes old ones");
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
        Ok(None)
    }

    fn reply(&self, seq: u64, same: bool) -> PublishedReply {
        let sizes = self.entries.iter().filter_map(|(_, entry)| match entry.content {
            Content::File { size, .. } => Some(size),
            _ => None,
        });
        let (files, bytes) = sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size));
        let (id, label) = (self.request.id, self.name.label.clone());
        PublishedReply { id, version: self.digest, label, seq, files, bytes, same }
    }

    fn begin_tree(&self) -> Result<New, Failure> {
        let path = self.claim.0.path.join(format!("{NEW_PREFIX}{}", self.name.label));
        remove_tree(&path);
        let made = || -> Result<Root, RootError> {
            make_private_dir(&path.join(TREE)).map_err(RootError::Io)?;
            Root::directory(path.join(TREE), Links::Never)
        };
        match made() {
            Ok(tree) => Ok(New { path, tree }),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks whether an entry still is what was published.
    fn check(&self, root: &Root, published: &SharedCatalogue, index: usize) -> Result<(), Failure> {
        let Some((path, entry)) = self.entries.get(index) else { return Ok(()) };
        let path = RelPath::new(path.to_vec()).map_err(RootError::from)?;
        let is_same = match &entry.content {
            Content::Dir { .. } => {
                if path.below(&self.name.of).is_some() {
                    self.check_names(root, published, &path)?;
                }
                true
            }
            Content::File { mode, .. } => {
                let stat = stat(root, &path)?;
                // If only another name was given to it, the content decides.
                entry.may_be_file(&stat) && stat.mode == *mode
            }
            Content::Link { target, .. } => {
                let (dir, name) = parent(root, &path)?;
                dir.read_link(name).is_ok_and(|there| there == **target)
            }
            Content::Gone => true,
        };
        if is_same { Ok(()) } else { Err(changed(published, &path)) }
    }

    /// Looks whether everything in a directory is published.
    fn check_names(&self, root: &Root, published: &SharedCatalogue, path: &RelPath) -> Result<(), Failure> {
        let dir = open_below(root, path)?;
        for entry in dir.entries(NAMES_MAX)? {
            let Ok(path) = path.join(&entry.name) else { continue };
            let is_known = self.entries.binary_search_by(|(of, _)| (**of).cmp(path.as_bytes())).is_ok();
            if is_known || is_reserved(&entry.name) || dir.is_lost_and_found(&entry.name) {
                continue;
            }
            match dir.stat(&entry.name) {
                Ok(FileStat { kind: FileKind::Other, .. }) | Err(RootError::NotFound) => {}
                Ok(_) => return Err(changed(published, &path)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Puts an entry into the tree; returns the bytes that were copied.
    fn copy(&self, root: &Root, published: &SharedCatalogue, index: usize) -> Result<u64, Failure> {
        let (Some((path, entry)), Some(new)) = (self.entries.get(index), &self.new) else { return Ok(0) };
        let path = RelPath::new(path.to_vec()).map_err(RootError::from)?;
        let (to_parent, to_name) = path.split().ok_or(RootError::NotFound)?;
        let to_dir = new.tree.open_dir(&to_parent)?;
        match &entry.content {
            Content::Dir { .. } => to_dir.create_dir(to_name, DIR_MODE)?,
            Content::Link { target, .. } => to_dir.symlink(target, to_name)?,
            Content::Gone => {}
            Content::File { size, modified, mode, digest } => {
                let (dir, name) = parent(root, &path)?;
                let (from, before) = dir.open_file(name)?;
                let file = to_dir.create_file(to_name, FILE_MODE)?;
                let is_right = entry.may_be_file(&before)
                    && copy(&from, &file, *digest, entry.is_file(&before)).map_err(RootError::Io)?
                    && FileStat::try_from(&from)?.same_content(&before);
                if !is_right {
                    return Err(changed(published, &path));
                }
                set_mode(&file, *mode)?;
                set_modified(&file, *modified)?;
                return Ok(*size);
            }
        }
        Ok(0)
    }

    /// The tree is whole: it becomes a version.
    fn finish(&mut self, published: &SharedCatalogue) -> Result<PublishedReply, Failure> {
        let Some(new) = self.new.take() else { return Err(Failure::changed("it is gone")) };
        let versions = &self.claim.0;
        let io = RootError::Io;
        let create = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(new.path.join(MANIFEST));
        let mut file = create.map_err(io)?;
        file.write_all(&self.manifest).map_err(io)?;
        // All of it is on the disk before anybody learns of it.
        rustix::fs::syncfs(&file).map_err(|errno| io(errno.into()))?;
        let directory = self.name.directory().map_err(RootError::from)?;
        let whole = versions.path.join(directory.as_os_str());
        if let Some(above) = whole.parent() {
            make_private_dir(above).map_err(io)?;
        }
        std::fs::rename(&new.path, whole).map_err(io)?;
        versions.root.sync_above(&directory)?;
        let stat = FileStat::try_from(&file)?;
        let seq = published.change(|catalogue| note(catalogue, &self.name, self.digest, &stat));
        let seq = seq.ok_or_else(|| Failure::new(ErrorCode::Io, crate::catalogue::TooManyPaths.to_string()))?;
        if let Some(keep) = self.request.keep {
            versions.keep(published, &self.name.of, keep as usize);
        }
        let reply = self.reply(seq, false);
        versions.sizes().insert(self.digest, Some((reply.files, reply.bytes)));
        Ok(reply)
    }
}

/// A path differs from what is published: the watcher may have missed an event, so it looks.
fn changed(published: &SharedCatalogue, path: &RelPath) -> Failure {
    published.look_at(path);
    Failure::changed(format!("{path} isn't published as it is now; it is being written to, or has just been"))
}

fn parent<'a>(root: &Root, path: &'a RelPath) -> Result<(Dir, &'a [u8]), RootError> {
    let (above, name) = path.split().ok_or(RootError::NotFound)?;
    Ok((open_below(root, &above)?, name))
}

fn stat(root: &Root, path: &RelPath) -> Result<FileStat, RootError> {
    let (dir, name) = parent(root, path)?;
    dir.stat(name)
}

/// Copies a file, if its content is `known` by its times and where the file system can by sharing its blocks. False: it has another content.
/// Shared blocks aren't read: the caller compares the file's times.
fn copy(from: &File, to: &File, digest: Digest, known: bool) -> io::Result<bool> {
    if known && rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(true);
    }
    let (mut from, mut to) = (from, to);
    let (mut buffer, mut hasher) = (vec![0; BUFFER_BYTES], blake3::Hasher::new());
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(Digest(*hasher.finalize().as_bytes()) == digest),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        hasher.update(bytes);
        to.write_all(bytes)?;
    }
}
