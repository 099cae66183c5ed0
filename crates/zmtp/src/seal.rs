//! Sealed frames: encrypted and authenticated by a mechanism once its handshake is over.

use crate::error::Error;
use crate::frame::FrameFlags;
use bytes::BytesMut;
use std::fmt::Debug;

/// Both directions of a mechanism that seals frames. Each sealed frame is one plain frame on the wire, without flags: the frame's own
/// flags are sealed with its body.
#[derive(Debug)]
pub struct FrameSeal {
    /// Bytes by which a sealed body is longer than the plain one.
    pub overhead: usize,
    /// For frames to send.
    pub sealer: Box<dyn Sealer>,
    /// For frames received.
    pub opener: Box<dyn Opener>,
}

/// Seals frames in the order in which they leave.
pub trait Sealer: Debug + Send {
    /// Appends the sealed frame: the overhead and as many bytes as the body has.
    fn seal(&mut self, flags: FrameFlags, body: &[u8], sealed: &mut Vec<u8>);
}

/// Opens frames in the order in which they arrive.
pub trait Opener: Debug + Send {
    /// The flags and the body of a sealed frame, opened in place.
    ///
    /// # Errors
    /// [`Error::SealBroken`] for a frame that was changed, repeated or sealed with another key.
    fn open(&mut self, sealed: BytesMut) -> Result<(FrameFlags, BytesMut), Error>;
}
