//! Decodes bytes to frames to messages, within limits. Large bodies are delivered as streams.

use crate::error::Error;
use crate::frame::{FrameFlags, Header};
use crate::limits::{COMMAND_BYTES_MAX, FRAME_BYTES_MAX, FRAME_OVERHEAD_BYTES, HANDSHAKE_COMMAND_BYTES_MAX};
use crate::limits::{DEDICATED_BUFFER_BYTES, DEDICATED_BUFFER_FIRST_BYTES, DEDICATED_BUFFER_PART};
use crate::limits::{OPENED_PIECE_BYTES, SEALED_FRAME_BYTES_MAX};
use crate::seal::{OpenJob, Opened, Opener};
use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;

/// The frames of a received message.
pub type Frames = SmallVec<[Bytes; 4]>;

/// Limits on what one peer may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InboxLimits {
    /// Maximum bytes of a message that is delivered whole, all frames together. Where frames are streamed, of the frames between two of
    /// them: what came before is delivered already.
    pub message_bytes_max: u64,
    /// Maximum frames of a message.
    pub frames_max: usize,
    /// Frames of more bytes than this are streamed instead of being delivered whole; `None`: none are.
    pub stream_over_bytes: Option<u64>,
    /// Maximum bytes of a streamed frame.
    pub streamed_frame_bytes_max: u64,
}

/// A decoded item.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Command(Bytes),
    Message { frames: Frames, continued: bool },
    BodyStart { head: Frames, length: u64, more: bool },
    BodyData(Bytes),
    BodyEnd { more: bool },
}

#[derive(Debug)]
struct Streaming {
    remaining: u64,
    more: bool,
}

#[derive(Debug)]
struct Opening {
    /// Bytes by which a sealed frame is longer than its body.
    overhead: usize,
    /// Sealed frames of more bytes take long to open.
    here_bytes_max: usize,
    state: OpenState,
}

#[derive(Debug)]
enum OpenState {
    Here(Box<dyn Opener>),
    /// A frame is to be opened elsewhere.
    Due(OpenJob),
    /// Being opened; its bytes.
    Away(usize),
    Done(Opened),
    /// Could not be opened, which has been reported.
    Failed,
}

/// The decoder of one connection, once the greeting is over.
#[derive(Debug)]
pub(crate) struct Inbox {
    limits: InboxLimits,
    frames: Frames,
    frame_count: usize,
    message_bytes: u64,
    continued: bool,
    streaming: Option<Streaming>,
    wanted: usize,
    /// The current frame is being read into a dedicated buffer.
    is_in_dedicated_buffer: bool,
    /// The input is the rest of such a buffer.
    is_behind_dedicated_buffer: bool,
    /// Number of `frames` that keep no more memory alive than their own.
    detached: usize,
    reserved_bits_seen: u64,
    /// Opens all frames.
    opening: Option<Opening>,
    /// Sealed frames that take long to open are opened elsewhere.
    opens_elsewhere: bool,
    /// The rest of an opened body that is delivered as a stream.
    opened: Bytes,
    has_opened_frame: bool,
}

impl Inbox {
    pub(crate) fn new(limits: InboxLimits) -> Inbox {
        Inbox {
            limits,
            frames: Frames::new(),
            frame_count: 0,
            message_bytes: 0,
            continued: false,
            streaming: None,
            wanted: 0,
            is_in_dedicated_buffer: false,
            is_behind_dedicated_buffer: false,
            detached: 0,
            reserved_bits_seen: 0,
            opening: None,
            opens_elsewhere: false,
            opened: Bytes::new(),
            has_opened_frame: false,
        }
    }

    /// Opens every frame from now on.
    pub(crate) fn open_with(&mut self, overhead: usize, opener: Box<dyn Opener>, here_bytes_max: usize) {
        self.opening = Some(Opening { overhead, here_bytes_max, state: OpenState::Here(opener) });
    }

    /// Leaves frames that take long to open to [`Inbox::open_job`].
    pub(crate) fn open_large_elsewhere(&mut self) {
        self.opens_elsewhere = true;
    }

    /// The frame that is to be opened elsewhere.
    pub(crate) fn open_job(&mut self) -> Option<OpenJob> {
        let state = self.opening.as_mut().map(|opening| &mut opening.state)?;
        match std::mem::replace(state, OpenState::Failed) {
            OpenState::Due(job) => {
                *state = OpenState::Away(job.bytes());
                Some(job)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    /// Takes the frame of [`Inbox::open_job`] back.
    pub(crate) fn opened(&mut self, opened: Opened) {
        if let Some(Opening { state: state @ OpenState::Away(_), .. }) = &mut self.opening {
            *state = OpenState::Done(opened);
        }
    }

    /// Whether the next frame is being opened elsewhere, or is to be.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.as_ref().is_some_and(|opening| matches!(opening.state, OpenState::Due(_) | OpenState::Away(_)))
    }

    /// Whether a frame that was opened elsewhere is there.
    pub(crate) fn has_opened(&self) -> bool {
        self.opening.as_ref().is_some_and(|opening| matches!(opening.state, OpenState::Done(_)))
    }

    /// Whether a frame was opened since the last call: one that only the peer can have sealed.
    pub(crate) fn take_has_opened_frame(&mut self) -> bool {
        std::mem::take(&mut self.has_opened_frame)
    }

    /// Decodes a command from the front of `input` during the handshake; `None`: more bytes are needed.
    ///
    /// A frame of a message is refused by its header: a peer that was not admitted yet must not make us hold its messages.
    pub(crate) fn next_handshake_command(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, Error> {
        match Header::decode(input) {
            None => Ok(None),
            Some((header, _)) if !header.command => {
                Err(Error::UnexpectedInHandshake { found: "a message".to_owned(), wanted: "a command" })
            }
            Some((header, header_bytes)) => {
                let command = self.whole(input, header, header_bytes, HANDSHAKE_COMMAND_BYTES_MAX)?;
                // Its properties are kept as long as the connection.
                Ok(command.map(|command| Bytes::copy_from_slice(&command)))
            }
        }
    }

    /// Decodes the next item from the front of `input`; `None`: more bytes are needed.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> Result<Option<Item>, Error> {
        let item = self.decode(input)?;
        if item.is_none() {
            self.detach_frames(input);
        }
        Ok(item)
    }

    /// Copies incomplete messages out of the buffer that they were read with, whose memory isn't accounted for.
    fn detach_frames(&mut self, input: &mut BytesMut) {
        for frame in self.frames.iter_mut().skip(self.detached).filter(|frame| frame.len() < DEDICATED_BUFFER_BYTES) {
            *frame = Bytes::copy_from_slice(frame);
        }
        self.detached = self.frames.len();
        if std::mem::take(&mut self.is_behind_dedicated_buffer) {
            *input = BytesMut::from(&input[..]);
        }
    }

    fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Item>, Error> {
        if let Some(streaming) = &mut self.streaming {
            if streaming.remaining == 0 {
                let more = streaming.more;
                self.streaming = None;
                if !more {
                    self.finish_message();
                }
                return Ok(Some(Item::BodyEnd { more }));
            }
            let data = if self.opening.is_some() {
                self.opened.split_to(self.opened.len().min(OPENED_PIECE_BYTES))
            } else {
                let now = streaming.remaining.min(input.len() as u64);
                input.split_to(now as usize).freeze()
            };
            if data.is_empty() {
                return Ok(None);
            }
            streaming.remaining -= data.len() as u64;
            return Ok(Some(Item::BodyData(data)));
        }
        loop {
            let (header, header_bytes, opened) = if self.opening.is_some() {
                let Some((FrameFlags { more, command }, body)) = self.open_next(input)? else { return Ok(None) };
                self.has_opened_frame = true;
                (Header { more, command, length: body.len() as u64, reserved_bits: false }, 0, Some(body))
            } else {
                let Some((header, header_bytes)) = Header::decode(input) else { return Ok(None) };
                (header, header_bytes, None)
            };
            if header.command {
                let body = self.body(input, header, header_bytes, COMMAND_BYTES_MAX, opened)?;
                return Ok(body.map(Item::Command));
            }
            if self.frame_count >= self.limits.frames_max {
                return Err(Error::TooManyFrames { limit: self.limits.frames_max });
            }
            if self.limits.stream_over_bytes.is_some_and(|over| header.length > over) {
                self.start_streaming(header)?;
                match opened {
                    Some(body) => self.opened = body,
                    None => _ = input.split_to(header_bytes),
                }
                let head = std::mem::take(&mut self.frames);
                return Ok(Some(Item::BodyStart { head, length: header.length, more: header.more }));
            }
            let limit = self.limits.message_bytes_max;
            if header.length <= limit && header.length > limit.saturating_sub(self.message_bytes) {
                return Err(Error::MessageTooLarge { limit });
            }
            let Some(body) = self.body(input, header, header_bytes, limit, opened)? else { return Ok(None) };
            self.message_bytes += header.length;
            self.frame_count += 1;
            self.frames.push(body);
            if !header.more {
                let frames = std::mem::take(&mut self.frames);
                let continued = self.continued;
                self.finish_message();
                return Ok(Some(Item::Message { frames, continued }));
            }
        }
    }

    fn start_streaming(&mut self, header: Header) -> Result<(), Error> {
        let limit = self.limits.streamed_frame_bytes_max.min(FRAME_BYTES_MAX);
        if header.length > limit {
            return Err(Error::FrameTooLarge { announced: header.length, limit });
        }
        self.reserved_bits_seen += u64::from(header.reserved_bits);
        self.frame_count += 1;
        self.continued = true;
        // The frames before are delivered now; the limit on whole messages starts again.
        self.message_bytes = 0;
        self.detached = 0;
        self.streaming = Some(Streaming { remaining: header.length, more: header.more });
        Ok(())
    }

    /// The next frame, opened here or elsewhere. Nothing of it is delivered before it was found to be authentic.
    fn open_next(&mut self, input: &mut BytesMut) -> Result<Option<(FrameFlags, Bytes)>, Error> {
        let Some(opening) = &mut self.opening else { return Ok(None) };
        let mut opener = match std::mem::replace(&mut opening.state, OpenState::Failed) {
            OpenState::Here(opener) => opener,
            OpenState::Done(Opened { opener, outcome }) => {
                let (flags, body) = outcome?;
                opening.state = OpenState::Here(opener);
                return Ok(Some((flags, self.detach(body))));
            }
            other => {
                opening.state = other;
                return Ok(None);
            }
        };
        let overhead = opening.overhead;
        let here_bytes_max = if self.opens_elsewhere { opening.here_bytes_max } else { usize::MAX };
        let sealed = self.take_sealed(input, overhead);
        let (state, outcome) = match sealed {
            Ok(Some(sealed)) if sealed.len() > here_bytes_max => {
                (OpenState::Due(OpenJob::new(opener, sealed)), Ok(None))
            }
            Ok(Some(sealed)) => match opener.open(sealed) {
                Ok((flags, body)) => (OpenState::Here(opener), Ok(Some((flags, self.detach(body))))),
                Err(error) => (OpenState::Failed, Err(error)),
            },
            Ok(None) => (OpenState::Here(opener), Ok(None)),
            Err(error) => (OpenState::Failed, Err(error)),
        };
        if let Some(opening) = &mut self.opening {
            opening.state = state;
        }
        outcome
    }

    /// Takes a sealed frame off the front of `input`.
    fn take_sealed(&mut self, input: &mut BytesMut, overhead: usize) -> Result<Option<BytesMut>, Error> {
        let Some((header, header_bytes)) = Header::decode(input) else { return Ok(None) };
        // Flags outside of the seal could be anybody's.
        if header.more || header.command || header.reserved_bits {
            return Err(Error::NotSealed);
        }
        let streamed = self.limits.stream_over_bytes.map_or(0, |_| self.limits.streamed_frame_bytes_max);
        let plain = self.limits.message_bytes_max.max(streamed.min(SEALED_FRAME_BYTES_MAX)).max(COMMAND_BYTES_MAX);
        self.whole(input, header, header_bytes, plain.saturating_add(overhead as u64))
    }

    /// A frame's body, within a limit: opened already, or from the front of `input`.
    #[inline]
    fn body(
        &mut self,
        input: &mut BytesMut,
        header: Header,
        header_bytes: usize,
        limit: u64,
        opened: Option<Bytes>,
    ) -> Result<Option<Bytes>, Error> {
        match opened {
            Some(_) if header.length > limit => Err(Error::FrameTooLarge { announced: header.length, limit }),
            Some(body) => Ok(Some(body)),
            None => Ok(self.whole(input, header, header_bytes, limit)?.map(|body| self.detach(body))),
        }
    }

    fn whole(
        &mut self,
        input: &mut BytesMut,
        header: Header,
        header_bytes: usize,
        limit: u64,
    ) -> Result<Option<BytesMut>, Error> {
        let limit = limit.min(FRAME_BYTES_MAX);
        let too_large = || Error::FrameTooLarge { announced: header.length, limit };
        if header.length > limit {
            return Err(too_large());
        }
        let whole = usize::try_from(header.length).ok().and_then(|body| body.checked_add(header_bytes));
        let whole = whole.ok_or_else(too_large)?;
        if input.len() < whole {
            let at_once = whole.min(DEDICATED_BUFFER_FIRST_BYTES);
            if header.length >= DEDICATED_BUFFER_BYTES as u64
                && !self.is_in_dedicated_buffer
                && input.len() >= at_once / DEDICATED_BUFFER_PART
            {
                let mut own = BytesMut::with_capacity(at_once.max(input.len()));
                own.extend_from_slice(input);
                *input = own;
                self.is_in_dedicated_buffer = true;
                self.is_behind_dedicated_buffer = false;
            }
            self.wanted = whole - input.len();
            return Ok(None);
        }
        self.wanted = 0;
        // A command isn't part of a message.
        self.reserved_bits_seen += u64::from(header.reserved_bits || (header.command && header.more));
        input.advance(header_bytes);
        Ok(Some(if header.length == 0 { BytesMut::new() } else { input.split_to(whole - header_bytes) }))
    }

    /// A body that keeps no more memory alive than is accounted for it.
    #[inline]
    fn detach(&mut self, body: BytesMut) -> Bytes {
        if body.is_empty() {
            // A slice, even an empty one, would keep the buffer alive that it was read into.
            return Bytes::new();
        }
        if body.len() < DEDICATED_BUFFER_BYTES {
            return body.freeze();
        }
        if std::mem::take(&mut self.is_in_dedicated_buffer) {
            self.is_behind_dedicated_buffer = true;
            return body.freeze();
        }
        // Most of it was there at once.
        Bytes::copy_from_slice(&body)
    }

    fn finish_message(&mut self) {
        self.frame_count = 0;
        self.detached = 0;
        self.message_bytes = 0;
        self.continued = false;
    }

    /// Memory of the frames held until their message is complete.
    pub(crate) fn held_bytes(&self) -> usize {
        let opening = match self.opening.as_ref().map(|opening| &opening.state) {
            Some(OpenState::Due(job)) => job.bytes(),
            Some(OpenState::Away(bytes)) => *bytes,
            Some(OpenState::Done(Opened { outcome: Ok((_, body)), .. })) => body.len(),
            _ => 0,
        };
        usize::try_from(self.message_bytes)
            .unwrap_or(usize::MAX)
            .saturating_add(self.frames.len() * FRAME_OVERHEAD_BYTES)
            .saturating_add(opening)
    }

    /// Bytes left of the streamed body: the driver may take them past this decoder.
    pub(crate) fn body_remaining(&self) -> u64 {
        self.streaming.as_ref().filter(|_| self.opening.is_none()).map_or(0, |streaming| streaming.remaining)
    }

    /// Reports bytes of the body that the driver took itself.
    pub(crate) fn body_advance(&mut self, bytes: u64) {
        if let Some(streaming) = &mut self.streaming {
            debug_assert!(bytes <= streaming.remaining, "more taken than there was");
            streaming.remaining = streaming.remaining.saturating_sub(bytes);
        }
    }

    /// Whether an item of a streamed body is due without further bytes.
    pub(crate) fn body_end_is_due(&self) -> bool {
        self.streaming.as_ref().is_some_and(|streaming| streaming.remaining == 0 || !self.opened.is_empty())
    }

    /// Bytes that the current frame lacks, as far as its header is known.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted
    }

    /// The same, if the current frame has a dedicated buffer.
    pub(crate) fn dedicated_space(&self) -> Option<usize> {
        self.is_in_dedicated_buffer.then_some(self.wanted)
    }

    /// Frames with flags that the specification doesn't have.
    pub(crate) fn reserved_bits_seen(&self) -> u64 {
        self.reserved_bits_seen
    }
}
