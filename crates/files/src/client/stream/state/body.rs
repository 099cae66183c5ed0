//! What comes of the file: pieces into leaves, and leaves to the writer once they are right.

use bytes::Bytes;

use super::{FileVersion, Step, Stream};
use crate::client::transfer::{AGAIN_MAX, TransferError};
use crate::digest::{LeafHasher, LeafSize};
use crate::protocol::ErrorCode;
use crate::protocol::control::Request;
use crate::protocol::data::{Body, DataEntry};

/// A piece that is coming.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) entry: DataEntry,
    pub(super) useless: bool,
    pub(super) credit: u64,
    pub(super) packed: Vec<u8>,
}

impl Stream {
    pub(super) fn body_begins(&mut self, entry: DataEntry) -> Result<(), TransferError> {
        let Some(piece) = &mut self.piece else { return TransferError::protocol("a body without a header") };
        piece.entry = entry;
        piece.credit = entry.cost();
        if self.credit.spend(piece.credit).is_none() {
            return TransferError::protocol("more data than there was credit for");
        }
        if piece.useless {
            return Ok(());
        }
        let Some(version) = self.version else { return TransferError::protocol("data before the metadata") };
        let next = self.written + self.held.len() as u64;
        let ends_only = entry.length == 0 && entry.end;
        let fits = entry.n == 0
            && (ends_only || entry.offset == next)
            && entry.length <= version.leaves.file_bytes() - next
            && (entry.body == Body::Hole || entry.length <= self.chunk_bytes);
        if fits { Ok(()) } else { TransferError::protocol("a piece that was not asked for, or is out of order") }
    }

    pub(super) fn body_data(&mut self, data: Bytes) -> Result<(), TransferError> {
        self.received_bytes += data.len() as u64;
        match &mut self.piece {
            None => TransferError::protocol("bytes outside of a piece"),
            Some(piece) if piece.useless => Ok(()),
            Some(piece) if piece.entry.body == Body::Zstd => {
                // Bounded: the body is as long as the header says, and that was checked.
                piece.packed.extend_from_slice(&data);
                Ok(())
            }
            Some(_) => self.take(data),
        }
    }

    pub(super) fn body_ends(&mut self) -> Result<(), TransferError> {
        let Some(piece) = &mut self.piece else {
            return TransferError::protocol("the end of a piece that did not begin");
        };
        self.credit.release(std::mem::take(&mut piece.credit));
        if piece.useless {
            return Ok(());
        }
        match piece.entry.body {
            Body::Plain => Ok(()),
            Body::Zstd => {
                let length = usize::try_from(piece.entry.length).unwrap_or(usize::MAX);
                let packed = std::mem::take(&mut piece.packed);
                match zstd::bulk::decompress(&packed, length) {
                    Ok(data) if data.len() == length => self.take(data.into()),
                    _ => self.ask_again(),
                }
            }
            Body::Hole => {
                self.zeros_left = piece.entry.length;
                Ok(())
            }
        }
    }

    /// Takes the next bytes of the file.
    pub(super) fn take(&mut self, mut data: Bytes) -> Result<(), TransferError> {
        let Some(FileVersion { leaves, .. }) = self.version else { return Ok(()) };
        if !self.verify {
            self.write(data);
            return Ok(());
        }
        while !data.is_empty() && self.piece.as_ref().is_some_and(|piece| !piece.useless) {
            let leaf = leaves.index_at(self.written);
            let Ok((_, length)) = leaves.range(leaf) else {
                return TransferError::protocol("more bytes than the file has");
            };
            let lacking = usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(self.held.len());
            self.held.extend_from_slice(&data.split_to(lacking.min(data.len())));
            if self.held.len() as u64 == length {
                self.check(leaves, leaf)?;
            }
        }
        Ok(())
    }

    /// A leaf is whole: writes it if it is right.
    fn check(&mut self, leaves: LeafSize, leaf: u64) -> Result<(), TransferError> {
        let hasher = LeafHasher::new(leaves, leaf).ok();
        let hashed = hasher.and_then(|mut hasher| hasher.update(&self.held).and_then(|()| hasher.finish()).ok());
        let expected = usize::try_from(leaf).ok().and_then(|leaf| self.values.get(leaf));
        if hashed.is_none() || hashed.as_ref() != expected {
            return self.ask_again();
        }
        self.bad = 0;
        let data = std::mem::take(&mut self.held).into();
        self.write(data);
        Ok(())
    }

    fn write(&mut self, data: Bytes) {
        self.written += data.len() as u64;
        self.steps.push(Step::Write(data));
        if self.version.is_some_and(|version| version.leaves.file_bytes() == self.written) {
            self.finish();
        }
    }

    /// What came is wrong: what is still to come of this request is of no use, the rest is asked for from there.
    fn ask_again(&mut self) -> Result<(), TransferError> {
        self.bad += 1;
        if self.bad > AGAIN_MAX {
            let message = format!("its content does not match its digest, {} times", AGAIN_MAX + 1);
            return Err(TransferError::Unmet { code: ErrorCode::Io, message });
        }
        if let Some(piece) = &mut self.piece {
            piece.useless = true;
        }
        self.send(Request::Cancel { id: self.id });
        self.ask_for_data();
        Ok(())
    }
}
