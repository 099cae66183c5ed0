//! Which pieces of a file come next: the wanted ranges, cut at chunks and at the borders of holes.

use crate::protocol::control::Range;
use std::collections::VecDeque;

/// A stretch of a file that is all data or all hole.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) hole: bool,
}

/// The next stretch to send, before the credit is asked how much of it may go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) hole: bool,
}

/// Goes through the wanted ranges of a file in ascending order, once.
#[derive(Debug)]
pub(super) struct PieceCursor {
    ranges: VecDeque<Range>,
    /// Ascending, where known. What is behind the last one, or between two, counts as data.
    extents: VecDeque<Extent>,
    chunk_bytes: u64,
}

impl PieceCursor {
    /// `wanted` ascends without overlap; None is the whole file. What lies past the end is cut off.
    pub(super) fn new(wanted: Option<&[Range]>, size: u64, extents: Vec<Extent>, chunk_bytes: u64) -> PieceCursor {
        let whole = [Range { offset: 0, length: size }];
        let ranges = wanted
            .unwrap_or(&whole)
            .iter()
            .map(|range| Range { offset: range.offset, length: range.length.min(size.saturating_sub(range.offset)) })
            .filter(|range| range.length > 0)
            .collect();
        PieceCursor { ranges, extents: extents.into(), chunk_bytes: chunk_bytes.max(1) }
    }

    /// Whether nothing is left.
    pub(super) fn is_done(&self) -> bool {
        self.ranges.is_empty()
    }

    /// What comes next, at most a chunk unless it is a hole.
    pub(super) fn peek(&mut self) -> Option<Piece> {
        let range = self.ranges.front()?;
        while self.extents.front().is_some_and(|extent| extent.offset + extent.length <= range.offset) {
            self.extents.pop_front();
        }
        let (until, hole) = match self.extents.front() {
            Some(extent) if extent.offset <= range.offset => (extent.offset + extent.length, extent.hole),
            Some(extent) => (extent.offset, false),
            None => (u64::MAX, false),
        };
        let length = range.length.min(until - range.offset);
        let length = if hole { length } else { length.min(self.chunk_bytes) };
        Some(Piece { offset: range.offset, length, hole })
    }

    /// The first `length` octets of what [`PieceCursor::peek`] gave are on their way.
    pub(super) fn advance(&mut self, length: u64) {
        if let Some(range) = self.ranges.front_mut() {
            let length = length.min(range.length);
            range.offset += length;
            range.length -= length;
            if range.length == 0 {
                self.ranges.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ascending() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
        proptest::collection::vec((0u64..50, 1u64..60, any::<bool>()), 0..8).prop_map(|gaps| {
            let mut at = 0;
            gaps.into_iter()
                .map(|(gap, length, flag)| {
                    let offset = at + gap;
                    at = offset + length;
                    (offset, length, flag)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn every_wanted_octet_comes_once_and_in_order(
            ranges in proptest::option::of(ascending()),
            extents in ascending(),
            size in 0u64..400,
            chunk in 1u64..40,
            cut in 1u64..40,
        ) {
            let ranges: Option<Vec<_>> =
                ranges.map(|ranges| ranges.into_iter().map(|(offset, length, _)| Range { offset, length }).collect());
            let extents: Vec<_> = extents
                .into_iter()
                .map(|(offset, length, hole)| Extent { offset, length, hole })
                .collect();
            let wanted = |octet: u64| {
                octet < size && ranges.as_ref().is_none_or(|ranges| {
                    ranges.iter().any(|range| range.offset <= octet && octet < range.offset + range.length)
                })
            };
            let is_hole = |octet: u64| {
                extents.iter().any(|extent| extent.hole && extent.offset <= octet && octet < extent.offset + extent.length)
            };
            let mut cursor = PieceCursor::new(ranges.as_deref(), size, extents.clone(), chunk);
            let mut sent = Vec::new();
            while let Some(piece) = cursor.peek() {
                prop_assert!(piece.length > 0);
                prop_assert!(piece.hole || piece.length <= chunk);
                let length = if piece.hole { piece.length } else { piece.length.min(cut) };
                for octet in piece.offset..piece.offset + length {
                    prop_assert_eq!(is_hole(octet), piece.hole);
                    sent.push(octet);
                }
                cursor.advance(length);
            }
            prop_assert!(cursor.is_done());
            prop_assert_eq!(sent, (0..size).filter(|&octet| wanted(octet)).collect::<Vec<_>>());
        }
    }
}
