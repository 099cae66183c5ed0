//! Received bodies on their way from the read buffer to where they are stored.

use super::{Body, COPY_AGAIN_BYTES_MAX, INLINE_BYTES_MAX, RequestChecksum, own_bytes};

/// A received body that is copied at most once.
#[derive(Debug)]
pub enum Arriving<'a> {
    /// Bytes of a larger buffer, to be copied.
    Bytes(&'a [u8]),
    /// Already a body.
    Body(Body),
}

impl Arriving<'_> {
    /// Converts into a body.
    #[inline]
    pub fn into_body(self) -> Body {
        match self {
            Arriving::Bytes(bytes) => Body::copied(bytes),
            Arriving::Body(body) => body,
        }
    }

    /// Stores this in an existing body, reusing its memory where possible.
    #[inline]
    pub fn replace(self, body: &mut Body) {
        match self {
            Arriving::Bytes(bytes) => body.set(bytes),
            Arriving::Body(new) => *body = new,
        }
    }

    /// The checksum of a request with this body.
    #[inline]
    pub fn request_checksum(&self, service: &[u8]) -> RequestChecksum {
        match self {
            Arriving::Bytes(bytes) => RequestChecksum::of_frames(service, [*bytes].into_iter()),
            Arriving::Body(body) => match body.frames() {
                Some(frames) => RequestChecksum::of_frames(service, frames),
                None => RequestChecksum::of_length(service, body.length()),
            },
        }
    }

    /// Bytes of memory that the stored body will need outside the value itself.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        match self {
            Arriving::Bytes(bytes) if bytes.len() <= INLINE_BYTES_MAX => 0,
            Arriving::Bytes(bytes) if bytes.len() <= COPY_AGAIN_BYTES_MAX => own_bytes(bytes.len()),
            Arriving::Bytes(bytes) => bytes.len(),
            Arriving::Body(body) => body.memory_bytes(),
        }
    }
}

impl From<Body> for Arriving<'_> {
    fn from(body: Body) -> Self {
        Arriving::Body(body)
    }
}
