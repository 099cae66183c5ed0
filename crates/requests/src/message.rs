//! The frames of a message, and the body that they carry.

use crate::assembler::{Attached, Received};
use crate::body::Body;
use crate::limits::BODY_BYTES_MAX;
use crate::numbered::WireError;
use bytes::Bytes;
use towpath_sockets::{Frame, Frames, Message};

/// Whether the next frame is the whole body of this message, and not a list of frames.
pub fn has_whole_body(frames: &[Bytes], header: &[u8], announces_list: impl FnOnce(&[u8]) -> bool) -> bool {
    matches!(frames, [first, block] if first == header && !announces_list(block))
}

/// The block of a numbered message with this header, and the attached body or why it is lost.
///
/// # Errors
///
/// Why it is not such a message.
#[allow(clippy::type_complexity, reason = "a body may be lost, or not be there")]
pub fn block_of(message: Received<String>, header: &[u8]) -> Result<(Bytes, Option<Result<Body, String>>), String> {
    let Received { frames, attached } = message;
    let mut frames = frames.into_iter();
    let (Some(first), Some(block)) = (frames.next(), frames.next()) else {
        return Err("a message without a header and a block".to_owned());
    };
    if first != header {
        return Err("a message with another header".to_owned());
    }
    let attached = match (frames.next(), attached) {
        (None, Attached::Nothing) => None,
        (None, Attached::Body(body)) => Some(Ok(body)),
        (Some(frame), Attached::Nothing) => Some(Ok(Body::from(frame))),
        (_, Attached::Lost(why)) => Some(Err(why)),
        (Some(_), Attached::Body(_)) => return Err(WireError::Attachment.to_string()),
    };
    if frames.next().is_some() {
        return Err(WireError::Attachment.to_string());
    }
    Ok((block, attached))
}

/// The body of a stock message, of which only the body's frames are left, or why it is lost.
pub fn body_of(frames: Frames, attached: Attached<String>) -> Result<Body, String> {
    match attached {
        Attached::Body(body) => Ok(body),
        Attached::Lost(why) => Err(why),
        Attached::Nothing => {
            let body = Body::owned(frames);
            if body.length() > BODY_BYTES_MAX as u64 { Err(too_large()) } else { Ok(body) }
        }
    }
}

/// Why a body of several frames is lost.
pub fn too_large() -> String {
    format!("a body of several frames has over {BODY_BYTES_MAX} bytes")
}

/// Appends the frames of a body. A file is one frame that the kernel sends.
pub fn append_body(message: &mut Message, body: &Body) {
    if let Some(frames) = body.to_frames() {
        message.frames.extend(frames.into_iter().map(Frame::Bytes));
    } else if let Some(range) = body.as_large().and_then(|large| large.clone().file_range()) {
        message.frames.push(range.into());
    } else {
        // Callers check a body before they accept it.
        tracing::error!(?body, "a body of this kind can't be sent");
        message.frames.push(Frame::Bytes(Bytes::new()));
    }
}
