//! The dialect of Towpath's own clients, workers and broker: numbered requests, many to a message.
//!
//! A message is `[header][block]` or `[header][block][body]`. The block is a sequence of records; integers are big-endian.
//! A body is in its record, or, if the record says so, attached as the frame behind the block; that record is the block's
//! last.
// docs/protocol/requests.md has the tables.

mod block;
mod client;
mod field;
mod worker;

pub use block::BatchLimit;
pub use block::{Block, Message};
pub use client::{FromClient, Sent, ToClient};
pub use field::{Content, WireError};
pub use worker::{FromWorker, ToWorker};

/// First frame of messages between a client and the broker.
pub const CLIENT_HEADER: &[u8] = b"TWPC02";

/// First frame of messages between a worker and the broker.
pub const WORKER_HEADER: &[u8] = b"TWPW02";

/// Property of READY that announces this dialect, with the value [`PROPERTY_VALUE`].
pub const PROPERTY: &str = "X-Towpath-Requests";

/// Version of this build.
pub const PROPERTY_VALUE: &[u8] = b"2";

/// Property of a worker's READY by which it asks for the ids of requests ([`ToWorker::Identity`]), with any value.
pub const IDS_PROPERTY: &str = "X-Towpath-Request-Ids";

/// Identity of a client over all its connections: 16 unique bytes, such as random ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ClientId(pub [u8; 16]);

/// 32 hexadecimal digits.
impl std::fmt::Display for ClientId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

/// Name of a request that is the same for all its attempts. If its client is numbered, it is the same at every broker, and after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub [u8; 16]);

/// 32 hexadecimal digits.
impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

/// Opaque token that a worker returns with its reply, so that the broker finds the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Token(pub [u8; 16]);

/// Outcome of a request, or why it was refused. Numbers follow HTTP where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(pub u16);

impl Status {
    /// The worker's reply.
    pub const OK: Status = Status(200);
    /// End of a reply in parts. A client that didn't get all parts on one connection doesn't have the whole reply; callers
    /// get 200 or 410 instead.
    pub const IN_PARTS: Status = Status(206);
    /// A stock client's request that isn't well-formed.
    pub const MALFORMED: Status = Status(400);
    /// The broker's rules don't allow it to this client.
    pub const FORBIDDEN: Status = Status(403);
    /// Expired before a worker took it.
    pub const EXPIRED: Status = Status(408);
    /// The client has used the number for something else.
    pub const CONFLICT: Status = Status(409);
    /// The outcome is lost: the worker replied in parts, some of which were lost with the client's connection, or it was dropped while the
    /// client was away.
    pub const LOST: Status = Status(410);
    /// Larger than the broker accepts.
    pub const TOO_LARGE: Status = Status(413);
    /// Cancelled by its client.
    pub const CANCELLED: Status = Status(499);
    /// The worker failed; the body has its reason.
    pub const FAILED: Status = Status(500);
    /// The broker has no such built-in service.
    pub const NOT_IMPLEMENTED: Status = Status(501);
    /// Too many workers died while they had it.
    pub const ATTEMPTS_USED_UP: Status = Status(502);
    /// Temporarily refused: a queue is full, or the broker is stopping.
    pub const UNAVAILABLE: Status = Status(503);
    /// Expired while a worker had it, or after one may have had it.
    pub const TIMED_OUT: Status = Status(504);
    /// The journal or a large body can't be written, or there is no space for a worker's reply.
    pub const NO_STORAGE: Status = Status(507);

    /// Status and reason for people, without saying the same thing twice.
    pub fn describe(self, reason: &str) -> String {
        let text = self.to_string();
        let (number, meaning) = text.split_once(' ').unwrap_or((&text, ""));
        match reason {
            "" => text,
            again if again == number => text,
            more if !meaning.is_empty() && more.starts_with(meaning) => format!("{number} {more}"),
            _ => format!("{text}: {reason}"),
        }
    }

    /// Whether the worker replied successfully.
    pub fn is_ok(self) -> bool {
        self == Status::OK
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let meaning = match *self {
            Status::OK => "done",
            Status::MALFORMED => "not a well-formed request",
            Status::FORBIDDEN => "not allowed",
            Status::EXPIRED => "expired before a worker took it",
            Status::IN_PARTS => "the end of what came in parts",
            Status::CONFLICT => "this client's number was used for something else",
            Status::LOST => "the outcome is lost",
            Status::TOO_LARGE => "too large",
            Status::CANCELLED => "cancelled",
            Status::FAILED => "the worker failed",
            Status::NOT_IMPLEMENTED => "no such built-in service",
            Status::ATTEMPTS_USED_UP => "all attempts used up",
            Status::UNAVAILABLE => "not now",
            Status::TIMED_OUT => "expired, and a worker may have had it",
            Status::NO_STORAGE => "can't be kept",
            _ => return write!(f, "{}", self.0),
        };
        write!(f, "{} {meaning}", self.0)
    }
}

#[cfg(test)]
mod tests;
