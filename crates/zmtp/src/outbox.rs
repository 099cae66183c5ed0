//! The send queue of one peer: frames whose bodies are bytes, or ranges of something external, such as a file.
//!
//! The driver writes what [`Outbox::transmit`] gives, and reports what it wrote with [`Outbox::advance`]. Headers and small bodies are gathered
//! into one buffer. A large body is given as it is. An external body is given by its source and position, so that the driver can let the
//! kernel move it. Commands go before the next frame, even within a message, so that a PONG never waits for more than one frame; where frames are
//! sealed, for two: the one that is being written, and the one that is being sealed.

mod waiting;
mod wire;

use crate::frame::{FrameFlags, Header};
use crate::seal::{SealJob, Sealed, Sealer};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use waiting::{Sums, Waiting};
use wire::{External, Protection, Sealing, Staged};

/// Bodies up to this size are gathered behind their header instead of being written on their own.
const GATHER_BODY_BYTES_MAX: usize = 8 * 1024;

/// Gathering stops once this much is ready to be written.
const GATHERED_BYTES: usize = 64 * 1024;

/// The body of a frame to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<F> {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes that the driver moves, such as a range of a file.
    External {
        /// Their source; opaque here.
        source: F,
        /// Their number. A promise: the header says so before the first of them leaves.
        length: u64,
    },
}

impl<F> Body<F> {
    /// Bytes of the body.
    pub fn length(&self) -> u64 {
        match self {
            Body::Bytes(bytes) => bytes.len() as u64,
            Body::External { length, .. } => *length,
        }
    }
}

/// Contents of an outbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queued {
    /// Messages whose last frame has not been staged.
    pub messages: usize,
    /// Bytes held in memory, with an overhead for each frame. Commands count, too.
    pub memory_bytes: usize,
    /// Bytes of external bodies, which take no memory.
    pub external_bytes: u64,
}

/// The next thing to write.
#[derive(Debug)]
pub enum Transmit<'a, F> {
    /// Nothing.
    Idle,
    /// These bytes, in this order.
    Bytes {
        /// Two slices, the second often empty.
        slices: [&'a [u8]; 2],
        /// More follows at once, so that MSG_MORE helps.
        more_follows: bool,
    },
    /// An external body, when everything before it has been written.
    External {
        /// Its source.
        source: &'a F,
        /// Bytes of it that have been written.
        position: u64,
        /// Bytes that are left. 0 for an empty body: [`Outbox::advance_external`] by 0 returns the source.
        remaining: u64,
    },
}

/// The queue of one peer.
#[derive(Debug)]
pub struct Outbox<F> {
    staged: Staged,
    external: Option<External<F>>,
    commands: VecDeque<Bytes>,
    replies: VecDeque<Bytes>,
    /// Bytes of `commands` and `replies`.
    command_bytes: usize,
    waiting: VecDeque<Waiting<F>>,
    /// Sums over `waiting`; a message counts until its last frame leaves it.
    sums: Sums,
    messages_staged: u64,
    /// The same before the current staging.
    messages_before: u64,
    bytes_written: u64,
    open: bool,
    protection: Protection,
}

impl<F> Default for Outbox<F> {
    fn default() -> Self {
        Outbox {
            staged: Staged::default(),
            external: None,
            commands: VecDeque::new(),
            replies: VecDeque::new(),
            command_bytes: 0,
            waiting: VecDeque::new(),
            sums: Sums::default(),
            messages_staged: 0,
            messages_before: 0,
            bytes_written: 0,
            open: false,
            protection: Protection::default(),
        }
    }
}

impl<F> Outbox<F> {
    /// Lets messages leave: the handshake is over. Before that, only commands do.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// Seals every frame from now on. Commands that are queued already belong to the handshake and leave as they are.
    /// Bodies up to `here_bytes_max` are sealed as they are gathered; larger ones, and external ones, by the driver, wherever it likes.
    pub fn seal_with(
        &mut self,
        overhead: usize,
        numbers: RangeInclusive<u64>,
        here_bytes_max: usize,
        sealer: Arc<dyn Sealer>,
    ) {
        while self.stage_command() {}
        self.protection = Protection::Sealed(Sealing::new(overhead, numbers, here_bytes_max, sealer));
    }

    /// Queues bytes outside of any frame (the greeting), or a whole command frame, before the next frame of a message.
    pub fn push_command(&mut self, wire: Bytes) {
        self.command_bytes += wire.len();
        self.commands.push_back(wire);
    }

    /// Queues a whole command frame that answers one of the peer's. The peer decides how many there are, so the caller takes no more of its
    /// commands while too many wait ([`Outbox::replies_waiting`]).
    pub fn push_reply(&mut self, wire: Bytes) {
        self.command_bytes += wire.len();
        self.replies.push_back(wire);
    }

    /// Replies of which nothing has been staged.
    pub fn replies_waiting(&self) -> usize {
        self.replies.len()
    }

    fn pop_command(&mut self) {
        let wire = self.commands.pop_front().or_else(|| self.replies.pop_front());
        self.command_bytes -= wire.map_or(0, |wire| wire.len());
    }

    /// Appends a message. `tag` is for [`Outbox::remove_queued`]. A message without frames is ignored.
    pub fn push_message(&mut self, frames: impl IntoIterator<Item = Body<F>>, tag: u64) {
        for (index, body) in frames.into_iter().enumerate() {
            let frame = Waiting { body, more: true, first: index == 0, tag };
            self.sums.add(&frame);
            self.waiting.push_back(frame);
        }
        // The last frame of this message, or, if it had none, of the one before.
        if let Some(last) = self.waiting.back_mut() {
            last.more = false;
        }
    }

    /// Frames at the front that must leave: the rest of a message of which something has been staged, or is being sealed and may have its number.
    fn begun_frames(&self) -> usize {
        let sealing = usize::from(self.protection.sealing().is_some_and(Sealing::has_begun));
        sealing + self.waiting.iter().skip(sealing).take_while(|frame| !frame.first).count()
    }

    /// Removes all messages with this tag of which nothing has been staged or is being sealed, and gives their number.
    pub fn remove_queued(&mut self, tag: u64) -> usize {
        let before = self.sums.messages;
        let mut sums = self.sums;
        let mut begun = self.begun_frames();
        self.waiting.retain(|frame| {
            let keep = begun > 0 || frame.tag != tag;
            begun = begun.saturating_sub(1);
            if !keep {
                sums.memory_bytes -= frame.memory_bytes();
                sums.external_bytes -= frame.external_bytes();
                sums.messages -= usize::from(frame.first);
            }
            keep
        });
        self.sums = sums;
        before - sums.messages
    }

    /// Removes all messages of which nothing has been staged or is being sealed, and gives what was removed.
    pub fn clear(&mut self) -> Queued {
        let begun = self.begun_frames();
        let mut removed = Sums::default();
        for frame in self.waiting.drain(begun..) {
            removed.add(&frame);
        }
        self.sums.messages -= removed.messages;
        self.sums.memory_bytes -= removed.memory_bytes;
        self.sums.external_bytes -= removed.external_bytes;
        removed.public()
    }

    /// Contents, with what has been staged and not written.
    pub fn queued(&self) -> Queued {
        let mut sums = self.sums;
        sums.memory_bytes += self.staged.len() + self.command_bytes;
        if let Some(external) = &self.external {
            sums.external_bytes += u128::from(external.remaining());
        }
        sums.public()
    }

    /// Messages that have not been written completely. Small ones gathered to be written together count until all of them are.
    pub fn messages_unwritten(&self) -> usize {
        let staged = if self.has_staged() { self.messages_staged - self.messages_before } else { 0 };
        self.sums.messages + usize::try_from(staged).unwrap_or(usize::MAX)
    }

    /// Whether nothing is left to write, now or when the handshake is over.
    pub fn is_idle(&self) -> bool {
        !self.has_output() && self.waiting.is_empty()
    }

    /// Whether there is something to write now, messages that wait for the handshake excepted.
    pub fn has_output(&self) -> bool {
        self.has_staged() || self.has_unstaged()
    }

    /// Whether [`Outbox::transmit`] or [`Outbox::seal_job`] has something now: not while a frame is being sealed.
    pub fn may_progress(&self) -> bool {
        if self.has_staged() {
            return true;
        }
        let Some(sealing) = self.protection.sealing() else { return self.has_unstaged() };
        (self.has_commands() && sealing.has_number())
            || (self.open && !self.waiting.is_empty() && !sealing.is_awaited())
    }

    /// Whether frames wait for which there are no numbers any more: they can't be sealed, and the connection has to end.
    pub fn is_exhausted(&self) -> bool {
        self.protection.sealing().is_some_and(Sealing::is_exhausted) && self.has_unstaged()
    }

    /// Whether the next frame is being sealed by the driver.
    pub fn awaits_seal(&self) -> bool {
        self.protection.sealing().is_some_and(Sealing::is_awaited)
    }

    /// Whether a frame that the driver has sealed isn't written yet.
    pub fn holds_sealed(&self) -> bool {
        let sealing = self.protection.sealing();
        sealing.is_some_and(|sealing| self.staged.has_large() || (sealing.has_begun() && !sealing.is_awaited()))
    }

    fn has_staged(&self) -> bool {
        !self.staged.is_empty() || self.external.is_some()
    }

    fn has_commands(&self) -> bool {
        !self.commands.is_empty() || !self.replies.is_empty()
    }

    /// Whether there is something to stage.
    fn has_unstaged(&self) -> bool {
        self.has_commands() || (self.open && !self.waiting.is_empty())
    }

    /// Messages whose last frame has been staged.
    pub fn messages_staged(&self) -> u64 {
        self.messages_staged
    }

    /// Bytes that the driver has written, in all.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Gathers what is to be written next, unless something is staged already. Then [`Outbox::seal_job`] has the frame behind it, if that
    /// is to be sealed.
    pub fn stage(&mut self) {
        if !self.has_staged() {
            self.gather();
        }
        if self.protection.sealing().is_some() {
            // Behind the frame that is being written, and before the next one takes its number.
            while self.may_gather() && self.stage_command() {}
        }
    }

    fn may_gather(&self) -> bool {
        self.staged.gathered_bytes() < GATHERED_BYTES && !self.is_exhausted()
    }

    /// The next thing to write; gathers as needed.
    pub fn transmit(&mut self) -> Transmit<'_, F> {
        self.stage();
        if !self.staged.is_empty() {
            // The kernel delays bytes marked so for up to 200 ms: only if something does follow.
            let external = self.external.as_ref().is_some_and(|external| external.remaining() > 0);
            let more_follows = external || (self.has_unstaged() && !self.awaits_seal());
            return Transmit::Bytes { slices: self.staged.slices(), more_follows };
        }
        match &self.external {
            Some(external) => Transmit::External {
                source: external.source(),
                position: external.position(),
                remaining: external.remaining(),
            },
            None => Transmit::Idle,
        }
    }

    fn gather(&mut self) {
        self.staged.clear();
        self.messages_before = self.messages_staged;
        while self.may_gather() {
            if self.stage_command() {
                continue;
            }
            if self.next_is_sealed_elsewhere() {
                self.stage_sealed();
                break;
            }
            let Some(frame) = self.next_frame() else { break };
            match frame.body {
                Body::Bytes(bytes) => {
                    self.stage_bytes(frame.more, bytes);
                    if self.staged.has_large() {
                        break;
                    }
                }
                Body::External { source, length } => {
                    if let Protection::Clear(clear) = &self.protection {
                        self.staged.put_header(clear, frame.more, length);
                        self.external = Some(External::new(clear, source, length));
                    }
                    break;
                }
            }
        }
        self.staged.shrink();
    }

    /// The next frame of a message.
    #[inline]
    fn next_frame(&mut self) -> Option<Waiting<F>> {
        if self.open { self.pop_frame() } else { None }
    }

    /// Whether the next frame is too large to be sealed while it is gathered.
    #[inline]
    fn next_is_sealed_elsewhere(&self) -> bool {
        let Some(sealing) = self.protection.sealing().filter(|_| self.open) else { return false };
        self.waiting.front().is_some_and(|frame| match &frame.body {
            Body::Bytes(bytes) => bytes.len() > sealing.here_bytes_max(),
            Body::External { .. } => true,
        })
    }

    /// Stages the frame that was sealed elsewhere, if it is. Its source comes back behind it, from [`Outbox::advance_external`] by 0.
    fn stage_sealed(&mut self) {
        let Some(sealing) = self.protection.sealing_mut() else { return };
        if self.staged.put_ahead(sealing)
            && let Some(Waiting { body: Body::External { source, .. }, .. }) = self.pop_frame()
        {
            self.external = Some(External::staged(source));
        }
    }

    /// The next frame that the driver has to seal, with its body, to be returned to [`Outbox::sealed`]. Once for each frame, and one at a
    /// time; it may be asked for while the frame before it is being written.
    pub fn seal_job(&mut self) -> Option<(SealJob, &Body<F>)> {
        if !self.next_is_sealed_elsewhere() {
            return None;
        }
        // Commands that wait are numbered first, or they might wait for one frame after the other.
        let has_commands = self.has_commands();
        let (sealing, frame) = (self.protection.sealing_mut()?, self.waiting.front()?);
        if has_commands || sealing.has_begun() || sealing.is_exhausted() {
            return None;
        }
        let length = usize::try_from(frame.body.length()).ok()?;
        Some((sealing.begin(FrameFlags { more: frame.more, command: false }, length), &frame.body))
    }

    /// Takes a sealed frame, and gives the source of its body if that is external.
    pub fn sealed(&mut self, sealed: Sealed) -> Option<&mut F> {
        if !self.protection.sealing_mut()?.take_in(sealed) {
            return None;
        }
        match &mut self.waiting.front_mut()?.body {
            Body::Bytes(_) => None,
            Body::External { source, .. } => Some(source),
        }
    }

    #[inline]
    fn pop_frame(&mut self) -> Option<Waiting<F>> {
        let frame = self.waiting.pop_front()?;
        self.sums.memory_bytes -= frame.memory_bytes();
        self.sums.external_bytes -= frame.external_bytes();
        if !frame.more {
            self.sums.messages -= 1;
            self.messages_staged += 1;
        }
        Some(frame)
    }

    /// Stages a command, if there is one and it may leave.
    fn stage_command(&mut self) -> bool {
        let Some(wire) = self.commands.front().or_else(|| self.replies.front()) else { return false };
        let is_staged = match &mut self.protection {
            Protection::Clear(clear) => {
                self.staged.put(clear, wire);
                true
            }
            Protection::Sealed(sealing) => {
                // The greeting, which is no frame, has left long before.
                let body = Header::decode(wire).and_then(|(_, header_bytes)| wire.get(header_bytes..));
                let flags = FrameFlags { more: false, command: true };
                self.staged.put_sealed(sealing, flags, body.unwrap_or_default())
            }
        };
        if is_staged {
            self.pop_command();
        }
        is_staged
    }

    /// Stages a frame of a message: gathers it, or only its header if its body is large.
    #[inline]
    fn stage_bytes(&mut self, more: bool, bytes: Bytes) {
        match &mut self.protection {
            Protection::Clear(clear) => {
                self.staged.put_header(clear, more, bytes.len() as u64);
                if bytes.len() <= GATHER_BODY_BYTES_MAX {
                    self.staged.put(clear, &bytes);
                } else {
                    self.staged.put_large(clear, bytes);
                }
            }
            Protection::Sealed(sealing) => {
                let is_staged = self.staged.put_sealed(sealing, FrameFlags { more, command: false }, &bytes);
                debug_assert!(is_staged, "a frame that is sealed elsewhere is in front of all others");
            }
        }
    }

    /// Reports written bytes of [`Transmit::Bytes`]. More than there were is a bug of the driver's.
    pub fn advance(&mut self, bytes: usize) {
        self.staged.advance(bytes);
        self.bytes_written += bytes as u64;
    }

    /// Reports written bytes of [`Transmit::External`]; returns the source with the last of them.
    pub fn advance_external(&mut self, bytes: u64) -> Option<F> {
        let external = self.external.as_mut()?;
        external.advance(bytes);
        self.bytes_written += bytes;
        if external.remaining() == 0 { self.external.take().map(External::into_source) } else { None }
    }
}

#[cfg(test)]
mod tests;
