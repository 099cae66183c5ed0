//! Sealed frames: encrypted and authenticated by a mechanism once its handshake is over.

use crate::error::Error;
use crate::frame::{self, FrameFlags};
use bytes::{Bytes, BytesMut};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Both directions of a mechanism that seals frames. Each sealed frame is one plain frame on the wire, without flags: the frame's own
/// flags are sealed with its body.
#[derive(Debug)]
pub struct FrameSeal {
    /// Its cipher, for logs.
    pub cipher: &'static str,
    /// Bytes by which a sealed body is longer than the plain one, all in front of it.
    pub overhead: usize,
    /// Number of the first frame to send.
    pub first_number: u64,
    /// Largest number of a frame to send. The connection ends a little before it ([`crate::Outbox::is_exhausted`]).
    pub last_number: u64,
    /// Bodies of more bytes take long to seal, and are left to the driver.
    pub sealed_here_bytes_max: usize,
    /// Sealed frames of more bytes take long to open, and are left to the driver if it takes them.
    pub opened_here_bytes_max: usize,
    /// For frames to send.
    pub sealer: Arc<dyn Sealer>,
    /// For frames received.
    pub opener: Box<dyn Opener>,
}

/// Number of a frame to send: one more than that of the frame before, so that the receiver notices if one is missing. Each is given out once, and
/// sealing uses it up: where a nonce is made of it, using it twice would give the key away.
#[derive(Debug)]
pub struct FrameNumber(u64);

impl FrameNumber {
    #[cfg(test)]
    #[cfg(feature = "aes")]
    pub(crate) fn new(number: u64) -> FrameNumber {
        FrameNumber(number)
    }

    /// Its value.
    pub fn value(&self) -> u64 {
        self.0
    }
}

/// The source of frame numbers of one direction. A frame that is sealed elsewhere takes its own when sealing begins, so that others can
/// leave while it waits for memory, a disk or a thread.
#[derive(Debug)]
pub(crate) struct FrameNumbers(AtomicU64);

impl FrameNumbers {
    pub(crate) fn from(first: u64) -> Arc<FrameNumbers> {
        Arc::new(FrameNumbers(AtomicU64::new(first)))
    }

    // No other memory depends on the order of these.
    fn take(&self) -> FrameNumber {
        FrameNumber(self.0.fetch_add(1, Ordering::Relaxed))
    }

    /// A number, if it has not been taken.
    pub(crate) fn take_if(&self, number: u64) -> Option<FrameNumber> {
        let next = self.0.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed);
        next.ok().map(FrameNumber)
    }

    pub(crate) fn next_is(&self, number: u64) -> bool {
        self.0.load(Ordering::Relaxed) == number
    }
}

/// Seals frames: a function of key, number, flags and body, so that it can run anywhere.
pub trait Sealer: Debug + Send + Sync {
    /// Seals a frame in place. `frame` begins with the bytes of the overhead, which are overwritten; the body follows.
    fn seal(&self, number: FrameNumber, flags: FrameFlags, frame: &mut [u8]);
}

/// A frame to be sealed elsewhere, such as on another thread.
#[derive(Debug)]
pub struct SealJob {
    sealer: Arc<dyn Sealer>,
    numbers: Arc<FrameNumbers>,
    flags: FrameFlags,
    header: Vec<u8>,
    overhead: usize,
    body_bytes: usize,
}

impl SealJob {
    pub(crate) fn new(
        sealer: Arc<dyn Sealer>,
        numbers: Arc<FrameNumbers>,
        flags: FrameFlags,
        overhead: usize,
        body_bytes: usize,
    ) -> SealJob {
        let mut header = Vec::with_capacity(frame::HEADER_BYTES_MAX);
        frame::encode_header(&mut header, 0, (overhead + body_bytes) as u64);
        SealJob { sealer, numbers, flags, header, overhead, body_bytes }
    }

    /// Bytes of the whole frame: the buffer that sealing takes has as many.
    pub fn frame_bytes(&self) -> usize {
        self.body_at() + self.body_bytes
    }

    /// Offset of the body in the buffer. The bytes before it are overwritten.
    pub fn body_at(&self) -> usize {
        self.header.len() + self.overhead
    }

    /// Numbers the frame and seals it, in a buffer that has its body. Nothing else leaves before it from now on.
    ///
    /// # Panics
    /// If the buffer doesn't have [`SealJob::frame_bytes`].
    pub fn seal<B: AsRef<[u8]> + AsMut<[u8]> + Send + 'static>(self, mut buffer: B) -> Sealed {
        let frame = buffer.as_mut();
        assert_eq!(frame.len(), self.frame_bytes(), "a buffer as long as the frame");
        let (header, rest) = frame.split_at_mut(self.header.len());
        header.copy_from_slice(&self.header);
        let frame_number = self.numbers.take();
        let number = frame_number.value();
        self.sealer.seal(frame_number, self.flags, rest);
        Sealed { number, wire: Bytes::from_owner(buffer) }
    }
}

/// A frame that may leave: only [`SealJob::seal`] makes one.
#[derive(Debug)]
pub struct Sealed {
    number: u64,
    wire: Bytes,
}

impl Sealed {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn into_wire(self) -> Bytes {
        self.wire
    }
}

/// A received frame to be opened elsewhere, such as on another thread. The connection waits for it meanwhile.
#[derive(Debug)]
pub struct OpenJob {
    opener: Box<dyn Opener>,
    sealed: BytesMut,
}

impl OpenJob {
    pub(crate) fn new(opener: Box<dyn Opener>, sealed: BytesMut) -> OpenJob {
        OpenJob { opener, sealed }
    }

    /// Bytes of the frame.
    pub fn bytes(&self) -> usize {
        self.sealed.len()
    }

    /// Opens the frame, for [`crate::Connection::opened`].
    pub fn open(mut self) -> Opened {
        let outcome = self.opener.open(self.sealed);
        Opened { opener: self.opener, outcome }
    }
}

/// A frame that was opened, or the reason why it can't be.
#[derive(Debug)]
pub struct Opened {
    pub(crate) opener: Box<dyn Opener>,
    pub(crate) outcome: Result<(FrameFlags, BytesMut), Error>,
}

/// Opens frames in the order in which they arrive.
pub trait Opener: Debug + Send {
    /// The flags and the body of a sealed frame, opened in place.
    ///
    /// # Errors
    /// [`Error::SealBroken`] for any frame but the one behind the last, as its sender sealed it.
    fn open(&mut self, sealed: BytesMut) -> Result<(FrameFlags, BytesMut), Error>;
}
