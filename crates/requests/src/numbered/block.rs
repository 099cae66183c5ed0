//! Collecting records into messages.

use super::field::{Form, put_frames};
use crate::body::Body;
use bytes::Bytes;

/// A block is closed when it has so many bytes, however few the records.
const BLOCK_BYTES_MAX: usize = 60 * 1024;

/// When a block is closed: client, broker and worker each work on one while the others work on theirs.
///
/// Of few requests under way a block is about half, so that no two of the three wait for the third. Of many it is longer, because
/// short blocks cost more in system calls and wake-ups than working at the same time gains; but neither side holds much for one
/// message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// So many records at least,
    records: usize,
    /// and so many bytes.
    bytes: usize,
}

impl Extent {
    const RECORDS_MIN: usize = 32;
    const RECORDS_MAX: usize = 192;
    /// If there are many requests.
    const BYTES: usize = 15 * 1024;

    /// Where so many requests are under way.
    #[inline]
    pub fn among(requests: usize) -> Extent {
        let half = requests / 2;
        let bytes = if half < Self::RECORDS_MAX { 0 } else { Self::BYTES };
        Extent { records: half.clamp(Self::RECORDS_MIN, Self::RECORDS_MAX), bytes }
    }

    /// Bytes of a block of records of the given length.
    #[inline]
    pub fn of_records(self, record_bytes: usize) -> usize {
        (self.records * record_bytes).max(self.bytes).min(BLOCK_BYTES_MAX)
    }

    #[inline]
    fn is_reached(self, records: usize, bytes: usize) -> bool {
        bytes >= BLOCK_BYTES_MAX || (records >= self.records && bytes >= self.bytes)
    }
}

impl Default for Extent {
    fn default() -> Extent {
        Extent::among(usize::MAX)
    }
}

/// A closed block of fewer bytes is copied.
const COPIED_BYTES_MAX: usize = 8 * 1024;

/// One message to send: a block of records, and the body of the last one if that is attached.
#[derive(Debug, Clone)]
pub struct Message {
    /// The records.
    pub block: Bytes,
    /// The frame behind the block. It has one frame, or isn't in memory.
    pub attached: Option<Body>,
}

/// Records on their way to one peer, in order. [`Block::drain`] gives them as messages.
#[derive(Debug, Default)]
pub struct Block {
    bytes: Vec<u8>,
    records: usize,
    extent: Extent,
    closed: Vec<Message>,
    closed_bytes: usize,
}

impl Block {
    /// Whether nothing has been appended since the last [`Block::drain`].
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.closed.is_empty()
    }

    /// Bytes of memory that wait here.
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
        self.extent.is_reached(self.records, self.bytes.len())
    }

    /// From now on it is closed when it is so long.
    #[inline]
    pub fn set_extent(&mut self, extent: Extent) {
        self.extent = extent;
    }

    /// Closes it if it is as long as the given extent.
    #[inline]
    pub fn close_if_long(&mut self, extent: Extent) {
        if extent.is_reached(self.records, self.bytes.len()) {
            self.close(None);
        }
    }

    /// Appends a record with a body; `write` puts what comes before the body's length, and is given the body's flags.
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
            // The next one will be as long.
            let next = Vec::with_capacity(self.bytes.capacity());
            Bytes::from(std::mem::replace(&mut self.bytes, next))
        } else {
            // Its capacity stays here: to copy a short block costs less than growing to it again.
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

    /// Forgets what waits.
    pub fn clear(&mut self) {
        *self = Block::default();
    }
}
