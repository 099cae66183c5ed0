//! Which congestion control a TCP socket has, and when it gets it.
//!
//! A connection that was made under bbr goes on pacing what it sends by timers, even after it has been given another congestion
//! control: on loopback that costs a third of the throughput. So a socket gets the one for peers on this machine before it is
//! connected, or from the one that listens, and goes back to the system's where the peer turns out to be elsewhere.

use crate::net::address::Address;
use crate::options::Congestion;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;
use rustix::net::{getsockname, sockopt};
use std::net::{IpAddr, SocketAddr};

/// For peers on this machine: the first that the kernel has.
const LOCAL: [&str; 2] = ["cubic", "reno"];

/// What sockets have that nobody told otherwise, if that isn't what peers on this machine get.
#[derive(Debug, Clone)]
pub(crate) struct SystemDefault(String);

/// Of a socket that is about to listen: those that it accepts are made with what it has now. What is left to do about each of them is
/// [`accepted`].
pub(crate) fn before_listening(fd: impl AsFd, congestion: &Congestion) -> Option<SystemDefault> {
    match congestion {
        Congestion::System => None,
        Congestion::Named(name) => {
            if let Err(errno) = sockopt::set_tcp_congestion(&fd, name) {
                // Somebody asked for it by name.
                let error = std::io::Error::from(errno);
                tracing::warn!(name, %error, "this congestion control can't be had; the system's is used");
            }
            None
        }
        Congestion::Auto => {
            let system = sockopt::tcp_congestion(&fd).ok()?;
            told("listening", make_local(&fd));
            (!LOCAL.contains(&&*system)).then_some(SystemDefault(system))
        }
    }
}

/// Of a connection that was accepted.
pub(crate) fn accepted(fd: &OwnedFd, peer: SocketAddr, system: Option<&SystemDefault>) {
    if let Some(SystemDefault(system)) = system
        && !is_local(fd, peer.ip())
    {
        told("accepted", sockopt::set_tcp_congestion(fd, system));
    }
}

/// Of a socket that is about to be connected.
pub(crate) fn before_connecting(fd: impl AsFd, peer: SocketAddr, congestion: &Congestion) {
    match congestion {
        Congestion::System => {}
        Congestion::Named(name) => told("connecting", sockopt::set_tcp_congestion(&fd, name)),
        Congestion::Auto if peer.ip().to_canonical().is_loopback() => told("connecting", make_local(&fd)),
        Congestion::Auto => {}
    }
}

/// Of a connection that is there: a peer on this machine may have been reached by an address that did not show it.
pub(crate) fn connected(fd: &OwnedFd, address: &Address, congestion: &Congestion) {
    if let (Address::Tcp(peer), Congestion::Auto) = (address, congestion)
        && is_local(fd, peer.ip())
    {
        told("connected", make_local(fd));
    }
}

fn make_local(fd: impl AsFd) -> io::Result<()> {
    let mut outcome = Ok(());
    for name in LOCAL {
        outcome = sockopt::set_tcp_congestion(&fd, name);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn is_local(fd: &OwnedFd, peer: IpAddr) -> bool {
    let own = || getsockname(fd).ok().and_then(|name| SocketAddr::try_from(name).ok());
    let peer = peer.to_canonical();
    peer.is_loopback() || own().is_some_and(|own| own.ip().to_canonical() == peer)
}

/// What the kernel refuses is logged, not fatal.
fn told(socket: &str, outcome: io::Result<()>) {
    if let Err(errno) = outcome {
        tracing::debug!(socket, error = %std::io::Error::from(errno), "the congestion control was refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Protocol, Socket, Type};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    fn new_socket() -> Socket {
        Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap()
    }

    fn of(fd: impl AsFd) -> String {
        sockopt::tcp_congestion(fd).unwrap()
    }

    #[test]
    fn peers_here_and_elsewhere_get_what_suits_them() {
        let system = of(new_socket());
        let socket = new_socket();
        let default = before_listening(&socket, &Congestion::Auto);
        assert_eq!(default.is_none(), LOCAL.contains(&&*system));
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        socket.listen(1).unwrap();
        let listener = TcpListener::from(socket);
        let _here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, address) = listener.accept().unwrap();
        let peer = OwnedFd::from(peer);
        // Made so: nothing was done about it yet.
        let local = of(&peer);
        accepted(&peer, address, default.as_ref());
        assert_eq!(of(&peer), local);
        if default.is_some() {
            assert!(LOCAL.contains(&&*local), "{local}");
        }
        accepted(&peer, SocketAddr::from(([192, 0, 2, 1], 1)), default.as_ref());
        assert_eq!(of(&peer), if default.is_some() { system } else { local });
    }

    #[test]
    fn what_the_person_says_holds_for_all() {
        for congestion in [Congestion::System, Congestion::Named("reno".into()), Congestion::Named("no such".into())] {
            let system = of(new_socket());
            let (listening, connecting) = (new_socket(), new_socket());
            assert!(before_listening(&listening, &congestion).is_none());
            before_connecting(&connecting, SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), &congestion);
            let expected = if congestion == Congestion::Named("reno".into()) { "reno" } else { &system };
            assert_eq!((&*of(listening), &*of(connecting)), (expected, expected));
        }
    }
}
