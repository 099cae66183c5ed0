//! The plain dialect: `fetch`, a path, an offset and a size as decimal text ("The plain dialect").

use bytes::Bytes;

use super::follow::{Cursor, FollowFrom, FollowFromError};
use super::{PLAIN_CREDIT, PLAIN_ERROR, PLAIN_FETCH, PLAIN_FOLLOW, WireError};
use crate::limits::{CREDIT_BYTES_MAX, FILE_BYTES_MAX, PATH_BYTES_MAX, PLAIN_SIZE_MAX};

/// A message of the plain dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlainMessage {
    /// Asks for a file.
    Fetch(PlainRequest),
    /// Asks for changes, with the contents of files.
    Follow(PlainFollow),
    /// Lets the server send more.
    Credit {
        /// Bytes, added to what is left of earlier credit.
        bytes: u64,
    },
}

/// A follow in the plain dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainFollow {
    /// The followed path; empty for the root. Not checked beyond its length.
    pub path: Bytes,
    /// Its beginning.
    pub from: FollowFrom,
}

impl PlainMessage {
    /// Reads a message from its frames, envelope already taken off.
    ///
    /// # Errors
    /// Neither a `fetch`, a `follow` nor a `credit` with what belongs to it.
    pub fn decode<F: AsRef<[u8]>>(frames: &[F]) -> Result<Self, WireError> {
        let frames_of =
            |first: &[u8]| frames.split_first().filter(|(of, _)| of.as_ref() == first).map(|(_, rest)| rest);
        if let Some(operands) = frames_of(PLAIN_FOLLOW) {
            let (path, from) = match operands {
                [path] => (path, FollowFrom::Beginning),
                [path, from] => {
                    let from = std::str::from_utf8(from.as_ref()).ok().and_then(|from| from.parse().ok());
                    (path, from.ok_or_else(|| WireError::bad(format!("FROM is {FollowFromError}")))?)
                }
                _ => return Err(WireError::bad("`follow` takes PATH, and FROM")),
            };
            return Ok(Self::Follow(PlainFollow { path: path_operand(path.as_ref())?, from }));
        }
        match frames_of(PLAIN_CREDIT) {
            Some([bytes]) => {
                let bytes = decimal(bytes.as_ref(), "BYTES")?;
                if bytes > CREDIT_BYTES_MAX {
                    return Err(WireError::bad(format!("BYTES is over {CREDIT_BYTES_MAX}")));
                }
                Ok(Self::Credit { bytes })
            }
            Some(_) => Err(WireError::bad("`credit` takes BYTES")),
            None => PlainRequest::decode(frames).map(Self::Fetch),
        }
    }
}

/// The frames of a change.
pub fn follow_frames(
    kind: &'static [u8],
    path: &[u8],
    cursor: Cursor,
    size: u64,
    offset: u64,
    body: Bytes,
) -> [Bytes; 6] {
    let text = |number: u64| number.to_string().into();
    let (path, cursor) = (Bytes::copy_from_slice(path), cursor.to_string().into());
    [Bytes::from_static(kind), path, cursor, text(size), text(offset), body]
}

/// A request of the plain dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainRequest {
    /// The file; `None` where the server was started on a single file. Not checked beyond its length.
    pub path: Option<Bytes>,
    /// The piece; `None` for the whole file in frames of [`crate::limits::PLAIN_FRAME_BYTES`].
    pub range: Option<PlainRange>,
}

/// A piece of a file in the plain dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainRange {
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Bytes wanted, at most [`PLAIN_SIZE_MAX`].
    pub size: u64,
}

impl PlainRequest {
    /// Reads a request from its frames, envelope already taken off.
    ///
    /// # Errors
    /// Not a `fetch` of one to four frames, a number that is not plain decimal, or something over its limit.
    pub fn decode<F: AsRef<[u8]>>(frames: &[F]) -> Result<Self, WireError> {
        let Some((first, operands)) = frames.split_first() else {
            return Err(WireError::bad("empty message"));
        };
        if first.as_ref() != PLAIN_FETCH {
            return Err(WireError::bad("expected `fetch`"));
        }
        match operands {
            [] => Ok(Self { path: None, range: None }),
            [path] => Ok(Self { path: Some(path_operand(path.as_ref())?), range: None }),
            [offset, size] => Ok(Self { path: None, range: Some(PlainRange::decode(offset.as_ref(), size.as_ref())?) }),
            [path, offset, size] => Ok(Self {
                path: Some(path_operand(path.as_ref())?),
                range: Some(PlainRange::decode(offset.as_ref(), size.as_ref())?),
            }),
            _ => Err(WireError::bad("`fetch` takes at most PATH OFFSET SIZE")),
        }
    }

    /// The frames of this request.
    pub fn encode(&self) -> Vec<Bytes> {
        let mut frames = vec![Bytes::from_static(PLAIN_FETCH)];
        frames.extend(self.path.clone());
        if let Some(range) = self.range {
            frames.push(range.offset.to_string().into());
            frames.push(range.size.to_string().into());
        }
        frames
    }
}

impl PlainRange {
    fn decode(offset: &[u8], size: &[u8]) -> Result<Self, WireError> {
        let range = Self { offset: decimal(offset, "OFFSET")?, size: decimal(size, "SIZE")? };
        if range.size > PLAIN_SIZE_MAX {
            return Err(WireError::bad(format!("SIZE is over {PLAIN_SIZE_MAX}")));
        }
        if range.offset > FILE_BYTES_MAX - range.size {
            return Err(WireError::bad(format!("OFFSET + SIZE is over {FILE_BYTES_MAX}")));
        }
        Ok(range)
    }
}

/// The two frames of an error.
pub fn error_frames(reason: &str) -> [Bytes; 2] {
    [Bytes::from_static(PLAIN_ERROR), Bytes::copy_from_slice(reason.as_bytes())]
}

fn path_operand(path: &[u8]) -> Result<Bytes, WireError> {
    if path.len() > PATH_BYTES_MAX {
        return Err(WireError::bad(format!("PATH is longer than {PATH_BYTES_MAX} bytes")));
    }
    Ok(Bytes::copy_from_slice(path))
}

fn decimal(text: &[u8], name: &str) -> Result<u64, WireError> {
    // `str::parse` would also take a sign.
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = digits.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten();
    number.ok_or_else(|| WireError::bad(format!("{name} is not an unsigned decimal number below 2^64")))
}
