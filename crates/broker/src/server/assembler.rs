//! Messages with a frame that comes as a stream: to a file if it is the whole body, and else into memory.

use super::Broker;
use super::connection::Connection;
use super::encode::{give_up, set_reading};
use super::spooler::{Lost, Ticket};
use bytes::{Bytes, BytesMut};
use towpath_journal::spool::{BodyOf, NoRoom};
use towpath_requests::body::{Arriving, Body, kept};
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX};
use towpath_requests::majordomo::{self, FromPeer, WorkerCommand};
use towpath_requests::numbered::{CLIENT_HEADER, Content, FromClient, FromWorker, WORKER_HEADER, WireError};
use towpath_sockets::{Frames, PeerId};

/// A message of which a frame arrives as a stream.
#[derive(Debug)]
pub(super) struct Incoming {
    frames: Frames,
    /// What they cost.
    frames_bytes: usize,
    sink: Sink,
}

/// What a frame costs beside its bytes.
const FRAME_BYTES: usize = 64;

impl Incoming {
    fn new() -> Incoming {
        Incoming { frames: Frames::new(), frames_bytes: 0, sink: Sink::Idle }
    }

    fn extend(&mut self, frames: Frames) {
        self.frames_bytes += frames.iter().map(|frame| FRAME_BYTES + frame.len()).sum::<usize>();
        self.frames.extend(frames.into_iter().map(kept));
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let sink = match &self.sink {
            Sink::Memory(bytes) | Sink::Awaiting { bytes, .. } => bytes.len(),
            Sink::Idle | Sink::Spool(_) | Sink::Nowhere(_) => 0,
        };
        self.frames_bytes + sink
    }

    /// Whether so many bytes more may be held in memory: those of a body of several frames, in whichever form it comes, or of
    /// what is no body.
    fn fit_with(&self, length: u64) -> Fit {
        let head = head_of(&self.frames);
        let most = match head {
            // Each frame of a list has its length before it. How many there are is seen when it is here.
            Some(Head { is_numbered: true, .. }) => BODY_BYTES_MAX + 4 * BODY_FRAMES_MAX,
            _ => BODY_BYTES_MAX,
        };
        let before = head.as_ref().map_or(0, |head| head.frames);
        let in_memory: usize = self.frames.iter().skip(before).map(Bytes::len).sum();
        match head {
            _ if length.saturating_add(in_memory as u64) <= most as u64 => Fit::Yes,
            Some(head) => Fit::TooLarge(head.frames),
            None => Fit::NoBody,
        }
    }

    /// Of a body that is too large only what comes before it is kept.
    fn lose_body(&mut self, head: usize) {
        self.frames.truncate(head);
        self.frames_bytes = self.frames.iter().map(|frame| FRAME_BYTES + frame.len()).sum();
        self.sink = Sink::Nowhere(Lost::TooLarge);
    }
}

/// Whether there is memory for a message.
enum Fit {
    Yes,
    /// Its body is too large, and has so many frames before it.
    TooLarge(usize),
    /// What is too large is no body, so nobody could be told.
    NoBody,
}

const TOO_LARGE: &str = "a frame that is no body, of more than 64 MiB";

#[derive(Debug)]
enum Sink {
    /// Between two frames.
    Idle,
    /// To a file: it is the whole body.
    Spool(Ticket),
    /// The same, when there is room for so many bytes. No more is read meanwhile; this is what had been read.
    Awaiting { length: u64, bytes: BytesMut },
    /// There is no room for the body, or it is too large: what comes of it is dropped, and its sender told so at the end.
    Nowhere(Lost),
    /// Into memory: it is one of several frames of a body.
    Memory(BytesMut),
}

impl Sink {
    /// To a file, with the first bytes of it.
    fn filled(ticket: Ticket, bytes: Bytes) -> Sink {
        match ticket.write(bytes) {
            Ok(()) => Sink::Spool(ticket),
            Err(no_room) => Sink::Nowhere(Lost::NoRoom(no_room)),
        }
    }
}

/// Bytes of messages that may wait behind one whose body is on its way to the disk.
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

/// What came behind a block.
#[derive(Debug)]
pub(super) enum Attached {
    Nothing,
    Body(Body),
    /// It came, and isn't here.
    Lost(Lost),
}

/// The body of a record, or why it isn't here.
#[inline]
pub(super) fn body_of<'a>(
    content: Content<'a>,
    block: &Bytes,
    attached: &mut Attached,
) -> Result<Result<Arriving<'a>, Lost>, WireError> {
    if !matches!(content, Content::Attached { .. }) {
        return content.arriving(block, None).map(Ok);
    }
    match std::mem::replace(attached, Attached::Nothing) {
        Attached::Nothing => Err(WireError::Attachment),
        Attached::Body(body) => match content.arriving(block, Some(body))? {
            Arriving::Body(body) if is_too_large(&body) => Ok(Err(Lost::TooLarge)),
            arriving => Ok(Ok(arriving)),
        },
        Attached::Lost(lost) => Ok(Err(lost)),
    }
}

/// Whether a body is too large to be in memory, where all are that have several frames.
pub(super) fn is_too_large(body: &Body) -> bool {
    body.large_bytes() == 0 && body.length() > BODY_BYTES_MAX as u64
}

/// What comes before a body.
struct Head {
    /// How many frames.
    frames: usize,
    /// The body is one frame then, which may be a list of frames.
    is_numbered: bool,
}

/// What these frames begin with, if the next one is of a body.
fn head_of(frames: &[Bytes]) -> Option<Head> {
    if let [header, _] = frames
        && (header == CLIENT_HEADER || header == WORKER_HEADER)
    {
        return Some(Head { frames: 2, is_numbered: true });
    }
    let with_next: Vec<Bytes> = frames.iter().cloned().chain([Bytes::new()]).collect();
    match majordomo::decode(&with_next) {
        Ok(FromPeer::Request { body, .. } | FromPeer::Worker { command: WorkerCommand::Reply { body, .. }, .. }) => {
            Some(Head { frames: with_next.len() - body.len(), is_numbered: false })
        }
        _ => None,
    }
}

/// What the frame that follows is all of, so that it may go to a file; and whether a stock client sends it.
fn whole_body(frames: &[Bytes]) -> Option<(BodyOf, bool)> {
    match frames {
        [header, block] if header == CLIENT_HEADER => {
            (!FromClient::announces_list(block)).then_some((BodyOf::Request, false))
        }
        [header, block] if header == WORKER_HEADER => {
            (!FromWorker::announces_list(block)).then_some((BodyOf::Reply, false))
        }
        _ => {
            let with_body: Vec<Bytes> = frames.iter().cloned().chain([Bytes::new()]).collect();
            match majordomo::decode(&with_body) {
                Ok(FromPeer::Request { body, .. }) => (body.len() == 1).then_some((BodyOf::Request, true)),
                Ok(FromPeer::Worker { command: WorkerCommand::Reply { body, .. }, .. }) => {
                    (body.len() == 1).then_some((BodyOf::Reply, false))
                }
                _ => None,
            }
        }
    }
}

impl Broker {
    pub(super) fn on_body_start(&mut self, id: PeerId, head: Frames, length: u64, more: bool) {
        let Some(connection) = self.connections.of(id) else { return };
        let incoming = connection.incoming.get_or_insert_with(Incoming::new);
        if matches!(incoming.sink, Sink::Nowhere(_)) {
            return;
        }
        incoming.extend(head);
        let whole = if more { None } else { whole_body(&incoming.frames) };
        incoming.sink = match whole {
            // One that can't be told to come again waits, in its turn.
            Some((kind, true)) => match self.spooling.begin_in_turn(kind, length) {
                Ok(ticket) => Sink::Spool(ticket),
                Err(NoRoom::Now) => {
                    self.spooling.queue.push_back(id);
                    connection.awaits_room = true;
                    Sink::Awaiting { length, bytes: BytesMut::new() }
                }
                Err(NoRoom::Ever) => Sink::Nowhere(Lost::NoRoom(NoRoom::Ever)),
            },
            Some((kind, false)) => match self.spooling.begin(kind, length) {
                Ok(ticket) => Sink::Spool(ticket),
                Err(no_room) => Sink::Nowhere(Lost::NoRoom(no_room)),
            },
            None => match incoming.fit_with(length) {
                Fit::Yes => Sink::Memory(BytesMut::new()),
                Fit::TooLarge(head) => {
                    incoming.lose_body(head);
                    return self.hold(id);
                }
                Fit::NoBody => return self.reject(id, TOO_LARGE),
            },
        };
        if connection.awaits_room {
            set_reading(&mut self.hub, connection);
            give_up(&mut self.hub, connection);
        }
        self.hold(id);
    }

    /// Goes on reading from stock clients for whose bodies there is room by now.
    pub(super) fn make_room(&mut self) {
        if self.spooling.queue.is_empty() {
            return;
        }
        let connections = &mut self.connections;
        self.spooling.queue.retain(|id| connections.of(*id).is_some_and(|connection| connection.awaits_room));
        while let Some(&id) = self.spooling.queue.front() {
            let Some(connection) = self.connections.of(id) else { return };
            let Some(incoming) = &mut connection.incoming else { return };
            let Sink::Awaiting { length, bytes } = &mut incoming.sink else { return };
            let Ok(ticket) = self.spooling.begin(BodyOf::Request, *length) else { return };
            incoming.sink = Sink::filled(ticket, std::mem::take(bytes).freeze());
            self.spooling.queue.pop_front();
            connection.awaits_room = false;
            set_reading(&mut self.hub, connection);
            self.connections.recount(id);
        }
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
                if let Err(no_room) = ticket.write(data) {
                    incoming.sink = Sink::Nowhere(Lost::NoRoom(no_room));
                }
            }
            // A copy: what it was read into is for others meanwhile.
            Sink::Memory(bytes) | Sink::Awaiting { bytes, .. } => {
                bytes.extend_from_slice(&data);
                self.hold(id);
            }
            Sink::Idle | Sink::Nowhere(_) => {}
        }
    }

    pub(super) fn on_body_end(&mut self, id: PeerId, more: bool) {
        let Some(connection) = self.connections.of(id) else { return };
        let Some(mut incoming) = connection.incoming.take() else { return };
        match std::mem::replace(&mut incoming.sink, Sink::Idle) {
            Sink::Spool(ticket) => {
                ticket.finish();
                self.spooling.awaited.insert(ticket.number(), id);
                connection.put_behind(Arrived { frames: incoming.frames, attached: None, number: ticket.number() });
                return self.hold(id);
            }
            // Frames of it follow, which go the same way.
            Sink::Nowhere(lost) if more => {
                incoming.sink = Sink::Nowhere(lost);
                connection.incoming = Some(incoming);
                return;
            }
            Sink::Nowhere(lost) => {
                self.connections.recount(id);
                return self.on_whole(id, incoming.frames, Attached::Lost(lost));
            }
            // It had come to its end before it could be stopped.
            Sink::Awaiting { .. } => {
                connection.awaits_room = false;
                set_reading(&mut self.hub, connection);
                self.connections.recount(id);
                return self.on_whole(id, incoming.frames, Attached::Lost(Lost::NoRoom(NoRoom::Now)));
            }
            Sink::Memory(bytes) => incoming.extend([bytes.freeze()].into_iter().collect()),
            Sink::Idle => incoming.extend([Bytes::new()].into_iter().collect()),
        }
        if more {
            connection.incoming = Some(incoming);
            self.hold(id);
        } else {
            self.connections.recount(id);
            self.on_whole(id, incoming.frames, Attached::Nothing);
        }
    }

    /// The frames behind the last streamed one.
    pub(super) fn on_rest(&mut self, id: PeerId, rest: Frames) {
        let Some(mut incoming) = self.connections.of(id).and_then(|connection| connection.incoming.take()) else {
            return;
        };
        self.connections.recount(id);
        if !matches!(incoming.sink, Sink::Nowhere(_)) {
            match incoming.fit_with(rest.iter().map(|frame| frame.len() as u64).sum()) {
                Fit::Yes => {
                    incoming.frames.extend(rest);
                    return self.on_whole(id, incoming.frames, Attached::Nothing);
                }
                Fit::TooLarge(head) => incoming.lose_body(head),
                Fit::NoBody => return self.reject(id, TOO_LARGE),
            }
        }
        if let Sink::Nowhere(lost) = incoming.sink {
            self.on_whole(id, incoming.frames, Attached::Lost(lost));
        }
    }

    /// Messages whose bodies have arrived on the disk.
    pub(super) fn take_spooled(&mut self) {
        while let Some((number, body)) = self.spooling.writing.next_finished() {
            let Some(id) = self.spooling.awaited.remove(&number) else { continue };
            let attached = match body {
                Ok(body) => Attached::Body(Body::large(body)),
                Err(error) => {
                    let directory = self.spooling.directory.display();
                    tracing::error!(%directory, %error, "a large body can't be written to disk");
                    Attached::Lost(Lost::Unwritten)
                }
            };
            let Some(connection) = self.connections.of(id) else { continue };
            if let Some(arrived) = connection.behind.iter_mut().find(|arrived| arrived.number == number) {
                arrived.attached = Some(attached);
            }
            self.catch_up(id);
        }
    }

    /// A message that is whole, and nothing of it on its way to the disk.
    #[inline]
    pub(super) fn on_whole(&mut self, id: PeerId, frames: Frames, attached: Attached) {
        let Some(connection) = self.connections.of(id) else { return };
        if connection.behind.is_empty() {
            return self.on_message(id, &frames, attached);
        }
        let frames = frames.into_iter().map(kept).collect();
        connection.put_behind(Arrived { frames, attached: Some(attached), number: 0 });
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::{Kind, Peer};
    use crate::server::connection::Speaks;
    use crate::server::tests::connected;
    use towpath_requests::numbered::{Block, ClientId, Status};
    use towpath_sockets::Event;

    #[test]
    fn a_worker_that_is_gone_gets_nothing_while_its_last_reply_is_on_its_way_to_the_disk() {
        const CLIENT: Peer = 1000;
        let (mut broker, _peers) = connected(1);
        let connection = broker.connections.find(0).unwrap();
        connection.speaks = Speaks::NumberedWorker;
        let id = connection.id;
        broker.core.worker_ready(0, 0, Kind::Numbered, b"work", 2);
        broker.core.client_hello(0, CLIENT, ClientId([1; 16]), 1);
        let held = |broker: &Broker| broker.core.workers().next().map(|worker| worker.held);
        broker.core.request(0, CLIENT, 1, 0, false, b"work", Body::default());
        assert_eq!(held(&broker), Some(1));
        let token = broker.core.tokens_of_all()[0];
        broker.act();
        // Its reply has come but for what a body in a file would be, and it has ended.
        let mut block = Block::default();
        FromWorker::reply(&mut block, token, Status::OK, None, &Body::from("done"));
        let block = block.drain().next().unwrap().block;
        let frames = [Bytes::from_static(WORKER_HEADER), block].into_iter().collect();
        broker.connections.of(id).unwrap().put_behind(Arrived { frames, attached: None, number: 1 });
        broker.on_event(Event::Gone { peer: id, reason: "it is gone".to_owned() });
        broker.core.request(0, CLIENT, 2, 0, false, b"work", Body::default());
        assert_eq!(held(&broker), Some(1), "the other one waits for somebody who is there");
        let connection = broker.connections.of(id).unwrap();
        connection.behind[0].attached = Some(Attached::Nothing);
        broker.catch_up(id);
        assert!(broker.connections.of(id).is_none() && held(&broker).is_none());
        assert_eq!(broker.core.services().next().unwrap().waiting, 1, "what it had done is done");
    }
}
