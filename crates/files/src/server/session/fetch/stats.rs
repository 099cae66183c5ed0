//! Statistics of a fetch.

use super::{Fetch, FileState};
use crate::limits::PIECE_COST_MIN;
use crate::server::pace::Pace;
use crate::server::stats::{RequestKind, TransferStats, Wait};

impl<F: Clone> Fetch<F> {
    pub(in crate::server::session) fn stats(&self) -> TransferStats {
        let files = self.request.files.len();
        let current = self.next.saturating_sub(self.files.len());
        let path = self.request.files.get(current).map(|file| file.path.as_bytes().to_vec());
        let (done_bytes, total_bytes) = match self.files.front() {
            Some(FileState::Small { metadata, sent, .. }) => (*sent as u64, Some(metadata.size)),
            Some(FileState::Large(large)) => (large.at(), Some(large.metadata.size)),
            Some(FileState::Answered(_)) | None => (0, None),
        };
        TransferStats {
            kind: RequestKind::Fetch,
            id: Some(self.request.id),
            path: path.unwrap_or_default(),
            files,
            files_done: current.min(files),
            sent_bytes: self.sent_bytes,
            received_bytes: 0,
            done_bytes,
            total_bytes,
            all_done_bytes: self.over_bytes.saturating_add(done_bytes),
            all_total_bytes: self.all_bytes(),
            wait: self.wait(),
            slow: self.credit.slow(),
            pace: Pace::default(),
        }
    }

    /// Bytes of all files, once each is known.
    fn all_bytes(&self) -> Option<u64> {
        let size = |file: &FileState<F>| match file {
            FileState::Small { metadata, .. } => metadata.size,
            FileState::Large(large) => large.metadata.size,
            FileState::Answered(_) => 0,
        };
        let is_known = self.next >= self.request.files.len();
        is_known.then(|| self.files.iter().map(size).fold(self.over_bytes, u64::saturating_add))
    }

    pub(in crate::server::session) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    pub(in crate::server::session) fn wait(&self) -> Option<Wait> {
        let has_credit = self.credit.available() >= PIECE_COST_MIN;
        match self.files.front() {
            None if self.preparing.is_some() => Some(Wait::Disk),
            None => Some(Wait::OpenFiles),
            Some(FileState::Answered(_)) => None,
            Some(FileState::Small { .. }) => Some(if has_credit { Wait::Receiver } else { Wait::Credit }),
            Some(FileState::Large(large))
                if self.announced == 0 || large.cursor.is_done() && large.pipeline.is_empty() =>
            {
                large.is_digest_open().then_some(Wait::Hash)
            }
            Some(FileState::Large(large)) if large.pipeline.is_loading() => Some(Wait::Disk),
            Some(FileState::Large(large)) if !large.pipeline.is_empty() => Some(Wait::Receiver),
            Some(FileState::Large(_)) => (!has_credit).then_some(Wait::Credit),
        }
    }
}
