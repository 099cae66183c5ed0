//! Local file systems: opening what is in the kernel's cache doesn't block there.
//!
//! On network file systems and FUSE, opening a file or its metadata asks the other side even if every name is cached, and may block for
//! any time.
//!
//! Copy-on-write file systems: space that is reserved for a file there isn't what is written later, and keeps it from being compressed.

use rustix::fd::AsFd;
use rustix::fs::fstatfs;

const BTRFS: u32 = 0x9123_683E;
const ZFS: u32 = 0x2FC1_2FC1;
const BCACHEFS: u32 = 0xCA45_1A4E;

/// statfs(2) types of file systems on a disk of this machine, or in its memory. One that isn't listed counts as remote, which costs a
/// change of threads.
const LOCAL: [u32; 18] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    BTRFS,
    ZFS,
    BCACHEFS,
    0xF2F5_2010, // F2FS
    0x0102_1994, // tmpfs
    0x8584_58F6, // ramfs
    0x794C_7630, // overlayfs, whose layers mostly are one of these
    0x7371_7368, // SquashFS
    0xE0F5_E1E2, // EROFS
    0x3153_464A, // JFS
    0x3434,      // NILFS2
    0x9660,      // ISO 9660
    0x1501_3346, // UDF
    0x4D44,      // FAT
    0x2011_BAB0, // exFAT
    0x7366_746E, // NTFS3
];

/// Whether an open file is on a local file system. False if unknown.
pub fn is_local(descriptor: impl AsFd) -> bool {
    is_one_of(&LOCAL, descriptor)
}

/// Whether an open file is on a file system that copies on write. False if unknown.
pub(super) fn copies_on_write(descriptor: impl AsFd) -> bool {
    is_one_of(&[BTRFS, ZFS, BCACHEFS], descriptor)
}

fn is_one_of(types: &[u32], descriptor: impl AsFd) -> bool {
    // The field is signed, and as wide as the system likes; the numbers have 32 bits.
    fstatfs(descriptor).is_ok_and(|system| types.contains(&(system.f_type as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn virtual_file_systems_are_not_local() {
        assert!(is_local(File::open(env!("CARGO_MANIFEST_DIR")).unwrap()));
        assert!(!is_local(File::open("/proc/self").unwrap()));
    }
}
