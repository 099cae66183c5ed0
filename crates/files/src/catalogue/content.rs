//! Content of a path, and how to find out whether it has changed.

use crate::digest::{Digest, Validator};
use crate::protocol::control::{ChangeContent, LinkTarget};
use crate::root::{FileStat, Timestamp};

/// The content of a path that followers receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A finished regular file.
    File {
        /// Bytes.
        size: u64,
        /// Time of the last change of its content.
        modified: Timestamp,
        /// Permission bits.
        mode: u32,
        /// Its digest.
        digest: Digest,
    },
    /// A directory.
    Dir {
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// As stored.
        target: Box<[u8]>,
        /// Time of its last change.
        modified: Timestamp,
    },
    /// A deletion.
    Gone,
}

/// Identity of an entry, which followers don't receive: it shows whether the entry is still the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Device.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Time of the last change of content or metadata.
    pub changed: Timestamp,
    /// Another change of the content would have changed the times: see [`crate::digest::SETTLED_AFTER_SECONDS`].
    pub is_settled: bool,
}

/// The most that a change's other members take in JSON, in bytes.
const MEMBERS_BYTES: usize = 300;

impl Content {
    /// The most that this takes in a page, in bytes.
    pub fn cost(&self, path: &[u8]) -> usize {
        let target = if let Content::Link { target, .. } = self { json_bytes(target) } else { 0 };
        MEMBERS_BYTES + json_bytes(path) + target
    }

    /// As it is sent.
    pub fn to_wire(&self) -> ChangeContent {
        match self {
            &Content::File { size, modified: mtime, mode, digest } => ChangeContent::File { size, mtime, mode, digest },
            &Content::Dir { mode } => ChangeContent::Dir { mode },
            Content::Link { target, modified } => {
                ChangeContent::Link { target: LinkTarget::from(target.to_vec()), mtime: *modified }
            }
            Content::Gone => ChangeContent::Gone,
        }
    }
}

impl Identity {
    /// Of what was just looked at.
    pub fn of(stat: &FileStat, is_settled: bool) -> Identity {
        Identity { device: stat.device, inode: stat.inode, changed: stat.changed, is_settled }
    }

    /// Of a version of another source than a local directory. No other content has the same one.
    pub fn of_version(validator: Validator) -> Identity {
        let (device, inode, changed) = validator.parts();
        Identity { device, inode, changed, is_settled: true }
    }

    /// Whether it is the same file or directory, whatever its times are.
    pub fn is_same_inode(&self, stat: &FileStat) -> bool {
        (self.device, self.inode) == (stat.device, stat.inode)
    }
}

/// The most that bytes take as a JSON text, or as base64.
fn json_bytes(bytes: &[u8]) -> usize {
    let escaped = bytes.iter().map(|byte| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    });
    escaped.sum::<usize>().max(bytes.len().div_ceil(3) * 4)
}
