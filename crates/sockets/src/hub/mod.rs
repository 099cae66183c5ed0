//! The batched interface: one thread owns all peers of a socket and drives them poll by poll.
//!
//! [`Hub`] has its fields and the calls of the application here. Its steps are in the other modules; a poll takes them in this order:
//!
//! 1. `event_loop::run` without reading: what was sent since the last poll leaves;
//! 2. `event_loop::wait`: epoll, and what woke it (buffers, look-ups, prefetched ranges, sealed and opened frames);
//! 3. `lifecycle::accept`: new connections;
//! 4. `event_loop::run` with reading: each peer in the ready queue reads and writes within its budgets (`flow`), and may become ready or end
//!    (`lifecycle::on_ready`, `lifecycle::end`); then the queue for reassembly moves;
//! 5. `event_loop::on_time`: deadlines, when the earliest is due, and attempts to connect again (`connect`).

mod blocked;
mod busy_poll;
pub(crate) mod connect;
mod event_loop;
mod failed_logins;
mod flow;
mod handshake_turns;
mod lifecycle;
mod logins;
mod member;
mod relayed;
mod slow_logins;
mod stats;

use crate::auth::{Authenticator, Gate};
use crate::disk::prefetch::Prefetcher;
use crate::error::SocketError;
use crate::event::Event;
use crate::net::endpoint::Endpoint;
use crate::net::resolver::Resolver;
use crate::net::tenant::Tenant;
use crate::net::transport::Listener;
use crate::options::{HubOptions, READ_AHEAD_BYTES_MAX};
use crate::peer::End;
use crate::peer::buffers::Pool;
use crate::peer::opening::OpenPool;
use crate::peer::sealing::SealPool;
use crate::peer::table::Table;
use crate::peer_id::PeerId;
use crate::relay::Relay;
use crate::unsent::Unsent;
use crate::waker::Waker;
use busy_poll::BusyPoll;
use bytes::Bytes;
use connect::{Attempt, Connector};
use failed_logins::FailedLogins;
use flow::read_budget::ReadBudget;
pub use flow::reassembly::LargeMessages;
use flow::reassembly::{ReadPermit, ReassemblyBudget};
use flow::send_queues::SendBudget;
use handshake_turns::HandshakeTurns;
use member::Member;
use relayed::Relayed;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use slow_logins::SlowLogins;
use stats::GonePeers;
pub use stats::{Ends, GonePeer, HubStats, SLOW_ROUNDS, Traffic};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_buffers::PageBuffer;
use towpath_zmtp::Config;

/// Minimum time between two checks of all deadlines. It grows with the number of peers, so that checking costs little.
const TIMER_GRAIN: Duration = Duration::from_millis(10);
const TIMER_GRAIN_PER_PEER: Duration = Duration::from_micros(5);

/// The longest wait of a hub that is being closed.
const CLOSING_WAIT: Duration = Duration::from_millis(50);

const WAKER_TOKEN: u64 = u64::MAX;
const LISTENER_TOKENS: u64 = u64::MAX - 1_000_000;

struct Listening {
    listener: Listener,
    /// Connections may wait to be accepted.
    pending: bool,
    /// Accepting rests until then.
    rest_until: Option<Instant>,
}

impl Listening {
    /// Whether to accept now. While accepting rests, connections wait: trying again and again would burn processor time.
    fn is_due(&self, now: Instant) -> bool {
        self.pending && self.rest_until.is_none_or(|until| now >= until)
    }
}

/// All peers of one socket, driven by one thread: no lock, channel, task or timer per message.
///
/// Call [`Hub::poll`], take the events from [`Hub::next_event`], [`Hub::send`], and so on. Messages sent between two polls leave together
/// with the next. The crate's page has an example.
pub struct Hub {
    options: HubOptions,
    config: Arc<Config>,
    epoll: OwnedFd,
    busy_poll: BusyPoll,
    waker: Waker,
    /// The kernel may have more readiness events than the last wait took.
    more_ready: bool,
    peers: Table<Member>,
    listeners: Vec<Listening>,
    connectors: Vec<Connector>,
    resolver: Resolver<Box<Attempt>>,
    prefetcher: Prefetcher,
    sealing: SealPool,
    opening: OpenPool,
    /// Peers that have something to do in this poll.
    ready: VecDeque<PeerId>,
    /// Peers that wait for a body buffer, in order.
    awaiting_buffer: VecDeque<PeerId>,
    /// A buffer may have come back.
    buffer_returned: bool,
    events: VecDeque<Event>,
    /// Of all connections.
    traffic: Traffic,
    gone: GonePeers,
    slow_rounds: [u64; SLOW_ROUNDS.len()],
    /// When the last wait ended.
    woken_at: Option<Instant>,
    routing: HashMap<Bytes, PeerId>,
    next_routing_id: u32,
    /// Accepted connections by address, as tenants have them.
    pub(crate) per_address: HashMap<Tenant, usize>,
    handshakes: usize,
    handshake_turns: HandshakeTurns,
    failed_logins: FailedLogins<Tenant>,
    slow_logins: SlowLogins,
    gate: Option<Gate>,
    /// Which relayed connections are taken, if any are.
    relayed: Option<Relayed>,
    /// Once one was wanted, and whether it is now.
    relay: Option<Relay>,
    is_relaying: bool,
    /// The authenticator asked last, which receives refusals.
    authenticator: Option<Authenticator>,
    /// Attempts in a row that ended as if this side were refused.
    suspected: u32,
    /// When connections of this side's ended because something was changed on its way.
    tampered: VecDeque<Instant>,
    /// Messages that were queued for peers when these went, if they are counted.
    lost: Option<Unsent>,
    reassembly: ReassemblyBudget,
    /// Bytes beyond which the peer with the largest incomplete message is disconnected at once.
    reassembly_limit: usize,
    send_budget: SendBudget,
    pool: Pool,
    scratch: PageBuffer,
    read_budget: ReadBudget,
    next_timer: Option<Instant>,
    last_scan: Instant,
    now: Instant,
}

impl Hub {
    /// A hub without peers.
    ///
    /// # Errors
    /// [`SocketError::Option`] for options that can't work; [`SocketError::System`] if epoll isn't available.
    pub fn new(options: HubOptions) -> Result<Hub, SocketError> {
        options.check()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::new()?;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(WAKER_TOKEN), epoll::EventFlags::IN)?;
        let now = Instant::now();
        Ok(Hub {
            config: Arc::new(options.connection_config()),
            pool: Pool::new(options.body_buffer_bytes, waker.clone()),
            resolver: Resolver::new(waker.clone()),
            prefetcher: Prefetcher::new(waker.clone()),
            sealing: SealPool::new(waker.clone()),
            opening: OpenPool::new(waker.clone()),
            slow_logins: SlowLogins::new(waker.clone()),
            gate: None,
            relayed: None,
            relay: None,
            is_relaying: false,
            authenticator: None,
            epoll,
            busy_poll: BusyPoll::new(options.busy_poll),
            waker,
            more_ready: false,
            peers: Table::default(),
            listeners: Vec::new(),
            connectors: Vec::new(),
            ready: VecDeque::new(),
            awaiting_buffer: VecDeque::new(),
            buffer_returned: false,
            events: VecDeque::new(),
            traffic: Traffic::default(),
            gone: GonePeers::default(),
            slow_rounds: [0; SLOW_ROUNDS.len()],
            woken_at: None,
            routing: HashMap::new(),
            next_routing_id: 1,
            per_address: HashMap::new(),
            handshakes: 0,
            handshake_turns: HandshakeTurns::new(&options.mechanism),
            failed_logins: FailedLogins::new(),
            suspected: 0,
            tampered: VecDeque::new(),
            lost: None,
            reassembly: ReassemblyBudget::new(&options),
            reassembly_limit: options.reassembly_limit(),
            send_budget: SendBudget::new(&options),
            scratch: PageBuffer::zeroed(READ_AHEAD_BYTES_MAX),
            read_budget: ReadBudget::new(now),
            next_timer: None,
            last_scan: now,
            now,
            options,
        })
    }

    /// Listens, and gives the endpoint with its actual port. May be called several times.
    pub fn bind(&mut self, endpoint: &Endpoint) -> Result<Endpoint, SocketError> {
        let (listener, endpoint) = Listener::bind(endpoint, &self.waker, &self.options.congestion)?;
        let token = LISTENER_TOKENS + self.listeners.len() as u64;
        for fd in listener.fds() {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)?;
        }
        self.listeners.push(Listening { listener, pending: false, rest_until: None });
        Ok(endpoint)
    }

    /// Connects, and reconnects with backoff whenever the connection is lost. May be called several times. All addresses of a name are tried
    /// in order before an attempt has failed. Names are looked up on another thread.
    pub fn connect(&mut self, endpoint: &Endpoint) -> Result<(), SocketError> {
        self.connectors.push(Connector::new(endpoint.clone()));
        self.now = Instant::now();
        self.start_connecting(self.connectors.len() - 1);
        Ok(())
    }

    /// Connects to the first address that answers, and doesn't reconnect: for callers that choose between endpoints themselves. The outcome
    /// is [`Event::Ready`], later [`Event::Gone`], or [`Event::Failed`].
    pub fn connect_once(&mut self, endpoint: &Endpoint) {
        self.now = Instant::now();
        self.attempt_once(endpoint);
    }

    /// Ends [`Hub::poll`]'s wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Sends what is queued, waits for something to happen (at most `timeout`), and takes it in. Returns early when woken, and at once while
    /// events of an earlier poll have not been taken.
    pub fn poll(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.now = Instant::now();
        self.read_budget.adjust(self.now);
        self.peers.release_freed();
        self.run(false);
        let is_due = self.reassembly.is_due(self.now) || self.accepts_now() || self.handshake_turns.are_due();
        let timeout = if !self.events.is_empty() || !self.ready.is_empty() || is_due {
            Some(Duration::ZERO)
        } else {
            let timer =
                self.next_timer.map(|at| at.saturating_duration_since(self.now).saturating_add(self.timer_grain()));
            timeout.into_iter().chain(timer).min()
        };
        self.count_round();
        self.wait(timeout)?;
        self.now = Instant::now();
        self.woken_at = Some(self.now);
        self.read_budget.start_reading(self.now);
        for index in 0..self.listeners.len() {
            self.accept(index);
        }
        self.run(true);
        self.read_budget.stop_reading(self.events.len());
        self.on_time();
        Ok(())
    }

    /// Sends what is queued, as far as the kernel takes it, without reading.
    pub fn flush(&mut self) {
        self.now = Instant::now();
        self.run(false);
    }

    /// Whether another poll would find something to do at once.
    pub fn is_busy(&self) -> bool {
        let is_due = self.accepts_now() || self.reassembly.is_due(self.now) || self.handshake_turns.are_due();
        !self.ready.is_empty() || !self.events.is_empty() || self.more_ready || is_due
    }

    fn accepts_now(&self) -> bool {
        self.listeners.iter().any(|listening| listening.is_due(self.now))
    }

    /// When to poll even if nothing happens: for callers that wait on the hub's descriptor themselves.
    pub fn deadline(&self) -> Option<Instant> {
        let timer = self.next_timer.and_then(|at| at.checked_add(self.timer_grain()));
        if self.reassembly.is_due(self.now) || self.handshake_turns.are_due() { Some(self.now) } else { timer }
    }

    fn timer_grain(&self) -> Duration {
        let peers = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        TIMER_GRAIN.saturating_add(TIMER_GRAIN_PER_PEER.saturating_mul(peers))
    }

    /// The next event of the last poll.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Changes [`HubOptions::read_budget_bytes`] from the next poll on.
    pub fn set_read_budget_bytes(&mut self, bytes: usize) {
        self.options.read_budget_bytes = bytes.max(1);
    }

    /// Keeps the slot of a peer that is gone ([`PeerId::slot`]) from being used again until [`Hub::release_slot`]: for work that goes on
    /// under its name. To be called before the poll after [`Event::Gone`]. False if the slot is in use already, or too many are reserved.
    pub fn reserve_slot(&mut self, gone: PeerId) -> bool {
        self.peers.reserve_slot(gone)
    }

    /// Releases a reserved slot.
    pub fn release_slot(&mut self, gone: PeerId) {
        self.peers.release_slot(gone);
    }

    /// Stops or resumes reading from a peer: back-pressure, which TCP carries to it. [`Event::HungUp`] reports if it ends meanwhile. Bytes read
    /// of a streamed body are still delivered, since others need the buffer. So is the rest of a message that goes on over budget
    /// ([`HubOptions::reassembly_bytes_max`]), since nobody else's does until it ends.
    pub fn pause_reading(&mut self, peer: PeerId, paused: bool) {
        // Its deadlines start again when reading does: now, and not at the last poll.
        let now = Instant::now();
        if let Some(member) = self.peers.find_mut(peer).filter(|member| member.flow.paused != paused) {
            member.flow.paused = paused;
            let target = &mut member.peer;
            target.connection.set_reading(!paused && !target.read.has_ended, now);
            if paused {
                target.deliver_partial(&self.pool, &mut self.events);
            }
            if paused && target.read.hung_up && !target.read.has_ended && target.is_ready() {
                self.events.push_back(Event::HungUp { peer });
            }
            // A silent peer isn't read, which is when deadlines are noted.
            self.next_timer = self.next_timer.into_iter().chain(target.connection.deadline()).min();
            member.schedule(&mut self.ready);
        }
    }

    /// Disconnects a peer that takes nothing of its backlog and says nothing for twice the heartbeat's interval and timeout: for peers that are
    /// known to read as long as they live. No PING goes behind a backlog, so nothing else shows that such a peer has died.
    pub fn detect_stalls(&mut self, peer: PeerId) {
        if let Some(member) = self.peers.find_mut(peer) {
            member.peer.connection.detect_stalls(Instant::now());
        }
    }

    /// Lets a peer leave a PING unanswered for at least this long, if that is more than the heartbeat's timeout: for peers that would lose
    /// something with the connection.
    pub fn extend_pong_timeout(&mut self, peer: PeerId, to: Duration) {
        if let Some(member) = self.peers.find_mut(peer) {
            member.peer.connection.extend_pong_timeout(to);
        }
    }

    /// Ends a connection whose peer has closed its side ([`Event::HalfClosed`]): at once, or when what is queued has left.
    pub fn end_half_closed(&mut self, peer: PeerId, at_once: bool) {
        let Some(member) = self.peers.find_mut(peer).filter(|member| member.peer.read.has_ended) else { return };
        if at_once {
            return self.end(peer, End::closed());
        }
        member.ends_when_sent = true;
        member.schedule(&mut self.ready);
    }

    /// Ends a connection. The peer receives the reason if possible, its queue is dropped, and [`Event::Gone`] follows.
    pub fn disconnect(&mut self, peer: PeerId, reason: &str) {
        if let Some(member) = self.peers.find_mut(peer) {
            member.peer.connection.outbox().clear();
            member.peer.connection.send_error(reason);
            self.end(peer, End::new(format!("disconnected by this side: {reason}")));
        }
    }

    /// Whether larger messages of a peer wait while the application defers them ([`Hub::set_large_messages`]). True for new peers.
    pub fn set_deferrable(&mut self, peer: PeerId, deferrable: bool) {
        if let Some(member) = self.peers.find_mut(peer).filter(|member| member.flow.deferrable != deferrable) {
            member.flow.deferrable = deferrable;
            if member.flow.permit == ReadPermit::Deferred {
                member.flow.permit = ReadPermit::Open;
                member.schedule(&mut self.ready);
            }
        }
    }

    /// Back-pressure on all deferrable peers: which messages of more than 4 KiB may begin, streamed bodies excepted. Begun ones are not read
    /// on either. [`Event::HungUp`] reports peers that end meanwhile.
    pub fn set_large_messages(&mut self, large: LargeMessages) {
        self.now = Instant::now();
        self.reassembly.set_large(large, &mut self.peers);
        self.move_reassembly_queue();
    }

    /// Whether a message of this peer is deferred.
    pub fn is_deferred(&self, peer: PeerId) -> bool {
        self.peers.find(peer).is_some_and(|member| member.flow.permit == ReadPermit::Deferred)
    }

    /// Bytes of a peer's incomplete message after the last poll, streamed bodies excepted.
    pub fn reassembly_bytes(&self, peer: PeerId) -> Option<usize> {
        self.peers.find(peer).map(|member| member.flow.reassembly_bytes)
    }

    /// Lets peers go on whose messages fit into the reassembly budget now, and disconnects some if the queue has stalled for too long.
    fn move_reassembly_queue(&mut self) {
        let is_stuck = self.reassembly.move_queue(&mut self.peers, &mut self.ready, &mut self.events, self.now);
        // A peer that seems silent may have sent what the kernel hasn't reported yet.
        if is_stuck && !self.more_ready {
            let stalled = self.reassembly.stalled(&self.peers, self.now);
            if stalled.is_empty() {
                self.end_largest();
            }
            for id in stalled {
                self.end_incomplete(id, "it has stopped in the middle of a message, and others wait for the memory");
            }
        }
        self.next_timer = self.next_timer.into_iter().chain(self.reassembly.deadline()).min();
    }

    /// Disconnects the peer with the largest incomplete message.
    fn end_largest(&mut self) {
        let largest = self.peers.iter().max_by_key(|member| member.flow.reassembly_bytes);
        if let Some(largest) = largest.map(|member| member.peer.id) {
            let why = "incomplete messages take too much memory, others wait, and this one is the largest";
            self.end_incomplete(largest, why);
        }
    }

    fn end_incomplete(&mut self, id: PeerId, why: &str) {
        if let Some(Member { peer, flow, .. }) = self.peers.find(id) {
            let bytes = flow.reassembly_bytes;
            tracing::warn!(peer = %id, address = %peer.address, bytes, "peer disconnected in the middle of a message: {why}");
        }
        self.disconnect(id, why);
    }

    /// The peer with that routing id.
    pub fn peer_of(&self, routing_id: &[u8]) -> Option<PeerId> {
        self.routing.get(routing_id).copied()
    }

    /// Whether anything is queued for a ready peer.
    pub fn has_output(&self) -> bool {
        self.peers.iter().any(|member| member.peer.is_ready() && member.peer.connection.outbox_ref().has_output())
    }

    /// Whether the kernel still holds bytes that a ready peer's system hasn't acknowledged, as far as it is known: they are lost if this side
    /// closes, and the peer sends something then. No event says when they are gone.
    pub fn has_untaken(&self) -> bool {
        let mut ready = self.peers.iter().filter(|member| member.peer.is_ready());
        ready.any(|member| towpath_outq::untaken_bytes(&member.peer.fd).is_some_and(|bytes| bytes > 0))
    }

    /// Counts from now on the messages that go with their peer instead of being sent.
    pub(crate) fn count_lost(&mut self) {
        self.lost = Some(Unsent::default());
    }

    /// Messages queued for ready peers, and those lost with others since [`Hub::count_lost`].
    pub(crate) fn unsent(&self) -> Unsent {
        let mut unsent = self.lost.unwrap_or_default();
        for member in self.peers.iter().filter(|member| member.peer.is_ready()) {
            unsent += Unsent::in_outbox(member.peer.connection.outbox_ref());
        }
        unsent
    }

    /// Sends what is queued and closes all peers, within `linger`; [`Duration::MAX`] is without limit. Gives what could not be sent: still
    /// queued, or lost with its peer. Events that come meanwhile are dropped.
    pub fn close(mut self, linger: Duration) -> Result<Unsent, SocketError> {
        // A time beyond what a clock can represent never comes.
        let until = Instant::now().checked_add(linger);
        self.count_lost();
        loop {
            // Messages that fit leave at once, without the wait of a poll.
            self.run(false);
            self.events.clear();
            let waiting = self.has_output();
            let left = until.map_or(CLOSING_WAIT, |until| until.saturating_duration_since(Instant::now()));
            if !waiting || left.is_zero() {
                return Ok(self.unsent());
            }
            self.poll(Some(left.min(CLOSING_WAIT)))?;
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Hub");
        out.field("socket_type", &self.options.socket_type).field("peers", &self.peers.len());
        out.field("events", &self.events.len()).finish_non_exhaustive()
    }
}

impl AsFd for Hub {
    /// Readable when [`Hub::poll`] has something to do, apart from its timers.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
