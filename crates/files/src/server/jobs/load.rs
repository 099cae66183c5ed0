//! Making pieces of files ready where that takes reading: jobs for the pool.

use super::pool::Requester;
use super::prepare::ZSTD_LEVEL;
use crate::protocol::ErrorCode;
use crate::server::Failure;
use crate::server::open_file::OpenFile;
use crate::server::quota::copies::Share;
use crate::server::session::{LoadHow, Loaded, Slot};
use rustix::fs::{Advice, fadvise};
use std::num::NonZeroU64;

/// A piece of a file, and who wants it.
pub(crate) struct Piece {
    pub(crate) requester: Requester,
    pub(crate) slot: Slot,
    pub(crate) source: OpenFile,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) how: LoadHow,
}

impl Piece {
    /// Reads and compresses it. If it doesn't shrink it is sent as it is; having been read, it is in memory.
    pub(crate) fn pack(&self) -> Result<Loaded, Failure> {
        let length = usize::try_from(self.length).map_err(|_| Failure::new(ErrorCode::Io, "piece too large"))?;
        let bytes = self.source.read(self.offset, length)?;
        // Compressed bytes are sent later than they are read, so what was read is checked now.
        self.source.check()?;
        Ok(packed(&bytes).unwrap_or(Loaded::InPlace))
    }

    /// Copies as much of it as there is room for. Where that is all of it, it is compressed if that is wanted.
    pub(crate) fn copy(&self, room: Share) -> Result<Loaded, Failure> {
        // While this piece travels, the disk may read the next. If it can't be told to, it is read when its turn comes.
        if let Some(ahead) = NonZeroU64::new(self.length.saturating_mul(2)) {
            let _ = fadvise(&*self.source.file, self.offset, Some(ahead), Advice::WillNeed);
        }
        let bytes = self.source.read(self.offset, room.bytes())?;
        if self.how != LoadHow::AsItIs {
            self.source.check()?;
        }
        let packs = self.how == LoadHow::Compressed && bytes.len() as u64 == self.length;
        let packed = if packs { packed(&bytes) } else { None };
        Ok(packed.unwrap_or_else(|| Loaded::Copied(room.hold(bytes))))
    }
}

fn packed(bytes: &[u8]) -> Option<Loaded> {
    let packed = zstd::bulk::compress(bytes, ZSTD_LEVEL).ok()?;
    (packed.len() < bytes.len()).then(|| Loaded::Packed(packed.into()))
}
