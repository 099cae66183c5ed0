//! What a worker holds on one connection: the protocol without a socket, a thread or a clock.
//!
//! A request stays held over the loss of its connection, and its reply goes out on the next one: the token in it still means
//! the same to the broker. Stock brokers have no tokens; what came on a connection of theirs ends with it.

use super::request::unfit;
use crate::connection::encoder::{self, Unfit};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use towpath_requests::body::{Arriving, Body, COPY_AGAIN_BYTES_MAX};
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX};
use towpath_requests::majordomo::Dialect;
use towpath_requests::majordomo::peer::WorkerMessage;
use towpath_requests::numbered::{Block, Content, FromWorker, Status, ToWorker, Token, WireError};
use towpath_sockets::Message;

/// How often a stock broker hears from a worker.
const HEARTBEAT: Duration = Duration::from_millis(2500);

/// A stock broker is gone when it has been silent for so many heartbeats.
const LIVENESS: u32 = 4;

/// What replies at once, or says why it can't.
pub(super) type AtOnce = dyn Fn(Body) -> Result<Body, String> + Send + Sync;

/// A reply, or why it can't be sent.
fn fitting(reply: Body) -> Body {
    match encoder::check(&reply) {
        Ok(()) => reply,
        Err(why) => unfit(why),
    }
}

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// What the reply must bring back.
    pub token: Token,
    /// From 1: over 1, another worker may have executed it already.
    pub attempt: u16,
    /// Milliseconds that are left of its time; 0: there is no limit.
    pub ttl_ms: u32,
    /// The request.
    pub body: Body,
}

/// What a broker's message means for the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Something to do.
    Request(Arrival),
    /// Nobody wants the reply any more.
    Cancelled(Token),
}

/// What has been counted since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerCounters {
    /// Requests that came.
    pub requests: u64,
    /// Of these, requests that were cancelled before their reply.
    pub cancelled: u64,
    /// Replies that nobody takes, since the connection of their request is gone: to a stock broker, or in the middle of a reply in
    /// parts.
    pub orphaned: u64,
}

#[derive(Debug, Default)]
struct Held {
    /// A stock client's address; empty for numbered requests.
    address: Bytes,
    /// MDP/0.1 has no parts: they go in front of the reply's frames.
    parts: Parts,
    /// Parts of its reply were given.
    has_parts: bool,
    /// It came on a connection that is gone.
    orphan: bool,
    /// When its time is over; `None`: there is no limit.
    expires: Option<Duration>,
}

/// Parts of a reply that become frames of it.
#[derive(Debug, Default)]
struct Parts {
    frames: Vec<Bytes>,
    bytes: u64,
    /// Why they can't be sent together.
    unfit: Option<Unfit>,
}

impl Parts {
    fn add(&mut self, body: &Body) {
        self.bytes += body.length();
        match body.to_frames() {
            Some(frames) => self.frames.extend(frames),
            None => self.unfit = Some(Unfit::Kind),
        }
        let frames = self.frames.len();
        if self.unfit.is_none() && (frames > BODY_FRAMES_MAX || self.bytes > BODY_BYTES_MAX as u64) {
            self.unfit = Some(Unfit::TooLarge { frames, bytes: self.bytes });
        }
        if self.unfit.is_some() {
            self.frames.clear();
        }
    }

    /// All of them as one body.
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
        heard: Duration,
        beat: Duration,
    },
    /// The connection is to be replaced.
    Over(&'static str),
}

/// The worker's side of one connection after the other to the same broker.
pub(crate) struct Session {
    service: Arc<[u8]>,
    credit: u32,
    link: Link,
    held: HashMap<Token, Held>,
    orphans: u32,
    /// When the first of those of former connections expires.
    orphan_expires: Option<Duration>,
    /// As of what was heard last.
    now: Duration,
    /// The memory of a reply that was made at once, for the next request.
    spare: Body,
    unsent: VecDeque<Unsent>,
    unsent_bytes: usize,
    /// Messages to a stock broker.
    stock: VecDeque<Message>,
    stock_bytes: usize,
    leaving: bool,
    next_token: u64,
    counters: WorkerCounters,
}

impl Session {
    /// A worker for that service that takes so many requests at a time.
    pub fn new(service: &str, credit: u32) -> Session {
        Session {
            service: Arc::from(service.as_bytes()),
            credit: credit.max(1),
            link: Link::Down,
            held: HashMap::new(),
            orphans: 0,
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

    /// Whether no reply is owed, and none waits for a connection.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.unsent.is_empty()
    }

    /// Bytes of replies that wait for a connection, and of messages that wait for [`Session::pump_stock`].
    pub fn waiting_bytes(&self) -> usize {
        self.unsent_bytes + self.stock_bytes
    }

    fn push_stock(&mut self, message: Message) {
        self.stock_bytes += message.memory_bytes();
        self.stock.push_back(message);
    }

    /// Why the connection is to be replaced, if it is.
    pub fn over(&self) -> Option<&'static str> {
        match self.link {
            Link::Over(why) => Some(why),
            _ => None,
        }
    }

    /// What is left of the credit beside requests of former connections.
    fn free_credit(&self) -> u32 {
        self.credit.saturating_sub(self.orphans)
    }

    /// Whether the broker has given all that it may on this connection. A broker that gives more would fill this worker's memory.
    fn is_over_credit(&self) -> bool {
        self.held.len() >= self.orphans as usize + self.credit as usize
    }

    /// A connection to a broker of numbered requests is there. Appends what is said first, and replies that waited for it.
    pub fn connected(&mut self, block: &mut Block) {
        self.link = Link::Numbered;
        // The broker gives out requests as it reads: LEAVING behind this would be too late.
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

    /// A connection to a stock broker is there.
    pub fn connected_to_stock(&mut self, dialect: Dialect, now: Duration) {
        self.link = Link::Stock { dialect, heard: now, beat: now + HEARTBEAT };
        self.push_stock(dialect.ready(&self.service));
        self.counters.orphaned += self.unsent.len() as u64;
        self.unsent.clear();
        self.unsent_bytes = 0;
    }

    /// The connection is gone, and with it what no other one can answer: nobody wants the reply any more.
    pub fn disconnected(&mut self, sink: &mut impl FnMut(Heard)) {
        self.link = Link::Down;
        self.stock.clear();
        self.stock_bytes = 0;
        let counters = &mut self.counters;
        self.held.retain(|token, held| {
            held.orphan = true;
            // What is lost of a reply in parts nobody can tell: the broker has it executed again, and takes no end of it.
            let is_kept = held.address.is_empty() && !held.has_parts;
            if !is_kept {
                counters.orphaned += 1;
                sink(Heard::Cancelled(*token));
            }
            is_kept
        });
        self.orphans = u32::try_from(self.held.len()).unwrap_or(u32::MAX);
        self.orphan_expires = self.first_orphan_expires();
    }

    fn first_orphan_expires(&self) -> Option<Duration> {
        self.held.values().filter(|held| held.orphan).filter_map(|held| held.expires).min()
    }

    /// Of what came on a former connection no broker can say that it isn't wanted any more. Its time does.
    fn expire_orphans(&mut self, now: Duration, out: &mut Block, sink: &mut impl FnMut(Heard)) {
        if self.orphan_expires.is_none_or(|at| now < at) {
            return;
        }
        let is_over = |_: &Token, held: &mut Held| held.orphan && held.expires.is_some_and(|at| at <= now);
        let over: Vec<(Token, Held)> = self.held.extract_if(is_over).collect();
        for (token, held) in over {
            self.counters.cancelled += 1;
            self.released(&held, out);
            sink(Heard::Cancelled(token));
        }
        self.orphan_expires = self.first_orphan_expires();
    }

    /// Takes a block of records, and the body behind it, or why that is lost. A request goes to the sink and is held, unless
    /// `at_once` has a reply to it.
    pub fn on_block(
        &mut self,
        block: &Bytes,
        attached: Option<Result<Body, String>>,
        out: &mut Block,
        at_once: Option<&AtOnce>,
        sink: &mut impl FnMut(Heard),
    ) -> Result<(), WireError> {
        let mut attached = attached;
        let mut rest = &block[..];
        while !rest.is_empty() {
            match ToWorker::decode(&mut rest)? {
                ToWorker::Request { token, attempt, ttl_ms, content } => {
                    self.counters.requests += 1;
                    let body = match (content, attached.take_if(|_| content.is_attached())) {
                        (Content::Attached { .. }, Some(Err(why))) => {
                            FromWorker::reply(out, token, Status::NO_STORAGE, None, &Body::from(why));
                            continue;
                        }
                        (Content::One(bytes), _) if at_once.is_some() && bytes.len() <= COPY_AGAIN_BYTES_MAX => {
                            let mut body = std::mem::take(&mut self.spare);
                            Arriving::Bytes(bytes).replace(&mut body);
                            body
                        }
                        // What has its reply at once keeps nothing alive for long.
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
                    sink(Heard::Request(Arrival { token, attempt, ttl_ms, body }));
                }
                ToWorker::Cancel { token } => {
                    if let Some(held) = self.held.remove(&token) {
                        self.counters.cancelled += 1;
                        self.released(&held, out);
                        sink(Heard::Cancelled(token));
                    }
                }
                // The epoch is the broker's own affair, and what is held is finished anyway.
                ToWorker::Welcome { .. } | ToWorker::Leave => {}
            }
        }
        if attached.is_some() { Err(WireError::Attachment) } else { Ok(()) }
    }

    /// The broker has said something, whatever and as far as it has come.
    pub fn heard(&mut self, now: Duration) {
        self.now = now;
        if let Link::Stock { heard, .. } = &mut self.link {
            *heard = now;
        }
    }

    /// Takes what a stock broker says.
    pub fn on_stock(&mut self, message: WorkerMessage, at_once: Option<&AtOnce>, sink: &mut impl FnMut(Heard)) {
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
                        sink(Heard::Request(Arrival { token, attempt: 1, ttl_ms: 0, body }));
                    }
                }
            }
        }
    }

    /// Gives a reply, or part of one. Says whether anybody wants it: not if the request was cancelled, or has its reply.
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

    /// A request is held no longer. Those of former connections kept credit from the broker, which is given now.
    fn released(&mut self, held: &Held, out: &mut Block) {
        if held.orphan {
            self.orphans = self.orphans.saturating_sub(1);
            if self.link == Link::Numbered && !self.leaving {
                FromWorker::credit(out, self.free_credit());
            }
        }
    }

    /// Takes no more requests from now on.
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
            Link::Stock { heard, beat, .. } => Some(beat.min(heard + HEARTBEAT * LIVENESS)),
            _ => self.orphan_expires,
        }
    }

    /// Looks at what has come due.
    pub fn on_time(&mut self, now: Duration, out: &mut Block, sink: &mut impl FnMut(Heard)) {
        self.expire_orphans(now, out, sink);
        let Link::Stock { dialect, heard, beat } = &mut self.link else { return };
        if now >= *heard + HEARTBEAT * LIVENESS {
            self.link = Link::Over("the broker has been silent for too long");
        } else if now >= *beat {
            *beat = now + HEARTBEAT;
            let message = dialect.heartbeat();
            self.push_stock(message);
        }
    }
}
