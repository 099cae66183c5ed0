//! Index of needed records by segment, kept by the journal's thread to decide which segments can be removed.

use super::record::{Record, Stored, What};
use foldhash::fast::RandomState;
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};

/// File name of the body of a request, or of its outcome.
pub(super) fn body_name(id: u64, of_outcome: bool) -> String {
    format!("{id:016x}.{}", if of_outcome { "outcome" } else { "request" })
}

/// Segments that hold the records of a request. Segment 0 means none.
#[derive(Clone, Copy, Default)]
struct Slot {
    accepted_in: u32,
    accepted_bytes: u32,
    /// Bytes of the record without the body.
    head_bytes: u32,
    finished_in: u32,
    finished_bytes: u32,
    request_file: bool,
    outcome_file: bool,
}

/// The last move of a dead letter.
#[derive(Clone, Copy, Default)]
struct Move {
    number: u32,
    segment: u32,
    bytes: u32,
}

/// The part of a record that is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    No,
    /// A request whose outcome is known.
    WithoutBody,
    Whole,
}

/// Requests that aren't forgotten, and the needed bytes of each segment.
#[derive(Default)]
pub(super) struct Index {
    slots: HashMap<u64, Slot, RandomState>,
    moves: HashMap<u64, Move, RandomState>,
    /// Needed bytes of each segment, from `first` on.
    needed: VecDeque<u64>,
    first: u32,
    total: u64,
}

impl Index {
    /// Adds a record. `unneeded` is called with the names of files that are no longer needed.
    pub(super) fn apply(&mut self, record: &Record, segment: u32, mut unneeded: impl FnMut(String)) {
        let bytes = record.bytes.len() as u32;
        match record.what {
            What::Accepted { body, .. } => {
                let slot = self.slots.entry(record.id).or_default();
                let (was_in, was) = (slot.accepted_in, slot.accepted_bytes);
                let finished = slot.finished_in != 0;
                slot.accepted_in = segment;
                slot.head_bytes = record.bytes_without_body() as u32;
                slot.accepted_bytes = if finished { slot.head_bytes } else { bytes };
                slot.request_file = !finished && matches!(body, Stored::File(_));
                let now = slot.accepted_bytes;
                self.moved(was_in, was, segment, now);
            }
            What::Finished { body, .. } => {
                let slot = self.slots.entry(record.id).or_default();
                let (was_in, was) = (slot.finished_in, slot.finished_bytes);
                let (accepted_in, accepted_bytes, head) = (slot.accepted_in, slot.accepted_bytes, slot.head_bytes);
                (slot.finished_in, slot.finished_bytes) = (segment, bytes);
                slot.outcome_file = matches!(body, Stored::File(_));
                slot.accepted_bytes = head;
                if std::mem::take(&mut slot.request_file) {
                    unneeded(body_name(record.id, false));
                }
                self.moved(was_in, was, segment, bytes);
                self.moved(accepted_in, accepted_bytes, accepted_in, head);
            }
            What::Moved { moves, .. } => {
                self.slots.entry(record.id).or_default();
                let last = self.moves.entry(record.id).or_default();
                // Compaction may write an earlier one again, behind this one.
                if moves >= last.number {
                    let was = std::mem::replace(last, Move { number: moves, segment, bytes });
                    self.moved(was.segment, was.bytes, segment, bytes);
                }
            }
            What::Forgotten => {
                let Entry::Occupied(slot) = self.slots.entry(record.id) else { return };
                let slot = slot.remove();
                self.moved(slot.accepted_in, slot.accepted_bytes, 0, 0);
                self.moved(slot.finished_in, slot.finished_bytes, 0, 0);
                if !self.moves.is_empty()
                    && let Some(last) = self.moves.remove(&record.id)
                {
                    self.moved(last.segment, last.bytes, 0, 0);
                }
                for (there, of_outcome) in [(slot.request_file, false), (slot.outcome_file, true)] {
                    if there {
                        unneeded(body_name(record.id, of_outcome));
                    }
                }
            }
        }
    }

    /// The part of a record in this segment that has to be kept.
    pub(super) fn needed(&self, record: &Record, segment: u32) -> Needed {
        let Some(slot) = self.slots.get(&record.id) else { return Needed::No };
        match record.what {
            What::Accepted { .. } if slot.accepted_in == segment && slot.finished_in != 0 => Needed::WithoutBody,
            What::Accepted { .. } if slot.accepted_in == segment => Needed::Whole,
            What::Finished { .. } if slot.finished_in == segment => Needed::Whole,
            What::Moved { moves, .. } => {
                let is_last = |last: &Move| (last.number, last.segment) == (moves, segment);
                if self.moves.get(&record.id).is_some_and(is_last) { Needed::Whole } else { Needed::No }
            }
            _ => Needed::No,
        }
    }

    /// Needed bytes of a segment.
    pub(super) fn needed_of(&self, segment: u32) -> u64 {
        segment.checked_sub(self.first).and_then(|index| self.needed.get(index as usize)).copied().unwrap_or(0)
    }

    /// Needed bytes of all segments.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Count of requests that aren't forgotten.
    pub(super) fn requests(&self) -> usize {
        self.slots.len()
    }

    /// Drops segments before this one.
    pub(super) fn forget_before(&mut self, segment: u32) {
        while self.first < segment && self.needed.pop_front().is_some() {
            self.first += 1;
        }
    }

    fn moved(&mut self, from: u32, was: u32, to: u32, now: u32) {
        if let Some(count) = self.count(from) {
            *count = count.saturating_sub(u64::from(was));
            self.total = self.total.saturating_sub(u64::from(was));
        }
        if let Some(count) = self.count(to) {
            *count += u64::from(now);
            self.total += u64::from(now);
        }
    }

    fn count(&mut self, segment: u32) -> Option<&mut u64> {
        if segment == 0 {
            return None;
        }
        if self.needed.is_empty() {
            self.first = segment;
        }
        let index = segment.checked_sub(self.first)? as usize;
        if index >= self.needed.len() {
            self.needed.resize(index + 1, 0);
        }
        self.needed.get_mut(index)
    }
}
