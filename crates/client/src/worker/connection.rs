//! A worker's connection to one of its brokers, re-established until the worker leaves.

use super::Inbox;
use super::request::{Cancellation, Request};
use super::session::{Arrival, AtOnce, Session, WorkerEvent};
use crate::connection::assembler::{FromBroker, Inbound};
use crate::connection::dialect_detect::DialectGuess;
use crate::connection::driver::{Drive, Shared};
use crate::connection::{LinkOptions, NOT_TRIED, PeerProtocol, encoder};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use towpath_requests::body::Body;
use towpath_requests::message::{block_of, has_whole_body};
use towpath_requests::numbered::{BatchLimit, Block, Status, ToWorker, Token, WORKER_HEADER};
use towpath_sockets::{Endpoint, Event, Hub, Message, PeerId, SendError, SocketError};

/// Bytes of queued replies above which [`Request::part`] waits.
const REPLY_BYTES_MAX: usize = 1024 * 1024;

/// How long a leaving worker waits for requests that are on their way to it.
const LEAVE_QUIET: Duration = Duration::from_millis(50);

/// How long a leaving worker with unsent replies waits for a connection.
const LEAVE_CONNECTION: Duration = Duration::from_secs(5);

/// Handler that replies at once, in the task that drives the connection.
pub(super) type Handler = Arc<AtOnce>;

pub(super) struct BrokerConnection {
    session: Session,
    endpoint: Endpoint,
    options: LinkOptions,
    guess: DialectGuess,
    origin: Instant,
    peer: Option<(PeerId, PeerProtocol)>,
    block: Block,
    pending: VecDeque<Message>,
    pending_bytes: usize,
    incoming: Inbound,
    handler: Option<Handler>,
    arrived: Vec<Arrival>,
    cancellations: HashMap<Token, Arc<Cancellation>>,
    inbox: Arc<Inbox>,
    /// Notified when there is space for parts.
    pub space: Arc<Notify>,
    /// A message was understood.
    has_received: bool,
    /// The failure to connect was logged.
    failure_logged: bool,
    /// Why there is no connection, or why the last one was lost.
    failure: String,
    /// When it began to leave, and since when it holds nothing.
    leaving: Option<Instant>,
    quiet: Option<Instant>,
    ended: bool,
    wakers: Vec<Waker>,
}

impl BrokerConnection {
    pub fn new(
        endpoint: Endpoint,
        session: Session,
        options: LinkOptions,
        handler: Option<Handler>,
        inbox: Arc<Inbox>,
    ) -> BrokerConnection {
        BrokerConnection {
            session,
            endpoint,
            origin: Instant::now(),
            peer: None,
            block: Block::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            incoming: Inbound::new(options.spool_folder.clone(), options.max_body_bytes),
            guess: DialectGuess::first(options.dialect),
            options,
            handler,
            arrived: Vec::new(),
            cancellations: HashMap::new(),
            inbox,
            space: Arc::new(Notify::new()),
            has_received: false,
            failure_logged: false,
            failure: NOT_TRIED.to_owned(),
            leaving: None,
            quiet: None,
            ended: false,
            wakers: Vec::new(),
        }
    }

    /// The endpoint, and why it isn't connected.
    pub fn health(&self) -> (&Endpoint, Result<(), &str>) {
        (&self.endpoint, self.peer.map(|_| ()).ok_or(&self.failure))
    }

    pub fn has_received(&self) -> bool {
        self.has_received
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Sends a reply, or part of one.
    pub fn reply(&mut self, token: Token, status: Status, part: Option<u32>, body: &Body) -> bool {
        if part.is_none() {
            self.cancellations.remove(&token);
        }
        self.session.reply(token, status, part, body, &mut self.block)
    }

    /// Gives a request back that can't be begun here.
    pub fn give_back(&mut self, token: Token, reason: &str) -> bool {
        self.cancellations.remove(&token);
        self.session.give_back(token, reason, &mut self.block)
    }

    /// Whether too many replies wait for the connection to accept more parts.
    pub fn is_full(&self) -> bool {
        let bytes = self.pending_bytes + self.block.memory_bytes() + self.session.waiting_bytes();
        !self.ended && bytes > REPLY_BYTES_MAX
    }

    /// Takes no more requests.
    pub fn leave(&mut self) {
        if self.leaving.is_none() {
            self.leaving = Some(Instant::now());
            self.session.leave(&mut self.block);
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn on_ready(&mut self, hub: &mut Hub, peer: PeerId) {
        let Some(info) = hub.peer(peer) else { return };
        let protocol = match self.options.protocol(&info.metadata, self.guess) {
            Ok(protocol) => protocol,
            Err(why) => {
                self.not_connected(&why);
                return hub.disconnect(peer, &why);
            }
        };
        tracing::info!(endpoint = %self.endpoint, "connected to a broker");
        self.failure_logged = false;
        self.peer = Some((peer, protocol));
        match protocol {
            PeerProtocol::Numbered => {
                hub.detect_stalls(peer);
                self.session.connected(&mut self.block);
            }
            PeerProtocol::Stock(dialect) => self.session.connected_to_stock(dialect, self.now()),
        }
    }

    fn lost(&mut self, reason: &str) {
        tracing::info!(endpoint = %self.endpoint, reason, "the connection to a broker is lost");
        self.peer = None;
        reason.clone_into(&mut self.failure);
        let (arrived, cancellations) = (&mut self.arrived, &mut self.cancellations);
        self.session.disconnected(&mut |received| take(received, arrived, cancellations));
        self.block.clear();
        self.pending.clear();
        self.pending_bytes = 0;
        self.incoming.reset();
    }

    /// Logged as a warning once; attempts go on.
    fn not_connected(&mut self, reason: &str) {
        reason.clone_into(&mut self.failure);
        if std::mem::replace(&mut self.failure_logged, true) {
            tracing::debug!(endpoint = %self.endpoint, reason, "no connection to a broker, still trying");
        } else {
            tracing::warn!(endpoint = %self.endpoint, reason, "no connection to a broker, still trying");
        }
    }

    /// Logged each time, which is once a minute: only a person can help.
    fn refused(&mut self, reason: &str) {
        reason.clone_into(&mut self.failure);
        tracing::error!(endpoint = %self.endpoint, reason, "the broker refuses this worker; trying again in a minute");
    }

    fn on_message(&mut self, protocol: PeerProtocol, message: FromBroker) -> Result<(), String> {
        let (arrived, cancellations) = (&mut self.arrived, &mut self.cancellations);
        let mut sink = |received| take(received, arrived, cancellations);
        let handler = self.handler.as_deref();
        match protocol {
            PeerProtocol::Numbered => {
                let (block, attached) = block_of(message, WORKER_HEADER)?;
                self.has_received = true;
                let outcome = self.session.on_block(&block, attached, &mut self.block, handler, &mut sink);
                // Replies to one message go back together, separate from later ones.
                self.block.close_if_long(BatchLimit::among(0));
                outcome.map_err(|error| error.to_string())
            }
            PeerProtocol::Stock(dialect) => {
                match dialect.decode_for_worker(message) {
                    Ok(received) => {
                        self.has_received = true;
                        self.guess.received(dialect);
                        self.session.on_stock(received, handler, &mut sink);
                    }
                    Err(error) => tracing::warn!(%error, "a message of the broker is left out"),
                }
                Ok(())
            }
        }
    }

    fn send(&mut self, hub: &mut Hub) {
        let Some((peer, protocol)) = self.peer else { return };
        loop {
            while let Some(message) = self.pending.pop_front() {
                let bytes = message.memory_bytes();
                if let Err(SendError::Full(back) | SendError::Gone(back)) = hub.send(peer, message) {
                    self.pending.push_front(back);
                    return;
                }
                self.pending_bytes -= bytes;
            }
            match protocol {
                PeerProtocol::Numbered if !self.block.is_empty() => {
                    self.pending.extend(self.block.drain().map(|message| encoder::numbered(WORKER_HEADER, message)));
                    self.pending_bytes = self.pending.iter().map(Message::memory_bytes).sum();
                }
                PeerProtocol::Numbered => return,
                PeerProtocol::Stock(_) => {
                    let Some(message) = self.session.pump_stock() else { return };
                    self.pending_bytes += message.memory_bytes();
                    self.pending.push_back(message);
                }
            }
        }
    }

    fn on_event(&mut self, hub: &mut Hub, event: Event) {
        let ours = self.peer;
        let is_ours = |peer| ours.is_some_and(|(known, _)| known == peer);
        match event {
            Event::Ready { peer } => self.on_ready(hub, peer),
            Event::Failed { reason, refused: Some(_), .. } => self.refused(&reason),
            Event::Failed { reason, .. } => self.not_connected(&reason),
            Event::Gone { peer, reason } if is_ours(peer) => self.lost(&reason),
            event if event.message_peer().is_some_and(is_ours) => {
                // Before the message is taken, which may wait for the disk.
                self.session.received(self.now());
                match self.incoming.on_event(event, |head| has_whole_request(ours, head), &hub.waker()) {
                    Ok(Some(message)) => self.receive(hub, message),
                    Ok(None) => {}
                    Err(reason) => self.on_malformed(hub, &reason),
                }
            }
            _ => {}
        }
    }

    fn receive(&mut self, hub: &mut Hub, message: FromBroker) {
        if let Some((_, protocol)) = self.peer
            && let Err(reason) = self.on_message(protocol, message)
        {
            self.on_malformed(hub, &reason);
        }
    }

    fn on_malformed(&self, hub: &mut Hub, reason: &str) {
        if let Some((peer, _)) = self.peer {
            tracing::warn!(reason, "the broker's message can't be understood");
            hub.disconnect(peer, reason);
        }
    }
}

/// Applies events of the session.
fn take(received: WorkerEvent, arrived: &mut Vec<Arrival>, cancellations: &mut HashMap<Token, Arc<Cancellation>>) {
    match received {
        WorkerEvent::Request(arrival) => arrived.push(arrival),
        WorkerEvent::Cancelled(token) => {
            arrived.retain(|arrival| arrival.token != token);
            if let Some(cancellation) = cancellations.remove(&token) {
                cancellation.cancel();
            }
        }
    }
}

/// Whether the next frame is the whole body of a request.
fn has_whole_request(ours: Option<(PeerId, PeerProtocol)>, head: &[Bytes]) -> bool {
    match ours {
        Some((_, PeerProtocol::Numbered)) => {
            has_whole_body(head, WORKER_HEADER, |block| ToWorker::announces_list(block))
        }
        Some((_, PeerProtocol::Stock(dialect))) => head.len() == dialect.worker_head_frames(),
        None => false,
    }
}

impl Drive for BrokerConnection {
    fn turn(&mut self, hub: &mut Hub, now: Instant) -> Result<bool, SocketError> {
        self.send(hub);
        hub.poll(Some(Duration::ZERO))?;
        while let Some(event) = hub.next_event() {
            self.on_event(hub, event);
        }
        while let Some(message) = self.incoming.next() {
            self.receive(hub, message);
        }
        if let Some((peer, _)) = self.peer {
            hub.pause_reading(peer, self.incoming.is_over_limit());
        }
        let (time, arrived, cancellations) = (self.now(), &mut self.arrived, &mut self.cancellations);
        self.session.on_time(time, &mut self.block, &mut |received| take(received, arrived, cancellations));
        if let (Some(why), Some((peer, _))) = (self.session.over(), self.peer) {
            self.guess.next();
            hub.disconnect(peer, why);
            self.lost(why);
        }
        self.send(hub);
        // Nothing more will be added by callers, unlike at a client.
        hub.flush();
        if !self.is_full() {
            self.space.notify_waiters();
        }
        if self.leaving.is_some() {
            let receives_nothing = self.session.is_idle() && !self.incoming.has_backlog();
            // A long reply leaves the hub later than it was given to it.
            let has_sent = self.pending.is_empty() && self.block.is_empty() && !hub.has_output();
            let is_quiet = receives_nothing && has_sent;
            self.quiet = if is_quiet { self.quiet.or(Some(now)) } else { None };
        }
        Ok(hub.is_busy())
    }

    fn deadline(&self) -> Option<Instant> {
        let session = self.session.deadline().and_then(|at| self.origin.checked_add(at));
        let quiet = self.quiet.map(|since| since + LEAVE_QUIET);
        let leaving = self.leaving.filter(|_| self.peer.is_none()).map(|since| since + LEAVE_CONNECTION);
        session.into_iter().chain(quiet).chain(leaving).min()
    }

    fn is_over(&self) -> bool {
        let is_quiet = self.quiet.is_some_and(|since| self.peer.is_none() || since.elapsed() >= LEAVE_QUIET);
        is_quiet || (self.peer.is_none() && self.leaving.is_some_and(|since| since.elapsed() >= LEAVE_CONNECTION))
    }

    fn after_turn(shared: &Arc<Shared<BrokerConnection>>) {
        let mut state = shared.lock();
        if state.arrived.is_empty() {
            return;
        }
        let inbox = Arc::clone(&state.inbox);
        let arrived = std::mem::take(&mut state.arrived);
        let requests: Vec<Request> = arrived
            .into_iter()
            .map(|arrival| {
                let cancellation = Arc::new(Cancellation::default());
                state.cancellations.insert(arrival.token, Arc::clone(&cancellation));
                Request::new(Arc::clone(shared), arrival, cancellation)
            })
            .collect();
        drop(state);
        inbox.add(requests);
    }

    fn ended(&mut self, reason: String) {
        if !std::mem::replace(&mut self.ended, true) {
            self.peer = None;
            self.failure = reason;
            self.cancellations.drain().for_each(|(_, cancellation)| cancellation.cancel());
            self.inbox.link_ended();
        }
        self.space.notify_waiters();
    }

    fn wakers(&mut self) -> &mut Vec<Waker> {
        &mut self.wakers
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::worker::Waiting;
    use bytes::Bytes;
    use std::sync::Mutex;
    use towpath_requests::majordomo::Dialect;
    use towpath_requests::majordomo::peer::WorkerMessage;

    /// A connection to a stock broker, which has given it a request.
    fn link(dialect: Dialect) -> (BrokerConnection, Token) {
        let waiting = Mutex::new(Waiting { requests: VecDeque::new(), links: 1 });
        let inbox = Arc::new(Inbox { waiting, arrived: Notify::new() });
        let endpoint = "tcp://127.0.0.1:1".parse().unwrap();
        let mut link = BrokerConnection::new(endpoint, Session::new(b"work", 1), LinkOptions::default(), None, inbox);
        let (mut tokens, request) =
            (Vec::new(), WorkerMessage::Request { address: "addr".into(), body: Ok("x".into()) });
        link.session.connected_to_stock(dialect, Duration::ZERO);
        link.session.on_stock(request, None, &mut |received| {
            let WorkerEvent::Request(arrival) = received else { return };
            tokens.push(arrival.token);
        });
        (link, tokens[0])
    }

    fn part() -> Body {
        Body::from(Bytes::from(vec![0; REPLY_BYTES_MAX / 2 + 1]))
    }

    #[test]
    fn parts_for_a_stock_broker_are_back_pressured() {
        for dialect in [Dialect::Mdp02, Dialect::Majortomo] {
            let (mut link, token) = link(dialect);
            for number in 0..2 {
                assert!(!link.is_full(), "{dialect:?}");
                assert!(link.reply(token, Status::OK, Some(number), &part()));
            }
            assert!(link.is_full(), "{dialect:?}");
            // Sent messages make space: READY, and a part.
            for _ in 0..2 {
                link.session.pump_stock().unwrap();
            }
            assert!(!link.is_full(), "{dialect:?}");
            link.reply(token, Status::OK, Some(2), &part());
            assert!(link.is_full(), "{dialect:?}");
            // And so does the end of the connection.
            link.lost("a test");
            assert!(!link.is_full(), "{dialect:?}");
            assert_eq!(link.session.waiting_bytes(), 0);
        }
    }

    #[test]
    fn parts_that_become_frames_are_not_back_pressured() {
        let (mut link, token) = link(Dialect::Mdp01);
        for number in 0..10 {
            assert!(link.reply(token, Status::OK, Some(number), &part()));
            assert!(!link.is_full());
        }
        assert!(link.reply(token, Status::OK, None, &part()));
        assert!(link.is_full());
        while link.session.pump_stock().is_some() {}
        assert!(!link.is_full());
    }
}
