//! Reading streamed bodies into buffers of a bounded pool.

use super::read::READ_AHEAD_BYTES_MIN;
use crate::event::Event;
use crate::peer::buffers::Pool;
use crate::peer::{End, Peer};
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_buffers::PageBuffer;

/// A buffer that isn't full after this long is delivered with the next bytes: over a slow link it may take minutes to fill, and the
/// receiver should see progress and keep what has come.
const FILLING_MAX: Duration = Duration::from_millis(200);

/// A buffer that a body is being read into.
pub(crate) struct Partial {
    buffer: PageBuffer,
    filled: usize,
    started_at: Instant,
}

impl Peer {
    pub(super) fn has_partial(&self, remaining: u64) -> bool {
        remaining > 0 && self.read.partial.is_some()
    }

    /// Reads into a buffer of the pool, and delivers it when it is full, when the body ends, or when it takes too long: files are then
    /// written in pieces that begin and end on pages. The last read of a body takes some of the next header with it, which saves a call
    /// per frame. `None`: the pool is empty.
    pub(super) fn receive_body(
        &mut self,
        remaining: u64,
        scratch: &mut [u8],
        pool: &Pool,
        events: &mut VecDeque<Event>,
        now: Instant,
    ) -> Result<Option<usize>, End> {
        let partial = self
            .read
            .partial
            .take()
            .or_else(|| Some(Partial { buffer: pool.take_buffer()?, filled: 0, started_at: now }));
        let Some(Partial { mut buffer, filled, started_at }) = partial else { return Ok(None) };
        let space = buffer.len().saturating_sub(filled);
        let most = filled + space.min(usize::try_from(remaining).unwrap_or(space));
        let is_end = (most - filled) as u64 == remaining;
        let received = if is_end {
            let ahead = READ_AHEAD_BYTES_MIN.min(scratch.len());
            self.receive_both(&mut buffer[filled..most], &mut scratch[..ahead])
        } else {
            self.receive(&mut buffer[filled..most]).map(|bytes| (bytes, 0))
        };
        let (bytes, ahead) = received.as_ref().copied().unwrap_or_default();
        self.read.input.extend_from_slice(&scratch[..ahead]);
        self.read.partial = Some(Partial { buffer, filled: filled + bytes, started_at });
        self.connection.body_advance(bytes as u64);
        self.read.read_ahead = READ_AHEAD_BYTES_MIN;
        let is_due = filled + bytes == pool.buffer_bytes() || now.saturating_duration_since(started_at) >= FILLING_MAX;
        if received.is_err() || is_due || bytes as u64 == remaining {
            self.deliver_partial(pool, events);
        }
        received.map(|_| Some(bytes + ahead))
    }

    /// Delivers what has been read of a body so far.
    pub(crate) fn deliver_partial(&mut self, pool: &Pool, events: &mut VecDeque<Event>) {
        match self.read.partial.take() {
            Some(Partial { buffer, filled: 0, .. }) => pool.return_buffer(buffer),
            Some(Partial { buffer, filled, .. }) => {
                events.push_back(Event::BodyData { peer: self.id, data: pool.lend(buffer, filled) });
            }
            None => {}
        }
    }

    /// Takes the bytes of a body that came with its header: into the buffer that the rest will be read into, if they are few.
    pub(super) fn begin_body(&mut self, data: Bytes, pool: &Pool, events: &mut VecDeque<Event>, now: Instant) {
        let begins = self.read.partial.is_none() && data.len() <= READ_AHEAD_BYTES_MIN;
        if begins
            && self.connection.body_remaining() > 0
            && let Some(mut buffer) = pool.take_buffer()
        {
            buffer[..data.len()].copy_from_slice(&data);
            self.read.partial = Some(Partial { buffer, filled: data.len(), started_at: now });
        } else {
            self.deliver_partial(pool, events);
            events.push_back(Event::BodyData { peer: self.id, data });
        }
    }
}
