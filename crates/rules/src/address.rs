//! Addresses of peers, and networks that a rule names.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::str::FromStr;

/// Address of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// At an IP address.
    Ip(IpAddr),
    /// On this machine, over ipc or within the process.
    Local,
}

/// Addresses that a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Ip { first: IpAddr, prefix: u8 },
    Local,
}

impl Network {
    pub(crate) fn has(&self, origin: Origin) -> bool {
        match (*self, origin) {
            (Network::Local, Origin::Local) => true,
            (Network::Ip { first, prefix }, Origin::Ip(address)) => match (first, address.to_canonical()) {
                (IpAddr::V4(first), IpAddr::V4(address)) => {
                    same_bits(u128::from(first.to_bits()), u128::from(address.to_bits()), 32, prefix)
                }
                (IpAddr::V6(first), IpAddr::V6(address)) => same_bits(first.to_bits(), address.to_bits(), 128, prefix),
                _ => false,
            },
            _ => false,
        }
    }
}

/// Whether the first bits of two addresses are the same.
fn same_bits(one: u128, other: u128, bits: u8, prefix: u8) -> bool {
    (one ^ other).checked_shr(u32::from(bits - prefix)).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        if text == "ipc" {
            return Ok(Network::Local);
        }
        let wrong = || format!("{text:?} is no address: write 10.0.0.7, 10.0.0.0/8, 2001:db8::/32 or ipc");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = if first.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(bits);
        if prefix > bits {
            return Err(format!("{text:?}: an address has {bits} bits"));
        }
        let has_more = match first {
            IpAddr::V4(first) => u64::from(first.to_bits()) & ((1_u64 << (32 - prefix)) - 1) != 0,
            IpAddr::V6(first) => first.to_bits() & u128::MAX.checked_shr(u32::from(prefix)).unwrap_or(0) != 0,
        };
        if has_more {
            return Err(format!("{text:?}: there are bits of the address behind the first {prefix}"));
        }
        Ok(Network::Ip { first, prefix })
    }
}

impl FromStr for Origin {
    type Err = String;

    /// An IP address, or `ipc`.
    fn from_str(text: &str) -> Result<Origin, String> {
        match text {
            "ipc" => Ok(Origin::Local),
            _ => text.parse().map(Origin::Ip).map_err(|_| format!("{text:?} is no IP address, nor ipc")),
        }
    }
}

impl Display for Network {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Network::Ip { first, prefix } => write!(f, "{first}/{prefix}"),
            Network::Local => f.write_str("ipc"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_the_addresses_with_their_first_bits() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", &["10.1.2.3", "::ffff:10.9.9.9"][..], &["11.0.0.0", "::a00:1", "ipc"][..]),
            ("10.0.0.7", &["10.0.0.7"], &["10.0.0.6"]),
            ("0.0.0.0/0", &["1.2.3.4"], &["::1", "ipc"]),
            ("::/0", &["::1", "2001:db8::1"], &["1.2.3.4"]),
            ("2001:db8::/33", &["2001:db8:7fff::1"], &["2001:db8:8000::"]),
            ("ipc", &["ipc"], &["127.0.0.1"]),
        ] {
            let network: Network = network.parse().unwrap();
            let has = |text: &&str| network.has(text.parse().unwrap());
            assert!(inside.iter().all(has), "{network}");
            assert!(!outside.iter().any(has), "{network}");
        }
        for wrong in ["", "10", "10.0.0.0/33", "10.0.0.1/8", "::1/64", "::/129", "10.0.0.0/-1", "host"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
