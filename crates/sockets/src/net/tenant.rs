//! Tenants: identities of peers for sharing.

use crate::net::address::Address;
use bytes::Bytes;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A peer's identity for sharing: peers of one tenant have one turn and one share, however many connections they make.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tenant {
    /// A user that logged in, or the name of an authorized key, from wherever.
    User(Bytes),
    /// An IPv4 address.
    Ipv4(Ipv4Addr),
    /// The first 64 bits of IPv6 addresses: a host has them all.
    Ipv6(u64),
    /// A user of this machine, over ipc. `None`: the kernel doesn't know it.
    Ipc(Option<u32>),
    /// This process.
    Inproc,
}

impl Tenant {
    /// The tenant of a peer that hasn't logged in.
    pub fn of_address(address: &Address) -> Tenant {
        match address {
            Address::Tcp(address) => Tenant::of_ip(address),
            Address::Ipc { uid, .. } => Tenant::Ipc(*uid),
            Address::Inproc => Tenant::Inproc,
        }
    }

    fn of_ip(address: &SocketAddr) -> Tenant {
        match address.ip().to_canonical() {
            IpAddr::V4(address) => Tenant::Ipv4(address),
            IpAddr::V6(address) => Tenant::Ipv6((address.to_bits() >> 64) as u64),
        }
    }
}

/// For people. Names of users are escaped.
impl fmt::Display for Tenant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tenant::User(name) => write!(out, "user {}", name.escape_ascii()),
            Tenant::Ipv4(address) => write!(out, "{address}"),
            Tenant::Ipv6(network) => write!(out, "{}/64", Ipv6Addr::from_bits(u128::from(*network) << 64)),
            Tenant::Ipc(Some(uid)) => write!(out, "uid {uid}"),
            Tenant::Ipc(None) => out.write_str("an unknown user of this machine"),
            Tenant::Inproc => out.write_str("this process"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_of_one_network_or_user_are_one_tenant() {
        let tcp = |address: &str| Tenant::of_address(&Address::Tcp(address.parse().unwrap()));
        assert_eq!(tcp("192.0.2.1:1"), tcp("192.0.2.1:2"));
        assert_ne!(tcp("192.0.2.1:1"), tcp("192.0.2.2:1"));
        assert_eq!(tcp("[::ffff:192.0.2.1]:1"), tcp("192.0.2.1:1"));
        assert_eq!(tcp("[2001:db8:0:1::1]:1"), tcp("[2001:db8:0:1:ffff::9]:1"));
        assert_ne!(tcp("[2001:db8:0:1::1]:1"), tcp("[2001:db8:0:2::1]:1"));
        let ipc = |uid| Tenant::of_address(&Address::Ipc { pid: Some(uid as i32 + 7), uid: Some(uid) });
        assert_eq!(ipc(1000), ipc(1000));
        assert_ne!(ipc(1000), ipc(1001));
        assert_eq!(tcp("[2001:db8:0:1::1]:1").to_string(), "2001:db8:0:1::/64");
        assert_eq!(Tenant::User("a\n".into()).to_string(), "user a\\n");
    }
}
