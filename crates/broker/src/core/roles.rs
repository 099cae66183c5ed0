//! Roles of connections.

use super::{Peer, SessionKey, WorkerKey};

/// The role as which a connection has introduced itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing yet.
    None,
    Client(SessionKey),
    Worker(WorkerKey),
}

/// The role of each connection. Peers are small numbers, so this is a table.
#[derive(Debug, Default)]
pub(super) struct Roles(Vec<Role>);

impl Roles {
    #[inline]
    pub fn get(&self, peer: Peer) -> Role {
        self.0.get(peer as usize).copied().unwrap_or(Role::None)
    }

    pub fn set(&mut self, peer: Peer, role: Role) {
        let index = peer as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, Role::None);
        }
        self.0[index] = role;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_connections_have_no_role() {
        let mut roles = Roles::default();
        roles.set(3, Role::Worker(7));
        assert_eq!((roles.get(3), roles.get(2), roles.get(1000)), (Role::Worker(7), Role::None, Role::None));
        roles.set(3, Role::None);
        assert_eq!(roles.get(3), Role::None);
    }
}
