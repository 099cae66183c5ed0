//! Preparing files of a fetch: opening them, and reading the small ones.

use super::extents::layout;
use super::pool::{Pool, Requester};
use super::{Answer, RequestState};
use crate::digest::{Digest, DigestCache, LeafSize, ReadAt, wall_clock};
use crate::limits::CHUNK_BYTES_MAX;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{DigestWish, FetchFile, FetchRequest, FileAnswer, FileMetadata, Unless};
use crate::root::Timestamp;
use crate::server::Failure;
use crate::server::chunks::Layout;
use crate::server::client_root::ClientRoot;
use crate::server::limits::{BATCH_BYTES_MAX, BATCH_FILES_MAX, SMALL_FILE_BYTES_MAX};
use crate::server::open_file::OpenFile;
use crate::server::quota::small_files::SmallFiles;
use crate::server::source::Attributes;
use crate::server::watch::SharedCatalogue;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use towpath_buffers::MappedBuffer;

/// Attempts to read a small file that changes meanwhile.
const READ_ATTEMPTS_MAX: usize = 3;
/// Smallest body worth compressing, in bytes.
const PACK_FROM_BYTES: usize = 512;
/// Smallest file whose holes are sent as such, in bytes.
const HOLES_FROM_BYTES: u64 = 64 << 10;
/// Fast enough not to limit a transfer.
pub(crate) const ZSTD_LEVEL: i32 = 3;

/// Prepares a batch of files of a fetch from an index on: reads small ones, and opens up to `open_max` others.
#[derive(Debug)]
pub(crate) struct Prepare {
    pub(crate) request: Arc<FetchRequest>,
    pub(crate) from: usize,
    pub(crate) open_max: usize,
}

/// A prepared file of a fetch.
#[derive(Debug)]
pub(crate) enum Prepared<F> {
    /// Only an answer: the file is unchanged, or failed.
    Answer(FileAnswer),
    /// A small file, whose times were the same before and after reading.
    Small { metadata: FileMetadata, body: Bytes, packed: Option<Bytes> },
    /// A file to be sent in pieces.
    Large { metadata: FileMetadata, file: F, layout: Layout, unless: Option<Digest> },
}

impl Prepare {
    pub(super) fn start(self, pool: &mut Pool, requester: Requester, state: &Arc<RequestState>) {
        let Prepare { request, from, open_max } = self;
        let path = request.files.get(from).and_then(|file| file.path.to_rel_path().ok());
        let (mount, group) = pool.group(requester, &state.snapshot, path.as_ref());
        // The files after the first are retried in a job of their own.
        let failed = move |Failure { code, message }| {
            let answer = FileAnswer::Error { n: u32::try_from(from).unwrap_or(u32::MAX), code, message };
            Answer::Prepare(vec![Prepared::Answer(answer)])
        };
        let state = Arc::clone(state);
        pool.run(&pool.files, group, requester, failed, move |context| {
            let (began, request, small_files) = (wall_clock(), &request, &context.small_files);
            let (root, cache) = (&state.root(context), &context.hasher.cache);
            let published = context.published.as_deref();
            let batch = Batch { root, published, cache, began, small_files, request, mount, open_max };
            Answer::Prepare(batch.prepare(from))
        });
    }
}

// Any small file fits into the buffer of a batch.
const _: () = assert!(SMALL_FILE_BYTES_MAX <= BATCH_BYTES_MAX as u64);

/// A batch of files that is being prepared.
struct Batch<'a> {
    root: &'a ClientRoot,
    /// The catalogue that followers see, if the directory is watched.
    published: Option<&'a SharedCatalogue>,
    cache: &'a DigestCache,
    /// Time at which the batch began.
    began: Timestamp,
    small_files: &'a Arc<SmallFiles>,
    request: &'a FetchRequest,
    /// File system of the first file, from [`Root::mounted_below`]. All files of a batch are on the same one, so that one that hangs blocks no
    /// others.
    mount: Option<u64>,
    /// Large files that may be opened.
    open_max: usize,
}

/// A file whose bytes are still in the batch's buffer.
enum Looked {
    Answer(FileAnswer),
    Large(Box<Prepared<OpenFile>>),
    Small { metadata: FileMetadata, bytes: Range<usize> },
}

impl Batch<'_> {
    /// Prepares files from an index on, at least one. Blocks.
    fn prepare(&self, from: usize) -> Vec<Prepared<OpenFile>> {
        // If the memory of small files is used up, they are sent like large ones, from the page cache.
        let mut buffer = self.small_files.buffer();
        let soon =
            self.request.files.iter().skip(from).take(BATCH_FILES_MAX).filter_map(|file| file.path.to_rel_path().ok());
        self.root.will_open(soon);
        let mut looked = Vec::new();
        let mut open = 0;
        for (n, file) in self.request.files.iter().enumerate().skip(from).take(BATCH_FILES_MAX) {
            let n = u32::try_from(n).unwrap_or(u32::MAX);
            let one = match self.look(n, file, looked.is_empty(), buffer.as_mut()) {
                Ok(Some(one)) => one,
                Ok(None) => break,
                // By the next batch, files of this one may be closed.
                Err(Failure { code: ErrorCode::Busy, .. }) if !looked.is_empty() => break,
                Err(Failure { code, message }) => Looked::Answer(FileAnswer::Error { n, code, message }),
            };
            open += usize::from(matches!(one, Looked::Large(_)));
            looked.push(one);
            if open >= self.open_max || buffer.as_ref().is_some_and(|buffer| buffer.len() >= BATCH_BYTES_MAX) {
                break;
            }
        }
        self.finish(looked, buffer)
    }

    /// Prepares one file. None if it has to wait for the next batch: it is too large for the rest of the buffer, or on another file system.
    fn look(
        &self,
        n: u32,
        file: &FetchFile,
        is_first: bool,
        buffer: Option<&mut MappedBuffer>,
    ) -> Result<Option<Looked>, Failure> {
        let path = file.path.to_rel_path().map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string()))?;
        match buffer {
            Some(buffer) if file.ranges.is_none() => {
                let begin = buffer.len();
                for _ in 0..READ_ATTEMPTS_MAX {
                    let Some(source) = self.open(&path, is_first)? else { return Ok(None) };
                    if !self.is_small(&source.attributes) {
                        return self.large(n, file, source).map(Some);
                    }
                    if is_unchanged(&source.attributes, file.unless.as_ref()) {
                        return Ok(Some(Looked::Answer(FileAnswer::Same { n })));
                    }
                    buffer.truncate(begin);
                    if source.attributes.size > (buffer.capacity() - begin) as u64 {
                        return Ok(None);
                    }
                    if read_whole(&source, buffer)? {
                        return Ok(Some(self.small(n, file, &source.attributes, begin..buffer.len(), buffer)));
                    }
                }
                buffer.truncate(begin);
                Err(Failure::changed("the file kept changing while it was read"))
            }
            _ => match self.open(&path, is_first)? {
                Some(source) => self.large(n, file, source).map(Some),
                None => Ok(None),
            },
        }
    }

    /// Opens a file. None if it is on another file system than the batch.
    fn open(&self, path: &RelPath, is_first: bool) -> Result<Option<OpenFile>, Failure> {
        let opened = self.open_quietly(path, is_first)?;
        if let (Some(published), Some(OpenFile { attributes: Attributes { local: Some(stat), .. }, .. })) =
            (self.published, &opened)
        {
            published.found(path, stat);
        }
        Ok(opened)
    }

    fn open_quietly(&self, path: &RelPath, is_first: bool) -> Result<Option<OpenFile>, Failure> {
        if !is_first {
            // Most files are on the root's file system and need no second lookup.
            if self.mount.is_none()
                && let Some(source) = OpenFile::open_unmounted(self.root, path)?
            {
                return Ok(Some(source));
            }
            if self.root.mounted_below(path) != self.mount {
                return Ok(None);
            }
        }
        OpenFile::open(self.root, path).map(Some)
    }

    /// Whether a file is read here. Large holes wouldn't survive that, so such files are not.
    fn is_small(&self, stat: &Attributes) -> bool {
        let keeps_holes = stat.size > HOLES_FROM_BYTES && stat.is_sparse();
        stat.size <= SMALL_FILE_BYTES_MAX.min(self.request.chunk_bytes) && !keeps_holes
    }

    fn small(&self, n: u32, file: &FetchFile, stat: &Attributes, bytes: Range<usize>, buffer: &[u8]) -> Looked {
        let wants = self.request.digest != DigestWish::None;
        let unless = unless_digest(file);
        let digest = (wants || unless.is_some()).then(|| {
            self.cache.lookup_small(stat).unwrap_or_else(|| {
                let digest = Digest::of(buffer.get(bytes.clone()).unwrap_or_default());
                self.cache.remember_small(stat, digest, self.began);
                digest
            })
        });
        if unless.is_some() && digest == unless {
            return Looked::Answer(FileAnswer::Same { n });
        }
        Looked::Small { metadata: metadata(n, stat, digest.filter(|_| wants), false), bytes }
    }

    fn large(&self, n: u32, file: &FetchFile, source: OpenFile) -> Result<Looked, Failure> {
        if is_unchanged(&source.attributes, file.unless.as_ref()) {
            return Ok(Looked::Answer(FileAnswer::Same { n }));
        }
        let wants = self.request.digest != DigestWish::None;
        let mut unless = unless_digest(file);
        let known = match wants || unless.is_some() {
            true => self.cache.lookup(&source.attributes).map_or_else(|| source.known(), |known| Ok(Some(known)))?,
            false => None,
        };
        let digest = known.map(|known| known.digest);
        if digest.is_some() {
            if digest == unless {
                return Ok(Looked::Answer(FileAnswer::Same { n }));
            }
            unless = None;
        }
        let layout = if source.attributes.is_sparse() { layout(&source, 0)? } else { Layout::without_holes() };
        let metadata = metadata(n, &source.attributes, digest.filter(|_| wants), !layout.extents.is_empty());
        Ok(Looked::Large(Box::new(Prepared::Large { metadata, file: source, layout, unless })))
    }

    /// Slices the batch's buffer, which counts until the last slice was sent.
    fn finish(&self, looked: Vec<Looked>, buffer: Option<MappedBuffer>) -> Vec<Prepared<OpenFile>> {
        let mut packer = self.request.compress.and_then(|_| zstd::bulk::Compressor::new(ZSTD_LEVEL).ok());
        let buffer = buffer.map(|buffer| self.small_files.hold_batch(buffer)).unwrap_or_default();
        let finish = |one| match one {
            Looked::Answer(answer) => Prepared::Answer(answer),
            Looked::Large(large) => *large,
            Looked::Small { metadata, bytes } => {
                let body = buffer.slice(bytes);
                let packed = match &mut packer {
                    Some(packer) if body.len() >= PACK_FROM_BYTES => {
                        packer.compress(&body).ok().filter(|packed| packed.len() < body.len())
                    }
                    _ => None,
                };
                Prepared::Small { metadata, body, packed: packed.map(|packed| self.small_files.hold(packed)) }
            }
        };
        looked.into_iter().map(finish).collect()
    }
}

/// Appends the whole file. False if it changed meanwhile.
fn read_whole(source: &OpenFile, buffer: &mut MappedBuffer) -> Result<bool, Failure> {
    // Small, so this fits.
    let size = usize::try_from(source.attributes.size.min(CHUNK_BYTES_MAX)).unwrap_or(0);
    let checked = source.append(buffer, size).and_then(|length| {
        let checked = if length < size { Err(source.ended_early()) } else { source.check() };
        checked.map(|()| length)
    });
    match checked {
        Err(failure) if failure.code == ErrorCode::Changed => Ok(false),
        // If there is more, it grew.
        other => other.map(|length| length == size),
    }
}

fn metadata(n: u32, stat: &Attributes, digest: Option<Digest>, sparse: bool) -> FileMetadata {
    FileMetadata {
        n,
        size: stat.size,
        mtime: stat.modified,
        mode: stat.mode,
        digest,
        leaf_bytes: LeafSize::for_file(stat.size).leaf_bytes(),
        sparse,
    }
}

fn is_unchanged(stat: &Attributes, unless: Option<&Unless>) -> bool {
    matches!(unless, Some(Unless::Stat { size, mtime }) if (*size, *mtime) == (stat.size, stat.modified))
}

fn unless_digest(file: &FetchFile) -> Option<Digest> {
    match file.unless {
        Some(Unless::Digest { digest }) => Some(digest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CHUNK_BYTES_DEFAULT;
    use crate::server::client_root::tests::served;

    #[test]
    fn a_batch_ends_where_its_buffer_is_full() {
        let temp = tempfile::tempdir().unwrap();
        let sizes = [300 << 10, 600 << 10, 200 << 10, 1 << 20, 5];
        let mut files = Vec::new();
        for (n, size) in sizes.into_iter().enumerate() {
            std::fs::write(temp.path().join(n.to_string()), vec![7; size]).unwrap();
            files.push(FetchFile { path: n.to_string().into_bytes().into(), ranges: None, unless: None });
        }
        let (chunk_bytes, digest) = (CHUNK_BYTES_DEFAULT, DigestWish::None);
        let request = FetchRequest { id: 1, chunk_bytes, compress: None, digest, credit_bytes: 0, files };
        let (root, cache) = (served(temp.path()), DigestCache::new(0));
        let small_files = SmallFiles::new(8 * BATCH_BYTES_MAX);
        let began = wall_clock();
        let preparing = Batch {
            root: &root,
            published: None,
            cache: &cache,
            began,
            small_files: &small_files,
            request: &request,
            mount: None,
            open_max: 1,
        };
        let bodies = |from| -> Vec<usize> {
            let batch = preparing.prepare(from);
            let body = |prepared: &Prepared<OpenFile>| match prepared {
                Prepared::Small { body, .. } => body.len(),
                _ => 0,
            };
            batch.iter().map(body).collect()
        };
        assert_eq!(bodies(0), sizes[..2]);
        assert_eq!(bodies(2), sizes[2..3]);
        // This one fills the buffer alone.
        assert_eq!(bodies(3), sizes[3..4]);
        assert_eq!(bodies(4), sizes[4..]);
    }

    #[test]
    fn digests_are_cached_while_the_file_is_unchanged() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("f"), b"content").unwrap();
        let files = vec![FetchFile { path: b"f".to_vec().into(), ranges: None, unless: None }];
        let (chunk_bytes, digest) = (CHUNK_BYTES_DEFAULT, DigestWish::Now);
        let request = FetchRequest { id: 1, chunk_bytes, compress: None, digest, credit_bytes: 0, files };
        let (root, cache) = (served(temp.path()), DigestCache::new(0));
        let small_files = &SmallFiles::new(8 * BATCH_BYTES_MAX);
        let answered = || {
            let (root, cache, request, began) = (&root, &cache, &request, wall_clock());
            let published = None;
            let preparing = Batch { root, published, cache, began, small_files, request, mount: None, open_max: 1 };
            match preparing.prepare(0).as_slice() {
                [Prepared::Small { metadata, .. }] => metadata.digest,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(answered(), Some(Digest::of(b"content")));
        // A wrong digest in the cache shows that the file isn't hashed again.
        let (known, began) = (Digest::of(b"known"), Timestamp { seconds: i64::MAX, nanoseconds: 0 });
        let stat = OpenFile::open(&root, &"f".parse().unwrap()).unwrap().attributes;
        cache.remember_small(&stat, known, began);
        assert_eq!(answered(), Some(known));
        std::fs::write(temp.path().join("f"), b"changed").unwrap();
        std::fs::File::open(temp.path().join("f")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(answered(), Some(Digest::of(b"changed")));
    }
}
