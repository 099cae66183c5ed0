//! The directory of a cache: a file for each piece.
//!
//! ```text
//! DIR/pieces-1/ab/ab...   a piece: its bytes, then BLAKE3 of its id and these bytes. The name is the id in hex
//! DIR/new/                pieces that are being written
//! ```

use super::Piece;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Names of the two directories. The number is that of the format.
const PIECES: &str = "pieces-1";
const NEW: &str = "new";
/// Bytes behind a piece.
pub(super) const TRAILER_BYTES: u64 = 32;
/// Bytes that are read at a time to check a piece.
const READ_BYTES: usize = 256 << 10;
/// Age at which an unfinished piece is nobody's any more.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// A piece's time is set at most this often.
const TOUCH_EVERY_SECONDS: u64 = 60;

/// Identifies a piece of a version.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id([u8; 32]);

impl Id {
    pub(super) fn of(version: &[u8; 32], index: u64) -> Id {
        let mut hasher = blake3::Hasher::new_derive_key("towpath cache 1");
        hasher.update(version).update(&index.to_le_bytes());
        Id(*hasher.finalize().as_bytes())
    }

    fn hex(&self) -> String {
        self.0.iter().fold(String::with_capacity(64), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}

/// The directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    next: AtomicU64,
}

/// A piece that is being written. Dropping it removes it.
pub(super) struct Writing<'a> {
    directory: &'a Directory,
    id: Id,
    path: PathBuf,
    file: File,
    hasher: blake3::Hasher,
    length: u64,
    is_done: bool,
}

impl Directory {
    pub(super) fn open(path: &Path) -> io::Result<Directory> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path.join(NEW))?;
        for first in 0..=u8::MAX {
            builder.create(path.join(PIECES).join(format!("{first:02x}")))?;
        }
        for left in std::fs::read_dir(path.join(NEW))? {
            let left = left?;
            let age = left.metadata().and_then(|there| there.modified()).ok().and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > ABANDONED_AFTER) {
                let _ = std::fs::remove_file(left.path());
            }
        }
        Ok(Directory { path: path.to_owned(), next: AtomicU64::new(0) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directories of pieces.
    pub(super) fn shelves(&self) -> impl Iterator<Item = PathBuf> {
        (0..=u8::MAX).map(|first| self.path.join(PIECES).join(format!("{first:02x}")))
    }

    fn piece_path(&self, id: &Id) -> PathBuf {
        let name = id.hex();
        self.path.join(PIECES).join(name.get(..2).unwrap_or_default()).join(&name)
    }

    /// A piece that is there, once all of it has been read and is right. One that is wrong is removed. Blocks.
    pub(super) fn find(&self, id: &Id, length: u64) -> Option<Piece> {
        let path = self.piece_path(id);
        let file = File::open(&path).ok()?;
        match check(&file, id, length) {
            Ok(true) => Some(Piece::new(file, length)),
            Ok(false) => {
                tracing::warn!(path = %path.display(), "a piece in the cache is damaged: it is fetched again");
                let _ = std::fs::remove_file(&path);
                None
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a piece in the cache can't be read: it is fetched again");
                let _ = std::fs::remove_file(&path);
                None
            }
        }
    }

    /// Begins a piece.
    pub(super) fn write(&self, id: &Id) -> io::Result<Writing<'_>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Another process with this one's number may be in another container.
        let random: u64 = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), number);
        let path = self.path.join(NEW).join(OsString::from(format!("{}-{random:016x}", std::process::id())));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&id.0);
        Ok(Writing { directory: self, id: *id, path, file, hasher, length: 0, is_done: false })
    }
}

impl Writing<'_> {
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Gives the piece its name, if it has this length.
    pub(super) fn finish(mut self, length: u64) -> io::Result<Piece> {
        if self.length != length {
            return Err(io::Error::other(format!("a piece has {} bytes in place of {length}", self.length)));
        }
        self.file.write_all(self.hasher.finalize().as_bytes())?;
        std::fs::rename(&self.path, self.directory.piece_path(&self.id))?;
        self.is_done = true;
        Ok(Piece::new(self.file.try_clone()?, length))
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether a file is this piece, whole and undamaged.
fn check(file: &File, id: &Id, length: u64) -> io::Result<bool> {
    if file.metadata()?.len() != length + TRAILER_BYTES {
        return Ok(false);
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&id.0);
    let mut buffer = vec![0; READ_BYTES];
    let (mut reader, mut left) = (file, length);
    while left > 0 {
        let space = usize::try_from(left).unwrap_or(usize::MAX).min(READ_BYTES);
        let count = reader.read(buffer.get_mut(..space).unwrap_or_default())?;
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { return Ok(false) };
        hasher.update(bytes);
        left -= count as u64;
    }
    let mut trailer = [0; TRAILER_BYTES as usize];
    reader.read_exact(&mut trailer)?;
    Ok(*hasher.finalize().as_bytes() == trailer)
}

impl Piece {
    fn new(file: File, length: u64) -> Piece {
        Piece { file: Arc::new(file), length, used: AtomicU64::new(0) }
    }

    /// Reads bytes from an offset on; 0 only at the end.
    pub(super) fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let space = buffer.get_mut(..left).unwrap_or_default();
        match self.file.read_at(space, offset)? {
            0 if left > 0 => Err(io::Error::other("it is shorter than it was")),
            count => Ok(count),
        }
    }

    /// Notes that it was used, in the time of its file. What is evicted is what wasn't used for longest.
    pub(super) fn touch(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let was = self.used.load(Ordering::Relaxed);
        if now.saturating_sub(was) >= TOUCH_EVERY_SECONDS && self.used.swap(now, Ordering::Relaxed) == was {
            let _ = self.file.set_modified(SystemTime::now());
        }
    }
}
