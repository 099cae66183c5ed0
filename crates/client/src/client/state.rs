//! What a client's callers share with its task: the session, its connection, and what waits on either side of them.

use super::failover::Failover;
use super::health::Standing;
use super::inbox::Inbox;
use super::session::{NewRequest, Session};
use super::{CallOptions, ClientOptions, SubmitError};
use crate::connection::assembler::{FromBroker, Incoming};
use crate::connection::dialect_detect::Guess;
use crate::connection::driver::{Driven, Shared};
use crate::connection::encoder::Unfit;
use crate::connection::{LinkOptions, Speech, encoder};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use towpath_requests::body::Body;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_requests::majordomo;
use towpath_requests::message::has_whole_body;
use towpath_requests::numbered::{Block, CLIENT_HEADER, ClientId, Extent, ToClient};
use towpath_sockets::{Endpoint, Event, Hub, Message, PeerId, SendError, SocketError};

/// Between attempts to connect, whatever the options say: a clock can count to it.
const REST_MOST: Duration = Duration::from_secs(24 * 3600);

/// Bytes that are encoded before the hub is asked whether it has room for more.
const PUMP_BYTES: usize = 60 * 1024;

/// Where the connection stands.
enum Connection {
    /// Not before then.
    Resting(Instant),
    Connecting,
    Ready(PeerId, Speech),
}

impl Connection {
    /// Whether these frames have all of a reply's body behind them.
    fn has_whole_reply(&self, head: &[Bytes]) -> bool {
        match self {
            Connection::Ready(_, Speech::Numbered) => {
                has_whole_body(head, CLIENT_HEADER, |block| ToClient::announces_list(block))
            }
            Connection::Ready(_, Speech::Stock(_)) => head.len() == majordomo::Dialect::CLIENT_HEAD_FRAMES,
            Connection::Resting(_) | Connection::Connecting => false,
        }
    }
}

/// The whole of it, behind the lock.
pub(super) struct State {
    pub session: Session,
    pub inbox: Inbox,
    origin: Instant,
    endpoints: Vec<Endpoint>,
    link: LinkOptions,
    received_bytes_max: usize,
    failover: Failover,
    connection: Connection,
    block: Block,
    pending: VecDeque<Message>,
    /// The connection takes no more; the hub says when it does again.
    is_full: bool,
    incoming: Incoming,
    /// Why the connection is gone, and since when. What came before is still heard, and may wait for the disk for a while.
    gone: Option<(String, Instant)>,
    paused: bool,
    notices: Arc<Notices>,
    /// Callers that wait for room.
    pub room_wanted: usize,
    /// Ends when all is said.
    pub closing: bool,
    /// Somebody of the same name may come for the outcomes of what has none yet.
    pub comes_back: bool,
    /// Why nothing more will come.
    pub ended: Option<String>,
    pub standing: Standing,
    /// The broker isn't left though it refuses everything: so did all others.
    stays: bool,
}

/// What callers wait for.
#[derive(Debug, Default)]
pub(super) struct Notices {
    pub arrived: Notify,
    pub room: Notify,
    pub accepted: Notify,
}

impl From<Unfit> for SubmitError {
    fn from(unfit: Unfit) -> SubmitError {
        match unfit {
            Unfit::Kind => SubmitError::BadBody,
            Unfit::TooLarge { frames, bytes } => SubmitError::TooLarge { frames, bytes },
        }
    }
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
            endpoints,
            received_bytes_max,
            connection: Connection::Resting(now),
            block: Block::default(),
            pending: VecDeque::new(),
            is_full: false,
            incoming: Incoming::new(link.spool_folder.clone()),
            link,
            gone: None,
            paused: false,
            notices,
            room_wanted: 0,
            closing: false,
            comes_back: false,
            ended: None,
            standing: Standing::new(),
            stays: false,
        }
    }

    /// Time since this client began.
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Whether a request may be added.
    #[inline]
    pub fn has_room(&self, body: &Body) -> bool {
        self.session.has_room(body, self.inbox.completed())
    }

    /// Adds a request, if it can be taken.
    #[inline]
    pub fn submit(
        &mut self,
        service: &str,
        body: Body,
        options: CallOptions,
        owner: impl FnOnce(&mut State) -> u32,
    ) -> Result<u64, SubmitError> {
        let service = service.as_bytes();
        if service.is_empty() || service.len() > SERVICE_BYTES_MAX {
            return Err(SubmitError::BadService(service.len()));
        }
        encoder::check(&body)?;
        if let Some(why) = &self.ended {
            return Err(SubmitError::Closed(why.clone()));
        }
        if !self.has_room(&body) {
            return Err(SubmitError::Full(body));
        }
        let owner = owner(self);
        let CallOptions { ttl, volatile } = options;
        // Without a deadline nobody asks what time it is.
        let now = if ttl.is_some() { self.now() } else { Duration::ZERO };
        Ok(self.session.submit(NewRequest { service, body, ttl, volatile, owner }, now))
    }

    /// Whether the task has something to do because much has been taken.
    pub fn wants_resume(&self) -> bool {
        self.paused && self.inbox.bytes() <= self.received_bytes_max / 2
    }

    /// Ends a request at its caller's wish.
    pub fn cancel(&mut self, number: u64) -> bool {
        let now = self.now();
        let Some(delivery) = self.session.cancel(number, now) else { return false };
        self.inbox.deliver(delivery);
        self.tell();
        true
    }

    /// Tells callers that something has changed for them.
    fn tell(&mut self) {
        if self.inbox.completed() > 0 {
            self.notices.arrived.notify_waiters();
        }
        self.tell_room();
        self.notices.accepted.notify_waiters();
    }

    /// Tells callers that there may be room.
    pub fn tell_room(&self) {
        if self.room_wanted > 0 {
            self.notices.room.notify_waiters();
        }
    }

    /// The endpoint that this client is connected to, and whether requests are numbered there.
    pub fn connected(&self) -> Option<(&Endpoint, bool)> {
        match &self.connection {
            Connection::Ready(_, speech) => {
                Some((self.endpoints.get(self.failover.current())?, *speech == Speech::Numbered))
            }
            _ => None,
        }
    }

    fn lost(&mut self, reason: &str, now: Instant) {
        let endpoint = self.endpoints.get(self.failover.current());
        tracing::debug!(endpoint = endpoint.map(ToString::to_string), reason, "no connection to a broker");
        let welcomed = self.session.journal().is_some();
        if self.standing.lost(endpoint, reason, welcomed, now) {
            self.failover.succeeded();
        }
        self.forget_connection();
        self.connection = Connection::Resting(now + self.failover.failed().min(REST_MOST));
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
        // It may have come and gone in one turn, and nothing else would tell of that.
        let Some(info) = hub.peer(peer) else { return self.lost("the broker went at once", now) };
        let speech = self.link.speech(&info.metadata, Guess::first(self.link.dialect));
        self.connection = Connection::Ready(peer, speech);
        self.standing.connected(speech, now);
        match speech {
            Speech::Numbered => {
                let now = self.now();
                hub.detect_stalls(peer);
                self.session.connected(now, &mut self.block);
            }
            Speech::Stock(_) => self.session.connected_to_stock(),
        }
    }

    /// A message that is wrong beyond repair ends the connection.
    fn on_message(&mut self, message: FromBroker) -> Result<(), String> {
        let Connection::Ready(_, speech) = self.connection else { return Ok(()) };
        let now = self.now();
        let (session, inbox) = (&mut self.session, &mut self.inbox);
        let mut sink = |delivery| inbox.deliver(delivery);
        match speech {
            Speech::Numbered => session.on_message(message, now, &mut sink),
            Speech::Stock(dialect) => {
                let endpoint = self.endpoints.get(self.failover.current());
                match dialect.decode_for_client(message) {
                    Ok(heard) => {
                        session.on_stock(heard, &mut sink);
                        self.standing.heard(endpoint, None);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a message of the broker is left out");
                        self.standing.heard(endpoint, Some(&error));
                    }
                }
                Ok(())
            }
        }
    }

    /// Encodes and hands over what the hub has room for.
    fn send(&mut self, hub: &mut Hub, now: Duration) {
        let Connection::Ready(peer, speech) = self.connection else { return };
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
            match speech {
                Speech::Numbered => {
                    self.block.set_extent(Extent::among(self.session.outstanding()));
                    self.session.pump(now, &mut self.block, PUMP_BYTES);
                    if self.block.is_empty() {
                        return;
                    }
                    self.pending.extend(self.block.drain().map(|message| encoder::numbered(CLIENT_HEADER, message)));
                }
                Speech::Stock(dialect) => {
                    let Some((service, body)) = self.session.pump_stock() else { return };
                    self.pending.push_back(dialect.request(service, &body));
                }
            }
        }
    }

    fn on_event(&mut self, hub: &mut Hub, event: Event, now: Instant) {
        let ours = match &self.connection {
            Connection::Ready(peer, _) => Some(*peer),
            _ => None,
        };
        match event {
            Event::Ready { peer } if matches!(self.connection, Connection::Connecting) => self.on_ready(hub, peer, now),
            Event::Failed { reason, refused, .. } if matches!(self.connection, Connection::Connecting) => {
                self.standing.set_refused(refused);
                self.lost(&reason, now);
            }
            Event::Gone { peer, reason } if Some(peer) == ours && self.incoming.has_backlog() => {
                self.gone = Some((reason, now));
            }
            Event::Gone { peer, reason } if Some(peer) == ours => self.lost(&reason, now),
            event if ours.is_some() && event.message_peer() == ours => {
                let is_whole = |head: &[Bytes]| self.connection.has_whole_reply(head);
                match self.incoming.on_event(event, is_whole, &hub.waker()) {
                    Ok(Some(message)) => self.hear(hub, message),
                    Ok(None) => {}
                    Err(reason) => self.misunderstood(hub, &reason),
                }
            }
            _ => {}
        }
    }

    fn hear(&mut self, hub: &mut Hub, message: FromBroker) {
        if let Err(reason) = self.on_message(message) {
            self.misunderstood(hub, &reason);
        }
    }

    fn misunderstood(&self, hub: &mut Hub, reason: &str) {
        if let Connection::Ready(peer, _) = self.connection {
            tracing::warn!(reason, "the broker's message can't be understood");
            // A broker that says this again and again is left for another one, and not asked too often.
            hub.disconnect(peer, reason);
        }
    }

    /// Whether the broker is to be read no more until callers have taken some of what it said, or until that is on the disk.
    fn set_reading(&self, hub: &mut Hub) {
        if let Connection::Ready(peer, _) = self.connection {
            hub.pause_reading(peer, self.paused || self.incoming.is_over_limit());
        }
    }

    /// A broker that takes nothing, because its disk can't be written to, is left for the next one. When all of them have refused, one
    /// after the other, the time to come again that the last one says is waited for before the next round.
    fn leave_who_refuses(&mut self, hub: &mut Hub, now: Instant) {
        let Connection::Ready(peer, _) = self.connection else { return };
        if self.session.turned_away().is_none() {
            self.stays = false;
            return;
        }
        let is_quiet = self.pending.is_empty() && self.block.is_empty() && !hub.has_output();
        if self.stays || !is_quiet {
            return;
        }
        self.stays = !self.session.goes_on(self.endpoints.len());
        if let (false, Some(why)) = (self.stays, self.session.turned_away().map(ToString::to_string)) {
            hub.disconnect(peer, &why);
            self.lost(&why, now);
        }
    }

    /// A connection of which the replies can't be told apart any more is replaced by another one to the same broker.
    fn replace_spoiled(&mut self, hub: &mut Hub, now: Instant) {
        let Some(why) = self.session.spoiled() else { return };
        let Connection::Ready(peer, speech) = self.connection else { return };
        match speech {
            Speech::Numbered => self.lost(why, now),
            Speech::Stock(_) => {
                self.standing.replaced(self.endpoints.get(self.failover.current()), why);
                self.forget_connection();
                self.connection = Connection::Resting(now);
            }
        }
        hub.disconnect(peer, why);
    }
}

impl Driven for State {
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
            self.hear(hub, message);
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
        self.leave_who_refuses(hub, now);
        self.connect(hub, now);
        // What a greeting waits for is the broker's first word, and not much.
        let is_full = !self.session.is_greeting() && self.inbox.bytes() > self.received_bytes_max;
        self.paused |= is_full && matches!(self.connection, Connection::Ready(..));
        self.set_reading(hub);
        let time = self.now();
        self.send(hub, time);
        self.tell();
        Ok(hub.is_busy())
    }

    fn deadline(&self) -> Option<Instant> {
        let resting = match self.connection {
            Connection::Resting(until) => Some(until),
            _ => None,
        };
        let gone = self.gone.as_ref().and_then(|(_, since)| since.checked_add(self.link.heartbeat_timeout));
        resting
            .into_iter()
            .chain(gone)
            .chain(self.session.deadline(!self.is_full).and_then(|at| self.origin.checked_add(at)))
            .min()
    }

    fn is_over(&self) -> bool {
        self.closing && self.pending.is_empty() && self.block.is_empty() && self.session.is_flushed()
    }

    fn after_turn(_shared: &Arc<Shared<State>>) {}

    fn ended(&mut self, reason: String) {
        if self.ended.is_none() {
            let inbox = &mut self.inbox;
            self.session.end_all(&reason, &mut |delivery| inbox.deliver(delivery));
            self.ended = Some(reason);
        }
        self.notices.arrived.notify_waiters();
        self.notices.room.notify_waiters();
        self.notices.accepted.notify_waiters();
    }

    fn wakers(&mut self) -> &mut Vec<Waker> {
        self.inbox.wakers()
    }
}
