//! Collecting records into messages.

use super::field::{Form, put_frames};
use crate::body::Body;
use bytes::Bytes;

/// A block is closed when it has so many octets and so many records: neither side holds much for one message, and client, broker and
/// worker each work on one while the others work on theirs, instead of waiting for a long one in turn.
const BLOCK_BYTES: usize = 15 * 1024;
/// Shorter blocks of larger records cost more in system calls and wake-ups than working at the same time gains.
pub(crate) const BLOCK_RECORDS: usize = 192;
/// It is closed when it has so many octets, however few the records.
pub(crate) const BLOCK_BYTES_MAX: usize = 60 * 1024;

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
    octets: Vec<u8>,
    records: usize,
    closed: Vec<Message>,
    closed_bytes: usize,
}

impl Block {
    /// Whether nothing has been appended since the last [`Block::drain`].
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.octets.is_empty() && self.closed.is_empty()
    }

    /// Octets of memory that wait here.
    pub fn memory_bytes(&self) -> usize {
        self.octets.len() + self.closed_bytes
    }

    /// Appends a record by writing it to the end of the block.
    #[inline]
    pub(super) fn record(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.octets);
        self.records += 1;
        if self.is_long() {
            self.close(None);
        }
    }

    #[inline]
    fn is_long(&self) -> bool {
        self.octets.len() >= BLOCK_BYTES && (self.records >= BLOCK_RECORDS || self.octets.len() >= BLOCK_BYTES_MAX)
    }

    /// Appends a record with a body; `write` puts what comes before the body's length, and is given the body's flags.
    #[inline]
    pub(super) fn record_with(&mut self, body: &Body, write: impl FnOnce(&mut Vec<u8>, u8)) {
        let form = Form::of(body);
        write(&mut self.octets, form.flags());
        form.put(&mut self.octets, body);
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
        let block = if self.octets.len() >= BLOCK_BYTES / 2 {
            // The next one will be as long.
            let next = Vec::with_capacity(self.octets.capacity());
            Bytes::from(std::mem::replace(&mut self.octets, next))
        } else {
            // Its capacity stays here: to copy a short block costs less than growing to it again.
            let block = Bytes::copy_from_slice(&self.octets);
            self.octets.clear();
            block
        };
        self.closed_bytes += block.len() + attached.as_ref().map_or(0, Body::memory_bytes);
        self.closed.push(Message { block, attached });
    }

    /// Takes all messages, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Message> + '_ {
        if !self.octets.is_empty() {
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
