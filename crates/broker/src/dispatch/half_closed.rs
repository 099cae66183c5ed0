//! Connections whose peer has closed its side, and may still read.

use super::Dispatch;
use super::connection::PeerProtocol;
use crate::store::Store;
use crate::transport::Transport;
use towpath_sockets::PeerId;

impl<T: Transport, S: Store> Dispatch<T, S> {
    /// Handles a peer that has closed its side. A stock client still gets the replies to its requests. Any other connection ends: a worker can't reply, and
    /// a numbered client can't confirm, and asks again over its next connection.
    pub(super) fn on_half_closed(&mut self, id: PeerId) {
        let Some(connection) = self.connections.of(id) else { return };
        if !matches!(connection.protocol, PeerProtocol::StockClient(_)) {
            return self.transport.end_half_closed(id, true);
        }
        connection.is_half_closed = true;
        connection.assembler.drop_partial();
        self.connections.recount(id);
        self.half_closed.push(id);
    }

    /// Ends the half-closed connections that wait for nothing more, once they have been sent all.
    pub(super) fn end_half_closed(&mut self) {
        for id in std::mem::take(&mut self.half_closed) {
            let outstanding = self.core.outstanding(id.slot());
            let Some(connection) = self.connections.of(id) else { continue };
            let is_sent = connection.pending.is_empty() && connection.batch.is_empty();
            if outstanding == 0 && is_sent && !connection.assembler.has_backlog() {
                self.transport.end_half_closed(id, false);
            }
        }
    }
}
