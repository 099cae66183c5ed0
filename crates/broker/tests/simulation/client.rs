//! A client of numbered requests that keeps to the protocol, and no more: it holds what it has asked, asks again on every
//! connection, and confirms late.

use crate::ends::{End, Io, SERVICES, attached, request_body};
use crate::history::Event;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use towpath_broker::core::Millis;
use towpath_requests::Body;
use towpath_requests::numbered::{Block, CLIENT_HEADER, ClientId, FromClient, Status, ToClient};

/// More than the broker lets one client have, so that it is refused now and then.
const OUTSTANDING_MAX: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Sent,
    Held(Millis),
}

struct Asked {
    body: Body,
    /// Its request before a restart, which it doesn't remember until a broker answers that it was another one.
    before: Option<Body>,
    service: &'static str,
    volatile: bool,
    /// 0: the broker decides.
    expires: Millis,
    state: State,
}

pub struct Client {
    index: usize,
    next: u64,
    left: u64,
    asked: BTreeMap<u64, Asked>,
    /// Numbers with an outcome that the broker may still keep.
    done: BTreeSet<u64>,
    unconfirmed: BTreeSet<u64>,
    confirm_at: Millis,
    submit_at: Millis,
    is_connected: bool,
    is_welcome: bool,
}

impl Client {
    pub fn new(index: usize, requests: u64) -> Client {
        Client {
            index,
            next: 1,
            left: requests,
            asked: BTreeMap::new(),
            done: BTreeSet::new(),
            unconfirmed: BTreeSet::new(),
            confirm_at: 0,
            submit_at: 0,
            is_connected: false,
            is_welcome: false,
        }
    }

    fn lowest(&self) -> u64 {
        self.asked.keys().next().copied().unwrap_or(self.next)
    }

    fn submit(&mut self, io: &mut Io) {
        let number = self.next;
        self.next += 1;
        self.left -= 1;
        let body = request_body(io, "request", self.index, number);
        let volatile = io.rng.percent(20);
        let service = match io.rng.below(12) {
            0 => "mmi.echo",
            one => SERVICES[one as usize % 2],
        };
        let expires = if io.rng.percent(70) { 0 } else { io.now + io.rng.between(5, 1_500) };
        let key = (self.index, number);
        // The broker's own services aren't journalled.
        let is_volatile = volatile || service.starts_with("mmi.");
        io.history.add(io.now, Event::Submitted { key, body: body.clone(), volatile: is_volatile });
        self.asked.insert(number, Asked { body, before: None, service, volatile, expires, state: State::Waiting });
    }

    fn confirm(&mut self, block: &mut Block) {
        let mut numbers = std::mem::take(&mut self.unconfirmed).into_iter().peekable();
        while let Some(first) = numbers.next() {
            let mut count = 1;
            while numbers.next_if_eq(&(first + u64::from(count))).is_some() {
                count += 1;
            }
            FromClient::confirm(block, first, count);
        }
    }

    fn on_outcome(&mut self, io: &mut Io, number: u64, status: Status, body: Body) {
        assert!(number < self.next, "a reply to a number that was never used");
        if self.asked.remove(&number).is_some() {
            io.history.add(io.now, Event::Outcome { key: (self.index, number), status, body, own: false });
        }
        self.done.insert(number);
        self.unconfirmed.insert(number);
        if self.unconfirmed.len() == 1 {
            self.confirm_at = io.now + io.rng.below(60);
        }
        let lowest = self.lowest();
        self.done.retain(|&done| done >= lowest);
    }
}

impl End for Client {
    fn connected(&mut self, io: &mut Io) {
        (self.is_connected, self.is_welcome) = (true, io.rng.percent(30));
        let mut block = Block::default();
        FromClient::hello(&mut block, ClientId([self.index as u8; 16]), self.lowest());
        io.send(CLIENT_HEADER, &mut block);
        for asked in self.asked.values_mut() {
            asked.state = State::Waiting;
        }
        let lowest = self.lowest();
        self.done.retain(|&done| done >= lowest);
        // The broker may have forgotten what it had confirmed.
        self.unconfirmed = self.done.clone();
    }

    fn disconnected(&mut self, _: &mut Io) {
        (self.is_connected, self.is_welcome) = (false, false);
    }

    fn receive(&mut self, io: &mut Io, frames: &[Bytes]) {
        assert_eq!(frames[0], CLIENT_HEADER);
        let mut rest = &frames[1][..];
        while !rest.is_empty() {
            match ToClient::decode(&mut rest).expect("the broker can be understood") {
                ToClient::Welcome { .. } => self.is_welcome = true,
                ToClient::Reply { part: Some(_), .. } | ToClient::Accepted { .. } => {}
                ToClient::Reply { number, status, part: None, content } => {
                    let body = content.to_body(&frames[1], attached(frames)).expect("it has a body");
                    self.on_outcome(io, number, status, body);
                }
                ToClient::Refused { number, status: Status::CONFLICT, .. } => {
                    if let Some(asked) = self.asked.get_mut(&number) {
                        // One broker may know these words, and another one those.
                        let other = asked.before.as_mut().expect("it says the same each time");
                        std::mem::swap(&mut asked.body, other);
                        asked.state = State::Waiting;
                    }
                }
                ToClient::Refused { number, retry_ms, .. } => {
                    assert!(retry_ms > 0, "nothing here is refused for ever");
                    if let Some(asked) = self.asked.get_mut(&number) {
                        asked.state = State::Held(io.now + Millis::from(retry_ms));
                    }
                }
            }
        }
    }

    fn wake(&mut self, io: &mut Io) -> Millis {
        if !io.calm && self.left > 0 && io.now >= self.submit_at {
            self.submit_at = io.now + io.rng.below(70);
            for _ in 0..io.rng.between(1, 6) {
                if self.asked.len() < OUTSTANDING_MAX && self.left > 0 {
                    self.submit(io);
                }
            }
        }
        let mut next = if io.calm || self.left == 0 { Millis::MAX } else { self.submit_at };
        if !self.is_connected || !self.is_welcome {
            return next;
        }
        let mut block = Block::default();
        if !self.unconfirmed.is_empty() && (io.calm || io.now >= self.confirm_at) {
            self.confirm(&mut block);
        } else if !self.unconfirmed.is_empty() {
            next = next.min(self.confirm_at);
        }
        if !io.has_space {
            next = next.min(io.now + 20);
        }
        for (&number, asked) in &mut self.asked {
            match asked.state {
                State::Held(until) if until > io.now => next = next.min(until),
                State::Held(_) | State::Waiting if io.has_space => {
                    let ttl = if asked.expires == 0 { 0 } else { asked.expires.saturating_sub(io.now).max(1) };
                    let service = asked.service.as_bytes();
                    FromClient::request(&mut block, number, ttl as u32, asked.volatile, service, &asked.body);
                    asked.state = State::Sent;
                    if io.rng.percent(2) {
                        FromClient::cancel(&mut block, number);
                    }
                }
                State::Sent if io.rng.percent(1) => FromClient::cancel(&mut block, number),
                State::Sent | State::Held(_) | State::Waiting => {}
            }
        }
        io.send(CLIENT_HEADER, &mut block);
        next
    }

    fn restart(&mut self, io: &mut Io) {
        for (&number, asked) in &mut self.asked {
            let ghost = Body::of_frames([Bytes::from(format!("ghost {} {number}", self.index))]);
            // Unless it says that already, as it did after an earlier restart.
            if asked.body != ghost {
                asked.before = Some(std::mem::replace(&mut asked.body, ghost));
            }
            io.history.add(io.now, Event::Forgot { key: (self.index, number), ghost: asked.body.clone() });
        }
    }

    fn is_done(&self) -> bool {
        self.asked.is_empty() && self.unconfirmed.is_empty()
    }
}
