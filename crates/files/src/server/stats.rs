//! Statistics of a running server.

use towpath_blocking::PoolLoad;
use towpath_sockets::{GonePeer, HubStats, Page, PeerInfo, Principal};

/// A server at one moment, with a page of a list.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Clients that are connected: [`Wanted::Peers`](towpath_sockets::Wanted::Peers).
    pub peers: Page<PeerStats>,
    /// Clients that are gone: [`Wanted::Gone`](towpath_sockets::Wanted::Gone).
    pub gone: Page<GonePeer>,
    /// Sums of all connections.
    pub hub: HubStats,
    /// Sums since the start.
    pub counters: Counters,
    /// The threads for calls that may block, by kind of work.
    pub pools: Vec<PoolLoad>,
    /// Memory and descriptors that clients share.
    pub quotas: Vec<QuotaStats>,
}

/// A client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerStats {
    /// Its connection.
    pub info: PeerInfo,
    /// Its identity, as far as the mechanism establishes one.
    pub principal: Principal,
    /// Bytes that it gave credit for and that were not sent.
    pub credit_bytes: u64,
    /// Fetches, and the first request of the plain dialect.
    pub transfers: Vec<TransferStats>,
    /// Listings and requests for leaves.
    pub queries: usize,
}

/// A fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferStats {
    /// The client's number; None for the plain dialect.
    pub id: Option<u32>,
    /// The file that it is at. Not always UTF-8.
    pub path: Vec<u8>,
    /// Files of the request; of the plain dialect, requests that wait.
    pub files: usize,
    /// Files that are over.
    pub files_done: usize,
    /// Bytes of bodies given to the socket; of the plain dialect, of this file.
    pub sent_bytes: u64,
    /// Cause of waiting, if it waits.
    pub wait: Option<Wait>,
}

/// Cause of a transfer's waiting.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// The client gives no credit.
    Credit,
    /// The client doesn't read as fast as it could be sent.
    Receiver,
    /// A file is opened or read.
    Disk,
    /// A file is hashed.
    Hash,
    /// All clients together have as many files open as they may.
    OpenFiles,
}

/// Sums since the start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Connections after their handshake.
    pub connected: u64,
    /// Requests that were understood.
    pub requests: u64,
    /// Requests that were not.
    pub malformed: u64,
    /// Files that could not be had.
    pub files_refused: u64,
    /// Files declared void after some of them was sent.
    pub files_void: u64,
    /// Files that clients have confirmed.
    pub files_confirmed: u64,
}

/// Use of a quota.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaStats {
    /// For people.
    pub name: &'static str,
    /// Units acquired and not released.
    pub used: u64,
    /// The limit.
    pub max: u64,
}
