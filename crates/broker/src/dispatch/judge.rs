//! Permissions of each peer, when it connects and when the rules have changed.

use super::Dispatch;
use crate::access::Access;
use crate::core::{Core, Peer};
use crate::store::Store;
use crate::transport::Transport;
use towpath_requests::numbered::Token;
use towpath_sockets::PeerId;

/// Why a peer has to go that was admitted before.
pub(super) const NOT_ADMITTED: &str = "not admitted any more";

/// Why a peer has to connect again.
const OTHER_RIGHTS: &str = "the rules have changed for this peer; connect again";

/// Whether a peer may reply to a request: one that has said what it serves may do that, and another one, which is perhaps connected again, if it
/// may serve the service.
pub(super) fn may_reply(core: &Core, access: &Access, peer: Peer, token: &Token) -> bool {
    access.permissions().is_unrestricted()
        || core.is_worker(peer)
        || core.service_of(token).is_none_or(|service| access.may_work(&service))
}

impl<T: Transport, S: Store> Dispatch<T, S> {
    /// A peer's identity and permissions; `None`: it may not stay.
    pub(super) fn access_of(&self, id: PeerId, is_new: bool) -> Option<Access> {
        let Some(authenticator) = &self.authenticator else { return Some(Access::default()) };
        let principal = self.transport.principal(id);
        // One that has gone meanwhile can do nothing.
        let Some(address) = self.transport.address(id) else { return Some(Access::nothing()) };
        Some(Access::new(authenticator.permissions(&principal, &address, is_new)?, &principal))
    }

    /// Asks again what each peer may do, and ends the connections of those for whom that is something else now. Returns how many.
    pub fn judge_again(&mut self) -> usize {
        let mut ended = 0;
        for id in self.connections.ids().collect::<Vec<_>>() {
            // Of one that has gone, what is left was sent before.
            if self.connections.of(id).is_none_or(|connection| connection.is_gone) {
                continue;
            }
            let now = self.access_of(id, false);
            let Some(connection) = self.connections.of(id) else { continue };
            let why = match &now {
                None => NOT_ADMITTED,
                Some(access) if access.permissions() != connection.access.permissions() => OTHER_RIGHTS,
                Some(_) => continue,
            };
            let address = connection.address.as_ref().map(tracing::field::display);
            tracing::info!(peer = %id, address, why, "disconnected");
            ended += usize::from(self.disconnect(id, why));
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dispatch::assembler::Attached;
    use crate::dispatch::tests::connected;
    use bytes::Bytes;
    use towpath_requests::numbered::{Block, CLIENT_HEADER, ClientId, FromClient};
    use towpath_rules::Permissions;
    use towpath_sockets::Principal;

    #[test]
    fn an_id_of_a_client_belongs_to_its_user() {
        for (users, are_both_there) in [(["ann", "bob"], true), (["ann", "ann"], false)] {
            let (mut broker, _peers) = connected(2);
            for (peer, user) in users.into_iter().enumerate() {
                let connection = broker.dispatch.connections.find(peer as Peer).unwrap();
                connection.access = Access::new(Permissions::unrestricted(), &Principal::User(user.into()));
                let id = connection.id;
                let mut block = Block::default();
                FromClient::hello(&mut block, ClientId([1; 16]), 1);
                let records: Vec<u8> = block.drain().flat_map(|message| message.block.to_vec()).collect();
                let message = [Bytes::from_static(CLIENT_HEADER), Bytes::from(records)];
                broker.dispatch.on_message(id, &message, Attached::Nothing);
            }
            let is_there = |peer| broker.dispatch.core.has_role(peer);
            assert!(is_there(1) && is_there(0) == are_both_there, "{users:?}");
        }
    }
}
