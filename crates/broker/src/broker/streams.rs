//! Bodies too large for memory: from the socket to a file, on a thread that may wait for the disk.

use super::connection::Connection;
use super::outbound::set_reading;
use super::{Broker, BrokerOptions};
use crate::body::{Arriving, Body};
use crate::limits::BODY_BYTES_MAX;
use crate::mdp::{self, FromPeer, WorkerCommand};
use crate::spool::{Spool, SpoolWriter, SpooledBody};
use crate::wire::{CLIENT_HEADER, Content, FromClient, FromWorker, WORKER_HEADER, WireError};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use towpath_sockets::{Frames, PeerId, Waker};

/// A message of which a frame arrives as a stream.
#[derive(Debug)]
pub(super) struct Incoming {
    frames: Frames,
    /// What they cost.
    frames_bytes: usize,
    sink: Sink,
}

/// What a frame costs beside its octets.
const FRAME_BYTES: usize = 64;

impl Incoming {
    fn new() -> Incoming {
        Incoming { frames: Frames::new(), frames_bytes: 0, sink: Sink::Idle }
    }

    fn extend(&mut self, frames: Frames) {
        self.frames_bytes += frames.iter().map(|frame| FRAME_BYTES + frame.len()).sum::<usize>();
        self.frames.extend(frames);
    }

    /// Octets of memory.
    pub fn bytes(&self) -> usize {
        let sink = if let Sink::Memory(octets) = &self.sink { octets.len() } else { 0 };
        self.frames_bytes + sink
    }

    /// Whether so many octets more are too many for a body of several frames, which is held in memory.
    fn is_too_large_with(&self, length: u64) -> bool {
        let in_memory: usize = self.frames.iter().map(Bytes::len).sum();
        length.saturating_add(in_memory as u64) > BODY_BYTES_MAX as u64
    }
}

const TOO_LARGE: &str = "a body of several frames, or a frame that is no body, of more than 64 MiB";

#[derive(Debug)]
enum Sink {
    /// Between two frames.
    Idle,
    /// To a file: it is the whole body.
    Spool(Ticket),
    /// Into memory: it is one of several frames of a body.
    Memory(BytesMut),
}

/// A body on its way to a file. Dropped before it is finished, it was in vain.
#[derive(Debug)]
struct Ticket {
    number: u64,
    jobs: Sender<Job>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let _ = self.jobs.send(Job::Abandon(self.number));
    }
}

/// Octets of messages that may wait behind one whose body is on its way to the disk.
const BEHIND_BYTES_MAX: usize = 1024 * 1024;

/// A message that has arrived, but for what goes to a file.
#[derive(Debug)]
pub(super) struct Arrived {
    frames: Frames,
    /// `None`: it is still being written.
    attached: Option<Attached>,
    /// Of the ticket, if there is one.
    number: u64,
}

impl Arrived {
    fn bytes(&self) -> usize {
        const EACH: usize = 256;
        EACH + self.frames.iter().map(Bytes::len).sum::<usize>()
    }
}

impl Connection {
    fn put_behind(&mut self, arrived: Arrived) {
        self.behind_bytes += arrived.bytes();
        self.is_far_behind |= self.behind_bytes > BEHIND_BYTES_MAX;
        self.behind.push_back(arrived);
    }
}

enum Job {
    Write(u64, Bytes),
    Finish(u64),
    Abandon(u64),
}

/// What the thread that writes has finished.
type Finished = (u64, io::Result<Arc<SpooledBody>>);

/// The thread that writes, and what it is to finish.
pub(super) struct Streams {
    jobs: Sender<Job>,
    finished: Receiver<Finished>,
    /// Whose bodies go to files.
    awaited: HashMap<u64, PeerId>,
    next: u64,
}

impl Streams {
    pub fn start(options: &BrokerOptions, waker: Waker) -> io::Result<Streams> {
        let directory = options.spool.clone().or_else(|| options.journal.as_ref().map(|journal| journal.join("spool")));
        let spool = Spool::new(directory.unwrap_or_else(crate::link::default_spool_folder))?;
        // What the journal names must be on the disk, and only this thread may wait for that.
        let sync = options.journal.is_some();
        let (jobs, to_do) = channel();
        let (done, finished) = channel();
        std::thread::Builder::new()
            .name("spool".to_owned())
            .spawn(move || write(&spool, sync, &to_do, &done, &waker))?;
        Ok(Streams { jobs, finished, awaited: HashMap::new(), next: 0 })
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket { number: self.next, jobs: self.jobs.clone() }
    }
}

/// Writes what arrives until nobody can send anything more.
fn write(spool: &Spool, sync: bool, jobs: &Receiver<Job>, done: &Sender<Finished>, waker: &Waker) {
    let mut files: HashMap<u64, io::Result<SpoolWriter>> = HashMap::new();
    for job in jobs {
        match job {
            Job::Write(number, octets) => {
                let file = files.entry(number).or_insert_with(|| spool.create());
                if let Ok(writer) = file
                    && let Err(error) = writer.write(&octets)
                {
                    *file = Err(error);
                }
            }
            Job::Finish(number) => {
                let body = match files.remove(&number) {
                    Some(file) => file.map(SpoolWriter::finish),
                    None => spool.create().map(SpoolWriter::finish),
                };
                let body = body.and_then(|body| if sync { body.sync().map(|()| body) } else { Ok(body) });
                if done.send((number, body)).is_err() {
                    return;
                }
                waker.wake();
            }
            Job::Abandon(number) => {
                files.remove(&number);
            }
        }
    }
}

/// What came behind a block.
#[derive(Debug)]
pub(super) enum Attached {
    Nothing,
    Body(Body),
    /// It came, and there was no room for it on the disk.
    Lost,
}

/// The body of a record; `None`: it is lost.
#[inline]
pub(super) fn body_of<'a>(
    content: Content<'a>,
    block: &Bytes,
    attached: &mut Attached,
) -> Result<Option<Arriving<'a>>, WireError> {
    if !matches!(content, Content::Attached { .. }) {
        return content.arriving(block, None).map(Some);
    }
    match std::mem::replace(attached, Attached::Nothing) {
        Attached::Nothing => Err(WireError::Attachment),
        Attached::Body(body) => content.arriving(block, Some(body)).map(Some),
        Attached::Lost => Ok(None),
    }
}

/// Whether the frame that follows is all of a body, so that it may go to a file.
fn is_whole_body(frames: &[Bytes]) -> bool {
    let many = Content::Attached { many: true };
    match frames {
        [header, block] if header == CLIENT_HEADER => !records(block, FromClient::decode)
            .any(|record| matches!(record, FromClient::Request { content, .. } if content == many)),
        [header, block] if header == WORKER_HEADER => !records(block, FromWorker::decode)
            .any(|record| matches!(record, FromWorker::Reply { content, .. } if content == many)),
        _ => {
            let with_body: Vec<Bytes> = frames.iter().cloned().chain([Bytes::new()]).collect();
            match mdp::decode(&with_body) {
                Ok(FromPeer::Request { body, .. }) => body.len() == 1,
                Ok(FromPeer::Worker { command: WorkerCommand::Reply { body, .. }, .. }) => body.len() == 1,
                _ => false,
            }
        }
    }
}

fn records<'a, T>(block: &'a Bytes, decode: impl Fn(&mut &'a [u8]) -> Result<T, WireError>) -> impl Iterator<Item = T> {
    let mut rest = &block[..];
    std::iter::from_fn(move || if rest.is_empty() { None } else { decode(&mut rest).ok() })
}

impl Broker {
    pub(super) fn on_body_start(&mut self, id: PeerId, head: Frames, length: u64, more: bool) {
        let Some(connection) = self.connections.of(id) else { return };
        let incoming = connection.incoming.get_or_insert_with(Incoming::new);
        incoming.extend(head);
        incoming.sink = if !more && is_whole_body(&incoming.frames) {
            Sink::Spool(self.streams.ticket())
        } else if !incoming.is_too_large_with(length) {
            Sink::Memory(BytesMut::new())
        } else {
            return self.reject(id, TOO_LARGE);
        };
        self.hold(id);
    }

    /// Counts what a connection holds of messages that can't be taken yet. Whoever sends in parts and never comes to an end holds as
    /// much as a message may have; where there are too many of them, the one that holds the most is sent away.
    fn hold(&mut self, id: PeerId) {
        if self.connections.recount(id) > self.held_bytes_max
            && let Some(largest) = self.connections.largest()
        {
            self.reject(
                largest,
                "too much memory is in messages that have not come whole, and this peer's was the largest",
            );
        }
    }

    pub(super) fn on_body_data(&mut self, id: PeerId, data: Bytes) {
        let Some(incoming) = self.connections.of(id).and_then(|connection| connection.incoming.as_mut()) else {
            return;
        };
        match &mut incoming.sink {
            Sink::Spool(ticket) => {
                let _ = ticket.jobs.send(Job::Write(ticket.number, data));
            }
            Sink::Memory(octets) => {
                octets.extend_from_slice(&data);
                self.hold(id);
            }
            Sink::Idle => {}
        }
    }

    pub(super) fn on_body_end(&mut self, id: PeerId, more: bool) {
        let Some(connection) = self.connections.of(id) else { return };
        let Some(mut incoming) = connection.incoming.take() else { return };
        match std::mem::replace(&mut incoming.sink, Sink::Idle) {
            Sink::Spool(ticket) => {
                let _ = ticket.jobs.send(Job::Finish(ticket.number));
                self.streams.awaited.insert(ticket.number, id);
                connection.put_behind(Arrived { frames: incoming.frames, attached: None, number: ticket.number });
                return self.hold(id);
            }
            Sink::Memory(octets) => incoming.extend([octets.freeze()].into_iter().collect()),
            Sink::Idle => incoming.extend([Bytes::new()].into_iter().collect()),
        }
        if more {
            connection.incoming = Some(incoming);
            self.hold(id);
        } else {
            self.connections.recount(id);
            self.on_whole(id, incoming.frames);
        }
    }

    /// The frames behind the last streamed one.
    pub(super) fn on_rest(&mut self, id: PeerId, rest: Frames) {
        let Some(incoming) = self.connections.of(id).and_then(|connection| connection.incoming.take()) else { return };
        self.connections.recount(id);
        if incoming.is_too_large_with(rest.iter().map(|frame| frame.len() as u64).sum()) {
            return self.reject(id, TOO_LARGE);
        }
        let mut frames = incoming.frames;
        frames.extend(rest);
        self.on_whole(id, frames);
    }

    /// Messages whose bodies have arrived on the disk.
    pub(super) fn take_spooled(&mut self) {
        while let Ok((number, body)) = self.streams.finished.try_recv() {
            let Some(id) = self.streams.awaited.remove(&number) else { continue };
            let attached = match body {
                Ok(body) => Attached::Body(Body::large(body)),
                Err(error) => {
                    tracing::error!(%error, "a large body can't be written to disk");
                    Attached::Lost
                }
            };
            let Some(connection) = self.connections.of(id) else { continue };
            if let Some(arrived) = connection.behind.iter_mut().find(|arrived| arrived.number == number) {
                arrived.attached = Some(attached);
            }
            self.catch_up(id);
        }
    }

    /// A message that is whole, and in memory.
    #[inline]
    pub(super) fn on_whole(&mut self, id: PeerId, frames: Frames) {
        let Some(connection) = self.connections.of(id) else { return };
        if connection.behind.is_empty() {
            return self.on_message(id, &frames, Attached::Nothing);
        }
        connection.put_behind(Arrived { frames, attached: Some(Attached::Nothing), number: 0 });
        set_reading(&mut self.hub, connection);
        self.hold(id);
    }

    /// Takes the messages whose turn has come.
    fn catch_up(&mut self, id: PeerId) {
        while let Some(connection) = self.connections.of(id) {
            let attached = connection.behind.front_mut().and_then(|arrived| arrived.attached.take());
            let Some(attached) = attached else {
                if connection.is_gone && connection.behind.is_empty() {
                    return self.forget(id);
                }
                connection.is_far_behind &= connection.behind_bytes > BEHIND_BYTES_MAX / 2;
                return set_reading(&mut self.hub, connection);
            };
            let Some(arrived) = connection.behind.pop_front() else { return };
            connection.behind_bytes -= arrived.bytes();
            self.connections.recount(id);
            self.on_message(id, &arrived.frames, attached);
        }
    }
}
