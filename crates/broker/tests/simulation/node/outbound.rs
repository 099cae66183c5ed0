//! From what the core wants to what peers get, and to the disk.

use super::{Conn, Fault, Node, Speaks, World, client_index, frames_of};
use crate::ends::key_of;
use crate::history::{Event, reply_frame};
use crate::link::{Frames, LANE_BYTES};
use bytes::Bytes;
use towpath_broker::core::{Action, Entry, Peer};
use towpath_requests::Body;
use towpath_requests::majordomo;
use towpath_requests::numbered::{CLIENT_HEADER, Status, ToClient, ToWorker, WORKER_HEADER};

impl Node {
    pub fn act(&mut self, world: &mut World) {
        let mut actions = std::mem::take(&mut self.actions);
        loop {
            self.core().take_actions(&mut actions);
            if actions.is_empty() {
                break;
            }
            for action in actions.drain(..) {
                self.carry_out(world, action);
            }
        }
        self.actions = actions;
        let mut entries = Vec::new();
        self.core().take_entries(&mut entries);
        if self.fault == Fault::LoseEntries {
            for entry in &mut entries {
                if let Entry::Accepted { id, .. } = *entry
                    && id % 3 == 0
                {
                    *entry = Entry::Forgotten { id };
                }
            }
        }
        self.disk.write(world.now, entries, &mut world.net.rng);
    }

    fn carry_out(&mut self, world: &mut World, action: Action) {
        if world.net.trace && !matches!(action, Action::Heartbeat { .. }) {
            println!("{} node {}: {action:?}", world.now, self.index);
        }
        match action {
            Action::Dispatch { peer, token, attempt, ttl_ms, body } => {
                if let Some(key) = key_of(&body) {
                    world.history.add(world.now, Event::Given { key });
                }
                let Some(conn) = self.conn(peer) else { return };
                conn.parts = 0;
                match conn.speaks {
                    Speaks::StockWorker(dialect) => {
                        let frames = majordomo::request_head(dialect, &token).into_iter().chain(frames_of(&body));
                        self.send(world, peer, frames.collect());
                    }
                    _ => ToWorker::request(&mut conn.block, token, attempt, ttl_ms, &body),
                }
            }
            Action::Reply { peer, number, status, part, body } => {
                self.reply(world, peer, number, status, part, body);
            }
            Action::StockReply { peer, envelope, service, status, partial, body } => {
                let Some(Conn { speaks: Speaks::StockClient(dialect), .. }) = self.conn(peer) else { return };
                let head = majordomo::reply_head(*dialect, envelope.as_ref(), &service, partial);
                let reason = (!status.is_ok()).then(|| Bytes::from(status.0.to_string()));
                let mut frames = frames_of(&body);
                if self.fault == Fault::LoseParts && frames.len() > 3 {
                    frames.remove(0);
                }
                self.send(world, peer, head.into_iter().chain(reason).chain(frames).collect());
            }
            Action::Accepted { peer, first, count } => {
                let node = self.index;
                let Some(conn) = self.conn(peer) else { return };
                ToClient::accepted(&mut conn.block, first, count);
                let client = client_index(conn.client);
                for number in first..first + u64::from(count) {
                    world.history.add(world.now, Event::Acknowledged { node, key: (client, number) });
                }
            }
            Action::Refused { peer, number, status, retry_ms, reason } => {
                let Some(conn) = self.conn(peer) else { return };
                ToClient::refused(&mut conn.block, number, status, retry_ms, reason);
                conn.asks_too_much |= conn.is_blocked;
                set_reading(world, conn);
            }
            Action::Welcome { peer } => {
                let (life, most) = (self.life, self.settings.client_requests_max as u32);
                let (bytes, journal) = (self.settings.client_bytes_max as u64, self.settings.journal);
                if let Some(conn) = self.conn(peer) {
                    ToClient::welcome(&mut conn.block, life, most, bytes, journal);
                }
            }
            Action::CancelWork { peer, token } => {
                if let Some(conn) = self.conn(peer) {
                    ToWorker::cancel(&mut conn.block, token);
                }
            }
            Action::BuiltIn { token, body, .. } => {
                let frames = [Bytes::from(reply_frame(0, 0))].into_iter().chain(frames_of(&body));
                self.core().built_in_reply(&token, Status::OK, Body::of_frames(frames));
            }
            Action::Heartbeat { peer } => {
                if let Some(Conn { speaks: Speaks::StockWorker(dialect), .. }) = self.conn(peer) {
                    let beat = majordomo::heartbeat(*dialect);
                    self.send(world, peer, beat.into_iter().collect());
                }
            }
            Action::Leave { peer } => {
                if let Some(conn) = self.conn(peer).filter(|conn| conn.speaks == Speaks::Worker) {
                    ToWorker::leave(&mut conn.block);
                }
            }
            Action::Pause { peer, paused } => {
                if let Some(conn) = self.conn(peer) {
                    conn.is_paused = paused;
                    set_reading(world, conn);
                }
            }
            // The operator of a simulation reads its trace.
            Action::GaveUp { .. } | Action::ReplyLost { .. } => {}
            Action::SendAway { peer, .. } => self.reject(world, peer),
            Action::Disconnect { peer, .. } => match self.conn(peer).map(|conn| conn.speaks) {
                Some(Speaks::StockWorker(_)) => self.dismiss(world, peer),
                Some(_) => self.reject(world, peer),
                None => {}
            },
        }
    }

    fn reply(&mut self, world: &mut World, peer: Peer, number: u64, status: Status, part: Option<u32>, mut body: Body) {
        let (node, life, fault) = (self.index, self.life, self.fault);
        let is_final_ok = part.is_none() && status.is_ok();
        if is_final_ok {
            self.done += 1;
        }
        if fault == Fault::SwapReplies && is_final_ok {
            let own = body.clone();
            body = self.stash.replace(own.clone()).unwrap_or(own);
        }
        if fault == Fault::SwallowReplies && is_final_ok && self.done.is_multiple_of(4) {
            return;
        }
        let answers_twice = fault == Fault::AnswerTwice && is_final_ok && self.done.is_multiple_of(4);
        let Some(conn) = self.conn(peer) else { return };
        let key = (client_index(conn.client), number);
        ToClient::reply(&mut conn.block, number, status, part, &body);
        if part.is_none() {
            world.history.add(world.now, Event::Told { node, life, key, status, body });
        }
        if answers_twice {
            let body = Body::from("and again");
            ToClient::reply(&mut conn.block, number, Status::FAILED, None, &body);
            world.history.add(world.now, Event::Told { node, life, key, status: Status::FAILED, body });
        }
    }

    pub(super) fn send(&mut self, world: &mut World, peer: Peer, frames: Frames) {
        let Some(conn) = self.conn(peer) else { return };
        if push(world, conn, frames) {
            self.block(world, peer);
        }
    }

    pub(super) fn flush(&mut self, world: &mut World) {
        for peer in 0..self.conns.len() as Peer {
            let Some(conn) = self.conn(peer).filter(|conn| !conn.block.is_empty()) else { continue };
            let header = if conn.speaks == Speaks::Client { CLIENT_HEADER } else { WORKER_HEADER };
            let mut block = std::mem::take(&mut conn.block);
            let mut is_full = false;
            for message in block.drain() {
                let frames = [Bytes::from_static(header), message.block].into_iter();
                is_full |= push(world, conn, frames.chain(message.attached.iter().flat_map(frames_of)).collect());
            }
            if is_full {
                self.block(world, peer);
            }
        }
    }

    fn block(&mut self, world: &mut World, peer: Peer) {
        let now = world.now + self.ahead;
        let most = 4 * self.settings.client_bytes_max;
        let Some(conn) = self.conn(peer) else { return };
        if conn.pending.iter().flatten().map(Bytes::len).sum::<usize>() > most {
            return self.reject(world, peer);
        }
        if !std::mem::replace(&mut conn.is_blocked, true) {
            self.core().peer_blocked(now, peer, true);
        }
    }

    /// Peers that have read what waited are given more.
    pub(super) fn let_go_on(&mut self, world: &mut World) {
        let now = world.now + self.ahead;
        for peer in 0..self.conns.len() as Peer {
            let Some(conn) = self.conn(peer).filter(|conn| conn.is_blocked) else { continue };
            while has_room(world, conn)
                && let Some(frames) = conn.pending.pop_front()
            {
                world.net.send_down(world.now, conn.link, frames);
            }
            if conn.pending.is_empty() {
                (conn.is_blocked, conn.asks_too_much) = (false, false);
                set_reading(world, conn);
                self.core().peer_blocked(now, peer, false);
                self.act(world);
            }
        }
    }
}

fn has_room(world: &World, conn: &Conn) -> bool {
    world.net.links.get(&conn.link).is_none_or(|link| link.down.bytes < LANE_BYTES || !link.end_open)
}

/// Whether the peer takes no more for now.
fn push(world: &mut World, conn: &mut Conn, frames: Frames) -> bool {
    if conn.pending.is_empty() && has_room(world, conn) {
        world.net.send_down(world.now, conn.link, frames);
        return false;
    }
    conn.pending.push_back(frames);
    true
}

fn set_reading(world: &mut World, conn: &Conn) {
    if let Some(link) = world.net.links.get_mut(&conn.link) {
        link.paused = conn.is_paused || conn.asks_too_much;
        link.gives_up = conn.is_paused;
    }
}
