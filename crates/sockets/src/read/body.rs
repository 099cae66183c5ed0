//! Reading streamed bodies, into buffers of a bounded pool.

use super::READ_AHEAD_BYTES_MIN;
use crate::event::Event;
use crate::peer::{End, Peer};
use crate::pool::{BUFFER_BYTES, Buffer, Pool};
use bytes::Bytes;
use std::collections::VecDeque;

/// A buffer that octets of a body are being read into, and how many there are.
pub(crate) struct Partial {
    buffer: Buffer,
    filled: usize,
}

impl Peer {
    pub(super) fn has_partial(&self, remaining: u64) -> bool {
        remaining > 0 && self.partial.is_some()
    }

    /// Reads into a buffer of the pool, and hands it over when it is full or the body is at its end: a file is then written in
    /// pieces that begin and end on pages. With the end comes what is read ahead of the next header: a call less for each frame.
    /// `None`: the pool is empty.
    pub(super) fn receive_body(
        &mut self,
        remaining: u64,
        scratch: &mut [u8],
        pool: &Pool,
        events: &mut VecDeque<Event>,
    ) -> Result<Option<usize>, End> {
        let partial = self.partial.take().or_else(|| Some(Partial { buffer: pool.take()?, filled: 0 }));
        let Some(Partial { mut buffer, filled }) = partial else { return Ok(None) };
        let space = buffer.len().saturating_sub(filled);
        let most = filled + space.min(usize::try_from(remaining).unwrap_or(space));
        let is_end = (most - filled) as u64 == remaining;
        let received = if is_end {
            let ahead = READ_AHEAD_BYTES_MIN.min(scratch.len());
            self.receive_both(&mut buffer[filled..most], &mut scratch[..ahead])
        } else {
            self.receive(&mut buffer[filled..most]).map(|octets| (octets, 0))
        };
        let (octets, ahead) = received.as_ref().copied().unwrap_or_default();
        self.input.extend_from_slice(&scratch[..ahead]);
        self.partial = Some(Partial { buffer, filled: filled + octets });
        self.connection.body_advance(octets as u64);
        self.read_ahead = READ_AHEAD_BYTES_MIN;
        if received.is_err() || filled + octets == BUFFER_BYTES || octets as u64 == remaining {
            self.hand_over(pool, events);
        }
        received.map(|_| Some(octets + ahead))
    }

    /// Hands over what has been read of a body so far.
    pub(crate) fn hand_over(&mut self, pool: &Pool, events: &mut VecDeque<Event>) {
        match self.partial.take() {
            Some(Partial { buffer, filled: 0 }) => pool.put(buffer),
            Some(Partial { buffer, filled }) => {
                events.push_back(Event::BodyData { peer: self.id, data: pool.lend(buffer, filled) });
            }
            None => {}
        }
    }

    /// What of a body came with its header, before the buffer that the rest will be read into.
    pub(super) fn begin_body(&mut self, data: Bytes, pool: &Pool, events: &mut VecDeque<Event>) {
        let begins = self.partial.is_none() && data.len() <= READ_AHEAD_BYTES_MIN;
        if begins
            && self.connection.body_remaining() > 0
            && let Some(mut buffer) = pool.take()
        {
            buffer[..data.len()].copy_from_slice(&data);
            self.partial = Some(Partial { buffer, filled: data.len() });
        } else {
            self.hand_over(pool, events);
            events.push_back(Event::BodyData { peer: self.id, data });
        }
    }
}
