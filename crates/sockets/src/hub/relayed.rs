//! Connections that are relayed to another server, and those that another one has relayed here.

use super::Hub;
use crate::error::SocketError;
use crate::net::address::Address;
use crate::net::tenant::Tenant;
use crate::peer::End;
use crate::peer::beginning::bad_header;
use crate::peer_id::PeerId;
use crate::relay::header::{Header, Nonce};
use crate::relay::{Relay, RelayKey, RelayTo};
use std::collections::{HashSet, VecDeque};
use towpath_zmtp::Principal;

/// Headers that are remembered, so that none is taken twice.
const NONCES_MAX: usize = 16 * 1024;

/// The key of relayed connections, and the headers that were taken.
#[derive(Debug)]
pub(super) struct Relayed {
    key: RelayKey,
    nonces: HashSet<Nonce>,
    order: VecDeque<Nonce>,
}

impl Relayed {
    fn new(key: RelayKey) -> Relayed {
        Relayed { key, nonces: HashSet::new(), order: VecDeque::new() }
    }

    fn take(&mut self, header: &[u8]) -> Result<Header, &'static str> {
        let header = Header::decode(header, &self.key)?;
        if !self.nonces.insert(header.nonce) {
            return Err("it was sent before");
        }
        self.order.push_back(header.nonce);
        if self.order.len() > NONCES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.nonces.remove(&oldest);
        }
        Ok(header)
    }
}

impl Hub {
    /// Takes connections that were relayed with this key from now on, each with the address of its peer; without a key, none.
    pub fn take_relayed(&mut self, key: Option<RelayKey>) {
        if self.relayed.as_ref().map(|relayed| &relayed.key) != key.as_ref() {
            self.relayed = key.map(Relayed::new);
        }
    }

    /// Relays connections that are accepted from now on, as many as this hub may have of its own, in all and from an address. Those that are relayed to
    /// elsewhere end. One that can't be relayed, or was relayed here, becomes a peer of this hub.
    ///
    /// # Errors
    /// [`SocketError::System`] if there can be no thread for it.
    pub fn relay_to(&mut self, to: RelayTo) -> Result<(), SocketError> {
        if self.relay.is_none() {
            self.relay = Some(Relay::start(&self.options, self.waker.clone())?);
        }
        if let Some(relay) = &self.relay {
            relay.relay_to(Some(to));
            self.is_relaying = true;
        }
        Ok(())
    }

    /// Relays no more connections. Those that are relayed go on.
    pub fn stop_relaying(&mut self) {
        self.is_relaying = false;
    }

    /// Relays no more connections, and ends those that are relayed.
    pub fn end_relayed(&mut self) {
        self.is_relaying = false;
        if let Some(relay) = &self.relay {
            relay.relay_to(None);
        }
    }

    /// Takes in connections that couldn't be relayed.
    pub(super) fn take_given_back(&mut self) {
        while let Some((fd, address)) = self.relay.as_ref().and_then(Relay::next_given_back) {
            self.take_in(fd, address);
        }
    }

    /// A connection begins with a header: from here on its peer is the one that the header names.
    pub(super) fn on_header(&mut self, id: PeerId, header: &[u8]) {
        let header = match &mut self.relayed {
            Some(relayed) => relayed.take(header),
            None => Err("only the broker that leads a cell takes them, from brokers of that cell"),
        };
        let header = match header {
            Ok(header) => header,
            Err(why) => return self.end(id, bad_header(why)),
        };
        let Some(member) = self.peers.find_mut(id) else { return };
        let peer = &mut member.peer;
        let address = header.addresses.map_or_else(|| peer.address.clone(), |(address, _)| Address::Tcp(address));
        let before = Tenant::of_address(&std::mem::replace(&mut peer.address, address.clone()));
        peer.through = Some(header.through.into());
        peer.go_on_after_header();
        member.schedule(&mut self.ready);
        self.count_less(&before);
        let count = self.per_address.entry(Tenant::of_address(&address)).or_default();
        *count += 1;
        let is_too_many = *count > self.options.max_peers_per_address;
        let blocked = self.gate.as_ref().and_then(|gate| gate.keeps_out(&Principal::Anonymous, &address, true));
        if let Some(reason) = blocked {
            self.end_blocked_peer(id, &reason);
        } else if is_too_many {
            self.end(id, End::new("too many connections from its address"));
        }
    }
}
