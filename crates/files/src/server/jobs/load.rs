//! Making a piece of a file ready to be sent.

use super::Answer;
use super::pool::{Context, Pool, Requester};
use super::prepare::ZSTD_LEVEL;
use crate::protocol::ErrorCode;
use crate::server::Failure;
use crate::server::open_file::OpenFile;
use crate::server::quota::copies::{Cut, Share, Wanted};
use crate::server::session::{Slot, Ticket};
use bytes::Bytes;
use rustix::fs::{Advice, fadvise};
use std::num::NonZeroU64;
use towpath_sockets::page_cache::Residency;

/// Makes a piece of a file ready to be sent.
#[derive(Debug)]
pub(crate) struct Load<F> {
    pub(crate) slot: Slot,
    pub(crate) file: F,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) how: LoadHow,
}

/// The way a piece is made ready.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoadHow {
    /// Cached or copied as a whole, whatever version of the file it is now.
    AnyVersion,
    /// Cached or copied, if the file still is the version that is being sent.
    Unchanged,
    /// That, and compressed.
    Compressed,
    /// As [`LoadHow::Unchanged`]: the rest of a piece of which only the beginning could be copied.
    Rest,
}

/// A piece that is ready to be sent.
#[derive(Debug)]
pub(crate) enum Loaded<F> {
    /// From the file itself.
    InPlace,
    /// From another file that has it, from this offset on.
    InFile(F, u64),
    /// Compressed, smaller than it was.
    Packed(Bytes),
    /// Copied into memory, as the page cache may drop the file: the whole piece or, where memory is short and the piece isn't of the plain dialect,
    /// a prefix.
    Copied(Bytes),
}

impl Load<OpenFile> {
    /// Makes a piece ready at once if it is in memory, of a file on a local disk, and needn't be compressed.
    pub(super) fn start(
        self,
        pool: &mut Pool,
        requester: Requester,
    ) -> Option<(Slot, Result<Loaded<OpenFile>, Failure>)> {
        let Load { slot, ref file, offset, length, how } = self;
        if !file.is_local() {
            // What is at hand needn't wait for those who wait for other pieces.
            if how != LoadHow::Compressed
                && let Ok(Some((piece, at))) = file.piece(offset, length, false)
                && pool.context.storage.probe(&piece, at, length) == Residency::Cached
            {
                return Some((slot, Ok(Loaded::InFile(piece, at))));
            }
            // No piece is larger than memory.
            let bytes = usize::try_from(length).unwrap_or(usize::MAX);
            let cut = match how {
                // The plain dialect needs the whole piece in one frame.
                LoadHow::AnyVersion => Cut::Never,
                LoadHow::Unchanged | LoadHow::Compressed => Cut::May,
                LoadHow::Rest => Cut::Was,
            };
            let Requester { tenant, key: client, ticket: Ticket(request), .. } = requester;
            let device = file.attributes.device();
            pool.copies.push(Wanted { tenant, client, request, device, bytes, cut, what: (requester, self) });
            pool.start_copies();
            return None;
        }
        let failed = move |failure| Answer::Load(slot, Err(failure));
        let device = file.attributes.device();
        if how == LoadHow::Compressed {
            pool.run(&pool.compress, device, requester, failed, move |_| Answer::Load(slot, self.pack()));
            return None;
        }
        if how != LoadHow::AnyVersion
            && let Err(failure) = file.check()
        {
            return Some((slot, Err(failure)));
        }
        if pool.context.storage.probe(file, offset, length) == Residency::Cached {
            return Some((slot, Ok(Loaded::InPlace)));
        }
        pool.run(&pool.prefetch, device, requester, failed, move |context| {
            let read = context.storage.prefetch(&self.file, offset, length);
            Answer::Load(slot, read.map(|()| Loaded::InPlace))
        });
        None
    }

    /// Reads and compresses the piece. If it doesn't shrink, it is sent from the file, which is cached by now.
    pub(crate) fn pack(&self) -> Result<Loaded<OpenFile>, Failure> {
        let length = usize::try_from(self.length).map_err(|_| Failure::new(ErrorCode::Io, "piece too large"))?;
        let bytes = self.file.read(self.offset, length)?;
        // The file may change before the compressed bytes are sent, so it is checked now.
        self.file.check()?;
        Ok(packed(&bytes).unwrap_or(Loaded::InPlace))
    }

    /// Copies as much of the piece as was granted, unless a local file has it. If that is all of it, it is compressed on request.
    pub(crate) fn copy(&self, context: &Context, space: Share) -> Result<Loaded<OpenFile>, Failure> {
        if self.how != LoadHow::Compressed
            && let Some((piece, at)) = self.file.piece(self.offset, self.length, true)?
            // If the disk fails, the source has it elsewhere.
            && context.storage.prefetch(&piece, at, self.length).is_ok()
        {
            return Ok(Loaded::InFile(piece, at));
        }
        // Reads ahead while this piece is sent.
        if let (Some(ahead), Some(file)) = (NonZeroU64::new(self.length.saturating_mul(2)), self.file.descriptor()) {
            let _ = fadvise(file, self.offset, Some(ahead), Advice::WillNeed);
        }
        let bytes = self.file.read(self.offset, space.bytes())?;
        if self.how != LoadHow::AnyVersion {
            self.file.check()?;
        }
        let packs = self.how == LoadHow::Compressed && bytes.len() as u64 == self.length;
        let packed = if packs { packed(&bytes) } else { None };
        Ok(packed.unwrap_or_else(|| Loaded::Copied(space.hold(bytes))))
    }
}

fn packed(bytes: &[u8]) -> Option<Loaded<OpenFile>> {
    let packed = zstd::bulk::compress(bytes, ZSTD_LEVEL).ok()?;
    (packed.len() < bytes.len()).then(|| Loaded::Packed(packed.into()))
}

impl Pool {
    /// Starts copying pieces that memory was granted to. Called after the waker was woken.
    pub(crate) fn start_copies(&mut self) {
        while let Some(((requester, load), space)) = self.copies.next() {
            let Load { slot, how, .. } = load;
            let threads = if how == LoadHow::Compressed { &self.compress } else { &self.prefetch };
            let failed = move |failure| Answer::Load(slot, Err(failure));
            let device = load.file.attributes.device();
            self.run(threads, device, requester, failed, move |context| Answer::Load(slot, load.copy(context, space)));
        }
    }
}
