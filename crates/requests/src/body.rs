//! The body of a request or reply.

mod checksum;
mod incoming;
mod reader;

pub use checksum::RequestChecksum;
pub use incoming::IncomingBody;
pub use reader::BodyReader;

use bytes::Bytes;
use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use towpath_sockets::FileRange;

/// Longest body that is stored inline, without an allocation.
pub const INLINE_BYTES_MAX: usize = 38;

/// Shortest frame that is shared instead of copied. A slice keeps the whole read buffer alive; frames of this size have a
/// dedicated one. Smaller ones are copied, so that at most twice the counted memory is held.
pub const SHARE_FROM_BYTES: usize = towpath_sockets::DEDICATED_BUFFER_BYTES;

/// Detaches a frame from its read buffer, by a copy where it is small.
pub fn kept(frame: Bytes) -> Bytes {
    if frame.len() < SHARE_FROM_BYTES { Bytes::copy_from_slice(&frame) } else { frame }
}

/// Longest body that clones copy: sharing costs as much.
pub const COPY_AGAIN_BYTES_MAX: usize = 1024;

/// Granularity in which memory of unshared bodies is counted. Bodies of the same step can reuse each other's memory.
const OWN_STEP_BYTES: usize = 64;

/// A body outside memory, such as a file.
pub trait LargeBody: Any + Send + Sync + fmt::Debug {
    /// Length in bytes.
    fn length(&self) -> u64;

    /// Reads bytes from an offset on and returns their number, which is 0 at the end only. Needed for [`Body::reader`].
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let _ = (out, offset);
        Err(io::Error::new(io::ErrorKind::Unsupported, "a body of this kind can't be read"))
    }

    /// The whole body as a file range that the kernel sends. `None`: such a body can't be sent.
    fn file_range(self: Arc<Self>) -> Option<FileRange> {
        None
    }
}

/// The body of a request or reply: one frame or several in memory, or something large elsewhere. Cheap to clone.
///
/// Received bodies are in memory and have [`Body::frames`] if they are small. A frame over the `spool_over_bytes` of a
/// connection's options (1 MiB by default) is in a file. [`Body::reader`] and [`Body::to_vec_limited`] read both.
#[derive(Clone)]
pub struct Body(Kind);

#[derive(Clone)]
enum Kind {
    Inline {
        length: u8,
        bytes: [u8; INLINE_BYTES_MAX],
    },
    /// Copied from the read buffer, and copied again by a clone, which costs no more than sharing. The allocation may be
    /// longer than the body.
    Own {
        length: usize,
        bytes: Box<[u8]>,
    },
    /// Too large to be copied by each clone. Not [`Bytes`], which allocate twice to be shared.
    Copied(Arc<[u8]>),
    One(Bytes),
    Many(Arc<[Bytes]>),
    Large(Arc<dyn LargeBody>),
    Joined(Arc<[Body]>),
}

impl Body {
    /// A body of one frame, copied from `bytes` so that a small body doesn't keep a large buffer alive.
    #[inline]
    pub fn copied(bytes: &[u8]) -> Body {
        match u8::try_from(bytes.len()) {
            Ok(length) if bytes.len() <= INLINE_BYTES_MAX => {
                let mut inline = [0; INLINE_BYTES_MAX];
                inline[..bytes.len()].copy_from_slice(bytes);
                Body(Kind::Inline { length, bytes: inline })
            }
            _ if bytes.len() <= COPY_AGAIN_BYTES_MAX => Body(Kind::Own { length: bytes.len(), bytes: bytes.into() }),
            _ => Body(Kind::Copied(bytes.into())),
        }
    }

    /// A body of several frames. No frames at all are one empty frame.
    pub fn of_frames(frames: impl IntoIterator<Item = Bytes>) -> Body {
        let mut frames = frames.into_iter();
        match (frames.next(), frames.next()) {
            (None, _) => Body::default(),
            (Some(only), None) => Body::from(only),
            (Some(first), Some(second)) => Body(Kind::Many([first, second].into_iter().chain(frames).collect())),
        }
    }

    /// A body of received frames. Small ones are copied, so that they don't keep their read buffer alive.
    pub fn owned(frames: impl IntoIterator<Item = Bytes, IntoIter: ExactSizeIterator>) -> Body {
        let mut frames = frames.into_iter();
        match frames.len() {
            1 => frames.next().map_or_else(Body::default, |frame| match frame.len() {
                0..SHARE_FROM_BYTES => Body::copied(&frame),
                _ => Body::from(frame),
            }),
            _ => Body::of_frames(frames.map(kept)),
        }
    }

    /// Overwrites the body in place with a copy of `bytes`. Moving a body that was just written would cost more than the
    /// copy: the processor can't forward stores of other sizes from its store buffer.
    #[inline]
    fn set(&mut self, bytes: &[u8]) {
        match (&mut self.0, u8::try_from(bytes.len())) {
            (Kind::Inline { length, bytes: inline }, Ok(new)) if bytes.len() <= INLINE_BYTES_MAX => {
                inline[..bytes.len()].copy_from_slice(bytes);
                *length = new;
                return;
            }
            // Nearly the same length: reusing the memory is much cheaper than freeing and allocating.
            (Kind::Own { length, bytes: own }, _)
                if (INLINE_BYTES_MAX + 1..=own.len()).contains(&bytes.len())
                    && own_bytes(bytes.len()) == own_bytes(own.len()) =>
            {
                own[..bytes.len()].copy_from_slice(bytes);
                *length = bytes.len();
                return;
            }
            _ => {}
        }
        *self = Body::copied(bytes);
    }

    /// Releases all memory outside the value itself. The content is undefined afterwards.
    #[inline]
    pub fn release(&mut self) {
        if !matches!(self.0, Kind::Inline { .. }) {
            *self = Body::default();
        }
    }

    /// Bytes of memory that can be reused for another body.
    #[inline]
    pub fn reusable_bytes(&self) -> usize {
        match &self.0 {
            Kind::Own { bytes, .. } => own_bytes(bytes.len()),
            _ => 0,
        }
    }

    /// A body outside memory.
    pub fn large(body: Arc<dyn LargeBody>) -> Body {
        Body(Kind::Large(body))
    }

    /// Bodies concatenated, each in memory or elsewhere. Only a broker can send the result, to stock clients.
    pub fn joined(bodies: impl IntoIterator<Item = Body>) -> Body {
        let pieces: Arc<[Body]> = bodies.into_iter().flat_map(|body| body.pieces().to_vec()).collect();
        match pieces.iter().map(Body::to_frames).collect::<Option<Vec<_>>>() {
            Some(frames) => Body::of_frames(frames.into_iter().flatten()),
            None => Body(Kind::Joined(pieces)),
        }
    }

    /// The concatenated bodies.
    pub fn pieces(&self) -> &[Body] {
        match &self.0 {
            Kind::Joined(pieces) => pieces,
            _ => std::slice::from_ref(self),
        }
    }

    /// The frames, if the body is in memory. Otherwise see [`Body::reader`].
    pub fn frames(&self) -> Option<impl ExactSizeIterator<Item = &[u8]>> {
        let (one, many): (Option<&[u8]>, &[Bytes]) = match &self.0 {
            Kind::Inline { length, bytes } => (bytes.get(..usize::from(*length)), &[]),
            Kind::Own { length, bytes } => (bytes.get(..*length), &[]),
            Kind::Copied(bytes) => (Some(bytes), &[]),
            Kind::One(bytes) => (Some(bytes), &[]),
            Kind::Many(frames) => (None, frames),
            Kind::Large(_) | Kind::Joined(_) => return None,
        };
        Some(Slices { one, many: many.iter() })
    }

    /// The only frame, if the body has one frame in memory. See [`Body::to_vec_limited`] for all others.
    #[inline]
    pub fn single(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Inline { length, bytes } => bytes.get(..usize::from(*length)),
            Kind::Own { length, bytes } => bytes.get(..*length),
            Kind::Copied(bytes) => Some(bytes),
            Kind::One(bytes) => Some(bytes),
            Kind::Many(_) | Kind::Large(_) | Kind::Joined(_) => None,
        }
    }

    /// The frames for sending, shared where they are large. `None` if the body isn't in memory.
    pub fn to_frames(&self) -> Option<smallvec::SmallVec<[Bytes; 2]>> {
        Some(match &self.0 {
            Kind::Inline { length, bytes } => {
                smallvec::smallvec![Bytes::copy_from_slice(bytes.get(..usize::from(*length)).unwrap_or_default())]
            }
            Kind::Own { length, bytes } => {
                smallvec::smallvec![Bytes::copy_from_slice(bytes.get(..*length).unwrap_or_default())]
            }
            Kind::Copied(bytes) => smallvec::smallvec![Bytes::from_owner(Arc::clone(bytes))],
            Kind::One(bytes) => smallvec::smallvec![bytes.clone()],
            Kind::Many(frames) => frames.iter().cloned().collect(),
            Kind::Large(_) | Kind::Joined(_) => return None,
        })
    }

    /// The body outside memory, if it is one.
    pub fn as_large(&self) -> Option<&Arc<dyn LargeBody>> {
        match &self.0 {
            Kind::Large(body) => Some(body),
            _ => None,
        }
    }

    /// Bytes of all frames, in memory or elsewhere.
    #[inline]
    pub fn length(&self) -> u64 {
        match &self.0 {
            Kind::Inline { length, .. } => u64::from(*length),
            Kind::Own { length, .. } => *length as u64,
            Kind::Copied(bytes) => bytes.len() as u64,
            Kind::One(bytes) => bytes.len() as u64,
            Kind::Large(body) => body.length(),
            Kind::Many(frames) => length_of_frames(frames),
            Kind::Joined(pieces) => length_of_pieces(pieces),
        }
    }

    /// Bytes outside memory.
    #[inline]
    pub fn large_bytes(&self) -> u64 {
        match &self.0 {
            Kind::Large(body) => body.length(),
            Kind::Joined(pieces) => large_bytes_of_pieces(pieces),
            _ => 0,
        }
    }

    /// Bytes of memory outside the value itself. Shared read buffers may be up to twice as large.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Kind::Inline { .. } => 0,
            Kind::Own { bytes, .. } => own_bytes(bytes.len()),
            Kind::Copied(bytes) => bytes.len(),
            Kind::One(bytes) => bytes.len(),
            Kind::Large(_) => 256,
            Kind::Many(frames) => memory_bytes_of_frames(frames),
            Kind::Joined(pieces) => memory_bytes_of_pieces(pieces),
        }
    }
}

// Rare, and kept out of line so that the common cases inline well.
#[cold]
fn length_of_frames(frames: &[Bytes]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

#[cold]
fn length_of_pieces(pieces: &[Body]) -> u64 {
    pieces.iter().map(Body::length).sum()
}

#[cold]
fn large_bytes_of_pieces(pieces: &[Body]) -> u64 {
    pieces.iter().map(Body::large_bytes).sum()
}

/// Overhead of each of several frames: the handle, and what the allocator adds to small blocks. For one-byte frames it is
/// nearly everything.
const FRAME_BYTES: usize = size_of::<Bytes>() + 64;

/// Bytes of memory of several frames.
#[cold]
pub fn memory_bytes_of_frames(frames: &[Bytes]) -> usize {
    frames.iter().map(|frame| FRAME_BYTES + frame.len()).sum()
}

#[cold]
fn memory_bytes_of_pieces(pieces: &[Body]) -> usize {
    pieces.iter().map(|piece| size_of::<Body>() + piece.memory_bytes()).sum()
}

/// Memory counted for an unshared body of this length.
#[inline]
fn own_bytes(length: usize) -> usize {
    length.next_multiple_of(OWN_STEP_BYTES)
}

struct Slices<'a> {
    one: Option<&'a [u8]>,
    many: std::slice::Iter<'a, Bytes>,
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.one.take().or_else(|| self.many.next().map(|frame| &frame[..]))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.one.is_some()) + self.many.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Slices<'_> {}

impl Default for Body {
    /// One empty frame.
    fn default() -> Body {
        Body(Kind::Inline { length: 0, bytes: [0; INLINE_BYTES_MAX] })
    }
}

impl From<Bytes> for Body {
    /// A body of one frame. Short ones are copied, longer ones shared.
    fn from(bytes: Bytes) -> Body {
        if bytes.len() <= INLINE_BYTES_MAX { Body::copied(&bytes) } else { Body(Kind::One(bytes)) }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body::from(Bytes::from(bytes))
    }
}

impl From<&[u8]> for Body {
    fn from(bytes: &[u8]) -> Body {
        Body::copied(bytes)
    }
}

impl From<&str> for Body {
    fn from(text: &str) -> Body {
        Body::copied(text.as_bytes())
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Body::from(text.into_bytes())
    }
}

impl PartialEq for Body {
    /// Compares frames. Bodies outside memory are equal only to themselves.
    fn eq(&self, other: &Body) -> bool {
        match (&self.0, &other.0) {
            (Kind::Large(one), Kind::Large(two)) => Arc::ptr_eq(one, two),
            (Kind::Joined(one), Kind::Joined(two)) => one == two,
            _ => match (self.frames(), other.frames()) {
                (Some(one), Some(two)) => one.eq(two),
                _ => false,
            },
        }
    }
}

impl Eq for Body {}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Large(body) => write!(f, "Body({body:?})"),
            Kind::Joined(pieces) => write!(f, "Body({pieces:?})"),
            _ => {
                write!(f, "Body(")?;
                for frame in self.frames().into_iter().flatten() {
                    let shown = &frame[..frame.len().min(32)];
                    write!(
                        f,
                        "{:?}{}",
                        Bytes::copy_from_slice(shown),
                        if shown.len() < frame.len() { "... " } else { " " }
                    )?;
                }
                write!(f, "{} bytes)", self.length())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frames_of_any_size_are_kept() {
        for length in [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 5000] {
            let bytes = vec![b'x'; length];
            for body in [Body::copied(&bytes), Body::from(bytes.clone()), Body::of_frames([bytes.clone().into()])] {
                assert_eq!(body.single(), Some(&bytes[..]));
                assert_eq!(body.frames().unwrap().collect::<Vec<_>>(), [&bytes[..]]);
                assert_eq!(body.length(), length as u64);
            }
            let two = Body::of_frames([Bytes::from(bytes.clone()), Bytes::from_static(b"more")]);
            assert_eq!(two.single(), None);
            assert_eq!(two.frames().unwrap().collect::<Vec<_>>(), [&bytes[..], b"more"]);
            assert_ne!(two, Body::copied(&bytes));
        }
        assert_eq!(Body::of_frames([]), Body::default());
        assert!(size_of::<Body>() <= 40);
    }

    #[test]
    fn memory_is_reused_for_similar_lengths_but_not_shared_by_clones() {
        let at = |body: &Body| body.single().unwrap().as_ptr();
        let mut body = Body::copied(&[b'a'; 250]);
        let first = at(&body);
        IncomingBody::Bytes(&[b'b'; 200]).replace(&mut body);
        assert_eq!((at(&body), body.single(), body.length()), (first, Some(&[b'b'; 200][..]), 200));
        let bytes = (body.memory_bytes(), IncomingBody::Bytes(&[0; 200]).memory_bytes());
        assert_eq!(bytes, (256, 256));
        let shared = body.clone();
        IncomingBody::Bytes(&[b'c'; 200]).replace(&mut body);
        assert_eq!(shared, Body::copied(&[b'b'; 200]));
        assert_eq!(body, Body::copied(&[b'c'; 200]));
        let second = at(&body);
        for length in [8, INLINE_BYTES_MAX, 192, 257, 5000] {
            let other = vec![b'd'; length];
            let mut body = body.clone();
            IncomingBody::Bytes(&other).replace(&mut body);
            assert_eq!((body.single(), body.length()), (Some(&other[..]), length as u64));
            assert_ne!(at(&body), second);
            assert_eq!(body.to_frames().unwrap().concat(), other);
        }
        let mut small = Body::copied(&[b'x'; 50]);
        IncomingBody::Bytes(b"inline").replace(&mut small);
        assert_eq!((small.single(), small.memory_bytes()), (Some(&b"inline"[..]), 0));
        IncomingBody::Bytes(&[b'e'; 2000]).replace(&mut body);
        IncomingBody::Bytes(&[b'f'; 1990]).replace(&mut body);
        assert_eq!(body.to_frames().unwrap().concat(), vec![b'f'; 1990]);
    }

    #[test]
    fn bodies_in_memory_and_files_are_joined() {
        #[derive(Debug)]
        struct Elsewhere(u64);
        impl LargeBody for Elsewhere {
            fn length(&self) -> u64 {
                self.0
            }
        }
        let several = Body::of_frames([Bytes::from_static(b"b"), Bytes::new()]);
        let joined = Body::joined([Body::from("a"), several]);
        assert_eq!(joined.frames().unwrap().collect::<Vec<_>>(), [&b"a"[..], b"b", b""]);
        let large = Body::large(Arc::new(Elsewhere(7)));
        let joined = Body::joined([Body::joined([joined, large.clone()]), Body::from("c")]);
        assert!(joined.frames().is_none() && joined.to_frames().is_none() && joined.as_large().is_none());
        assert_eq!(joined.length(), 2 + 7 + 1);
        assert_eq!(joined.pieces().len(), 3);
        assert_eq!(joined.pieces()[1], large);
    }
}
