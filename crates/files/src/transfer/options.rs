//! The options of a transfer.

use std::sync::Arc;
use std::time::Duration;

use towpath_quota::Quota;

use crate::filter::Filter;
use crate::path::RelPath;
use crate::protocol::control::{Compression, FollowLinks};

/// Options of a transfer.
#[derive(Clone, Debug)]
pub struct TransferOptions {
    /// The source of a transfer.
    pub source: Source,
    /// Limit of the credit window, in bytes.
    pub window_bytes: u64,
    /// Memory that the windows of all transfers share for what they grow, in bytes.
    pub windows: Arc<Quota>,
    /// Largest body frame to ask for, in bytes; at most the window.
    pub chunk_bytes: u64,
    /// Whether to ask for compressed bodies.
    pub compress: Option<Compression>,
    /// Whether to check content against digests.
    pub verify: bool,
    /// Whether the disk compares what is there by digest, so that a difference means damage.
    pub check: bool,
    /// Whether files are synced. The disk does it, and confirmations say so to the server.
    pub durable: bool,
    /// Bytes that the server may send in a second, on average; at least [`BYTES_PER_SECOND_MIN`](crate::transfer::BYTES_PER_SECOND_MIN).
    pub bytes_per_second: Option<u64>,
    /// How long nothing may happen before the transfer fails.
    pub idle_timeout: Duration,
    /// Links that are followed.
    pub follow: FollowLinks,
    /// Deliver a single file from its beginning to its end, and nothing of it that wasn't checked: for an output that can't take
    /// anything back. What fails the file fails the transfer.
    pub in_order: bool,
    /// The destination is an object store. It takes contents in equal parts, which aren't read back or written again: so the values of
    /// leaves are known before the content comes, as for an output. A file that has several names becomes several objects.
    pub objects: bool,
    /// Bytes of all files, beyond which the transfer fails. `None`: any number, but of holes no more than [`HOLE_BYTES_MAX`](super::HOLE_BYTES_MAX).
    pub max_bytes: Option<u64>,
    /// Entries of the listing, beyond which the transfer fails.
    pub max_entries: usize,
    /// Filter for a directory or the matches of a pattern.
    pub filter: Filter,
    /// Have what isn't in the source deleted, see [`Output::Sweep`](super::Output::Sweep).
    pub sweep: bool,
}

impl TransferOptions {
    /// Whether digest and leaf values of a file are fetched before its content.
    pub(super) fn values_first(&self) -> bool {
        self.verify && (self.in_order || self.objects)
    }
}

/// The source of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, a link, or a directory with all below it.
    Path(RelPath),
    /// All that a pattern matches; it goes to its path below the part of the pattern that has no wildcard.
    Glob(String),
}

/// The paths of files at the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The one file or link of the source, under this name.
    As(RelPath),
    /// Whatever is below the source, with the same path below the destination.
    Below,
}
