//! Protocol state of a worker with one broker, without a socket, thread or clock.
//!
//! A request stays held when its connection is lost, and its reply is sent on the next one: its token remains valid at the
//! broker. Stock brokers have no tokens; their requests end with the connection.

mod give_back;

use super::request::unfit;
use crate::connection::encoder::{self, UnsendableBody};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use towpath_requests::body::{Body, COPY_AGAIN_BYTES_MAX, IncomingBody};
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX};
use towpath_requests::majordomo::Dialect;
use towpath_requests::majordomo::peer::WorkerMessage;
use towpath_requests::numbered::{Block, Content, FromWorker, RequestId, Status, ToWorker, Token, WireError};
use towpath_sockets::Message;

/// Interval of heartbeats to a stock broker.
const HEARTBEAT: Duration = Duration::from_millis(2500);

/// Heartbeats missed before a stock broker is taken for dead.
const LIVENESS: u32 = 4;

/// Handler that replies at once, or says why it can't.
pub(super) type AtOnce = dyn Fn(Body) -> Result<Body, String> + Send + Sync;

/// The reply, or why it can't be sent.
fn fitting(reply: Body) -> Body {
    match encoder::check(&reply) {
        Ok(()) => reply,
        Err(why) => unfit(why),
    }
}

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Token that the reply must return.
    pub token: Token,
    /// Attempt, from 1. Over 1, another worker may have executed it.
    pub attempt: u16,
    /// Its id, at a broker that sends ids.
    pub id: Option<RequestId>,
    /// Milliseconds left. 0: no limit.
    pub ttl_ms: u32,
    /// Body.
    pub body: Body,
}

/// Event for the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WorkerEvent {
    /// A request.
    Request(Arrival),
    /// The reply isn't wanted any more.
    Cancelled(Token),
}

/// Counters since the session was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerCounters {
    /// Received requests.
    pub requests: u64,
    /// Requests that were cancelled before their reply.
    pub cancelled: u64,
    /// Replies without a taker, since the connection of their request is gone: to a stock broker, or in the middle of a
    /// reply in parts.
    pub orphaned: u64,
}

#[derive(Debug, Default)]
struct Held {
    /// Address of a stock client; empty for numbered requests.
    address: Bytes,
    /// MDP/0.1 has no parts: they become frames before the reply's.
    parts: Parts,
    /// Parts of the reply were sent.
    has_parts: bool,
    /// Came on an earlier connection.
    orphan: bool,
    /// Deadline. `None`: no limit.
    expires: Option<Duration>,
}

/// Parts of a reply that become frames of it.
#[derive(Debug, Default)]
struct Parts {
    frames: Vec<Bytes>,
    bytes: u64,
    /// Why they can't be sent together.
    unfit: Option<UnsendableBody>,
}

impl Parts {
    fn add(&mut self, body: &Body) {
        self.bytes += body.length();
        match body.to_frames() {
            Some(frames) => self.frames.extend(frames),
            None => self.unfit = Some(UnsendableBody::Kind),
        }
        let frames = self.frames.len();
        if self.unfit.is_none() && (frames > BODY_FRAMES_MAX || self.bytes > BODY_BYTES_MAX as u64) {
            self.unfit = Some(UnsendableBody::TooLarge { frames, bytes: self.bytes });
        }
        if self.unfit.is_some() {
            self.frames.clear();
        }
    }

    /// All parts as one body.
    fn whole(self) -> Body {
        self.unfit.map_or_else(|| Body::of_frames(self.frames), unfit)
    }
}

struct Unsent {
    token: Token,
    status: Status,
    part: Option<u32>,
    body: Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Down,
    Numbered,
    Stock {
        dialect: Dialect,
        received: Duration,
        beat: Duration,
    },
    /// The connection has to be replaced.
    Over(&'static str),
}

/// Worker session over consecutive connections to the same broker.
pub(crate) struct Session {
    service: Arc<[u8]>,
    credit: u32,
    link: Link,
    held: HashMap<Token, Held>,
    orphans: u32,
    /// Earliest deadline among requests of earlier connections.
    orphan_expires: Option<Duration>,
    /// Time of the last event.
    now: Duration,
    /// Memory of the last immediate reply, reused for the next request.
    spare: Body,
    unsent: VecDeque<Unsent>,
    unsent_bytes: usize,
    /// Messages to a stock broker.
    stock: VecDeque<Message>,
    stock_bytes: usize,
    leaving: bool,
    next_token: u64,
    /// Id of the request that comes next, and its token.
    identity: Option<(Token, RequestId)>,
    counters: WorkerCounters,
}

impl Session {
    /// A worker for a service that takes `credit` requests at a time.
    pub fn new(service: &[u8], credit: u32) -> Session {
        Session {
            service: Arc::from(service),
            credit: credit.max(1),
            link: Link::Down,
            held: HashMap::new(),
            orphans: 0,
            identity: None,
            orphan_expires: None,
            now: Duration::ZERO,
            spare: Body::default(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            stock: VecDeque::new(),
            stock_bytes: 0,
            leaving: false,
            next_token: 1,
            counters: WorkerCounters::default(),
        }
    }

    pub fn counters(&self) -> WorkerCounters {
        self.counters
    }

    /// Whether no reply is outstanding or unsent.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.unsent.is_empty()
    }

    /// Bytes of unsent replies, and of messages for [`Session::pump_stock`].
    pub fn waiting_bytes(&self) -> usize {
        self.unsent_bytes + self.stock_bytes
    }

    fn push_stock(&mut self, message: Message) {
        self.stock_bytes += message.memory_bytes();
        self.stock.push_back(message);
    }

    /// Why the connection has to be replaced, if so.
    pub fn over(&self) -> Option<&'static str> {
        match self.link {
            Link::Over(why) => Some(why),
            _ => None,
        }
    }

    /// Credit left beside requests of earlier connections.
    fn free_credit(&self) -> u32 {
        self.credit.saturating_sub(self.orphans)
    }

    /// Whether the broker has used up the credit on this connection. A broker that sends more would fill this worker's
    /// memory.
    fn is_over_credit(&self) -> bool {
        self.held.len() >= self.orphans as usize + self.credit as usize
    }

    /// A connection to a broker of numbered requests is ready. Appends the greeting and unsent replies.
    pub fn connected(&mut self, block: &mut Block) {
        self.link = Link::Numbered;
        // The broker dispatches as it reads: LEAVING after READY would be too late.
        let credit = if self.leaving { 0 } else { self.free_credit() };
        FromWorker::ready(block, credit, &self.service);
        self.unsent_bytes = 0;
        for Unsent { token, status, part, body } in self.unsent.drain(..) {
            FromWorker::reply(block, token, status, part, &body);
        }
        if self.leaving {
            FromWorker::leaving(block);
        }
    }

    /// A connection to a stock broker is ready.
    pub fn connected_to_stock(&mut self, dialect: Dialect, now: Duration) {
        self.link = Link::Stock { dialect, received: now, beat: now + HEARTBEAT };
        self.push_stock(dialect.ready(&self.service));
        self.counters.orphaned += self.unsent.len() as u64;
        self.unsent.clear();
        self.unsent_bytes = 0;
    }

    /// The connection is lost, and with it requests that can't be answered on another.
    pub fn disconnected(&mut self, sink: &mut impl FnMut(WorkerEvent)) {
        self.link = Link::Down;
        self.stock.clear();
        self.stock_bytes = 0;
        let counters = &mut self.counters;
        self.held.retain(|token, held| {
            held.orphan = true;
            // Parts may be lost: the broker executes such a request again, and refuses the end of this reply.
            let is_kept = held.address.is_empty() && !held.has_parts;
            if !is_kept {
                counters.orphaned += 1;
                sink(WorkerEvent::Cancelled(*token));
            }
            is_kept
        });
        self.orphans = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        self.orphan_expires = self.first_orphan_expires();
    }

    fn first_orphan_expires(&self) -> Option<Duration> {
        self.held.values().filter(|held| held.orphan).filter_map(|held| held.expires).min()
    }

    /// Ends requests of earlier connections at their deadline: the broker can't cancel them.
    fn expire_orphans(&mut self, now: Duration, out: &mut Block, sink: &mut impl FnMut(WorkerEvent)) {
        if self.orphan_expires.is_none_or(|at| now < at) {
            return;
        }
        let is_over = |_: &Token, held: &mut Held| held.orphan && held.expires.is_some_and(|at| at <= now);
        let over: Vec<(Token, Held)> = self.held.extract_if(is_over).collect();
        for (token, held) in over {
            self.counters.cancelled += 1;
            self.released(&held, out);
            sink(WorkerEvent::Cancelled(token));
        }
        self.orphan_expires = self.first_orphan_expires();
    }

    /// Takes a block of records, and the attached body or why it is lost. Requests are held and passed to the sink, unless
    /// `at_once` replies to them.
    pub fn on_block(
        &mut self,
        block: &Bytes,
        attached: Option<Result<Body, String>>,
        out: &mut Block,
        at_once: Option<&AtOnce>,
        sink: &mut impl FnMut(WorkerEvent),
    ) -> Result<(), WireError> {
        let mut attached = attached;
        let mut rest = &block[..];
        while !rest.is_empty() {
            match ToWorker::decode(&mut rest)? {
                ToWorker::Request { token, attempt, ttl_ms, content } => {
                    self.counters.requests += 1;
                    let body = match (content, attached.take_if(|_| content.is_attached())) {
                        (Content::Attached { .. }, Some(Err(why))) => {
                            FromWorker::give_back(out, token, &why);
                            continue;
                        }
                        (Content::One(bytes), _) if at_once.is_some() && bytes.len() <= COPY_AGAIN_BYTES_MAX => {
                            let mut body = std::mem::take(&mut self.spare);
                            IncomingBody::Bytes(bytes).replace(&mut body);
                            body
                        }
                        // An immediate reply keeps the block alive for a short time only.
                        (Content::One(bytes), _) if at_once.is_some() => Body::from(block.slice_ref(bytes)),
                        (_, attached) => content.to_body(block, attached.and_then(Result::ok))?,
                    };
                    if let Some(reply) = at_once {
                        match reply(body) {
                            Ok(body) => match encoder::check(&body) {
                                Ok(()) => {
                                    FromWorker::reply(out, token, Status::OK, None, &body);
                                    if body.reusable_bytes() > 0 {
                                        self.spare = body;
                                    }
                                }
                                Err(why) => FromWorker::reply(out, token, Status::FAILED, None, &unfit(why)),
                            },
                            Err(why) => FromWorker::reply(out, token, Status::FAILED, None, &Body::from(why)),
                        }
                        continue;
                    }
                    if self.is_over_credit() || self.held.get(&token).is_some_and(|held| !held.orphan) {
                        return Err(WireError::OverCredit);
                    }
                    let expires = (ttl_ms > 0).then(|| self.now + Duration::from_millis(u64::from(ttl_ms)));
                    self.held.insert(token, Held { expires, ..Held::default() });
                    let id = self.identity.take().filter(|(of, _)| *of == token).map(|(_, id)| id);
                    sink(WorkerEvent::Request(Arrival { token, attempt, id, ttl_ms, body }));
                }
                ToWorker::Identity { token, id } => self.identity = Some((token, id)),
                ToWorker::Cancel { token } => {
                    if let Some(held) = self.held.remove(&token) {
                        self.counters.cancelled += 1;
                        self.released(&held, out);
                        sink(WorkerEvent::Cancelled(token));
                    }
                }
                // The epoch doesn't matter to a worker, and held requests are finished anyway.
                ToWorker::Welcome { .. } | ToWorker::Leave => {}
            }
        }
        if attached.is_some() { Err(WireError::Attachment) } else { Ok(()) }
    }

    /// The broker has sent something, perhaps only part of a message.
    pub fn received(&mut self, now: Duration) {
        self.now = now;
        if let Link::Stock { received, .. } = &mut self.link {
            *received = now;
        }
    }

    /// Takes a message of a stock broker.
    pub fn on_stock(&mut self, message: WorkerMessage, at_once: Option<&AtOnce>, sink: &mut impl FnMut(WorkerEvent)) {
        let Link::Stock { dialect, .. } = self.link else { return };
        match message {
            WorkerMessage::Heartbeat => {}
            WorkerMessage::Disconnect => self.link = Link::Over("the broker has sent this worker away"),
            WorkerMessage::Request { address, body } => {
                self.counters.requests += 1;
                let mut answer = |reply: Result<Body, String>| {
                    let body = fitting(reply.unwrap_or_else(Body::from));
                    self.push_stock(dialect.reply(&address, false, &body));
                };
                match (body, at_once) {
                    (Ok(body), Some(reply)) => answer(reply(body)),
                    (Err(why), _) => answer(Err(why)),
                    (Ok(_), None) if self.is_over_credit() => {
                        self.link = Link::Over("the broker gives more requests than this worker takes at a time");
                    }
                    (Ok(body), None) => {
                        let mut token = Token::default();
                        token.0[8..].copy_from_slice(&self.next_token.to_be_bytes());
                        self.next_token += 1;
                        self.held.insert(token, Held { address, ..Held::default() });
                        sink(WorkerEvent::Request(Arrival { token, attempt: 1, id: None, ttl_ms: 0, body }));
                    }
                }
            }
        }
    }

    /// Sends a reply, or part of one. Returns whether it is still wanted: the request may be cancelled or have its reply.
    pub fn reply(&mut self, token: Token, status: Status, part: Option<u32>, body: &Body, out: &mut Block) -> bool {
        let Some(held) = self.held.get_mut(&token) else { return false };
        held.has_parts |= part.is_some();
        if !held.address.is_empty() {
            if let Link::Stock { dialect, .. } = self.link {
                self.reply_to_stock(dialect, token, part, body);
            }
            return true;
        }
        match self.link {
            Link::Numbered => FromWorker::reply(out, token, status, part, body),
            _ => {
                self.unsent_bytes += body.memory_bytes() + size_of::<Unsent>();
                self.unsent.push_back(Unsent { token, status, part, body: body.clone() });
            }
        }
        if part.is_none()
            && let Some(held) = self.held.remove(&token)
        {
            self.released(&held, out);
        }
        true
    }

    fn reply_to_stock(&mut self, dialect: Dialect, token: Token, part: Option<u32>, body: &Body) {
        let Some(held) = self.held.get_mut(&token) else { return };
        if dialect == Dialect::Mdp01 {
            if part.is_some() {
                held.parts.add(body);
                return;
            }
            let mut parts = std::mem::take(&mut held.parts);
            let whole = if held.has_parts {
                parts.add(body);
                &parts.whole()
            } else {
                body
            };
            let message = dialect.reply(&held.address, false, whole);
            self.push_stock(message);
        } else {
            let message = dialect.reply(&held.address, part.is_some(), body);
            self.push_stock(message);
        }
        if part.is_none() {
            self.held.remove(&token);
            if self.leaving && self.held.is_empty() {
                self.push_stock(dialect.disconnect());
            }
        }
    }

    /// A request is no longer held. Those of earlier connections had reduced the broker's credit, which is restored now.
    fn released(&mut self, held: &Held, out: &mut Block) {
        if held.orphan {
            self.orphans = self.orphans.saturating_sub(1);
            if self.link == Link::Numbered && !self.leaving {
                FromWorker::credit(out, self.free_credit());
            }
        }
    }

    /// Takes no more requests.
    pub fn leave(&mut self, out: &mut Block) {
        if std::mem::replace(&mut self.leaving, true) {
            return;
        }
        match self.link {
            Link::Numbered => FromWorker::leaving(out),
            Link::Stock { dialect, .. } if self.held.is_empty() => self.push_stock(dialect.disconnect()),
            _ => {}
        }
    }

    /// The next message to a stock broker.
    pub fn pump_stock(&mut self) -> Option<Message> {
        let message = self.stock.pop_front()?;
        self.stock_bytes -= message.memory_bytes();
        Some(message)
    }

    /// When [`Session::on_time`] has something to do.
    pub fn deadline(&self) -> Option<Duration> {
        match self.link {
            Link::Stock { received, beat, .. } => Some(beat.min(received + HEARTBEAT * LIVENESS)),
            _ => self.orphan_expires,
        }
    }

    /// Handles everything that is due.
    pub fn on_time(&mut self, now: Duration, out: &mut Block, sink: &mut impl FnMut(WorkerEvent)) {
        self.expire_orphans(now, out, sink);
        let Link::Stock { dialect, received, beat } = &mut self.link else { return };
        if now >= *received + HEARTBEAT * LIVENESS {
            self.link = Link::Over("the broker has been silent for too long");
        } else if now >= *beat {
            *beat = now + HEARTBEAT;
            let message = dialect.heartbeat();
            self.push_stock(message);
        }
    }
}
