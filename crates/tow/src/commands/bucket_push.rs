//! Files that clients push into a served bucket.

use super::bucket_source::{BucketSource, text};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use towpath_buffers::MappedBuffer;
use towpath_files::client::objects::ObjectAttributes;
use towpath_files::digest::{Digest, Leaf, LeafHasher, LeafSize, merge_leaves};
use towpath_files::path::RelPath;
use towpath_files::root::RootError;
use towpath_files::server::source::{Attributes, NewContent, NewFile, Put, Replaced, Store, Stored};
use towpath_objects::{Condition, Error, Kind, Metadata, Object, Upload};

/// Files up to this size are put as a whole; larger ones in parts of it.
const PART_BYTES: u64 = 8 << 20;
/// Parts that an object may have: larger objects have larger parts.
const PARTS_MAX: u64 = 10_000;
/// Largest part, which is in memory as a whole.
const PART_BYTES_MAX: u64 = 1 << 30;
/// Longest key of S3.
const KEY_BYTES_MAX: usize = 1024;
/// Parts of one object that are put at a time.
const PARTS_AT_A_TIME: usize = 4;
/// Memory of parts of all objects, unless a single one is larger.
const BUDGET_BYTES: u64 = 64 << 20;

impl Store for BucketSource {
    fn check(&self, path: &RelPath, size: u64) -> Result<(), String> {
        let refused = |why: &str| Err(format!("its name can't be a key of the bucket: {why}"));
        let Ok(path) = text(path) else { return refused("it isn't UTF-8") };
        if path.chars().any(char::is_control) {
            return refused("it has control characters");
        }
        if self.0.bucket.url().key(path).len() > KEY_BYTES_MAX {
            return refused("with the prefix it is longer than 1024 bytes");
        }
        if !self.0.bucket.may_ask(path) {
            return refused("no request can have it");
        }
        match part_bytes(size, LeafSize::for_file(size)) {
            ..=PART_BYTES_MAX => Ok(()),
            _ => Err(format!("{size} bytes are more than an object can have")),
        }
    }

    fn look(&self, path: &RelPath) -> Result<Option<Stored>, RootError> {
        let (shared, path) = (&*self.0, text(path)?);
        let object = match shared.bucket.head(path) {
            Err(Error { kind: Kind::NotFound, .. }) => {
                shared.forget(path);
                let is_directory = shared.is_directory(path)?;
                return if is_directory { Err(RootError::NotAFile) } else { Ok(None) };
            }
            object => object.map_err(|error| shared.failed(error))?,
        };
        let attributes = shared.attributes(&shared.noted(path, &object));
        Ok(Some(Stored { attributes, digest: digest_of(&object), tag: object.e_tag }))
    }

    fn put(
        &self,
        path: &RelPath,
        file: &NewFile<'_>,
        replaced: &Replaced,
        given_up: &(dyn Fn() -> bool + Sync),
    ) -> Result<Put, RootError> {
        let path = text(path)?;
        let condition = match replaced {
            Replaced::Anything => Condition::Anything,
            Replaced::Nothing => Condition::Nothing,
            Replaced::Tag(tag) => Condition::Tag(tag.clone()),
        };
        let attributes =
            ObjectAttributes { modified: Some(file.modified), mode: Some(file.mode), digest: Some(file.digest) };
        let metadata = attributes.pairs().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let parts = Parts { source: self, path, file, metadata, condition, given_up };
        let tag = match parts.put() {
            Ok(tag) => tag,
            Err(Failed::NotAsExpected) => return Ok(Put::NotAsExpected),
            Err(Failed::Other(error)) => return Err(error),
        };
        // Clients are given it from now on.
        self.0.forget(path);
        Ok(Put::InPlace(match file.content {
            // Hashed when it is sent, since it is read then.
            NewContent::Bytes(_) => None,
            NewContent::File(_) => self.in_place(path, tag.as_deref()),
        }))
    }
}

impl BucketSource {
    /// Attributes of an object that was just put.
    fn in_place(&self, path: &str, tag: Option<&str>) -> Option<Attributes> {
        let shared = &*self.0;
        let object = match shared.bucket.head(path) {
            Ok(object) => object,
            Err(error) => {
                tracing::warn!(%error, "a pushed file was put, and can't be looked at");
                return None;
            }
        };
        let version = shared.noted(path, &object);
        let bare = |tag: Option<&str>| tag.map(|tag| tag.trim_matches('"').to_owned());
        (bare(tag) == bare(object.e_tag.as_deref())).then(|| shared.attributes(&version))
    }
}

/// A file that is being put.
struct Parts<'a> {
    source: &'a BucketSource,
    path: &'a str,
    file: &'a NewFile<'a>,
    metadata: Metadata,
    condition: Condition,
    given_up: &'a (dyn Fn() -> bool + Sync),
}

enum Failed {
    NotAsExpected,
    Other(RootError),
}

impl From<RootError> for Failed {
    fn from(error: RootError) -> Failed {
        Failed::Other(error)
    }
}

impl Parts<'_> {
    /// Puts the file: its entity tag.
    fn put(&self) -> Result<Option<String>, Failed> {
        let content = match &self.file.content {
            NewContent::Bytes(bytes) => bytes.clone(),
            NewContent::File(file) if self.file.size <= PART_BYTES => read(file, 0, self.file.size)?,
            NewContent::File(file) => return self.put_in_parts(file),
        };
        if Digest::of(&content) != self.file.digest {
            return Err(RootError::Changed.into());
        }
        let put = self.source.0.bucket.put_if(self.path, content, &self.metadata, &self.condition);
        put.map_err(|error| self.failed(error))
    }

    fn put_in_parts(&self, file: &File) -> Result<Option<String>, Failed> {
        let shared = &*self.source.0;
        let upload = shared.bucket.upload(self.path, &self.metadata).map_err(|error| shared.failed(error))?;
        let put = self.put_parts(&upload, file).map_err(Failed::from);
        let put = put.and_then(|()| self.complete(&upload));
        if put.is_err()
            && let Err(error) = upload.abort()
        {
            tracing::warn!(%error, "the parts of a pushed file can't be removed: a lifecycle rule of the bucket should do it");
        }
        put
    }

    fn complete(&self, upload: &Upload) -> Result<Option<String>, Failed> {
        match upload.complete_if(&self.condition) {
            // Perhaps it was completed, and the answer lost.
            Err(error) if error.kind == Kind::NotFound => match self.source.0.bucket.head(self.path) {
                Ok(object) if digest_of(&object) == Some(self.file.digest) => Ok(object.e_tag),
                _ => Err(self.failed(error)),
            },
            completed => completed.map_err(|error| self.failed(error)),
        }
    }

    fn failed(&self, error: Error) -> Failed {
        match (&self.condition, error.kind) {
            (Condition::Nothing | Condition::Tag(_), Kind::Changed) => Failed::NotAsExpected,
            // As some stores have it: the object is gone that was to be replaced.
            (Condition::Tag(_), Kind::NotFound) => Failed::NotAsExpected,
            _ => Failed::Other(self.source.0.failed(error)),
        }
    }

    /// Puts all parts, some of them at a time; fails unless they have the digest.
    fn put_parts(&self, upload: &Upload, file: &File) -> Result<(), RootError> {
        let size = self.file.size;
        let leaves = LeafSize::for_file(size);
        let part_bytes = part_bytes(size, leaves);
        let (next, done) = (AtomicU64::new(0), Mutex::new(Ok(BTreeMap::new())));
        let lock = || done.lock().unwrap_or_else(PoisonError::into_inner);
        let put_next = || -> Result<bool, RootError> {
            if (self.given_up)() {
                return Err(RootError::Busy("the server ends".to_owned()));
            }
            let number = next.fetch_add(1, Ordering::Relaxed);
            let offset = number.saturating_mul(part_bytes);
            if offset >= size {
                return Ok(false);
            }
            let length = part_bytes.min(size - offset);
            let _held = self.source.0.parts.take(length);
            let content = read(file, offset, length)?;
            let values = hash(leaves, offset, &content).ok_or(RootError::Changed)?;
            let put = upload.part(usize::try_from(number).unwrap_or(usize::MAX), content);
            put.map_err(|error| self.source.0.failed(error))?;
            if let Ok(done) = &mut *lock() {
                done.insert(number, values);
            }
            Ok(true)
        };
        let work = || {
            while lock().is_ok() {
                match put_next() {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        let mut done = lock();
                        if done.is_ok() {
                            *done = Err(error);
                        }
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..PARTS_AT_A_TIME {
                // Without it, it takes longer.
                let _ = thread::Builder::new().name("tow-push-part".to_owned()).spawn_scoped(scope, work);
            }
            work();
        });
        let values: Vec<Leaf> =
            done.into_inner().unwrap_or_else(PoisonError::into_inner)?.into_values().flatten().collect();
        if merge_leaves(&values) == Ok(self.file.digest) { Ok(()) } else { Err(RootError::Changed) }
    }
}

/// Bytes of a part of an object, the last one excepted: a whole number of leaves.
fn part_bytes(size: u64, leaves: LeafSize) -> u64 {
    let leaf = leaves.leaf_bytes();
    size.div_ceil(PARTS_MAX).max(PART_BYTES).div_ceil(leaf).saturating_mul(leaf)
}

/// Bytes of a part, whose memory goes back to the system: the allocator would keep it, for each thread.
struct PartBytes(MappedBuffer);

impl AsRef<[u8]> for PartBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn read(file: &File, offset: u64, length: u64) -> Result<Bytes, RootError> {
    if length == 0 {
        return Ok(Bytes::new());
    }
    let length = usize::try_from(length).map_err(|error| RootError::Io(io::Error::other(error)))?;
    let mut bytes = MappedBuffer::with_capacity(length).map_err(RootError::Io)?;
    while bytes.len() < length {
        let count = bytes.append_from(file, offset + bytes.len() as u64);
        if count.map_err(|error| RootError::Io(error.into()))? == 0 {
            return Err(RootError::Changed);
        }
    }
    Ok(Bytes::from_owner(PartBytes(bytes)))
}

/// Values of the leaves of a part.
fn hash(leaves: LeafSize, offset: u64, content: &[u8]) -> Option<Vec<Leaf>> {
    let first = leaves.index_at(offset);
    let leaf_bytes = usize::try_from(leaves.leaf_bytes()).ok()?;
    let value = |(index, bytes): (u64, &[u8])| {
        let mut hasher = LeafHasher::new(leaves, index).ok()?;
        hasher.update(bytes).ok()?;
        hasher.finish().ok()
    };
    (first..).zip(content.chunks(leaf_bytes)).map(value).collect()
}

fn digest_of(object: &Object) -> Option<Digest> {
    let get = |wanted: &str| object.metadata.iter().find(|(name, _)| name == wanted).map(|(_, value)| &**value);
    ObjectAttributes::parse(get).digest
}

/// Memory that threads wait for.
#[derive(Debug, Default)]
pub(super) struct Budget {
    used: Mutex<u64>,
    freed: Condvar,
}

struct Held<'a>(&'a Budget, u64);

impl Budget {
    fn take(&self, bytes: u64) -> Held<'_> {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |used: &mut u64| *used > 0 && *used + bytes > BUDGET_BYTES;
        *self.freed.wait_while(used, is_full).unwrap_or_else(PoisonError::into_inner) += bytes;
        Held(self, bytes)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.0.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.1;
        self.0.freed.notify_all();
    }
}
