//! Reading: from the socket into events. Bodies that are streamed go straight from the socket to where they are handed over.

use crate::event::Event;
use crate::hub::EVENTS_MAX;
use crate::peer::buffers::Pool;
use crate::peer::{End, Peer};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::time::Instant;
use towpath_zmtp::Event as Wire;

/// Bytes read ahead at most, and the size of the hub's scratch buffer.
pub(crate) const READ_AHEAD_BYTES_MAX: usize = 64 * 1024;

/// After a streamed body only this much is read for the next header: what is read ahead has to be copied, the body behind
/// it doesn't. It grows again as soon as frames turn out to be small.
pub(super) const READ_AHEAD_BYTES_MIN: usize = 512;

/// Bodies with less than this left come with the read-ahead.
const DIRECT_BYTES_MIN: u64 = 4 * 1024;

/// Bytes that are read of a peer in a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub all: usize,
    /// Of these, beside one large frame and what is streamed.
    pub small: usize,
}

impl Peer {
    /// Reads what is there, within the turn's budget.
    pub(crate) fn read(
        &mut self,
        scratch: &mut [u8],
        pool: &Pool,
        events: &mut VecDeque<Event>,
        now: Instant,
        budget: Budget,
    ) -> Result<(), End> {
        let mut taken = 0;
        let mut small = 0;
        // One full buffer a turn: it is taken while it is in the cache, and the next is read into the same memory.
        let mut filled = false;
        // Two bytes make an empty message, and each costs an event: the turn's bytes alone would not bound memory.
        while self.wants_to_read() && taken < budget.all && events.len() < EVENTS_MAX && !filled {
            let remaining = self.connection.body_remaining();
            let bytes = if self.input.is_empty() && (remaining >= DIRECT_BYTES_MIN || self.has_partial(remaining)) {
                let Some(bytes) = self.receive_body(remaining, scratch, pool, events, now)? else {
                    self.starved = true;
                    break;
                };
                filled =
                    matches!(events.back(), Some(Event::BodyData { data, .. }) if data.len() == pool.buffer_bytes());
                bytes
            } else {
                let left = budget.small.saturating_sub(small).max(self.connection.wanted());
                let mut most = self.read_ahead.min(scratch.len()).min(budget.all - taken).min(left);
                if most == 0 {
                    break;
                }
                if let Some(room) = self.connection.room() {
                    most = most.min(room);
                }
                let bytes = self.receive(&mut scratch[..most])?;
                if bytes == most {
                    self.read_ahead = (self.read_ahead * 4).min(READ_AHEAD_BYTES_MAX);
                }
                self.input.extend_from_slice(&scratch[..bytes]);
                small += bytes;
                bytes
            };
            if bytes == 0 {
                break;
            }
            taken += bytes;
            self.bytes_in += bytes as u64;
            self.connection.heard(now);
            self.decode(pool, events, now)?;
        }
        if self.input.is_empty() {
            // An idle peer holds no buffer.
            self.input = Default::default();
        }
        Ok(())
    }

    /// One recv: 0 if there is nothing now.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, End> {
        let wanted = buffer.len();
        let received = rustix::net::recv(&self.fd, buffer, RecvFlags::empty()).map(|(_, bytes)| bytes);
        self.received(received, wanted)
    }

    /// The same into two buffers, of which the second takes what doesn't fit into the first: gives the bytes in each.
    pub(super) fn receive_both(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<(usize, usize), End> {
        let room = first.len();
        let wanted = room + second.len();
        let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let received = rustix::net::recvmsg(&self.fd, &mut parts, &mut Default::default(), RecvFlags::empty());
        let bytes = self.received(received.map(|message| message.bytes), wanted)?;
        Ok((bytes.min(room), bytes.saturating_sub(room)))
    }

    /// What a recv for so many bytes came to.
    fn received(&mut self, received: rustix::io::Result<usize>, wanted: usize) -> Result<usize, End> {
        match received {
            Ok(0) => Err(self.closed()),
            Ok(bytes) => {
                // A short read has emptied a stream socket, and the next edge tells of more. But for the end, whose edge may
                // have come together with that of the last bytes.
                self.readable = bytes == wanted || self.hung_up;
                Ok(bytes)
            }
            Err(Errno::AGAIN) => {
                self.readable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(End::system("receiving failed", errno)),
        }
    }

    fn closed(&self) -> End {
        End::new(match self.is_ready() {
            true => "the peer closed the connection",
            false => "the peer closed the connection during the handshake",
        })
    }

    /// Turns what has been read into events.
    pub(crate) fn decode(&mut self, pool: &Pool, events: &mut VecDeque<Event>, now: Instant) -> Result<(), End> {
        let peer = self.id;
        if self.input.is_empty() && !self.connection.event_is_due() {
            return Ok(());
        }
        while let Some(event) = self.connection.input(&mut self.input, now)? {
            let event = match event {
                Wire::Authenticate(credentials) => {
                    self.principal = credentials.principal();
                    Event::Authenticate { peer, credentials }
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
                    self.begin_body(data, pool, events, now);
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
