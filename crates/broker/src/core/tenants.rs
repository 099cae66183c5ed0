//! Tenants: identities of clients, and the shares of each.
//!
//! Clients of one tenant have one turn in a service's queue, and one share of everything that is limited.

use super::outcomes::{OutcomeSize, Outcomes};
use super::requests::State;
use super::{Core, Peer, SessionKey, TenantKey};
use foldhash::fast::FixedState;
use slab::Slab;
use std::collections::HashMap;
use towpath_sockets::Tenant;

/// The tenant of requests without a connected client: dead letters, and restored requests until their client connects. Also of
/// connections whose tenant isn't known. It has no share, and so no limit of its own.
pub(super) const NOBODY: TenantKey = 0;

/// A tenant may have this many times what it leaves free for others: three quarters, if it is the only one.
const TIMES_FREE: usize = 3;

/// A tenant's shares of the broker.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    pub tenant: Option<Tenant>,
    /// Connections, sessions and services that refer to it.
    references: usize,
    /// Requests in all.
    pub requests: usize,
    /// Bytes of memory of its requests, unconfirmed replies and gaps.
    pub bytes: usize,
    /// The unconfirmed outcomes among them, which have a budget of their own. Not of stored requests.
    pub outcomes: Outcomes,
    /// Services that its requests have added.
    pub services: usize,
}

/// All tenants that have a connection, a session or a service.
#[derive(Debug)]
pub(super) struct Tenants {
    slab: Slab<Holdings>,
    by_name: HashMap<Tenant, TenantKey, FixedState>,
    /// Of each connection. The last one's stays until another connection has its number.
    of_peers: Vec<TenantKey>,
}

/// The remaining units for a tenant that has `own`. `used`: the units of all tenants, of `most`.
#[inline]
pub(super) fn left_of_share(most: usize, used: usize, own: usize) -> usize {
    let free = most.saturating_sub(used);
    free.min(free.saturating_mul(TIMES_FREE).saturating_sub(own))
}

impl Tenants {
    pub fn new(seed: u64) -> Tenants {
        let mut slab = Slab::new();
        let nobody = slab.insert(Holdings { references: 1, ..Holdings::default() }) as TenantKey;
        debug_assert_eq!(nobody, NOBODY);
        Tenants { slab, by_name: HashMap::with_hasher(FixedState::with_seed(seed)), of_peers: Vec::new() }
    }

    fn connected(&mut self, peer: Peer, tenant: Tenant) {
        let index = peer as usize;
        if index >= self.of_peers.len() {
            self.of_peers.resize(index + 1, NOBODY);
        }
        let slab = &mut self.slab;
        let key = *self.by_name.entry(tenant).or_insert_with_key(|tenant| {
            slab.insert(Holdings { tenant: Some(tenant.clone()), ..Holdings::default() }) as TenantKey
        });
        self.acquire(key);
        let former = std::mem::replace(&mut self.of_peers[index], key);
        self.release(former);
    }

    /// The tenant of a connection.
    #[inline]
    pub fn of_peer(&self, peer: Peer) -> TenantKey {
        self.of_peers.get(peer as usize).copied().unwrap_or(NOBODY)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Holdings> {
        self.slab.iter().map(|(_, holdings)| holdings)
    }

    #[inline]
    pub fn at(&self, key: TenantKey) -> &Holdings {
        &self.slab[key as usize]
    }

    #[inline]
    pub fn at_mut(&mut self, key: TenantKey) -> &mut Holdings {
        &mut self.slab[key as usize]
    }

    /// Adds a reference.
    pub fn acquire(&mut self, key: TenantKey) {
        if key != NOBODY {
            self.at_mut(key).references += 1;
        }
    }

    /// Removes a reference, and the tenant with its last one.
    pub fn release(&mut self, key: TenantKey) {
        if key == NOBODY {
            return;
        }
        let holdings = self.at_mut(key);
        holdings.references -= 1;
        if holdings.references == 0 {
            let holdings = self.slab.remove(key as usize);
            holdings.tenant.map(|tenant| self.by_name.remove(&tenant));
        }
    }
}

impl Core {
    /// A connection is there, of this tenant. Without this call it is of none, and has no share.
    pub fn connected(&mut self, peer: Peer, tenant: Tenant) {
        self.tenants.connected(peer, tenant);
    }

    /// Makes a session, with all that it has, another tenant's.
    pub(super) fn set_tenant(&mut self, key: SessionKey, tenant: TenantKey) {
        let session = &mut self.sessions[key];
        let (requests, bytes) = (session.requests.len(), session.bytes);
        let outcomes = if session.is_stored { Outcomes::default() } else { session.replies.kept };
        let former = std::mem::replace(&mut session.tenant, tenant);
        if former == tenant {
            return;
        }
        let slots = session.requests.slots().map(|slot| self.requests.at(slot));
        let waiting = slots.filter(|request| request.state == State::Waiting).map(|request| request.service).collect();
        self.services.move_lines(&self.requests, key, tenant, waiting);
        let holdings = self.tenants.at_mut(former);
        holdings.requests -= requests;
        holdings.bytes -= bytes;
        holdings.outcomes.take(outcomes);
        let holdings = self.tenants.at_mut(tenant);
        holdings.requests += requests;
        holdings.bytes += bytes;
        holdings.outcomes.join(outcomes);
        self.tenants.acquire(tenant);
        self.tenants.release(former);
    }

    /// An outcome is kept until its client confirms it.
    #[inline]
    pub(super) fn add_unconfirmed(&mut self, key: SessionKey, size: OutcomeSize) {
        let session = &mut self.sessions[key];
        if !session.is_stored {
            self.tenants.at_mut(session.tenant).outcomes.add(size);
            // It is no longer among the requests.
            self.paused.memory_freed = true;
            if session.peer.is_none() {
                self.replies.absent_bytes += size.bytes;
            }
        }
        self.replies.add_unconfirmed(&mut session.replies, size, session.is_stored);
    }

    #[inline]
    pub(super) fn remove_unconfirmed(&mut self, key: SessionKey, size: OutcomeSize) {
        let session = &mut self.sessions[key];
        if !session.is_stored {
            self.tenants.at_mut(session.tenant).outcomes.remove(size);
            if session.peer.is_none() {
                self.replies.absent_bytes -= size.bytes;
            }
        }
        self.replies.remove_unconfirmed(&mut session.replies, size, session.is_stored);
    }

    /// Part of [`Core::check`].
    pub(super) fn check_tenants(&self) {
        let mut all: HashMap<TenantKey, (usize, usize, usize, Outcomes)> = HashMap::new();
        for (_, session) in self.sessions.iter() {
            let (requests, bytes, _, outcomes) = all.entry(session.tenant).or_default();
            *requests += session.requests.len();
            *bytes += session.bytes;
            if !session.is_stored {
                outcomes.join(session.replies.kept);
            }
        }
        for (_, service) in self.services.iter() {
            all.entry(service.owner).or_default().2 += 1;
        }
        for (key, holdings) in &self.tenants.slab {
            let expected = all.remove(&(key as TenantKey)).unwrap_or_default();
            let its = (holdings.requests, holdings.bytes, holdings.services, holdings.outcomes);
            assert_eq!(expected, its, "what a tenant has");
        }
        assert!(all.is_empty(), "a tenant that isn't there any more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_leaves_a_quarter_and_each_next_one_a_quarter_of_the_rest() {
        let take = |most: usize, used: usize| (0..).find(|&own| left_of_share(most, used + own, own) == 0).unwrap_or(0);
        assert_eq!(take(4000, 0), 3000);
        assert_eq!(take(4000, 3000), 750);
        assert_eq!(take(1, 0), 1);
        assert_eq!(take(1, 1), 0);
    }
}
