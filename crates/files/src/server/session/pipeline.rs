//! Pieces of one stream between the disk and the socket, in order.

use super::super::limits::{PIPELINE_BYTES_MAX, PIPELINE_PIECES_MAX};
use super::Slot;
use std::collections::VecDeque;

/// Pieces in the order of sending. Each waits until those before it are ready.
#[derive(Debug)]
pub(super) struct Pipeline<P> {
    pieces: VecDeque<Entry<P>>,
    bytes: u64,
}

#[derive(Debug)]
struct Entry<P> {
    slot: Slot,
    length: u64,
    piece: P,
    stage: Stage,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Stage {
    Loading,
    Ready,
    InSocket,
}

impl<P> Default for Pipeline<P> {
    fn default() -> Pipeline<P> {
        Pipeline { pieces: VecDeque::new(), bytes: 0 }
    }
}

impl<P> Pipeline<P> {
    /// Whether another piece may be begun. Two always may, so that one is loaded while the other is sent.
    pub(super) fn has_space(&self) -> bool {
        self.pieces.len() < 2 || (self.pieces.len() < PIPELINE_PIECES_MAX && self.bytes < PIPELINE_BYTES_MAX)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The first piece that hasn't been sent.
    pub(super) fn first(&self) -> Option<&P> {
        self.pieces.front().map(|entry| &entry.piece)
    }

    /// Whether the next piece to go to the socket is being loaded.
    pub(super) fn is_loading(&self) -> bool {
        let next = self.pieces.iter().find(|entry| entry.stage != Stage::InSocket);
        next.is_some_and(|entry| entry.stage == Stage::Loading)
    }

    /// Appends a piece that is being loaded.
    pub(super) fn begin(&mut self, slot: Slot, length: u64, piece: P) {
        self.pieces.push_back(Entry { slot, length, piece, stage: Stage::Loading });
        self.bytes += length;
    }

    /// Marks a piece as ready.
    pub(super) fn ready(&mut self, slot: Slot) -> Option<&mut P> {
        let entry = self.pieces.iter_mut().find(|entry| entry.slot == slot && entry.stage == Stage::Loading)?;
        entry.stage = Stage::Ready;
        Some(&mut entry.piece)
    }

    /// Splits a piece after this many bytes. The rest is a piece of its own, which is being loaded.
    pub(super) fn split(&mut self, slot: Slot, length: u64, rest: Slot, piece: P) {
        let Some(at) = self.pieces.iter().position(|entry| entry.slot == slot) else { return };
        let Some(entry) = self.pieces.get_mut(at) else { return };
        let left = entry.length.saturating_sub(length);
        entry.length -= left;
        self.pieces.insert(at + 1, Entry { slot: rest, length: left, piece, stage: Stage::Loading });
    }

    /// The next piece to go to the socket, if it is ready.
    pub(super) fn next_ready(&mut self) -> Option<(Slot, u64, &mut P)> {
        let entry = self.pieces.iter_mut().find(|entry| entry.stage != Stage::InSocket)?;
        (entry.stage == Stage::Ready).then_some((entry.slot, entry.length, &mut entry.piece))
    }

    /// Marks a piece as in the socket.
    pub(super) fn handed_over(&mut self, slot: Slot) {
        if let Some(entry) = self.pieces.iter_mut().find(|entry| entry.slot == slot) {
            entry.stage = Stage::InSocket;
        }
    }

    /// Removes a piece.
    pub(super) fn remove(&mut self, slot: Slot) -> Option<P> {
        let at = self.pieces.iter().position(|entry| entry.slot == slot)?;
        let entry = self.pieces.remove(at)?;
        self.bytes -= entry.length;
        Some(entry.piece)
    }

    /// Drops pieces behind this one that the socket doesn't have.
    pub(super) fn drop_behind(&mut self, slot: Slot, drops: impl Fn(&P) -> bool) {
        let Some(at) = self.pieces.iter().position(|entry| entry.slot == slot) else { return };
        let behind = self.pieces.split_off(at + 1);
        for entry in behind {
            if entry.stage != Stage::InSocket && drops(&entry.piece) {
                self.bytes -= entry.length;
            } else {
                self.pieces.push_back(entry);
            }
        }
    }

    /// Removes all pieces, and returns those that the socket doesn't have.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = P> {
        self.bytes = 0;
        let pieces = std::mem::take(&mut self.pieces);
        pieces.into_iter().filter(|entry| entry.stage != Stage::InSocket).map(|entry| entry.piece)
    }
}
