//! The batched interface: one thread owns all peers of a socket and drives them by turns.

use crate::buffer_pool::BufferPool;
use crate::connector::Connector;
use crate::endpoint::Endpoint;
use crate::error::{SendError, SocketError};
use crate::event::Event;
use crate::message::{Frame, Message};
use crate::options::HubOptions;
use crate::peer::{End, Origin, Peer, PeerId, PeerInfo};
use crate::peers::Peers;
use crate::read::READ_AHEAD_BYTES_MAX;
use crate::transport::{Address, Listener};
use crate::waker::Waker;
use bytes::{BufMut, Bytes, BytesMut};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_zmtp::{Body, Config, Connection, Queued, SocketType};

/// Readiness events taken from the kernel at a time.
const READY_MAX: usize = 256;

/// No more peers are read in a turn once this many events wait for the application.
pub(crate) const EVENTS_MAX: usize = 16 * 1024;

/// Deadlines are looked through no more often than this.
const TIMER_GRAIN: Duration = Duration::from_millis(10);

/// How long accepting rests when the process or the machine is out of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Connections accepted before peers that are already here get their turn.
const ACCEPTS_PER_TURN: usize = 64;

const WAKER_TOKEN: u64 = u64::MAX;
const LISTENER_TOKENS: u64 = u64::MAX - 1_000_000;

struct Listening {
    listener: Listener,
    pending: bool,
    rest_until: Option<Instant>,
}

/// All peers of one socket, driven by one thread: no lock, channel, task or timer a message.
///
/// Call [`Hub::turn`], take what [`Hub::next_event`] gives, [`Hub::send`], and so on. What was sent in between leaves
/// together at the next turn. See the crate's page for an example.
pub struct Hub {
    pub(crate) options: HubOptions,
    config: Arc<Config>,
    epoll: OwnedFd,
    waker: Waker,
    /// The kernel may have more than the last wait took.
    more_ready: bool,
    pub(crate) peers: Peers,
    listeners: Vec<Listening>,
    pub(crate) connectors: Vec<Connector>,
    runnable: VecDeque<PeerId>,
    events: VecDeque<Event>,
    routing: HashMap<Bytes, PeerId>,
    next_routing_id: u32,
    per_address: HashMap<IpAddr, usize>,
    handshakes: usize,
    pool: BufferPool,
    scratch: Box<[u8]>,
    pub(crate) next_timer: Option<Instant>,
    last_scan: Instant,
    pub(crate) now: Instant,
}

impl Hub {
    /// A socket without peers.
    pub fn new(options: HubOptions) -> Result<Hub, SocketError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::new()?;
        epoll::add(&epoll, &waker, epoll::EventData::new_u64(WAKER_TOKEN), epoll::EventFlags::IN)?;
        let now = Instant::now();
        Ok(Hub {
            config: Arc::new(options.connection_config()),
            pool: BufferPool::new(options.body_buffers, waker.clone()),
            options,
            epoll,
            waker,
            more_ready: false,
            peers: Peers::default(),
            listeners: Vec::new(),
            connectors: Vec::new(),
            runnable: VecDeque::new(),
            events: VecDeque::new(),
            routing: HashMap::new(),
            next_routing_id: 1,
            per_address: HashMap::new(),
            handshakes: 0,
            scratch: vec![0; READ_AHEAD_BYTES_MAX].into_boxed_slice(),
            next_timer: None,
            last_scan: now,
            now,
        })
    }

    /// Listens; gives the endpoint with the real port. May be called several times.
    pub fn bind(&mut self, endpoint: &Endpoint) -> Result<Endpoint, SocketError> {
        let (listener, endpoint) = Listener::bind(endpoint, &self.waker)?;
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

    /// Connects, and connects again with backoff whenever the connection is lost. May be called several times.
    pub fn connect(&mut self, endpoint: &Endpoint) -> Result<(), SocketError> {
        self.connectors.push(Connector::new(endpoint.clone()));
        self.now = Instant::now();
        self.start_connecting(self.connectors.len() - 1);
        Ok(())
    }

    /// Ends [`Hub::turn`]'s wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Sends what waits, waits for something to happen (at most `timeout`), and takes it in. Returns early when woken, and at
    /// once while events from an earlier turn have not been taken.
    pub fn turn(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        self.now = Instant::now();
        self.run(false);
        let timeout =
            if !self.events.is_empty() || !self.runnable.is_empty() || self.listeners.iter().any(|l| l.pending) {
                Some(Duration::ZERO)
            } else {
                let timer = self.next_timer.map(|at| at.saturating_duration_since(self.now) + TIMER_GRAIN);
                timeout.into_iter().chain(timer).min()
            };
        self.wait(timeout)?;
        self.now = Instant::now();
        for index in 0..self.listeners.len() {
            self.accept(index);
        }
        self.run(true);
        self.on_time();
        Ok(())
    }

    /// Whether another turn would find something to do at once.
    pub fn is_busy(&self) -> bool {
        !self.runnable.is_empty()
            || !self.events.is_empty()
            || self.more_ready
            || self.listeners.iter().any(|listening| listening.pending)
    }

    /// When a turn is wanted even if nothing happens: for a caller that waits on the hub's descriptor itself.
    pub fn deadline(&self) -> Option<Instant> {
        self.next_timer.map(|at| at + TIMER_GRAIN)
    }

    /// The next event of the past turn.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Appends a message to a peer's queue. It leaves at the next turn. A full queue gives the message back; a message larger
    /// than the whole queue is taken when the queue is empty.
    pub fn send(&mut self, peer: PeerId, message: Message) -> Result<(), SendError> {
        let bound = self.options.send_queue_bytes;
        let Some(target) = self.peers.find_mut(peer).filter(|target| target.is_ready()) else {
            return Err(SendError::Gone(message));
        };
        if target.connection.outbox_ref().queued().memory_bytes >= bound {
            target.was_full = true;
            return Err(SendError::Full(message));
        }
        let bodies = message.frames.into_iter().map(Frame::into_body).collect::<smallvec::SmallVec<[Body<_>; 4]>>();
        target.connection.send(bodies, message.tag);
        schedule(&mut self.runnable, target);
        Ok(())
    }

    /// Whether a message would be taken now. If not, [`Event::Room`] tells when.
    pub fn has_room(&mut self, peer: PeerId) -> bool {
        let bound = self.options.send_queue_bytes;
        self.peers.find_mut(peer).is_some_and(|peer| {
            peer.was_full = peer.connection.outbox_ref().queued().memory_bytes >= bound;
            peer.is_ready() && !peer.was_full
        })
    }

    /// What waits for a peer.
    pub fn queued(&self, peer: PeerId) -> Queued {
        self.peers.find(peer).map(|peer| peer.connection.outbox_ref().queued()).unwrap_or_default()
    }

    /// Removes messages with this tag that wait for a peer and have not begun to leave; gives their number. Their file ranges
    /// get no [`Event::FileSent`].
    pub fn take_back(&mut self, peer: PeerId, tag: u64) -> usize {
        self.peers.find_mut(peer).map_or(0, |peer| peer.connection.outbox().take_back(tag))
    }

    /// Removes all messages that wait for a peer and have not begun to leave; gives what was removed.
    pub fn clear_queue(&mut self, peer: PeerId) -> Queued {
        self.peers.find_mut(peer).map(|peer| peer.connection.outbox().clear()).unwrap_or_default()
    }

    /// Stops or resumes reading from a peer: back-pressure, which TCP carries to it.
    pub fn pause_reading(&mut self, peer: PeerId, paused: bool) {
        let now = self.now;
        if let Some(peer) = self.peers.find_mut(peer) {
            peer.paused = paused;
            peer.connection.set_reading(!paused, now);
            schedule(&mut self.runnable, peer);
        }
    }

    /// Answers [`Event::Authenticate`].
    pub fn admit(&mut self, peer: PeerId, welcome: bool) {
        let Some(target) = self.peers.find_mut(peer) else { return };
        if welcome {
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
            target.connection.say_why(reason);
            self.end(peer, End::new(format!("disconnected by this side: {reason}")));
        }
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

    /// Sends what waits to all peers and closes them, in `linger` at most. Events that come meanwhile are dropped.
    pub fn close(mut self, linger: Duration) -> Result<(), SocketError> {
        let until = Instant::now() + linger;
        while self.peers.iter().any(|peer| peer.is_ready() && peer.connection.outbox_ref().has_output()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.turn(Some(left.min(Duration::from_millis(50))))?;
            self.events.clear();
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), SocketError> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut ready = [const { MaybeUninit::<epoll::Event>::uninit() }; READY_MAX];
        let ready = match epoll::wait(&self.epoll, &mut ready[..], timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => &mut [],
            Err(errno) => return Err(errno.into()),
        };
        self.more_ready = ready.len() == READY_MAX;
        for event in ready {
            let flags = event.flags;
            match event.data.u64() {
                WAKER_TOKEN => {
                    self.waker.clear();
                    // A buffer may have come back, or somebody may have come by inproc.
                    for peer in self.peers.iter_mut().filter(|peer| peer.starved) {
                        peer.starved = false;
                        schedule(&mut self.runnable, peer);
                    }
                    for listening in self.listeners.iter_mut().filter(|l| l.listener.fd().is_none()) {
                        listening.pending = true;
                    }
                }
                token if token >= LISTENER_TOKENS => {
                    if let Some(listening) = self.listeners.get_mut((token - LISTENER_TOKENS) as usize) {
                        listening.pending = true;
                    }
                }
                token => {
                    let Some(peer) = self.peers.find_mut(PeerId::from_token(token)) else { continue };
                    let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
                    peer.hung_up |= failed || flags.contains(epoll::EventFlags::RDHUP);
                    peer.readable |= peer.hung_up || flags.contains(epoll::EventFlags::IN);
                    peer.writable |= failed || flags.contains(epoll::EventFlags::OUT);
                    schedule(&mut self.runnable, peer);
                }
            }
        }
        Ok(())
    }

    /// Gives every peer that has something to do one turn.
    fn run(&mut self, reading: bool) {
        for _ in 0..self.runnable.len() {
            let Some(id) = self.runnable.pop_front() else { break };
            let Some(peer) = self.peers.find_mut(id) else { continue };
            peer.scheduled = false;
            let was_ready = peer.is_ready();
            let outcome = run_peer(
                peer,
                reading && self.events.len() < EVENTS_MAX,
                &mut self.scratch,
                &self.pool,
                &mut self.events,
                self.now,
            );
            if reading && let Some(deadline) = peer.connection.deadline() {
                self.next_timer = Some(self.next_timer.map_or(deadline, |at| at.min(deadline)));
            }
            if peer.was_full && peer.connection.outbox_ref().queued().memory_bytes < self.options.send_queue_bytes / 2 {
                peer.was_full = false;
                self.events.push_back(Event::Room { peer: id });
            }
            if peer.wants_to_read() || peer.wants_to_write() {
                schedule(&mut self.runnable, peer);
            }
            if !was_ready && peer.is_ready() {
                self.on_ready(id);
            }
            if let Err(end) = outcome {
                self.end(id, end);
            }
        }
    }

    fn on_ready(&mut self, id: PeerId) {
        self.handshakes = self.handshakes.saturating_sub(1);
        let Some(peer) = self.peers.find_mut(id) else { return };
        if let Origin::Connector(index) = peer.origin
            && let Some(connector) = self.connectors.get_mut(index)
        {
            connector.succeeded();
        }
        let own = peer.properties.as_ref().map(|properties| properties.routing_id.clone()).unwrap_or_default();
        let routing_id = if own.is_empty() {
            let mut made_up = BytesMut::with_capacity(5);
            made_up.put_u8(0);
            made_up.put_u32(self.next_routing_id);
            self.next_routing_id = self.next_routing_id.wrapping_add(1);
            made_up.freeze()
        } else {
            own
        };
        peer.routing_id = routing_id.clone();
        tracing::debug!(peer = %id, address = %peer.address, "ready");
        let address = peer.address.to_string();
        if let Some(former) = self.routing.insert(routing_id, id)
            && former != id
            && self.options.socket_type == SocketType::Router
        {
            tracing::info!(former = %former, newcomer = %id, %address, "a routing id is handed over to a new connection");
            self.disconnect(former, "a new connection took over its routing id");
        }
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            let now = self.now;
            let Some(listening) = self.listeners.get_mut(index) else { return };
            if listening.rest_until.is_some_and(|until| now < until) || !listening.pending {
                return;
            }
            listening.rest_until = None;
            match listening.listener.accept() {
                Ok(Some((fd, address))) => self.take_in(fd, address),
                Ok(None) => listening.pending = false,
                Err(error) if matches!(error.kind(), std::io::ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    let until = now + ACCEPT_REST;
                    listening.rest_until = Some(until);
                    listening.pending = false;
                    self.next_timer = Some(self.next_timer.map_or(until, |at| at.min(until)));
                    tracing::warn!(%error, "accepting connections rests for a moment; raise the limit of open files?");
                }
            }
        }
    }

    fn take_in(&mut self, fd: OwnedFd, address: Address) {
        let from_there = address.ip().map_or(0, |ip| self.per_address.get(&ip).copied().unwrap_or(0));
        if self.peers.len() >= self.options.max_peers || from_there >= self.options.max_peers_per_address {
            tracing::warn!(%address, peers = self.peers.len(), from_there, "a connection is refused: too many");
            return;
        }
        if self.handshakes >= self.options.max_handshakes {
            let unready = self.peers.iter().filter(|peer| !peer.is_ready() && peer.origin == Origin::Accepted);
            if let Some(oldest) = unready.min_by_key(|peer| peer.connected_at).map(|peer| peer.id) {
                self.end(oldest, End::new("too many handshakes are under way, and this was the oldest"));
            }
        }
        self.add_peer(fd, address, Origin::Accepted, false);
    }

    pub(crate) fn add_peer(&mut self, fd: OwnedFd, address: Address, origin: Origin, connecting: bool) {
        crate::transport::tune(&fd, &address, &self.options.congestion);
        let id = self.peers.next_id();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if let Err(errno) = epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(id.token()), flags) {
            tracing::warn!(%address, error = %std::io::Error::from(errno), "a connection can't be watched");
            return;
        }
        if let (Origin::Accepted, Some(ip)) = (origin, address.ip()) {
            *self.per_address.entry(ip).or_default() += 1;
        }
        self.handshakes += 1;
        let connection = Connection::new(self.config.clone(), self.now);
        let deadline = connection.deadline();
        self.next_timer = self.next_timer.into_iter().chain(deadline).min();
        let mut peer = Peer::new(id, fd, address, origin, connection, self.now);
        peer.connecting = connecting;
        self.peers.insert(peer);
    }

    /// Removes a peer, whatever state it is in.
    pub(crate) fn end(&mut self, id: PeerId, end: End) {
        let Some(mut peer) = self.peers.remove(id) else { return };
        if peer.writable && !peer.connecting {
            // What is left to say (an ERROR command) leaves now or never.
            let _ = peer.write(&mut self.scratch, &mut self.events);
        }
        if let (Origin::Accepted, Some(ip)) = (peer.origin, peer.address.ip())
            && let Some(count) = self.per_address.get_mut(&ip)
        {
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&ip);
            }
        }
        let connecting = matches!(peer.origin, Origin::Connector(_));
        if peer.is_ready() {
            if self.routing.get(&peer.routing_id) == Some(&id) {
                self.routing.remove(&peer.routing_id);
            }
            self.events.push_back(Event::Gone { peer: id, reason: end.reason });
        } else {
            self.handshakes = self.handshakes.saturating_sub(1);
            if end.misbehaved {
                tracing::warn!(address = %peer.address, reason = end.reason, "refused");
            } else {
                tracing::debug!(address = %peer.address, reason = end.reason, "a handshake failed");
            }
            let address = peer.address.to_string();
            self.events.push_back(Event::Failed { address, reason: end.reason, connecting });
        }
        if let Origin::Connector(index) = peer.origin {
            self.connect_later(index);
        }
    }

    fn on_time(&mut self) {
        let now = self.now;
        if self.next_timer.is_none_or(|at| now < at) || now < self.last_scan + TIMER_GRAIN {
            return;
        }
        self.last_scan = now;
        let mut ended = Vec::new();
        let mut next: Option<Instant> = None;
        for peer in self.peers.iter_mut() {
            if peer.connection.deadline().is_some_and(|deadline| deadline <= now) {
                if peer.is_ready() && peer.readable {
                    // Octets are here that this side had no room to take: the silence isn't the peer's.
                    peer.connection.heard(now);
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
        self.next_timer = next;
        for (id, end) in ended {
            self.end(id, end);
        }
        self.retry_connectors();
    }
}

impl AsFd for Hub {
    /// Readable when [`Hub::turn`] has something to do, apart from its timers.
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

fn run_peer(
    peer: &mut Peer,
    reading: bool,
    scratch: &mut [u8],
    pool: &BufferPool,
    events: &mut VecDeque<Event>,
    now: Instant,
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
        peer.read(scratch, pool, events, now)?;
    }
    if peer.wants_to_write() {
        peer.write(scratch, events)?;
    }
    Ok(())
}
