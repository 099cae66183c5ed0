//! Reading: from the socket into events. Streamed bodies go straight from the socket into the buffers that are delivered.

use crate::event::{EVENTS_MAX, Event};
use crate::options::READ_AHEAD_BYTES_MAX;
use crate::peer::beginning::Beginning;
use crate::peer::buffers::Pool;
use crate::peer::read_body::Partial;
use crate::peer::{End, Peer};
use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::time::Instant;
use towpath_zmtp::Event as Wire;

/// Bytes read ahead after a streamed body: they have to be copied, the body behind them doesn't. The number grows again as soon as frames
/// turn out to be small.
pub(super) const READ_AHEAD_BYTES_MIN: usize = 512;

/// Bodies with less than this left come with the read-ahead.
const DIRECT_BYTES_MIN: u64 = 4 * 1024;

/// Maximum bytes read from a peer in one poll.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub all: usize,
    /// Bytes of these, besides one large frame and streamed bodies.
    pub small: usize,
}

/// Progress of reading from a peer.
pub(crate) struct ReadState {
    /// Bytes received that the state machine has not taken yet.
    pub(crate) input: BytesMut,
    /// Whether the connection took less than it could have, because it waits ([`towpath_zmtp::Connection::is_waiting`]).
    pub(super) is_withheld: bool,
    /// The buffer that a streamed body is being read into.
    pub(super) partial: Option<Partial>,
    /// Bytes to read ahead of a header.
    pub(super) read_ahead: usize,
    /// The socket may have something to read.
    pub(crate) is_readable: bool,
    /// The peer has closed its side, or the connection has failed: its end can be read behind what came before.
    pub(crate) hung_up: bool,
    /// The connection has failed, or both sides are closed: nothing sent will be read.
    pub(crate) has_failed: bool,
    /// The end of what the peer sends has been read, and the connection lasts.
    pub(crate) has_ended: bool,
    /// The peer waits in the hub's queue for a body buffer.
    pub(crate) awaits_buffer: bool,
    pub(crate) bytes_in: u64,
    pub(crate) messages_in: u64,
}

impl Default for ReadState {
    fn default() -> Self {
        ReadState {
            input: BytesMut::new(),
            is_withheld: false,
            partial: None,
            read_ahead: READ_AHEAD_BYTES_MAX,
            is_readable: false,
            hung_up: false,
            has_failed: false,
            has_ended: false,
            awaits_buffer: false,
            bytes_in: 0,
            messages_in: 0,
        }
    }
}

impl ReadState {
    /// Takes in what epoll reported.
    pub(crate) fn on_readiness(&mut self, readable: bool, hangs_up: bool) {
        self.hung_up |= hangs_up;
        self.is_readable |= (self.hung_up || readable) && !self.has_ended;
    }

    /// Whether reading may bring something now.
    pub(crate) fn is_possible(&self) -> bool {
        (self.is_readable || self.is_withheld) && !self.awaits_buffer
    }

    /// Takes in a recv of `bytes` into a buffer for `wanted`.
    fn on_received(&mut self, bytes: usize, wanted: usize) {
        // A short read has emptied a stream socket, and the next edge reports more. Except for the end, whose edge may have come together
        // with that of the last bytes.
        self.is_readable = bytes == wanted || self.hung_up;
    }

    /// Reads more ahead after a read that filled the buffer.
    fn grow_read_ahead(&mut self) {
        self.read_ahead = (self.read_ahead * 4).min(READ_AHEAD_BYTES_MAX);
    }
}

impl Peer {
    /// Reads what has arrived, within the budget.
    pub(crate) fn read_available(
        &mut self,
        scratch: &mut [u8],
        pool: &Pool,
        events: &mut VecDeque<Event>,
        now: Instant,
        budget: Budget,
    ) -> Result<(), End> {
        if self.beginning != Beginning::Over {
            return self.read_beginning(scratch, now);
        }
        let mut taken = 0;
        let mut small = 0;
        // One full buffer a poll: it is processed while it is in the processor's cache, and the next is read into the same memory.
        let mut filled = false;
        if self.read.is_withheld {
            self.decode(pool, events, now)?;
        }
        // Two bytes make an empty message, and each costs an event: the budget in bytes alone would not bound memory.
        while self.can_read() && taken < budget.all && events.len() < EVENTS_MAX && !filled {
            let remaining = self.connection.body_remaining();
            let is_direct =
                self.read.input.is_empty() && (remaining >= DIRECT_BYTES_MIN || self.has_partial(remaining));
            let bytes = if is_direct {
                let Some(bytes) = self.receive_body(remaining, scratch, pool, events, now)? else {
                    self.read.awaits_buffer = true;
                    break;
                };
                filled =
                    matches!(events.back(), Some(Event::BodyData { data, .. }) if data.len() == pool.buffer_bytes());
                bytes
            } else {
                let left = budget.small.saturating_sub(small).max(self.connection.wanted());
                let mut most = self.read.read_ahead.min(scratch.len()).min(budget.all - taken).min(left);
                if most == 0 {
                    break;
                }
                if let Some(space) = self.connection.dedicated_space() {
                    most = most.min(space);
                }
                let bytes = self.receive(&mut scratch[..most])?;
                if bytes == most {
                    self.read.grow_read_ahead();
                }
                self.read.input.extend_from_slice(&scratch[..bytes]);
                small += bytes;
                bytes
            };
            if bytes == 0 {
                break;
            }
            taken += bytes;
            self.read.bytes_in += bytes as u64;
            self.connection.on_received(bytes, now);
            self.decode(pool, events, now)?;
        }
        if self.read.input.is_empty() {
            // An idle peer holds no buffer.
            self.read.input = BytesMut::new();
        }
        Ok(())
    }

    /// One recv: 0 if there is nothing now.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, End> {
        let wanted = buffer.len();
        let received = rustix::net::recv(&self.fd, buffer, RecvFlags::empty()).map(|(_, bytes)| bytes);
        self.received(received, wanted)
    }

    /// One recv into two buffers, of which the second takes what doesn't fit into the first: the bytes in each.
    pub(super) fn receive_both(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<(usize, usize), End> {
        let space = first.len();
        let wanted = space + second.len();
        let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let received = rustix::net::recvmsg(&self.fd, &mut parts, &mut Default::default(), RecvFlags::empty());
        let bytes = self.received(received.map(|message| message.bytes), wanted)?;
        Ok((bytes.min(space), bytes.saturating_sub(space)))
    }

    /// The outcome of a recv into a buffer for `wanted` bytes.
    fn received(&mut self, received: rustix::io::Result<usize>, wanted: usize) -> Result<usize, End> {
        match received {
            Ok(0) => Err(self.closed()),
            Ok(bytes) => {
                self.read.on_received(bytes, wanted);
                Ok(bytes)
            }
            Err(Errno::AGAIN) => {
                self.read.is_readable = false;
                Ok(0)
            }
            Err(Errno::INTR) => Ok(0),
            Err(Errno::CONNRESET) if !self.is_ready() => Err(self.closed()),
            Err(errno) => Err(End::system("receiving failed", errno)),
        }
    }

    fn closed(&self) -> End {
        match self.connection.closed() {
            Some(error) => End::from(error),
            None if self.is_ready() => End::closed(),
            None => End::new("the peer closed the connection during the handshake"),
        }
    }

    /// Turns what has been read into events.
    pub(crate) fn decode(&mut self, pool: &Pool, events: &mut VecDeque<Event>, now: Instant) -> Result<(), End> {
        let peer = self.id;
        if self.read.input.is_empty() && !self.connection.event_is_due() {
            return Ok(());
        }
        while let Some(event) = self.connection.input(&mut self.read.input, now)? {
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
                    self.read.messages_in += 1;
                    Event::Message { peer, frames, continued }
                }
                Wire::BodyStart { head, length, more } => Event::BodyStart { peer, head, length, more },
                Wire::BodyData(data) => {
                    self.begin_body(data, pool, events, now);
                    continue;
                }
                Wire::BodyEnd { more } => {
                    self.deliver_partial(pool, events);
                    self.read.messages_in += u64::from(!more);
                    Event::BodyEnd { peer, more }
                }
            };
            events.push_back(event);
        }
        self.read.is_withheld = self.connection.is_waiting() && !self.read.input.is_empty();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_read_waits_for_the_next_edge_unless_the_peer_hung_up() {
        let mut read = ReadState::default();
        assert!(!read.is_possible());
        read.on_readiness(true, false);
        read.on_received(100, 100);
        assert!(read.is_possible());
        read.on_received(99, 100);
        assert!(!read.is_possible());
        read.on_readiness(false, true);
        read.on_received(1, 100);
        assert!(read.is_possible(), "the end is still to be read");
        read.awaits_buffer = true;
        assert!(!read.is_possible());
    }

    #[test]
    fn read_ahead_grows_back_after_a_streamed_body() {
        let mut read = ReadState { read_ahead: READ_AHEAD_BYTES_MIN, ..ReadState::default() };
        for expected in [2 << 10, 8 << 10, 32 << 10, 64 << 10, 64 << 10] {
            read.grow_read_ahead();
            assert_eq!(read.read_ahead, expected);
        }
    }
}
