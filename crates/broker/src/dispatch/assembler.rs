//! Messages with a frame that comes as a stream: to a file if it is the whole body, and else into memory.

use super::Dispatch;
use super::encode::{give_up, set_reading};
use crate::store::{LostBody, Store};
use crate::transport::Transport;
use bytes::Bytes;
use std::collections::HashSet;
use towpath_requests::assembler::{self, Destination, Progress};
use towpath_requests::body::{Body, IncomingBody};
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX};
use towpath_requests::majordomo::{self, FromPeer, WorkerCommand};
use towpath_requests::numbered::{CLIENT_HEADER, Content, FromClient, FromWorker, WORKER_HEADER, WireError};
use towpath_sockets::{Event, Frames, PeerId};
use towpath_spool::{BodyKind, NoSpace};

/// The body that came behind a block.
pub(super) type Attached = assembler::Attached<LostBody>;

/// Whether there may be as many bytes more in memory.
enum Fit {
    Yes,
    /// The body is too large, and has this many frames before it.
    TooLarge(usize),
    /// A frame that is no body is too large: nobody could be answered.
    NoBody,
}

const NO_BODY_TOO_LARGE: &str = "a frame that is no body, of more than 64 MiB";

/// Whether a message that has come as far as `frames` may have `length` bytes more in memory.
fn fit(frames: &[Bytes], length: u64) -> Fit {
    let head = head_of(frames);
    let most = match head {
        // Each frame of a list has its length before it. Their number is checked when the list is here.
        Some(Head { is_numbered: true, .. }) => BODY_BYTES_MAX + 4 * BODY_FRAMES_MAX,
        _ => BODY_BYTES_MAX,
    };
    let before = head.as_ref().map_or(0, |head| head.frames);
    let in_memory: usize = frames.iter().skip(before).map(Bytes::len).sum();
    match head {
        _ if length.saturating_add(in_memory as u64) <= most as u64 => Fit::Yes,
        Some(head) => Fit::TooLarge(head.frames),
        None => Fit::NoBody,
    }
}

/// The body of a record, or why it isn't here.
#[inline]
pub(super) fn body_of<'a>(
    content: Content<'a>,
    block: &Bytes,
    attached: &mut Attached,
) -> Result<Result<IncomingBody<'a>, LostBody>, WireError> {
    if !matches!(content, Content::Attached { .. }) {
        return content.incoming(block, None).map(Ok);
    }
    match std::mem::replace(attached, Attached::Nothing) {
        Attached::Nothing => Err(WireError::Attachment),
        Attached::Body(body) => match content.incoming(block, Some(body))? {
            IncomingBody::Body(body) if is_too_large(&body) => Ok(Err(LostBody::TooLarge)),
            incoming => Ok(Ok(incoming)),
        },
        Attached::Lost(lost) => Ok(Err(lost)),
    }
}

/// Whether a body is too large to be in memory, where all are that have several frames.
pub(super) fn is_too_large(body: &Body) -> bool {
    body.large_bytes() == 0 && body.length() > BODY_BYTES_MAX as u64
}

/// The frames before a body.
struct Head {
    /// How many frames.
    frames: usize,
    /// The body is one frame then, which may be a list of frames.
    is_numbered: bool,
}

/// The head that these frames are, if the next frame belongs to a body.
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

/// Kind of the body that the next frame is as a whole, so that it may go to a file, and whether a stock client sends it.
fn whole_body(frames: &[Bytes]) -> Option<(BodyKind, bool)> {
    match frames {
        [header, block] if header == CLIENT_HEADER => {
            (!FromClient::announces_list(block)).then_some((BodyKind::Request, false))
        }
        [header, block] if header == WORKER_HEADER => {
            (!FromWorker::announces_list(block)).then_some((BodyKind::Reply, false))
        }
        _ => {
            let with_body: Vec<Bytes> = frames.iter().cloned().chain([Bytes::new()]).collect();
            match majordomo::decode(&with_body) {
                Ok(FromPeer::Request { body, .. }) => (body.len() == 1).then_some((BodyKind::Request, true)),
                Ok(FromPeer::Worker { command: WorkerCommand::Reply { body, .. }, .. }) => {
                    (body.len() == 1).then_some((BodyKind::Reply, false))
                }
                _ => None,
            }
        }
    }
}

impl<T: Transport, S: Store> Dispatch<T, S> {
    /// Takes a part of a message: a whole one, the frames behind a streamed one, or a piece of a stream.
    #[inline]
    pub(super) fn on_message_event(&mut self, id: PeerId, event: Event) {
        match event {
            Event::Message { frames, continued: false, .. } => self.on_frames(id, frames),
            Event::Message { frames, .. } => self.on_rest(id, frames),
            Event::BodyStart { head, length, more, .. } => self.on_body_start(id, head, length, more),
            Event::BodyData { data, .. } => self.on_body_data(id, data),
            Event::BodyEnd { more, .. } => self.on_body_end(id, more),
            _ => {}
        }
    }

    #[inline]
    fn on_frames(&mut self, id: PeerId, frames: Frames) {
        let Some(connection) = self.connections.of(id) else { return };
        let holds_nothing = connection.assembler.bytes() == 0;
        match connection.assembler.message(frames) {
            Progress::Message(message) if holds_nothing => self.on_message(id, &message.frames, message.attached),
            progress => self.on_progress(id, progress),
        }
    }

    fn on_body_start(&mut self, id: PeerId, head: Frames, length: u64, more: bool) {
        let tenant = self.transport.tenant(id);
        let tenant = tenant.as_ref();
        let Some(connection) = self.connections.of(id) else { return };
        let (store, queue) = (&mut self.store, &mut self.spool_queue);
        let others_wait = !queue.is_empty() && length <= self.core.settings().large_bytes_max;
        let mut misfit = Fit::Yes;
        connection.assembler.begin(head, |frames| {
            let writer = match if more { None } else { whole_body(frames) } {
                // A stock client can't be asked to retry: it waits, in its turn.
                Some((kind, true)) => {
                    match if others_wait {
                        Err(LostBody::NoSpace(NoSpace::Now))
                    } else {
                        store.spool(kind, tenant, length)
                    } {
                        Err(LostBody::NoSpace(NoSpace::Now | NoSpace::Share)) => {
                            queue.push_back(id);
                            return Destination::Waiting { length };
                        }
                        writer => writer,
                    }
                }
                Some((kind, false)) => store.spool(kind, tenant, length),
                None => {
                    misfit = fit(frames, length);
                    return Destination::Memory;
                }
            };
            writer.map_or_else(Destination::Lost, Destination::File)
        });
        match misfit {
            Fit::Yes => {}
            Fit::TooLarge(head_frames) => connection.assembler.lose_body(head_frames, LostBody::TooLarge),
            Fit::NoBody => return self.reject(id, NO_BODY_TOO_LARGE),
        }
        if connection.assembler.waits_for_space().is_some() {
            set_reading(&mut self.transport, connection);
            give_up(&mut self.transport, connection);
        }
        self.hold(id);
    }

    fn on_body_data(&mut self, id: PeerId, data: Bytes) {
        self.read_budget.note(data.len(), 1);
        let Some(connection) = self.connections.of(id) else { return };
        let before = connection.assembler.partial_bytes();
        connection.assembler.data(data);
        if connection.assembler.partial_bytes() != before {
            self.hold(id);
        }
    }

    fn on_body_end(&mut self, id: PeerId, more: bool) {
        let Some(connection) = self.connections.of(id) else { return };
        let waited = connection.assembler.waits_for_space().is_some();
        // A body that still waits for space had come to its end before reading could be paused.
        let progress = connection.assembler.end(more, || LostBody::NoSpace(NoSpace::Now));
        if waited {
            set_reading(&mut self.transport, connection);
        }
        self.on_progress(id, progress);
    }

    /// The frames behind the last streamed one.
    fn on_rest(&mut self, id: PeerId, rest: Frames) {
        let Some(connection) = self.connections.of(id) else { return };
        if let Some(frames) = connection.assembler.partial() {
            match fit(frames, rest.iter().map(|frame| frame.len() as u64).sum()) {
                Fit::Yes => {}
                Fit::TooLarge(head_frames) => connection.assembler.lose_body(head_frames, LostBody::TooLarge),
                Fit::NoBody => return self.reject(id, NO_BODY_TOO_LARGE),
            }
        }
        self.on_frames(id, rest);
    }

    #[inline]
    fn on_progress(&mut self, id: PeerId, progress: Progress<LostBody>) {
        match progress {
            Progress::Message(message) => {
                self.connections.recount(id);
                self.on_message(id, &message.frames, message.attached);
            }
            Progress::Incomplete => self.hold(id),
            Progress::Writing(number) => {
                self.spooled_for.insert(number, id);
                self.hold(id);
            }
            Progress::Queued => {
                if let Some(connection) = self.connections.of(id) {
                    set_reading(&mut self.transport, connection);
                }
                self.hold(id);
            }
        }
    }

    /// Goes on reading from stock clients for whose bodies there is space by now.
    pub(super) fn make_space(&mut self) {
        if self.spool_queue.is_empty() {
            return;
        }
        self.prune_spool_queue();
        // A tenant that has its share is left out, with all its clients: a small body doesn't overtake a large one.
        let mut left_out = HashSet::new();
        for index in 0..self.spool_queue.len() {
            let Some(&id) = self.spool_queue.get(index) else { break };
            let Some(connection) = self.connections.of(id) else { continue };
            let Some(length) = connection.assembler.waits_for_space() else { continue };
            let tenant = self.transport.tenant(id);
            if left_out.contains(&tenant) {
                continue;
            }
            match self.store.spool(BodyKind::Request, tenant.as_ref(), length) {
                Ok(ticket) => connection.assembler.resume(ticket),
                Err(LostBody::NoSpace(NoSpace::Share)) => {
                    left_out.insert(tenant);
                    continue;
                }
                Err(_) => break,
            }
            set_reading(&mut self.transport, connection);
            self.connections.recount(id);
        }
        self.prune_spool_queue();
    }

    /// Removes those that don't wait any more.
    fn prune_spool_queue(&mut self) {
        let connections = &mut self.connections;
        self.spool_queue.retain(|id| {
            connections.of(*id).is_some_and(|connection| connection.assembler.waits_for_space().is_some())
        });
    }

    /// Counts the bytes that a connection holds of messages that can't be taken yet. A peer that sends parts and never the end holds
    /// as much as a message may have; where all of them together hold too much, the one that holds the most is disconnected.
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

    /// Takes bodies that have arrived on the disk, and the messages that waited for them.
    pub(super) fn take_spooled(&mut self) {
        while let Some((number, body)) = self.store.next_spooled() {
            let Some(id) = self.spooled_for.remove(&number) else { continue };
            let attached = match body {
                Ok(body) => Attached::Body(body),
                Err(_) => Attached::Lost(LostBody::Unwritten),
            };
            self.on_written(id, number, attached);
        }
    }

    fn on_written(&mut self, id: PeerId, number: u64, attached: Attached) {
        if let Some(connection) = self.connections.of(id) {
            connection.assembler.written(number, attached);
        }
        while let Some(connection) = self.connections.of(id) {
            let Some(message) = connection.assembler.next_ready() else {
                if connection.is_gone && !connection.assembler.has_backlog() {
                    return self.forget(id);
                }
                return set_reading(&mut self.transport, connection);
            };
            self.connections.recount(id);
            self.on_message(id, &message.frames, message.attached);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::{Kind, Peer};
    use crate::dispatch::connection::PeerProtocol;
    use crate::dispatch::tests::{connected, connected_with};
    use crate::server::Broker;
    use std::time::{Duration, Instant};
    use towpath_requests::assembler::BodySink;
    use towpath_requests::numbered::{Block, ClientId, Status};

    #[test]
    fn worker_that_is_gone_gets_no_requests_while_its_last_reply_is_written() {
        const CLIENT: Peer = 1000;
        let (mut broker, _peers) = connected(1);
        let connection = broker.dispatch.connections.find(0).unwrap();
        connection.protocol = PeerProtocol::NumberedWorker;
        let id = connection.id;
        broker.dispatch.core.worker_ready(0, 0, Kind::Numbered, b"work", 2);
        broker.dispatch.core.client_hello(0, CLIENT, ClientId([1; 16]), 1);
        let held = |broker: &Broker| broker.dispatch.core.workers().next().map(|worker| worker.held);
        broker.dispatch.core.request(0, CLIENT, 1, 0, false, b"work", Body::default());
        assert_eq!(held(&broker), Some(1));
        let token = broker.dispatch.core.tokens_of_all()[0];
        broker.dispatch.act();
        // Its reply has come but for what a body in a file would be, and it has ended.
        let mut block = Block::default();
        FromWorker::reply(&mut block, token, Status::OK, None, &Body::from("done"));
        let block = block.drain().next().unwrap().block;
        let frames = [Bytes::from_static(WORKER_HEADER), block].into_iter().collect();
        let ticket = broker.dispatch.store.spool(BodyKind::Reply, None, 0).unwrap();
        let number = ticket.number();
        let assembler = &mut broker.dispatch.connections.of(id).unwrap().assembler;
        assembler.begin(frames, |_| Destination::File(ticket));
        assert!(matches!(assembler.end(false, || unreachable!()), Progress::Writing(_)));
        broker.dispatch.on_event(Event::Gone { peer: id, reason: "it is gone".to_owned() });
        broker.dispatch.core.request(0, CLIENT, 2, 0, false, b"work", Body::default());
        assert_eq!(held(&broker), Some(1), "the other one waits for somebody who is there");
        broker.dispatch.on_written(id, number, Attached::Nothing);
        assert!(broker.dispatch.connections.of(id).is_none() && held(&broker).is_none());
        assert_eq!(broker.dispatch.core.services().next().unwrap().waiting, 1, "what it had done is done");
    }

    #[test]
    fn a_small_body_does_not_overtake_a_large_one_of_its_tenant() {
        let (mut broker, _peers) = connected_with(2, |options| options.max_spool_bytes = Some(16 << 10));
        let [first, second] = [0, 1].map(|peer| broker.dispatch.connections.find(peer).unwrap().id);
        let tenant = broker.dispatch.transport.tenant(first);
        let mut held = broker.dispatch.store.spool(BodyKind::Request, tenant.as_ref(), 8_192).unwrap();
        held.write(Bytes::from(vec![0; 8_192])).unwrap();
        let head = || ["", "MDPC01", "work"].into_iter().map(Bytes::from).collect::<Frames>();
        // Of the 12 KiB that requests may have, the first one has to wait for some. The second one has space.
        for (id, length) in [(first, 6_000), (second, 1)] {
            broker.dispatch.on_body_start(id, head(), length, false);
        }
        let mut waiting = || {
            broker.dispatch.make_space();
            broker.dispatch.spool_queue.len()
        };
        assert_eq!(waiting(), 2);
        drop(held);
        let start = Instant::now();
        while waiting() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "there is space");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
