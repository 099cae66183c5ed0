//! Decoding messages from peers, and passing them to the core.

use super::assembler::{Attached, body_of, is_too_large};
use super::connection::{Connection, PeerProtocol};
use super::encode::give_up;
use super::judge::{NOT_ADMITTED, may_reply};
use super::{Dispatch, NOT_LEADING};

use crate::access::{MAY_NOT_CALL, MAY_NOT_WORK};
use crate::core::{Kind, Peer};
use crate::store::{LostBody, Store};
use crate::transport::Transport;
use bytes::Bytes;
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::majordomo::{self, FromPeer, MdpError, WorkerCommand};
use towpath_requests::numbered::{
    CLIENT_HEADER, FromClient, FromWorker, IDS_PROPERTY, Status, Token, WORKER_HEADER, WireError,
};
use towpath_requests::shown;
use towpath_sockets::{Event, PeerId};

/// Records of a block after which the core's actions are carried out: as many as the processor's cache holds.
const RECORDS_AT_ONCE: usize = 64;

/// The body of a stock peer's message, or why it isn't here.
fn stock_body(frames: smallvec::SmallVec<[Bytes; 2]>, attached: Attached) -> Result<Body, LostBody> {
    match attached {
        Attached::Nothing => Some(Body::owned(frames)).filter(|body| !is_too_large(body)).ok_or(LostBody::TooLarge),
        Attached::Body(body) => Ok(body),
        Attached::Lost(lost) => Err(lost),
    }
}

/// Whether the first frame of a message is that of numbered requests in another version.
fn is_other_version(header: &[u8]) -> bool {
    header.len() == CLIENT_HEADER.len() && [CLIENT_HEADER, WORKER_HEADER].iter().any(|ours| header[..4] == ours[..4])
}

impl<T: Transport, S: Store> Dispatch<T, S> {
    #[inline]
    pub(super) fn on_event(&mut self, event: Event) {
        match event.message_peer() {
            Some(id) => self.on_message_event(id, event),
            None => self.on_peer_event(event),
        }
    }

    fn on_peer_event(&mut self, event: Event) {
        match event {
            Event::Ready { peer } if !self.is_leading => {
                let leader = self.store.leader();
                let reason = leader.map_or(NOT_LEADING.to_owned(), |leader| format!("{NOT_LEADING}: {leader}"));
                self.transport.disconnect(peer, &reason);
            }
            Event::Ready { peer } => {
                // The one that had its place may still have had something to be taken.
                if let Some(former) = self.connections.find(peer.slot()).map(|connection| connection.id) {
                    self.forget(former);
                }
                debug_assert!(!self.core.has_role(peer.slot()), "what it is was left behind by another connection");
                let Some(access) = self.access_of(peer, true) else {
                    return self.transport.disconnect(peer, NOT_ADMITTED);
                };
                self.connections.insert(peer, self.transport.address(peer), access);
                if let Some(tenant) = self.transport.tenant(peer) {
                    self.core.connected(peer.slot(), tenant);
                }
            }
            Event::Writable { peer } => self.on_writable(peer),
            Event::HungUp { peer } => {
                if let Some(connection) = self.connections.of(peer) {
                    connection.has_hung_up = true;
                    give_up(&mut self.transport, connection);
                }
            }
            Event::HalfClosed { peer } => self.on_half_closed(peer),
            Event::Gone { peer, reason } => {
                if self.core.is_worker(peer.slot()) && self.connections.of(peer).is_some() {
                    tracing::info!(%peer, reason, "a worker is gone");
                } else {
                    tracing::debug!(%peer, reason, "gone");
                }
                match self.connections.of(peer) {
                    // A worker that replies at length and ends has replied.
                    Some(connection) if connection.assembler.has_backlog() => {
                        connection.is_gone = true;
                        connection.assembler.drop_partial();
                        self.connections.recount(peer);
                        // If it can't be kept, the next one that gets it ends this.
                        self.transport.reserve_slot(peer);
                        if self.core.is_worker(peer.slot()) {
                            let now = self.now();
                            self.core.worker_leaving(now, peer.slot());
                        }
                    }
                    _ => self.forget(peer),
                }
            }
            Event::Authenticate { peer, credentials } => {
                self.transport.authenticate(self.authenticator.as_ref(), peer, credentials);
            }
            // Ranges are sent without tags, and the hub logs peers that were never ready (`Failed`).
            _ => {}
        }
    }

    /// Sets a peer's protocol. Peers without one and stock clients are deferred where there is no space: others can act on a
    /// refusal, or make space.
    fn set_protocol(&mut self, id: PeerId, protocol: PeerProtocol) -> PeerProtocol {
        if let Some(connection) = self.connections.of(id) {
            connection.protocol = protocol;
            self.transport.set_deferrable(id, matches!(protocol, PeerProtocol::Nothing | PeerProtocol::StockClient(_)));
            if matches!(protocol, PeerProtocol::StockClient(_)) {
                // It can't ask again for what it waits for, or what is still on its way here, if the connection ends.
                let longest = Duration::from_millis(self.core.settings().ttl_ms);
                self.transport.extend_pong_timeout(id, longest);
            }
            // Workers never get more than they can take: their credit, or one request.
            if matches!(protocol, PeerProtocol::NumberedWorker | PeerProtocol::StockWorker(_)) {
                self.transport.detect_stalls(id);
            }
        }
        protocol
    }

    /// A connection is gone, and everything that came from it was taken.
    pub(super) fn forget(&mut self, id: PeerId) {
        if let Some(connection) = self.drop_connection(id) {
            self.peer_gone(&connection);
            self.act();
        }
    }

    /// Requests of a peer that has disconnected are requeued, kept or given up; those of a stock client end.
    fn peer_gone(&mut self, connection: &Connection<S::Writer>) {
        let (now, peer) = (self.now(), connection.id.slot());
        let requests = self.core.outstanding(peer);
        if requests > 0 && matches!(connection.protocol, PeerProtocol::StockClient(_)) {
            let address = connection.address.as_ref().map(tracing::field::display);
            let what = "requests are given up: the connection of the stock client that waits for them has ended";
            tracing::warn!(peer = %connection.id, address, requests, "{what}");
        }
        self.core.peer_gone(now, peer);
    }

    /// Its place is free for another from now on.
    pub(super) fn drop_connection(&mut self, id: PeerId) -> Option<Box<Connection<S::Writer>>> {
        self.transport.release_slot(id);
        self.connections.remove(id)
    }

    /// A whole message. `attached`: what came as a stream behind these frames.
    pub(super) fn on_message(&mut self, id: PeerId, frames: &[Bytes], attached: Attached) {
        let Some(connection) = self.connections.of(id) else { return };
        let header = frames.first().map_or(&b""[..], |frame| frame);
        let protocol = match connection.protocol {
            PeerProtocol::Nothing if header == CLIENT_HEADER => self.set_protocol(id, PeerProtocol::NumberedClient),
            PeerProtocol::Nothing if header == WORKER_HEADER => self.set_protocol(id, PeerProtocol::NumberedWorker),
            PeerProtocol::Nothing if is_other_version(header) => {
                return self.reject(
                    id,
                    "another version of numbered requests; use a broker, clients and workers of one version",
                );
            }
            PeerProtocol::Nothing | PeerProtocol::StockClient(_) | PeerProtocol::StockWorker(_) => {
                self.read_budget.note(frames.iter().map(Bytes::len).sum(), 1);
                self.on_stock(id, frames, attached);
                return self.act();
            }
            protocol @ (PeerProtocol::NumberedClient | PeerProtocol::NumberedWorker) => protocol,
        };
        let (block, attached) = match (frames, attached) {
            ([_, block], attached) => (block, attached),
            ([_, block, attached], Attached::Nothing) => {
                self.read_budget.note(attached.len(), 0);
                (block, Attached::Body(Body::owned([attached.clone()])))
            }
            _ => return self.reject(id, "a message of numbered requests has two or three frames"),
        };
        let outcome = match protocol {
            PeerProtocol::NumberedClient if header == CLIENT_HEADER => self.on_client_block(id, block, attached),
            PeerProtocol::NumberedWorker if header == WORKER_HEADER => self.on_worker_block(id, block, attached),
            _ => return self.reject(id, "a peer that protocol of numbered requests keeps to its header"),
        };
        if let Err(error) = outcome {
            self.reject(id, &error.to_string());
        }
        self.act();
    }

    fn on_client_block(&mut self, id: PeerId, block: &Bytes, attached: Attached) -> Result<(), WireError> {
        let (now, peer) = (self.now(), id.slot());
        let access = self.connections.of(id).map(|connection| connection.access.clone()).unwrap_or_default();
        self.each_record(id, block, attached, FromClient::decode, |dispatch, record, attached| {
            let core = &mut dispatch.core;
            match record {
                FromClient::Request { number, ttl_ms, sent, service, content } => {
                    match body_of(content, block, attached)? {
                        Ok(_) if !core.answers_for(service) && !access.may_call(service) => {
                            core.refuse(now, peer, number, Status::FORBIDDEN, 0, MAY_NOT_CALL);
                        }
                        Ok(body) => core.request(now, peer, number, ttl_ms, sent, service, body),
                        Err(lost) => {
                            let (status, retry_ms) = lost.of_request();
                            core.refuse(now, peer, number, status, retry_ms, lost.reason());
                        }
                    }
                }
                FromClient::Confirm { first, count } => core.confirm(now, peer, first, count),
                FromClient::Cancel { number } => core.cancel(now, peer, number),
                FromClient::Hello { client, first } => core.client_hello(now, peer, access.own(client), first),
            }
            Ok(())
        })
    }

    fn on_worker_block(&mut self, id: PeerId, block: &Bytes, attached: Attached) -> Result<(), WireError> {
        let (now, peer) = (self.now(), id.slot());
        let access = self.connections.of(id).map(|connection| connection.access.clone()).unwrap_or_default();
        self.each_record(id, block, attached, FromWorker::decode, |dispatch, record, attached| {
            let core = &mut dispatch.core;
            match record {
                FromWorker::Reply { token, status, part, content } => match body_of(content, block, attached)? {
                    _ if !may_reply(core, &access, peer, &token) => core.forbid(now, peer, MAY_NOT_WORK),
                    Ok(reason) if status == Status::UNAVAILABLE && part.is_none() => {
                        core.worker_tries_later(now, peer, &token, reason.into_body());
                    }
                    Ok(body) => {
                        // Others mean something that only the broker can know.
                        let status = if status.is_ok() { status } else { Status::FAILED };
                        core.worker_reply(now, peer, &token, status, part, body);
                    }
                    Err(lost) => dispatch.lose_reply(peer, &token, part, lost),
                },
                FromWorker::Ready { service, .. } if !access.may_work(service) => core.forbid(now, peer, MAY_NOT_WORK),
                FromWorker::Ready { credit, service } => {
                    let epoch = core.settings().epoch;
                    if let Some(block) = dispatch.connections.block(peer) {
                        towpath_requests::numbered::ToWorker::welcome(block, epoch);
                    }
                    core.worker_ready(now, peer, Kind::Numbered, service, credit);
                    dispatch.greet(peer, service, credit);
                }
                FromWorker::Credit { credit } => core.worker_credit(now, peer, credit),
                FromWorker::Leaving => core.worker_leaving(now, peer),
                FromWorker::Return { token, reason } => {
                    if let Some(rests_ms) = core.worker_returns_request(now, peer, &token, reason) {
                        let reason = reason.escape_ascii();
                        tracing::warn!(peer = %id, %reason, rests_ms, "a worker gives a request back, and rests");
                    }
                }
            }
            Ok(())
        })
    }

    /// A reply, or a part of one, isn't here.
    fn lose_reply(&mut self, peer: Peer, token: &Token, part: Option<u32>, lost: LostBody) {
        let (now, status) = (self.now(), lost.of_reply());
        match part {
            None => self.core.worker_reply(now, peer, token, status, None, Body::from(lost.reason())),
            Some(_) => self.core.reject_part(now, peer, token, status, lost.reason()),
        }
    }

    /// Processes the records of a block, and the body behind it with its record. Stops if the peer is disconnected for one
    /// of them: its slot may belong to another peer then.
    #[inline]
    fn each_record<'a, R>(
        &mut self,
        id: PeerId,
        block: &'a Bytes,
        mut attached: Attached,
        decode: impl Fn(&mut &'a [u8]) -> Result<R, WireError>,
        take: impl Fn(&mut Self, R, &mut Attached) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let mut rest = &block[..];
        let mut records = 0_usize;
        while !rest.is_empty() {
            records += 1;
            if records.is_multiple_of(RECORDS_AT_ONCE) {
                self.act();
                if self.connections.of(id).is_none() {
                    return Ok(());
                }
            }
            take(self, decode(&mut rest)?, &mut attached)?;
        }
        self.read_budget.note(block.len(), records);
        if matches!(attached, Attached::Nothing) { Ok(()) } else { Err(WireError::Attachment) }
    }

    fn on_stock(&mut self, id: PeerId, frames: &[Bytes], attached: Attached) {
        // Sent by libzmq on every connection with ZMQ_PROBE_ROUTER.
        if let ([probe], Attached::Nothing) = (frames, &attached)
            && probe.is_empty()
        {
            return;
        }
        let now = self.now();
        let peer = id.slot();
        let decoded = match attached {
            Attached::Nothing => majordomo::decode(frames),
            // Its place is taken by an empty frame.
            _ => majordomo::decode(&frames.iter().cloned().chain([Bytes::new()]).collect::<Vec<_>>()),
        };
        let message = match decoded {
            Ok(message) => message,
            Err(error) => return self.on_malformed(id, error),
        };
        let Some(connection) = self.connections.of(id) else { return };
        let spoken = match &message {
            FromPeer::Request { dialect, .. } | FromPeer::Refused { dialect, .. } => {
                PeerProtocol::StockClient(*dialect)
            }
            FromPeer::Worker { dialect, .. } => PeerProtocol::StockWorker(*dialect),
        };
        if connection.protocol == PeerProtocol::Nothing {
            tracing::debug!(peer = %id, protocol = ?spoken, "a stock peer");
            self.set_protocol(id, spoken);
        } else if connection.protocol != spoken {
            return self.reject(id, "a peer keeps to the dialect and the role of its first message");
        }
        match message {
            FromPeer::Request { dialect, envelope, service, body } => {
                let body = match stock_body(body, attached) {
                    Ok(body) => body,
                    Err(lost) => {
                        let (status, _) = lost.of_request();
                        return self.core.stock_refuse(now, peer, envelope, &service, status, lost.reason());
                    }
                };
                let access = self.connections.of(id).map(|connection| connection.access.clone()).unwrap_or_default();
                if !self.core.answers_for(&service) && !access.may_call(&service) {
                    let status = Status::FORBIDDEN;
                    return self.core.stock_refuse(now, peer, envelope, &service, status, MAY_NOT_CALL);
                }
                self.core.stock_request(now, peer, dialect.has_one_reply(), envelope, &service, body);
            }
            FromPeer::Refused { envelope, service, status, reason, .. } => {
                self.complain(id, reason, "refused");
                self.core.stock_refuse(now, peer, envelope, &service, status, reason);
            }
            FromPeer::Worker { command, .. } => {
                self.core.worker_alive(now, peer);
                self.on_stock_worker(id, command, attached);
            }
        }
    }

    fn on_stock_worker(&mut self, id: PeerId, command: WorkerCommand, attached: Attached) {
        let now = self.now();
        let peer = id.slot();
        let access = self.connections.of(id).map(|connection| connection.access.clone()).unwrap_or_default();
        match command {
            WorkerCommand::Ready { service } if !access.may_work(&service) => self.dismiss(id, MAY_NOT_WORK),
            WorkerCommand::Ready { service } => {
                self.core.worker_ready(now, peer, Kind::Stock, &service, 1);
                self.greet(peer, &service, 1);
            }
            WorkerCommand::Reply { address, partial, body } => {
                let Some(token) = majordomo::token_of(&address) else {
                    return self.dismiss(id, "a reply to an address that this broker never gave");
                };
                if !may_reply(&self.core, &access, peer, &token) {
                    return self.dismiss(id, MAY_NOT_WORK);
                }
                let Some(connection) = self.connections.of(id) else { return };
                let part = partial.then_some(connection.parts);
                connection.parts = if partial { connection.parts.saturating_add(1) } else { 0 };
                match stock_body(body, attached) {
                    Ok(body) => self.core.worker_reply(now, peer, &token, Status::OK, part, body),
                    Err(lost) => self.lose_reply(peer, &token, part, lost),
                }
            }
            WorkerCommand::Heartbeat if self.core.is_worker(peer) => {}
            WorkerCommand::Heartbeat => self.dismiss(id, "a heartbeat of a worker that has not said that it is ready"),
            WorkerCommand::Disconnect => {
                self.core.peer_gone(now, peer);
                self.set_protocol(id, PeerProtocol::Nothing);
            }
        }
    }

    /// Notes the credit of an accepted worker, and logs it.
    fn greet(&mut self, peer: Peer, service: &[u8], credit: u32) {
        let Some(connection) = self.connections.find(peer) else { return };
        let id = connection.id;
        connection.wants_ids = self.transport.has_property(id, IDS_PROPERTY);
        if self.core.is_worker(peer) {
            let address = self.transport.address(id).map(|address| address.to_string()).unwrap_or_default();
            tracing::info!(peer = %id, service = %shown(service), address, credit, "a worker is there");
        }
    }

    fn on_malformed(&mut self, id: PeerId, error: MdpError) {
        match error {
            // A valid header, so the peer will understand.
            MdpError::Malformed { worker: dialect, why } => {
                if let Some(connection) = self.connections.of(id)
                    && connection.protocol == PeerProtocol::Nothing
                {
                    self.set_protocol(id, PeerProtocol::StockWorker(dialect));
                }
                self.dismiss(id, why);
            }
            MdpError::Dialect(_) | MdpError::NotMajordomo(_) | MdpError::UnknownHeader(_) => {
                self.reject(id, &error.to_string())
            }
        }
    }

    /// Dismisses a stock worker: its requests go to others, and it may begin again.
    pub(super) fn dismiss(&mut self, id: PeerId, why: &str) {
        self.complain(id, why, "dismissed");
        let now = self.now();
        self.core.peer_gone(now, id.slot());
        let Some(connection) = self.connections.of(id) else { return };
        if let PeerProtocol::StockWorker(dialect) = connection.protocol {
            connection.parts = 0;
            self.set_protocol(id, PeerProtocol::Nothing);
            self.send(id.slot(), majordomo::disconnect(dialect).into_iter().collect());
        }
    }

    /// Ends the connection of a peer that can't be talked to.
    pub(super) fn reject(&mut self, id: PeerId, why: &str) {
        if self.connections.of(id).is_some() {
            self.complain(id, why, "disconnected");
            self.disconnect(id, why);
        }
    }

    /// Ends a connection; false if there is none of that name.
    pub fn disconnect(&mut self, id: PeerId, reason: &str) -> bool {
        let Some(connection) = self.drop_connection(id) else { return false };
        self.peer_gone(&connection);
        self.transport.disconnect(id, reason);
        self.act();
        true
    }

    fn complain(&self, id: PeerId, why: &str, done: &str) {
        let address = self.transport.address(id);
        tracing::warn!(peer = %id, address = address.map(tracing::field::display), why, done, "a peer misbehaves");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dispatch::tests::connected;
    use towpath_requests::numbered::{Block, ClientId};

    /// All records that were collected, as one message.
    fn message(header: &'static [u8], block: &mut Block) -> [Bytes; 2] {
        let records: Vec<u8> = block.drain().flat_map(|message| message.block.to_vec()).collect();
        [Bytes::from_static(header), Bytes::from(records)]
    }

    #[test]
    fn rest_of_a_block_is_dropped_when_its_peer_is_disconnected() {
        let (mut broker, _peers) = connected(2);
        for peer in 0..2 {
            let mut block = Block::default();
            if peer == 0 {
                // It isn't a worker yet, and becomes one when it has been disconnected for that.
                (0..2 * RECORDS_AT_ONCE).for_each(|_| FromWorker::credit(&mut block, 1));
                FromWorker::ready(&mut block, 1, b"work");
            } else {
                (0..2 * RECORDS_AT_ONCE).for_each(|_| FromClient::confirm(&mut block, 1, 1));
                FromClient::hello(&mut block, ClientId([1; 16]), 1);
            }
            let id = broker.dispatch.connections.find(peer).unwrap().id;
            let header = if peer == 0 { WORKER_HEADER } else { CLIENT_HEADER };
            broker.dispatch.on_message(id, &message(header, &mut block), Attached::Nothing);
            assert!(broker.dispatch.connections.of(id).is_none(), "it broke the rules");
            assert!(!broker.dispatch.core.has_role(peer), "the next peer in its place is taken for it");
        }
    }
}
