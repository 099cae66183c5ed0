//! The next messages of a push. Pure: the driver asks, and passes on the server's replies.

use crate::limits::{CREDIT_BYTES_MAX, PIECE_COST_MIN, PUSH_CHUNK_BYTES_MAX};
use crate::protocol::control::{PushReply, Range};
use std::collections::VecDeque;

/// A push that the server has let begin.
#[derive(Debug)]
pub struct Sending {
    /// Ranges that the server lacks.
    missing: VecDeque<Range>,
    left: u64,
    chunk_bytes: u64,
    credit: u64,
}

impl Sending {
    /// A push of a file of this size, as the server answers it.
    pub fn new(size: u64, reply: &PushReply) -> Sending {
        let mut missing = VecDeque::new();
        let mut at = 0;
        for range in reply.have.iter().chain([&Range { offset: size, length: 0 }]) {
            let begin = range.offset.min(size);
            if begin > at {
                missing.push_back(Range { offset: at, length: begin - at });
            }
            at = at.max(range.end());
        }
        let left = missing.iter().map(|range| range.length).sum();
        let chunk_bytes = reply.chunk_bytes.min(PUSH_CHUNK_BYTES_MAX);
        Sending { missing, left, chunk_bytes, credit: reply.credit_bytes.min(CREDIT_BYTES_MAX) }
    }

    /// The server gives credit.
    pub fn credit(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add(bytes).min(CREDIT_BYTES_MAX);
    }

    /// Bytes that are still to be sent.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Bytes of the next piece that the credit covers, cut to it; `None` without one.
    pub fn next_bytes(&self) -> Option<u64> {
        let next = self.missing.front().filter(|_| self.credit >= PIECE_COST_MIN)?;
        Some(next.length.min(self.chunk_bytes).min(self.credit))
    }

    /// The next piece, of at most this many bytes.
    pub fn next_piece(&mut self, bytes_max: u64) -> Option<Range> {
        let length = self.next_bytes()?.min(bytes_max);
        let next = self.missing.front_mut().filter(|_| length > 0)?;
        let piece = Range { offset: next.offset, length };
        next.offset += length;
        next.length -= length;
        if next.length == 0 {
            self.missing.pop_front();
        }
        self.left -= length;
        self.credit -= length.max(PIECE_COST_MIN);
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Exactly what the server lacks is sent, in order, and never more than the credit.
        #[test]
        fn what_is_missing_is_sent_under_credit(
            size in 0u64..2_000_000,
            have in proptest::collection::vec((1u64..300_000, 1u64..300_000), 0..6),
            chunk_bytes in 4096u64..400_000,
            credits in proptest::collection::vec(1u64..600_000, 1..8),
        ) {
            let mut at = 0;
            let have: Vec<Range> = have.into_iter().map(|(gap, length)| {
                let range = Range { offset: at + gap, length };
                at = range.end();
                range
            }).collect();
            let mut credit = credits[0];
            let reply = PushReply { id: 1, have: have.clone(), chunk_bytes, credit_bytes: credit };
            let mut sending = Sending::new(size, &reply);
            let mut expected = (0..size).step_by(1009).filter(|at| !have.iter().any(|range| range.offset <= *at && *at < range.end())).peekable();
            let mut at = 0;
            for more in credits.iter().cycle().take(2_000_000) {
                while let Some(Range { offset, length }) = sending.next_piece(u64::MAX) {
                    prop_assert!(offset >= at && length > 0 && length <= chunk_bytes.min(PUSH_CHUNK_BYTES_MAX));
                    prop_assert!(offset + length <= size);
                    let cost = length.max(PIECE_COST_MIN);
                    prop_assert!(cost <= credit);
                    credit -= cost;
                    at = offset + length;
                    while let Some(next) = expected.next_if(|next| *next < at) {
                        prop_assert!(next >= offset);
                    }
                }
                if sending.left() == 0 {
                    break;
                }
                credit += more;
                sending.credit(*more);
            }
            prop_assert_eq!(sending.left(), 0);
            prop_assert_eq!(expected.next(), None);
        }
    }
}
