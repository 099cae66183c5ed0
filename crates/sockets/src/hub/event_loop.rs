//! What a hub does in a turn: wait, give every peer that has something to do its share, look at the deadlines.

use super::flow::send_queues;
use super::{EVENTS_MAX, Hub, LISTENER_TOKENS, Passage, WAKER_TOKEN, schedule};
use crate::error::SocketError;
use crate::event::Event;
use crate::net::transport::Address;
use crate::peer::buffers::Pool;
use crate::peer::read::Budget;
use crate::peer::{End, Peer, PeerId};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Readiness events taken from the kernel at a time.
const READY_MAX: usize = 256;

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Hub {
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        let mut ready = Vec::with_capacity(READY_MAX);
        let sleeps = timeout.is_none_or(|timeout| !timeout.is_zero());
        if sleeps && !self.busy_poll.is_off() {
            let begin = Instant::now();
            // What is due then is due however long this may look again.
            let most = timeout.unwrap_or(Duration::MAX);
            let polling = self.busy_poll.next().map(|polling| polling.min(most));
            while ready.is_empty() && polling.is_some_and(|polling| begin.elapsed() < polling) {
                self.wait_for_readiness(&mut ready, Some(&NO_TIME))?;
                if ready.is_empty() {
                    rustix::thread::sched_yield();
                }
            }
            if ready.is_empty() {
                let left = if polling == Some(most) { Some(NO_TIME) } else { timeout.map(timespec) };
                self.wait_for_readiness(&mut ready, left.as_ref())?;
            }
            self.busy_poll.waited(begin.elapsed());
        } else {
            self.wait_for_readiness(&mut ready, timeout.map(timespec).as_ref())?;
        }
        self.more_ready = ready.len() == READY_MAX;
        for event in ready {
            let flags = event.flags;
            match event.data.u64() {
                WAKER_TOKEN => {
                    self.waker.clear();
                    // A buffer may have come back, a name may have been looked up, a disk may have answered, or somebody may have
                    // come by inproc.
                    self.may_feed = true;
                    self.take_addresses();
                    self.take_warmed();
                    for listening in self.listeners.iter_mut().filter(|l| l.listener.fd().is_none()) {
                        listening.pending = true;
                    }
                }
                token if token >= LISTENER_TOKENS => {
                    if let Some(listening) = self.listeners.get_mut((token - LISTENER_TOKENS) as usize) {
                        listening.pending = true;
                    }
                }
                token if flags.contains(epoll::EventFlags::PRI) => {
                    self.end(
                        PeerId::from_token(token),
                        End::misbehaviour("the peer sent urgent data, which ZMTP doesn't have"),
                    );
                }
                token => {
                    let Some(peer) = self.peers.find_mut(PeerId::from_token(token)) else { continue };
                    let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
                    let hangs_up = failed || flags.contains(epoll::EventFlags::RDHUP);
                    let is_unread = peer.paused || peer.passage == Passage::Held;
                    if hangs_up && !peer.hung_up && is_unread && peer.is_ready() {
                        peer.told_of_end = true;
                        // Nobody reads up to the end, which would tell of it.
                        self.events.push_back(Event::HungUp { peer: peer.id });
                    }
                    peer.hung_up |= hangs_up;
                    peer.readable |= peer.hung_up || flags.contains(epoll::EventFlags::IN);
                    peer.writable |= failed || flags.contains(epoll::EventFlags::OUT);
                    schedule(&mut self.runnable, peer);
                }
            }
        }
        Ok(())
    }

    /// Takes what the kernel reports.
    fn wait_for_readiness(&self, ready: &mut Vec<epoll::Event>, timeout: Option<&Timespec>) -> Result<(), SocketError> {
        match epoll::wait(&self.epoll, spare_capacity(ready), timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives every peer that has something to do one turn.
    pub(super) fn run(&mut self, reading: bool) {
        let mut starving = false;
        let mut arrived = 0;
        let mut unread = VecDeque::new();
        // Who waits for a buffer comes first, and whoever gets one waits behind all others for the next: so they go around.
        let hungry = if reading && std::mem::take(&mut self.may_feed) { self.starved.len() } else { 0 };
        for turn in 0..hungry + self.runnable.len() {
            let is_hungry = turn < hungry;
            let next = if is_hungry { self.starved.pop_front() } else { self.runnable.pop_front() };
            let Some(peer) = next.and_then(|id| self.peers.find_mut(id)) else { continue };
            let id = peer.id;
            if is_hungry {
                peer.starved = false;
            } else {
                peer.scheduled = false;
            }
            let was_starved = peer.starved;
            let was_ready = peer.is_ready();
            let has_room = self.events.len() < EVENTS_MAX && arrived <= self.options.arriving_max();
            let may_read = reading && has_room;
            let most = if may_read { Hub::may_read(&mut self.begun, peer) } else { usize::MAX };
            let count = peer.messages_in;
            let is_held = peer.hung_up && peer.passage == Passage::Held;
            if is_held && !std::mem::replace(&mut peer.told_of_end, true) {
                self.events.push_back(Event::HungUp { peer: id });
            }
            let bytes_in = peer.bytes_in;
            let outcome = run_peer(
                peer,
                may_read,
                &mut self.scratch,
                &self.pool,
                &mut self.events,
                self.now,
                Budget { all: self.options.read_budget_bytes.min(most), small: self.share.bytes() },
            );
            arrived = arrived.saturating_add(peer.bytes_in - bytes_in);
            if let Some(piece) = peer.cold.take() {
                self.warmer.begin(id, piece);
            }
            starving |= peer.starved;
            if peer.starved && !was_starved {
                self.starved.push_back(id);
            }
            if reading && let Some(deadline) = peer.connection.deadline() {
                self.next_timer = Some(self.next_timer.map_or(deadline, |at| at.min(deadline)));
            }
            send_queues::recount(&mut self.queued_bytes, peer);
            if peer.was_full && peer.queued_bytes <= send_queues::bound(&self.options, self.queued_bytes) / 2 {
                peer.was_full = false;
                self.events.push_back(Event::Writable { peer: id });
            }
            if reading && !may_read && peer.wants_to_read() && !peer.scheduled {
                peer.scheduled = true;
                unread.push_back(id);
            } else if peer.wants_to_read() || peer.wants_to_write() {
                schedule(&mut self.runnable, peer);
            }
            Hub::count_begun(&mut self.begun, peer, count);
            if !was_ready && peer.is_ready() {
                self.on_ready(id);
            }
            if let Err(end) = outcome {
                self.end(id, end);
            }
            if self.begun.bytes() > self.reassembly_limit {
                self.end_largest();
            }
        }
        if !unread.is_empty() {
            // They are the first that are read next time: or else, where more comes than there are events for, those in front would be
            // the only ones.
            unread.append(&mut self.runnable);
            self.runnable = unread;
        }
        if reading {
            self.let_pass();
        }
        if starving {
            // Peers that are slow to fill their buffers must not keep others from having one.
            for peer in self.peers.iter_mut() {
                peer.hand_over(&self.pool, &mut self.events);
            }
        }
    }

    /// Goes on with peers for which a file had to be read.
    fn take_warmed(&mut self) {
        while let Some(id) = self.warmer.next() {
            if let Some(peer) = self.peers.find_mut(id) {
                peer.warming = false;
                schedule(&mut self.runnable, peer);
            }
        }
    }

    pub(super) fn on_time(&mut self) {
        let now = self.now;
        if self.next_timer.is_none_or(|at| now < at) || now < self.last_scan + self.timer_grain() {
            return;
        }
        self.last_scan = now;
        let mut ended = Vec::new();
        let mut next: Option<Instant> = None;
        for peer in self.peers.iter_mut() {
            if let Some(until) = peer.connecting_until.filter(|_| peer.connecting) {
                if until <= now {
                    ended.push((peer.id, End::new("connecting failed: no answer")));
                    continue;
                }
                next = next.into_iter().chain([until]).min();
            }
            if peer.connection.deadline().is_some_and(|deadline| deadline <= now) {
                if peer.is_ready() && peer.readable {
                    // Bytes are here that this side had no room to take: the silence isn't the peer's.
                    peer.connection.heard(now);
                }
                if peer.warming {
                    peer.connection.excuse(now);
                }
                if peer.connection.doubts(now) && matches!(peer.address, Address::Tcp(_)) {
                    match self.unacknowledged.of(&peer.fd, now) {
                        Ok(Some(bytes)) => peer.connection.unacknowledged(bytes, now),
                        Ok(None) => {}
                        Err(later) => {
                            next = next.into_iter().chain([later]).min();
                            continue;
                        }
                    }
                }
                match peer.connection.on_timeout(now) {
                    Ok(()) => schedule(&mut self.runnable, peer),
                    Err(error) => ended.push((peer.id, End::from(error))),
                }
            }
            next = next.into_iter().chain(peer.connection.deadline()).min();
        }
        for listening in &mut self.listeners {
            if let Some(until) = listening.rest_until {
                if until <= now {
                    listening.rest_until = None;
                    listening.pending = true;
                } else {
                    next = next.into_iter().chain([until]).min();
                }
            }
        }
        self.next_timer = next.into_iter().chain(self.begun_deadline()).min();
        for (id, end) in ended {
            self.end(id, end);
        }
        self.end_look_ups();
        self.retry_connectors();
    }
}

fn timespec(timeout: Duration) -> Timespec {
    Timespec { tv_sec: timeout.as_secs().min(i32::MAX as u64) as i64, tv_nsec: i64::from(timeout.subsec_nanos()) }
}

fn run_peer(
    peer: &mut Peer,
    reading: bool,
    scratch: &mut [u8],
    pool: &Pool,
    events: &mut VecDeque<Event>,
    now: Instant,
    budget: Budget,
) -> Result<(), End> {
    if peer.connecting {
        if !peer.writable {
            return Ok(());
        }
        match rustix::net::sockopt::socket_error(&peer.fd) {
            Ok(Ok(())) => peer.connecting = false,
            Ok(Err(errno)) | Err(errno) => return Err(End::system("connecting failed", errno)),
        }
    }
    if reading {
        peer.read(scratch, pool, events, now, budget)?;
    }
    if peer.wants_to_write() {
        peer.write(scratch, events)?;
    }
    Ok(())
}
