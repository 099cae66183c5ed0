//! The frames of a message, and the body that they carry.

use crate::body::Body;
use crate::limits::BODY_BYTES_MAX;
use crate::numbered::WireError;
use bytes::Bytes;
use smallvec::SmallVec;
use towpath_sockets::{Frame, Message};

/// One frame of a message.
#[derive(Debug)]
pub enum Piece {
    /// In memory.
    Bytes(Bytes),
    /// In a file.
    Spooled(Body),
    /// It was there, and couldn't be kept: why.
    Lost(String),
}

impl Piece {
    /// The body that this frame is, or why it is lost.
    pub fn into_body(self) -> Result<Body, String> {
        match self {
            Piece::Bytes(bytes) => Ok(Body::from(bytes)),
            Piece::Spooled(body) => Ok(body),
            Piece::Lost(why) => Err(why),
        }
    }
}

/// A whole message.
pub type Pieces = SmallVec<[Piece; 4]>;

/// Why a body of several frames is lost that is too large.
pub fn too_large() -> String {
    format!("a body of several frames has over {BODY_BYTES_MAX} bytes")
}

/// Whether these frames, of a message with this header, have a body behind them that isn't a list of frames.
pub fn has_whole_body(pieces: &[Piece], header: &[u8], announces_list: impl FnOnce(&[u8]) -> bool) -> bool {
    matches!(pieces, [Piece::Bytes(first), Piece::Bytes(block)] if first == header && !announces_list(block))
}

/// The block of a numbered message with this header, and the body behind it, or why that is lost.
///
/// # Errors
///
/// It is no such message: what is wrong with it.
pub fn block_of(message: Pieces, header: &[u8]) -> Result<(Bytes, Option<Result<Body, String>>), String> {
    let mut pieces = message.into_iter();
    let (Some(Piece::Bytes(first)), Some(Piece::Bytes(block))) = (pieces.next(), pieces.next()) else {
        return Err("a message without a header and a block".to_owned());
    };
    if first != header {
        return Err("a message with another header".to_owned());
    }
    let attached = pieces.next().map(Piece::into_body);
    if pieces.next().is_some() {
        return Err(WireError::Attachment.to_string());
    }
    Ok((block, attached))
}

/// The body that these frames are, or why it is lost. Several frames are in memory, since only a single one can be in a file.
pub fn body_of(mut pieces: Pieces) -> Result<Body, String> {
    if pieces.len() == 1
        && let Some(piece) = pieces.pop()
    {
        return piece.into_body();
    }
    let mut frames = Vec::with_capacity(pieces.len());
    for piece in pieces {
        frames.push(match piece {
            Piece::Bytes(bytes) => bytes,
            // A body that is in a file is one frame.
            Piece::Spooled(_) => return Err(WireError::Attachment.to_string()),
            Piece::Lost(why) => return Err(why),
        });
    }
    let sum: usize = frames.iter().map(Bytes::len).sum();
    if sum > BODY_BYTES_MAX { Err(too_large()) } else { Ok(Body::of_frames(frames)) }
}

/// Appends the frames of a body; what is on disk is one frame that the kernel sends.
pub fn append_body(message: &mut Message, body: &Body) {
    if let Some(frames) = body.to_frames() {
        message.frames.extend(frames.into_iter().map(Frame::Bytes));
    } else if let Some(range) = body.as_large().and_then(|large| large.clone().file_range()) {
        message.frames.push(range.into());
    } else {
        // `check` is asked before a body is taken.
        tracing::error!(?body, "a body of this kind can't be sent");
        message.frames.push(Frame::Bytes(Bytes::new()));
    }
}
