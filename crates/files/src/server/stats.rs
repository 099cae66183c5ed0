//! Statistics of a running server.

use super::pace::Pace;
use super::source::{CacheStats, Outage};
use crate::protocol::control::Slow;
use crate::relay::HolderStats;
use std::time::Instant;
use towpath_blocking::PoolLoad;
use towpath_sockets::{GonePeer, HubStats, Page, PeerId, PeerInfo, Principal};

/// A server at one moment, with a page of a list.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Clients that are connected: [`Wanted::Peers`](towpath_sockets::Wanted::Peers).
    pub peers: Page<PeerStats>,
    /// Clients that are gone: [`Wanted::Gone`](towpath_sockets::Wanted::Gone).
    pub gone: Page<GonePeer>,
    /// Follows: [`Wanted::Followers`](towpath_sockets::Wanted::Followers).
    pub followers: Page<FollowerStats>,
    /// Refusals and failures: [`Wanted::Failures`](towpath_sockets::Wanted::Failures).
    pub failures: Page<FailureStats>,
    /// Follows in all, and the number up to which the last of them has everything: [`Wanted::Sums`](towpath_sockets::Wanted::Sums).
    pub follows: (usize, Option<u64>),
    /// Fetches and pushes in progress: [`Wanted::Sums`](towpath_sockets::Wanted::Sums).
    pub transfers: usize,
    /// Sums of all connections.
    pub hub: HubStats,
    /// Whether it is being drained.
    pub is_draining: bool,
    /// Sums since the start.
    pub counters: Counters,
    /// The threads for calls that may block, by kind of work.
    pub pools: Vec<PoolLoad>,
    /// Memory and descriptors that clients share.
    pub quotas: Vec<QuotaStats>,
    /// The cache of what is served, if it has one.
    pub cache: Option<CacheStats>,
    /// The outage of where its files are, if there is one.
    pub outage: Option<Outage>,
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
    /// Fetches, the first request of the plain dialect, and pushes.
    pub transfers: Vec<TransferStats>,
    /// Listings and requests for leaves.
    pub queries: usize,
    /// Its name as a follower, if it reports what it has.
    pub follower: Option<String>,
}

/// A kind of request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestKind {
    /// Files for the client, in either dialect.
    Fetch,
    /// A file from the client.
    Push,
    /// A listing.
    List,
    /// The leaves of a file.
    Leaves,
    /// Changes, in either dialect.
    Follow,
    /// A version.
    Publish,
    /// One that isn't understood.
    Unknown,
}

impl RequestKind {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            RequestKind::Fetch => "fetch",
            RequestKind::Push => "push",
            RequestKind::List => "list",
            RequestKind::Leaves => "leaves",
            RequestKind::Follow => "follow",
            RequestKind::Publish => "publish",
            RequestKind::Unknown => "unknown",
        }
    }
}

/// A fetch or a push.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferStats {
    /// Which of the two.
    pub kind: RequestKind,
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
    /// Bytes of a push that have arrived.
    pub received_bytes: u64,
    /// Its position in the file, in bytes.
    pub done_bytes: u64,
    /// Bytes of the file, if it is open.
    pub total_bytes: Option<u64>,
    /// The same of all files of the request, as far as their sizes are known.
    pub all_done_bytes: u64,
    /// Bytes of all files, once the size of each is known.
    pub all_total_bytes: Option<u64>,
    /// Cause of its being slow, or of waiting; `None`: it goes at full speed.
    pub wait: Option<Wait>,
    /// Why its client is slow, as that said last.
    pub slow: Option<Slow>,
    /// Its rates.
    pub pace: Pace,
}

impl TransferStats {
    /// Seconds until all files are there, or this one if the sizes of others aren't known, at its present rate.
    pub fn seconds_left(&self) -> Option<u64> {
        let all = self.all_total_bytes.map(|total| total.saturating_sub(self.all_done_bytes));
        let left = all.or_else(|| Some(self.total_bytes?.saturating_sub(self.done_bytes)))?;
        left.checked_div(self.pace.rate?)
    }
}

/// Cause of a transfer's being slow, or waiting.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// The client limits its rate.
    ClientRate,
    /// This server limits its rate.
    ServerRate,
    /// The client takes nothing, and gives no sign of life.
    Frozen,
    /// The network: it loses data, or takes long.
    Network,
    /// This side's TCP send buffer is too small for the connection's round-trip time.
    SendBuffer,
    /// The same of the client's receive buffer.
    ReceiveBuffer,
    /// The client's disk doesn't keep up.
    ClientDisk,
    /// The client gives no credit, and doesn't say why.
    Credit,
    /// The client doesn't read as fast as it could be sent, and doesn't say why.
    Receiver,
    /// The client doesn't send as fast as could be written, and doesn't say why.
    Sender,
    /// A file is opened, read or written.
    Disk,
    /// A file is hashed.
    Hash,
    /// All clients together have as many files open as they may.
    OpenFiles,
    /// All threads for this kind of work are busy.
    Pool,
}

impl Wait {
    /// All, in the order of their declaration.
    pub const ALL: [Wait; 14] = [
        Wait::ClientRate,
        Wait::ServerRate,
        Wait::Frozen,
        Wait::Network,
        Wait::SendBuffer,
        Wait::ReceiveBuffer,
        Wait::ClientDisk,
        Wait::Credit,
        Wait::Receiver,
        Wait::Sender,
        Wait::Disk,
        Wait::Hash,
        Wait::OpenFiles,
        Wait::Pool,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Wait::ClientRate => "client_rate",
            Wait::ServerRate => "server_rate",
            Wait::Frozen => "frozen",
            Wait::Network => "network",
            Wait::SendBuffer => "send_buffer",
            Wait::ReceiveBuffer => "receive_buffer",
            Wait::ClientDisk => "client_disk",
            Wait::Credit => "credit",
            Wait::Receiver => "receiver",
            Wait::Sender => "sender",
            Wait::Disk => "disk",
            Wait::Hash => "hash",
            Wait::OpenFiles => "open_files",
            Wait::Pool => "pool",
        }
    }
}

/// A follow.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FollowerStats {
    /// Its connection.
    pub info: PeerInfo,
    /// The follow; None between two of them, when it only says how it fares.
    pub follow: Option<FollowStats>,
    /// The client's last report.
    pub said: Option<HolderStats>,
    /// The client's slowest transfer, if it has any.
    pub transfer: Option<TransferStats>,
}

impl FollowerStats {
    /// The number up to which it has everything, as far as is known: what was sent, or what it said is in place, if it says such things.
    pub fn has(&self) -> u64 {
        let FollowerStats { follow, said, .. } = self;
        match follow {
            Some(follow) => has((follow.seq.unwrap_or(0), follow.page_seq), said.as_ref()),
            None => said.as_ref().and_then(|said| said.seq).unwrap_or(0),
        }
    }
}

/// A follow without its client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowStats {
    /// The client's number; None for the plain dialect.
    pub id: Option<u32>,
    /// A path or glob.
    pub target: Vec<u8>,
    /// Whether it is a glob.
    pub is_glob: bool,
    /// All changes up to this number have been sent, if it has begun.
    pub seq: Option<u64>,
    /// The number of the last page that was sent.
    pub page_seq: u64,
    /// Whether it is up to date: it was sent `live`, and nothing since.
    pub is_live: bool,
}

/// The same of where a follow is: everything that was sent, and the last page.
pub(super) fn has((sent, page): (u64, u64), said: Option<&HolderStats>) -> u64 {
    match said {
        // Behind the last page there was nothing for it.
        Some(HolderStats { version: None, versions_of: None, seq, .. }) if seq.unwrap_or(0) < page => {
            seq.unwrap_or(0).min(sent)
        }
        _ => sent,
    }
}

/// A refusal or failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureStats {
    /// The client.
    pub peer: PeerId,
    /// Address that it connected from.
    pub address: String,
    /// Its user, or the name of its key.
    pub user: Option<String>,
    /// The name of the follower that it is, or fetches for.
    pub follower: Option<String>,
    /// Kind of the request.
    pub kind: RequestKind,
    /// The first path. Not always UTF-8, and cut if it is long.
    pub path: Vec<u8>,
    /// Files.
    pub count: usize,
    /// When.
    pub at: Instant,
    /// The code that the client received; `lost` if its connection ended before.
    pub code: &'static str,
    /// The reason, for people.
    pub reason: String,
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
    /// Files that clients have pushed.
    pub pushed: u64,
    /// Pushes that were refused, or failed.
    pub pushes_failed: u64,
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
