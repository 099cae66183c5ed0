//! Fields of records, and the bodies in them.

use crate::body::{Body, IncomingBody, SHARE_FROM_BYTES};
use crate::limits::{BODY_FRAMES_MAX, SERVICE_BYTES_MAX};
use bytes::Bytes;

/// The body is a list of frames, each preceded by its length in four bytes.
pub const MANY: u8 = 1;
/// The body is the message's next frame.
pub const ATTACHED: u8 = 2;
/// More parts of this reply follow. The part number comes after the status.
pub const PARTIAL: u8 = 4;
/// The request is not journalled.
pub const VOLATILE: u8 = 8;
/// The request was sent over an earlier connection too.
pub const RESENT: u8 = 16;

/// Longer bodies are attached instead of copied into the block.
pub const ATTACH_OVER_BYTES: u64 = 4 * 1024;

/// A malformed message of numbered requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The block ends within a record.
    #[error("a record ends too early")]
    Truncated,
    /// Unknown kind of record.
    #[error("a record of the unknown kind {0:#04x}")]
    UnknownKind(u8),
    /// Unknown flags, or flags that this kind of record can't have.
    #[error("a record with the unknown flags {0:#04x}")]
    UnknownFlags(u8),
    /// Number 0; numbers start at 1.
    #[error("a request with the number 0; numbers begin at 1")]
    NumberZero,
    /// A service name that is empty or too long.
    #[error("a service's name has {0} bytes; it must have 1 to {SERVICE_BYTES_MAX}")]
    BadService(usize),
    /// A record announces an attached body and there is no frame for it, or the other way round.
    #[error("a body is attached that no record announces, or announced and not attached")]
    Attachment,
    /// A list of frames whose lengths don't add up, or with too many frames.
    #[error("the frames of a body don't add up, or are more than {BODY_FRAMES_MAX}")]
    BadFrames,
    /// More requests than the worker's credit, or a request that it already has.
    #[error("more requests than this worker takes at a time, or one that it has")]
    OverCredit,
}

/// Body of a decoded record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// One frame.
    One(&'a [u8]),
    /// Several frames in wire format, checked by the decoder.
    Many(&'a [u8]),
    /// In the message's next frame.
    Attached {
        /// Whether that frame is a list of frames.
        many: bool,
    },
}

impl<'a> Content<'a> {
    /// Whether the frame behind the block belongs to this record.
    pub fn is_attached(&self) -> bool {
        matches!(self, Content::Attached { .. })
    }

    /// Whether the frame behind the block belongs to this record and is a list of frames.
    pub fn is_attached_list(&self) -> bool {
        matches!(self, Content::Attached { many: true })
    }

    /// The body, from its block or from the frame behind it.
    pub fn to_body(&self, block: &Bytes, attached: Option<Body>) -> Result<Body, WireError> {
        self.incoming(block, attached).map(IncomingBody::into_body)
    }

    /// The body without a copy where it would be copied next.
    #[inline]
    pub fn incoming(&self, block: &Bytes, attached: Option<Body>) -> Result<IncomingBody<'a>, WireError> {
        match self {
            Content::One(bytes) if bytes.len() < SHARE_FROM_BYTES => Ok(IncomingBody::Bytes(bytes)),
            _ => self.large(block, attached).map(IncomingBody::Body),
        }
    }

    fn large(&self, block: &Bytes, attached: Option<Body>) -> Result<Body, WireError> {
        match self {
            // Copied: the rest of the block may be short-lived.
            Content::One(bytes) if bytes.len() < block.len() / 2 => Ok(Body::copied(bytes)),
            Content::One(bytes) => Ok(Body::from(block.slice_ref(bytes))),
            Content::Many(bytes) => Ok(Body::of_frames(frames(bytes).map(Bytes::copy_from_slice))),
            Content::Attached { many: false } => attached.ok_or(WireError::Attachment),
            Content::Attached { many: true } => {
                let body = attached.ok_or(WireError::Attachment)?;
                let bytes = body.single().ok_or(WireError::BadFrames)?;
                check_frames(bytes)?;
                let whole = Bytes::copy_from_slice(bytes);
                Ok(Body::of_frames(frames(&whole).map(|frame| whole.slice_ref(frame))))
            }
        }
    }
}

/// The records of a block, up to the first that is malformed.
pub fn records<'a, T>(
    mut block: &'a [u8],
    decode: impl Fn(&mut &'a [u8]) -> Result<T, WireError>,
) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || if block.is_empty() { None } else { decode(&mut block).ok() })
}

/// The frames of a checked list.
fn frames(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (frame, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        bytes = rest;
        Some(frame)
    })
}

fn check_frames(bytes: &[u8]) -> Result<(), WireError> {
    let (mut count, mut sum) = (0_usize, 0);
    for frame in frames(bytes) {
        count += 1;
        sum += 4 + frame.len();
    }
    if sum == bytes.len() && (1..=BODY_FRAMES_MAX).contains(&count) { Ok(()) } else { Err(WireError::BadFrames) }
}

/// Decodes fields from the front of a block.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    #[inline]
    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    #[inline]
    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Decodes flags: those of bodies, and `others`.
    #[inline]
    pub fn flags(&mut self, others: u8) -> Result<u8, WireError> {
        let flags = self.u8()?;
        if flags & !(MANY | ATTACHED | others) == 0 { Ok(flags) } else { Err(WireError::UnknownFlags(flags)) }
    }

    #[inline]
    pub fn service(&mut self) -> Result<&'a [u8], WireError> {
        match self.u8()? {
            0 => Err(WireError::BadService(0)),
            length => self.bytes(usize::from(length)),
        }
    }

    /// Decodes a reason for people.
    pub fn reason(&mut self) -> Result<&'a [u8], WireError> {
        let length = self.u8()?;
        self.bytes(usize::from(length))
    }

    /// Decodes a body preceded by its length in four bytes. Larger ones are attached.
    #[inline]
    pub fn content(&mut self, flags: u8) -> Result<Content<'a>, WireError> {
        let length = self.u32()? as usize;
        let bytes = self.bytes(length)?;
        if flags & ATTACHED != 0 {
            // Only the last record of a block can have its body behind the block.
            let fits = length == 0 && self.0.is_empty();
            return if fits { Ok(Content::Attached { many: flags & MANY != 0 }) } else { Err(WireError::Attachment) };
        }
        if flags & MANY != 0 {
            check_frames(bytes)?;
            return Ok(Content::Many(bytes));
        }
        Ok(Content::One(bytes))
    }
}

/// Placeholder for a body of several frames of which some are in files. No record can carry one, so none should get here;
/// an invalid record would end the peer's connection.
const NO_FORM: &[u8] = b"a body of several frames, some of them in files, can't be sent in a record";

/// Encoding of a body in a record.
pub enum Form<'a> {
    One(&'a [u8]),
    Many { length: usize },
    Attached { many: bool },
}

impl Form<'_> {
    #[inline]
    pub fn of(body: &Body) -> Form<'_> {
        if let Some(bytes) = body.single()
            && bytes.len() as u64 <= ATTACH_OVER_BYTES
        {
            return Form::One(bytes);
        }
        match body.frames() {
            Some(frames) if frames.len() > 1 => {
                let length: usize = frames.map(|frame| 4 + frame.len()).sum();
                if length as u64 <= ATTACH_OVER_BYTES { Form::Many { length } } else { Form::Attached { many: true } }
            }
            None if body.as_large().is_none() => Form::One(NO_FORM),
            _ => Form::Attached { many: false },
        }
    }

    pub fn flags(&self) -> u8 {
        match self {
            Form::One(_) => 0,
            Form::Many { .. } => MANY,
            Form::Attached { many } => ATTACHED | if *many { MANY } else { 0 },
        }
    }

    /// Appends the length, and the bytes unless they are attached.
    #[inline]
    pub fn put(&self, out: &mut Vec<u8>, body: &Body) {
        match self {
            Form::One(bytes) => {
                out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
                out.extend_from_slice(bytes);
            }
            Form::Many { length } => {
                out.extend_from_slice(&(*length as u32).to_be_bytes());
                put_frames(out, body);
            }
            Form::Attached { .. } => out.extend_from_slice(&[0; 4]),
        }
    }
}

/// Appends the frames of a body as a list.
pub fn put_frames(out: &mut Vec<u8>, body: &Body) {
    for frame in body.frames().into_iter().flatten() {
        out.extend_from_slice(&(frame.len() as u32).to_be_bytes());
        out.extend_from_slice(frame);
    }
}

/// Appends a service name preceded by its length.
pub fn put_service(out: &mut Vec<u8>, service: &[u8]) {
    let service = &service[..service.len().min(SERVICE_BYTES_MAX)];
    out.push(service.len() as u8);
    out.extend_from_slice(service);
}

/// Appends at most 255 bytes of a reason.
pub fn put_reason(out: &mut Vec<u8>, reason: &str) {
    let reason = &reason.as_bytes()[..reason.len().min(255)];
    out.push(reason.len() as u8);
    out.extend_from_slice(reason);
}
