//! A file of a fetch that is sent in pieces.

use super::credit::Credit;
use super::pipeline::Pipeline;
use super::{Shared, Slot, Ticket};
use crate::digest::Digest;
use crate::limits::PIECE_COST_MIN;
use crate::protocol::control::{DigestWish, FileMetadata};
use crate::protocol::data::Body;
use crate::server::Failure;
use crate::server::chunks::{Piece, PieceCursor};
use crate::server::jobs::{Job, Load, LoadHow, Loaded};
use bytes::Bytes;
use towpath_quota::Permit;

/// Consecutive pieces that don't shrink before compression is mostly skipped.
const UNSHRUNK_MAX: u32 = 4;
/// While it is skipped, one piece in this many is compressed as a probe.
const COMPRESS_AGAIN_AFTER: u32 = 16;

#[derive(Debug)]
pub(super) struct Large<F> {
    pub(super) metadata: FileMetadata,
    pub(super) file: F,
    pub(super) unless: Option<Digest>,
    pub(super) digest: DigestState,
    pub(super) cursor: PieceCursor,
    /// A job is finding its next extents.
    pub(super) is_looked_at: bool,
    pub(super) pipeline: Pipeline<DataPiece<F>>,
    /// Consecutive pieces that compression didn't shrink.
    pub(super) unshrunk: u32,
    /// Pieces begun.
    pub(super) begun: u32,
    pub(super) failed: Option<Failure>,
    /// For the open file.
    pub(super) _permit: Permit,
}

#[derive(Debug)]
pub(super) struct DataPiece<F> {
    pub(super) piece: Piece,
    pub(super) how: LoadHow,
    /// Compressed or copied bytes; otherwise it is sent from the file.
    pub(super) bytes: Option<(Body, Bytes)>,
    /// Another file that has it, from this offset on.
    pub(super) elsewhere: Option<(F, u64)>,
    /// Credit that it costs.
    pub(super) cost: u64,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum DigestState {
    /// Not requested, or sent with the metadata.
    Settled,
    Wanted,
    Hashing,
    Found(Digest),
}

impl<F: Clone> Large<F> {
    /// Handles a piece that is ready, or has failed.
    pub(super) fn loaded(
        &mut self,
        ticket: Ticket,
        slot: Slot,
        result: Result<Loaded<F>, Failure>,
        credit: &Credit,
        shared: &mut Shared<F>,
    ) {
        // Missing if it belonged to a file that has been declared void meanwhile.
        let Some(piece) = self.pipeline.ready(slot) else { return };
        match result {
            Ok(Loaded::InPlace) => self.unshrunk += u32::from(piece.how == LoadHow::Compressed),
            Ok(Loaded::InFile(file, offset)) => piece.elsewhere = Some((file, offset)),
            Ok(Loaded::Packed(bytes)) => {
                self.unshrunk = 0;
                let cost = (bytes.len() as u64).max(PIECE_COST_MIN);
                credit.add(piece.cost.saturating_sub(cost));
                piece.cost = cost;
                piece.bytes = Some((Body::Zstd, bytes));
            }
            Ok(Loaded::Copied(bytes)) => {
                let length = bytes.len() as u64;
                piece.bytes = Some((Body::Plain, bytes));
                match piece.cut(length) {
                    None => self.unshrunk += u32::from(piece.how == LoadHow::Compressed),
                    Some(rest) => {
                        let (file, Piece { offset, length: left, .. }, how) = (self.file.clone(), rest.piece, rest.how);
                        let next = shared.slot();
                        self.pipeline.split(slot, length, next, rest);
                        shared.start(ticket, Job::Load(Load { slot: next, file, offset, length: left, how }));
                    }
                }
            }
            Err(failure) => self.failed = Some(failure),
        }
    }

    /// Whether the metadata has to wait for the digest.
    pub(super) fn must_wait(&self, wish: DigestWish) -> bool {
        self.is_digest_open() && (wish == DigestWish::Now || self.unless.is_some())
    }

    /// Compresses a piece, unless the file's pieces don't shrink, as those of most media and archives.
    pub(super) fn how_to_compress(&mut self) -> LoadHow {
        self.begun = self.begun.wrapping_add(1);
        let is_hopeless = self.unshrunk >= UNSHRUNK_MAX && !self.begun.is_multiple_of(COMPRESS_AGAIN_AFTER);
        if is_hopeless { LoadHow::Unchanged } else { LoadHow::Compressed }
    }

    /// Its position in the file.
    pub(super) fn at(&self) -> u64 {
        let first = self.pipeline.first().map(|piece| piece.piece.offset);
        first.or_else(|| self.cursor.offset()).unwrap_or(self.metadata.size)
    }

    pub(super) fn is_through(&self) -> bool {
        self.cursor.is_done() && self.pipeline.is_empty() && !self.is_digest_open()
    }

    pub(super) fn is_digest_open(&self) -> bool {
        matches!(self.digest, DigestState::Wanted | DigestState::Hashing)
    }

    /// Returns the credit of pieces that the socket never got.
    pub(super) fn refund(&mut self, credit: &Credit) {
        for piece in self.pipeline.clear() {
            credit.add(piece.cost);
        }
    }
}

impl<F> DataPiece<F> {
    /// Cuts the piece after this many bytes and returns the rest, if any.
    fn cut(&mut self, length: u64) -> Option<DataPiece<F>> {
        let left = self.piece.length.checked_sub(length).filter(|left| *left > 0)?;
        let piece = Piece { offset: self.piece.offset + length, length: left, ..self.piece };
        self.piece.length = length;
        let cost = self.cost.saturating_sub(length.max(PIECE_COST_MIN));
        self.cost -= cost;
        // Pieces are cut where memory is short: then nothing is compressed either.
        Some(DataPiece { piece, how: LoadHow::Rest, bytes: None, elsewhere: None, cost })
    }
}
