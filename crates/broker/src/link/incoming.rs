//! Putting messages together: frames as they come, and large ones by way of a file.

use crate::body::Body;
use crate::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX};
use crate::spool::{Spool, SpoolWriter, SpooledBody};
use crate::wire::WireError;
use bytes::Bytes;
use smallvec::SmallVec;
use std::io;
use std::path::PathBuf;
use towpath_sockets::Frames;

/// One frame of a message.
#[derive(Debug)]
pub(crate) enum Piece {
    /// In memory.
    Bytes(Bytes),
    /// In a file.
    Spooled(Body),
    /// It was there, and couldn't be kept: why.
    Lost(String),
}

/// A whole message.
pub(crate) type Pieces = SmallVec<[Piece; 4]>;

/// The message that is coming in on a connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    pieces: Pieces,
    spooling: Option<SpoolWriter>,
    lost: Option<io::Error>,
    folder: PathBuf,
    /// Made when the first large frame comes.
    spool: Option<Spool>,
}

impl Incoming {
    /// Large frames go to files in this folder.
    pub fn new(folder: PathBuf) -> Incoming {
        Incoming { pieces: Pieces::new(), spooling: None, lost: None, folder, spool: None }
    }

    /// Nothing is coming any more: the connection is gone.
    pub fn reset(&mut self) {
        self.pieces.clear();
        self.spooling = None;
        self.lost = None;
    }

    /// Takes [`towpath_sockets::Event::Message`].
    pub fn message(&mut self, frames: Frames) -> Pieces {
        self.pieces.extend(frames.into_iter().map(Piece::Bytes));
        std::mem::take(&mut self.pieces)
    }

    /// Takes [`towpath_sockets::Event::BodyStart`].
    pub fn begin(&mut self, head: Frames) {
        self.pieces.extend(head.into_iter().map(Piece::Bytes));
        match self.create() {
            Ok(writer) => self.spooling = Some(writer),
            Err(error) => self.lost = Some(error),
        }
    }

    fn create(&mut self) -> io::Result<SpoolWriter> {
        if self.spool.is_none() {
            self.spool = Some(Spool::new(&self.folder)?);
        }
        self.spool.as_ref().ok_or(io::ErrorKind::NotFound)?.create()
    }

    /// Takes [`towpath_sockets::Event::BodyData`].
    pub fn data(&mut self, data: &[u8]) {
        if let Some(writer) = self.spooling.as_mut()
            && let Err(error) = writer.write(data)
        {
            self.lost = Some(error);
            self.spooling = None;
        }
    }

    /// Takes [`towpath_sockets::Event::BodyEnd`]: a message, if no frames follow.
    pub fn end(&mut self, more: bool) -> Option<Pieces> {
        self.pieces.push(match (self.lost.take(), self.spooling.take()) {
            (None, Some(writer)) => Piece::Spooled(Body::large(writer.finish())),
            (error, _) => {
                let error = error.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                let folder = self.folder.display();
                tracing::warn!(%folder, %error, "a large body that came can't be kept, and is lost");
                Piece::Lost(format!("a large body can't be kept in {folder}: {error}"))
            }
        });
        (!more).then(|| std::mem::take(&mut self.pieces))
    }
}

fn on_disk(error: io::Error) -> String {
    format!("a large body can't be kept on disk: {error}")
}

impl Piece {
    /// The body that this frame is, or why it is lost.
    pub fn into_body(self) -> Result<Body, String> {
        match self {
            Piece::Bytes(bytes) => Ok(Body::from(bytes)),
            Piece::Spooled(body) => Ok(body),
            Piece::Lost(why) => Err(why),
        }
    }

    /// The body behind a block, or why it is lost. A list of frames is in memory, even if it is so long that it came by way of a file.
    pub fn into_attached(self, is_list: impl FnOnce() -> bool) -> Result<Body, String> {
        match self {
            Piece::Spooled(body) if is_list() => {
                if body.length() > (BODY_BYTES_MAX + 4 * BODY_FRAMES_MAX) as u64 {
                    return Err(format!("a body of several frames has over {BODY_BYTES_MAX} octets"));
                }
                read_whole(&body).map(Body::from).map_err(on_disk)
            }
            piece => piece.into_body(),
        }
    }
}

/// The block of a numbered message with this header, and the body behind it, or why that is lost.
///
/// # Errors
///
/// It is no such message: what is wrong with it.
pub(crate) fn block_of(
    message: Pieces,
    header: &[u8],
    announces_list: impl FnOnce(&[u8]) -> bool,
) -> Result<(Bytes, Option<Result<Body, String>>), String> {
    let mut pieces = message.into_iter();
    let (Some(Piece::Bytes(first)), Some(Piece::Bytes(block))) = (pieces.next(), pieces.next()) else {
        return Err("a message without a header and a block".to_owned());
    };
    if first != header {
        return Err("a message with another header".to_owned());
    }
    let attached = pieces.next().map(|piece| piece.into_attached(|| announces_list(&block)));
    if pieces.next().is_some() {
        return Err(WireError::Attachment.to_string());
    }
    Ok((block, attached))
}

/// The body that these frames are, or why it is lost. Several frames are in memory, since only a single one can be in a file.
pub(crate) fn body_of(mut pieces: Pieces) -> Result<Body, String> {
    if pieces.len() == 1
        && let Some(piece) = pieces.pop()
    {
        return piece.into_body();
    }
    let mut sum = 0;
    let mut frames = Vec::with_capacity(pieces.len());
    for piece in pieces {
        sum += match &piece {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Spooled(body) => body.length(),
            Piece::Lost(_) => 0,
        };
        if sum > BODY_BYTES_MAX as u64 {
            return Err(format!("a body of several frames has over {BODY_BYTES_MAX} octets"));
        }
        frames.push(match piece {
            Piece::Bytes(bytes) => bytes,
            Piece::Spooled(body) => read_whole(&body).map_err(on_disk)?,
            Piece::Lost(why) => return Err(why),
        });
    }
    Ok(Body::of_frames(frames))
}

fn read_whole(body: &Body) -> io::Result<Bytes> {
    SpooledBody::of(body).map_or_else(|| Ok(Bytes::new()), |spooled| spooled.read())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn frames(list: &[&'static [u8]]) -> Frames {
        list.iter().map(|frame| Bytes::from_static(frame)).collect()
    }

    #[test]
    fn a_large_frame_becomes_a_file_and_several_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut incoming = Incoming::new(folder.path().to_owned());
        incoming.begin(frames(&[b"head"]));
        incoming.data(b"first ");
        incoming.data(b"second");
        let mut pieces = incoming.end(false).unwrap();
        assert_eq!(pieces.len(), 2);
        pieces.remove(0);
        let body = body_of(pieces).unwrap();
        assert_eq!(body.length(), 12);
        assert_eq!(read_whole(&body).unwrap(), &b"first second"[..]);

        incoming.begin(frames(&[b"head", b"a"]));
        incoming.data(b"b");
        assert!(incoming.end(true).is_none());
        let mut pieces = incoming.message(frames(&[b"c"]));
        assert_eq!(pieces.len(), 4);
        pieces.remove(0);
        let body = body_of(pieces).unwrap();
        assert_eq!(body.frames().unwrap().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    }

    #[test]
    fn a_folder_that_is_not_there_loses_the_message_and_no_other() {
        let mut incoming = Incoming::new("/proc/nowhere".into());
        incoming.begin(frames(&[b"head"]));
        incoming.data(b"lost");
        assert!(matches!(incoming.end(false).unwrap()[1], Piece::Lost(_)));
        assert_eq!(incoming.message(frames(&[b"fine"])).len(), 1);
    }
}
