//! One broker: the core, driven as the driver on real sockets does, with a disk that outlives it.

mod outbound;

use crate::disk::Disk;
use crate::history::History;
use crate::link::{Frames, LinkId, Net};
use bytes::Bytes;
use std::collections::VecDeque;
use towpath_broker::core::{Action, Core, Kind, Millis, Peer, Settings};
use towpath_requests::Body;
use towpath_requests::majordomo::{self, Dialect, FromPeer, MdpError, WorkerCommand};
use towpath_requests::numbered::{
    Block, CLIENT_HEADER, ClientId, FromClient, FromWorker, Status, ToWorker, WORKER_HEADER, WireError,
};

/// What a broken broker does wrong, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// It gives a reply to the next request instead of its own.
    SwapReplies,
    /// It says that something is on the disk that isn't.
    LoseEntries,
    /// It tells another outcome after the first one.
    AnswerTwice,
    /// It keeps an outcome to itself.
    SwallowReplies,
    /// It gives a stock client's reply without its parts.
    LoseParts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Nothing,
    Client,
    Worker,
    StockClient(Dialect),
    StockWorker(Dialect),
}

#[derive(Debug)]
struct Conn {
    link: LinkId,
    speaks: Speaks,
    client: Option<ClientId>,
    block: Block,
    pending: VecDeque<Frames>,
    is_blocked: bool,
    is_paused: bool,
    asks_too_much: bool,
    parts: u32,
}

pub struct Node {
    pub index: usize,
    pub life: u64,
    pub core: Option<Core>,
    pub disk: Disk,
    /// It is ahead of everybody's time, after its clock has jumped.
    pub ahead: Millis,
    /// Stopped (SIGSTOP), or dead, until then.
    pub away_until: Millis,
    pub settings: Settings,
    pub fault: Fault,
    /// It has been told to end, and does so when it is idle, or then; and how many requests it had taken before.
    stopping: Option<(Millis, u64)>,
    conns: Vec<Option<Conn>>,
    actions: Vec<Action>,
    stash: Option<Body>,
    done: u64,
}

/// What a node acts on.
pub struct World<'a> {
    pub now: Millis,
    pub net: &'a mut Net,
    pub history: &'a mut History,
}

impl Node {
    pub fn new(index: usize, settings: Settings, fault: Fault) -> Node {
        Node {
            index,
            life: 0,
            core: None,
            disk: Disk::default(),
            ahead: 0,
            away_until: 0,
            settings,
            fault,
            stopping: None,
            conns: Vec::new(),
            actions: Vec::new(),
            stash: None,
            done: 0,
        }
    }

    pub fn start(&mut self, now: Millis) {
        self.life += 1;
        let secret = [self.life * 1_000 + self.index as u64, 77];
        let mut core = Core::new(Settings { epoch: self.life, secret, ..self.settings.clone() });
        let (restored, last) = self.disk.restore();
        for request in restored {
            core.restore(now + self.ahead, request);
        }
        core.restored_up_to(last);
        self.core = Some(core);
    }

    pub fn crash(&mut self, world: &mut World) {
        self.disk.crash(&mut world.net.rng);
        self.vanish(world);
    }

    /// It is told to end: it takes no more, and workers may finish what they have until then.
    pub fn stop(&mut self, world: &mut World, until: Millis) {
        if self.stopping.is_none() {
            self.stopping = Some((until, self.core().counters().accepted));
            self.core().stop();
            self.act(world);
        }
    }

    /// It ends in good order: all that was written is on the disk.
    fn end(&mut self, world: &mut World) {
        self.flush(world);
        self.disk.close();
        self.vanish(world);
        self.away_until = world.now + world.net.rng.between(1, 400);
    }

    fn vanish(&mut self, world: &mut World) {
        self.core = None;
        self.stopping = None;
        for conn in self.conns.drain(..).flatten() {
            world.net.close_by_node(world.now, conn.link);
        }
        let unaccepted = world.net.links.iter().filter(|(_, link)| link.node == self.index && link.node_open);
        for id in unaccepted.map(|(id, _)| *id).collect::<Vec<_>>() {
            world.net.close_by_node(world.now, id);
        }
    }

    fn core(&mut self) -> &mut Core {
        self.core.as_mut().expect("it is alive")
    }

    fn peer_of(&self, link: LinkId) -> Option<Peer> {
        let index = self.conns.iter().position(|conn| conn.as_ref().is_some_and(|conn| conn.link == link))?;
        Some(index as Peer)
    }

    fn conn(&mut self, peer: Peer) -> Option<&mut Conn> {
        self.conns.get_mut(peer as usize)?.as_mut()
    }

    pub fn on_open(&mut self, link: LinkId) {
        let conn = Conn {
            link,
            speaks: Speaks::Nothing,
            client: None,
            block: Block::default(),
            pending: VecDeque::new(),
            is_blocked: false,
            is_paused: false,
            asks_too_much: false,
            parts: 0,
        };
        // Slots are used again, so that something late for an old connection would meet a new one.
        match self.conns.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(conn),
            None => self.conns.push(Some(conn)),
        }
    }

    pub fn on_close(&mut self, world: &mut World, link: LinkId) {
        let Some(peer) = self.peer_of(link) else { return };
        self.conns[peer as usize] = None;
        let now = world.now + self.ahead;
        self.core().peer_gone(now, peer);
        self.act(world);
    }

    pub fn on_frames(&mut self, world: &mut World, link: LinkId, frames: &[Bytes]) {
        let Some(peer) = self.peer_of(link) else { return };
        let Some(conn) = self.conn(peer) else { return };
        let header = frames.first().map_or(&b""[..], |frame| frame);
        match conn.speaks {
            Speaks::Nothing if header == CLIENT_HEADER => conn.speaks = Speaks::Client,
            Speaks::Nothing if header == WORKER_HEADER => conn.speaks = Speaks::Worker,
            Speaks::Client | Speaks::Worker => {}
            _ => {
                self.on_stock(world, peer, frames);
                return self.act(world);
            }
        }
        let attached = frames.get(2).map(|frame| Body::from(frame.clone()));
        let read = match self.conns[peer as usize].as_ref().map(|conn| conn.speaks) {
            Some(Speaks::Client) => self.on_client_block(world, peer, &frames[1], attached),
            _ => self.on_worker_block(world, peer, &frames[1], attached),
        };
        read.expect("what these ends send can be understood");
        self.act(world);
    }

    fn on_client_block(
        &mut self,
        world: &mut World,
        peer: Peer,
        block: &Bytes,
        mut attached: Option<Body>,
    ) -> Result<(), WireError> {
        let now = world.now + self.ahead;
        let mut rest = &block[..];
        while !rest.is_empty() {
            let record = FromClient::decode(&mut rest)?;
            if world.net.trace {
                let client = self.conn(peer).map_or(0, |conn| client_index(conn.client));
                println!("{} node {} peer {peer} client {client}: {record:?}", world.now, self.index);
            }
            match record {
                FromClient::Request { number, ttl_ms, volatile, service, content } => {
                    let body = content.to_body(block, attached.take_if(|_| content.is_attached()))?;
                    self.core().request(now, peer, number, ttl_ms, volatile, service, body);
                }
                FromClient::Confirm { first, count } => self.core().confirm(now, peer, first, count),
                FromClient::Cancel { number } => self.core().cancel(now, peer, number),
                FromClient::Hello { client, first } => {
                    if let Some(conn) = self.conn(peer) {
                        conn.client = Some(client);
                    }
                    self.core().client_hello(now, peer, client, first);
                }
            }
        }
        if attached.is_none() { Ok(()) } else { Err(WireError::Attachment) }
    }

    fn on_worker_block(
        &mut self,
        world: &mut World,
        peer: Peer,
        block: &Bytes,
        mut attached: Option<Body>,
    ) -> Result<(), WireError> {
        let now = world.now + self.ahead;
        let mut rest = &block[..];
        while !rest.is_empty() {
            let record = FromWorker::decode(&mut rest)?;
            if world.net.trace {
                println!("{} node {} peer {peer}: {record:?}", world.now, self.index);
            }
            match record {
                FromWorker::Reply { token, status, part, content } => {
                    let body = content.to_body(block, attached.take_if(|_| content.is_attached()))?;
                    self.core().worker_reply(now, peer, &token, status, part, body);
                }
                FromWorker::Ready { credit, service } => {
                    let epoch = self.life;
                    if let Some(conn) = self.conn(peer) {
                        ToWorker::welcome(&mut conn.block, epoch);
                    }
                    self.core().worker_ready(now, peer, Kind::Numbered, service, credit);
                }
                FromWorker::Credit { credit } => self.core().worker_credit(now, peer, credit),
                FromWorker::Leaving => self.core().worker_leaving(now, peer),
            }
        }
        if attached.is_none() { Ok(()) } else { Err(WireError::Attachment) }
    }

    fn on_stock(&mut self, world: &mut World, peer: Peer, frames: &[Bytes]) {
        let now = world.now + self.ahead;
        let message = match majordomo::decode(frames) {
            Ok(message) => message,
            Err(MdpError::Malformed { worker: Some(_), .. }) => return self.dismiss(world, peer),
            Err(error) => panic!("these ends speak Majordomo: {error}"),
        };
        let Some(conn) = self.conn(peer) else { return };
        let spoken = match &message {
            FromPeer::Request { dialect, .. } => Speaks::StockClient(*dialect),
            FromPeer::Worker { dialect, .. } => Speaks::StockWorker(*dialect),
        };
        if conn.speaks == Speaks::Nothing {
            conn.speaks = spoken;
        }
        match message {
            FromPeer::Request { dialect, envelope, service, body } => {
                let body = Body::owned(body);
                self.core().stock_request(now, peer, dialect.has_one_reply(), envelope, &service, body);
            }
            FromPeer::Worker { command, .. } => {
                self.core().worker_heard(now, peer);
                match command {
                    WorkerCommand::Ready { service } => {
                        self.core().worker_ready(now, peer, Kind::Stock, &service, 1);
                    }
                    WorkerCommand::Reply { address, partial, body } => {
                        let Some(token) = majordomo::token_of(&address) else { return self.dismiss(world, peer) };
                        let part = partial.then_some(conn_parts(self.conn(peer)));
                        if let Some(conn) = self.conn(peer) {
                            conn.parts = if partial { conn.parts + 1 } else { 0 };
                        }
                        self.core().worker_reply(now, peer, &token, Status::OK, part, Body::owned(body));
                    }
                    WorkerCommand::Heartbeat if self.core().is_worker(peer) => {}
                    WorkerCommand::Heartbeat => self.dismiss(world, peer),
                    WorkerCommand::Disconnect => {
                        self.core().peer_gone(now, peer);
                        if let Some(conn) = self.conn(peer) {
                            conn.speaks = Speaks::Nothing;
                        }
                    }
                }
            }
        }
    }

    fn dismiss(&mut self, world: &mut World, peer: Peer) {
        let now = world.now + self.ahead;
        self.core().peer_gone(now, peer);
        let Some(conn) = self.conn(peer) else { return };
        if let Speaks::StockWorker(dialect) = conn.speaks {
            conn.speaks = Speaks::Nothing;
            conn.parts = 0;
            self.send(world, peer, majordomo::disconnect(dialect).into_iter().collect());
        }
    }

    fn reject(&mut self, world: &mut World, peer: Peer) {
        let now = world.now + self.ahead;
        self.core().peer_gone(now, peer);
        if let Some(conn) = self.conns[peer as usize].take() {
            world.net.close_by_node(world.now, conn.link);
        }
    }

    /// Everything that is due, once all that has come has been told.
    pub fn turn(&mut self, world: &mut World) {
        let now = world.now + self.ahead;
        let (count, failing) = self.disk.take_durable(world.now, &mut world.net.rng);
        self.core().persisted(count);
        if let Some(failing) = failing {
            self.core().storage_failed(failing);
        }
        self.core().tick(now);
        self.act(world);
        self.flush(world);
        while self.core().flushed(now) {
            self.act(world);
            self.flush(world);
        }
        self.let_go_on(world);
        if let Some((until, accepted)) = self.stopping {
            assert_eq!(self.core().counters().accepted, accepted, "a request was taken after it had been told to end");
            if self.core().is_idle() || world.now >= until {
                self.end(world);
            }
        }
    }

    /// When it ends at the latest, if it has been told to.
    pub fn ends_at(&self) -> Millis {
        self.stopping.map_or(Millis::MAX, |(until, _)| until)
    }

    /// Whether a peer waits for room that is there by now.
    pub fn has_more(&self) -> bool {
        self.conns.iter().flatten().any(|conn| !conn.block.is_empty())
    }
}

fn conn_parts(conn: Option<&mut Conn>) -> u32 {
    conn.map_or(0, |conn| conn.parts)
}

pub fn frames_of(body: &Body) -> Vec<Bytes> {
    body.to_frames().into_iter().flatten().collect()
}

/// Clients are numbered in the first byte of their names.
pub fn client_index(client: Option<ClientId>) -> usize {
    usize::from(client.unwrap_or_default().0[0])
}
