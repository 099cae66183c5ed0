//! Entries of listings.

use serde::{Deserialize, Serialize};

use super::fields::{LinkTarget, WirePath, check_stat, cut_reason};
use crate::digest::Digest;
use crate::root::Timestamp;

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawListEntry")]
pub struct ListEntry {
    /// From the root.
    #[serde(flatten)]
    pub path: WirePath,
    /// Kind of the entry.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Bytes, as stat(2) has it.
    pub size: u64,
    /// Time of the last change of its content.
    pub mtime: Timestamp,
    /// Permission bits, at most [`MODE_MAX`](crate::limits::MODE_MAX).
    pub mode: u32,
    /// Bytes allocated on the server's disk, if fewer than its size: the file has holes or is compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated: Option<u64>,
    /// Number that all names of one file have in common, if it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard_link: Option<u64>,
    /// Target of a link.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub target: Option<LinkTarget>,
    /// Digest of a file, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Error of an entry that could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Kind of an entry of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// Could not be read.
    Error,
    /// A socket, device or pipe, or something of a later protocol.
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct RawListEntry {
    path: Option<String>,
    path_b64: Option<String>,
    #[serde(rename = "type")]
    kind: EntryKind,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    mtime: Timestamp,
    #[serde(default)]
    mode: u32,
    allocated: Option<u64>,
    hard_link: Option<u64>,
    target: Option<String>,
    target_b64: Option<String>,
    digest: Option<Digest>,
    message: Option<String>,
}

impl TryFrom<RawListEntry> for ListEntry {
    type Error = String;

    fn try_from(raw: RawListEntry) -> Result<Self, String> {
        let path = WirePath::from_members(raw.path, raw.path_b64)?.ok_or("`path` is missing")?;
        let target = LinkTarget::from_members(raw.target, raw.target_b64)?;
        if raw.kind == EntryKind::Link && target.is_none() {
            return Err("a link without `target`".to_owned());
        }
        check_stat(raw.size, raw.mode)?;
        Ok(Self {
            path,
            kind: raw.kind,
            size: raw.size,
            mtime: raw.mtime,
            mode: raw.mode,
            allocated: raw.allocated,
            hard_link: raw.hard_link,
            target,
            digest: raw.digest,
            message: raw.message.map(cut_reason),
        })
    }
}
