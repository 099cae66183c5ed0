//! Passing accepted connections on to another server, byte by byte: a thread with a runtime of its own.
//!
//! It connects, sends a header that says who the peer is ([`header`]), and copies both ways ([`copy`]). Nothing is connected before the peer's first
//! byte has come: a connection that begins with a header was relayed already, and isn't relayed on, so that there are no loops.

mod copy;
pub(crate) mod header;

use crate::net::address::Address;
use crate::net::endpoint::Endpoint;
use crate::net::resolver::numeric_address;
use crate::net::tenant::Tenant;
use crate::net::transport::{self, ADDRESSES_MAX, Target};
use crate::options::{Congestion, HubOptions};
use crate::random::system_random;
use crate::waker::Waker;
pub use header::RelayKey;
use header::{FIRST_BYTE, Header};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Timeout for the other server to be found and to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Threads that look up names.
const LOOKUPS_MAX: usize = 2;

/// Where connections are relayed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayTo {
    /// Endpoint of the other server.
    pub endpoint: Endpoint,
    /// Its key.
    pub key: RelayKey,
    /// Endpoint of this side, for people.
    pub through: String,
}

/// Sums of relayed connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStats {
    /// Connections at the moment, those included that are being connected.
    pub connections: usize,
    /// Connections that were relayed since the start.
    pub relayed: u64,
    /// Connections that could not be relayed since the start.
    pub failed: u64,
    /// Bytes from peers.
    pub bytes_in: u64,
    /// Bytes to peers.
    pub bytes_out: u64,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicUsize,
    relayed: AtomicU64,
    failed: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// Bytes that wait for one side to take them.
    held: AtomicUsize,
}

/// State that the hub and the thread share.
#[derive(Debug)]
struct Shared {
    counters: Counters,
    per_address: Mutex<HashMap<Tenant, usize>>,
    connections_max: usize,
    per_address_max: usize,
    handshake_timeout: Duration,
    congestion: Congestion,
    waker: Waker,
}

/// A connection's place within the limits.
#[derive(Debug)]
struct Place {
    tenant: Tenant,
    shared: Arc<Shared>,
}

impl Place {
    fn take(shared: &Arc<Shared>, address: &Address) -> Option<Place> {
        let tenant = Tenant::of_address(address);
        if shared.counters.connections.load(Ordering::Relaxed) >= shared.connections_max {
            return None;
        }
        let mut all = shared.per_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.get(&tenant).copied().unwrap_or(0);
        if count >= shared.per_address_max && tenant != Tenant::Inproc {
            return None;
        }
        all.insert(tenant.clone(), count + 1);
        shared.counters.connections.fetch_add(1, Ordering::Relaxed);
        drop(all);
        Some(Place { tenant, shared: shared.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.counters.connections.fetch_sub(1, Ordering::Relaxed);
        let mut all = self.shared.per_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = all.entry(self.tenant.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// An accepted connection.
struct Accepted {
    fd: OwnedFd,
    address: Address,
    place: Place,
}

enum Command {
    /// Relay to there from now on; connections to elsewhere end.
    To(Option<Arc<RelayTo>>),
    /// Relay this one.
    Relay(Accepted),
}

/// The relay of a hub.
pub(crate) struct Relay {
    commands: Option<UnboundedSender<Command>>,
    given_back: mpsc::Receiver<(OwnedFd, Address)>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// A relay that has no connections yet, with a hub's limits. The waker reports [`Relay::next_given_back`].
    pub(crate) fn start(options: &HubOptions, waker: Waker) -> io::Result<Relay> {
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            per_address: Mutex::default(),
            connections_max: options.max_peers,
            per_address_max: options.max_peers_per_address,
            handshake_timeout: options.handshake_timeout,
            congestion: options.congestion.clone(),
            waker,
        });
        let (commands, receiver) = unbounded_channel();
        let (give_back, given_back) = mpsc::channel();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(LOOKUPS_MAX).build()?;
        let run = {
            let shared = shared.clone();
            move || {
                runtime.block_on(run(receiver, &shared, &give_back));
                // A look-up may hang.
                runtime.shutdown_background();
            }
        };
        let thread = std::thread::Builder::new().name("tow-relay".to_owned()).spawn(run)?;
        Ok(Relay { commands: Some(commands), given_back, shared, thread: Some(thread) })
    }

    /// Relays to there from now on. Connections to elsewhere end.
    pub(crate) fn relay_to(&self, to: Option<RelayTo>) {
        self.send(Command::To(to.map(Arc::new)));
    }

    /// Relays a connection, unless there are too many.
    pub(crate) fn relay(&self, fd: OwnedFd, address: Address) {
        match Place::take(&self.shared, &address) {
            Some(place) => self.send(Command::Relay(Accepted { fd, address, place })),
            None => tracing::warn!(%address, "connection refused: too many connections are relayed"),
        }
    }

    /// A connection that can't be relayed: nothing of it was read or written.
    pub(crate) fn next_given_back(&self) -> Option<(OwnedFd, Address)> {
        self.given_back.try_recv().ok()
    }

    pub(crate) fn stats(&self) -> RelayStats {
        let Counters { connections, relayed, failed, bytes_in, bytes_out, .. } = &self.shared.counters;
        RelayStats {
            connections: connections.load(Ordering::Relaxed),
            relayed: relayed.load(Ordering::Relaxed),
            failed: failed.load(Ordering::Relaxed),
            bytes_in: bytes_in.load(Ordering::Relaxed),
            bytes_out: bytes_out.load(Ordering::Relaxed),
        }
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // The thread ends after this side alone.
            let _ = commands.send(command);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that relays connections has failed");
        }
    }
}

/// The thread's loop, until the hub is gone.
async fn run(
    mut commands: UnboundedReceiver<Command>,
    shared: &Arc<Shared>,
    give_back: &mpsc::Sender<(OwnedFd, Address)>,
) {
    let (mut to, mut connections) = (None, JoinSet::new());
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::To(other)) if other == to => {}
                Some(Command::To(other)) => {
                    connections.abort_all();
                    to = other;
                }
                Some(Command::Relay(accepted)) => {
                    connections.spawn(relay(accepted, to.clone(), shared.clone(), give_back.clone()));
                }
                None => return,
            },
            Some(ended) = connections.join_next() => {
                if ended.is_err_and(|error| error.is_panic()) {
                    tracing::error!("relaying a connection has failed");
                }
            }
        }
    }
}

/// Relays a connection until it ends, or gives it back.
async fn relay(
    Accepted { fd, address, place }: Accepted,
    to: Option<Arc<RelayTo>>,
    shared: Arc<Shared>,
    give_back: mpsc::Sender<(OwnedFd, Address)>,
) {
    transport::tune(&fd, &address, &shared.congestion);
    let peer = match watched(fd) {
        Ok(peer) => peer,
        Err(error) => return tracing::warn!(%address, %error, "cannot relay a connection"),
    };
    let Ok(Ok(first)) = timeout(shared.handshake_timeout, first_byte(&peer)).await else {
        return tracing::info!(%address, "connection ended: the peer said nothing");
    };
    let leader = match to.filter(|_| first != FIRST_BYTE) {
        None => None,
        Some(to) => match timeout(CONNECT_TIMEOUT, connect(&to, &shared.congestion)).await {
            Ok(Ok(leader)) => Some((leader, to)),
            failed => {
                let error = failed.map_or_else(|_| "no answer".to_owned(), |failed| failed.err().unwrap_or_default());
                shared.counters.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%address, to = %to.endpoint, error, "cannot relay a connection");
                None
            }
        },
    };
    let Some((leader, to)) = leader else {
        drop(place);
        // Not if the hub is gone.
        if give_back.send((peer.into_inner(), address)).is_ok() {
            shared.waker.wake();
        }
        return;
    };
    shared.counters.relayed.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(%address, to = %to.endpoint, "connection relayed");
    let header = header_of(&peer, &address, &to);
    let relayed = async {
        copy::send_all(&leader, &header?).await?;
        copy::both_ways(&peer, &leader, &shared.counters).await
    };
    if let Err(error) = relayed.await {
        tracing::debug!(%address, to = %to.endpoint, %error, "a relayed connection has failed");
    }
}

fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(deprecated, reason = "its successor is unsafe; an OwnedFd keeps what that one asks for")]
    AsyncFd::new(fd)
}

/// The first byte of the peer, which stays to be read.
async fn first_byte(peer: &AsyncFd<OwnedFd>) -> io::Result<u8> {
    loop {
        let mut ready = peer.readable().await?;
        let mut byte = [0];
        match rustix::net::recv(peer.get_ref(), &mut byte, RecvFlags::PEEK) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(byte[0]),
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn header_of(peer: &AsyncFd<OwnedFd>, address: &Address, to: &RelayTo) -> io::Result<Vec<u8>> {
    let own = rustix::net::getsockname(peer.get_ref()).ok().and_then(|own| SocketAddr::try_from(own).ok());
    let addresses = match (address, own) {
        (Address::Tcp(address), Some(own)) => Some((*address, own)),
        _ => None,
    };
    let mut nonce = [0; 16];
    system_random().fill(&mut nonce)?;
    Ok(Header { addresses, through: to.through.clone(), nonce }.encode(&to.key))
}

/// Connects to the first address that answers; the error is the reason why none does.
async fn connect(to: &RelayTo, congestion: &Congestion) -> Result<AsyncFd<OwnedFd>, String> {
    let mut reason = "the name has no address".to_owned();
    for target in targets(&to.endpoint).await? {
        match connect_to(&target, congestion).await {
            Ok(fd) => return Ok(fd),
            Err(error) => reason = format!("{target}: {error}"),
        }
    }
    Err(reason)
}

async fn targets(endpoint: &Endpoint) -> Result<Vec<Target>, String> {
    let addresses = match endpoint {
        Endpoint::Inproc(_) => return Err("inproc is within a process".to_owned()),
        Endpoint::Ipc(path) => return Ok(vec![Target::Ipc(path.clone())]),
        Endpoint::Tcp { host, port } => match numeric_address(host, *port) {
            Some(address) => vec![address],
            None if host == "*" => return Err("it is no address of a machine".to_owned()),
            None => {
                let found = tokio::net::lookup_host((host.as_str(), *port)).await;
                found.map_err(|error| format!("{host}: {error}"))?.take(ADDRESSES_MAX).collect()
            }
        },
    };
    match addresses.iter().any(|address| address.ip().is_unspecified()) {
        true => Err("it is no address of a machine".to_owned()),
        false => Ok(addresses.into_iter().map(Target::Tcp).collect()),
    }
}

async fn connect_to(target: &Target, congestion: &Congestion) -> io::Result<AsyncFd<OwnedFd>> {
    let (fd, address, is_connecting) = transport::connect(target, congestion)?;
    let socket = watched(fd)?;
    if is_connecting {
        socket.writable().await?.retain_ready();
        rustix::net::sockopt::socket_error(socket.get_ref())?.map_err(io::Error::from)?;
    }
    transport::tune(socket.get_ref(), &address, congestion);
    Ok(socket)
}

#[cfg(test)]
mod tests;
