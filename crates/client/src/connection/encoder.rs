//! Encoding records and bodies as messages of a hub.

use towpath_requests::body::Body;
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX};
use towpath_requests::message::append_body;
use towpath_sockets::Message;

/// Why a body can't be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsendableBody {
    /// Not supported by [`append_body`].
    #[error("a body of this kind can't be sent")]
    Kind,
    /// Several frames, which are sent from memory.
    #[error(
        "a body of several frames has up to {BODY_FRAMES_MAX}, and {BODY_BYTES_MAX} bytes; this one {frames}, and {bytes}"
    )]
    TooLarge { frames: usize, bytes: u64 },
}

/// Checks whether a body can be sent.
#[inline]
pub(crate) fn check(body: &Body) -> Result<(), UnsendableBody> {
    if body.single().is_some() { Ok(()) } else { check_others(body) }
}

#[cold]
fn check_others(body: &Body) -> Result<(), UnsendableBody> {
    let Some(frames) = body.frames().map(|frames| frames.len()) else {
        return body.as_large().and_then(|large| large.clone().file_range()).map(|_| ()).ok_or(UnsendableBody::Kind);
    };
    let bytes = body.length();
    let fits = frames <= BODY_FRAMES_MAX && bytes <= BODY_BYTES_MAX as u64;
    if fits { Ok(()) } else { Err(UnsendableBody::TooLarge { frames, bytes }) }
}

/// A message of numbered requests.
pub(crate) fn numbered(header: &'static [u8], message: towpath_requests::numbered::Message) -> Message {
    let mut out = Message::new().with(header).with(message.block);
    if let Some(body) = &message.attached {
        append_body(&mut out, body);
    }
    out
}
