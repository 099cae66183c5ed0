//! Bodies on their way from what was read to where they stay.

use super::{Body, COPY_AGAIN_BYTES_MAX, INLINE_BYTES_MAX, own_bytes};

/// A body on its way to where it stays.
#[derive(Debug)]
pub enum Arriving<'a> {
    /// Octets of something larger, to be copied.
    Octets(&'a [u8]),
    /// It is a body already.
    Body(Body),
}

impl Arriving<'_> {
    /// A body of its own.
    #[inline]
    pub fn into_body(self) -> Body {
        match self {
            Arriving::Octets(octets) => Body::copied(octets),
            Arriving::Body(body) => body,
        }
    }

    /// Becomes the new value of a body.
    #[inline]
    pub fn replace(self, body: &mut Body) {
        match self {
            Arriving::Octets(octets) => body.set(octets),
            Arriving::Body(new) => *body = new,
        }
    }

    /// Octets of memory that the body will hold beside itself.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        match self {
            Arriving::Octets(octets) if octets.len() <= INLINE_BYTES_MAX => 0,
            Arriving::Octets(octets) if octets.len() <= COPY_AGAIN_BYTES_MAX => own_bytes(octets.len()),
            Arriving::Octets(octets) => octets.len(),
            Arriving::Body(body) => body.memory_bytes(),
        }
    }
}

impl From<Body> for Arriving<'_> {
    fn from(body: Body) -> Self {
        Arriving::Body(body)
    }
}
