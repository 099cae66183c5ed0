//! Persistent digests: an append-only file of records.
//!
//! ```text
//! file    "TOWDIG1\n", records
//! record  length of the body (4 bytes), body, the first 8 bytes of the body's BLAKE3
//! body    device, inode, size, mtime (8 + 4), ctime (8 + 4), leaf size, leaves of 32 bytes
//! ```
//! Numbers are little-endian. The digest isn't stored: the leaves merge to it. Records are not synced: a file whose record is lost in a crash is
//! hashed again, and a torn record is detected by its length or checksum and dropped with all behind it. The last record of a file counts.

use super::cache::{Digested, FileKey};
use super::{Leaf, LeafSize, merge_leaves};
use crate::fields::take;
use crate::path::RelPath;
use crate::root::{FileStat, Links, Root, Timestamp};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, lstat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"TOWDIG1\n";
const FIXED_BYTES: usize = 8 * 3 + 12 * 2 + 8;
const CHECKSUM_BYTES: usize = 8;
/// Body of a file with [`LEAVES_MAX`](super::LEAVES_MAX) leaves.
const BODY_BYTES_MAX: usize = FIXED_BYTES + (super::LEAVES_MAX as usize) * size_of::<Leaf>();

/// The file, open and locked against other processes.
#[derive(Debug)]
pub(super) struct Store {
    file: File,
    length: u64,
}

impl Store {
    /// Opens or makes the file, and calls `each` for each record, oldest first. Fails if another process of this user has it, or if it is
    /// something else. `None` if another user has put something there that can't be renamed.
    pub(super) fn open(path: &Path, mut each: impl FnMut(FileKey, Digested)) -> io::Result<Option<Store>> {
        let Some(file) = open_own(path)? else { return Ok(None) };
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::AGAIN => {
                io::Error::new(io::ErrorKind::WouldBlock, "another server has it; each server needs a file of its own")
            }
            errno => errno.into(),
        })?;
        let mut store = Store { file, length: 0 };
        let mut reader = BufReader::new(&store.file);
        let mut magic = Vec::new();
        reader.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        if !MAGIC.starts_with(&magic) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of remembered digests"));
        }
        if magic.len() < MAGIC.len() {
            drop(reader);
            store.clear()?;
            return Ok(Some(store));
        }
        let mut length = MAGIC.len() as u64;
        while let Some((key, digested, bytes)) = read_record(&mut reader)? {
            length += bytes;
            each(key, digested);
        }
        drop(reader);
        // An incomplete record is cut off, so that appended ones can be read again.
        store.truncate(length)?;
        Ok(Some(store))
    }

    /// Size of the file in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Appends a record.
    pub(super) fn append(&mut self, key: &FileKey, digested: &Digested) -> io::Result<()> {
        let record = encode(key, digested);
        match self.file.write_all(&record) {
            Ok(()) => {
                self.length += record.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a record would hide all that comes behind it.
                self.truncate(self.length)?;
                Err(error)
            }
        }
    }

    /// Removes all records.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.truncate(0)?;
        self.file.write_all(MAGIC)?;
        self.length = MAGIC.len() as u64;
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.file.seek(SeekFrom::Start(length))?;
        self.length = length;
        Ok(())
    }
}

/// Opens or makes the file if it is this user's alone: another user who can write to it could say what the digests are. What another
/// user has put there is renamed.
fn open_own(path: &Path) -> io::Result<Option<File>> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = Root::directory(above, Links::Never).and_then(|root| root.open_dir(&RelPath::root()));
    let random = format!("{:016x}", RandomState::new().hash_one(0));
    let user = dir.map_err(io::Error::other)?.own_user(format!(".tow-{random}").as_bytes());
    let mut aside = OsString::from(path);
    aside.push(format!(".displaced-{random}"));
    for _ in 0..2 {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                let file = File::from(file);
                if FileStat::try_from(&file).is_ok_and(|stat| stat.is_private_to(user)) {
                    return Ok(Some(file));
                }
            }
            Err(_) if lstat(path).is_ok_and(|there| there.st_uid != user) => {}
            Err(errno) => return Err(errno.into()),
        }
        let why = "the file of digests is another user's, or others can write to it, so it isn't used";
        if let Err(error) = std::fs::rename(path, &aside) {
            tracing::warn!(path = %path.display(), %error, "{why}, nor can it be renamed: digests are kept in memory only");
            return Ok(None);
        }
        tracing::warn!(path = %path.display(), now = %aside.display(), "{why}, but renamed");
    }
    Ok(None)
}

fn encode(key: &FileKey, digested: &Digested) -> Vec<u8> {
    let mut body = Vec::with_capacity(FIXED_BYTES + size_of_val(&*digested.leaves));
    for number in [key.device, key.inode, key.size] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    for time in [key.modified, key.changed] {
        body.extend_from_slice(&time.seconds.to_le_bytes());
        body.extend_from_slice(&time.nanoseconds.to_le_bytes());
    }
    body.extend_from_slice(&digested.leaf_size.leaf_bytes().to_le_bytes());
    body.extend(digested.leaves.iter().flatten());
    let length = u32::try_from(body.len()).unwrap_or(0);
    let checksum = checksum(&body);
    [&length.to_le_bytes()[..], &body, &checksum].concat()
}

/// Reads the next record and its size; None at the end or at a damaged record.
fn read_record(reader: &mut impl Read) -> io::Result<Option<(FileKey, Digested, u64)>> {
    let mut length = [0; 4];
    if !read_whole(reader, &mut length)? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if !(FIXED_BYTES..=BODY_BYTES_MAX).contains(&length) {
        return Ok(None);
    }
    let mut body = vec![0; length];
    let mut stored = [0; CHECKSUM_BYTES];
    if !read_whole(reader, &mut body)? || !read_whole(reader, &mut stored)? || stored != checksum(&body) {
        return Ok(None);
    }
    let bytes = (4 + length + CHECKSUM_BYTES) as u64;
    Ok(decode(&body).map(|(key, digested)| (key, digested, bytes)))
}

fn decode(body: &[u8]) -> Option<(FileKey, Digested)> {
    let mut rest = body;
    let device = u64::from_le_bytes(take(&mut rest)?);
    let inode = u64::from_le_bytes(take(&mut rest)?);
    let size = u64::from_le_bytes(take(&mut rest)?);
    let mut time = || {
        let seconds = i64::from_le_bytes(take(&mut rest)?);
        Some(Timestamp { seconds, nanoseconds: u32::from_le_bytes(take(&mut rest)?) })
    };
    let (modified, changed) = (time()?, time()?);
    let leaf_size = LeafSize::announced(u64::from_le_bytes(take(&mut rest)?), size).ok()?;
    let (leaves, remainder) = rest.as_chunks::<{ size_of::<Leaf>() }>();
    if !remainder.is_empty() || leaves.len() as u64 != leaf_size.count() {
        return None;
    }
    let digest = merge_leaves(leaves).ok()?;
    let key = FileKey { device, inode, size, modified, changed };
    Some((key, Digested { digest, leaf_size, leaves: leaves.into() }))
}

fn read_whole(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut checksum = [0; CHECKSUM_BYTES];
    for (byte, of_hash) in checksum.iter_mut().zip(blake3::hash(body).as_bytes()) {
        *byte = *of_hash;
    }
    checksum
}
