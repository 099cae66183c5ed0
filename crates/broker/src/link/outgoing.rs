//! From records and bodies to messages of the hub.

use crate::body::{Body, LargeBody};
use crate::spool::SpooledBody;
use crate::wire;
use bytes::Bytes;
use std::any::Any;
use std::sync::Arc;
use towpath_sockets::{FileRange, Frame, Message};

/// Appends the frames of a body; what is on disk is one frame that the kernel sends.
pub(crate) fn append_body(message: &mut Message, body: &Body) {
    if let Some(frames) = body.to_frames() {
        message.frames.extend(frames.into_iter().map(Frame::Bytes));
    } else if let Some(spooled) = as_spooled(body) {
        let range = FileRange::new(Arc::clone(spooled.file()), 0, spooled.length());
        message.frames.push(range.close_if_short().into());
    } else {
        // `can_be_sent` is asked before a body is taken.
        tracing::error!(?body, "a body of this kind can't be sent");
        message.frames.push(Frame::Bytes(Bytes::new()));
    }
}

/// Whether [`append_body`] knows what to do with it.
pub(crate) fn can_be_sent(body: &Body) -> bool {
    body.as_large().is_none() || as_spooled(body).is_some()
}

/// The file of a body that is in one.
pub(crate) fn as_spooled(body: &Body) -> Option<&SpooledBody> {
    let large: &dyn Any = &**body.as_large()?;
    large.downcast_ref()
}

/// A message of numbered requests.
pub(crate) fn numbered(header: &'static [u8], message: wire::Message) -> Message {
    let mut out = Message::new().with(header).with(message.block);
    if let Some(body) = &message.attached {
        append_body(&mut out, body);
    }
    out
}
