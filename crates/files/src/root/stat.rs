//! File metadata.

use super::RootError;
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, Stat, StatxFlags, fstat, makedev, statx};
use std::fs::File;

/// A time as files have them.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    /// Since 1970 in UTC; negative before.
    pub seconds: i64,
    /// 0 to 999,999,999, added to the seconds.
    pub nanoseconds: u32,
}

/// The type of an entry in a directory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A socket, device or pipe.
    Other,
}

impl FileKind {
    fn of(mode: u32) -> FileKind {
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Dir,
            FileType::Symlink => FileKind::Link,
            _ => FileKind::Other,
        }
    }
}

/// Metadata of a file, from stat(2).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// The type.
    pub kind: FileKind,
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification of the content, which programs can set.
    pub modified: Timestamp,
    /// Time of last change of content or metadata; can't be set.
    pub changed: Timestamp,
    /// The permission bits.
    pub mode: u32,
    /// User id of the owner.
    pub owner: u32,
    /// Names of it: several if it has hard links.
    pub links: u64,
    /// Bytes allocated on disk: fewer than its size if it has holes.
    pub allocated: u64,
}

impl FileStat {
    /// Whether this is the same file with the same content, as far as metadata shows. Compared before and after reading.
    pub fn same_content(&self, other: &FileStat) -> bool {
        (self.device, self.inode, self.size, self.modified, self.changed)
            == (other.device, other.inode, other.size, other.modified, other.changed)
    }

    /// Whether only this user can write to it, or can have it open for writing: a regular file of the user's, with one name and a mode that
    /// keeps others out.
    pub fn is_private_to(&self, user: u32) -> bool {
        let is_closed = self.mode & WRITABLE_BY_OTHERS == 0;
        self.kind == FileKind::File && self.owner == user && self.links == 1 && is_closed
    }

    /// Whether it may have holes.
    pub fn is_sparse(&self) -> bool {
        self.kind == FileKind::File && self.allocated < self.size
    }
}

/// st_blocks counts these, whatever the file system's own blocks.
const STAT_BLOCK_BYTES: u64 = 512;
const PERMISSION_BITS: u32 = 0o7777;
const WRITABLE_BY_OTHERS: u32 = 0o022;

// The fields of stat differ in width and sign between architectures; what cannot be there is taken as 0.
#[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions)]
impl From<Stat> for FileStat {
    fn from(stat: Stat) -> FileStat {
        FileStat {
            kind: FileKind::of(stat.st_mode.into()),
            device: u64::try_from(stat.st_dev).unwrap_or(0),
            inode: u64::try_from(stat.st_ino).unwrap_or(0),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: Timestamp {
                seconds: i64::try_from(stat.st_mtime).unwrap_or(0),
                nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            },
            changed: Timestamp {
                seconds: i64::try_from(stat.st_ctime).unwrap_or(0),
                nanoseconds: u32::try_from(stat.st_ctime_nsec).unwrap_or(0),
            },
            mode: u32::from(stat.st_mode) & PERMISSION_BITS,
            owner: stat.st_uid,
            links: u64::try_from(stat.st_nlink).unwrap_or(1),
            allocated: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES),
        }
    }
}

/// Device and mount of a file, from the kernel's cache.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Id of the mount. Devices don't suffice: one overlayfs or Btrfs has several.
    pub(super) mount: u64,
}

impl Place {
    /// `None` if a sandbox or an old kernel doesn't report it.
    pub(super) fn known(descriptor: impl AsFd) -> Option<Place> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::MNT_ID | StatxFlags::INO;
        let stat = statx(descriptor, c"", flags, wanted).ok()?;
        let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let is_known = stat.stx_mask & wanted.bits() == wanted.bits();
        is_known.then_some(Place { device, inode: stat.stx_ino, mount: stat.stx_mnt_id })
    }
}

/// Current metadata of an open file.
impl TryFrom<&File> for FileStat {
    type Error = RootError;

    fn try_from(file: &File) -> Result<FileStat, RootError> {
        Ok(fstat(file)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn statx_and_fstat_agree() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 10_000]).unwrap();
        let now = FileStat::try_from(&file).unwrap();
        let place = Place::known(&file).unwrap();
        assert_eq!((place.device, place.inode), (now.device, now.inode));
        assert_eq!((now.kind, now.size), (FileKind::File, 10_000));
    }
}
