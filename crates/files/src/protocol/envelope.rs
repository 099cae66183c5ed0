//! Frames before a message: the empty frame of a REQ socket with or without its request id, and what proxies put before it.

use super::Dialect;
use crate::limits::{ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX};

/// Bytes of the request id that `ZMQ_REQ_CORRELATE` puts before the empty frame.
const REQUEST_ID_BYTES: usize = 4;

/// Beginning of a message from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Nothing but an envelope, as `ZMQ_PROBE_ROUTER` sends: to be ignored.
    Probe,
    /// So many frames of envelope, to be repeated before each reply; the message follows them.
    Envelope(usize),
}

/// Splits the envelope of a message from the message itself: it ends with the first empty frame or, if there is none before it, where the
/// first frame of a dialect is.
pub fn opening<F: AsRef<[u8]>>(frames: &[F]) -> Opening {
    let begins_at = |index: usize| frames.get(index).is_some_and(|frame| Dialect::of(frame.as_ref()).is_some());
    let empty = frames.iter().position(|frame| frame.as_ref().is_empty());
    let begin = (0..frames.len()).find(|index| begins_at(*index));
    let envelope = match (empty, begin) {
        // An empty operand; an envelope of these frames would be followed by a message.
        (Some(empty), Some(begin)) if begin < empty && !begins_at(empty + 1) => begin,
        (Some(empty), _) => empty + 1,
        (None, begin) => begin.unwrap_or(0),
    };
    if envelope > 0 && envelope == frames.len() { Opening::Probe } else { Opening::Envelope(envelope) }
}

/// Whether an envelope is over a limit.
pub fn is_too_large<F: AsRef<[u8]>>(envelope: &[F]) -> bool {
    let bytes: usize = envelope.iter().map(|frame| frame.as_ref().len()).sum();
    envelope.len() > ENVELOPE_FRAMES_MAX || bytes > ENVELOPE_BYTES_MAX
}

/// Frames of an envelope that are the same for all messages of a client: none without a proxy.
pub fn client_of<F: AsRef<[u8]>>(envelope: &[F]) -> &[F] {
    match envelope {
        [route @ .., id, end] if end.as_ref().is_empty() && id.as_ref().len() == REQUEST_ID_BYTES => route,
        [route @ .., end] if end.as_ref().is_empty() => route,
        route => route,
    }
}
