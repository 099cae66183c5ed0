//! The session in virtual time, against a broker of a few lines and a connection that loses messages.
#![allow(clippy::unwrap_used)]

use super::session::{Delivery, NewRequest, Session};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::majordomo::peer::ClientMessage;
use towpath_requests::numbered::{Block, ClientId, FromClient, Message, Status, ToClient};

const BYTES_MAX: usize = 8_000;
const REQUESTS_MAX: usize = 24;

#[derive(Debug, Clone)]
enum Step {
    Submit {
        bytes: usize,
        ttl_ms: Option<u64>,
    },
    Cancel(usize),
    /// Records are sent, and this many messages reach the broker.
    Send(usize),
    /// The broker ends this many requests, from the front or the back.
    Work {
        count: usize,
        from_back: bool,
        parts: u32,
    },
    /// The broker refuses the next request, to be retried after this time; 0: never.
    Refuse(u32),
    /// This many messages reach the client.
    Receive(usize),
    Wait(u64),
    Disconnect,
    /// Connects to the same broker, or to another one that knows nothing.
    Connect {
        amnesia: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_usize..1_000, prop::option::weighted(0.2, 1_u64..200))
            .prop_map(|(bytes, ttl_ms)| Step::Submit { bytes, ttl_ms }),
        1 => any::<usize>().prop_map(Step::Cancel),
        5 => (0_usize..4).prop_map(Step::Send),
        5 => (1_usize..6, any::<bool>(), 0_u32..3)
            .prop_map(|(count, from_back, parts)| Step::Work { count, from_back, parts }),
        1 => prop_oneof![Just(0), 1_u32..100].prop_map(Step::Refuse),
        5 => (0_usize..4).prop_map(Step::Receive),
        2 => (1_u64..120).prop_map(Step::Wait),
        1 => Just(Step::Disconnect),
        2 => any::<bool>().prop_map(|amnesia| Step::Connect { amnesia }),
    ]
}

#[derive(Default)]
struct Broker {
    epoch: u64,
    /// Requests without an outcome.
    pending: BTreeMap<u64, Vec<u8>>,
    settled: BTreeMap<u64, (Status, Vec<u8>)>,
    confirmed: BTreeSet<u64>,
    refuse_next: Option<u32>,
    out: Block,
}

impl Broker {
    fn receive(&mut self, message: &Message) {
        let mut rest = &message.block[..];
        while !rest.is_empty() {
            match FromClient::decode(&mut rest).unwrap() {
                FromClient::Hello { first, .. } => {
                    ToClient::welcome(&mut self.out, self.epoch, 16, 6_000, true);
                    self.forget(|number| number < first);
                }
                FromClient::Request { number, content, .. } => {
                    let body = content.to_body(&message.block, message.attached.clone()).unwrap();
                    self.request(number, body.single().unwrap().to_vec());
                }
                FromClient::Confirm { first, count } => {
                    self.forget(|number| (first..first + u64::from(count)).contains(&number));
                    self.confirmed.extend(first..first + u64::from(count));
                }
                FromClient::Cancel { number } => {
                    if self.pending.remove(&number).is_some() {
                        self.settle(number, Status::CANCELLED, Vec::new());
                    }
                }
            }
        }
    }

    fn request(&mut self, number: u64, body: Vec<u8>) {
        if let Some((status, reply)) = self.settled.get(&number) {
            ToClient::reply(&mut self.out, number, *status, None, &reply[..].into());
        } else if !self.confirmed.contains(&number) && !self.pending.contains_key(&number) {
            if let Some(retry_ms) = self.refuse_next.take() {
                ToClient::refused(&mut self.out, number, Status::UNAVAILABLE, retry_ms, "not now");
                return;
            }
            assert!(self.pending.len() + self.settled.len() < 16, "more than the broker said it takes");
            self.pending.insert(number, body);
            ToClient::accepted(&mut self.out, number, 1);
        }
    }

    fn forget(&mut self, which: impl Fn(u64) -> bool) {
        self.pending.retain(|number, _| !which(*number));
        self.settled.retain(|number, _| !which(*number));
    }

    fn settle(&mut self, number: u64, status: Status, body: Vec<u8>) {
        ToClient::reply(&mut self.out, number, status, None, &body[..].into());
        self.settled.insert(number, (status, body));
    }

    fn work(&mut self, count: usize, from_back: bool, parts: u32) {
        for _ in 0..count {
            let next = if from_back { self.pending.pop_last() } else { self.pending.pop_first() };
            let Some((number, body)) = next else { return };
            for part in 0..parts {
                ToClient::reply(&mut self.out, number, Status::OK, Some(part), &body[..].into());
            }
            self.settle(number, Status::OK, body);
        }
    }
}

struct World {
    now: Duration,
    session: Session,
    block: Block,
    connected: bool,
    to_broker: VecDeque<Message>,
    to_client: VecDeque<Message>,
    broker: Broker,
    asked: BTreeMap<u64, Vec<u8>>,
    outcomes: BTreeMap<u64, (Status, Body)>,
    next_parts: BTreeMap<u64, u32>,
}

impl World {
    fn new() -> World {
        World {
            now: Duration::ZERO,
            session: Session::new(ClientId([7; 16]), REQUESTS_MAX, BYTES_MAX, Duration::from_secs(3)),
            block: Block::default(),
            connected: false,
            to_broker: VecDeque::new(),
            to_client: VecDeque::new(),
            broker: Broker::default(),
            asked: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            next_parts: BTreeMap::new(),
        }
    }

    fn take(&mut self, delivery: Delivery) {
        let Delivery { number, owner, status, part, body } = delivery;
        assert_eq!(u64::from(owner), number % 1000, "somebody else's");
        if let Some(part) = part {
            let next = self.next_parts.entry(number).or_default();
            assert!(part == *next || part == 0, "part {part} instead of {next}");
            *next = part + 1;
            assert!(!self.outcomes.contains_key(&number), "a part behind the outcome");
            return;
        }
        if status.is_ok() {
            assert_eq!(body.single(), Some(&self.asked[&number][..]), "another's reply");
        }
        assert!(self.outcomes.insert(number, (status, body)).is_none(), "{number} has two outcomes");
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Submit { bytes, ttl_ms } => {
                let number = self.asked.len() as u64 + 1;
                let mut bytes = vec![b'x'; bytes];
                bytes.extend_from_slice(&number.to_be_bytes());
                let body = Body::from(bytes.clone());
                if !self.session.has_space(&body, 0) {
                    return;
                }
                let ttl = ttl_ms.map(Duration::from_millis);
                let request =
                    NewRequest { service: b"echo", body, ttl, volatile: false, owner: (number % 1000) as u32 };
                assert_eq!(self.session.submit(request, self.now), number);
                self.asked.insert(number, bytes);
            }
            Step::Cancel(which) => {
                let number = which as u64 % (self.asked.len() as u64 + 1);
                if let Some(delivery) = self.session.cancel(number, self.now) {
                    self.take(delivery);
                }
            }
            Step::Send(count) => {
                if self.connected {
                    self.session.pump(self.now, &mut self.block, 1_000);
                    self.to_broker.extend(self.block.drain());
                }
                for message in self.to_broker.drain(..count.min(self.to_broker.len())) {
                    self.broker.receive(&message);
                }
            }
            Step::Work { count, from_back, parts } => self.broker.work(count, from_back, parts),
            Step::Refuse(retry_ms) => self.broker.refuse_next = Some(retry_ms),
            Step::Receive(count) => {
                if self.connected {
                    self.to_client.extend(self.broker.out.drain());
                }
                for message in self.to_client.drain(..count.min(self.to_client.len())).collect::<Vec<_>>() {
                    let mut delivered = Vec::new();
                    let attached = message.attached.clone().map(Ok);
                    self.session
                        .on_block(&message.block, attached, self.now, &mut |delivery| delivered.push(delivery))
                        .unwrap();
                    delivered.into_iter().for_each(|delivery| self.take(delivery));
                }
            }
            Step::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                let mut delivered = Vec::new();
                self.session.on_time(self.now, &mut |delivery| delivered.push(delivery));
                delivered.into_iter().for_each(|delivery| self.take(delivery));
                if self.session.spoiled().is_some() {
                    self.step(Step::Disconnect);
                }
            }
            Step::Disconnect => {
                self.connected = false;
                self.session.disconnected();
                self.block.clear();
                self.to_broker.clear();
                self.to_client.clear();
                self.broker.out.clear();
            }
            Step::Connect { amnesia } => {
                self.step(Step::Disconnect);
                if amnesia {
                    self.broker = Broker { epoch: self.broker.epoch + 1, ..Broker::default() };
                }
                self.connected = true;
                self.next_parts.clear();
                self.session.connected(self.now, &mut self.block);
            }
        }
        let bytes = self.session.outstanding_bytes();
        assert!(bytes <= BYTES_MAX || self.session.outstanding() == 1, "{bytes} bytes");
        assert!(self.session.outstanding() <= REQUESTS_MAX);
        assert_eq!(self.session.outstanding(), self.asked.len() - self.outcomes.len());
    }

    fn settle_all(&mut self) {
        self.broker.refuse_next = None;
        self.step(Step::Connect { amnesia: false });
        for _ in 0..200 {
            self.step(Step::Send(100));
            self.step(Step::Work { count: 100, from_back: false, parts: 0 });
            self.step(Step::Receive(100));
            self.step(Step::Wait(60));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the connection loses and the broker forgets, every request ends once, with its own reply or a reason.
    #[test]
    fn every_request_has_exactly_one_outcome(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.settle_all();
        prop_assert_eq!(world.session.outstanding(), 0, "something is waited for in vain");
        prop_assert_eq!(world.session.outstanding_bytes(), 0);
        prop_assert_eq!(world.outcomes.len(), world.asked.len());
        prop_assert!(world.broker.settled.is_empty(), "all is confirmed: {:?}", world.broker.settled.keys());
        prop_assert!(world.session.is_flushed());
    }

    /// One request at a time, and never a late reply for another's.
    #[test]
    fn a_stock_broker_gets_one_request_at_a_time(steps in prop::collection::vec(0_u8..6, 1..80)) {
        let mut session = Session::new(ClientId::default(), 100, 1 << 20, Duration::from_secs(3));
        let (mut now, mut asked) = (Duration::ZERO, 0_u64);
        let mut out: Option<Body> = None;
        let mut delivered: Vec<Delivery> = Vec::new();
        session.connected_to_stock();
        let mut steps = steps;
        steps.extend([4; 20].iter().chain(&[3, 4].repeat(100)));
        for step in steps {
            match step {
                0 | 1 => {
                    asked += 1;
                    let ttl = (step == 1).then_some(Duration::from_millis(50));
                    let body = Body::from(format!("request {asked}"));
                    session.submit(NewRequest { service: b"echo", body, ttl, volatile: false, owner: 0 }, now);
                }
                2 => {
                    now += Duration::from_millis(20);
                    session.on_time(now, &mut |delivery| delivered.push(delivery));
                }
                3 => {
                    if let Some((_, body)) = session.pump_stock() {
                        prop_assert!(out.replace(body).is_none(), "two at a time");
                    }
                }
                4 => {
                    if let Some(body) = out.take() {
                        let received = ClientMessage { service: None, partial: false, body: Ok(body) };
                        session.on_stock(received, &mut |delivery| delivered.push(delivery));
                    }
                }
                _ => {
                    out = None;
                    session.disconnected();
                    session.connected_to_stock();
                }
            }
            if session.spoiled().is_some() {
                out = None;
                session.disconnected();
                session.connected_to_stock();
            }
        }
        prop_assert_eq!(delivered.len() as u64, asked);
        let numbers: BTreeSet<u64> = delivered.iter().map(|delivery| delivery.number).collect();
        prop_assert_eq!(numbers.len() as u64, asked);
        for Delivery { number, status, body, .. } in delivered {
            prop_assert!(!status.is_ok() || body == Body::from(format!("request {number}")), "{number}: {body:?}");
        }
    }
}

#[test]
fn a_long_request_does_not_hold_up_others() {
    let mut session = Session::new(ClientId::default(), 100, 1 << 20, Duration::from_secs(3));
    let mut block = Block::default();
    let mut delivered = 0;
    session.connected(Duration::ZERO, &mut block);
    let mut say = Block::default();
    ToClient::welcome(&mut say, 1, 1000, 1 << 20, false);
    for number in 1..=100_000_u64 {
        let request = NewRequest { service: b"echo", body: Body::default(), ttl: None, volatile: false, owner: 0 };
        assert_eq!(session.submit(request, Duration::ZERO), number);
        if number > 1 {
            ToClient::reply(&mut say, number, Status::OK, None, &Body::default());
        }
        for message in say.drain() {
            session.on_block(&message.block, None, Duration::ZERO, &mut |_| delivered += 1).unwrap();
        }
        session.pump(Duration::ZERO, &mut block, usize::MAX);
        block.drain().for_each(drop);
    }
    assert_eq!(delivered, 99_999);
    assert_eq!(session.outstanding(), 1);
    // It is the first that a new connection sends.
    session.disconnected();
    session.connected(Duration::ZERO, &mut block);
    let message = block.drain().next().unwrap();
    assert!(matches!(FromClient::decode(&mut &message.block[..]).unwrap(), FromClient::Hello { first: 1, .. }));
    ToClient::welcome(&mut say, 2, 1000, 1 << 20, false);
    let welcome = say.drain().next().unwrap();
    session.on_block(&welcome.block, None, Duration::ZERO, &mut |_| {}).unwrap();
    session.pump(Duration::ZERO, &mut block, usize::MAX);
    let message = block.drain().next().unwrap();
    let mut rest = &message.block[..];
    let mut confirmed = 0;
    let mut asked = Vec::new();
    while !rest.is_empty() {
        match FromClient::decode(&mut rest).unwrap() {
            FromClient::Confirm { count, .. } => confirmed += count,
            FromClient::Request { number, .. } => asked.push(number),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((confirmed, asked), (99_999, vec![1]));
    assert_eq!(session.counters().resent, 1);
}

#[test]
fn outcomes_during_the_greeting_are_acknowledged() {
    let at = Duration::from_millis;
    let mut session = Session::new(ClientId([7; 16]), 10, usize::MAX, at(5_000));
    let body = Body::default();
    let request = NewRequest { service: b"echo", body, ttl: Some(at(1_000)), volatile: false, owner: 0 };
    session.submit(request.clone(), at(0));
    let other = session.submit(request, at(0));
    assert!(session.cancel(other, at(0)).is_some());
    let (mut block, mut say, mut ended) = (Block::default(), Block::default(), Vec::new());
    session.connected(at(900), &mut block);
    session.on_time(at(1_000), &mut |delivery| ended.push(delivery.status));
    assert_eq!(ended, [Status::EXPIRED]);
    ToClient::welcome(&mut say, 2, 1000, 1 << 20, true);
    let welcome = say.drain().next().unwrap();
    session.on_block(&welcome.block, None, at(1_100), &mut |_| {}).unwrap();
    session.pump(at(1_200), &mut block, usize::MAX);
    // HELLO has named number 1 as outstanding: the broker keeps earlier requests from there on.
    let received: Vec<Message> = block.drain().collect();
    let mut rest = &received[0].block[..];
    assert!(matches!(FromClient::decode(&mut rest).unwrap(), FromClient::Hello { first: 1, .. }));
    assert_eq!(FromClient::decode(&mut rest).unwrap(), FromClient::Confirm { first: 1, count: 2 });
}

fn record() -> impl Strategy<Value = Block> {
    let number = || prop_oneof![4 => 0_u64..12, 1 => any::<u64>()];
    let make = |write: &mut dyn FnMut(&mut Block)| {
        let mut block = Block::default();
        write(&mut block);
        block
    };
    prop_oneof![
        (number(), any::<u16>(), prop::option::of(any::<u32>())).prop_map(move |(number, status, part)| {
            make(&mut |block| ToClient::reply(block, number, Status(status), part, &Body::default()))
        }),
        (number(), any::<u32>())
            .prop_map(move |(first, count)| make(&mut |block| ToClient::accepted(block, first, count))),
        (number(), any::<u32>()).prop_map(move |(number, retry_ms)| {
            make(&mut |block| ToClient::refused(block, number, Status::UNAVAILABLE, retry_ms, "no"))
        }),
        (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(move |(epoch, requests, bytes)| {
            make(&mut |block| ToClient::welcome(block, epoch, requests, bytes, true))
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Arbitrary records from a broker make nothing happen twice, and nothing overflow.
    #[test]
    fn a_hostile_broker_causes_no_harm(records in prop::collection::vec(record(), 0..60)) {
        let mut session = Session::new(ClientId::default(), 100, 1 << 20, Duration::from_secs(3));
        let mut out = Block::default();
        let mut ended = BTreeSet::new();
        for _ in 0..8 {
            let ttl = Some(Duration::from_secs(30));
            session.submit(NewRequest { service: b"echo", body: "x".into(), ttl, volatile: false, owner: 0 }, Duration::ZERO);
        }
        session.connected(Duration::ZERO, &mut out);
        let mut now = Duration::ZERO;
        for mut block in records {
            now += Duration::from_millis(100);
            let mut once = |delivery: Delivery| {
                if delivery.part.is_none() {
                    assert!(ended.insert(delivery.number), "twice");
                }
            };
            for message in block.drain() {
                session.on_block(&message.block, None, now, &mut once).unwrap();
            }
            session.on_time(now, &mut once);
            session.pump(now, &mut out, 10_000);
            out.drain().for_each(drop);
        }
        prop_assert_eq!(session.outstanding(), 8 - ended.len());
    }
}

#[test]
fn expiry_says_whether_a_request_may_have_run() {
    let at = Duration::from_millis;
    let mut session = Session::new(ClientId([7; 16]), 10, usize::MAX, at(5_000));
    let submit = |session: &mut Session| {
        let body = Body::default();
        session.submit(NewRequest { service: b"echo", body, ttl: Some(at(1_000)), volatile: false, owner: 0 }, at(0))
    };
    let connect = |session: &mut Session| {
        let mut said = Block::default();
        session.connected(at(10), &mut Block::default());
        ToClient::welcome(&mut said, 1, 1000, 1 << 20, false);
        let welcome = said.drain().next().unwrap();
        session.on_block(&welcome.block, None, at(10), &mut |_| {}).unwrap();
    };
    let refuse = |session: &mut Session, number| {
        let mut said = Block::default();
        ToClient::refused(&mut said, number, Status::UNAVAILABLE, 60_000, "not now");
        session.on_block(&said.drain().next().unwrap().block, None, at(30), &mut |_| {}).unwrap();
    };
    let send = |session: &mut Session| {
        session.pump(at(20), &mut Block::default(), 10_000);
    };
    let elsewhere = submit(&mut session);
    connect(&mut session);
    send(&mut session);
    session.disconnected();
    // Another broker, which refuses requests that the first may have executed.
    let [refused, sent] = [(); 2].map(|()| submit(&mut session));
    connect(&mut session);
    send(&mut session);
    refuse(&mut session, elsewhere);
    refuse(&mut session, refused);
    session.disconnected();
    let unsent = submit(&mut session);
    let mut ended = BTreeMap::new();
    session.on_time(at(1_000), &mut |delivery| ended.extend([(delivery.number, delivery.status)]));
    let (maybe, never) = (Status::TIMED_OUT, Status::EXPIRED);
    assert_eq!(ended, BTreeMap::from([(elsewhere, maybe), (refused, never), (sent, maybe), (unsent, never)]));
}
