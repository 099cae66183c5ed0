//! What waits to be sent to one peer: frames whose bodies are bytes or pieces of something outside, such as a file.
//!
//! The driver asks [`Outbox::transmit`] what to write next and reports what it wrote with [`Outbox::advance`]. Headers and
//! small bodies are gathered into one buffer; a large body is handed over as it is; an outside body is named by its
//! source and position, so that the driver can let the kernel move it. Commands go before the next frame, also in the
//! middle of a message, so that a PONG never waits for more than one frame.

use crate::frame;
use crate::limits::{FRAME_OVERHEAD_BYTES, REPLIES_WAITING_MAX};
use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Bodies up to this size are copied behind their header instead of being written on their own.
const GATHER_BODY_BYTES_MAX: usize = 8 * 1024;

/// Gathering stops once this much is ready to be written.
const GATHERED_BYTES: usize = 64 * 1024;

/// Of the gathering buffer, this much is kept while there is nothing to send.
const GATHERED_KEPT_BYTES: usize = 16 * 1024;

/// The body of a frame to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<F> {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes that the driver moves, such as a range of a file.
    External {
        /// Where they come from; opaque here.
        source: F,
        /// How many. A promise: the header says so before the first of them leaves.
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

/// What waits in an outbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queued {
    /// Messages whose last frame has not been handed to the driver.
    pub messages: usize,
    /// Bytes held in memory, with an overhead for each frame. Commands count too.
    pub memory_bytes: usize,
    /// Bytes of outside bodies, which cost no memory.
    pub external_bytes: u64,
}

/// What to write next.
#[derive(Debug)]
pub enum Transmit<'a, F> {
    /// Nothing waits.
    Idle,
    /// These bytes, in this order.
    Bytes {
        /// Two slices, the second often empty.
        slices: [&'a [u8]; 2],
        /// More follows at once (MSG_MORE is worth it).
        more_follows: bool,
    },
    /// An outside body, now that all before it has been written.
    External {
        /// Its source.
        source: &'a F,
        /// How much of it has been written.
        position: u64,
        /// How much is left. For the body of an empty frame it is 0: [`Outbox::advance_external`] by 0 gives the source back.
        remaining: u64,
    },
}

#[derive(Debug)]
struct Waiting<F> {
    body: Body<F>,
    more: bool,
    first: bool,
    tag: u64,
}

impl<F> Waiting<F> {
    fn memory_bytes(&self) -> usize {
        FRAME_OVERHEAD_BYTES
            + match &self.body {
                Body::Bytes(bytes) => bytes.len(),
                Body::External { .. } => 0,
            }
    }

    fn external_bytes(&self) -> u128 {
        match &self.body {
            Body::Bytes(_) => 0,
            Body::External { length, .. } => u128::from(*length),
        }
    }
}

#[derive(Debug)]
struct External<F> {
    source: F,
    position: u64,
    length: u64,
}

/// [`Queued`] of the frames in `waiting`. The sum of outside bodies may pass 2^64: nothing of them is in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    messages: usize,
    memory_bytes: usize,
    external_bytes: u128,
}

impl Sums {
    fn add<F>(&mut self, frame: &Waiting<F>) {
        self.messages += usize::from(frame.first);
        self.memory_bytes += frame.memory_bytes();
        self.external_bytes += frame.external_bytes();
    }

    fn public(self) -> Queued {
        let external_bytes = u64::try_from(self.external_bytes).unwrap_or(u64::MAX);
        Queued { messages: self.messages, memory_bytes: self.memory_bytes, external_bytes }
    }
}

/// The queue of one peer.
#[derive(Debug)]
pub struct Outbox<F> {
    gathered: Vec<u8>,
    written: usize,
    large: Bytes,
    external: Option<External<F>>,
    commands: VecDeque<Bytes>,
    replies: VecDeque<Bytes>,
    replies_dropped: u64,
    /// Bytes of `commands` and `replies`.
    command_bytes: usize,
    waiting: VecDeque<Waiting<F>>,
    /// Of `waiting`; a message counts until its last frame leaves it.
    sums: Sums,
    messages_staged: u64,
    /// The same before what is staged now was gathered.
    messages_before: u64,
    bytes_written: u64,
    open: bool,
}

impl<F> Default for Outbox<F> {
    fn default() -> Self {
        Outbox {
            gathered: Vec::new(),
            written: 0,
            large: Bytes::new(),
            external: None,
            commands: VecDeque::new(),
            replies: VecDeque::new(),
            replies_dropped: 0,
            command_bytes: 0,
            waiting: VecDeque::new(),
            sums: Sums::default(),
            messages_staged: 0,
            messages_before: 0,
            bytes_written: 0,
            open: false,
        }
    }
}

impl<F> Outbox<F> {
    /// Lets messages out: the handshake is over. Until then only commands leave.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// Bytes outside of any frame (the greeting), or a whole command frame; sent before the next frame of a message.
    pub fn push_command(&mut self, wire: Bytes) {
        self.command_bytes += wire.len();
        self.commands.push_back(wire);
    }

    /// A whole command frame that answers one of the peer's, so the peer decides how many there are: over
    /// [`REPLIES_WAITING_MAX`] the oldest gives way, and is counted.
    pub fn push_reply(&mut self, wire: Bytes) {
        if self.replies.len() >= REPLIES_WAITING_MAX
            && let Some(oldest) = self.replies.pop_front()
        {
            self.command_bytes -= oldest.len();
            self.replies_dropped += 1;
        }
        self.command_bytes += wire.len();
        self.replies.push_back(wire);
    }

    /// Replies that gave way to newer ones, because the peer asks and doesn't read.
    pub fn replies_dropped(&self) -> u64 {
        self.replies_dropped
    }

    fn pop_command(&mut self) -> Option<Bytes> {
        let wire = self.commands.pop_front().or_else(|| self.replies.pop_front())?;
        self.command_bytes -= wire.len();
        Some(wire)
    }

    /// Appends a message. `tag` is for [`Outbox::remove_queued`]. A message of no frames is nothing.
    pub fn push_message<const N: usize>(&mut self, frames: SmallVec<[Body<F>; N]>, tag: u64)
    where
        [Body<F>; N]: smallvec::Array<Item = Body<F>>,
    {
        let count = frames.len();
        for (index, body) in frames.into_iter().enumerate() {
            let frame = Waiting { body, more: index + 1 < count, first: index == 0, tag };
            self.sums.add(&frame);
            self.waiting.push_back(frame);
        }
    }

    /// Removes every waiting message with this tag of which nothing has been staged yet; gives their number.
    pub fn remove_queued(&mut self, tag: u64) -> usize {
        let before = self.sums.messages;
        let mut sums = self.sums;
        // A message whose first frame has gone out must be finished, whatever its tag.
        let mut begun = self.waiting.front().is_some_and(|frame| !frame.first);
        self.waiting.retain(|frame| {
            if frame.first {
                begun = false;
            }
            let keep = begun || frame.tag != tag;
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

    /// Removes every waiting message of which nothing has been staged yet; gives what was removed.
    pub fn clear(&mut self) -> Queued {
        let begun = self.waiting.iter().take_while(|frame| !frame.first).count();
        let mut removed = Sums::default();
        for frame in self.waiting.drain(begun..) {
            removed.add(&frame);
        }
        self.sums.messages -= removed.messages;
        self.sums.memory_bytes -= removed.memory_bytes;
        self.sums.external_bytes -= removed.external_bytes;
        removed.public()
    }

    /// What waits, with what has been staged and not yet written.
    pub fn queued(&self) -> Queued {
        let mut sums = self.sums;
        sums.memory_bytes += self.gathered.len() - self.written + self.large.len() + self.command_bytes;
        if let Some(external) = &self.external {
            sums.external_bytes += u128::from(external.length - external.position);
        }
        sums.public()
    }

    /// Messages that have not been written to their end. Of those that were gathered to be written together (all of them small), each
    /// counts until all have been.
    pub fn messages_unwritten(&self) -> usize {
        let staged = if self.has_staged() { self.messages_staged - self.messages_before } else { 0 };
        self.sums.messages + usize::try_from(staged).unwrap_or(usize::MAX)
    }

    /// Whether nothing is left to write, now or once the handshake is over.
    pub fn is_idle(&self) -> bool {
        !self.has_output() && self.waiting.is_empty()
    }

    /// Whether there is something to write now: unlike [`Outbox::is_idle`] without what waits for the handshake.
    pub fn has_output(&self) -> bool {
        self.has_staged() || self.has_unstaged()
    }

    fn has_staged(&self) -> bool {
        self.written < self.gathered.len() || !self.large.is_empty() || self.external.is_some()
    }

    /// Whether [`Outbox::gather`] would find something.
    fn has_unstaged(&self) -> bool {
        !self.commands.is_empty() || !self.replies.is_empty() || (self.open && !self.waiting.is_empty())
    }

    /// Messages whose last frame has been handed to the driver.
    pub fn messages_staged(&self) -> u64 {
        self.messages_staged
    }

    /// Bytes that the driver has written in all.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// What to write next; gathers as needed.
    pub fn transmit(&mut self) -> Transmit<'_, F> {
        if !self.has_staged() {
            self.gather();
        }
        if self.written < self.gathered.len() || !self.large.is_empty() {
            // The kernel holds back what is marked so for up to 200 ms: only where something does follow.
            let external = self.external.as_ref().is_some_and(|external| external.length > 0);
            let more_follows = external || self.has_unstaged();
            return Transmit::Bytes { slices: [&self.gathered[self.written..], &self.large], more_follows };
        }
        match &self.external {
            Some(External { source, position, length }) => {
                Transmit::External { source, position: *position, remaining: length - position }
            }
            None => Transmit::Idle,
        }
    }

    fn gather(&mut self) {
        self.gathered.clear();
        self.written = 0;
        self.messages_before = self.messages_staged;
        while self.gathered.len() < GATHERED_BYTES {
            if let Some(command) = self.pop_command() {
                self.gathered.extend_from_slice(&command);
                continue;
            }
            let Some(frame) = (if self.open { self.waiting.pop_front() } else { None }) else { break };
            self.sums.memory_bytes -= frame.memory_bytes();
            self.sums.external_bytes -= frame.external_bytes();
            if !frame.more {
                self.sums.messages -= 1;
                self.messages_staged += 1;
            }
            frame::encode_header(&mut self.gathered, if frame.more { frame::MORE } else { 0 }, frame.body.length());
            match frame.body {
                Body::Bytes(bytes) if bytes.len() <= GATHER_BODY_BYTES_MAX => self.gathered.extend_from_slice(&bytes),
                Body::Bytes(bytes) => {
                    self.large = bytes;
                    break;
                }
                Body::External { source, length } => {
                    self.external = Some(External { source, position: 0, length });
                    break;
                }
            }
        }
        if self.gathered.is_empty() {
            self.gathered.shrink_to(GATHERED_KEPT_BYTES);
        }
    }

    /// So many bytes of [`Transmit::Bytes`] have been written. More than there were is a bug of the driver's.
    pub fn advance(&mut self, bytes: usize) {
        let of_gathered = bytes.min(self.gathered.len() - self.written);
        self.written += of_gathered;
        let of_large = (bytes - of_gathered).min(self.large.len());
        debug_assert_eq!(of_gathered + of_large, bytes, "more written than there was");
        let _ = self.large.split_to(of_large);
        self.bytes_written += bytes as u64;
    }

    /// So many bytes of [`Transmit::External`] have been written; gives the source back when that was the last of it.
    pub fn advance_external(&mut self, bytes: u64) -> Option<F> {
        let external = self.external.as_mut()?;
        debug_assert!(bytes <= external.length - external.position, "more written than there was");
        external.position = external.length.min(external.position.saturating_add(bytes));
        self.bytes_written += bytes;
        if external.position == external.length { self.external.take().map(|external| external.source) } else { None }
    }

    /// Puts bytes in place of what is left of the outside body under way: where the kernel can't move it, or its source
    /// has become shorter than promised. Gives the source back. `bytes` must be as many as remain.
    pub fn replace_external(&mut self, bytes: Bytes) -> Option<F> {
        let external = self.external.take()?;
        debug_assert_eq!(bytes.len() as u64, external.length - external.position, "a frame's length is a promise");
        self.large = bytes;
        Some(external.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    type Frames = SmallVec<[Body<&'static [u8]>; 4]>;

    /// Writes everything out, `step` bytes at a time, as a driver would.
    fn drain(outbox: &mut Outbox<&'static [u8]>, step: usize) -> Vec<u8> {
        let mut wire = Vec::new();
        loop {
            match outbox.transmit() {
                Transmit::Idle => return wire,
                Transmit::Bytes { slices, .. } => {
                    let all = slices.concat();
                    let now = step.min(all.len());
                    wire.extend_from_slice(&all[..now]);
                    outbox.advance(now);
                }
                Transmit::External { source, position, remaining } => {
                    let now = (step as u64).min(remaining);
                    wire.extend_from_slice(&source[position as usize..(position + now) as usize]);
                    outbox.advance_external(now);
                }
            }
        }
    }

    #[test]
    fn an_external_body_follows_its_header_and_waits_for_nothing_else() {
        let file: &'static [u8] = b"from a file";
        for step in [1, 3, 1000] {
            let mut outbox = Outbox::default();
            outbox.open();
            let frames: Frames = smallvec![
                Body::Bytes(Bytes::from_static(b"head")),
                Body::External { source: file, length: 11 },
                Body::Bytes(Bytes::from(vec![b'x'; 9000])),
            ];
            outbox.push_message(frames, 0);
            assert_eq!((outbox.queued().messages, outbox.messages_unwritten()), (1, 1));
            assert_eq!(outbox.queued().external_bytes, 11);
            let wire = drain(&mut outbox, step);
            assert_eq!(outbox.messages_unwritten(), 0);
            let mut expected = b"\x01\x04head\x01\x0bfrom a file\x02\x00\x00\x00\x00\x00\x00\x23\x28".to_vec();
            expected.extend_from_slice(&[b'x'; 9000]);
            assert_eq!(wire, expected);
            assert!(outbox.is_idle());
            assert_eq!(outbox.queued(), Queued::default());
        }
    }

    #[test]
    fn a_command_goes_between_the_frames_of_a_message() {
        let mut outbox: Outbox<&'static [u8]> = Outbox::default();
        outbox.open();
        let frames: Frames =
            smallvec![Body::External { source: &b"ab"[..], length: 2 }, Body::Bytes(Bytes::from_static(b"c")),];
        outbox.push_message(frames, 0);
        let Transmit::Bytes { slices, more_follows: true } = outbox.transmit() else { panic!("a header was due") };
        let header = slices[0].len();
        outbox.advance(header);
        outbox.push_command(Bytes::from_static(b"\x04\x05\x04PONG"));
        outbox.advance_external(2);
        assert_eq!(drain(&mut outbox, 100), b"\x04\x05\x04PONG\x00\x01c");
    }

    #[test]
    fn a_message_is_unwritten_until_its_last_byte_is_not() {
        let mut outbox: Outbox<&'static [u8]> = Outbox::default();
        outbox.open();
        let bytes = |length: usize| Body::Bytes(Bytes::from(vec![b'x'; length]));
        for frames in [vec![bytes(1)], vec![bytes(2), bytes(9000)], vec![bytes(3), bytes(4)]] {
            outbox.push_message(frames.into_iter().collect::<Frames>(), 0);
        }
        let mut seen = vec![outbox.messages_unwritten()];
        while let Transmit::Bytes { .. } = outbox.transmit() {
            outbox.advance(1);
            seen.push(outbox.messages_unwritten());
        }
        // The first two are written together.
        seen.dedup();
        assert_eq!(seen, [3, 1, 0]);
        outbox.push_command(Bytes::from_static(b"\x04\x05\x04PONG"));
        outbox.transmit();
        assert_eq!(outbox.messages_unwritten(), 0, "a command is no message");
    }

    #[test]
    fn only_what_has_not_begun_is_taken_back() {
        let mut outbox: Outbox<&'static [u8]> = Outbox::default();
        outbox.open();
        for tag in [7, 7, 8, 7] {
            let frames: Frames =
                smallvec![Body::External { source: &b"ab"[..], length: 2 }, Body::Bytes(Bytes::from_static(b"c")),];
            outbox.push_message(frames, tag);
        }
        let Transmit::Bytes { slices, .. } = outbox.transmit() else { panic!("a header was due") };
        let header = slices[0].len();
        outbox.advance(header);
        assert_eq!(outbox.remove_queued(7), 2);
        outbox.advance_external(2);
        assert_eq!(drain(&mut outbox, 100), b"\x00\x01c\x01\x02ab\x00\x01c");
        assert_eq!(outbox.queued(), Queued::default());
    }
}
