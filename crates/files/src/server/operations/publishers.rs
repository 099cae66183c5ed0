//! Clients that may publish versions, if there are no rules.

use towpath_sockets::{Address, PeerInfo, Principal};

/// Clients that may publish versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Publishers {
    /// There are no versions.
    Nobody,
    /// Clients that have logged in, and over ipc this process's user and root.
    Known,
    /// Everybody.
    All,
}

impl Publishers {
    pub(in crate::server) fn has(self, info: &PeerInfo) -> bool {
        match (self, &info.principal, &info.address) {
            (Publishers::Nobody, ..) => false,
            (Publishers::All, ..) | (_, Principal::User(_) | Principal::Key { .. }, _) => true,
            (_, _, Address::Ipc { uid, .. }) => *uid == Some(0) || *uid == Some(rustix::process::geteuid().as_raw()),
            _ => false,
        }
    }
}
