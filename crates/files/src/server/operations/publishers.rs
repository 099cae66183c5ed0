//! Who may publish versions, where no rules say so.

use towpath_sockets::{Address, PeerInfo, Principal};

/// Who may publish versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Publishers {
    /// There are no versions.
    Nobody,
    /// Who has logged in, and over ipc this process's user and root.
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
