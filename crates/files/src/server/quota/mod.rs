//! Memory and descriptors that clients share. Each client has a guaranteed minimum, so that nobody can keep others out.

pub(super) mod copies;
pub(super) mod small_files;

use super::limits::{
    CLIENT_FETCH_NAMES_BYTES_MAX, CLIENT_FETCH_NAMES_BYTES_SURE, CLIENT_LIST_NAMES_BYTES_MAX,
    CLIENT_LIST_NAMES_BYTES_SURE, CLIENT_OPEN_FILES_SURE, CLIENT_PUSH_WINDOW_BYTES_MAX, CLIENT_PUSH_WINDOW_BYTES_SURE,
    FETCH_NAMES_BYTES_MAX, LIST_NAMES_BYTES_MAX, PUSH_WINDOWS_BYTES_MAX,
};
use super::stats::QuotaStats;
use std::sync::Arc;
use towpath_quota::Quota;

/// Quotas of all clients together, or one client's shares of them.
#[derive(Clone, Debug)]
pub(super) struct Quotas {
    /// Bytes of memory of paths and ranges in fetches: some ten times their bytes on the wire.
    pub(super) fetch_names: Arc<Quota>,
    /// Bytes of memory of names that listings keep until they are over, also between their pages.
    pub(super) list_names: Arc<Quota>,
    /// Large files that fetches have open, or that their jobs may open. They stay open however long their clients take.
    pub(super) open_files: Arc<Quota>,
    /// Bytes of pieces of pushes that aren't written yet, as far as clients have credit for them.
    pub(super) push_window: Arc<Quota>,
}

impl Quotas {
    /// `open_files_max` as in [`ServerOptions`](super::ServerOptions).
    pub(super) fn new(open_files_max: usize) -> Quotas {
        Quotas {
            fetch_names: Quota::new(FETCH_NAMES_BYTES_MAX),
            list_names: Quota::new(LIST_NAMES_BYTES_MAX),
            open_files: Quota::new(open_files_max as u64),
            push_window: Quota::new(PUSH_WINDOWS_BYTES_MAX),
        }
    }

    pub(super) fn stats(&self) -> [QuotaStats; 4] {
        let stats = |name, quota: &Quota| QuotaStats { name, used: quota.used(), max: quota.max() };
        [
            stats("bytes of names in fetches", &self.fetch_names),
            stats("bytes of names in listings", &self.list_names),
            stats("open files", &self.open_files),
            stats("bytes of pushes", &self.push_window),
        ]
    }

    /// A client's shares.
    pub(super) fn client(&self) -> Quotas {
        Quotas {
            fetch_names: self.fetch_names.share(CLIENT_FETCH_NAMES_BYTES_SURE, CLIENT_FETCH_NAMES_BYTES_MAX),
            list_names: self.list_names.share(CLIENT_LIST_NAMES_BYTES_SURE, CLIENT_LIST_NAMES_BYTES_MAX),
            open_files: self.open_files.share(CLIENT_OPEN_FILES_SURE, u64::MAX),
            push_window: self.push_window.share(CLIENT_PUSH_WINDOW_BYTES_SURE, CLIENT_PUSH_WINDOW_BYTES_MAX),
        }
    }
}
