//! Socket types and which may talk to which (RFC 23, RFC 28).

use std::fmt;

/// The patterns that this library speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SocketType {
    /// Asks, one request at a time.
    Req,
    /// Answers, one request at a time.
    Rep,
    /// Asks and answers freely.
    Dealer,
    /// Talks to many, by routing id.
    Router,
}

impl SocketType {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            SocketType::Req => "REQ",
            SocketType::Rep => "REP",
            SocketType::Dealer => "DEALER",
            SocketType::Router => "ROUTER",
        }
    }

    /// The type of that name on the wire, if it is one that this library speaks.
    pub fn from_name(name: &[u8]) -> Option<SocketType> {
        match name {
            b"REQ" => Some(SocketType::Req),
            b"REP" => Some(SocketType::Rep),
            b"DEALER" => Some(SocketType::Dealer),
            b"ROUTER" => Some(SocketType::Router),
            _ => None,
        }
    }

    /// Whether a peer of that type may be talked to.
    pub fn may_talk_to(self, peer: SocketType) -> bool {
        use SocketType::{Dealer, Rep, Req, Router};
        match self {
            Req => matches!(peer, Rep | Router),
            Rep => matches!(peer, Req | Dealer),
            Dealer => matches!(peer, Rep | Dealer | Router),
            Router => matches!(peer, Req | Dealer | Router),
        }
    }

    /// Whether READY carries an `Identity`, even an empty one: libzmq sends it for exactly these.
    pub fn announces_identity(self) -> bool {
        matches!(self, SocketType::Req | SocketType::Dealer | SocketType::Router)
    }
}

impl fmt::Display for SocketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
