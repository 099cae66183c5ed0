//! Received bodies on their way from the read buffer to where they are stored.

use super::{Body, COPY_AGAIN_BYTES_MAX, INLINE_BYTES_MAX, RequestChecksum, own_bytes};

/// A received body that is copied at most once.
#[derive(Debug)]
pub enum IncomingBody<'a> {
    /// Bytes of a larger buffer, to be copied.
    Bytes(&'a [u8]),
    /// Already a body.
    Body(Body),
}

impl IncomingBody<'_> {
    /// Converts into a body.
    #[inline]
    pub fn into_body(self) -> Body {
        match self {
            IncomingBody::Bytes(bytes) => Body::copied(bytes),
            IncomingBody::Body(body) => body,
        }
    }

    /// Stores this in an existing body, reusing its memory where possible.
    #[inline]
    pub fn replace(self, body: &mut Body) {
        match self {
            IncomingBody::Bytes(bytes) => body.set(bytes),
            IncomingBody::Body(new) => *body = new,
        }
    }

    /// The checksum of a request with this body.
    #[inline]
    pub fn request_checksum(&self, service: &[u8]) -> RequestChecksum {
        match self {
            IncomingBody::Bytes(bytes) => RequestChecksum::of_frames(service, [*bytes].into_iter()),
            IncomingBody::Body(body) => match body.frames() {
                Some(frames) => RequestChecksum::of_frames(service, frames),
                None => RequestChecksum::of_length(service, body.length()),
            },
        }
    }

    /// Bytes of memory that the stored body will need outside the value itself.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        match self {
            IncomingBody::Bytes(bytes) if bytes.len() <= INLINE_BYTES_MAX => 0,
            IncomingBody::Bytes(bytes) if bytes.len() <= COPY_AGAIN_BYTES_MAX => own_bytes(bytes.len()),
            IncomingBody::Bytes(bytes) => bytes.len(),
            IncomingBody::Body(body) => body.memory_bytes(),
        }
    }
}

impl From<Body> for IncomingBody<'_> {
    fn from(body: Body) -> Self {
        IncomingBody::Body(body)
    }
}
