//! A worker's connection to one of its brokers: made again whenever it is lost, until the worker leaves.

use super::Inbox;
use super::request::{Cancellation, Request};
use super::session::{Arrival, AtOnce, Heard, Session};
use crate::connection::assembler::{FromBroker, Incoming};
use crate::connection::dialect_detect::Guess;
use crate::connection::driver::{Driven, Shared};
use crate::connection::{LinkOptions, NOT_TRIED, Speech, encoder};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use towpath_requests::body::Body;
use towpath_requests::message::{block_of, has_whole_body};
use towpath_requests::numbered::{Block, Extent, Status, ToWorker, Token, WORKER_HEADER};
use towpath_sockets::{Endpoint, Event, Hub, Message, PeerId, SendError, SocketError};

/// Bytes of replies that wait before [`Request::part`] does.
const REPLY_BYTES_MAX: usize = 1024 * 1024;

/// A worker that has said that it leaves waits for so long for requests that are on their way to it.
const LEAVE_QUIET: Duration = Duration::from_millis(50);

/// And for so long for a connection, if it has replies for which there is none.
const LEAVE_CONNECTION: Duration = Duration::from_secs(5);

/// What replies at once, in the task that drives the connection.
pub(super) type Handler = Arc<AtOnce>;

pub(super) struct LinkState {
    session: Session,
    endpoint: Endpoint,
    options: LinkOptions,
    guess: Guess,
    origin: Instant,
    peer: Option<(PeerId, Speech)>,
    block: Block,
    pending: VecDeque<Message>,
    pending_bytes: usize,
    incoming: Incoming,
    handler: Option<Handler>,
    arrived: Vec<Arrival>,
    cancellations: HashMap<Token, Arc<Cancellation>>,
    inbox: Arc<Inbox>,
    /// Tells whoever waits to give a part.
    pub room: Arc<Notify>,
    /// Whoever runs it knows that there is no connection.
    alone_told: bool,
    /// Why there is none, or why the last one was lost.
    failure: String,
    /// Since when it leaves, and since when nothing is held.
    leaving: Option<Instant>,
    quiet: Option<Instant>,
    ended: bool,
    wakers: Vec<Waker>,
}

impl LinkState {
    pub fn new(
        endpoint: Endpoint,
        session: Session,
        options: LinkOptions,
        handler: Option<Handler>,
        inbox: Arc<Inbox>,
    ) -> LinkState {
        LinkState {
            session,
            endpoint,
            origin: Instant::now(),
            peer: None,
            block: Block::default(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            incoming: Incoming::new(options.spool_folder.clone()),
            guess: Guess::first(options.dialect),
            options,
            handler,
            arrived: Vec::new(),
            cancellations: HashMap::new(),
            inbox,
            room: Arc::new(Notify::new()),
            alone_told: false,
            failure: NOT_TRIED.to_owned(),
            leaving: None,
            quiet: None,
            ended: false,
            wakers: Vec::new(),
        }
    }

    /// The endpoint, and why there is no connection to it, if there is none.
    pub fn standing(&self) -> (&Endpoint, Result<(), &str>) {
        (&self.endpoint, self.peer.map(|_| ()).ok_or(&self.failure))
    }

    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Gives a reply, or part of one.
    pub fn reply(&mut self, token: Token, status: Status, part: Option<u32>, body: &Body) -> bool {
        if part.is_none() {
            self.cancellations.remove(&token);
        }
        self.session.reply(token, status, part, body, &mut self.block)
    }

    /// Whether replies wait for the connection, so that there should be no more parts for now.
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
        let speech = self.options.speech(&info.metadata, self.guess);
        tracing::info!(endpoint = %self.endpoint, "connected to a broker");
        self.alone_told = false;
        self.peer = Some((peer, speech));
        match speech {
            Speech::Numbered => {
                hub.detect_stalls(peer);
                self.session.connected(&mut self.block);
            }
            Speech::Stock(dialect) => self.session.connected_to_stock(dialect, self.now()),
        }
    }

    fn lost(&mut self, reason: &str) {
        tracing::info!(endpoint = %self.endpoint, reason, "the connection to a broker is lost");
        self.peer = None;
        reason.clone_into(&mut self.failure);
        let (arrived, cancellations) = (&mut self.arrived, &mut self.cancellations);
        self.session.disconnected(&mut |heard| take(heard, arrived, cancellations));
        self.block.clear();
        self.pending.clear();
        self.pending_bytes = 0;
        self.incoming.reset();
    }

    /// It is tried again and again, and said once.
    fn not_connected(&mut self, reason: &str) {
        reason.clone_into(&mut self.failure);
        if std::mem::replace(&mut self.alone_told, true) {
            tracing::debug!(endpoint = %self.endpoint, reason, "no connection to a broker, still trying");
        } else {
            tracing::warn!(endpoint = %self.endpoint, reason, "no connection to a broker, still trying");
        }
    }

    fn on_message(&mut self, speech: Speech, message: FromBroker) -> Result<(), String> {
        let (arrived, cancellations) = (&mut self.arrived, &mut self.cancellations);
        let mut sink = |heard| take(heard, arrived, cancellations);
        let handler = self.handler.as_deref();
        match speech {
            Speech::Numbered => {
                let (block, attached) = block_of(message, WORKER_HEADER)?;
                let outcome = self.session.on_block(&block, attached, &mut self.block, handler, &mut sink);
                // What came together goes back together, and isn't joined to what comes next.
                self.block.close_if_long(Extent::among(0));
                outcome.map_err(|error| error.to_string())
            }
            Speech::Stock(dialect) => {
                match dialect.decode_for_worker(message) {
                    Ok(heard) => {
                        self.guess.heard(dialect);
                        self.session.on_stock(heard, handler, &mut sink);
                    }
                    Err(error) => tracing::warn!(%error, "a message of the broker is left out"),
                }
                Ok(())
            }
        }
    }

    fn send(&mut self, hub: &mut Hub) {
        let Some((peer, speech)) = self.peer else { return };
        loop {
            while let Some(message) = self.pending.pop_front() {
                let bytes = message.memory_bytes();
                if let Err(SendError::Full(back) | SendError::Gone(back)) = hub.send(peer, message) {
                    self.pending.push_front(back);
                    return;
                }
                self.pending_bytes -= bytes;
            }
            match speech {
                Speech::Numbered if !self.block.is_empty() => {
                    self.pending.extend(self.block.drain().map(|message| encoder::numbered(WORKER_HEADER, message)));
                    self.pending_bytes = self.pending.iter().map(Message::memory_bytes).sum();
                }
                Speech::Numbered => return,
                Speech::Stock(_) => {
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
            Event::Failed { reason, .. } => self.not_connected(&reason),
            Event::Gone { peer, reason } if is_ours(peer) => self.lost(&reason),
            event if event.message_peer().is_some_and(is_ours) => {
                // Before it is taken: that may wait for the disk.
                self.session.heard(self.now());
                match self.incoming.on_event(event, |head| has_whole_request(ours, head), &hub.waker()) {
                    Ok(Some(message)) => self.hear(hub, message),
                    Ok(None) => {}
                    Err(reason) => self.misunderstood(hub, &reason),
                }
            }
            _ => {}
        }
    }

    fn hear(&mut self, hub: &mut Hub, message: FromBroker) {
        if let Some((_, speech)) = self.peer
            && let Err(reason) = self.on_message(speech, message)
        {
            self.misunderstood(hub, &reason);
        }
    }

    fn misunderstood(&self, hub: &mut Hub, reason: &str) {
        if let Some((peer, _)) = self.peer {
            tracing::warn!(reason, "the broker's message can't be understood");
            hub.disconnect(peer, reason);
        }
    }
}

/// What the session has heard, for those who carry it out.
fn take(heard: Heard, arrived: &mut Vec<Arrival>, cancellations: &mut HashMap<Token, Arc<Cancellation>>) {
    match heard {
        Heard::Request(arrival) => arrived.push(arrival),
        Heard::Cancelled(token) => {
            arrived.retain(|arrival| arrival.token != token);
            if let Some(cancellation) = cancellations.remove(&token) {
                cancellation.cancel();
            }
        }
    }
}

/// Whether these frames have all of a request's body behind them.
fn has_whole_request(ours: Option<(PeerId, Speech)>, head: &[Bytes]) -> bool {
    match ours {
        Some((_, Speech::Numbered)) => has_whole_body(head, WORKER_HEADER, |block| ToWorker::announces_list(block)),
        Some((_, Speech::Stock(dialect))) => head.len() == dialect.worker_head_frames(),
        None => false,
    }
}

impl Driven for LinkState {
    fn turn(&mut self, hub: &mut Hub, now: Instant) -> Result<bool, SocketError> {
        self.send(hub);
        hub.poll(Some(Duration::ZERO))?;
        while let Some(event) = hub.next_event() {
            self.on_event(hub, event);
        }
        while let Some(message) = self.incoming.next() {
            self.hear(hub, message);
        }
        if let Some((peer, _)) = self.peer {
            hub.pause_reading(peer, self.incoming.is_over_limit());
        }
        let (time, arrived, cancellations) = (self.now(), &mut self.arrived, &mut self.cancellations);
        self.session.on_time(time, &mut self.block, &mut |heard| take(heard, arrived, cancellations));
        if let (Some(why), Some((peer, _))) = (self.session.over(), self.peer) {
            self.guess.next();
            hub.disconnect(peer, why);
            self.lost(why);
        }
        self.send(hub);
        // Nobody here has more to add to it, unlike a client's callers.
        hub.flush();
        if !self.is_full() {
            self.room.notify_waiters();
        }
        if self.leaving.is_some() {
            let hears_nothing = self.session.is_idle() && !self.incoming.has_backlog();
            let is_quiet = hears_nothing && self.pending.is_empty() && self.block.is_empty();
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

    fn after_turn(shared: &Arc<Shared<LinkState>>) {
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
        self.room.notify_waiters();
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
    fn link(dialect: Dialect) -> (LinkState, Token) {
        let waiting = Mutex::new(Waiting { requests: VecDeque::new(), links: 1 });
        let inbox = Arc::new(Inbox { waiting, arrived: Notify::new() });
        let endpoint = "tcp://127.0.0.1:1".parse().unwrap();
        let mut link = LinkState::new(endpoint, Session::new("work", 1), LinkOptions::default(), None, inbox);
        let (mut tokens, request) =
            (Vec::new(), WorkerMessage::Request { address: "addr".into(), body: Ok("x".into()) });
        link.session.connected_to_stock(dialect, Duration::ZERO);
        link.session.on_stock(request, None, &mut |heard| {
            let Heard::Request(arrival) = heard else { return };
            tokens.push(arrival.token);
        });
        (link, tokens[0])
    }

    fn part() -> Body {
        Body::from(Bytes::from(vec![0; REPLY_BYTES_MAX / 2 + 1]))
    }

    #[test]
    fn parts_for_a_stock_broker_wait_for_those_before_them() {
        for dialect in [Dialect::Mdp02, Dialect::Majortomo] {
            let (mut link, token) = link(dialect);
            for number in 0..2 {
                assert!(!link.is_full(), "{dialect:?}");
                assert!(link.reply(token, Status::OK, Some(number), &part()));
            }
            assert!(link.is_full(), "{dialect:?}");
            // What is handed over makes room: READY, and a part.
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
    fn parts_that_become_frames_of_the_reply_do_not_wait_for_it() {
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
