//! The session in virtual time, against a broker of a few lines and a connection that loses messages.
#![allow(clippy::unwrap_used)]

use super::session::{Arrival, Session, WorkerEvent};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::majordomo::Dialect;
use towpath_requests::majordomo::peer::WorkerMessage;
use towpath_requests::numbered::{Block, FromWorker, Message, Status, ToWorker, Token, WireError};

const CREDIT: u32 = 5;

#[derive(Debug, Clone)]
enum Step {
    /// So many messages reach the worker.
    Receive(usize),
    /// Finishes a held request, after this many parts.
    Reply {
        which: usize,
        parts: u32,
        fails: bool,
    },
    /// So many messages reach the broker, which gives what the credit allows.
    Send(usize),
    Cancel(usize),
    Disconnect,
    Connect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0_usize..4).prop_map(Step::Receive),
        5 => (any::<usize>(), 0_u32..3, any::<bool>())
            .prop_map(|(which, parts, fails)| Step::Reply { which, parts, fails }),
        5 => (0_usize..4).prop_map(Step::Send),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => Just(Step::Disconnect),
        2 => Just(Step::Connect),
    ]
}

fn token(number: u64) -> Token {
    let mut token = Token::default();
    token.0[..8].copy_from_slice(&number.to_be_bytes());
    token
}

struct World {
    session: Session,
    block: Block,
    connected: bool,
    to_broker: VecDeque<Message>,
    to_worker: VecDeque<Message>,
    out: Block,
    /// Credit of the worker on this connection, as the broker knows it.
    credit: u32,
    given: BTreeSet<u64>,
    next: u64,
    /// Requests that the worker holds, and how many parts of each the broker has received.
    holds: Vec<u64>,
    received_parts: BTreeMap<u64, u32>,
    /// Ended, and on its way or lost; arrived.
    ended: BTreeSet<u64>,
    arrived: BTreeMap<u64, Status>,
    cancelled: BTreeSet<u64>,
    /// Ended while there was no connection: these must arrive.
    kept: BTreeSet<u64>,
}

impl World {
    fn new() -> World {
        World {
            session: Session::new(b"echo", CREDIT),
            block: Block::default(),
            connected: false,
            to_broker: VecDeque::new(),
            to_worker: VecDeque::new(),
            out: Block::default(),
            credit: 0,
            given: BTreeSet::new(),
            next: 1,
            holds: Vec::new(),
            received_parts: BTreeMap::new(),
            ended: BTreeSet::new(),
            arrived: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            kept: BTreeSet::new(),
        }
    }

    fn receive(&mut self, message: &Message) {
        let mut rest = &message.block[..];
        while !rest.is_empty() {
            match FromWorker::decode(&mut rest).unwrap() {
                FromWorker::Ready { credit, service } => {
                    assert_eq!(service, b"echo");
                    self.credit = credit;
                    self.given.clear();
                    ToWorker::welcome(&mut self.out, 1);
                }
                FromWorker::Credit { credit } => self.credit = credit,
                FromWorker::Reply { token, status, part, content } => {
                    let number = u64::from_be_bytes(token.0[..8].try_into().unwrap());
                    let body = content.to_body(&message.block, message.attached.clone()).unwrap();
                    if let Some(part) = part {
                        let parts = self.received_parts.entry(number).or_default();
                        assert_eq!(part, *parts, "parts in order");
                        *parts += 1;
                        continue;
                    }
                    assert_eq!(body, Body::from(format!("reply {number}")));
                    assert!(self.ended.contains(&number), "a reply that was never given");
                    assert!(self.arrived.insert(number, status).is_none(), "two replies to {number}");
                    self.given.remove(&number);
                }
                FromWorker::Leaving => panic!("it was not asked to leave"),
                FromWorker::Return { .. } => panic!("it can begin all of them"),
            }
        }
        // As much as the credit allows, beside requests of earlier connections.
        while self.connected && (self.given.len() as u32) < self.credit {
            ToWorker::request(&mut self.out, token(self.next), 1, 0, &Body::from(format!("{}", self.next)));
            self.given.insert(self.next);
            self.next += 1;
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Receive(count) => {
                if self.connected {
                    self.to_worker.extend(self.out.drain());
                }
                for message in self.to_worker.drain(..count.min(self.to_worker.len())).collect::<Vec<_>>() {
                    let attached = message.attached.clone().map(Ok);
                    let (holds, cancelled) = (&mut self.holds, &mut self.cancelled);
                    let mut sink = |received| match received {
                        WorkerEvent::Request(Arrival { token, body, .. }) => {
                            let number = u64::from_be_bytes(token.0[..8].try_into().unwrap());
                            assert_eq!(body, Body::from(format!("{number}")));
                            holds.push(number);
                        }
                        WorkerEvent::Cancelled(token) => {
                            let number = u64::from_be_bytes(token.0[..8].try_into().unwrap());
                            holds.retain(|held| *held != number);
                            cancelled.insert(number);
                        }
                    };
                    self.session.on_block(&message.block, attached, &mut self.block, None, &mut sink).unwrap();
                }
            }
            Step::Reply { which, parts, fails } => {
                if self.holds.is_empty() {
                    return;
                }
                let number = self.holds.swap_remove(which % self.holds.len());
                for part in 0..parts {
                    let body = Body::from("part");
                    assert!(self.session.reply(token(number), Status::OK, Some(part), &body, &mut self.block));
                }
                let status = if fails { Status::FAILED } else { Status::OK };
                let body = Body::from(format!("reply {number}"));
                assert!(self.session.reply(token(number), status, None, &body, &mut self.block));
                assert!(!self.session.reply(token(number), status, None, &body, &mut self.block), "once");
                self.ended.insert(number);
                if !self.connected {
                    self.kept.insert(number);
                }
            }
            Step::Send(count) => {
                if self.connected {
                    self.to_broker.extend(self.block.drain());
                }
                for message in self.to_broker.drain(..count.min(self.to_broker.len())).collect::<Vec<_>>() {
                    self.receive(&message);
                }
            }
            Step::Cancel(which) => {
                let given: Vec<u64> = self.given.iter().copied().collect();
                if self.connected && !given.is_empty() {
                    let number = given[which % given.len()];
                    // Its credit is back at once.
                    self.given.remove(&number);
                    ToWorker::cancel(&mut self.out, token(number));
                }
            }
            Step::Disconnect => {
                self.connected = false;
                self.session.disconnected(&mut |_| ());
                self.block.clear();
                self.to_broker.clear();
                self.to_worker.clear();
                self.out.clear();
                self.received_parts.clear();
            }
            Step::Connect => {
                // Replies kept for this connection are lost with it like everything else.
                let kept = std::mem::take(&mut self.kept);
                if self.connected {
                    self.step(Step::Disconnect);
                }
                self.connected = true;
                self.session.connected(&mut self.block);
                if kept.iter().any(|number| !self.arrived.contains_key(number)) {
                    self.step(Step::Send(usize::MAX));
                    for number in kept {
                        assert!(
                            self.arrived.contains_key(&number),
                            "{number} was ended without a connection, and lost"
                        );
                    }
                }
            }
        }
        let unanswered = self.holds.len() as u32;
        assert!(unanswered <= 2 * CREDIT, "{unanswered} at a time");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the connection loses: no reply twice, none for another request, and replies that waited for a connection
    /// arrive.
    #[test]
    fn a_reply_finds_its_request(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        // In the end all held requests can be finished, and the whole credit restored.
        world.step(Step::Connect);
        for _ in 0..20 {
            world.step(Step::Send(100));
            if world.given.len() as u32 == CREDIT && world.credit == CREDIT {
                break;
            }
            world.step(Step::Receive(100));
            for _ in 0..world.holds.len() {
                world.step(Step::Reply { which: 0, parts: 0, fails: false });
            }
        }
        prop_assert_eq!(world.credit, CREDIT);
    }
}

#[test]
fn a_stock_worker_sends_heartbeats_and_detects_silence() {
    let mut session = Session::new(b"echo", 1);
    let at = Duration::from_millis;
    session.connected_to_stock(Dialect::Mdp01, at(0));
    assert!(session.pump_stock().is_some(), "READY");
    for ms in [2500, 5000, 7500] {
        assert!(session.deadline().unwrap() <= at(ms));
        session.on_time(at(ms), &mut Block::default(), &mut |_| ());
        assert!(session.pump_stock().is_some(), "a heartbeat at {ms} ms");
        assert!(session.pump_stock().is_none());
    }
    session.received(at(9000));
    session.on_stock(WorkerMessage::Heartbeat, None, &mut |_| panic!("nothing to do"));
    session.on_time(at(10_000), &mut Block::default(), &mut |_| ());
    assert_eq!(session.over(), None);
    session.on_time(at(19_000), &mut Block::default(), &mut |_| ());
    assert!(session.over().is_some());
}

#[test]
fn stock_requests_end_with_their_connection() {
    let mut session = Session::new(b"echo", 1);
    session.connected_to_stock(Dialect::Mdp01, Duration::ZERO);
    session.pump_stock();
    let mut arrived = Vec::new();
    let request =
        |text: &'static str| WorkerMessage::Request { address: Bytes::from_static(b"c"), body: Ok(text.into()) };
    session.on_stock(request("one"), None, &mut |received| arrived.push(received));
    session.disconnected(&mut |received| arrived.push(received));
    session.connected_to_stock(Dialect::Mdp01, Duration::ZERO);
    session.pump_stock();
    session.on_stock(request("two"), None, &mut |received| arrived.push(received));
    let [WorkerEvent::Request(one), WorkerEvent::Cancelled(ended), WorkerEvent::Request(two)] = &arrived[..] else {
        panic!("{arrived:?}")
    };
    assert_eq!(*ended, one.token);
    let tokens = [one.token, two.token];
    let mut block = Block::default();
    assert!(!session.reply(tokens[0], Status::OK, None, &"late".into(), &mut block));
    assert!(session.pump_stock().is_none());
    // MDP/0.1 has no parts: they are frames of the one reply.
    assert!(session.reply(tokens[1], Status::OK, Some(0), &"part".into(), &mut block));
    assert!(session.reply(tokens[1], Status::OK, None, &"end".into(), &mut block));
    let reply = session.pump_stock().unwrap();
    assert_eq!(reply.frames.len(), 7);
    assert_eq!(session.counters().orphaned, 1);
    session.on_stock(WorkerMessage::Disconnect, None, &mut |_| ());
    assert!(session.over().is_some());
}

#[test]
fn a_reply_in_parts_ends_with_its_connection() {
    let (mut session, mut block) = (Session::new(b"echo", 2), Block::default());
    session.connected(&mut block);
    let mut requests = Block::default();
    for number in 1..=2 {
        ToWorker::request(&mut requests, token(number), 1, 0, &"work".into());
    }
    for message in requests.drain() {
        session.on_block(&message.block, None, &mut block, None, &mut |_| ()).unwrap();
    }
    assert!(session.reply(token(1), Status::OK, Some(0), &"part".into(), &mut block));
    let mut ended = Vec::new();
    session.disconnected(&mut |received| ended.push(received));
    assert_eq!(ended, [WorkerEvent::Cancelled(token(1))]);
    block.clear();
    session.connected(&mut block);
    assert!(!session.reply(token(1), Status::OK, None, &"end".into(), &mut block));
    assert!(session.reply(token(2), Status::OK, None, &"whole".into(), &mut block));
    assert_eq!((session.is_idle(), session.counters().orphaned), (true, 1));
}

#[test]
fn orphaned_requests_return_their_credit_at_the_deadline() {
    let (mut session, mut block) = (Session::new(b"echo", 2), Block::default());
    let at = Duration::from_millis;
    session.connected(&mut block);
    session.received(at(100));
    for (number, ttl_ms) in [(1, 1_000), (2, 0)] {
        let mut message = Block::default();
        ToWorker::request(&mut message, token(number), 1, ttl_ms, &"x".into());
        let message = message.drain().next().unwrap();
        session.on_block(&message.block, None, &mut block, None, &mut |_| ()).unwrap();
    }
    // On this connection the broker says when.
    assert_eq!(session.deadline(), None);
    session.disconnected(&mut |_| panic!("another connection can take these"));
    block.clear();
    session.connected(&mut block);
    assert_eq!(session.deadline(), Some(at(1_100)));
    session.on_time(at(1_099), &mut block, &mut |_| panic!("too early"));
    block.clear();
    let mut ended = Vec::new();
    session.on_time(at(1_100), &mut block, &mut |received| ended.push(received));
    assert_eq!(ended, [WorkerEvent::Cancelled(token(1))]);
    let said = block.drain().next().unwrap().block;
    assert_eq!(FromWorker::decode(&mut &said[..]), Ok(FromWorker::Credit { credit: 1 }));
    assert_eq!(session.deadline(), None);
    assert!(!session.reply(token(1), Status::OK, None, &"late".into(), &mut block));
}

#[test]
fn a_leaving_worker_reconnects_without_credit() {
    let (mut session, mut block) = (Session::new(b"echo", 2), Block::default());
    session.connected(&mut block);
    session.leave(&mut block);
    session.disconnected(&mut |_| ());
    block.clear();
    session.connected(&mut block);
    let said = block.drain().next().unwrap().block;
    let mut rest = &said[..];
    let ready = FromWorker::decode(&mut rest).unwrap();
    assert!(matches!(ready, FromWorker::Ready { credit: 0, .. }), "{ready:?}");
    assert!(matches!(FromWorker::decode(&mut rest), Ok(FromWorker::Leaving)));
}

#[test]
fn a_broker_that_exceeds_the_credit_is_disconnected() {
    let give = |session: &mut Session, numbers: std::ops::RangeInclusive<u64>| {
        let (mut requests, mut out) = (Block::default(), Block::default());
        numbers.for_each(|number| ToWorker::request(&mut requests, token(number), 1, 0, &"work".into()));
        let mut messages = requests.drain();
        messages.try_for_each(|message| session.on_block(&message.block, None, &mut out, None, &mut |_| ()))
    };
    let (mut session, mut block) = (Session::new(b"echo", 3), Block::default());
    session.connected(&mut block);
    give(&mut session, 1..=3).unwrap();
    assert_eq!(give(&mut session, 4..=4), Err(WireError::OverCredit));
    // Requests of an earlier connection don't count against the new one.
    session.disconnected(&mut |_| ());
    session.connected(&mut block);
    give(&mut session, 5..=7).unwrap();
    assert!(session.reply(token(5), Status::OK, None, &"done".into(), &mut block));
    give(&mut session, 8..=8).unwrap();
    assert!(session.reply(token(8), Status::OK, None, &"done".into(), &mut block));
    assert_eq!(give(&mut session, 6..=6), Err(WireError::OverCredit));

    let mut stock = Session::new(b"echo", 1);
    stock.connected_to_stock(Dialect::Mdp01, Duration::ZERO);
    for is_over in [false, true] {
        let request = WorkerMessage::Request { address: Bytes::from_static(b"someone"), body: Ok("work".into()) };
        stock.on_stock(request, None, &mut |_| ());
        assert_eq!(stock.over().is_some(), is_over);
    }
}

#[test]
fn an_attached_body_belongs_to_the_last_record() {
    let (mut session, mut block) = (Session::new(b"echo", 2), Block::default());
    session.connected(&mut block);
    let (mut requests, mut arrived) = (Block::default(), Vec::new());
    let bodies = [Body::from("small"), Body::from(vec![1; 5000])];
    for (number, body) in (1..).zip(&bodies) {
        ToWorker::request(&mut requests, token(number), 1, 0, body);
    }
    for Message { block: records, attached } in requests.drain() {
        session.on_block(&records, attached.map(Ok), &mut block, None, &mut |received| arrived.push(received)).unwrap();
    }
    let expected = (1..).zip(bodies).map(|(number, body)| {
        WorkerEvent::Request(Arrival { token: token(number), attempt: 1, id: None, ttl_ms: 0, body })
    });
    assert_eq!(arrived, expected.collect::<Vec<_>>());
}

#[test]
fn a_request_is_given_back_only_where_the_broker_takes_it() {
    let body = Body::from("x");
    let (mut session, mut out) = (Session::new(b"echo", 3), Block::default());
    let given = |session: &mut Session, numbers: &[u64]| {
        let (mut said, mut out) = (Block::default(), Block::default());
        numbers.iter().for_each(|number| ToWorker::request(&mut said, token(*number), 1, 0, &body));
        let message = said.drain().next().unwrap();
        session.on_block(&message.block, None, &mut out, None, &mut |_| {}).unwrap();
    };
    let said = |out: &mut Block| -> Vec<u8> { out.drain().flat_map(|message| message.block.to_vec()).collect() };
    session.connected(&mut out);
    given(&mut session, &[1, 2, 3]);
    said(&mut out);
    assert!(session.give_back(token(1), "no program", &mut out));
    let record = said(&mut out);
    let reason: &[u8] = b"no program";
    assert_eq!(FromWorker::decode(&mut &record[..]), Ok(FromWorker::Return { token: token(1), reason }));
    // One that has been sent parts of its reply fails; one whose connection was lost has gone to another worker.
    session.reply(token(2), Status::OK, Some(0), &body, &mut out);
    said(&mut out);
    session.give_back(token(2), "no program", &mut out);
    let record = said(&mut out);
    let reply = FromWorker::decode(&mut &record[..]).unwrap();
    assert!(matches!(reply, FromWorker::Reply { status: Status::FAILED, part: None, .. }), "{reply:?}");
    session.disconnected(&mut |_| {});
    assert!(!session.give_back(token(3), "no program", &mut out));
    session.connected(&mut out);
    let record = said(&mut out);
    assert!(matches!(FromWorker::decode(&mut &record[..]), Ok(FromWorker::Ready { credit: 3, .. })), "{record:?}");
    assert!(session.is_idle());
}
