//! The batched interface: one thread owns all peers of a socket and drives them by turns.

mod busy_poll;
pub(crate) mod connect;
mod event_loop;
mod flow;
mod lifecycle;

use crate::disk::prefetch::Warmer;
use crate::error::SocketError;
use crate::event::Event;
use crate::net::endpoint::Endpoint;
use crate::net::resolver::Resolver;
use crate::net::transport::Listener;
use crate::net::unacked::Unacknowledged;
use crate::options::HubOptions;
use crate::peer::buffers::Pool;
use crate::peer::read::READ_AHEAD_BYTES_MAX;
use crate::peer::table::Peers;
use crate::peer::{End, Peer, PeerId, PeerInfo};
use crate::unsent::Unsent;
use crate::waker::Waker;
use busy_poll::BusyPoll;
use bytes::Bytes;
use connect::Connector;
use flow::read_budget::Share;
use flow::reassembly::Begun;
pub use flow::reassembly::LargeMessages;
pub(crate) use flow::reassembly::Passage;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_buffers::PageBuffer;
use towpath_zmtp::Config;

/// No more peers are read in a turn once this many events wait for the application.
pub(crate) const EVENTS_MAX: usize = 16 * 1024;

/// Deadlines are looked through no more often than this, and with many peers less often, so that it costs little.
const TIMER_GRAIN: Duration = Duration::from_millis(10);
const TIMER_GRAIN_PER_PEER: Duration = Duration::from_micros(5);

/// The longest wait of a hub that is being closed.
const CLOSING_TURN: Duration = Duration::from_millis(50);

const WAKER_TOKEN: u64 = u64::MAX;
const LISTENER_TOKENS: u64 = u64::MAX - 1_000_000;

struct Listening {
    listener: Listener,
    pending: bool,
    rest_until: Option<Instant>,
}

impl Listening {
    /// Whether somebody may be there to be accepted. While accepting rests, whoever comes waits: to look again and again would
    /// take a processor's time for nothing.
    fn is_due(&self, now: Instant) -> bool {
        self.pending && self.rest_until.is_none_or(|until| now >= until)
    }
}

/// All peers of one socket, driven by one thread: no lock, channel, task or timer a message.
///
/// Call [`Hub::poll`], take what [`Hub::next_event`] gives, [`Hub::send`], and so on. What was sent in between leaves
/// together at the next turn. See the crate's page for an example.
pub struct Hub {
    pub(crate) options: HubOptions,
    config: Arc<Config>,
    epoll: OwnedFd,
    busy_poll: BusyPoll,
    waker: Waker,
    /// The kernel may have more than the last wait took.
    more_ready: bool,
    pub(crate) peers: Peers,
    listeners: Vec<Listening>,
    pub(crate) connectors: Vec<Connector>,
    pub(crate) resolver: Resolver,
    warmer: Warmer,
    runnable: VecDeque<PeerId>,
    /// Who waits for a buffer, the longest first; and whether one may have come back, so that they are to try again.
    starved: VecDeque<PeerId>,
    may_feed: bool,
    events: VecDeque<Event>,
    routing: HashMap<Bytes, PeerId>,
    next_routing_id: u32,
    per_address: HashMap<IpAddr, usize>,
    handshakes: usize,
    /// What waited for peers when they went, if that is counted.
    pub(crate) lost: Option<Unsent>,
    begun: Begun,
    /// What that may come to.
    reassembly_limit: usize,
    /// What waits for all peers.
    queued_bytes: usize,
    pool: Pool,
    scratch: PageBuffer,
    share: Share,
    pub(crate) next_timer: Option<Instant>,
    last_scan: Instant,
    unacknowledged: Unacknowledged,
    pub(crate) now: Instant,
}

impl Hub {
    /// A socket without peers.
    ///
    /// # Errors
    /// [`SocketError::Option`] for options that can't work, or if the system has no event queue for it.
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
            warmer: Warmer::new(waker.clone()),
            epoll,
            busy_poll: BusyPoll::new(options.busy_poll),
            waker,
            more_ready: false,
            peers: Peers::default(),
            listeners: Vec::new(),
            connectors: Vec::new(),
            runnable: VecDeque::new(),
            starved: VecDeque::new(),
            may_feed: false,
            events: VecDeque::new(),
            routing: HashMap::new(),
            next_routing_id: 1,
            per_address: HashMap::new(),
            handshakes: 0,
            lost: None,
            begun: Begun::new(&options),
            reassembly_limit: options.reassembly_limit(),
            queued_bytes: 0,
            scratch: PageBuffer::zeroed(READ_AHEAD_BYTES_MAX),
            share: Share::new(now),
            next_timer: None,
            last_scan: now,
            unacknowledged: Unacknowledged::default(),
            now,
            options,
        })
    }

    /// Listens; gives the endpoint with the real port. May be called several times.
    pub fn bind(&mut self, endpoint: &Endpoint) -> Result<Endpoint, SocketError> {
        let (listener, endpoint) = Listener::bind(endpoint, &self.waker, &self.options.congestion)?;
        if let Some(fd) = listener.fd() {
            let token = LISTENER_TOKENS + self.listeners.len() as u64;
            epoll::add(
                &self.epoll,
                fd,
                epoll::EventData::new_u64(token),
                epoll::EventFlags::IN | epoll::EventFlags::ET,
            )?;
        }
        self.listeners.push(Listening { listener, pending: false, rest_until: None });
        Ok(endpoint)
    }

    /// Connects, and connects again with backoff whenever the connection is lost. May be called several times. The addresses of a name
    /// are tried one after the other, all of them before an attempt has failed; a thread looks them up, which no turn waits for.
    pub fn connect(&mut self, endpoint: &Endpoint) -> Result<(), SocketError> {
        self.connectors.push(Connector::new(endpoint.clone()));
        self.now = Instant::now();
        self.start_connecting(self.connectors.len() - 1);
        Ok(())
    }

    /// Connects, at the first address of a name that takes it, and leaves it at that: whoever chooses between endpoints hears of the outcome by [`Event::Ready`], and then
    /// [`Event::Gone`], or by [`Event::Failed`].
    pub fn connect_once(&mut self, endpoint: &Endpoint) {
        self.now = Instant::now();
        self.attempt_once(endpoint);
    }

    /// Ends [`Hub::poll`]'s wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Sends what waits, waits for something to happen (at most `timeout`), and takes it in. Returns early when woken, and at
    /// once while events from an earlier turn have not been taken.
    pub fn poll(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.now = Instant::now();
        self.share.end(self.now);
        self.peers.release_freed();
        self.run(false);
        let is_due = self.begun.is_due(self.now) || self.accepts_now();
        let timeout = if !self.events.is_empty() || !self.runnable.is_empty() || is_due {
            Some(Duration::ZERO)
        } else {
            let timer =
                self.next_timer.map(|at| at.saturating_duration_since(self.now).saturating_add(self.timer_grain()));
            timeout.into_iter().chain(timer).min()
        };
        self.wait(timeout)?;
        self.now = Instant::now();
        self.share.begin(self.now);
        for index in 0..self.listeners.len() {
            self.accept(index);
        }
        self.run(true);
        self.share.read(self.events.len());
        self.on_time();
        Ok(())
    }

    /// Sends what waits, as far as the kernel takes it, without a look at what has arrived.
    pub fn flush(&mut self) {
        self.now = Instant::now();
        self.run(false);
    }

    /// Whether another turn would find something to do at once.
    pub fn is_busy(&self) -> bool {
        let is_due = self.accepts_now() || self.begun.is_due(self.now);
        !self.runnable.is_empty() || !self.events.is_empty() || self.more_ready || is_due
    }

    fn accepts_now(&self) -> bool {
        self.listeners.iter().any(|listening| listening.is_due(self.now))
    }

    /// When a turn is wanted even if nothing happens: for a caller that waits on the hub's descriptor itself.
    pub fn deadline(&self) -> Option<Instant> {
        let timer = self.next_timer.and_then(|at| at.checked_add(self.timer_grain()));
        if self.begun.is_due(self.now) { Some(self.now) } else { timer }
    }

    fn timer_grain(&self) -> Duration {
        let peers = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        TIMER_GRAIN.saturating_add(TIMER_GRAIN_PER_PEER.saturating_mul(peers))
    }

    /// The next event of the past turn.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Changes [`HubOptions::read_budget_bytes`], from the next turn on.
    pub fn set_read_budget_bytes(&mut self, bytes: usize) {
        self.options.read_budget_bytes = bytes.max(1);
    }

    /// Keeps the place of a peer that is gone ([`PeerId::slot`]) from being given to another, until [`Hub::release_slot`]: something of
    /// it is still to be done under its name. To be called before the turn behind [`Event::Gone`]. False if the place is another's
    /// already, or too many are kept.
    pub fn reserve_slot(&mut self, gone: PeerId) -> bool {
        self.peers.reserve_slot(gone)
    }

    /// Gives a place back that was kept.
    pub fn release_slot(&mut self, gone: PeerId) {
        self.peers.release_slot(gone);
    }

    /// Stops or resumes reading from a peer: back-pressure, which TCP carries to it. [`Event::HungUp`] tells if it ends meanwhile.
    /// What has been read of a streamed body is still handed over: the buffer is for others. So is the rest of a message that is read
    /// although there is no room for it ([`HubOptions::reassembly_bytes_max`]), since nobody else's is until that one is whole.
    pub fn pause_reading(&mut self, peer: PeerId, paused: bool) {
        // Its deadlines begin anew when reading does, from now and not from the last turn.
        let now = Instant::now();
        if let Some(peer) = self.peers.find_mut(peer).filter(|peer| peer.paused != paused) {
            peer.paused = paused;
            peer.connection.set_reading(!paused, now);
            if paused {
                peer.hand_over(&self.pool, &mut self.events);
            }
            if paused && peer.hung_up && peer.is_ready() {
                self.events.push_back(Event::HungUp { peer: peer.id });
            }
            schedule(&mut self.runnable, peer);
            // A peer that stays silent has no turn of reading, which would take its deadline in.
            self.next_timer = self.next_timer.into_iter().chain(peer.connection.deadline()).min();
        }
    }

    /// From now on a peer is one that reads as long as it lives, and says something now and then: if nothing of what waits for it
    /// gets there and it isn't heard, for twice the heartbeat's interval and timeout, it is given up. Nothing else tells of its end while
    /// bytes wait, since no PING goes behind them.
    pub fn detect_stalls(&mut self, peer: PeerId) {
        if let Some(peer) = self.peers.find_mut(peer) {
            peer.connection.detect_stalls(Instant::now());
        }
    }

    /// Answers [`Event::Authenticate`]: the peer's handshake goes on, or the peer is told that it was refused.
    pub fn authenticate(&mut self, peer: PeerId, accept: bool) {
        let Some(target) = self.peers.find_mut(peer) else { return };
        if accept {
            target.connection.accept();
            schedule(&mut self.runnable, target);
        } else {
            let end = End::from(target.connection.refuse());
            self.end(peer, end);
        }
    }

    /// Ends a connection: the peer is told why if it can still be, what waits is dropped, [`Event::Gone`] follows.
    pub fn disconnect(&mut self, peer: PeerId, reason: &str) {
        if let Some(target) = self.peers.find_mut(peer) {
            target.connection.outbox().clear();
            target.connection.send_error(reason);
            self.end(peer, End::new(format!("disconnected by this side: {reason}")));
        }
    }

    /// Bytes of messages of a peer's that have begun to arrive and aren't whole, at the end of the last turn. Not of bodies that are
    /// streamed.
    pub fn reassembly_bytes(&self, peer: PeerId) -> Option<usize> {
        self.peers.find(peer).map(|peer| peer.reassembly_bytes)
    }

    /// What is known of a peer that is ready.
    pub fn peer(&self, peer: PeerId) -> Option<PeerInfo> {
        self.peers.find(peer)?.info(self.config.mechanism.name())
    }

    /// All peers that are ready.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.peers.iter().filter(|peer| peer.is_ready()).map(|peer| peer.id)
    }

    /// The peer of that routing id.
    pub fn peer_of(&self, routing_id: &[u8]) -> Option<PeerId> {
        self.routing.get(routing_id).copied()
    }

    /// Whether anything waits to leave for a peer.
    pub fn has_output(&self) -> bool {
        self.peers.iter().any(|peer| peer.is_ready() && peer.connection.outbox_ref().has_output())
    }

    /// Counts from now on what goes with its peer instead of being sent.
    pub(crate) fn count_lost(&mut self) {
        self.lost = Some(Unsent::default());
    }

    /// What waits for peers that are ready, and what went with others since [`Hub::count_lost`].
    pub(crate) fn unsent(&self) -> Unsent {
        let mut unsent = self.lost.unwrap_or_default();
        for peer in self.peers.iter().filter(|peer| peer.is_ready()) {
            unsent += Unsent::of(peer.connection.outbox_ref());
        }
        unsent
    }

    /// Sends what waits to all peers and closes them, in `linger` at most; [`Duration::MAX`] is without end. Gives what could not be
    /// sent: it waited still, or its peer went. Events that come meanwhile are dropped.
    pub fn close(mut self, linger: Duration) -> Result<Unsent, SocketError> {
        // What no clock counts to never comes.
        let until = Instant::now().checked_add(linger);
        self.count_lost();
        loop {
            // What fits leaves at once: a turn's wait is only for what doesn't.
            self.run(false);
            self.events.clear();
            let waiting = self.has_output();
            let left = until.map_or(CLOSING_TURN, |until| until.saturating_duration_since(Instant::now()));
            if !waiting || left.is_zero() {
                return Ok(self.unsent());
            }
            self.poll(Some(left.min(CLOSING_TURN)))?;
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

fn schedule(runnable: &mut VecDeque<PeerId>, peer: &mut Peer) {
    if !peer.scheduled {
        peer.scheduled = true;
        runnable.push_back(peer.id);
    }
}
