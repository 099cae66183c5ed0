//! Peers that an operator has blocked, whatever the rules allow.

use crate::address::Network;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;
use std::str::FromStr;
use towpath_zmtp::{Principal, PublicKey};

/// Blocks of a list.
pub const BLOCKS_MAX: usize = 10_000;

/// Bytes of a user's name: as many as PLAIN allows.
const USER_BYTES_MAX: usize = 255;

/// A peer, or many, that can be blocked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Who {
    /// IP addresses with the first `prefix` bits of this one, whose other bits are 0.
    Network {
        /// The first address.
        first: IpAddr,
        /// Bits that are the same.
        prefix: u8,
    },
    /// A user of this machine, over ipc.
    Uid(u32),
    /// A user with a password, or the holder of a key that has this name.
    User(String),
    /// The holder of a key.
    Key([u8; 32]),
}

impl Who {
    fn network(first: IpAddr, prefix: u8) -> Result<Who, String> {
        let (first, prefix) = match (first, first.to_canonical()) {
            // 96 bits say that it is an IPv4 address.
            (IpAddr::V6(_), canonical @ IpAddr::V4(_)) if prefix >= 96 => (canonical, prefix - 96),
            _ => (first, prefix),
        };
        match prefix {
            0 => Err("a network of all addresses blocks everybody; end the server instead".to_owned()),
            _ => Ok(Who::Network { first, prefix }),
        }
    }
}

impl FromStr for Who {
    type Err = String;

    /// An address, a network such as 10.0.0.0/8, a key, a user; or any of `uid:N`, `key:KEY` and `user:NAME`.
    fn from_str(text: &str) -> Result<Who, String> {
        let key = |key: &str| key.parse::<PublicKey>().map(|key| Who::Key(*key.as_bytes()));
        let user = |name: &str| match name.len() {
            1..=USER_BYTES_MAX => Ok(Who::User(name.to_owned())),
            _ => Err(format!("a user has 1 to {USER_BYTES_MAX} bytes")),
        };
        if let Some(name) = text.strip_prefix("user:") {
            return user(name);
        }
        if let Some(uid) = text.strip_prefix("uid:") {
            return uid.parse().map(Who::Uid).map_err(|_| format!("{text:?}: a user id is a number"));
        }
        if let Some(text) = text.strip_prefix("key:") {
            return key(text).map_err(|error| format!("{text:?}: {error}"));
        }
        // Before keys: a long network could be one.
        match text.parse() {
            Ok(Network::Ip { first, prefix }) => return Who::network(first, prefix),
            Ok(Network::Local) => return Err("\"ipc\": write uid:N for a user of this machine".to_owned()),
            Err(_) => {}
        }
        if let Ok(who) = key(text) {
            return Ok(who);
        }
        // A slip of the pen in an address is no user.
        match text.contains(['/', ':']) || text.bytes().all(|one| one.is_ascii_digit() || one == b'.') {
            false => user(text),
            true => Err(format!(
                "{text:?} is no address or network (10.0.0.7, 10.0.0.0/8), and no key; write user:NAME if it is a user"
            )),
        }
    }
}

/// As it can be parsed again.
impl Display for Who {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Who::Network { first, prefix } if *prefix == bits(first) => write!(f, "{first}"),
            Who::Network { first, prefix } => write!(f, "{first}/{prefix}"),
            Who::Uid(uid) => write!(f, "uid:{uid}"),
            Who::Key(key) => write!(f, "key:{}", PublicKey::from(*key)),
            Who::User(name) => match name.parse() {
                Ok(Who::User(same)) if same == *name => f.write_str(name),
                _ => write!(f, "user:{name}"),
            },
        }
    }
}

fn bits(address: &IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The network of an address that has this many bits.
fn first_of(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            IpAddr::V4((address.to_bits() & u32::MAX.checked_shl(u32::from(32 - prefix)).unwrap_or(0)).into())
        }
        IpAddr::V6(address) => {
            IpAddr::V6((address.to_bits() & u128::MAX.checked_shl(u32::from(128 - prefix)).unwrap_or(0)).into())
        }
    }
}

/// Facts of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// When it was made, in seconds since 1970.
    pub since: u64,
    /// When it ends; `None`: never by itself.
    pub until: Option<u64>,
    /// The operator.
    pub by: String,
    /// The reason, for the peer and for people; may be empty.
    pub reason: String,
    /// Connections that were refused.
    pub refused: u64,
    /// When the last one was.
    pub last_refused: Option<u64>,
}

impl Block {
    fn is_over(&self, now: u64) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// Peers that are blocked, at most [`BLOCKS_MAX`].
#[derive(Clone, Debug, Default)]
pub struct Blocklist {
    blocks: HashMap<Who, Block>,
    /// How many networks there are of each length, of IPv6 (true) and IPv4.
    lengths: BTreeMap<(bool, u8), usize>,
}

impl Blocklist {
    /// Adds a block, in place of another one of the same. False: there are too many.
    pub fn insert(&mut self, who: Who, block: Block) -> bool {
        if self.blocks.len() >= BLOCKS_MAX && !self.blocks.contains_key(&who) {
            return false;
        }
        if let Some(length) = length(&who)
            && !self.blocks.contains_key(&who)
        {
            *self.lengths.entry(length).or_default() += 1;
        }
        self.blocks.insert(who, block);
        true
    }

    /// Removes a block.
    pub fn remove(&mut self, who: &Who) -> Option<Block> {
        let block = self.blocks.remove(who)?;
        if let Some(length) = length(who)
            && let Some(count) = self.lengths.get_mut(&length)
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
        Some(block)
    }

    /// Removes what is over, and returns it.
    pub fn sweep(&mut self, now: u64) -> Vec<Who> {
        let over: Vec<_> =
            self.blocks.iter().filter(|(_, block)| block.is_over(now)).map(|(who, _)| who.clone()).collect();
        over.iter().for_each(|who| _ = self.remove(who));
        over
    }

    /// The block of a peer at this moment.
    pub fn find(
        &mut self,
        principal: &Principal,
        address: Option<IpAddr>,
        uid: Option<u32>,
        now: u64,
    ) -> Option<&mut Block> {
        if self.blocks.is_empty() {
            return None;
        }
        let (key, name) = match principal {
            Principal::User(name) => (None, Some(&name[..])),
            Principal::Key { key, name } => (Some(Who::Key(*key.as_bytes())), Some(&name[..])),
            _ => (None, None),
        };
        let name = name.filter(|name| !name.is_empty()).and_then(|name| str::from_utf8(name).ok());
        let address = address.map(|address| address.to_canonical());
        let networks = address.into_iter().flat_map(|address| {
            let lengths = self.lengths.keys().rev().filter(move |(is_v6, _)| *is_v6 == address.is_ipv6());
            lengths.map(move |(_, prefix)| Who::Network { first: first_of(address, *prefix), prefix: *prefix })
        });
        let one = [key, name.map(|name| Who::User(name.to_owned())), uid.map(Who::Uid)];
        let is_blocked = |who: &Who| self.blocks.get(who).is_some_and(|block| !block.is_over(now));
        let who = one.into_iter().flatten().chain(networks).find(is_blocked)?;
        self.blocks.get_mut(&who)
    }

    /// Whether this one is blocked, by its own name.
    pub fn get(&self, who: &Who) -> Option<&Block> {
        self.blocks.get(who)
    }

    /// All, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Who, &Block)> {
        self.blocks.iter()
    }
}

fn length(who: &Who) -> Option<(bool, u8)> {
    match who {
        Who::Network { first, prefix } => Some((first.is_ipv6(), *prefix)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; 32] = [7; 32];

    fn list(blocked: &[&str]) -> Blocklist {
        let mut list = Blocklist::default();
        for who in blocked {
            assert!(list.insert(who.parse().unwrap(), Block::default()));
        }
        list
    }

    fn has(list: &mut Blocklist, address: &str) -> bool {
        list.find(&Principal::Anonymous, Some(address.parse().unwrap()), None, 0).is_some()
    }

    #[test]
    fn peers_are_blocked_by_address_network_user_and_key() {
        let key = PublicKey::from(KEY);
        let mut list = list(&["10.0.0.0/8", "192.0.2.7", "2001:db8::/64", "ann", "uid:1000", &key.to_string()]);
        for inside in ["10.255.0.1", "::ffff:10.1.1.1", "192.0.2.7", "2001:db8::9"] {
            assert!(has(&mut list, inside), "{inside}");
        }
        for outside in ["11.0.0.1", "192.0.2.8", "2001:db8:0:1::", "::1"] {
            assert!(!has(&mut list, outside), "{outside}");
        }
        let mut is = |principal: Principal, uid| list.find(&principal, None, uid, 0).is_some();
        assert!(is(Principal::User("ann".into()), None) && !is(Principal::User("bob".into()), None));
        assert!(is(Principal::Key { key, name: "eve".into() }, None));
        let other = PublicKey::from([8; 32]);
        assert!(is(Principal::Key { key: other, name: "ann".into() }, None));
        assert!(!is(Principal::Key { key: other, name: "".into() }, None));
        assert!(is(Principal::Anonymous, Some(1000)) && !is(Principal::Anonymous, Some(1001)));
        assert!(!is(Principal::Anonymous, None));
    }

    #[test]
    fn a_block_ends_by_itself_or_is_removed_and_there_are_so_many() {
        let mut list = Blocklist::default();
        let who: Who = "10.0.0.0/8".parse().unwrap();
        assert!(list.insert(who.clone(), Block { until: Some(100), ..Block::default() }));
        assert!(list.insert(who.clone(), Block { until: Some(200), ..Block::default() }));
        let mut is = |now| list.find(&Principal::Anonymous, Some("10.0.0.1".parse().unwrap()), None, now).is_some();
        assert!(is(199) && !is(200));
        assert_eq!((list.sweep(199), list.sweep(200)), (vec![], vec![who.clone()]));
        assert_eq!((list.remove(&who), list.lengths.len()), (None, 0));
        for uid in 0..BLOCKS_MAX as u32 {
            assert!(list.insert(Who::Uid(uid), Block::default()));
        }
        assert!(!list.insert(who, Block::default()) && list.insert(Who::Uid(0), Block::default()));
    }

    #[test]
    fn what_is_no_peer_is_refused() {
        for wrong in [
            "",
            "0.0.0.0/0",
            "::/0",
            "::ffff:0:0/96",
            "10.0.0.1/8",
            "10.0.0",
            "3.0",
            "10.0.0.0/33",
            "::1/200",
            "a/b",
            "host:1",
            "uid:x",
            "uid:-1",
            "user:",
            "key:1234",
            "ipc",
        ] {
            assert!(wrong.parse::<Who>().is_err(), "{wrong}");
        }
        assert_eq!("::ffff:10.0.0.7".parse::<Who>(), "10.0.0.7".parse());
        assert_eq!("::ffff:10.0.0.0/104".parse::<Who>(), "10.0.0.0/8".parse());
        assert_eq!("user:3.0".parse::<Who>().unwrap().to_string(), "user:3.0");
        assert_eq!("user:ann".parse::<Who>().unwrap().to_string(), "ann");
    }

    proptest! {
        #[test]
        fn names_can_be_parsed_again(name in "\\PC{1,20}", uid: u32, key: [u8; 32], address: u128, prefix in 1_u8..=128) {
            let first = first_of(IpAddr::V6(address.into()), prefix);
            let network = Who::network(first, prefix);
            for who in [Who::User(name), Who::Uid(uid), Who::Key(key)].into_iter().chain(network) {
                prop_assert_eq!(who.to_string().parse(), Ok(who));
            }
        }

        #[test]
        fn an_address_is_in_the_networks_with_its_first_bits(address: u32, other: u32, prefix in 1_u8..=32) {
            let network = Who::Network { first: first_of(IpAddr::V4(other.into()), prefix), prefix };
            let mut list = list(&[&network.to_string()]);
            let is_same = (address ^ other).checked_shr(32 - u32::from(prefix)) == Some(0);
            prop_assert_eq!(list.find(&Principal::Anonymous, Some(IpAddr::V4(address.into())), None, 0).is_some(), is_same);
        }
    }
}
