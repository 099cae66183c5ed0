//! The messages of a connection to a broker, whose large bodies go to files.

use bytes::Bytes;
use std::io;
use std::path::PathBuf;
use towpath_requests::assembler::{Assembler, Attached, Destination, Progress, Received};
use towpath_requests::body::Body;
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX, MESSAGE_BYTES_MAX};
use towpath_requests::message::too_large;
use towpath_requests::numbered::Status;
use towpath_sockets::{Event, Frames, Waker};
use towpath_spool::default_spool_folder;
use towpath_spool::{PendingWrite, Writing};

/// A message from the broker. If its body couldn't be kept, it says why.
pub(crate) type FromBroker = Received<String>;

/// Largest streamed frame in memory: the bytes of a body of several frames, which as a list has a length before each.
const STREAMED_BYTES_MAX: usize = BODY_BYTES_MAX + 4 * BODY_FRAMES_MAX;

/// Of a body that is lost because the caller wants no more bytes.
const OVER_LIMIT: &str = "over the limit of";

/// Status of a reply whose body is lost.
pub(crate) fn status_of_lost(why: &str) -> Status {
    if why.contains(OVER_LIMIT) { Status::TOO_LARGE } else { Status::NO_STORAGE }
}

/// Assembles the messages of a connection. Files are written by a thread, started for the first one.
#[derive(Debug)]
pub(crate) struct Inbound {
    assembler: Assembler<PendingWrite>,
    folder: Option<PathBuf>,
    max_body_bytes: u64,
    writing: Option<Writing>,
}

impl Inbound {
    /// Large bodies, of at most this many bytes, go to files in this folder ([`towpath_spool::Spool::open`]).
    pub fn new(folder: Option<PathBuf>, max_body_bytes: u64) -> Inbound {
        Inbound { assembler: Assembler::default(), folder, max_body_bytes, writing: None }
    }

    /// Drops everything: the connection is gone.
    pub fn reset(&mut self) {
        self.assembler = Assembler::default();
    }

    /// Whether messages wait for the disk.
    pub fn has_backlog(&self) -> bool {
        self.assembler.has_backlog()
    }

    /// Whether nothing more should be read.
    pub fn is_over_limit(&self) -> bool {
        self.assembler.is_over_limit()
    }

    /// Takes an event that brings a part of a message, and returns a message whose turn it is. `is_whole` decides from the
    /// frames before a streamed one whether it is the whole body. The waker is called when a file is written.
    ///
    /// # Errors
    ///
    /// A message exceeds the limits, and the connection has to end.
    pub fn on_event(
        &mut self,
        event: Event,
        is_whole: impl FnOnce(&[Bytes]) -> bool,
        waker: &Waker,
    ) -> Result<Option<FromBroker>, String> {
        let progress = match event {
            Event::Message { frames, .. } => self.assembler.message(frames),
            Event::BodyStart { head, length, more, .. } => {
                self.begin(head, length, |frames| !more && is_whole(frames), waker)?;
                if more || length <= self.max_body_bytes {
                    return Ok(None);
                }
                self.assembler.cut_short()
            }
            Event::BodyData { data, .. } => {
                self.assembler.data(data);
                return Ok(None);
            }
            Event::BodyEnd { more, .. } => self.assembler.end(more, too_large),
            _ => return Ok(None),
        };
        Ok(if let Progress::Message(message) = progress { Some(message) } else { None })
    }

    fn begin(
        &mut self,
        head: Frames,
        length: u64,
        is_whole: impl FnOnce(&[Bytes]) -> bool,
        waker: &Waker,
    ) -> Result<(), String> {
        let before = self.assembler.partial_bytes() + head.iter().map(Bytes::len).sum::<usize>();
        if before > MESSAGE_BYTES_MAX {
            return Err(format!("a message has over {MESSAGE_BYTES_MAX} bytes in memory"));
        }
        let Inbound { assembler, folder, max_body_bytes, writing } = self;
        assembler.begin(head, |frames| {
            if length > *max_body_bytes {
                Destination::Lost(format!("it has {length} bytes, {OVER_LIMIT} {max_body_bytes} (--max-reply)"))
            } else if is_whole(frames) {
                let file = open_file(writing, folder.as_ref(), length, waker);
                file.map_or_else(|error| Destination::Lost(lost(folder.as_ref(), &error)), Destination::File)
            } else if length.saturating_add(before as u64) <= STREAMED_BYTES_MAX as u64 {
                Destination::Memory
            } else {
                Destination::Lost(too_large())
            }
        });
        Ok(())
    }

    /// The next message of the backlog whose turn it is.
    pub fn next(&mut self) -> Option<FromBroker> {
        while let Some((number, body)) = self.writing.as_ref().and_then(Writing::next_finished) {
            let attached = match body {
                Ok(body) => Attached::Body(Body::large(body)),
                Err(error) => Attached::Lost(lost(self.folder.as_ref(), &error)),
            };
            self.assembler.written(number, attached);
        }
        self.assembler.next_ready()
    }
}

fn open_file(
    writing: &mut Option<Writing>,
    folder: Option<&PathBuf>,
    length: u64,
    waker: &Waker,
) -> io::Result<PendingWrite> {
    let writing = match writing {
        Some(writing) => writing,
        none => none.insert(Writing::to_folder(folder.cloned(), waker.clone())?),
    };
    Ok(writing.begin(length, None))
}

fn lost(folder: Option<&PathBuf>, error: &io::Error) -> String {
    let folder = folder.cloned().unwrap_or_else(default_spool_folder);
    let folder = folder.display();
    tracing::warn!(%folder, %error, "cannot spool a large body; it is lost");
    format!("cannot keep a large body in {folder}: {error}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;
    use std::time::{Duration, Instant};
    use towpath_requests::limits::SERVICE_BYTES_MAX;
    use towpath_requests::message::body_of;
    use towpath_sockets::{Hub, HubOptions, PeerId, SocketType};

    /// A connection whose bodies go to a folder.
    struct Connection {
        incoming: Inbound,
        hub: Hub,
    }

    fn frames(list: &[&[u8]]) -> Frames {
        list.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
    }

    impl Connection {
        fn to(folder: &Path) -> Connection {
            let hub = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
            Connection { incoming: Inbound::new(Some(folder.to_owned()), u64::MAX), hub }
        }

        fn on(&mut self, event: Event) -> Result<Option<FromBroker>, String> {
            self.incoming.on_event(event, |head| head.len() == 1, &self.hub.waker())
        }

        fn begin(&mut self, head: &[&[u8]], length: u64, more: bool) -> Result<(), String> {
            self.on(Event::BodyStart { peer: peer(), head: frames(head), length, more }).map(|_| ())
        }

        fn data(&mut self, data: impl Into<Bytes>) {
            self.on(Event::BodyData { peer: peer(), data: data.into() }).unwrap();
        }

        fn end(&mut self, more: bool) -> Option<FromBroker> {
            self.on(Event::BodyEnd { peer: peer(), more }).unwrap()
        }

        fn message(&mut self, list: &[&[u8]]) -> Option<FromBroker> {
            self.on(Event::Message { peer: peer(), frames: frames(list), continued: false }).unwrap()
        }

        fn wait(&mut self) -> FromBroker {
            let start = Instant::now();
            loop {
                if let Some(message) = self.incoming.next() {
                    return message;
                }
                assert!(start.elapsed() < Duration::from_secs(60), "the body isn't written");
                std::thread::yield_now();
            }
        }
    }

    fn peer() -> PeerId {
        PeerId::new(0, 1)
    }

    fn body(mut message: FromBroker) -> Result<Body, String> {
        message.frames.remove(0);
        body_of(message.frames, message.attached)
    }

    #[test]
    fn whole_bodies_go_to_files_and_frames_of_several_to_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = Connection::to(folder.path());
        connection.begin(&[b"head"], 12, false).unwrap();
        connection.data("first ");
        connection.data("second");
        assert!(connection.end(false).is_none());
        let spooled = body(connection.wait()).unwrap();
        assert_eq!((spooled.length(), spooled.large_bytes()), (12, 12));

        connection.begin(&[b"head", b"a"], 1, true).unwrap();
        connection.data("b");
        assert!(connection.end(true).is_none());
        connection.begin(&[], 1, false).unwrap();
        connection.data("c");
        let message = connection.end(false).unwrap();
        assert_eq!(body(message).unwrap().frames().unwrap().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    }

    #[test]
    fn a_folder_that_is_missing_or_too_small_loses_that_body_alone() {
        let folder = tempfile::tempdir().unwrap();
        for (path, length) in [(Path::new("/proc/nowhere"), 4), (folder.path(), u64::MAX)] {
            let mut connection = Connection::to(path);
            connection.begin(&[b"head"], length, false).unwrap();
            connection.data("lost");
            assert!(connection.end(false).is_none());
            assert!(matches!(connection.wait().attached, Attached::Lost(_)));
            assert_eq!(connection.message(&[b"fine"]).unwrap().frames.len(), 1);
        }
    }

    #[test]
    fn a_body_over_the_limit_is_lost_before_it_has_come() {
        let folder = tempfile::tempdir().unwrap();
        let mut connection = Connection::to(folder.path());
        connection.incoming.max_body_bytes = 10;
        let start = Event::BodyStart { peer: peer(), head: frames(&[b"head"]), length: 11, more: false };
        let lost = connection.on(start).unwrap().unwrap();
        assert!(body(lost).unwrap_err().contains("11 bytes, over the limit of 10"));
        connection.data("the first part");
        assert!(connection.end(false).is_none());
        assert_eq!(connection.message(&[b"fine"]).unwrap().frames.len(), 1);
        connection.begin(&[b"head"], 10, false).unwrap();
        connection.data("ten bytes.");
        assert!(connection.end(false).is_none());
        assert_eq!(body(connection.wait()).unwrap().length(), 10);
    }

    #[test]
    fn an_endless_message_ends_the_connection() {
        let mut connection = Connection::to(Path::new("/proc/nowhere"));
        // A frame that is too large for a body is dropped, and the body lost.
        connection.begin(&[b"head"], STREAMED_BYTES_MAX as u64, true).unwrap();
        connection.data(vec![7; SERVICE_BYTES_MAX]);
        assert!(connection.end(true).is_none());
        assert!(body(connection.message(&[b"last"]).unwrap()).unwrap_err().contains("over"));
        let long = vec![7; MESSAGE_BYTES_MAX / 8];
        let mut begun = 0;
        while connection.begin(&[&long], 1, true).is_ok() {
            connection.end(true);
            begun += 1;
        }
        assert!((6..9).contains(&begun), "{begun}");
    }
}
