//! The transport on real sockets.

use crate::transport::Transport;
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::time::{Duration, Instant};
use towpath_sockets::{
    Address, Authenticator, Credentials, Event, Hub, LargeMessages, Message, PeerId, Principal, Queued, SendError,
    Tenant,
};

/// A hub, and when the broker was started.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub hub: Hub,
    pub started: Instant,
}

impl Transport for Sockets {
    #[inline]
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn random(&mut self) -> io::Result<[u8; 16]> {
        random()
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        self.hub.next_event()
    }

    #[inline]
    fn send(&mut self, peer: PeerId, message: Message) -> Result<(), SendError> {
        self.hub.send(peer, message)
    }

    fn flush(&mut self) {
        self.hub.flush();
    }

    fn has_output(&self) -> bool {
        self.hub.has_output()
    }

    fn authenticate(&mut self, by: Option<&Authenticator>, peer: PeerId, credentials: Credentials) {
        self.hub.authenticate_by(by, peer, credentials);
    }

    fn disconnect(&mut self, peer: PeerId, reason: &str) {
        self.hub.disconnect(peer, reason);
    }

    fn reserve_slot(&mut self, gone: PeerId) -> bool {
        self.hub.reserve_slot(gone)
    }

    fn release_slot(&mut self, gone: PeerId) {
        self.hub.release_slot(gone);
    }

    fn pause_reading(&mut self, peer: PeerId, paused: bool) {
        self.hub.pause_reading(peer, paused);
    }

    fn set_deferrable(&mut self, peer: PeerId, deferrable: bool) {
        self.hub.set_deferrable(peer, deferrable);
    }

    fn set_large_messages(&mut self, large: LargeMessages) {
        self.hub.set_large_messages(large);
    }

    fn is_deferred(&self, peer: PeerId) -> bool {
        self.hub.is_deferred(peer)
    }

    fn detect_stalls(&mut self, peer: PeerId) {
        self.hub.detect_stalls(peer);
    }

    fn extend_pong_timeout(&mut self, peer: PeerId, to: Duration) {
        self.hub.extend_pong_timeout(peer, to);
    }

    fn end_half_closed(&mut self, peer: PeerId, at_once: bool) {
        self.hub.end_half_closed(peer, at_once);
    }

    fn set_read_budget_bytes(&mut self, bytes: usize) {
        self.hub.set_read_budget_bytes(bytes);
    }

    fn queued(&self, peer: PeerId) -> Queued {
        self.hub.queued(peer)
    }

    fn queued_bytes(&self) -> usize {
        self.hub.queued_bytes()
    }

    fn queue_limit(&self) -> usize {
        self.hub.queue_limit()
    }

    fn bytes_out(&self, peer: PeerId) -> u64 {
        self.hub.bytes_out(peer)
    }

    fn is_prefetching(&self, peer: PeerId) -> bool {
        self.hub.is_prefetching(peer)
    }

    fn has_property(&self, peer: PeerId, name: &str) -> bool {
        self.hub.peer(peer).is_some_and(|peer| peer.metadata.find(name).is_some())
    }

    fn address(&self, peer: PeerId) -> Option<Address> {
        self.hub.peer(peer).map(|peer| peer.address)
    }

    fn principal(&self, peer: PeerId) -> Principal {
        self.hub.peer(peer).map(|peer| peer.principal).unwrap_or_default()
    }

    fn tenant(&self, peer: PeerId) -> Option<Tenant> {
        self.hub.peer(peer).as_ref().map(Tenant::of)
    }
}

/// Bytes that peers can't guess.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(bytes)
}
