//! Batching records into messages.

use super::field::{Form, put_frames};
use crate::body::Body;
use bytes::Bytes;

/// A block is closed at this size, however few records it has.
const BLOCK_BYTES_MAX: usize = 60 * 1024;

/// When a block is closed. Client, broker and worker each work on one block while the others work on theirs.
///
/// With few requests outstanding, a block has about half of them, so that none of the three waits for the others. With many
/// it is longer: short blocks cost more in system calls and wake-ups than overlapping gains. Neither side holds many bytes
/// for one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimit {
    /// Fewest records of a full block,
    records: usize,
    /// and fewest bytes.
    bytes: usize,
}

impl BatchLimit {
    const RECORDS_MIN: usize = 32;
    const RECORDS_MAX: usize = 192;
    /// Bytes of a full block if many requests are outstanding.
    const BYTES: usize = 15 * 1024;

    /// The limit for this number of outstanding requests.
    #[inline]
    pub fn among(requests: usize) -> BatchLimit {
        let half = requests / 2;
        let bytes = if half < Self::RECORDS_MAX { 0 } else { Self::BYTES };
        BatchLimit { records: half.clamp(Self::RECORDS_MIN, Self::RECORDS_MAX), bytes }
    }

    /// Bytes of a full block if records have the given length.
    #[inline]
    pub fn of_records(self, record_bytes: usize) -> usize {
        (self.records * record_bytes).max(self.bytes).min(BLOCK_BYTES_MAX)
    }

    #[inline]
    fn is_reached(self, records: usize, bytes: usize) -> bool {
        bytes >= BLOCK_BYTES_MAX || (records >= self.records && bytes >= self.bytes)
    }
}

impl Default for BatchLimit {
    fn default() -> BatchLimit {
        BatchLimit::among(usize::MAX)
    }
}

/// Closed blocks under this size are copied.
const COPIED_BYTES_MAX: usize = 8 * 1024;

/// One message to send: a block of records, and the attached body of its last record.
#[derive(Debug, Clone)]
pub struct Message {
    /// The records.
    pub block: Bytes,
    /// The frame behind the block: one frame in memory, or a body outside memory.
    pub attached: Option<Body>,
}

/// Queue of records for one peer. [`Block::drain`] returns them as messages.
#[derive(Debug, Default)]
pub struct Block {
    bytes: Vec<u8>,
    records: usize,
    limit: BatchLimit,
    closed: Vec<Message>,
    closed_bytes: usize,
}

impl Block {
    /// Whether nothing was appended since the last [`Block::drain`].
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.closed.is_empty()
    }

    /// Bytes of memory of queued records.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.closed_bytes
    }

    /// Appends a record by writing it to the end of the block.
    #[inline]
    pub fn record(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.records += 1;
        if self.is_long() {
            self.close(None);
        }
    }

    #[inline]
    fn is_long(&self) -> bool {
        self.limit.is_reached(self.records, self.bytes.len())
    }

    /// Sets when the block is closed from now on.
    #[inline]
    pub fn set_limit(&mut self, limit: BatchLimit) {
        self.limit = limit;
    }

    /// Closes the block if it has reached the given limit.
    #[inline]
    pub fn close_if_long(&mut self, limit: BatchLimit) {
        if limit.is_reached(self.records, self.bytes.len()) {
            self.close(None);
        }
    }

    /// Appends a record with a body. `write` writes everything before the body's length, given the body's flags.
    #[inline]
    pub fn record_with(&mut self, body: &Body, write: impl FnOnce(&mut Vec<u8>, u8)) {
        let form = Form::of(body);
        write(&mut self.bytes, form.flags());
        form.put(&mut self.bytes, body);
        self.records += 1;
        match form {
            Form::Attached { many: false } => self.close(Some(body.clone())),
            Form::Attached { many: true } => {
                let mut list = Vec::new();
                put_frames(&mut list, body);
                self.close(Some(Body::from(list)));
            }
            _ if self.is_long() => self.close(None),
            _ => {}
        }
    }

    fn close(&mut self, attached: Option<Body>) {
        self.records = 0;
        let block = if self.bytes.len() >= COPIED_BYTES_MAX {
            // The next block will probably be as long.
            let next = Vec::with_capacity(self.bytes.capacity());
            Bytes::from(std::mem::replace(&mut self.bytes, next))
        } else {
            // Keeps the capacity: copying a short block is cheaper than growing again.
            let block = Bytes::copy_from_slice(&self.bytes);
            self.bytes.clear();
            block
        };
        self.closed_bytes += block.len() + attached.as_ref().map_or(0, Body::memory_bytes);
        self.closed.push(Message { block, attached });
    }

    /// Takes all messages, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Message> + '_ {
        if !self.bytes.is_empty() {
            self.close(None);
        }
        self.closed_bytes = 0;
        self.closed.drain(..)
    }

    /// Drops everything queued.
    pub fn clear(&mut self) {
        *self = Block::default();
    }
}
