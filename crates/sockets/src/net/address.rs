//! Network addresses of peers.

use std::fmt;
use std::net::SocketAddr;
use towpath_rules::Origin;

/// The network address of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// Its IP address and port.
    Tcp(SocketAddr),
    /// A process on this machine.
    Ipc {
        /// Its process id, if the kernel knows it.
        pid: Option<i32>,
        /// Its user id, if the kernel knows it.
        uid: Option<u32>,
    },
    /// Within this process.
    Inproc,
}

impl Address {
    /// The address as rules know it.
    pub fn origin(&self) -> Origin {
        match self {
            Address::Tcp(address) => Origin::Ip(address.ip()),
            Address::Ipc { .. } | Address::Inproc => Origin::Local,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Ipc { pid: Some(pid), uid: Some(uid) } => write!(f, "ipc (pid {pid}, uid {uid})"),
            Address::Ipc { .. } => f.write_str("ipc"),
            Address::Inproc => f.write_str("inproc"),
        }
    }
}
