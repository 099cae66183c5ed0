//! Messages of a connection as events of the history, and a broken broker's changes to them.

use super::{Fault, client_index};
use crate::ends::key_of;
use crate::history::{Event, Key};
use crate::link::{Frames, Packet};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use towpath_broker::core::Millis;
use towpath_requests::Body;
use towpath_requests::majordomo::{CLIENT_01, CLIENT_02, WORKER_01, WORKER_02, token_of};
use towpath_requests::numbered::{
    Block, CLIENT_HEADER, ClientId, FromClient, FromWorker, Status, ToClient, ToWorker, Token, WORKER_HEADER,
};
use towpath_sockets::PeerId;

/// More than there are terms in a life.
const TERMS: u64 = 1 << 20;

/// Requests by the tokens with which they were given, and in which life.
type Given = BTreeMap<[u8; 16], (Key, u64)>;

/// One connection of a node, seen from outside.
#[derive(Debug, Clone)]
pub struct Wire {
    node: usize,
    life: u64,
    fault: Fault,
    trace: bool,
    /// Outcomes that were sent, over all connections, and the last of them: faults happen now and then.
    done: Rc<Cell<u64>>,
    stash: Rc<RefCell<Option<Body>>>,
    client: Option<ClientId>,
    /// Requests that its worker has, and whether parts of the reply have come.
    given: BTreeMap<[u8; 16], (Key, bool)>,
    /// Requests that any worker was given, over all connections.
    known: Rc<RefCell<Given>>,
    /// Requests of which parts of a reply have come, over all connections: a reply over another one doesn't count then.
    in_parts: Rc<RefCell<BTreeSet<Key>>>,
    /// Requests of which the whole reply has come.
    replied: BTreeSet<Key>,
    /// How often a stock worker has begun on it. Its replies count only if that is once: it loses its requests when it begins again.
    begins: usize,
    /// The block of a message whose attached body is still coming.
    coming: Option<Bytes>,
    /// A body has come as a stream. What comes behind it waits until it is on the disk, and is lost if a stock worker is dismissed
    /// for that message.
    has_streamed: bool,
}

/// The messages that are really sent.
pub struct Outgoing {
    pub messages: Vec<Frames>,
}

impl Wire {
    pub fn new(node: usize, life: u64, fault: Fault, trace: bool) -> Wire {
        Wire {
            node,
            life: life * TERMS,
            fault,
            trace,
            done: Rc::default(),
            stash: Rc::default(),
            client: None,
            given: BTreeMap::new(),
            known: Rc::default(),
            in_parts: Rc::default(),
            replied: BTreeSet::new(),
            begins: 0,
            coming: None,
            has_streamed: false,
        }
    }

    /// A term of leadership is another life.
    pub fn set_term(&mut self, term: u64) {
        self.life = self.life / TERMS * TERMS + term;
    }

    /// Whether slots of peers that are gone can be kept.
    pub fn reserves_slots(&self) -> bool {
        self.fault != Fault::ReuseSlots
    }

    /// The broker ends this connection, and needn't take what came over it.
    pub fn forget_replies(self, happened: &mut Vec<Event>) {
        let (node, life) = (self.node, self.life);
        happened.extend(self.replied.into_iter().map(|key| Event::ReplyDropped { node, life, key }));
    }

    pub fn incoming(&mut self, now: Millis, id: PeerId, packet: &Packet, happened: &mut Vec<Event>) {
        self.has_streamed |= matches!(packet, Packet::BodyStart { .. });
        match packet {
            Packet::Frames(frames) => self.message(now, id, frames, happened),
            Packet::BodyStart { head, .. } if head.len() == 2 => self.coming = head.get(1).cloned(),
            Packet::BodyEnd { more: false } => {
                if let Some(block) = self.coming.take() {
                    self.message(now, id, &[Bytes::from_static(WORKER_HEADER), block], happened);
                }
            }
            Packet::Open | Packet::BodyStart { .. } | Packet::BodyData(_) | Packet::BodyEnd { .. } => {}
            Packet::Rest(_) | Packet::Close => self.coming = None,
        }
    }

    fn message(&mut self, now: Millis, id: PeerId, frames: &[Bytes], happened: &mut Vec<Event>) {
        let (node, life) = (self.node, self.life);
        match frames {
            [header, block, ..] if header == CLIENT_HEADER => {
                let mut rest = &block[..];
                while let Ok(record) = FromClient::decode(&mut rest) {
                    if self.trace {
                        let client = client_index(self.client);
                        println!("{now} node {node} peer {id} client {client}: {record:?}");
                    }
                    if let FromClient::Hello { client, .. } = record {
                        self.client = Some(client);
                    }
                }
            }
            [header, block, ..] if header == WORKER_HEADER => {
                let mut rest = &block[..];
                while let Ok(record) = FromWorker::decode(&mut rest) {
                    if self.trace {
                        println!("{now} node {node} peer {id}: {record:?}");
                    }
                    let FromWorker::Reply { token, part, .. } = record else { continue };
                    if let (Some(_), Some((key, _))) = (part, self.known.borrow().get(&token.0)) {
                        self.in_parts.borrow_mut().insert(*key);
                    }
                    let Some((key, has_parts)) = self.given.get_mut(&token.0) else { continue };
                    *has_parts |= part.is_some();
                    if part.is_none() && !*has_parts {
                        let key = *key;
                        self.replied.insert(key);
                        happened.push(Event::Replied { node, life, key });
                    }
                    if part.is_none() {
                        self.given.remove(&token.0);
                    }
                }
            }
            _ => {
                if self.trace {
                    println!("{now} node {node} peer {id}: {frames:?}");
                }
                self.note_from_stock(frames, happened);
            }
        }
    }

    /// Notes a stock worker's reply. It counts on whichever connection it comes.
    fn note_from_stock(&mut self, frames: &[Bytes], happened: &mut Vec<Event>) {
        let is_ready = match frames {
            [_, header, command, _] if header == WORKER_01 => command[..] == [1],
            [header, command, _] if header == WORKER_02 => command[..] == [1],
            _ => false,
        };
        self.begins += usize::from(is_ready);
        let (command, address, last) = match frames {
            [_, header, command, address, _, ..] if header == WORKER_01 => (command, address, 3),
            [header, command, address, _, ..] if header == WORKER_02 => (command, address, 4),
            _ => return,
        };
        let token = token_of(address).unwrap_or_default();
        // A term of leadership doesn't know what was given in another one.
        let Some(&(key, _)) = self.known.borrow().get(&token.0).filter(|(_, life)| *life == self.life) else { return };
        if command[..] != [last] {
            self.in_parts.borrow_mut().insert(key);
        } else if self.begins == 1 && !self.has_streamed && !self.in_parts.borrow().contains(&key) {
            self.replied.insert(key);
            happened.push(Event::Replied { node: self.node, life: self.life, key });
        }
    }

    pub fn outgoing(&mut self, now: Millis, id: PeerId, frames: Frames, happened: &mut Vec<Event>) -> Outgoing {
        if self.trace {
            println!("{now} node {} to peer {id}: {frames:?}", self.node);
        }
        match frames.first() {
            Some(header) if header == CLIENT_HEADER => return self.note_to_client(&frames, happened),
            Some(header) if header == WORKER_HEADER => self.note_to_worker(&frames, happened),
            _ => return Outgoing { messages: vec![self.note_to_stock(frames, happened)] },
        }
        Outgoing { messages: vec![frames] }
    }

    /// Notes a message to a client, which a broken broker changes.
    fn note_to_client(&mut self, frames: &Frames, happened: &mut Vec<Event>) -> Outgoing {
        let (node, life, client) = (self.node, self.life, client_index(self.client));
        let mut attached = frames.get(2).map(|frame| Body::from(frame.clone()));
        let (mut rest, mut block) = (&frames[1][..], Block::default());
        while let Ok(record) = ToClient::decode(&mut rest) {
            match record {
                ToClient::Reply { number, status, part, content } => {
                    let attached = attached.take_if(|_| content.is_attached());
                    let mut body = content.to_body(&frames[1], attached).expect("it has a body");
                    let is_final_ok = part.is_none() && status.is_ok();
                    self.done.set(self.done.get() + u64::from(is_final_ok));
                    let is_fourth = is_final_ok && self.done.get().is_multiple_of(4);
                    if self.fault == Fault::SwapReplies && is_final_ok {
                        body = self.stash.replace(Some(body.clone())).unwrap_or(body);
                    }
                    if self.fault == Fault::SwallowReplies && is_fourth {
                        continue;
                    }
                    let key = (client, number);
                    ToClient::reply(&mut block, number, status, part, &body);
                    if part.is_none() {
                        happened.push(Event::Answered { node, life, key, status, body });
                    }
                    if self.fault == Fault::AnswerTwice && is_fourth {
                        let (status, body) = (Status::FAILED, Body::from("and again"));
                        ToClient::reply(&mut block, number, status, None, &body);
                        happened.push(Event::Answered { node, life, key, status, body });
                    }
                }
                ToClient::Accepted { first, count } => {
                    ToClient::accepted(&mut block, first, count);
                    let keys = (first..first + u64::from(count)).map(|number| (client, number));
                    happened.extend(keys.map(|key| Event::Acknowledged { node, key }));
                }
                ToClient::Refused { number, status, retry_ms, reason } => {
                    ToClient::refused(&mut block, number, status, retry_ms, &String::from_utf8_lossy(reason));
                }
                ToClient::Welcome { epoch, requests_max, bytes_max, journal } => {
                    ToClient::welcome(&mut block, epoch, requests_max, bytes_max, journal);
                }
            }
        }
        let is_changed = matches!(self.fault, Fault::SwapReplies | Fault::SwallowReplies | Fault::AnswerTwice);
        if !is_changed {
            return Outgoing { messages: vec![frames.clone()] };
        }
        let messages = block.drain().map(|message| {
            let head = [Bytes::from_static(CLIENT_HEADER), message.block].into_iter();
            head.chain(message.attached.iter().flat_map(super::frames_of)).collect()
        });
        Outgoing { messages: messages.collect() }
    }

    fn note_to_worker(&mut self, frames: &Frames, happened: &mut Vec<Event>) {
        let mut attached = frames.get(2).map(|frame| Body::from(frame.clone()));
        let mut rest = &frames[1][..];
        let mut requests = Vec::new();
        while let Ok(record) = ToWorker::decode(&mut rest) {
            match record {
                ToWorker::Request { token, content, .. } => {
                    let attached = attached.take_if(|_| content.is_attached());
                    requests.push((token, content.to_body(&frames[1], attached).expect("it has a body")));
                }
                // A reply over another connection came before this block left.
                ToWorker::Cancel { token } => requests.retain(|(given, _)| *given != token),
                _ => {}
            }
        }
        for (token, body) in requests {
            self.note_given(&body, Some(token), happened);
        }
    }

    fn note_given(&mut self, body: &Body, token: Option<Token>, happened: &mut Vec<Event>) {
        if let Some(key) = key_of(body) {
            happened.push(Event::Given { node: self.node, life: self.life, key });
            if let Some(token) = token {
                self.given.insert(token.0, (key, false));
                self.known.borrow_mut().insert(token.0, (key, self.life));
            }
        }
    }

    fn note_to_stock(&mut self, mut frames: Frames, happened: &mut Vec<Event>) -> Frames {
        let (address, body) = match &frames[..] {
            [_, header, command, address, _, ..] if header == WORKER_01 && command[..] == [2] => (address.clone(), 5),
            [header, command, address, _, ..] if header == WORKER_02 && command[..] == [2] => (address.clone(), 4),
            [_, _, header, ..] if header == CLIENT_01 => {
                if self.fault == Fault::LoseParts && frames.len() > 4 + 3 {
                    frames.remove(4);
                }
                return frames;
            }
            [header, ..] if header == CLIENT_02 => {
                if self.fault == Fault::LoseParts && frames.len() > 3 + 3 {
                    frames.remove(3);
                }
                return frames;
            }
            _ => return frames,
        };
        self.note_given(&Body::of_frames(frames[body..].iter().cloned()), token_of(&address), happened);
        frames
    }
}
