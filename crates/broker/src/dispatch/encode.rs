//! From what the core wants to what peers get.

use super::Dispatch;
use super::connection::{Connection, PeerProtocol};
use super::slow_consumers::push;
use crate::access::Access;
use crate::core::{Action, Peer, QueuedAction};
use crate::services::Broker;
use crate::store::Store;
use crate::transport::Transport;
use bytes::Bytes;
use towpath_requests::assembler::BodySink;
use towpath_requests::body::Body;
use towpath_requests::majordomo;
use towpath_requests::numbered::{CLIENT_HEADER, Status, ToClient, ToWorker, Token, WORKER_HEADER};
use towpath_requests::shown;
use towpath_sockets::{Frame, Message};

/// Bytes of answers that may wait for a client that sends all its requests before it reads: of some ten thousand blocks.
const ANSWERS_BYTES_MAX: usize = 4 * 1024 * 1024;

impl<T: Transport, S: Store> Dispatch<T, S> {
    /// Does what the core wants, until it wants nothing more.
    pub(crate) fn act(&mut self) {
        // A disconnect during this loop adds actions behind the existing ones: a worker must not be given a request before
        // it learns that another one is over.
        if std::mem::replace(&mut self.is_acting, true) {
            return;
        }
        let mut tasks = std::mem::take(&mut self.tasks);
        loop {
            self.core.take_queued_actions(&mut tasks);
            if tasks.is_empty() {
                break;
            }
            for task in tasks.drain(..) {
                match task {
                    QueuedAction::Dispatch { peer, token, attempt, ttl_ms, body_ref } => {
                        self.identify(peer, token);
                        if let Some(body) = self.core.body_for_worker(body_ref, attempt)
                            && let Some(block) = self.connections.block(peer)
                        {
                            ToWorker::request(block, token, attempt, ttl_ms, body);
                        }
                    }
                    QueuedAction::Reply { peer, number, status, body_ref } => {
                        if let Some(body) = self.core.body_for_client(body_ref)
                            && let Some(block) = self.connections.block(peer)
                        {
                            ToClient::reply(block, number, status, None, body);
                        }
                    }
                    QueuedAction::Other(action) => self.carry_out(action),
                }
            }
        }
        self.tasks = tasks;
        self.is_acting = false;
        if self.keeps_entries() {
            let now = self.now();
            self.entries.write(now, &mut self.core, &mut self.store);
        }
    }

    /// Sends a worker that asks for ids that of the request which it is sent next.
    #[inline]
    fn identify(&mut self, peer: Peer, token: Token) {
        if self.connections.find(peer).is_some_and(|connection| connection.wants_ids)
            && let Some(id) = self.core.request_id(&token)
            && let Some(block) = self.connections.block(peer)
        {
            ToWorker::identity(block, token, id);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Dispatch { peer, token, attempt, ttl_ms, body } => match self.protocol(peer) {
                Some(PeerProtocol::StockWorker(dialect)) => {
                    if let Some(connection) = self.connections.find(peer) {
                        connection.parts = 0;
                    }
                    let message = with_body(majordomo::request_head(dialect, &token), &body);
                    self.send(peer, message);
                }
                Some(_) => {
                    self.identify(peer, token);
                    if let Some(block) = self.connections.block(peer) {
                        ToWorker::request(block, token, attempt, ttl_ms, &body);
                    }
                }
                None => {}
            },
            Action::Reply { peer, number, status, part, body } => {
                self.note_part(peer, part.is_some());
                if let Some(block) = self.connections.block(peer) {
                    ToClient::reply(block, number, status, part, &body);
                }
            }
            Action::StockReply { peer, envelope, service, status, partial, body } => {
                if let Some(PeerProtocol::StockClient(dialect)) = self.protocol(peer) {
                    self.note_part(peer, partial);
                    let head = majordomo::reply_head(dialect, envelope.as_ref(), &service, partial);
                    // NOT_IMPLEMENTED speaks for itself in MMI.
                    let is_answer = status.is_ok() || status == Status::NOT_IMPLEMENTED;
                    let body = if is_answer { body } else { failure(status, &body) };
                    self.send_reply(peer, with_body(head, &body));
                }
            }
            Action::Accepted { peer, first, count } => {
                if let Some(block) = self.connections.block(peer) {
                    ToClient::accepted(block, first, count);
                }
                self.ask_less(peer, ANSWERS_BYTES_MAX);
            }
            Action::Refused { peer, number, status, retry_ms, reason } => {
                if status == Status::CONFLICT {
                    let id = self.connections.find(peer).map(|connection| connection.id);
                    let address = id.and_then(|id| self.transport.address(id));
                    let address = address.as_ref().map(tracing::field::display);
                    tracing::warn!(
                        peer = id.map(tracing::field::display),
                        address,
                        number,
                        reason,
                        "a request is refused"
                    );
                }
                if let Some(block) = self.connections.block(peer) {
                    ToClient::refused(block, number, status, retry_ms, reason);
                }
                self.ask_less(peer, 0);
            }
            Action::Welcome { peer } => {
                let settings = self.core.settings();
                if let Some(block) = self.connections.block(peer) {
                    let requests_max = u32::try_from(settings.client_requests_max).unwrap_or(u32::MAX);
                    let bytes_max = settings.client_bytes_max as u64;
                    ToClient::welcome(block, settings.epoch, requests_max, bytes_max, settings.journal);
                }
                self.ask_less(peer, ANSWERS_BYTES_MAX);
            }
            Action::CancelWork { peer, token } => {
                if let Some(block) = self.connections.block(peer) {
                    ToWorker::cancel(block, token);
                }
            }
            Action::BuiltIn { token, service, body } => {
                let Dispatch { services, core, store, transport, connections, authenticator, .. } = self;
                let client = core.client_of(&token).and_then(|peer| connections.find(peer));
                let access = match client {
                    Some(connection) => connection.access.clone(),
                    None if authenticator.is_none() => Access::default(),
                    None => Access::nothing(),
                };
                let broker = Broker { core, store, transport, access, peer_id: &|peer| connections.id_of(peer) };
                services.answer(broker, &token, &service, &body);
            }
            Action::Heartbeat { peer } => {
                if let Some(PeerProtocol::StockWorker(dialect)) = self.protocol(peer) {
                    self.send(peer, majordomo::heartbeat(dialect).into_iter().collect());
                }
            }
            Action::Leave { peer } => {
                if let (Some(PeerProtocol::NumberedWorker), Some(block)) =
                    (self.protocol(peer), self.connections.block(peer))
                {
                    ToWorker::leave(block);
                }
            }
            Action::Pause { peer, paused } => {
                if let Some(connection) = self.connections.find(peer) {
                    connection.is_paused = paused;
                    set_reading(&mut self.transport, connection);
                    give_up(&mut self.transport, connection);
                }
            }
            Action::GaveUp { client, number, service, attempts, why, kept_for } => {
                let (service, client, why) = (shown(&service), client.map(tracing::field::display), shown(&why));
                match kept_for.as_deref().map(shown) {
                    Some(queue) => {
                        let what = "a request has used up its attempts, and is kept in a dead-letter queue";
                        tracing::warn!(%service, attempts, client, number, %why, %queue, "{what}");
                    }
                    None => {
                        tracing::warn!(%service, attempts, client, number, %why, "a request has used up its attempts")
                    }
                }
            }
            Action::ReplyLost { client, number, service, bytes } => {
                let (service, client) = (shown(&service), client.map(tracing::field::display));
                let what = "there is no space for a reply: clients have too many that they haven't confirmed";
                tracing::warn!(%service, client, number, bytes, "{what}");
            }
            Action::CloseAfterFlush { peer, reason } => {
                let Some(id) = self.connections.find(peer).map(|connection| connection.id) else { return };
                // The refusal is sent first.
                self.flush();
                self.transport.flush();
                self.drop_connection(id);
                self.transport.disconnect(id, reason);
            }
            Action::Disconnect { peer, reason } => {
                let Some(connection) = self.connections.find(peer) else { return };
                let (id, protocol) = (connection.id, connection.protocol);
                match protocol {
                    PeerProtocol::StockWorker(_) => self.dismiss(id, reason),
                    _ => {
                        // The cancellation is sent first.
                        self.flush();
                        self.transport.flush();
                        self.reject(id, reason);
                    }
                }
            }
        }
    }

    #[inline]
    fn protocol(&mut self, peer: Peer) -> Option<PeerProtocol> {
        self.connections.find(peer).map(|connection| connection.protocol)
    }

    /// Sends a message, or keeps it until there is space.
    pub(super) fn send(&mut self, peer: Peer, message: Message) {
        let Some(connection) = self.connections.find(peer) else { return };
        if connection.is_half_closed {
            self.half_closed.push(connection.id);
        }
        if push(&mut self.transport, connection, message) {
            self.block(peer);
        } else {
            connection.gets_parts = false;
        }
    }

    /// Sends the records that were collected.
    pub(super) fn flush(&mut self) {
        while let Some(peer) = self.connections.dirty.pop() {
            let Some(connection) = self.connections.find(peer) else { continue };
            connection.is_dirty = false;
            let header = match connection.protocol {
                PeerProtocol::NumberedClient => CLIENT_HEADER,
                _ => WORKER_HEADER,
            };
            let mut block = std::mem::take(&mut connection.block);
            let mut is_full = false;
            for message in block.drain() {
                let head = [Bytes::from_static(header), message.block].into_iter().map(Frame::Bytes);
                let attached = message.attached.as_ref().map(frames_of).into_iter().flatten();
                is_full |= push(&mut self.transport, connection, head.chain(attached).collect());
            }
            connection.block = block;
            if is_full {
                self.block(peer);
            } else {
                connection.gets_parts = false;
            }
        }
    }

    /// A peer that doesn't read, and yet says what is answered at once, isn't read any more until it does, if more bytes than these
    /// wait for it beside what the hub has.
    fn ask_less(&mut self, peer: Peer, most: usize) {
        if let Some(connection) = self.connections.find(peer)
            && connection.is_blocked
            && connection.pending_bytes >= most
            && !connection.asks_too_much
        {
            connection.asks_too_much = true;
            set_reading(&mut self.transport, connection);
        }
    }

    fn note_part(&mut self, peer: Peer, is_part: bool) {
        if is_part && let Some(connection) = self.connections.find(peer) {
            connection.gets_parts = true;
        }
    }
}

pub(super) fn set_reading<W: BodySink>(transport: &mut impl Transport, connection: &Connection<W>) {
    let has_too_much = connection.asks_too_much || connection.assembler.is_over_limit();
    transport.pause_reading(
        connection.id,
        connection.is_paused || connection.assembler.waits_for_space().is_some() || has_too_much,
    );
}

/// Disconnects a stock client that has hung up while the queues had no space for its requests. Nothing that it asked can be
/// answered, and waiting for space would keep its requests until they expire. Other peers are soon read again, to their end:
/// a worker's replies before it count.
pub(super) fn give_up<W: BodySink>(transport: &mut impl Transport, connection: &Connection<W>) {
    let waits = connection.is_paused
        || connection.assembler.waits_for_space().is_some()
        || transport.is_deferred(connection.id);
    if waits && connection.has_hung_up {
        transport.disconnect(connection.id, "it has closed the connection, and its replies can't go anywhere");
    }
}

/// Failure for a stock client, which only understands bodies: status and reason.
fn failure(status: Status, reason: &Body) -> Body {
    let reason = reason.to_frames().unwrap_or_default();
    Body::of_frames([Bytes::from(status.0.to_string())].into_iter().chain(reason))
}

fn with_body(head: majordomo::Head, body: &Body) -> Message {
    head.into_iter().map(Frame::Bytes).chain(frames_of(body)).collect()
}

/// The frames of a body as they are sent.
fn frames_of(body: &Body) -> impl Iterator<Item = Frame> {
    body.pieces().iter().flat_map(|piece| {
        let whole = piece.to_frames().into_iter().flatten().map(Frame::Bytes);
        whole.chain(piece.as_large().and_then(|large| large.clone().file_range()).map(Frame::File))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::Kind;
    use crate::dispatch::tests::connected;

    #[test]
    fn tasks_keep_their_order_when_a_peer_is_disconnected_among_them() {
        const CLIENT: Peer = 1000;
        let (mut broker, _peers) = connected(2);
        let (slow, worker) = (0, 1);
        broker.dispatch.connections.find(slow).unwrap().protocol = PeerProtocol::StockClient(majordomo::Dialect::Mdp01);
        broker.dispatch.connections.find(worker).unwrap().protocol = PeerProtocol::NumberedWorker;
        // The worker's credit is used up.
        broker.dispatch.core.worker_ready(0, worker, Kind::Numbered, b"work", 2);
        broker.dispatch.core.client_hello(0, CLIENT, towpath_requests::numbered::ClientId([1; 16]), 1);
        for number in 1..=2 {
            broker.dispatch.core.request(0, CLIENT, number, 0, false, b"work", Body::default());
        }
        broker.dispatch.act();
        // The first request ends, and one of a client that is disconnected by its reply takes its slot.
        broker.dispatch.core.stock_refuse(0, slow, None, b"work", Status::UNAVAILABLE, "no");
        broker.dispatch.core.stock_request(0, slow, true, None, b"work", Body::default());
        broker.dispatch.core.request(0, CLIENT, 3, 0, false, b"work", Body::default());
        broker.dispatch.core.cancel(0, CLIENT, 1);
        let connection = broker.dispatch.connections.find(slow).unwrap();
        connection.pending.push_back(Message::new());
        (connection.pending_bytes, connection.gets_parts, connection.is_blocked) = (usize::MAX / 2, true, true);
        broker.dispatch.act();
        assert!(broker.dispatch.connections.find(slow).is_none());
        let (mut held, mut said) = (Vec::new(), 0);
        for message in broker.dispatch.connections.find(worker).unwrap().block.drain() {
            let mut records = &message.block[..];
            while !records.is_empty() {
                match ToWorker::decode(&mut records).unwrap() {
                    ToWorker::Request { token, .. } => held.push(token),
                    ToWorker::Cancel { token } => held.retain(|other| *other != token),
                    _ => continue,
                }
                said += 1;
                assert!(held.len() <= 2, "it has more than its credit");
            }
        }
        // Three requests, and two that were over, of which it never had the one.
        assert_eq!(said, 5);
    }
}
