//! Reading a body, in memory or elsewhere.

use super::{Body, Kind};
use std::fmt;
use std::io::{self, Read};

impl Body {
    /// A reader over all bytes, frame after frame. Files are never loaded as a whole. Each reader starts at the beginning
    /// and keeps the body alive.
    ///
    /// Reading blocks on the disk if [`Body::large_bytes`] isn't 0. On tokio, use `spawn_blocking`.
    ///
    /// ```
    /// use std::io::Read;
    /// use towpath_requests::Body;
    ///
    /// let mut text = String::new();
    /// Body::from("how far?").reader().read_to_string(&mut text)?;
    /// assert_eq!(text, "how far?");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reader(&self) -> BodyReader {
        BodyReader { body: self.clone(), piece: 0, frame: 0, at: 0 }
    }

    /// All bytes, frame after frame, if they are at most `most`. The sender decides how large a body is, so the receiver
    /// names its limit. Blocks like [`Body::reader`].
    ///
    /// ```
    /// # use towpath_requests::Body;
    /// assert_eq!(Body::from("how far?").to_vec_limited(64 << 20)?, b"how far?");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::FileTooLarge`] if the body is longer; otherwise the error of the disk.
    pub fn to_vec_limited(&self, most: usize) -> io::Result<Vec<u8>> {
        let length = self.length();
        let Some(length) = usize::try_from(length).ok().filter(|length| *length <= most) else {
            let why = format!("a body of {length} bytes, where no more than {most} are wanted");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        };
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // Bounded: no more than the announced length is read from a file.
        self.reader().read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A frame, if the body is in memory.
    fn frame(&self, index: usize) -> Option<&[u8]> {
        match &self.0 {
            Kind::Many(frames) => frames.get(index).map(|frame| &frame[..]),
            _ => self.single().filter(|_| index == 0),
        }
    }
}

/// Reads a [`Body`]; made by [`Body::reader`].
pub struct BodyReader {
    body: Body,
    /// Current piece, frame of that piece, and bytes of that frame that were read.
    piece: usize,
    frame: usize,
    at: u64,
}

impl Read for BodyReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        while let Some(piece) = self.body.pieces().get(self.piece) {
            let bytes = match (piece.as_large(), piece.frame(self.frame)) {
                (Some(large), _) => {
                    let left = large.length().saturating_sub(self.at);
                    let most = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    match out.get_mut(..most) {
                        Some(out) if most > 0 => match large.read_at(out, self.at)? {
                            // Shorter than announced.
                            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                            bytes => bytes,
                        },
                        _ => 0,
                    }
                }
                (None, Some(frame)) => {
                    let left = usize::try_from(self.at).ok().and_then(|at| frame.get(at..)).unwrap_or_default();
                    (&mut &*left).read(out)?
                }
                (None, None) => 0,
            };
            if bytes > 0 {
                self.at += bytes as u64;
                return Ok(bytes);
            }
            self.at = 0;
            if piece.frame(self.frame + 1).is_some() {
                self.frame += 1;
            } else {
                (self.piece, self.frame) = (self.piece + 1, 0);
            }
        }
        Ok(0)
    }
}

impl fmt::Debug for BodyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BodyReader").field(&self.body).finish()
    }
}
