//! Puts the messages of one connection together: frames, and a body that is one large frame and goes to a file.
//!
//! Messages are taken in the order in which they came. While a body is being written to its file, those behind it wait in a backlog.
//!
//! For each event of a connection there is one method: [`message`](Assembler::message), [`begin`](Assembler::begin),
//! [`data`](Assembler::data), [`end`](Assembler::end), and [`written`](Assembler::written) for a body that has its file. After
//! `written`, messages are taken from [`next_ready`](Assembler::next_ready) until there are none.

use crate::body::{Body, kept};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use towpath_sockets::Frames;

/// Bytes in the backlog above which nothing more should be read. Reading goes on at half of that.
pub const BACKLOG_BYTES_MAX: usize = 1024 * 1024;

/// Bookkeeping bytes of a frame.
const FRAME_BYTES: usize = 64;

/// Bookkeeping bytes of a message in the backlog.
const MESSAGE_BYTES: usize = 256;

/// A body on its way to a file. Dropped before it is finished, it is discarded.
pub trait BodySink: std::fmt::Debug {
    /// Why a body is lost.
    type Lost: std::fmt::Debug;

    /// A number by which [`Assembler::written`] names it, unique on this connection.
    fn number(&self) -> u64;

    /// Appends bytes.
    ///
    /// # Errors
    ///
    /// They can't be kept: why.
    fn write(&mut self, bytes: Bytes) -> Result<(), Self::Lost>;

    /// All of it has come.
    fn finish(self);
}

/// The part of a message that isn't among its frames.
#[derive(Debug, PartialEq, Eq)]
pub enum Attached<L> {
    /// No body.
    Nothing,
    /// A body.
    Body(Body),
    /// A body that came and was not kept: why.
    Lost(L),
}

/// A whole message.
#[derive(Debug)]
pub struct Received<L> {
    /// All frames, without an attached body.
    pub frames: Frames,
    /// The body, if it isn't among the frames.
    pub attached: Attached<L>,
}

/// Destination of a streamed frame.
#[derive(Debug)]
pub enum Destination<S: BodySink> {
    /// To memory: it is one of several frames of a body.
    Memory,
    /// To a file: it is the whole body.
    File(S),
    /// To a file as soon as there is space for it: see [`Assembler::resume`].
    Waiting {
        /// Bytes of the frame.
        length: u64,
    },
    /// Nowhere. What follows of the message is dropped, too.
    Lost(S::Lost),
}

/// The state of the connection's messages after an event.
#[derive(Debug)]
pub enum Progress<L> {
    /// Parts of the message are still to come.
    Incomplete,
    /// A whole message whose turn it is.
    Message(Received<L>),
    /// A whole message was put behind others.
    Queued,
    /// A whole message was put behind others, and waits for its body of this number to be written.
    Writing(u64),
}

/// The messages of one connection: the one that is coming in, and those that wait behind a body on its way to the disk.
#[derive(Debug)]
pub struct Assembler<S: BodySink> {
    current: Option<Partial<S>>,
    backlog: VecDeque<Waiting<S::Lost>>,
    backlog_bytes: usize,
    is_over_limit: bool,
}

/// A message that is coming in.
#[derive(Debug)]
struct Partial<S: BodySink> {
    frames: Frames,
    frames_bytes: usize,
    streamed: Streamed<S>,
}

/// The streamed frame of a message.
#[derive(Debug)]
enum Streamed<S: BodySink> {
    None,
    Memory(BytesMut),
    File(S),
    Waiting { length: u64, bytes: BytesMut },
    Lost(S::Lost),
}

/// A message in the backlog.
#[derive(Debug)]
struct Waiting<L> {
    frames: Frames,
    bytes: usize,
    /// The number of a body that is still being written, or what is attached.
    attached: Result<Attached<L>, u64>,
}

impl<S: BodySink> Default for Assembler<S> {
    fn default() -> Self {
        Assembler { current: None, backlog: VecDeque::new(), backlog_bytes: 0, is_over_limit: false }
    }
}

impl<S: BodySink> Assembler<S> {
    /// Takes [`towpath_sockets::Event::Message`]: a whole message, or the frames behind a streamed one.
    #[inline]
    pub fn message(&mut self, frames: Frames) -> Progress<S::Lost> {
        match self.current.take() {
            None => self.complete(frames, Attached::Nothing),
            Some(mut partial) => match partial.streamed {
                Streamed::Lost(why) => self.complete(partial.frames, Attached::Lost(why)),
                _ => {
                    partial.extend(frames);
                    self.complete(partial.frames, Attached::Nothing)
                }
            },
        }
    }

    /// Takes [`towpath_sockets::Event::BodyStart`]. `destination` is asked with all frames before the streamed one.
    pub fn begin(&mut self, head: Frames, destination: impl FnOnce(&[Bytes]) -> Destination<S>) {
        let partial = self.current.get_or_insert_with(Partial::new);
        if matches!(partial.streamed, Streamed::Lost(_)) {
            return;
        }
        partial.extend(head);
        partial.streamed = match destination(&partial.frames) {
            Destination::Memory => Streamed::Memory(BytesMut::new()),
            Destination::File(sink) => Streamed::File(sink),
            Destination::Waiting { length } => Streamed::Waiting { length, bytes: BytesMut::new() },
            Destination::Lost(why) => Streamed::Lost(why),
        };
    }

    /// Takes [`towpath_sockets::Event::BodyData`].
    pub fn data(&mut self, data: Bytes) {
        let Some(partial) = &mut self.current else { return };
        match &mut partial.streamed {
            Streamed::File(sink) => {
                if let Err(why) = sink.write(data) {
                    partial.streamed = Streamed::Lost(why);
                }
            }
            // A copy: the buffer that it was read into is used again.
            Streamed::Memory(bytes) | Streamed::Waiting { bytes, .. } => bytes.extend_from_slice(&data),
            Streamed::None | Streamed::Lost(_) => {}
        }
    }

    /// Takes [`towpath_sockets::Event::BodyEnd`]. `no_space` is why a body is lost that still waits for space.
    pub fn end(&mut self, more: bool, no_space: impl FnOnce() -> S::Lost) -> Progress<S::Lost> {
        let Some(mut partial) = self.current.take() else { return Progress::Incomplete };
        match std::mem::replace(&mut partial.streamed, Streamed::None) {
            Streamed::None => {}
            Streamed::Memory(bytes) => partial.push(bytes.freeze()),
            Streamed::File(sink) => {
                let number = sink.number();
                sink.finish();
                self.enqueue(partial.frames, Err(number));
                return Progress::Writing(number);
            }
            Streamed::Waiting { .. } => partial.streamed = Streamed::Lost(no_space()),
            lost @ Streamed::Lost(_) => partial.streamed = lost,
        }
        if more {
            self.current = Some(partial);
            return Progress::Incomplete;
        }
        let attached = if let Streamed::Lost(why) = partial.streamed { Attached::Lost(why) } else { Attached::Nothing };
        self.complete(partial.frames, attached)
    }

    /// Takes a message for complete whose body is lost, without its body. What comes of that later is dropped.
    pub fn cut_short(&mut self) -> Progress<S::Lost> {
        match self.current.take() {
            Some(Partial { frames, streamed: Streamed::Lost(why), .. }) => self.complete(frames, Attached::Lost(why)),
            other => {
                self.current = other;
                Progress::Incomplete
            }
        }
    }

    /// Bytes of a body that waits for space, if there is one.
    pub fn waits_for_space(&self) -> Option<u64> {
        match self.current.as_ref()?.streamed {
            Streamed::Waiting { length, .. } => Some(length),
            _ => None,
        }
    }

    /// Goes on with a body that waited for space.
    pub fn resume(&mut self, mut sink: S) {
        if let Some(partial) = &mut self.current
            && let Streamed::Waiting { bytes, .. } = &mut partial.streamed
        {
            let written = sink.write(std::mem::take(bytes).freeze());
            partial.streamed = written.map_or_else(Streamed::Lost, |()| Streamed::File(sink));
        }
    }

    /// Gives up the body that is coming in, of which only `head_frames` frames before it are kept.
    pub fn lose_body(&mut self, head_frames: usize, why: S::Lost) {
        let partial = self.current.get_or_insert_with(Partial::new);
        partial.frames.truncate(head_frames);
        partial.frames_bytes = partial.frames.iter().map(|frame| FRAME_BYTES + frame.len()).sum();
        partial.streamed = Streamed::Lost(why);
    }

    /// A body has its file, or is lost. [`next_ready`](Assembler::next_ready) has the messages whose turn has come.
    pub fn written(&mut self, number: u64, attached: Attached<S::Lost>) {
        if let Some(waiting) = self.backlog.iter_mut().find(|waiting| matches!(waiting.attached, Err(n) if n == number))
        {
            waiting.attached = Ok(attached);
        }
    }

    /// The first message of the backlog, unless its body is still being written.
    pub fn next_ready(&mut self) -> Option<Received<S::Lost>> {
        match self.backlog.pop_front() {
            Some(Waiting { frames, bytes, attached: Ok(attached) }) => {
                self.backlog_bytes -= bytes;
                Some(Received { frames, attached })
            }
            first => {
                first.into_iter().for_each(|writing| self.backlog.push_front(writing));
                self.is_over_limit &= self.backlog_bytes > BACKLOG_BYTES_MAX / 2;
                None
            }
        }
    }

    /// Frames of the message that is coming in, if a frame of it has been streamed and its body isn't lost.
    pub fn partial(&self) -> Option<&[Bytes]> {
        let partial = self.current.as_ref()?;
        (!matches!(partial.streamed, Streamed::Lost(_))).then_some(&partial.frames)
    }

    /// Bytes in memory of the message that is coming in.
    pub fn partial_bytes(&self) -> usize {
        self.current.as_ref().map_or(0, Partial::bytes)
    }

    /// Bytes in memory of everything that can't be taken yet.
    pub fn bytes(&self) -> usize {
        self.backlog_bytes + self.partial_bytes()
    }

    /// Whether messages wait for the disk.
    #[inline]
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Whether nothing more should be read until messages have been taken.
    pub fn is_over_limit(&self) -> bool {
        self.is_over_limit
    }

    /// Drops the message that is coming in: its connection is gone.
    pub fn drop_partial(&mut self) {
        self.current = None;
    }

    #[inline]
    fn complete(&mut self, frames: Frames, attached: Attached<S::Lost>) -> Progress<S::Lost> {
        if self.backlog.is_empty() {
            return Progress::Message(Received { frames, attached });
        }
        self.enqueue(frames.into_iter().map(kept).collect(), Ok(attached));
        Progress::Queued
    }

    fn enqueue(&mut self, frames: Frames, attached: Result<Attached<S::Lost>, u64>) {
        let bytes = MESSAGE_BYTES + frames.iter().map(|frame| FRAME_BYTES + frame.len()).sum::<usize>();
        self.backlog_bytes += bytes;
        self.is_over_limit |= self.backlog_bytes > BACKLOG_BYTES_MAX;
        self.backlog.push_back(Waiting { frames, bytes, attached });
    }
}

impl<S: BodySink> Partial<S> {
    fn new() -> Partial<S> {
        Partial { frames: Frames::new(), frames_bytes: 0, streamed: Streamed::None }
    }

    fn bytes(&self) -> usize {
        self.frames_bytes
            + match &self.streamed {
                Streamed::Memory(bytes) | Streamed::Waiting { bytes, .. } => bytes.len(),
                Streamed::None | Streamed::File(_) | Streamed::Lost(_) => 0,
            }
    }

    fn extend(&mut self, frames: Frames) {
        frames.into_iter().for_each(|frame| self.push(kept(frame)));
    }

    fn push(&mut self, frame: Bytes) {
        self.frames_bytes += FRAME_BYTES + frame.len();
        self.frames.push(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    /// Files in memory, by number, of which some are full.
    type Files = Rc<RefCell<BTreeMap<u64, (Vec<u8>, bool)>>>;

    #[derive(Debug)]
    struct File {
        number: u64,
        space: usize,
        files: Files,
    }

    impl BodySink for File {
        type Lost = &'static str;

        fn number(&self) -> u64 {
            self.number
        }

        fn write(&mut self, bytes: Bytes) -> Result<(), &'static str> {
            self.space = self.space.checked_sub(bytes.len()).ok_or("full")?;
            self.files.borrow_mut().entry(self.number).or_default().0.extend_from_slice(&bytes);
            Ok(())
        }

        fn finish(self) {
            self.files.borrow_mut().entry(self.number).or_default().1 = true;
        }
    }

    fn frames(list: &[&[u8]]) -> Frames {
        list.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
    }

    fn message(progress: Progress<&'static str>) -> Received<&'static str> {
        let Progress::Message(message) = progress else { panic!("{progress:?}") };
        message
    }

    #[test]
    fn messages_behind_a_body_wait_for_its_file() {
        let files = Files::default();
        let mut assembler: Assembler<File> = Assembler::default();
        assembler.begin(frames(&[b"head"]), |_| Destination::File(File { number: 7, space: 9, files: files.clone() }));
        assembler.data("body".into());
        assert!(matches!(assembler.end(false, || "no space"), Progress::Writing(7)));
        assert!(files.borrow()[&7].1);
        assert!(matches!(assembler.message(frames(&[b"behind"])), Progress::Queued));
        assert!(assembler.next_ready().is_none() && assembler.has_backlog() && !assembler.is_over_limit());
        assert!(matches!(assembler.message(frames(&[&vec![7; BACKLOG_BYTES_MAX]])), Progress::Queued));
        assert!(assembler.is_over_limit());
        assembler.written(7, Attached::Body("body".into()));
        let first = assembler.next_ready().unwrap();
        assert_eq!((&first.frames[0][..], first.attached), (&b"head"[..], Attached::Body("body".into())));
        assert_eq!(assembler.next_ready().unwrap().frames[0], "behind");
        assert!(assembler.is_over_limit());
        assembler.next_ready().unwrap();
        assert!(assembler.next_ready().is_none() && !assembler.is_over_limit() && !assembler.has_backlog());
        assert_eq!(assembler.bytes(), 0);
    }

    #[test]
    fn a_body_that_waits_for_space_goes_on_or_is_lost() {
        let files = Files::default();
        for space in [Some(9), Some(2), None] {
            let mut assembler: Assembler<File> = Assembler::default();
            assembler.begin(frames(&[b"head"]), |_| Destination::Waiting { length: 6 });
            assembler.data("one".into());
            assert_eq!(assembler.waits_for_space(), Some(6));
            if let Some(space) = space {
                assembler.resume(File { number: 1, space, files: files.clone() });
                assert_eq!(assembler.waits_for_space(), None);
            }
            assembler.data("two".into());
            let progress = assembler.end(false, || "no space");
            match space {
                Some(9) => assert!(matches!(progress, Progress::Writing(1))),
                Some(_) => assert_eq!(message(progress).attached, Attached::Lost("full")),
                None => assert_eq!(message(progress).attached, Attached::Lost("no space")),
            }
        }
    }

    #[test]
    fn the_rest_of_a_message_whose_body_is_lost_is_dropped() {
        let mut assembler: Assembler<File> = Assembler::default();
        assembler.begin(frames(&[b"head", b"some"]), |_| Destination::Memory);
        assembler.data("more".into());
        assert!(matches!(assembler.end(true, || "no space"), Progress::Incomplete));
        assert_eq!(assembler.partial().map(<[Bytes]>::len), Some(3));
        assembler.lose_body(1, "too large");
        assembler.begin(frames(&[b"dropped"]), |_| unreachable!());
        assembler.data("dropped".into());
        assert!(matches!(assembler.end(true, || "no space"), Progress::Incomplete));
        let message = message(assembler.message(frames(&[b"dropped"])));
        assert_eq!((message.frames.len(), message.attached), (1, Attached::Lost("too large")));
    }

    proptest! {
        /// Whatever the order in which files are written, messages come in the order in which they were sent, each once.
        #[test]
        fn messages_come_in_order(
            bodies in prop::collection::vec(any::<bool>(), 1..40),
            order in prop::collection::vec(any::<prop::sample::Index>(), 40),
        ) {
            let files = Files::default();
            let mut assembler: Assembler<File> = Assembler::default();
            let (mut writing, mut came) = (Vec::new(), Vec::new());
            for (at, in_file) in bodies.iter().enumerate() {
                let name = [at as u8];
                let progress = if *in_file {
                    let file = File { number: at as u64, space: 1, files: files.clone() };
                    assembler.begin(frames(&[&name]), |_| Destination::File(file));
                    assembler.data("x".into());
                    assembler.end(false, || "no space")
                } else {
                    assembler.message(frames(&[&name]))
                };
                match progress {
                    Progress::Message(message) => came.push(message.frames[0][0]),
                    Progress::Writing(number) => writing.push(number),
                    Progress::Queued => {}
                    Progress::Incomplete => unreachable!(),
                }
                if at % 3 == 2 && !writing.is_empty() {
                    assembler.written(writing.remove(order[at].index(writing.len())), Attached::Nothing);
                    came.extend(std::iter::from_fn(|| assembler.next_ready()).map(|message| message.frames[0][0]));
                }
            }
            for number in writing.into_iter().rev() {
                assembler.written(number, Attached::Nothing);
            }
            came.extend(std::iter::from_fn(|| assembler.next_ready()).map(|message| message.frames[0][0]));
            prop_assert_eq!(came, (0..bodies.len() as u8).collect::<Vec<_>>());
            prop_assert_eq!(assembler.bytes(), 0);
        }
    }
}
