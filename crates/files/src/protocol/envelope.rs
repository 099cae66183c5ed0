//! Frames before a message: the empty frame of a REQ socket, with or without its request id.

/// Bytes of the request id that `ZMQ_REQ_CORRELATE` puts before the empty frame.
const REQUEST_ID_BYTES: usize = 4;

/// How a message from a client begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A single empty frame, as `ZMQ_PROBE_ROUTER` sends: to be ignored.
    Probe,
    /// So many frames of envelope (0, 1 or 2), to be repeated before each reply; the message follows them.
    Envelope(usize),
}

/// Tells the envelope of a message from the message itself.
pub fn opening<F: AsRef<[u8]>>(frames: &[F]) -> Opening {
    let length_of = |index: usize| frames.get(index).map(|frame| frame.as_ref().len());
    match (length_of(0), length_of(1)) {
        (Some(0), None) => Opening::Probe,
        (Some(0), _) => Opening::Envelope(1),
        (Some(REQUEST_ID_BYTES), Some(0)) => Opening::Envelope(2),
        _ => Opening::Envelope(0),
    }
}
