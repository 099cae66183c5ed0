//! The Majordomo protocol of stock clients and workers: MDP/0.1 (RFC 7), MDP/0.2 (RFC 18), and majortomo's variant of 0.2.
//!
//! No I/O: frames in, frames out.
// docs/protocol/requests.md has the tables.

mod broker;
pub mod peer;

pub use broker::Head;
pub use broker::{
    FromPeer, Header, MdpError, WorkerCommand, decode, disconnect, heartbeat, reply_head, request_head, token_of,
};

/// Header of MDP/0.1 clients.
pub const CLIENT_01: &[u8] = b"MDPC01";
/// Header of MDP/0.1 workers.
pub const WORKER_01: &[u8] = b"MDPW01";
/// Header of MDP/0.2 clients.
pub const CLIENT_02: &[u8] = b"MDPC02";
/// Header of MDP/0.2 workers.
pub const WORKER_02: &[u8] = b"MDPW02";
/// Header of opencmw-cpp's clients, whose layout isn't supported.
pub const CLIENT_03: &[u8] = b"MDPC03";
/// Header of opencmw-cpp's workers.
pub const WORKER_03: &[u8] = b"MDPW03";

/// Dialect of a stock peer, detected from its first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// MDP/0.1: an empty frame before the header; one reply per request.
    Mdp01,
    /// MDP/0.2: no empty frame; partial replies and a final one.
    Mdp02,
    /// MDP/0.2 as in the majortomo library: an empty frame before the header, no service in replies.
    Majortomo,
}

impl Dialect {
    /// Whether clients expect exactly one reply per request.
    pub fn has_one_reply(self) -> bool {
        self == Dialect::Mdp01
    }
}

impl std::fmt::Display for Dialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Dialect::Mdp01 => "MDP/0.1",
            Dialect::Mdp02 => "MDP/0.2",
            Dialect::Majortomo => "MDP/0.2 (majortomo)",
        })
    }
}

/// Command bytes between worker and broker.
pub mod command {
    use super::Dialect;

    /// A worker serves a service.
    pub const READY: u8 = 1;
    /// A request for a worker.
    pub const REQUEST: u8 = 2;
    /// MDP/0.1 has one kind of reply.
    pub const REPLY_01: u8 = 3;
    /// MDP/0.2: a part of a reply; more follow.
    pub const PARTIAL: u8 = 3;
    /// MDP/0.2: the last part of a reply.
    pub const FINAL: u8 = 4;

    /// Heartbeat, in either direction.
    pub fn heartbeat(dialect: Dialect) -> u8 {
        if dialect == Dialect::Mdp01 { 4 } else { 5 }
    }

    /// The other side should end the connection.
    pub fn disconnect(dialect: Dialect) -> u8 {
        if dialect == Dialect::Mdp01 { 5 } else { 6 }
    }
}

#[cfg(test)]
mod tests;
