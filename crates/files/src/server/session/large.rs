//! A file of a fetch that is sent in pieces.

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

/// So many pieces of a file in a row that don't shrink, and compression is given up for most of the next.
const UNSHRUNK_MAX: u32 = 4;
/// One piece in so many is compressed all the same, to see whether the file has become different.
const COMPRESS_AGAIN_AFTER: u32 = 16;

#[derive(Debug)]
pub(super) struct Large<F> {
    pub(super) metadata: FileMetadata,
    pub(super) file: F,
    pub(super) unless: Option<Digest>,
    pub(super) digest: DigestState,
    pub(super) cursor: PieceCursor,
    /// Somebody is finding out where its data is.
    pub(super) is_looked_at: bool,
    pub(super) pipeline: Pipeline<DataPiece>,
    /// Pieces in a row that compression didn't make smaller.
    pub(super) unshrunk: u32,
    /// Pieces begun.
    pub(super) begun: u32,
    pub(super) failed: Option<Failure>,
    /// For the open file.
    pub(super) _permit: Permit,
}

#[derive(Debug)]
pub(super) struct DataPiece {
    pub(super) piece: Piece,
    pub(super) how: LoadHow,
    /// Compressed or copied; otherwise it goes out of the file.
    pub(super) bytes: Option<(Body, Bytes)>,
    /// Taken from the credit when it was begun.
    pub(super) cost: u64,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum DigestState {
    /// Not asked for, or told with the metadata.
    Settled,
    Wanted,
    Hashing,
    Found(Digest),
}

impl<F: Clone> Large<F> {
    /// A piece is ready, or can't be had.
    pub(super) fn loaded(
        &mut self,
        ticket: Ticket,
        slot: Slot,
        result: Result<Loaded, Failure>,
        shared: &mut Shared<F>,
    ) {
        // Nothing of this number: it belonged to a file that has been declared void meanwhile.
        let Some(piece) = self.pipeline.ready(slot) else { return };
        match result {
            Ok(Loaded::InPlace) => self.unshrunk += u32::from(piece.how == LoadHow::Compressed),
            Ok(Loaded::Packed(bytes)) => {
                self.unshrunk = 0;
                let cost = (bytes.len() as u64).max(PIECE_COST_MIN);
                shared.credit.add(piece.cost.saturating_sub(cost));
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

    /// Whether the metadata can't be told before the digest is known.
    pub(super) fn must_wait(&self, wish: DigestWish) -> bool {
        self.is_digest_open() && (wish == DigestWish::Now || self.unless.is_some())
    }

    /// A file whose pieces don't shrink, as most media and archives, is tried again only now and then.
    pub(super) fn how_to_compress(&mut self) -> LoadHow {
        self.begun = self.begun.wrapping_add(1);
        let is_hopeless = self.unshrunk >= UNSHRUNK_MAX && !self.begun.is_multiple_of(COMPRESS_AGAIN_AFTER);
        if is_hopeless { LoadHow::Unchanged } else { LoadHow::Compressed }
    }

    pub(super) fn is_through(&self) -> bool {
        self.cursor.is_done() && self.pipeline.is_empty() && !self.is_digest_open()
    }

    pub(super) fn is_digest_open(&self) -> bool {
        matches!(self.digest, DigestState::Wanted | DigestState::Hashing)
    }

    /// Gives back the credit of what the socket never got.
    pub(super) fn refund(&mut self, shared: &mut Shared<F>) {
        for piece in self.pipeline.clear() {
            shared.credit.add(piece.cost);
        }
    }
}

impl DataPiece {
    /// Ends the piece after so many bytes: what is left of it, unless that is nothing.
    fn cut(&mut self, length: u64) -> Option<DataPiece> {
        let left = self.piece.length.checked_sub(length).filter(|left| *left > 0)?;
        let piece = Piece { offset: self.piece.offset + length, length: left, ..self.piece };
        self.piece.length = length;
        let cost = self.cost.saturating_sub(length.max(PIECE_COST_MIN));
        self.cost -= cost;
        // Where memory is short, nothing is compressed either.
        Some(DataPiece { piece, how: LoadHow::Rest, bytes: None, cost })
    }
}
