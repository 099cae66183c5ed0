//! Cutting a file into pieces: the requested ranges, split at chunks and holes.

use crate::protocol::control::Range;
use std::collections::VecDeque;

/// A part of a file that is all data or all hole.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) hole: bool,
}

/// The next piece to send, before credit cuts it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) hole: bool,
}

/// Data and holes of a part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Ascending. Gaps count as data.
    pub(super) extents: Vec<Extent>,
    /// End of the known part.
    pub(super) until: u64,
}

impl Layout {
    /// Layout of a file without holes.
    pub(super) fn without_holes() -> Layout {
        Layout { extents: Vec::new(), until: u64::MAX }
    }
}

/// Extents left before more are looked up, so that they are there in time.
const EXTENTS_LEFT_MIN: usize = 32;

/// Cursor through the requested ranges of a file.
#[derive(Debug)]
pub(super) struct PieceCursor {
    ranges: VecDeque<Range>,
    extents: VecDeque<Extent>,
    known_until: u64,
    chunk_bytes: u64,
}

impl PieceCursor {
    /// `wanted` ascends without overlap; None is the whole file. Ranges are cut at the end of the file.
    pub(super) fn new(wanted: Option<&[Range]>, size: u64, layout: Layout, chunk_bytes: u64) -> PieceCursor {
        let whole = [Range { offset: 0, length: size }];
        let ranges = wanted
            .unwrap_or(&whole)
            .iter()
            .map(|range| Range { offset: range.offset, length: range.length.min(size.saturating_sub(range.offset)) })
            .filter(|range| range.length > 0)
            .collect();
        let Layout { extents, until } = layout;
        PieceCursor { ranges, extents: extents.into(), known_until: until, chunk_bytes: chunk_bytes.max(1) }
    }

    /// Whether the end is reached.
    pub(super) fn is_done(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Offset of the next piece; None at the end.
    pub(super) fn offset(&self) -> Option<u64> {
        self.ranges.front().map(|range| range.offset)
    }

    /// Offset from which extents have to be looked up now or soon.
    pub(super) fn wants_layout(&self) -> Option<u64> {
        let (first, last) = (self.ranges.front()?, self.ranges.back()?);
        let is_short = self.extents.len() < EXTENTS_LEFT_MIN && self.known_until < last.offset + last.length;
        is_short.then_some(self.known_until.max(first.offset))
    }

    /// Adds extents, from the wanted offset on.
    pub(super) fn add_layout(&mut self, layout: Layout) {
        self.extents.extend(layout.extents);
        self.known_until = layout.until;
    }

    /// The next piece, at most a chunk unless it is a hole. None at the end, or if the extent isn't known yet.
    pub(super) fn peek(&mut self) -> Option<Piece> {
        let range = self.ranges.front()?;
        while self.extents.front().is_some_and(|extent| extent.offset + extent.length <= range.offset) {
            self.extents.pop_front();
        }
        let (until, hole) = match self.extents.front() {
            Some(extent) if extent.offset <= range.offset => (extent.offset + extent.length, extent.hole),
            Some(extent) => (extent.offset, false),
            None => (self.known_until, false),
        };
        let length = range.length.min(until.saturating_sub(range.offset));
        let length = if hole { length } else { length.min(self.chunk_bytes) };
        (length > 0).then_some(Piece { offset: range.offset, length, hole })
    }

    /// Moves on by the first `length` bytes of the piece that [`PieceCursor::peek`] returned.
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
        fn every_wanted_byte_comes_once_and_in_order(
            ranges in proptest::option::of(ascending()),
            extents in ascending(),
            size in 0u64..400,
            chunk in 1u64..40,
            cut in 1u64..40,
            window in 1usize..4,
            late in proptest::collection::hash_set(0u64..400, 0..200),
        ) {
            let ranges: Option<Vec<_>> =
                ranges.map(|ranges| ranges.into_iter().map(|(offset, length, _)| Range { offset, length }).collect());
            let extents: Vec<_> = extents
                .into_iter()
                .map(|(offset, length, hole)| Extent { offset, length, hole })
                .collect();
            let wanted = |byte: u64| {
                byte < size && ranges.as_ref().is_none_or(|ranges| {
                    ranges.iter().any(|range| range.offset <= byte && byte < range.offset + range.length)
                })
            };
            let is_hole = |byte: u64| {
                extents.iter().any(|extent| extent.hole && extent.offset <= byte && byte < extent.offset + extent.length)
            };
            // So many of them at a time, as somebody looks for them.
            let layout = |from: u64| {
                let mut behind = extents.iter().filter(|extent| extent.offset + extent.length > from).copied();
                let next: Vec<_> = behind.by_ref().take(window).collect();
                let until = next.last().filter(|_| behind.next().is_some()).map(|last| last.offset + last.length);
                Layout { extents: next, until: until.unwrap_or(u64::MAX) }
            };
            let mut cursor = PieceCursor::new(ranges.as_deref(), size, layout(0), chunk);
            let mut sent = Vec::new();
            while !cursor.is_done() {
                let wanted = cursor.wants_layout();
                let is_time = |from: &u64| late.is_empty() || late.contains(from);
                if let Some(from) = wanted.filter(|from| is_time(from) || cursor.peek().is_none()) {
                    cursor.add_layout(layout(from));
                }
                let piece = cursor.peek();
                prop_assert!(piece.is_some(), "it neither goes on nor wants to know anything");
                let Some(piece) = piece else { break };
                prop_assert!(piece.length > 0);
                prop_assert!(piece.hole || piece.length <= chunk);
                let length = if piece.hole { piece.length } else { piece.length.min(cut) };
                for byte in piece.offset..piece.offset + length {
                    prop_assert_eq!(is_hole(byte), piece.hole);
                    sent.push(byte);
                }
                cursor.advance(length);
            }
            prop_assert!(cursor.is_done());
            prop_assert_eq!(sent, (0..size).filter(|&byte| wanted(byte)).collect::<Vec<_>>());
        }
    }
}
