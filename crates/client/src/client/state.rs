//! State shared by a client's callers and its task: the session, its connection, and queues on both sides.

use super::connection_state::Connection;
use super::failover::Failover;
use super::health::ConnectionHealth;
use super::inbox::Inbox;
use super::left::LeftBrokers;
use super::session::{NewRequest, Session};
use super::{CallOptions, ClientOptions, SubmitError, id_after_fork};
use crate::connection::assembler::{FromBroker, Inbound};
use crate::connection::dialect_detect::DialectGuess;
use crate::connection::driver::{Drive, Shared};
use crate::connection::{LinkOptions, PeerProtocol, encoder};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use towpath_requests::body::Body;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_requests::numbered::{BatchLimit, Block, CLIENT_HEADER, ClientId};
use towpath_sockets::{Endpoint, Event, Hub, Message, PeerId, Refusal, SendError, SocketError};

/// Longest pause between attempts to connect, so that times don't overflow.
const REST_MOST: Duration = Duration::from_secs(24 * 3600);

/// Delay before the next attempt if each broker refuses this client: it would refuse the same credentials again.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// Bytes encoded before asking the hub for space again.
const PUMP_BYTES: usize = 60 * 1024;

/// Everything behind the lock.
pub(super) struct State {
    pub session: Session,
    pub inbox: Inbox,
    origin: Instant,
    endpoints: Vec<Endpoint>,
    link: LinkOptions,
    received_bytes_max: usize,
    failover: Failover,
    left: LeftBrokers,
    connection: Connection,
    block: Block,
    pending: VecDeque<Message>,
    /// The hub's queue is full.
    is_full: bool,
    incoming: Inbound,
    /// Why and when the connection was lost. Messages that came before are still taken, and may wait for the disk.
    gone: Option<(String, Instant)>,
    paused: bool,
    notices: Arc<Notices>,
    /// Callers that wait for space.
    pub space_waiters: usize,
    /// Close when everything is sent.
    pub closing: bool,
    /// A client with the same id may come back for the outcomes.
    pub comes_back: bool,
    /// The process that it was made in.
    process: u32,
    /// Why the client has ended.
    pub ended: Option<String>,
    pub health: ConnectionHealth,
    /// Set if all brokers refuse everything, so that failover is pointless.
    stays: bool,
}

/// Notifications for callers.
#[derive(Debug, Default)]
pub(super) struct Notices {
    pub arrived: Notify,
    pub space: Notify,
    pub accepted: Notify,
}

impl State {
    pub fn new(client: ClientId, endpoints: Vec<Endpoint>, options: ClientOptions, notices: Arc<Notices>) -> State {
        let ClientOptions { outstanding_max, outstanding_bytes_max, received_bytes_max, link } = options;
        let now = Instant::now();
        State {
            session: Session::new(client, outstanding_max, outstanding_bytes_max, link.connect_timeout),
            inbox: Inbox::new(),
            origin: now,
            failover: Failover::new(endpoints.len(), link.backoff_first, link.backoff_most),
            health: ConnectionHealth::new(&endpoints),
            left: LeftBrokers::default(),
            endpoints,
            received_bytes_max,
            connection: Connection::Resting(now),
            block: Block::default(),
            pending: VecDeque::new(),
            is_full: false,
            incoming: Inbound::new(link.spool_folder.clone(), link.max_body_bytes),
            link,
            gone: None,
            paused: false,
            notices,
            space_waiters: 0,
            closing: false,
            comes_back: false,
            process: std::process::id(),
            ended: None,
            stays: false,
        }
    }

    /// Time since this client was made.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Whether a request may be submitted.
    #[inline]
    pub fn has_space(&self, body: &Body) -> bool {
        self.session.has_space(body, self.inbox.completed())
    }

    /// Submits a request, if there is space.
    #[inline]
    pub fn submit(
        &mut self,
        service: &[u8],
        body: Body,
        options: CallOptions,
        owner: impl FnOnce(&mut State) -> u32,
    ) -> Result<u64, SubmitError> {
        if service.is_empty() || service.len() > SERVICE_BYTES_MAX {
            return Err(SubmitError::BadService(service.len()));
        }
        encoder::check(&body)?;
        if let Some(why) = &self.ended {
            return Err(SubmitError::Closed(why.clone()));
        }
        if !self.has_space(&body) {
            return Err(SubmitError::Full(body));
        }
        let owner = owner(self);
        let CallOptions { ttl, volatile } = options;
        // No clock is read unless there is a deadline.
        let now = if ttl.is_some() { self.now() } else { Duration::ZERO };
        Ok(self.session.submit(NewRequest { service, body, ttl, volatile, owner }, now))
    }

    /// Whether the task must resume reading because callers have taken enough.
    pub fn wants_resume(&self) -> bool {
        self.paused && self.inbox.bytes() <= self.received_bytes_max / 2
    }

    /// Cancels a request.
    pub fn cancel(&mut self, number: u64) -> bool {
        let now = self.now();
        let Some(delivery) = self.session.cancel(number, now) else { return false };
        self.inbox.deliver(delivery);
        self.notify();
        true
    }

    /// Notifies callers of changes.
    fn notify(&mut self) {
        if self.inbox.completed() > 0 {
            self.notices.arrived.notify_waiters();
        }
        self.notify_senders();
        self.notices.accepted.notify_waiters();
    }

    /// Notifies callers that there may be space.
    pub fn notify_senders(&self) {
        if self.space_waiters > 0 {
            self.notices.space.notify_waiters();
        }
    }

    /// The connected endpoint, and whether it takes numbered requests.
    pub fn connected(&self) -> Option<(&Endpoint, bool)> {
        match &self.connection {
            Connection::Ready(_, protocol) => {
                Some((self.endpoints.get(self.failover.current())?, *protocol == PeerProtocol::Numbered))
            }
            _ => None,
        }
    }

    /// Whether each broker refuses this client.
    pub fn refused_by_all(&self) -> bool {
        self.health.refused_by_all(self.endpoints.len())
    }

    fn lost(&mut self, reason: &str, now: Instant) {
        let endpoint = self.endpoints.get(self.failover.current());
        tracing::debug!(endpoint = endpoint.map(ToString::to_string), reason, "no connection to a broker");
        let welcomed = self.session.journal().is_some();
        if self.health.lost(endpoint, reason, welcomed, now) {
            self.failover.succeeded();
        }
        if let Some(epoch) = self.session.epoch() {
            self.left.add(self.failover.current(), self.session.next_number(), epoch, now);
        }
        self.forget_connection();
        let delay = self.failover.failed().min(REST_MOST);
        let delay = if self.refused_by_all() { delay.max(REFUSED_RETRY) } else { delay };
        self.connection = Connection::Resting(now + delay);
    }

    fn forget_connection(&mut self) {
        self.session.disconnected();
        self.block.clear();
        self.pending.clear();
        self.incoming.reset();
        self.gone = None;
        self.paused = false;
    }

    fn connect(&mut self, hub: &mut Hub, now: Instant) {
        if matches!(self.connection, Connection::Resting(until) if until <= now)
            && let Some(endpoint) = self.endpoints.get(self.failover.current())
        {
            self.connection = Connection::Connecting;
            hub.connect_once(endpoint);
        }
    }

    fn on_ready(&mut self, hub: &mut Hub, peer: PeerId, now: Instant) {
        let Some(info) = hub.peer(peer) else {
            self.connection = Connection::Gone(peer);
            return;
        };
        let protocol = match self.link.protocol(&info.metadata, DialectGuess::first(self.link.dialect)) {
            Ok(protocol) => protocol,
            Err(why) => {
                hub.disconnect(peer, &why);
                self.health.set_refused(self.endpoints.get(self.failover.current()), Some(Refusal::Peer));
                return self.lost(&why, now);
            }
        };
        self.connection = Connection::Ready(peer, protocol);
        self.health.connected(protocol, now);
        match protocol {
            PeerProtocol::Numbered => {
                let now = self.now();
                hub.detect_stalls(peer);
                if !self.comes_back
                    && let Some(id) = id_after_fork(&mut self.process)
                {
                    self.session.set_client(id);
                }
                self.session.connected(now, &mut self.block);
            }
            PeerProtocol::Stock(_) => self.session.connected_to_stock(),
        }
    }

    /// A malformed message ends the connection.
    fn on_message(&mut self, message: FromBroker) -> Result<(), String> {
        let Connection::Ready(_, protocol) = self.connection else { return Ok(()) };
        let now = self.now();
        let (session, inbox) = (&mut self.session, &mut self.inbox);
        let mut sink = |delivery| inbox.deliver(delivery);
        match protocol {
            PeerProtocol::Numbered => session.on_message(message, now, &mut sink),
            PeerProtocol::Stock(dialect) => {
                let endpoint = self.endpoints.get(self.failover.current());
                match dialect.decode_for_client(message) {
                    Ok(received) => {
                        session.on_stock(received, &mut sink);
                        self.health.received(endpoint, None);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a message of the broker is left out");
                        self.health.received(endpoint, Some(&error));
                    }
                }
                Ok(())
            }
        }
    }

    /// Encodes and sends as much as the hub has space for.
    fn send(&mut self, hub: &mut Hub, now: Duration) {
        let Connection::Ready(peer, protocol) = self.connection else { return };
        self.is_full = false;
        loop {
            while let Some(message) = self.pending.pop_front() {
                if let Err(SendError::Full(back) | SendError::Gone(back)) = hub.send(peer, message) {
                    self.pending.push_front(back);
                    self.is_full = true;
                    return;
                }
            }
            if !hub.is_writable(peer) {
                self.is_full = true;
                return;
            }
            match protocol {
                PeerProtocol::Numbered => {
                    self.block.set_limit(BatchLimit::among(self.session.outstanding()));
                    self.session.pump(now, &mut self.block, PUMP_BYTES);
                    if self.block.is_empty() {
                        return;
                    }
                    self.pending.extend(self.block.drain().map(|message| encoder::numbered(CLIENT_HEADER, message)));
                }
                PeerProtocol::Stock(dialect) => {
                    let Some((service, body)) = self.session.pump_stock() else { return };
                    self.pending.push_back(dialect.request(service, &body));
                }
            }
        }
    }

    fn on_event(&mut self, hub: &mut Hub, event: Event, now: Instant) {
        let ours = match &self.connection {
            Connection::Ready(peer, _) | Connection::Gone(peer) => Some(*peer),
            _ => None,
        };
        match event {
            Event::Ready { peer } if matches!(self.connection, Connection::Connecting) => self.on_ready(hub, peer, now),
            Event::Failed { reason, refused, .. } if matches!(self.connection, Connection::Connecting) => {
                self.health.set_refused(self.endpoints.get(self.failover.current()), refused);
                self.lost(&reason, now);
            }
            Event::Gone { peer, reason } if Some(peer) == ours && self.incoming.has_backlog() => {
                self.gone = Some((reason, now));
            }
            Event::Gone { peer, reason } if Some(peer) == ours => self.lost(&reason, now),
            event if ours.is_some() && event.message_peer() == ours => {
                let is_whole = |head: &[Bytes]| self.connection.has_whole_reply(head);
                match self.incoming.on_event(event, is_whole, &hub.waker()) {
                    Ok(Some(message)) => self.receive(hub, message),
                    Ok(None) => {}
                    Err(reason) => self.on_malformed(hub, &reason),
                }
            }
            _ => {}
        }
    }

    fn receive(&mut self, hub: &mut Hub, message: FromBroker) {
        if let Err(reason) = self.on_message(message) {
            self.on_malformed(hub, &reason);
        }
    }

    fn on_malformed(&self, hub: &mut Hub, reason: &str) {
        if let Connection::Ready(peer, _) = self.connection {
            tracing::warn!(reason, "the broker's message can't be understood");
            // Disconnecting counts as a failure, so a broker that keeps doing this is left, and not retried too often.
            hub.disconnect(peer, reason);
        }
    }

    /// Pauses reading until callers have taken messages, or until bodies are on the disk.
    fn set_reading(&self, hub: &mut Hub) {
        if let Connection::Ready(peer, _) = self.connection {
            hub.pause_reading(peer, self.paused || self.incoming.is_over_limit());
        }
    }

    /// Leaves a broker that has no storage for the next one. When all have refused in turn, waits as long as the last one
    /// said before the next round.
    fn leave_refusing_broker(&mut self, hub: &mut Hub, now: Instant) {
        let Connection::Ready(peer, _) = self.connection else { return };
        if self.session.refuses_everything().is_none() {
            self.stays = false;
            return;
        }
        let is_quiet = self.pending.is_empty() && self.block.is_empty() && !hub.has_output();
        if self.stays || !is_quiet {
            return;
        }
        self.stays = !self.session.goes_on(self.endpoints.len());
        if let (false, Some(why)) = (self.stays, self.session.refuses_everything().map(ToString::to_string)) {
            hub.disconnect(peer, &why);
            self.lost(&why, now);
        }
    }

    /// Notifies brokers that were left for this one which outcomes they need to keep no longer.
    fn notify_left_brokers(&mut self, hub: &Hub, now: Instant) {
        if self.left.is_empty() {
            return;
        }
        let at = self.session.journal().is_some().then(|| self.failover.current());
        at.into_iter().for_each(|at| self.left.returned(at, self.session.epoch()));
        let State { left, session, link, endpoints, closing, .. } = self;
        let notify = |until, block: &mut Block| session.put_ended(until, block);
        left.turn(now, *closing, at, session.lowest(), link, endpoints, &hub.waker(), notify);
    }

    /// Replaces a connection whose replies can't be matched to requests any more, by one to the same broker.
    fn replace_spoiled(&mut self, hub: &mut Hub, now: Instant) {
        let Some(why) = self.session.spoiled() else { return };
        let Connection::Ready(peer, protocol) = self.connection else { return };
        match protocol {
            PeerProtocol::Numbered => self.lost(why, now),
            PeerProtocol::Stock(_) => {
                self.health.replaced(self.endpoints.get(self.failover.current()), why);
                self.forget_connection();
                self.connection = Connection::Resting(now);
            }
        }
        hub.disconnect(peer, why);
    }
}

impl Drive for State {
    fn turn(&mut self, hub: &mut Hub, now: Instant) -> Result<bool, SocketError> {
        self.connect(hub, now);
        if self.closing {
            let now = self.now();
            if !self.comes_back {
                let inbox = &mut self.inbox;
                self.session.give_up_all(now, "the client is closed", &mut |delivery| inbox.deliver(delivery));
            }
            self.session.hurry(now);
        }
        if self.wants_resume() {
            self.paused = false;
            self.set_reading(hub);
        }
        let time = self.now();
        self.send(hub, time);
        hub.poll(Some(Duration::ZERO))?;
        while let Some(event) = hub.next_event() {
            self.on_event(hub, event, now);
        }
        while let Some(message) = self.incoming.next() {
            self.receive(hub, message);
        }
        let is_over = |(_, since): &mut (String, Instant)| {
            !self.incoming.has_backlog() || now.saturating_duration_since(*since) >= self.link.heartbeat_timeout
        };
        if let Some((reason, _)) = self.gone.take_if(is_over) {
            self.lost(&reason, now);
        }
        let inbox = &mut self.inbox;
        self.session.on_time(time, &mut |delivery| inbox.deliver(delivery));
        self.replace_spoiled(hub, now);
        self.leave_refusing_broker(hub, now);
        self.connect(hub, now);
        // A greeting waits for the broker's first message, which is small.
        let is_full = !self.session.is_greeting() && self.inbox.bytes() > self.received_bytes_max;
        self.paused |= is_full && matches!(self.connection, Connection::Ready(..));
        self.set_reading(hub);
        let time = self.now();
        self.send(hub, time);
        self.notify_left_brokers(hub, now);
        self.notify();
        Ok(hub.is_busy())
    }

    fn deadline(&self) -> Option<Instant> {
        let resting = match self.connection {
            Connection::Resting(until) => Some(until),
            _ => None,
        };
        let gone = self.gone.as_ref().and_then(|(_, since)| since.checked_add(self.link.heartbeat_timeout));
        let goes_on = !self.closing && self.session.journal().is_some();
        let left = self.left.deadline(self.session.lowest()).filter(|_| goes_on);
        resting
            .into_iter()
            .chain(gone)
            .chain(left)
            .chain(self.session.deadline(!self.is_full).and_then(|at| self.origin.checked_add(at)))
            .min()
    }

    fn is_over(&self) -> bool {
        self.closing
            && self.pending.is_empty()
            && self.block.is_empty()
            && self.session.is_flushed()
            && self.left.is_over()
    }

    fn after_turn(_shared: &Arc<Shared<State>>) {}

    fn ended(&mut self, reason: String) {
        if self.ended.is_none() {
            let inbox = &mut self.inbox;
            self.session.end_all(&reason, &mut |delivery| inbox.deliver(delivery));
            self.ended = Some(reason);
        }
        self.notices.arrived.notify_waiters();
        self.notices.space.notify_waiters();
        self.notices.accepted.notify_waiters();
    }

    fn wakers(&mut self) -> &mut Vec<Waker> {
        self.inbox.wakers()
    }
}
