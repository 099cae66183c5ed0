//! Listening, accepting and connecting over tcp, ipc and inproc. All descriptors are non-blocking stream sockets.
//!
//! inproc is a socket pair within the process: the same bytes, queues and back-pressure as everywhere else.

use crate::error::SocketError;
use crate::net::address::Address;
use crate::net::congestion::{self, SystemDefault};
use crate::net::endpoint::Endpoint;
use crate::net::ipc::IpcListener;
use crate::options::Congestion;
use crate::waker::Waker;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Connections that the kernel holds until they are accepted.
pub(crate) const BACKLOG: i32 = 1024;

/// Silence after which TCP probes a peer, so that a dead machine is noticed even without heartbeats.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Maximum addresses of one name that are tried. With that many, its hosts are interchangeable.
pub(crate) const ADDRESSES_MAX: usize = 16;

/// Hubs that listen on inproc endpoints, by name: receiver of a new connection's end, and the hub's waker.
type Listening = HashMap<String, (Sender<OwnedFd>, Waker)>;

static INPROC: Mutex<Option<Listening>> = Mutex::new(None);

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(OwnedFd, Option<SystemDefault>),
    Ipc(IpcListener),
    Inproc(Receiver<OwnedFd>, String),
}

impl Listener {
    /// Listens, and gives the endpoint with its actual port.
    pub(crate) fn bind(
        endpoint: &Endpoint,
        waker: &Waker,
        congestion: &Congestion,
    ) -> Result<(Listener, Endpoint), SocketError> {
        let failed = |source| SocketError::Bind { endpoint: endpoint.to_string(), source };
        match endpoint {
            Endpoint::Tcp { host, port } => {
                if host == "*" {
                    let (bound, host) = bind_all(*port, congestion).map_err(failed)?;
                    let (fd, port, system) = bound;
                    return Ok((Listener::Tcp(fd, system), Endpoint::Tcp { host: host.to_owned(), port }));
                }
                let (fd, port, system) =
                    resolve(host, *port).and_then(|addresses| bind_first(&addresses, congestion)).map_err(failed)?;
                Ok((Listener::Tcp(fd, system), Endpoint::Tcp { host: host.to_owned(), port }))
            }
            Endpoint::Ipc(path) => {
                let listener = IpcListener::bind(path).map_err(failed)?;
                Ok((Listener::Ipc(listener), endpoint.clone()))
            }
            Endpoint::Inproc(name) => {
                let mut registry = INPROC.lock().unwrap_or_else(PoisonError::into_inner);
                let registry = registry.get_or_insert_with(HashMap::new);
                if registry.contains_key(name) {
                    return Err(failed(io::ErrorKind::AddrInUse.into()));
                }
                let (sender, receiver) = channel();
                registry.insert(name.clone(), (sender, waker.clone()));
                Ok((Listener::Inproc(receiver, name.clone()), endpoint.clone()))
            }
        }
    }

    /// The descriptors to wait on; inproc connections wake the hub instead.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Listener::Tcp(fd, _) => vec![fd.as_fd()],
            Listener::Ipc(listener) => listener.fds().collect(),
            Listener::Inproc(..) => Vec::new(),
        }
    }

    /// The next connection, if there is one.
    pub(crate) fn accept(&mut self) -> io::Result<Option<(OwnedFd, Address)>> {
        let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
        match self {
            Listener::Tcp(fd, system) => match rustix::net::acceptfrom_with(fd, flags) {
                Ok((peer, address)) => {
                    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
                    let address = address.ok_or_else(|| io::Error::other("a TCP peer without an address"))?;
                    // A peer is known by its IPv4 address, whatever socket it came to.
                    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                    congestion::accepted(&peer, address, system.as_ref());
                    Ok(Some((peer, Address::Tcp(address))))
                }
                Err(rustix::io::Errno::AGAIN) => Ok(None),
                Err(errno) => Err(errno.into()),
            },
            Listener::Ipc(listener) => match rustix::net::accept_with(&*listener, flags) {
                Ok(peer) => {
                    let address = ipc_address(&peer);
                    Ok(Some((peer, address)))
                }
                Err(rustix::io::Errno::AGAIN) => {
                    listener.report_loss();
                    Ok(None)
                }
                Err(errno) => Err(errno.into()),
            },
            Listener::Inproc(receiver, _) => Ok(receiver.try_recv().ok().map(|fd| (fd, Address::Inproc))),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Inproc(_, name) = self
            && let Some(registry) = INPROC.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
        {
            registry.remove(name);
        }
    }
}

/// The addresses of a name or a numeric address, in the order in which to try them; at least one.
pub(crate) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let addresses = (host, port).to_socket_addrs()?.take(ADDRESSES_MAX).collect::<Vec<_>>();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}

/// A listening socket, its port, and the congestion control for peers elsewhere.
type Bound = (OwnedFd, u16, Option<SystemDefault>);

/// Listens on all addresses: of IPv6 and IPv4, or of IPv4 where the machine has no IPv6. With the address.
fn bind_all(port: u16, congestion: &Congestion) -> io::Result<(Bound, &'static str)> {
    match bind_tcp((Ipv6Addr::UNSPECIFIED, port).into(), congestion) {
        Err(error) if is_foreign(&error) => {
            Ok((bind_tcp((Ipv4Addr::UNSPECIFIED, port).into(), congestion)?, "0.0.0.0"))
        }
        bound => Ok((bound?, "::")),
    }
}

/// Whether an address doesn't belong to this machine, or to a family that it lacks.
fn is_foreign(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// Listens on the first of a name's addresses that belongs to this machine.
fn bind_first(addresses: &[SocketAddr], congestion: &Congestion) -> io::Result<Bound> {
    let mut outcome = Err(io::ErrorKind::NotFound.into());
    for address in addresses {
        outcome = bind_tcp(*address, congestion);
        // An address in use is an error: a server on another address instead would not be found.
        if !outcome.as_ref().is_err_and(is_foreign) {
            break;
        }
    }
    outcome
}

fn bind_tcp(address: SocketAddr, congestion: &Congestion) -> io::Result<Bound> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // All addresses are all, whatever net.ipv6.bindv6only says.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    let system = congestion::before_listening(&socket, congestion);
    socket.listen(BACKLOG)?;
    let port = socket.local_addr()?.as_socket().map_or(address.port(), |address| address.port());
    Ok((socket.into(), port, system))
}

fn ipc_address(peer: &OwnedFd) -> Address {
    let credentials = sockopt::socket_peercred(peer).ok();
    Address::Ipc {
        pid: credentials.map(|credentials| credentials.pid.as_raw_nonzero().get()),
        uid: credentials.map(|credentials| credentials.uid.as_raw()),
    }
}

/// One address to connect to.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Tcp(SocketAddr),
    Ipc(PathBuf),
    Inproc(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Tcp(address) => write!(f, "{address}"),
            Target::Ipc(path) => write!(f, "ipc://{}", path.display()),
            Target::Inproc(name) => write!(f, "inproc://{name}"),
        }
    }
}

/// Starts to connect: the socket, its address, and whether connecting is still in progress.
pub(crate) fn connect(target: &Target, congestion: &Congestion) -> io::Result<(OwnedFd, Address, bool)> {
    let (socket, address, target) = match target {
        &Target::Tcp(target) => {
            let kind = Type::STREAM.nonblocking().cloexec();
            let socket = Socket::new(Domain::for_address(target), kind, Some(Protocol::TCP))?;
            congestion::before_connecting(&socket, target, congestion);
            (socket, Address::Tcp(target), SockAddr::from(target))
        }
        Target::Ipc(path) => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
            (socket, Address::Ipc { pid: None, uid: None }, SockAddr::unix(path)?)
        }
        Target::Inproc(name) => {
            let registry = INPROC.lock().unwrap_or_else(PoisonError::into_inner);
            let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, "nothing listens on this name");
            let (sender, waker) = registry.as_ref().and_then(|names| names.get(name)).ok_or_else(refused)?;
            let (ours, theirs) = Socket::pair(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
            sender.send(theirs.into()).map_err(|_| refused())?;
            waker.wake();
            return Ok((ours.into(), Address::Inproc, false));
        }
    };
    match socket.connect(&target) {
        Ok(()) => Ok((socket.into(), address, false)),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
            Ok((socket.into(), address, true))
        }
        Err(error) => Err(error),
    }
}

/// Sets the options of a TCP connection. A refusal by the kernel is logged, not fatal.
pub(crate) fn tune(fd: &OwnedFd, address: &Address, congestion: &Congestion) {
    let Address::Tcp(_) = address else { return };
    congestion::connected(fd, address, congestion);
    let tuned = sockopt::set_tcp_nodelay(fd, true)
        .and(sockopt::set_socket_keepalive(fd, true))
        .and(sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE));
    if let Err(errno) = tuned {
        tracing::debug!(%address, error = %io::Error::from(errno), "a TCP option was refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_those_of_ipv4_and_ipv6() {
        let ((fd, port, _), host) = bind_all(0, &Congestion::System).unwrap();
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        if host == "::" {
            assert!(std::net::TcpStream::connect(("::1", port)).is_ok());
        }
        drop(fd);
    }

    #[test]
    fn listens_on_the_first_address_of_this_machine() {
        // The first is reserved for documentation.
        let addresses = [([192, 0, 2, 1], 0), ([127, 0, 0, 1], 0)].map(SocketAddr::from);
        let (fd, port, _) = bind_first(&addresses, &Congestion::System).unwrap();
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        drop(fd);
        let error = bind_first(&addresses[..1], &Congestion::System).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
