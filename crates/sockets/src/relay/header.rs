//! The header before the first byte of a relayed peer: PROXY protocol, version 2, with an authenticator.
//!
//! Without I/O. Behind the addresses are two fields: the endpoint of the relaying side, and, at the end, a nonce and the authenticator, which is
//! BLAKE3 of all bytes before it, keyed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// First byte of a header. A ZMTP greeting begins with another one.
pub(crate) const FIRST_BYTE: u8 = SIGNATURE[0];
/// Bytes that say how long a header is.
pub(crate) const FIXED_BYTES: usize = 16;
/// Longest header.
pub(crate) const HEADER_BYTES_MAX: usize = FIXED_BYTES + 512;
/// Longest endpoint in a header. More are cut off.
const THROUGH_BYTES_MAX: usize = 255;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;
const ENDPOINT_FIELD: u8 = 0xE1;
const AUTHENTICATOR_FIELD: u8 = 0xE0;
const FIELD_BYTES: usize = 3;
const AUTHENTICATOR_BYTES: usize = 32;

/// Random bytes of a header.
pub(crate) type Nonce = [u8; 16];

/// Secret that the two sides of relayed connections share.
#[derive(Clone, PartialEq, Eq)]
pub struct RelayKey([u8; 32]);

impl RelayKey {
    /// The key with these bytes.
    pub fn new(bytes: [u8; 32]) -> RelayKey {
        RelayKey(bytes)
    }
}

impl fmt::Debug for RelayKey {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayKey")
    }
}

/// A peer as a header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// Addresses of the peer, and of the socket that it came to. `None`: it came by no network.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Endpoint of the relaying side.
    pub through: String,
    /// Chosen by chance.
    pub nonce: Nonce,
}

impl Header {
    /// The header in bytes.
    pub fn encode(&self, key: &RelayKey) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.push(if self.addresses.is_some() { PROXY } else { LOCAL });
        let addresses = self.addresses.map(|(peer, own)| (canonical(peer), canonical(own)));
        bytes.push(match addresses {
            None => 0,
            Some((peer, _)) if peer.is_ipv4() => TCP_OVER_IPV4,
            Some(_) => TCP_OVER_IPV6,
        });
        bytes.extend([0; 2]);
        if let Some((peer, own)) = addresses {
            match (peer.ip(), own.ip()) {
                (IpAddr::V4(peer), own) => {
                    let own = if let IpAddr::V4(own) = own { own } else { Ipv4Addr::UNSPECIFIED };
                    bytes.extend([peer, own].into_iter().flat_map(|ip| ip.to_bits().to_be_bytes()));
                }
                (IpAddr::V6(peer), own) => {
                    let own = if let IpAddr::V6(own) = own { own } else { Ipv6Addr::UNSPECIFIED };
                    bytes.extend([peer, own].into_iter().flat_map(|ip| ip.to_bits().to_be_bytes()));
                }
            }
            bytes.extend(peer.port().to_be_bytes().into_iter().chain(own.port().to_be_bytes()));
        }
        let most = self.through.len().min(THROUGH_BYTES_MAX);
        let end = (0..=most).rev().find(|end| self.through.is_char_boundary(*end)).unwrap_or(0);
        let through = &self.through[..end];
        begin_field(&mut bytes, ENDPOINT_FIELD, through.len());
        bytes.extend(through.as_bytes());
        begin_field(&mut bytes, AUTHENTICATOR_FIELD, self.nonce.len() + AUTHENTICATOR_BYTES);
        bytes.extend(self.nonce);
        let length = (bytes.len() + AUTHENTICATOR_BYTES - FIXED_BYTES) as u16;
        bytes[14..FIXED_BYTES].copy_from_slice(&length.to_be_bytes());
        let authenticator = blake3::keyed_hash(&key.0, &bytes);
        bytes.extend(authenticator.as_bytes());
        bytes
    }

    /// Bytes of a header that begins so; the error is the reason why it can't be one.
    pub fn length(begin: &[u8; FIXED_BYTES]) -> Result<usize, &'static str> {
        if begin[..12] != SIGNATURE {
            return Err("it doesn't begin as one of version 2 does");
        }
        let length = FIXED_BYTES + usize::from(u16::from_be_bytes([begin[14], begin[15]]));
        if length > HEADER_BYTES_MAX { Err("it is too long") } else { Ok(length) }
    }

    /// The header in these bytes; the error is the reason why it isn't taken.
    pub fn decode(bytes: &[u8], key: &RelayKey) -> Result<Header, &'static str> {
        let (begin, rest) = bytes.split_first_chunk().ok_or("it is cut off")?;
        if Header::length(begin)? != bytes.len() {
            return Err("it has another length than it says");
        }
        // Before anything of it is believed.
        let unsigned = bytes.len().checked_sub(AUTHENTICATOR_BYTES).ok_or(NO_AUTHENTICATOR)?;
        let (signed, authenticator) = bytes.split_at(unsigned);
        let authenticator: [u8; AUTHENTICATOR_BYTES] = authenticator.try_into().map_err(|_| NO_AUTHENTICATOR)?;
        if blake3::keyed_hash(&key.0, signed) != authenticator {
            return Err(WRONG_AUTHENTICATOR);
        }
        let (addresses, mut fields) = match (begin[12], begin[13]) {
            (LOCAL, 0) => (None, rest),
            (PROXY, TCP_OVER_IPV4) => {
                let (block, fields) = rest.split_first_chunk::<12>().ok_or("its addresses are cut off")?;
                let ip = |at: usize| Ipv4Addr::from([block[at], block[at + 1], block[at + 2], block[at + 3]]);
                let address = |ip: Ipv4Addr, at| SocketAddr::from((ip, port(block, at)));
                (Some((address(ip(0), 8), address(ip(4), 10))), fields)
            }
            (PROXY, TCP_OVER_IPV6) => {
                let (block, fields) = rest.split_first_chunk::<36>().ok_or("its addresses are cut off")?;
                let ip = |at: usize| block[at..].first_chunk::<16>().map_or(Ipv6Addr::UNSPECIFIED, |ip| (*ip).into());
                let address = |ip: Ipv6Addr, at| canonical(SocketAddr::from((ip, port(block, at))));
                (Some((address(ip(0), 32), address(ip(16), 34))), fields)
            }
            _ => return Err("it isn't of TCP"),
        };
        let (mut through, mut nonce) = (String::new(), None);
        while let Some((kind, value, rest)) = next_field(fields)? {
            match kind {
                ENDPOINT_FIELD if value.len() > THROUGH_BYTES_MAX => return Err("its endpoint is too long"),
                ENDPOINT_FIELD => through = String::from_utf8(value.to_vec()).map_err(|_| "its endpoint isn't text")?,
                // The last one: its end is the one that was checked.
                AUTHENTICATOR_FIELD if rest.is_empty() => nonce = value.first_chunk::<16>().copied(),
                AUTHENTICATOR_FIELD => return Err(NO_AUTHENTICATOR),
                // Of a later version.
                _ => {}
            }
            fields = rest;
        }
        Ok(Header { addresses, through, nonce: nonce.ok_or(NO_AUTHENTICATOR)? })
    }
}

const NO_AUTHENTICATOR: &str = "it has no authenticator";
pub(crate) const WRONG_AUTHENTICATOR: &str =
    "its authenticator is wrong: it isn't of a broker of this cell, or another broker has begun to lead";

fn begin_field(bytes: &mut Vec<u8>, kind: u8, length: usize) {
    bytes.push(kind);
    bytes.extend((length as u16).to_be_bytes());
}

/// The type and the value of the first field, and those behind it.
type Field<'a> = (u8, &'a [u8], &'a [u8]);

fn next_field(fields: &[u8]) -> Result<Option<Field<'_>>, &'static str> {
    if fields.is_empty() {
        return Ok(None);
    }
    let ([kind, high, low], rest) = fields.split_first_chunk::<FIELD_BYTES>().ok_or("a field is cut off")?;
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    let (value, rest) = rest.split_at_checked(length).ok_or("a field is cut off")?;
    Ok(Some((*kind, value, rest)))
}

fn port(block: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([block[at], block[at + 1]])
}

/// An IPv4 address as such, whatever socket it came to.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn key(byte: u8) -> RelayKey {
        RelayKey::new([byte; 32])
    }

    fn header() -> impl Strategy<Value = Header> {
        let v4 = (any::<([u8; 4], u16)>(), any::<([u8; 4], u16)>());
        let v6 = (any::<([u8; 16], u16)>(), any::<([u8; 16], u16)>());
        let addresses = prop_oneof![
            Just(None),
            v4.prop_map(|(a, b)| Some((SocketAddr::from(a), SocketAddr::from(b)))),
            // 2000::/8 has no addresses of IPv4 in it.
            v6.prop_map(|(mut a, mut b)| {
                (a.0[0], b.0[0]) = (0x20, 0x20);
                Some((SocketAddr::from(a), SocketAddr::from(b)))
            }),
        ];
        let all = (addresses, "[a-zä:/.]{0,60}", any::<Nonce>());
        all.prop_map(|(addresses, through, nonce)| Header { addresses, through, nonce })
    }

    /// With a right authenticator over whatever it is.
    fn signed(mut bytes: Vec<u8>) -> Vec<u8> {
        let length = (bytes.len() + AUTHENTICATOR_BYTES - FIXED_BYTES) as u16;
        bytes[14..16].copy_from_slice(&length.to_be_bytes());
        let authenticator = blake3::keyed_hash(&key(1).0, &bytes);
        bytes.extend(authenticator.as_bytes());
        bytes
    }

    proptest! {
        #[test]
        fn header_is_the_same_after_encoding(header in header()) {
            let bytes = header.encode(&key(1));
            prop_assert!(bytes.len() <= HEADER_BYTES_MAX);
            prop_assert_eq!(Header::length(bytes.first_chunk().unwrap()), Ok(bytes.len()));
            prop_assert_eq!(Header::decode(&bytes, &key(1)), Ok(header));
            prop_assert_eq!(Header::decode(&bytes, &key(2)), Err(WRONG_AUTHENTICATOR));
        }

        #[test]
        fn changed_and_cut_headers_are_refused(header in header(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
            let bytes = header.encode(&key(1));
            let at = at.index(bytes.len());
            let mut changed = bytes.clone();
            changed[at] ^= 1u8 << bit;
            prop_assert!(Header::decode(&changed, &key(1)).is_err());
            prop_assert!(Header::decode(&bytes[..at], &key(1)).is_err());
        }

        /// Signed, so that all of it is looked at.
        #[test]
        fn any_bytes_are_decoded_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0..5usize) {
            let _ = Header::decode(&bytes, &key(1));
            let mut signature = SIGNATURE.to_vec();
            signature.extend([[LOCAL, 0], [PROXY, TCP_OVER_IPV4], [PROXY, TCP_OVER_IPV6], [PROXY, 0x12], [0x31, 0]][kind]);
            signature.extend([0; 2]);
            signature.extend(&bytes);
            let bytes = signed(signature);
            if let Ok(header) = Header::decode(&bytes, &key(1)) {
                prop_assert!(bytes.len() <= HEADER_BYTES_MAX && header.through.len() <= THROUGH_BYTES_MAX);
            }
        }
    }

    #[test]
    fn authenticator_is_at_the_end() {
        let header = Header { addresses: None, through: "tcp://a:1".to_owned(), nonce: [3; 16] };
        let bytes = header.encode(&key(1));
        // Another field behind it.
        let mut longer = bytes[..bytes.len() - AUTHENTICATOR_BYTES].to_vec();
        longer.extend([0; AUTHENTICATOR_BYTES]);
        begin_field(&mut longer, 0xE2, AUTHENTICATOR_BYTES);
        assert_eq!(Header::decode(&signed(longer), &key(1)), Err(NO_AUTHENTICATOR));
        let mut none = bytes[..FIXED_BYTES].to_vec();
        begin_field(&mut none, 0xE2, AUTHENTICATOR_BYTES);
        assert_eq!(Header::decode(&signed(none), &key(1)), Err(NO_AUTHENTICATOR));
        // Fields of a later version are stepped over.
        let mut more = bytes[..FIXED_BYTES].to_vec();
        begin_field(&mut more, 0x04, 0);
        more.extend(&bytes[FIXED_BYTES..bytes.len() - AUTHENTICATOR_BYTES]);
        assert_eq!(Header::decode(&signed(more), &key(1)), Ok(header));
    }

    #[test]
    fn long_endpoint_is_cut_off_between_letters() {
        let header = Header { addresses: None, through: "ä".repeat(200), nonce: [3; 16] };
        assert_eq!(Header::decode(&header.encode(&key(1)), &key(1)).unwrap().through, "ä".repeat(127));
    }
}
