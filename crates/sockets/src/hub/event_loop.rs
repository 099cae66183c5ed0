//! The steps of a poll: wait, give every peer that is ready its turn, check deadlines.

use super::member::Member;
use super::{Hub, LISTENER_TOKENS, WAKER_TOKEN};
use crate::error::SocketError;
use crate::event::{EVENTS_MAX, Event};
use crate::hub::flow::reassembly::ReadPermit;
use crate::net::tenant::Tenant;
use crate::net::transport::Listener;
use crate::peer::buffers::Pool;
use crate::peer::read::Budget;
use crate::peer::sealing::{SealedFrame, TAKEN_BYTES_MIN};
use crate::peer::{End, Peer};
use crate::peer_id::PeerId;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Readiness events taken from the kernel at a time.
const READY_MAX: usize = 256;

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

impl Hub {
    /// Waits until something is ready, and schedules those peers.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        let mut ready = Vec::with_capacity(READY_MAX);
        let sleeps = timeout.is_none_or(|timeout| !timeout.is_zero());
        if sleeps && !self.busy_poll.is_off() {
            let begin = Instant::now();
            // Timers are not delayed by polling again.
            let most = timeout.unwrap_or(Duration::MAX);
            let polling = self.busy_poll.next().map(|polling| polling.min(most));
            while ready.is_empty() && polling.is_some_and(|polling| begin.elapsed() < polling) {
                self.take_readiness(&mut ready, Some(&NO_TIME))?;
                if ready.is_empty() {
                    rustix::thread::sched_yield();
                }
            }
            if ready.is_empty() {
                let left = if polling == Some(most) { Some(NO_TIME) } else { timeout.map(timespec) };
                self.take_readiness(&mut ready, left.as_ref())?;
            }
            self.busy_poll.waited(begin.elapsed());
        } else {
            self.take_readiness(&mut ready, timeout.map(timespec).as_ref())?;
        }
        self.more_ready = ready.len() == READY_MAX;
        for event in ready {
            match event.data.u64() {
                WAKER_TOKEN => self.on_woken(),
                token if token >= LISTENER_TOKENS => {
                    if let Some(listening) = self.listeners.get_mut((token - LISTENER_TOKENS) as usize) {
                        listening.pending = true;
                    }
                }
                token => self.on_readiness(PeerId::from_token(token), event.flags),
            }
        }
        Ok(())
    }

    fn take_readiness(&self, ready: &mut Vec<epoll::Event>, timeout: Option<&Timespec>) -> Result<(), SocketError> {
        match epoll::wait(&self.epoll, spare_capacity(ready), timeout) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A buffer may have come back, a name may have been looked up, a disk may have answered, or an inproc peer may have come.
    fn on_woken(&mut self) {
        self.waker.clear();
        self.buffer_returned = true;
        self.take_addresses();
        self.take_prefetched();
        self.take_sealed();
        self.take_opened();
        self.take_slow_logins();
        self.take_given_back();
        for listening in
            self.listeners.iter_mut().filter(|listening| matches!(listening.listener, Listener::Inproc(..)))
        {
            listening.pending = true;
        }
    }

    fn on_readiness(&mut self, id: PeerId, flags: epoll::EventFlags) {
        if flags.contains(epoll::EventFlags::PRI) {
            return self.end(id, End::misbehaviour("the peer sent urgent data, which ZMTP doesn't have"));
        }
        let Some(member) = self.peers.find_mut(id) else { return };
        let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        let hangs_up = failed || flags.contains(epoll::EventFlags::RDHUP);
        let is_unread = member.flow.paused || member.flow.permit == ReadPermit::Deferred;
        if hangs_up && !member.peer.read.hung_up && is_unread && member.peer.is_ready() {
            member.flow.hang_up_reported = true;
            // Nobody reads up to the end and so finds out.
            self.events.push_back(Event::HungUp { peer: id });
        }
        if failed && member.peer.read.has_ended {
            return self.end(id, End::closed());
        }
        member.peer.read.on_readiness(flags.contains(epoll::EventFlags::IN), hangs_up);
        member.peer.read.has_failed |= failed;
        member.peer.write.is_writable |= failed || flags.contains(epoll::EventFlags::OUT);
        member.schedule(&mut self.ready);
    }

    /// Gives every peer in the ready queue its turn, and then those whose handshakes are costly, as long as there is time.
    pub(super) fn run(&mut self, reading: bool) {
        let mut is_short_of_buffers = false;
        let mut arrived = 0;
        let mut unread = VecDeque::new();
        // Peers that wait for a buffer come first, and one that gets a buffer waits behind all others for the next.
        let waiting = if reading && std::mem::take(&mut self.buffer_returned) { self.awaiting_buffer.len() } else { 0 };
        let scheduled = waiting + self.ready.len();
        for turn in 0.. {
            let awaited_buffer = turn < waiting;
            let shakes_hands = turn >= scheduled;
            let next = if awaited_buffer {
                self.awaiting_buffer.pop_front()
            } else if !shakes_hands {
                self.ready.pop_front()
            } else {
                let next = if reading { self.handshake_turns.next() } else { None };
                if next.is_none() {
                    break;
                }
                next
            };
            let Some(member) = next.and_then(|id| self.peers.find_mut(id)) else { continue };
            let id = member.peer.id;
            if reading && !shakes_hands && !awaited_buffer && self.handshake_turns.defers(member) {
                member.is_scheduled = false;
                continue;
            }
            if awaited_buffer {
                member.peer.read.awaits_buffer = false;
            } else if !shakes_hands {
                member.is_scheduled = false;
            }
            let still_awaits_buffer = member.peer.read.awaits_buffer;
            let was_ready = member.peer.is_ready();
            let may_read = reading && self.events.len() < EVENTS_MAX && arrived <= self.options.arriving_max();
            let allowance = if may_read { self.reassembly.read_allowance(member) } else { usize::MAX };
            let count = member.peer.read.messages_in;
            if member.flow.permit == ReadPermit::Deferred {
                member.report_hang_up(&mut self.events);
            }
            let bytes_in = member.peer.read.bytes_in;
            let outcome = run_peer(
                member,
                may_read,
                &mut self.scratch,
                &self.pool,
                &mut self.events,
                self.now,
                Budget { all: self.options.read_budget_bytes.min(allowance), small: self.read_budget.bytes() },
            );
            arrived = arrived.saturating_add(member.peer.read.bytes_in - bytes_in);
            self.traffic.count(member);
            if let Some(range) = member.peer.write.start_prefetch() {
                self.prefetcher.start(id, range);
            }
            if let Some(job) = member.peer.connection.open_job() {
                self.opening.start(id, job);
            }
            if let Some(request) = member.peer.write.to_seal.take() {
                let tenant = Tenant::of_identity(&member.peer.principal, &member.peer.address);
                self.sealing.push(&tenant, id, request);
            }
            is_short_of_buffers |= member.peer.read.awaits_buffer;
            if member.peer.read.awaits_buffer && !still_awaits_buffer {
                self.awaiting_buffer.push_back(id);
            }
            if reading && let Some(deadline) = member.peer.connection.deadline() {
                self.next_timer = Some(self.next_timer.map_or(deadline, |at| at.min(deadline)));
            }
            self.send_budget.update(member);
            let ends_now = member.ends_when_sent && !member.peer.connection.outbox_ref().has_output();
            if member.flow.was_full && member.flow.queued_bytes <= self.send_budget.limit() / 2 {
                member.flow.was_full = false;
                self.events.push_back(Event::Writable { peer: id });
            }
            if reading && !may_read && member.wants_to_read() && !member.is_scheduled {
                member.is_scheduled = true;
                unread.push_back(id);
            } else if member.wants_to_read() || member.wants_to_write() {
                member.schedule(&mut self.ready);
            }
            self.reassembly.account(member, count);
            let header = member.peer.take_header();
            if !was_ready && member.peer.is_ready() {
                self.on_ready(id);
            }
            match outcome {
                Ok(()) if header.is_some() => self.on_header(id, &header.unwrap_or_default()),
                Ok(()) if ends_now => self.end(id, End::closed()),
                Err(end) if end.is_end_of_input && self.half_close(id) => {}
                Err(end) => self.end(id, end),
                Ok(()) => {}
            }
            if self.reassembly.bytes() > self.reassembly_limit {
                self.end_largest();
            }
        }
        // What was written has given memory back.
        self.sealing.start(self.now);
        self.next_timer = self.next_timer.into_iter().chain(self.sealing.deadline()).min();
        if !unread.is_empty() {
            // They are read first in the next poll: where more arrives than there are events for, those in front would be the only ones.
            unread.append(&mut self.ready);
            self.ready = unread;
        }
        if reading {
            self.move_reassembly_queue();
        }
        if is_short_of_buffers {
            // Peers that are slow to fill their buffers must not keep others from having one.
            for member in self.peers.iter_mut() {
                member.peer.deliver_partial(&self.pool, &mut self.events);
            }
        }
    }

    /// Goes on with peers whose file range has been read.
    fn take_prefetched(&mut self) {
        while let Some(id) = self.prefetcher.next_done() {
            if let Some(member) = self.peers.find_mut(id) {
                member.peer.write.prefetched();
                member.schedule(&mut self.ready);
            }
        }
    }

    /// Goes on with peers whose next frame has been sealed.
    fn take_sealed(&mut self) {
        while let Some((id, outcome)) = self.sealing.next_done() {
            let Some(member) = self.peers.find_mut(id) else { continue };
            match outcome {
                Ok(SealedFrame { sealed, is_short }) => {
                    if let Some(range) = member.peer.connection.outbox().sealed(sealed) {
                        range.was_short = is_short;
                    }
                    member.schedule(&mut self.ready);
                }
                Err(end) => self.end(id, end),
            }
        }
    }

    /// Goes on with peers whose frame has been opened.
    fn take_opened(&mut self) {
        while let Some((id, opened)) = self.opening.next_done() {
            let Some(member) = self.peers.find_mut(id) else { continue };
            match opened {
                Some(opened) => {
                    member.peer.opened(opened);
                    member.schedule(&mut self.ready);
                }
                None => self.end(id, End::new("a frame could not be opened: no thread for it could be started")),
            }
        }
    }

    /// When others have waited for memory too long, disconnects the slowest of the peers that hold sealed frames and take next to nothing.
    fn end_stuck_seal(&mut self) {
        if !self.sealing.take_stuck(self.now) {
            return;
        }
        let holds = |peer: &Peer| peer.connection.outbox_ref().holds_sealed() && !peer.write.is_writable;
        let holders = self.peers.iter_mut().map(|member| &mut member.peer).filter(|peer| holds(peer));
        let slow = holders.map(|peer| (peer.newly_taken_bytes(), peer.connection.last_received(), peer.id));
        let slow = slow.filter(|(taken, ..)| *taken < TAKEN_BYTES_MIN);
        if let Some((_, _, id)) = slow.min_by_key(|(taken, last_received, _)| (*taken, *last_received)) {
            self.end(id, End::new("others wait for memory that holds what this peer doesn't take"));
        }
    }

    /// Checks deadlines of connections, listeners, look-ups and connectors.
    pub(super) fn on_time(&mut self) {
        let now = self.now;
        if self.next_timer.is_none_or(|at| now < at) || now < self.last_scan + self.timer_grain() {
            return;
        }
        self.last_scan = now;
        let (mut ended, mut refused) = (Vec::new(), Vec::new());
        let mut next: Option<Instant> = None;
        for member in self.peers.iter_mut() {
            if let Some(until) = member.connect_deadline.filter(|_| member.is_connecting) {
                if until <= now {
                    ended.push((member.peer.id, End::new("connecting failed: no answer")));
                    continue;
                }
                next = next.into_iter().chain([until]).min();
            }
            if let Some(at) = member.refuse_at {
                if at <= now {
                    refused.push(member.peer.id);
                    continue;
                }
                next = next.into_iter().chain([at]).min();
            }
            let peer = &mut member.peer;
            if peer.connection.deadline().is_some_and(|deadline| deadline <= now) {
                // Bytes have arrived that this side had no memory or time for: the silence isn't the peer's.
                if peer.is_ready() && (peer.read.is_readable || has_unread(&peer.fd)) {
                    peer.connection.on_life(now);
                }
                if peer.is_being_prepared() {
                    peer.connection.on_local_delay(now);
                }
                if peer.connection.wants_unacked_bytes(now)
                    && let Some(bytes) = towpath_outq::untaken_bytes(&peer.fd)
                {
                    peer.connection.on_unacked_bytes(bytes, now);
                }
                match peer.connection.on_timeout(now) {
                    Ok(()) => member.schedule(&mut self.ready),
                    Err(error) => ended.push((peer.id, End::from(error))),
                }
            }
            next = next.into_iter().chain(member.peer.connection.deadline()).min();
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
        self.next_timer = next.into_iter().chain(self.reassembly.deadline()).chain(self.sealing.deadline()).min();
        for (id, end) in ended {
            self.end(id, end);
        }
        refused.into_iter().for_each(|id| self.refuse(id));
        self.end_stuck_seal();
        self.end_overdue_lookups();
        self.retry_connectors();
    }
}

/// Whether the kernel holds bytes from a peer whose readiness it may not have reported yet, such as after this process was stopped.
fn has_unread(fd: &OwnedFd) -> bool {
    rustix::io::ioctl_fionread(fd).is_ok_and(|bytes| bytes > 0)
}

fn timespec(timeout: Duration) -> Timespec {
    Timespec { tv_sec: timeout.as_secs().min(i32::MAX as u64) as i64, tv_nsec: i64::from(timeout.subsec_nanos()) }
}

fn run_peer(
    member: &mut Member,
    reading: bool,
    scratch: &mut [u8],
    pool: &Pool,
    events: &mut VecDeque<Event>,
    now: Instant,
    budget: Budget,
) -> Result<(), End> {
    if member.is_connecting {
        if !member.peer.write.is_writable {
            return Ok(());
        }
        match rustix::net::sockopt::socket_error(&member.peer.fd) {
            Ok(Ok(())) => member.is_connecting = false,
            Ok(Err(errno)) | Err(errno) => return Err(End::system("connecting failed", errno)),
        }
    }
    if !member.peer.is_ready() && member.peer.connection.event_is_due() {
        // The application has decided about its credentials.
        member.peer.decode(pool, events, now)?;
    }
    if reading && member.wants_to_read() {
        member.peer.read_available(scratch, pool, events, now, budget)?;
    }
    if member.wants_to_write() {
        member.peer.write_queued(scratch, events)?;
    }
    Ok(())
}
