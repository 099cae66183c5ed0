//! Which file systems ask nobody for what the kernel has in memory.
//!
//! On a network file system, or one that a process makes (FUSE), opening a file or looking at it asks the other side, though every
//! name is in the cache, and may wait for as long as that one pleases.

use rustix::fd::AsFd;
use rustix::fs::fstatfs;

/// What statfs(2) calls the file systems that are on a disk of this machine, or in its memory. One that isn't listed is taken for
/// another: that costs a change of threads, not a wait.
const LOCAL: [u32; 18] = [
    0xEF53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683E, // Btrfs
    0x2FC1_2FC1, // ZFS
    0xCA45_1A4E, // bcachefs
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

/// Whether what is open here is on one of them. What can't be told is no.
pub(super) fn is_local(descriptor: impl AsFd) -> bool {
    // The field is signed, and as wide as the system likes; the numbers have 32 bits.
    fstatfs(descriptor).is_ok_and(|system| LOCAL.contains(&(system.f_type as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_the_kernel_makes_up_is_not_taken_for_a_disk() {
        assert!(is_local(File::open(env!("CARGO_MANIFEST_DIR")).unwrap()));
        assert!(!is_local(File::open("/proc/self").unwrap()));
    }
}
