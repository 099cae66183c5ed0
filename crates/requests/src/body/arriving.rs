//! Bodies on their way from what was read to where they stay.

use super::{Body, COPY_AGAIN_BYTES_MAX, INLINE_BYTES_MAX, own_bytes};

/// A body on its way to where it stays.
#[derive(Debug)]
pub enum Arriving<'a> {
    /// Bytes of something larger, to be copied.
    Bytes(&'a [u8]),
    /// It is a body already.
    Body(Body),
}

impl Arriving<'_> {
    /// A body of its own.
    #[inline]
    pub fn into_body(self) -> Body {
        match self {
            Arriving::Bytes(bytes) => Body::copied(bytes),
            Arriving::Body(body) => body,
        }
    }

    /// Becomes the new value of a body.
    #[inline]
    pub fn replace(self, body: &mut Body) {
        match self {
            Arriving::Bytes(bytes) => body.set(bytes),
            Arriving::Body(new) => *body = new,
        }
    }

    /// Bytes of memory that the body will hold beside itself.
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
