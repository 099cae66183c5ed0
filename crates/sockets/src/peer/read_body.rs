//! Reading streamed bodies, into buffers of a bounded pool.

use super::read::READ_AHEAD_BYTES_MIN;
use crate::event::Event;
use crate::peer::buffers::Pool;
use crate::peer::{End, Peer};
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_buffers::PageBuffer;

/// A buffer that isn't full after this long is handed over with the next bytes: over a slow link it may take minutes to fill, and
/// whoever waits for the body is to see that it comes, and to keep what has come.
const FILLING_MAX: Duration = Duration::from_millis(200);

/// A buffer that bytes of a body are being read into, how many there are, and when it was begun.
pub(crate) struct Partial {
    buffer: PageBuffer,
    filled: usize,
    begun: Instant,
}

impl Peer {
    pub(super) fn has_partial(&self, remaining: u64) -> bool {
        remaining > 0 && self.partial.is_some()
    }

    /// Reads into a buffer of the pool, and hands it over when it is full, the body is at its end, or it takes too long: where that
    /// matters, a file is then written in pieces that begin and end on pages. With the end comes what is read ahead of the next header: a call less for each frame.
    /// `None`: the pool is empty.
    pub(super) fn receive_body(
        &mut self,
        remaining: u64,
        scratch: &mut [u8],
        pool: &Pool,
        events: &mut VecDeque<Event>,
        now: Instant,
    ) -> Result<Option<usize>, End> {
        let partial = self.partial.take().or_else(|| Some(Partial { buffer: pool.take()?, filled: 0, begun: now }));
        let Some(Partial { mut buffer, filled, begun }) = partial else { return Ok(None) };
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
        self.input.extend_from_slice(&scratch[..ahead]);
        self.partial = Some(Partial { buffer, filled: filled + bytes, begun });
        self.connection.body_advance(bytes as u64);
        self.read_ahead = READ_AHEAD_BYTES_MIN;
        let is_due = filled + bytes == pool.buffer_bytes() || now.saturating_duration_since(begun) >= FILLING_MAX;
        if received.is_err() || is_due || bytes as u64 == remaining {
            self.hand_over(pool, events);
        }
        received.map(|_| Some(bytes + ahead))
    }

    /// Hands over what has been read of a body so far.
    pub(crate) fn hand_over(&mut self, pool: &Pool, events: &mut VecDeque<Event>) {
        match self.partial.take() {
            Some(Partial { buffer, filled: 0, .. }) => pool.put(buffer),
            Some(Partial { buffer, filled, .. }) => {
                events.push_back(Event::BodyData { peer: self.id, data: pool.lend(buffer, filled) });
            }
            None => {}
        }
    }

    /// What of a body came with its header, before the buffer that the rest will be read into.
    pub(super) fn begin_body(&mut self, data: Bytes, pool: &Pool, events: &mut VecDeque<Event>, now: Instant) {
        let begins = self.partial.is_none() && data.len() <= READ_AHEAD_BYTES_MIN;
        if begins
            && self.connection.body_remaining() > 0
            && let Some(mut buffer) = pool.take()
        {
            buffer[..data.len()].copy_from_slice(&data);
            self.partial = Some(Partial { buffer, filled: data.len(), begun: now });
        } else {
            self.hand_over(pool, events);
            events.push_back(Event::BodyData { peer: self.id, data });
        }
    }
}
