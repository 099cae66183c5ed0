//! The network as the dispatch sees it.

use std::io;
use std::time::Duration;
use towpath_sockets::{
    Address, Authenticator, Credentials, Event, LargeMessages, Message, PeerId, Principal, Queued, SendError, Tenant,
};

/// Connections to peers, and the clock. [`towpath_sockets::Hub`] has the methods of the same names, and says more about each.
pub trait Transport {
    /// Time since the broker was started.
    fn now(&self) -> Duration;

    /// Bytes that peers can't guess.
    fn random(&mut self) -> io::Result<[u8; 16]>;

    /// The next event of the last poll.
    fn next_event(&mut self) -> Option<Event>;

    /// Queues a message. A full queue gives it back, and reports [`Event::Writable`] later.
    fn send(&mut self, peer: PeerId, message: Message) -> Result<(), SendError>;

    /// Sends what is queued, as far as the network takes it.
    fn flush(&mut self);

    /// Whether anything is queued for any peer.
    fn has_output(&self) -> bool;

    /// Answers [`Event::Authenticate`].
    fn authenticate(&mut self, by: Option<&Authenticator>, peer: PeerId, credentials: Credentials);

    /// Ends a connection. [`Event::Gone`] follows.
    fn disconnect(&mut self, peer: PeerId, reason: &str);

    /// Keeps [`PeerId::slot`] of a peer that is gone from being reused, until [`Transport::release_slot`].
    fn reserve_slot(&mut self, gone: PeerId) -> bool;

    /// Lets the slot of a peer be reused.
    fn release_slot(&mut self, gone: PeerId);

    /// Stops or resumes reading from a peer.
    fn pause_reading(&mut self, peer: PeerId, paused: bool);

    /// Sets whether [`Transport::set_large_messages`] applies to a peer.
    fn set_deferrable(&mut self, peer: PeerId, deferrable: bool);

    /// Sets which large messages may begin.
    fn set_large_messages(&mut self, large: LargeMessages);

    /// Whether a message of a peer waits because of [`Transport::set_large_messages`].
    fn is_deferred(&self, peer: PeerId) -> bool;

    /// Ends the connection of a peer that stops reading.
    fn detect_stalls(&mut self, peer: PeerId);

    /// Lets a peer leave a PING unanswered for at least this long.
    fn extend_pong_timeout(&mut self, peer: PeerId, to: Duration);

    /// Ends the connection of a peer that has closed its side ([`Event::HalfClosed`]): at once, or when what is queued has left.
    fn end_half_closed(&mut self, peer: PeerId, at_once: bool);

    /// Sets how many bytes are read from one peer in one poll.
    fn set_read_budget_bytes(&mut self, bytes: usize);

    /// Messages and bytes queued for a peer.
    fn queued(&self, peer: PeerId) -> Queued;

    /// Bytes of memory queued for all peers.
    fn queued_bytes(&self) -> usize;

    /// Bytes from which on a peer's queue is full.
    fn queue_limit(&self) -> usize;

    /// Bytes that the network has taken for a peer.
    fn bytes_out(&self, peer: PeerId) -> u64;

    /// Whether the next bytes for a peer are being read from a disk.
    fn is_prefetching(&self, peer: PeerId) -> bool;

    /// Whether a peer's READY had a property of this name.
    fn has_property(&self, peer: PeerId, name: &str) -> bool;

    /// A peer's address.
    fn address(&self, peer: PeerId) -> Option<Address>;

    /// A peer's identity as its mechanism establishes it.
    fn principal(&self, peer: PeerId) -> Principal;

    /// A peer's tenant.
    fn tenant(&self, peer: PeerId) -> Option<Tenant>;
}
