//! Which messages of the log count.
//!
//! The order of the log alone decides, so that all who read it agree. A message counts if it is the next one of the current term, or if it takes
//! the lead with a greater epoch and its writer had seen all that counts before it. Anything else was written by somebody who didn't know of a
//! later term, or came twice: it is stepped over.

use crate::block::{BadMessage, BrokerId, Header, Kind, RECORD_BYTES_MAX};
use bytes::Bytes;

/// A block that counts, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The content's kind.
    pub kind: Kind,
    /// The writer's term.
    pub epoch: u64,
    /// The writer.
    pub broker: BrokerId,
    /// Records, or an endpoint.
    pub content: Bytes,
    /// The largest id of any record before this block.
    pub last_id: u64,
    /// Sequence number of its first message.
    pub first: u64,
    /// Sequence number of its last message.
    pub last: u64,
    /// Bytes of its messages.
    pub bytes: u64,
}

/// Why a message can't be judged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Messages before it were trimmed unread: all is to be read again, from the first one that is there.
    Trimmed,
    /// The log isn't as it was written.
    Damaged(String),
}

/// The term of the last message that counts, and that message's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    pub epoch: u64,
    pub broker: BrokerId,
    pub block: u64,
    part: u32,
    parts: u32,
    pub checksum: u32,
    pub last_id: u64,
}

/// A block of which not all messages came yet.
#[derive(Debug)]
struct Incomplete {
    content: Vec<u8>,
    first: u64,
    bytes: u64,
}

/// The log as far as it was seen.
#[derive(Debug, Default)]
pub(crate) struct Order {
    seen: u64,
    term: Option<Term>,
    /// None: the beginning of the current block was trimmed.
    incomplete: Option<Incomplete>,
    /// Numbers are missing since the last message that counts.
    has_gap: bool,
}

impl Order {
    /// Sequence number of the last message that was seen.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The current term; none before the first message.
    pub fn term(&self) -> Option<&Term> {
        self.term.as_ref()
    }

    /// Judges the first message behind those seen. `Ok(None)`: it doesn't count, or doesn't end a block.
    pub fn judge(&mut self, sequence: u64, message: &[u8]) -> Result<Option<Block>, Fault> {
        let damaged = |what: &dyn std::fmt::Display| {
            Err(Fault::Damaged(format!("message {sequence} of the log can't be used: {what}")))
        };
        let (header, content, checksum) = match Header::decode(message) {
            Ok(decoded) => decoded,
            Err(bad @ (BadMessage::Version(_) | BadMessage::Damaged(_))) => return damaged(&bad),
        };
        self.has_gap |= self.seen != 0 && sequence != self.seen + 1;
        match self.term.as_ref().map_or(Verdict::Counts, |term| term.judge(&header, self.has_gap)) {
            Verdict::Counts => {}
            Verdict::Stale => {
                self.seen = sequence;
                return Ok(None);
            }
            Verdict::Trimmed => return Err(Fault::Trimmed),
            Verdict::Damaged(what) => {
                let why = format!("message {sequence} isn't of the log that was seen before it: {what}");
                return Err(Fault::Damaged(why));
            }
        }
        if header.part == 1 {
            self.incomplete = Some(Incomplete { content: Vec::new(), first: sequence, bytes: 0 });
        } else if self.term.is_none() {
            self.incomplete = None;
        }
        let Header { kind, epoch, broker, block, part, parts, last_id, .. } = header;
        self.term = Some(Term { epoch, broker, block, part, parts, checksum, last_id });
        (self.seen, self.has_gap) = (sequence, false);
        let Some(incomplete) = &mut self.incomplete else { return Ok(None) };
        if incomplete.content.len() + content.len() > RECORD_BYTES_MAX {
            return damaged(&"the block is longer than blocks are");
        }
        incomplete.content.extend_from_slice(&content);
        incomplete.bytes += message.len() as u64;
        if part < parts {
            return Ok(None);
        }
        let Some(Incomplete { content, first, bytes }) = self.incomplete.take() else { return Ok(None) };
        Ok(Some(Block { kind, epoch, broker, content: content.into(), last_id, first, last: sequence, bytes }))
    }
}

/// Whether a message counts.
enum Verdict {
    Counts,
    Stale,
    Trimmed,
    Damaged(&'static str),
}

impl Term {
    fn judge(&self, header: &Header, has_gap: bool) -> Verdict {
        let follows = header.previous == self.checksum;
        let place = (header.block, header.part);
        let lost = |what| if has_gap { Verdict::Trimmed } else { Verdict::Damaged(what) };
        if header.epoch < self.epoch {
            return Verdict::Stale;
        }
        if header.epoch > self.epoch {
            return match header.kind {
                Kind::Take if follows => Verdict::Counts,
                _ if has_gap => Verdict::Trimmed,
                // Its writer had not seen the last message that counts.
                Kind::Take => Verdict::Stale,
                _ => lost("nobody has begun its term"),
            };
        }
        if header.broker != self.broker || place <= (self.block, self.part) {
            return Verdict::Stale;
        }
        let next = if self.part < self.parts { (self.block, self.part + 1) } else { (self.block + 1, 1) };
        let is_of_it = self.part == self.parts || header.parts == self.parts;
        match place == next && is_of_it {
            true if follows => Verdict::Counts,
            true => lost("the one before it is another one"),
            false => lost("there should be one before it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::SECRET_BYTES;

    const ONE: BrokerId = [1; 16];
    const TWO: BrokerId = [2; 16];

    fn message(kind: Kind, epoch: u64, broker: BrokerId, block: u64, previous: u32) -> (Bytes, u32) {
        let content = if kind == Kind::Take { &[0; SECRET_BYTES][..] } else { b"" };
        Header { kind, epoch, broker, block, part: 1, parts: 1, previous, last_id: 0 }.encode(content)
    }

    /// Whether it counts, or the fault.
    fn judge(order: &mut Order, sequence: u64, message: &Bytes) -> Result<bool, Fault> {
        order.judge(sequence, message).map(|block| block.is_some())
    }

    /// A log with a TAKE and a block of the first broker, and the last checksum.
    fn begun() -> (Order, u32) {
        let mut order = Order::default();
        let (take, checksum) = message(Kind::Take, 5, ONE, 0, 0);
        assert_eq!(judge(&mut order, 1, &take), Ok(true));
        let (block, checksum) = message(Kind::Records, 5, ONE, 1, checksum);
        assert_eq!(judge(&mut order, 2, &block), Ok(true));
        (order, checksum)
    }

    #[test]
    fn what_a_former_leader_writes_is_stepped_over() {
        let (mut order, last) = begun();
        let (take, taken) = message(Kind::Take, 6, TWO, 0, last);
        assert_eq!(judge(&mut order, 3, &take), Ok(true));
        let (late, _) = message(Kind::Records, 5, ONE, 2, last);
        assert_eq!(judge(&mut order, 4, &late), Ok(false));
        let (next, _) = message(Kind::Records, 6, TWO, 1, taken);
        assert_eq!(judge(&mut order, 5, &next), Ok(true));
        // The same once more.
        assert_eq!(judge(&mut order, 6, &next), Ok(false));
        assert_eq!(order.seen(), 6);
    }

    #[test]
    fn rival_that_had_not_seen_everything_does_not_lead() {
        let (mut order, last) = begun();
        let (unaware, _) = message(Kind::Take, 6, TWO, 0, last ^ 1);
        assert_eq!(judge(&mut order, 3, &unaware), Ok(false));
        let (next, _) = message(Kind::Records, 5, ONE, 2, last);
        assert_eq!(judge(&mut order, 4, &next), Ok(true));
    }

    #[test]
    fn missing_messages_were_trimmed_or_the_log_is_another_one() {
        for (sequence, is_trimmed) in [(9, true), (3, false)] {
            let strange = [
                message(Kind::Records, 5, ONE, 7, 1),
                message(Kind::Records, 8, TWO, 3, 1),
                message(Kind::Records, 5, ONE, 2, 1),
            ];
            for (message, _) in strange {
                let (mut order, _) = begun();
                let fault = judge(&mut order, sequence, &message).expect_err("it doesn't follow");
                assert_eq!(fault == Fault::Trimmed, is_trimmed, "{fault:?}");
            }
        }
        // Numbers that only others used are no gap.
        let (mut order, last) = begun();
        let (next, _) = message(Kind::Records, 5, ONE, 2, last);
        assert_eq!(judge(&mut order, 9, &next), Ok(true));
    }

    #[test]
    fn block_in_parts_counts_when_it_is_complete() {
        let (mut order, previous) = begun();
        let header =
            Header { kind: Kind::Records, epoch: 5, broker: ONE, block: 2, part: 1, parts: 1, previous, last_id: 0 };
        let content = vec![7; 100_000];
        let parts = header.split(&content, crate::block::MESSAGE_BYTES_MIN);
        assert_eq!(parts.len(), 4);
        for (at, part) in parts[..3].iter().enumerate() {
            assert_eq!(judge(&mut order, 3 + at as u64, part), Ok(false));
        }
        let block = order.judge(6, &parts[3]).expect("in order").expect("complete");
        assert_eq!((block.content.len(), block.first, block.last), (content.len(), 3, 6));
    }
}
