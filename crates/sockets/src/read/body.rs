//! Reading streamed bodies: into a pooled buffer, or by the kernel into a pipe.

use super::{EXACT_BYTES, READ_AHEAD_BYTES_MIN};
use crate::event::Event;
use crate::peer::{End, Peer};
use crate::pipe::{PIPED_BYTES, Pipe};
use crate::pool::{BUFFER_BYTES, Buffer, Pools};
use bytes::Bytes;
use rustix::fd::AsFd;
use rustix::io::{Errno, ioctl_fionread};
use std::collections::VecDeque;

/// With less than this left, a copy costs less than a pipe.
const PIPED_BYTES_MIN: u64 = 64 * 1024;

/// What octets of a body are being read into, and how many there are.
pub(crate) enum Partial {
    Buffer(Buffer, usize),
    Pipe(Pipe, usize),
}

/// What reading some octets of a body came to.
struct Step {
    octets: usize,
    /// What they were read into is to be handed over.
    is_over: bool,
}

impl Peer {
    pub(super) fn has_partial(&self, remaining: u64) -> bool {
        remaining > 0 && self.partial.is_some()
    }

    /// Reads into a pooled buffer or pipe, and hands it over when it is full or the body is at its end: a file is then written in
    /// pieces that begin and end on pages. `None`: the pool is empty.
    pub(super) fn receive_body(
        &mut self,
        remaining: u64,
        scratch: &mut [u8],
        pools: &Pools,
        events: &mut VecDeque<Event>,
    ) -> Result<Option<usize>, End> {
        let Some(partial) = self.partial.take().or_else(|| self.begin_partial(remaining, pools)) else {
            return Ok(None);
        };
        let step = match partial {
            Partial::Buffer(buffer, filled) => self.receive_into_buffer(buffer, filled, remaining, scratch),
            Partial::Pipe(pipe, filled) => self.receive_into_pipe(pipe, filled, remaining),
        };
        if step.as_ref().map_or(true, |step| step.is_over) {
            self.hand_over(pools, events);
        }
        step.map(|step| Some(step.octets))
    }

    fn begin_partial(&mut self, remaining: u64, pools: &Pools) -> Option<Partial> {
        if self.piping && remaining >= PIPED_BYTES_MIN {
            match pools.pipes.take() {
                Ok(pipe) => return Some(Partial::Pipe(pipe?, 0)),
                Err(error) => {
                    tracing::debug!(%error, "no pipe: bodies are copied");
                    self.piping = false;
                }
            }
        }
        let buffer = pools.buffers.take().ok()??;
        Some(Partial::Buffer(buffer, 0))
    }

    /// With the end of a body comes what is read ahead of the next header: a call less for each frame.
    fn receive_into_buffer(
        &mut self,
        mut buffer: Buffer,
        filled: usize,
        remaining: u64,
        scratch: &mut [u8],
    ) -> Result<Step, End> {
        let space = buffer.len().saturating_sub(filled);
        let most = filled + space.min(usize::try_from(remaining).unwrap_or(space));
        let received = if (most - filled) as u64 == remaining && !self.piping && self.exact_bytes == 0 {
            let ahead = READ_AHEAD_BYTES_MIN.min(scratch.len());
            self.receive_both(&mut buffer[filled..most], &mut scratch[..ahead])
        } else {
            self.receive(&mut buffer[filled..most]).map(|octets| (octets, 0))
        };
        let (octets, ahead) = received.as_ref().copied().unwrap_or_default();
        self.input.extend_from_slice(&scratch[..ahead]);
        self.partial = Some(Partial::Buffer(buffer, filled + octets));
        self.connection.body_advance(octets as u64);
        self.read_ahead = READ_AHEAD_BYTES_MIN;
        received?;
        Ok(Step { octets: octets + ahead, is_over: filled + octets == BUFFER_BYTES || octets as u64 == remaining })
    }

    fn receive_into_pipe(&mut self, pipe: Pipe, filled: usize, remaining: u64) -> Result<Step, End> {
        let space = PIPED_BYTES.saturating_sub(filled);
        let moved = pipe.fill(self.fd.as_fd(), space.min(usize::try_from(remaining).unwrap_or(space)));
        let octets = moved.unwrap_or(0);
        self.partial = Some(Partial::Pipe(pipe, filled + octets));
        self.connection.body_advance(octets as u64);
        self.read_ahead = READ_AHEAD_BYTES_MIN;
        self.exact_bytes = EXACT_BYTES;
        match moved {
            Ok(0) => Err(self.closed()),
            Ok(_) => Ok(Step { octets, is_over: filled + octets == PIPED_BYTES || octets as u64 == remaining }),
            // Either the socket is empty or the pipe is full: octets of small packets take as much of its room as whole pages.
            Err(Errno::AGAIN) => {
                let is_full = ioctl_fionread(&self.fd).is_ok_and(|waiting| waiting > 0);
                self.readable = is_full;
                Ok(Step { octets, is_over: is_full })
            }
            Err(Errno::INTR) => Ok(Step { octets, is_over: false }),
            Err(Errno::INVAL) => {
                tracing::debug!("this socket doesn't splice: bodies are copied");
                (self.cannot_splice, self.piping) = (true, false);
                Ok(Step { octets, is_over: true })
            }
            Err(errno) => Err(End::system("receiving failed", errno)),
        }
    }

    /// Hands over what has been read of a body so far.
    pub(crate) fn hand_over(&mut self, pools: &Pools, events: &mut VecDeque<Event>) {
        match self.partial.take() {
            Some(Partial::Buffer(buffer, 0)) => pools.buffers.put(buffer),
            Some(Partial::Buffer(buffer, filled)) => {
                events.push_back(Event::BodyData { peer: self.id, data: pools.buffers.lend(buffer, filled) });
            }
            Some(Partial::Pipe(pipe, 0)) => pools.pipes.put(pipe),
            Some(Partial::Pipe(pipe, filled)) => {
                events.push_back(Event::BodyPiped { peer: self.id, piped: pools.pipes.lend(pipe, filled) });
            }
            None => {}
        }
    }

    /// The same for a buffer alone: a pipe is handed over when it is full, since what is in it is written at once.
    pub(crate) fn hand_over_buffer(&mut self, pools: &Pools, events: &mut VecDeque<Event>) {
        if matches!(self.partial, Some(Partial::Buffer(..))) {
            self.hand_over(pools, events);
        }
    }

    /// What of a body came with its header, before the buffer or pipe that the rest will be read into.
    pub(super) fn begin_body(&mut self, data: Bytes, pools: &Pools, events: &mut VecDeque<Event>) {
        let begins = self.partial.is_none() && data.len() <= READ_AHEAD_BYTES_MIN && !self.piping;
        if begins
            && self.connection.body_remaining() > 0
            && let Ok(Some(mut buffer)) = pools.buffers.take()
        {
            buffer[..data.len()].copy_from_slice(&data);
            self.partial = Some(Partial::Buffer(buffer, data.len()));
        } else {
            self.hand_over(pools, events);
            events.push_back(Event::BodyData { peer: self.id, data });
        }
    }
}
