//! Putting messages together: frames as they come, and a body that is one large frame by way of a file.
//!
//! A file is written on a thread of its own. Meanwhile the messages that follow wait, so that each is heard in its turn, and nobody
//! waits for the disk.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use towpath_journal::spool::{UnderWay, Writing};
use towpath_requests::body::{Body, kept};
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX, MESSAGE_BYTES_MAX};
use towpath_requests::message::{Piece, Pieces, too_large};
use towpath_sockets::{Frames, Waker};

/// What a frame costs beside its bytes.
const FRAME_BYTES: usize = 64;

/// Bytes of messages that may wait behind one whose body is on its way to the disk, before no more are read.
const BEHIND_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a frame that comes as a stream and stays in memory: a body of several frames has no more, and a list of them has each
/// one's length before it.
const STREAMED_BYTES_MAX: usize = BODY_BYTES_MAX + 4 * BODY_FRAMES_MAX;

/// The message that is coming in on a connection, and those that have come and wait for their turn.
#[derive(Debug)]
pub(crate) struct Incoming {
    pieces: Pieces,
    /// Bytes of memory that they cost.
    bytes: usize,
    sink: Sink,
    behind: VecDeque<Arrived>,
    behind_bytes: usize,
    folder: PathBuf,
    /// Made when the first large body comes.
    writing: Option<Writing>,
}

/// Where a frame goes that comes as a stream.
#[derive(Debug)]
enum Sink {
    /// There is none.
    Idle,
    /// It isn't all of a body.
    Memory(BytesMut),
    /// It is.
    File(UnderWay),
    /// It can't be kept: why.
    Nowhere(String),
}

/// A message that has arrived, but for what goes to a file.
#[derive(Debug)]
struct Arrived {
    pieces: Pieces,
    bytes: usize,
    /// The number of its body, which is on its way to the disk.
    awaited: Option<u64>,
}

impl Incoming {
    /// Large bodies go to files in this folder.
    pub fn new(folder: PathBuf) -> Incoming {
        Incoming {
            pieces: Pieces::new(),
            bytes: 0,
            sink: Sink::Idle,
            behind: VecDeque::new(),
            behind_bytes: 0,
            folder,
            writing: None,
        }
    }

    /// Nothing is coming any more, and nothing that waits is heard: the connection is gone.
    pub fn reset(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
        self.sink = Sink::Idle;
        self.behind.clear();
        self.behind_bytes = 0;
    }

    /// Whether messages have come that wait for the disk.
    pub fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Whether so much waits that no more should be read.
    pub fn is_far_behind(&self) -> bool {
        self.behind_bytes > BEHIND_BYTES_MAX
    }

    /// Takes [`towpath_sockets::Event::Message`]: a message, if it is its turn.
    pub fn message(&mut self, frames: Frames) -> Option<Pieces> {
        if self.pieces.is_empty() && self.behind.is_empty() {
            return Some(frames.into_iter().map(Piece::Bytes).collect());
        }
        self.extend(frames);
        self.arrived(None)
    }

    /// Takes [`towpath_sockets::Event::BodyStart`]. `is_whole` says whether what follows these frames is all of a body, unless more
    /// follow it. Files are written by a thread that tells the waker.
    ///
    /// # Errors
    ///
    /// More came before it than a message has: why it ends the connection.
    pub fn begin(
        &mut self,
        head: Frames,
        (length, more): (u64, bool),
        is_whole: impl FnOnce(&[Piece]) -> bool,
        waker: &Waker,
    ) -> Result<(), String> {
        self.extend(head);
        if self.bytes > MESSAGE_BYTES_MAX {
            return Err(format!("a message has over {MESSAGE_BYTES_MAX} bytes in memory"));
        }
        self.sink = if !more && is_whole(&self.pieces) {
            self.file(length, waker).map_or_else(|error| Sink::Nowhere(self.lost(&error)), Sink::File)
        } else if length.saturating_add(self.bytes as u64) <= STREAMED_BYTES_MAX as u64 {
            Sink::Memory(BytesMut::new())
        } else {
            Sink::Nowhere(too_large())
        };
        Ok(())
    }

    fn file(&mut self, length: u64, waker: &Waker) -> io::Result<UnderWay> {
        let writing = match &mut self.writing {
            Some(writing) => writing,
            none => none.insert(Writing::to_folder(self.folder.clone(), waker.clone())?),
        };
        Ok(writing.begin(length, None))
    }

    /// Takes [`towpath_sockets::Event::BodyData`].
    pub fn data(&mut self, data: Bytes) {
        match &mut self.sink {
            Sink::File(body) => body.write(data, None),
            // A copy: what it was read into is for others meanwhile.
            Sink::Memory(bytes) => bytes.extend_from_slice(&data),
            Sink::Idle | Sink::Nowhere(_) => {}
        }
    }

    /// Takes [`towpath_sockets::Event::BodyEnd`]: a message, if no frames follow and it is its turn.
    pub fn end(&mut self, more: bool) -> Option<Pieces> {
        match std::mem::replace(&mut self.sink, Sink::Idle) {
            Sink::File(body) => {
                body.finish();
                return self.arrived(Some(body.number()));
            }
            Sink::Memory(bytes) => self.push(Piece::Bytes(bytes.freeze())),
            Sink::Nowhere(why) => self.push(Piece::Lost(why)),
            Sink::Idle => {}
        }
        if more { None } else { self.arrived(None) }
    }

    /// A message that waited, if it is its turn.
    pub fn next(&mut self) -> Option<Pieces> {
        while let Some((number, body)) = self.writing.as_ref().and_then(Writing::next_finished) {
            let piece = match body {
                Ok(body) => Piece::Spooled(Body::large(body)),
                Err(error) => Piece::Lost(self.lost(&error)),
            };
            if let Some(arrived) = self.behind.iter_mut().find(|arrived| arrived.awaited == Some(number)) {
                arrived.awaited = None;
                arrived.pieces.push(piece);
            }
        }
        if self.behind.front()?.awaited.is_some() {
            return None;
        }
        let arrived = self.behind.pop_front()?;
        self.behind_bytes -= arrived.bytes;
        Some(arrived.pieces)
    }

    fn lost(&self, error: &io::Error) -> String {
        let folder = self.folder.display();
        tracing::warn!(%folder, %error, "a large body that came can't be kept, and is lost");
        format!("a large body can't be kept in {folder}: {error}")
    }

    fn extend(&mut self, frames: Frames) {
        frames.into_iter().for_each(|frame| self.push(Piece::Bytes(kept(frame))));
    }

    fn push(&mut self, piece: Piece) {
        self.bytes += FRAME_BYTES + if let Piece::Bytes(bytes) = &piece { bytes.len() } else { 0 };
        self.pieces.push(piece);
    }

    /// A message has arrived, but for the body of that number: gives it if it is its turn.
    fn arrived(&mut self, awaited: Option<u64>) -> Option<Pieces> {
        let (pieces, bytes) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.bytes));
        if awaited.is_none() && self.behind.is_empty() {
            return Some(pieces);
        }
        self.behind_bytes += bytes;
        self.behind.push_back(Arrived { pieces, bytes, awaited });
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::{Duration, Instant};
    use towpath_requests::limits::SERVICE_BYTES_MAX;
    use towpath_requests::message::body_of;
    use towpath_sockets::{Hub, HubOptions, SocketType};

    fn frames(list: &[&'static [u8]]) -> Frames {
        list.iter().map(|frame| Bytes::from_static(frame)).collect()
    }

    fn hub() -> Hub {
        Hub::new(HubOptions::new(SocketType::Dealer)).unwrap()
    }

    fn next(incoming: &mut Incoming) -> Pieces {
        let start = Instant::now();
        loop {
            if let Some(message) = incoming.next() {
                return message;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it isn't written");
            std::thread::yield_now();
        }
    }

    fn body(mut message: Pieces) -> Result<Body, String> {
        message.remove(0);
        body_of(message)
    }

    #[test]
    fn a_large_frame_becomes_a_file_if_it_is_all_of_a_body_and_else_stays_in_memory() {
        let (folder, hub) = (tempfile::tempdir().unwrap(), hub());
        let mut incoming = Incoming::new(folder.path().to_owned());
        incoming.begin(frames(&[b"head"]), (12, false), |head| head.len() == 1, &hub.waker()).unwrap();
        incoming.data("first ".into());
        incoming.data("second".into());
        assert!(incoming.end(false).is_none());
        let spooled = body(next(&mut incoming)).unwrap();
        assert_eq!((spooled.length(), spooled.large_bytes()), (12, 12));

        incoming.begin(frames(&[b"head", b"a"]), (1, true), |_| panic!("more follow"), &hub.waker()).unwrap();
        incoming.data("b".into());
        assert!(incoming.end(true).is_none());
        incoming.begin(frames(&[]), (1, false), |head| head.len() == 1, &hub.waker()).unwrap();
        incoming.data("c".into());
        let message = incoming.end(false).unwrap();
        assert_eq!(body(message).unwrap().frames().unwrap().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    }

    #[test]
    fn what_follows_a_body_on_its_way_to_the_disk_is_heard_behind_it_and_not_without_end() {
        let (folder, hub) = (tempfile::tempdir().unwrap(), hub());
        let mut incoming = Incoming::new(folder.path().to_owned());
        for _ in 0..2 {
            incoming.begin(frames(&[b"head"]), (4, false), |_| true, &hub.waker()).unwrap();
            incoming.data("body".into());
            assert!(incoming.end(false).is_none());
            assert!(incoming.message(frames(&[b"behind"])).is_none());
            assert!(incoming.is_behind() && !incoming.is_far_behind());
            incoming.message([Bytes::from(vec![7; BEHIND_BYTES_MAX])].into_iter().collect());
            assert!(incoming.is_far_behind());
            assert!(matches!(&next(&mut incoming)[..], [_, Piece::Spooled(_)]));
            assert!(matches!(&next(&mut incoming)[..], [Piece::Bytes(frame)] if frame == "behind"));
            next(&mut incoming);
            assert!(!incoming.is_behind() && !incoming.is_far_behind());
            // Neither are those of a connection that is gone.
            incoming.begin(frames(&[b"head"]), (4, false), |_| true, &hub.waker()).unwrap();
            incoming.end(false);
            incoming.reset();
        }
    }

    #[test]
    fn a_folder_that_is_not_there_or_too_small_loses_the_body_and_no_other() {
        let (folder, hub) = (tempfile::tempdir().unwrap(), hub());
        for (path, length) in [("/proc/nowhere".into(), 4), (folder.path().to_owned(), u64::MAX)] {
            let mut incoming = Incoming::new(path);
            incoming.begin(frames(&[b"head"]), (length, false), |_| true, &hub.waker()).unwrap();
            incoming.data("lost".into());
            assert!(incoming.end(false).is_none());
            assert!(matches!(next(&mut incoming)[1], Piece::Lost(_)));
            assert_eq!(incoming.message(frames(&[b"fine"])).unwrap().len(), 1);
        }
    }

    #[test]
    fn a_message_that_goes_on_without_end_is_not_kept() {
        let hub = hub();
        let mut incoming = Incoming::new("/proc/nowhere".into());
        // What is too large for a body is not kept, and what follows it is told so.
        let length = STREAMED_BYTES_MAX as u64;
        incoming.begin(frames(&[b"head"]), (length, true), |_| false, &hub.waker()).unwrap();
        incoming.data(Bytes::from(vec![7; SERVICE_BYTES_MAX]));
        assert!(incoming.end(true).is_none());
        let message = incoming.message(frames(&[b"last"])).unwrap();
        assert!(body(message).unwrap_err().contains("over"));
        let long = Bytes::from(vec![7; MESSAGE_BYTES_MAX / 8]);
        let mut begun = 0;
        while incoming.begin([long.clone()].into_iter().collect(), (1, true), |_| false, &hub.waker()).is_ok() {
            incoming.end(true);
            begun += 1;
        }
        assert!((6..8).contains(&begun), "{begun}");
    }
}
