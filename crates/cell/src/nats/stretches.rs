//! Content of the log by stretches, so that its beginning can be trimmed.

use crate::block::{HEADER_BYTES, Kind, RECORD_BYTES_MAX};
use crate::order::{Block, Order};
use bytes::Bytes;
use std::collections::VecDeque;
use towpath_journal::Content;

/// A stretch ends with the block that brings it to so many bytes or messages.
const STRETCH_BYTES: u64 = 1024 * 1024;
/// Most bytes of a stretch's content, as times of those that it has in the log: all of it is in memory when it is trimmed.
const CONTENT_TIMES: u64 = 16;
/// Or to this part of what the log may have.
const STRETCH_PART: u64 = 32;
const STRETCH_MESSAGES: u64 = 4096;
/// The log may have so many times what is needed, and so many bytes more.
const NEEDED_TIMES: u64 = 4;
const SPARE_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug, Clone, Copy)]
struct Stretch {
    number: u32,
    /// Its first message counts.
    first: u64,
    last: u64,
    size: Size,
}

/// Bytes of blocks.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// As they are in the log.
    stored: u64,
    /// Without headers of messages.
    compressed: u64,
    /// Of their content before it was compressed.
    content: u64,
}

impl Size {
    /// Bytes of the log that so many of the content take, in blocks that are much larger than their headers.
    fn stored_of(self, content: u64) -> u64 {
        (u128::from(content) * u128::from(self.compressed) / u128::from(self.content.max(1))) as u64
    }
}

/// Content of the log as far as it was read.
#[derive(Debug)]
pub(super) struct Stretches {
    pub content: Content,
    stretches: VecDeque<Stretch>,
    size: Size,
    /// Most bytes of the log.
    bytes_max: u64,
}

/// The oldest stretch, to be trimmed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Oldest {
    number: u32,
    pub first: u64,
    /// The first message of the next one.
    pub end: u64,
    /// Whether something of it is needed.
    pub is_needed: bool,
}

impl Stretches {
    pub fn new(bytes_max: u64) -> Stretches {
        Stretches { content: Content::new(), stretches: VecDeque::new(), size: Size::default(), bytes_max }
    }

    fn stretch_bytes(&self) -> u64 {
        STRETCH_BYTES.min(self.bytes_max / STRETCH_PART)
    }

    /// Adds a block that counts. The error says why its records can't be used.
    pub fn add(&mut self, block: &Block) -> Result<(), String> {
        let most = self.stretch_bytes();
        let is_full = |s: &Stretch| {
            s.size.stored >= most || s.size.content >= CONTENT_TIMES * most || s.last - s.first >= STRETCH_MESSAGES
        };
        let number = match self.stretches.back() {
            Some(last) if !is_full(last) => last.number,
            last => {
                let number = last.map_or(1, |last| last.number + 1);
                self.stretches.push_back(Stretch {
                    number,
                    first: block.first,
                    last: block.first,
                    size: Size::default(),
                });
                number
            }
        };
        if let Some(last) = self.stretches.back_mut() {
            last.last = block.last;
            let headers = (block.last - block.first + 1) * HEADER_BYTES as u64;
            for size in [&mut last.size, &mut self.size] {
                size.stored += block.bytes;
                size.compressed += block.bytes.saturating_sub(headers);
                size.content += block.content.len() as u64;
            }
        }
        if block.kind == Kind::Records {
            let applied = self.content.apply(&block.content, number);
            applied.map_err(|what| format!("records of message {} can't be used: {what}", block.last))?;
        }
        Ok(())
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.size.stored
    }

    /// About how many bytes of the log what is needed of it takes.
    pub fn needed(&self) -> u64 {
        self.size.stored_of(self.content.needed())
    }

    pub fn count(&self) -> u64 {
        self.stretches.len() as u64
    }

    /// The oldest stretch, if it is to be trimmed: entries wait for space, or the log has much that isn't needed.
    pub fn oldest(&self, has_no_space: bool) -> Option<Oldest> {
        let (oldest, next) = (self.stretches.front()?, self.stretches.get(1)?);
        let (bytes, needed, spare) = (self.bytes(), self.needed(), SPARE_BYTES.min(self.bytes_max / 8));
        // Half full, it is to have no more than half as much again as it needs.
        let is_tight = bytes > self.bytes_max / 2 && bytes > needed + needed / 2 + 2 * self.stretch_bytes();
        let is_mostly_unneeded = self.content.needed_of(oldest.number) < oldest.size.content / 2;
        let is_of_use = has_no_space && (is_mostly_unneeded || bytes > needed + needed / 8 + self.stretch_bytes());
        (is_tight || is_of_use || bytes > (NEEDED_TIMES * needed).max(spare)).then(|| Oldest {
            number: oldest.number,
            first: oldest.first,
            end: next.first,
            is_needed: self.content.needed_of(oldest.number) > 0,
        })
    }

    /// The records that are needed of a stretch whose messages these are.
    pub fn copies(&self, oldest: &Oldest, messages: &[(u64, Bytes)]) -> Result<Vec<u8>, String> {
        let (mut order, mut copies) = (Order::default(), Vec::new());
        for (sequence, message) in messages.iter().filter(|(sequence, _)| (oldest.first..oldest.end).contains(sequence))
        {
            let block = order.judge(*sequence, message).map_err(|fault| format!("{fault:?}"))?;
            let Some(block) = block.filter(|block| block.kind == Kind::Records) else { continue };
            let copied = self.content.copy_needed(&block.content, oldest.number, &mut copies);
            copied.map_err(str::to_owned)?;
        }
        Ok(copies)
    }

    /// Whether nothing of this stretch is needed any more.
    pub fn is_free(&self, oldest: &Oldest) -> bool {
        self.content.needed_of(oldest.number) == 0
    }

    /// The oldest stretch is gone.
    pub fn remove(&mut self, oldest: &Oldest) {
        while let Some(first) = self.stretches.front()
            && first.number <= oldest.number
        {
            self.size.stored -= first.size.stored;
            self.size.compressed -= first.size.compressed;
            self.size.content -= first.size.content;
            self.stretches.pop_front();
        }
        self.content.forget_before(oldest.number + 1);
    }
}

/// The first records of these that make a block of at most `most` bytes, or a single one that is larger: their bytes and their number.
pub(super) fn first_block(records: &[u8], most: usize) -> (usize, u64) {
    let (mut end, mut count) = (0, 0);
    while let Some(length) = records[end..].first_chunk::<4>() {
        let next = end + 4 + u32::from_le_bytes(*length) as usize;
        if next > records.len() || (count > 0 && next > most) || next > RECORD_BYTES_MAX + 4 {
            break;
        }
        (end, count) = (next, count + 1);
    }
    (end, count)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::block::{Header, MESSAGE_BYTES_MAX, SECRET_BYTES};
    use towpath_journal::{Entry, Expiry, encode};
    use towpath_requests::body::Body;

    /// A log in memory, of one term.
    struct Log {
        order: Order,
        messages: Vec<(u64, Bytes)>,
        header: Header,
        stretches: Stretches,
    }

    impl Log {
        fn append(&mut self, kind: Kind, content: &[u8]) {
            for message in (Header { kind, ..self.header }).split(content, MESSAGE_BYTES_MAX) {
                let sequence = self.messages.last().map_or(1, |(sequence, _)| sequence + 1);
                self.messages.push((sequence, message.clone()));
                let block = self.order.judge(sequence, &message).unwrap();
                self.header.previous = self.order.term().unwrap().checksum;
                if let Some(block) = block {
                    self.stretches.add(&block).unwrap();
                }
            }
            self.header.block += 1;
        }
    }

    #[test]
    fn log_is_trimmed_to_a_few_times_what_is_needed() {
        // Nothing in a body can be compressed: it is as large in the log as here.
        trimmed(1 << 30, |id| {
            (0..750).flat_map(|word| crc32c::crc32c(&[id, word].map(u64::to_le_bytes).concat()).to_le_bytes()).collect()
        });
        trimmed(1 << 23, |id| id.to_le_bytes().repeat(375));
    }

    fn trimmed(bytes_max: u64, body: impl Fn(u64) -> Vec<u8>) {
        let header = Header {
            kind: Kind::Take,
            epoch: 1,
            broker: [1; 16],
            block: 0,
            part: 1,
            parts: 1,
            previous: 0,
            last_id: 0,
        };
        let (order, messages, stretches) = (Order::default(), Vec::new(), Stretches::new(bytes_max));
        let mut log = Log { order, messages, header, stretches };
        log.append(Kind::Take, &[0; SECRET_BYTES]);
        for id in 1..=20_000_u64 {
            let body = Body::from(body(id));
            let mut records = Vec::new();
            let (client, service) = ([1; 16], &b"echo"[..]);
            let entry = Entry::Accepted {
                id,
                client,
                number: id,
                service,
                expires: Expiry::NEVER,
                checksum: 0,
                letter: None,
                body: &body,
            };
            encode(&entry, &mut records).unwrap();
            // Each thousandth stays.
            if id > 5 && (id - 5) % 1000 != 0 {
                encode(&Entry::Forgotten { id: id - 5 }, &mut records).unwrap();
            }
            log.append(Kind::Records, &records);
            while let Some(oldest) = log.stretches.oldest(false) {
                let copies = log.stretches.copies(&oldest, &log.messages).unwrap();
                let mut rest = &copies[..];
                while !rest.is_empty() {
                    let (end, _) = first_block(rest, MESSAGE_BYTES_MAX - 72);
                    log.append(Kind::Records, &rest[..end]);
                    rest = &rest[end..];
                }
                assert!(log.stretches.is_free(&oldest));
                log.stretches.remove(&oldest);
                log.messages.retain(|(sequence, _)| *sequence >= oldest.end);
            }
        }
        let bytes: usize = log.messages.iter().map(|(_, message)| message.len()).sum();
        let most = SPARE_BYTES.min(bytes_max / 8) + 2 * STRETCH_BYTES.min(bytes_max / STRETCH_PART);
        assert!((bytes as u64) < most && log.messages[0].0 > 1, "{bytes}");
        // One who reads what is left has all that is needed.
        let (mut order, mut reader) = (Order::default(), Stretches::new(1 << 30));
        for (sequence, message) in &log.messages {
            if let Some(block) = order.judge(*sequence, message).unwrap() {
                reader.add(&block).unwrap();
            }
        }
        let found: Vec<u64> =
            reader.content.take_requests(|_| unreachable!()).unwrap().iter().map(|request| request.id).collect();
        let expected: Vec<u64> = (1..20).map(|n| n * 1000).chain(19_996..=20_000).collect();
        assert_eq!(found, expected);
        assert_eq!(order.term().unwrap().last_id, 0);
    }

    #[test]
    fn blocks_have_whole_records() {
        let mut records = Vec::new();
        for id in 1..=3 {
            encode(&Entry::Forgotten { id }, &mut records).unwrap();
        }
        let one = records.len() / 3;
        assert_eq!(first_block(&records, 2 * one + 3), (2 * one, 2));
        assert_eq!(first_block(&records, 1), (one, 1));
        assert_eq!(first_block(&records[..one - 1], 100), (0, 0));
    }
}
