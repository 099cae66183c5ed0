//! TCP congestion control of sockets.
//!
//! A connection made under bbr goes on pacing by timers even under another congestion control, which costs a third of the throughput on
//! loopback. So sockets get the one for local peers before they are connected, or from the listening socket, and go back to the system's
//! if the peer turns out to be remote.

use crate::net::address::Address;
use crate::options::Congestion;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;
use rustix::net::{getsockname, sockopt};
use std::net::{IpAddr, SocketAddr};

/// For local peers: the first that the kernel has.
const LOCAL: [&str; 2] = ["cubic", "reno"];

/// The system's default, if it isn't the one for local peers.
#[derive(Debug, Clone)]
pub(crate) struct SystemDefault(String);

/// Prepares a socket that is about to listen: accepted ones inherit its congestion control. [`accepted`] does the rest for each.
pub(crate) fn before_listening(fd: impl AsFd, congestion: &Congestion) -> Option<SystemDefault> {
    match congestion {
        Congestion::System => None,
        Congestion::Named(name) => {
            if let Err(errno) = sockopt::set_tcp_congestion(&fd, name) {
                // Requested by name, so more than a debug line.
                let error = std::io::Error::from(errno);
                tracing::warn!(name, %error, "the kernel doesn't have this congestion control; the system's default is used");
            }
            None
        }
        Congestion::Auto => {
            let system = sockopt::tcp_congestion(&fd).ok()?;
            log_refusal("listening", make_local(&fd));
            (!LOCAL.contains(&&*system)).then_some(SystemDefault(system))
        }
    }
}

/// Corrects an accepted connection.
pub(crate) fn accepted(fd: &OwnedFd, peer: SocketAddr, system: Option<&SystemDefault>) {
    if let Some(SystemDefault(system)) = system
        && !is_local(fd, peer.ip())
    {
        log_refusal("accepted", sockopt::set_tcp_congestion(fd, system));
    }
}

/// Prepares a socket that is about to connect.
pub(crate) fn before_connecting(fd: impl AsFd, peer: SocketAddr, congestion: &Congestion) {
    match congestion {
        Congestion::System => {}
        Congestion::Named(name) => log_refusal("connecting", sockopt::set_tcp_congestion(&fd, name)),
        Congestion::Auto if peer.ip().to_canonical().is_loopback() => log_refusal("connecting", make_local(&fd)),
        Congestion::Auto => {}
    }
}

/// Corrects a connection that was made: a local peer may have an address that doesn't show it.
pub(crate) fn connected(fd: &OwnedFd, address: &Address, congestion: &Congestion) {
    if let (Address::Tcp(peer), Congestion::Auto) = (address, congestion)
        && is_local(fd, peer.ip())
    {
        log_refusal("connected", make_local(fd));
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

/// Logs a refusal by the kernel, which isn't fatal.
fn log_refusal(socket: &str, outcome: io::Result<()>) {
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
    fn local_and_remote_peers_get_different_congestion_control() {
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
        // Inherited from the listening socket.
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
    fn an_explicit_choice_holds_for_all_peers() {
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
