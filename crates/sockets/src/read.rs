//! Reading: from the socket into events. Bodies that are streamed go straight from the socket into a pooled buffer.

use crate::buffer_pool::{BUFFER_BYTES, BufferPool};
use crate::event::Event;
use crate::hub::EVENTS_MAX;
use crate::peer::{End, Peer};
use bytes::Bytes;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::time::Instant;
use towpath_zmtp::Event as Wire;

/// Octets read ahead at most, and the size of the hub's scratch buffer.
pub(crate) const READ_AHEAD_BYTES_MAX: usize = 64 * 1024;

/// After a streamed body only this much is read for the next header: what is read ahead has to be copied, the body behind
/// it doesn't. It grows again as soon as frames turn out to be small.
const READ_AHEAD_BYTES_MIN: usize = 512;

/// Bodies with less than this left come with the read-ahead.
const DIRECT_BYTES_MIN: u64 = 4 * 1024;

impl Peer {
    /// Reads what is there, within the turn's budget.
    pub(crate) fn read(
        &mut self,
        scratch: &mut [u8],
        pool: &BufferPool,
        events: &mut VecDeque<Event>,
        now: Instant,
        turn_bytes: usize,
    ) -> Result<(), End> {
        let mut taken = 0;
        // Two octets make an empty message, and each costs an event: the turn's octets alone would not bound memory.
        while self.wants_to_read() && taken < turn_bytes && events.len() < EVENTS_MAX {
            let remaining = self.connection.body_remaining();
            let octets = if self.input.is_empty() && (remaining >= DIRECT_BYTES_MIN || self.has_partial(remaining)) {
                let Some(octets) = self.receive_body(remaining, pool, events)? else {
                    self.starved = true;
                    break;
                };
                octets
            } else {
                let most = self.read_ahead.min(scratch.len()).min(turn_bytes - taken);
                let octets = self.receive(&mut scratch[..most])?;
                if octets == most {
                    self.read_ahead = (self.read_ahead * 4).min(READ_AHEAD_BYTES_MAX);
                }
                self.input.extend_from_slice(&scratch[..octets]);
                octets
            };
            if octets == 0 {
                break;
            }
            taken += octets;
            self.bytes_in += octets as u64;
            self.connection.heard(now);
            self.decode(pool, events, now)?;
        }
        if self.input.is_empty() {
            // An idle peer holds no buffer.
            self.input = Default::default();
        }
        Ok(())
    }

    fn has_partial(&self, remaining: u64) -> bool {
        remaining > 0 && self.partial.is_some()
    }

    /// Reads into a pooled buffer, and hands it over when it is full or the body is at its end: a file is then written in
    /// pieces that begin and end on pages. `None`: the pool is empty.
    fn receive_body(
        &mut self,
        remaining: u64,
        pool: &BufferPool,
        events: &mut VecDeque<Event>,
    ) -> Result<Option<usize>, End> {
        let Some((mut buffer, filled)) = self.partial.take().or_else(|| Some((pool.take()?, 0))) else {
            return Ok(None);
        };
        let space = buffer.len().saturating_sub(filled);
        let most = filled + space.min(usize::try_from(remaining).unwrap_or(space));
        let received = self.receive(&mut buffer[filled..most]);
        let octets = received.as_ref().copied().unwrap_or(0);
        self.partial = Some((buffer, filled + octets));
        self.connection.body_advance(octets as u64);
        self.read_ahead = READ_AHEAD_BYTES_MIN;
        let is_over = filled + octets == BUFFER_BYTES || octets as u64 == remaining;
        if is_over || received.is_err() {
            self.hand_over(pool, events);
        }
        received.map(Some)
    }

    /// Hands over what has been read of a body so far.
    pub(crate) fn hand_over(&mut self, pool: &BufferPool, events: &mut VecDeque<Event>) {
        match self.partial.take() {
            Some((buffer, 0)) => pool.put(buffer),
            Some((buffer, filled)) => {
                events.push_back(Event::BodyData { peer: self.id, data: pool.lend(buffer, filled) });
            }
            None => {}
        }
    }

    /// What of a body came with its header, before the buffer that the rest will be read into.
    fn begin_body(&mut self, data: Bytes, pool: &BufferPool, events: &mut VecDeque<Event>) {
        let begins = self.partial.is_none() && data.len() <= READ_AHEAD_BYTES_MIN;
        if begins
            && self.connection.body_remaining() > 0
            && let Some(mut buffer) = pool.take()
        {
            buffer[..data.len()].copy_from_slice(&data);
            self.partial = Some((buffer, data.len()));
        } else {
            self.hand_over(pool, events);
            events.push_back(Event::BodyData { peer: self.id, data });
        }
    }

    /// One recv: 0 if there is nothing now.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, End> {
        let wanted = buffer.len();
        match rustix::net::recv(&self.fd, buffer, RecvFlags::empty()) {
            Ok((_, 0)) => Err(End::new(match self.is_ready() {
                true => "the peer closed the connection",
                false => "the peer closed the connection during the handshake",
            })),
            Ok((_, octets)) => {
                // A short read has emptied a stream socket, and the next edge tells of more. But for the end, whose edge may
                // have come together with that of the last octets.
                self.readable = octets == wanted || self.hung_up;
                Ok(octets)
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(End::system("receiving failed", errno)),
        }
    }

    /// Turns what has been read into events.
    pub(crate) fn decode(&mut self, pool: &BufferPool, events: &mut VecDeque<Event>, now: Instant) -> Result<(), End> {
        let peer = self.id;
        if self.input.is_empty() && !self.connection.event_is_due() {
            return Ok(());
        }
        while let Some(event) = self.connection.input(&mut self.input, now)? {
            let event = match event {
                Wire::Authenticate { user, password } => {
                    self.user = Some(user.clone());
                    Event::Authenticate { peer, user, password }
                }
                Wire::Ready(properties) => {
                    self.properties = Some(properties);
                    Event::Ready { peer }
                }
                Wire::Message { frames, continued } => {
                    self.messages_in += 1;
                    Event::Message { peer, frames, continued }
                }
                Wire::BodyStart { head, length, more } => Event::BodyStart { peer, head, length, more },
                Wire::BodyData(data) => {
                    self.begin_body(data, pool, events);
                    continue;
                }
                Wire::BodyEnd { more } => {
                    self.hand_over(pool, events);
                    self.messages_in += u64::from(!more);
                    Event::BodyEnd { peer, more }
                }
            };
            events.push_back(event);
        }
        Ok(())
    }
}
