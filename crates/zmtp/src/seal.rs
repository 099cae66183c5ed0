//! Sealed frames: encrypted and authenticated by a mechanism once its handshake is over.

use crate::error::Error;
use crate::frame::FrameFlags;
use bytes::BytesMut;
use std::fmt::Debug;
use std::sync::Arc;

/// Both directions of a mechanism that seals frames. Each sealed frame is one plain frame on the wire, without flags: the frame's own
/// flags are sealed with its body.
#[derive(Debug)]
pub struct FrameSeal {
    /// Bytes by which a sealed body is longer than the plain one, all in front of it.
    pub overhead: usize,
    /// Number of the first frame to send.
    pub first_number: u64,
    /// For frames to send.
    pub sealer: Arc<dyn Sealer>,
    /// For frames received.
    pub opener: Box<dyn Opener>,
}

/// Number of a frame to send. Each is given out once, and sealing uses it up: where a nonce is made of it, using it twice would give
/// the key away.
#[derive(Debug)]
pub struct FrameNumber(u64);

impl FrameNumber {
    pub(crate) fn new(number: u64) -> FrameNumber {
        FrameNumber(number)
    }

    /// Its value.
    pub fn value(&self) -> u64 {
        self.0
    }
}

/// Seals frames: a function of key, number, flags and body, so that it can run anywhere.
pub trait Sealer: Debug + Send + Sync {
    /// Seals a frame in place. `frame` begins with the bytes of the overhead, which are overwritten; the body follows.
    fn seal(&self, number: FrameNumber, flags: FrameFlags, frame: &mut [u8]);
}

/// Opens frames in the order in which they arrive.
pub trait Opener: Debug + Send {
    /// The flags and the body of a sealed frame, opened in place.
    ///
    /// # Errors
    /// [`Error::SealBroken`] for a frame that was changed, repeated or sealed with another key.
    fn open(&mut self, sealed: BytesMut) -> Result<(FrameFlags, BytesMut), Error>;
}
