//! Persistent digests: an append-only file of records (`record_log`).
//!
//! ```text
//! body    device, inode, size, mtime (8 + 4), ctime (8 + 4), leaf size, leaves of 32 bytes. Of a file that isn't local: its validator in place of
//!         device, inode and ctime
//! ```
//! The digest isn't stored: the leaves merge to it. Records are not synced: a file whose record is lost in a crash is hashed again, and so
//! are all if the file is damaged. The last record of a file counts.

use super::cache::Digested;
use super::version::VALIDATOR_BYTES;
use super::{FileKey, Leaf, LeafSize, Validator, merge_leaves};
use crate::fields::take;
use crate::path::RelPath;
use crate::record_log::{Format, LogError, RecordLog};
use crate::root::{FileStat, Links, Root, Timestamp};
use rustix::fs::{Mode, OFlags, lstat};
use std::ffi::OsString;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;

/// Of a validator: device and inode of a local file. The rest of it is stored behind the other time.
const INODE_BYTES: usize = 16;
/// Bytes of a body beside its leaves.
const FIXED_BYTES: usize = VALIDATOR_BYTES + 8 + 12 + 8;
const FORMAT: Format =
    Format { magic: b"TOWDIG2\n", body_bytes_max: FIXED_BYTES + (super::LEAVES_MAX as usize) * size_of::<Leaf>() };

/// The file, open and locked against other processes.
#[derive(Debug)]
pub(super) struct Store(RecordLog);

impl Store {
    /// Opens or makes the file, and calls `each` for each record, oldest first. Fails if another process of this user has it, or if it is
    /// something else. `None` if another user has put something there that can't be renamed.
    pub(super) fn open(path: &Path, mut each: impl FnMut(FileKey, Digested)) -> io::Result<Option<Store>> {
        let Some(file) = open_own(path)? else { return Ok(None) };
        let again = file.try_clone()?;
        let log = RecordLog::open(file, &FORMAT, |body| {
            if let Some((key, digested)) = decode(body) {
                each(key, digested);
            }
        });
        let log = log.or_else(|error| match error {
            LogError::Damaged(at) => {
                tracing::warn!(path = %path.display(), at, "the file of digests is damaged: files are hashed again");
                again.set_len(0)?;
                RecordLog::open(again, &FORMAT, |_| {})
            }
            error => Err(error),
        });
        log.map(|log| Some(Store(log))).map_err(|error| match error {
            LogError::Io(error) => error,
            LogError::Locked => {
                io::Error::new(io::ErrorKind::WouldBlock, "another server has it; each server needs a file of its own")
            }
            error => io::Error::new(io::ErrorKind::InvalidData, format!("{error}: remove it if it has digests")),
        })
    }

    /// Size of the file in bytes.
    pub(super) fn length(&self) -> u64 {
        self.0.length()
    }

    /// Appends a record.
    pub(super) fn append(&mut self, key: &FileKey, digested: &Digested) -> io::Result<()> {
        self.0.append(&encode(key, digested))?;
        self.0.flush()
    }

    /// Removes all records.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.0.clear()
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
    let (inode, changed) = key.validator.0.split_at(INODE_BYTES);
    body.extend_from_slice(inode);
    body.extend_from_slice(&key.size.to_be_bytes());
    body.extend_from_slice(&key.modified.seconds.to_be_bytes());
    body.extend_from_slice(&key.modified.nanoseconds.to_be_bytes());
    body.extend_from_slice(changed);
    body.extend_from_slice(&digested.leaf_size.leaf_bytes().to_be_bytes());
    body.extend(digested.leaves.iter().flatten());
    body
}

fn decode(body: &[u8]) -> Option<(FileKey, Digested)> {
    let mut rest = body;
    let inode: [u8; INODE_BYTES] = take(&mut rest)?;
    let size = u64::from_be_bytes(take(&mut rest)?);
    let seconds = i64::from_be_bytes(take(&mut rest)?);
    let modified = Timestamp { seconds, nanoseconds: u32::from_be_bytes(take(&mut rest)?) };
    let changed: [u8; VALIDATOR_BYTES - INODE_BYTES] = take(&mut rest)?;
    let mut validator = Validator([0; VALIDATOR_BYTES]);
    validator.0.iter_mut().zip(inode.into_iter().chain(changed)).for_each(|(byte, stored)| *byte = stored);
    let leaf_size = LeafSize::announced(u64::from_be_bytes(take(&mut rest)?), size).ok()?;
    let (leaves, remainder) = rest.as_chunks::<{ size_of::<Leaf>() }>();
    if !remainder.is_empty() || leaves.len() as u64 != leaf_size.count() {
        return None;
    }
    let digest = merge_leaves(leaves).ok()?;
    let key = FileKey { validator, size, modified };
    Some((key, Digested { digest, leaf_size, leaves: leaves.into() }))
}
