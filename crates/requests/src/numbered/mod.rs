//! What our clients, workers and broker say to each other: numbered requests, many to a message.
//!
//! A message is `[header][block]` or `[header][block][body]`. The block is records end to end; integers are big-endian. A body is
//! in its record, or, if the record says that it is attached, in the frame behind the block: then it is the block's last
//! record. docs/protocol/requests.md has the tables.

mod block;
mod client;
mod field;
mod worker;

pub use block::Extent;
pub use block::{Block, Message};
pub use client::{FromClient, ToClient};
pub use field::{Content, WireError};
pub use worker::{FromWorker, ToWorker};

/// The first frame of what a client says and hears.
pub const CLIENT_HEADER: &[u8] = b"TWPC01";

/// The first frame of what a worker says and hears.
pub const WORKER_HEADER: &[u8] = b"TWPW01";

/// The property of READY by which both sides tell that they speak this, with the value [`PROPERTY_VALUE`].
pub const PROPERTY: &str = "X-Towpath-Requests";

/// The version that this build speaks.
pub const PROPERTY_VALUE: &[u8] = b"1";

/// Names a client over all its connections: 16 bytes that no other client has, such as random ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ClientId(pub [u8; 16]);

/// 32 hexadecimal digits.
impl std::fmt::Display for ClientId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

/// What a worker returns so that its reply finds its request: 16 bytes that mean something to the broker only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Token(pub [u8; 16]);

/// How a request ended, or why it was refused. Numbers as in HTTP, where they have a meaning there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(pub u16);

impl Status {
    /// The worker's reply.
    pub const OK: Status = Status(200);
    /// The end of the worker's reply, of which parts came before: whoever hasn't got these on the same connection doesn't have it all.
    /// Callers are told 200 or 410 instead.
    pub const IN_PARTS: Status = Status(206);
    /// It expired before a worker took it.
    pub const EXPIRED: Status = Status(408);
    /// The worker replied in parts, and some of them were lost with the client's connection.
    pub const PARTS_LOST: Status = Status(410);
    /// It is larger than the broker takes.
    pub const TOO_LARGE: Status = Status(413);
    /// Its client cancelled it.
    pub const CANCELLED: Status = Status(499);
    /// The worker says that it failed; the body has its reason.
    pub const FAILED: Status = Status(500);
    /// The broker doesn't have such a built-in service.
    pub const NOT_IMPLEMENTED: Status = Status(501);
    /// Too many workers died over it.
    pub const ATTEMPTS_USED_UP: Status = Status(502);
    /// Not now: a queue is full, or the broker is stopping.
    pub const UNAVAILABLE: Status = Status(503);
    /// It expired while a worker had it, or after one had, as far as can be known.
    pub const TIMED_OUT: Status = Status(504);
    /// The journal, or a large body, can't be written; or a worker replied, and there is no room for that.
    pub const NO_STORAGE: Status = Status(507);

    /// How something ended and why, for people, each thing once: a reason may be the status over again, or begin with what it means.
    pub fn because(self, reason: &str) -> String {
        let told = self.to_string();
        let (number, meaning) = told.split_once(' ').unwrap_or((&told, ""));
        match reason {
            "" => told,
            again if again == number => told,
            more if !meaning.is_empty() && more.starts_with(meaning) => format!("{number} {more}"),
            _ => format!("{told}: {reason}"),
        }
    }

    /// Whether the worker replied as asked.
    pub fn is_ok(self) -> bool {
        self == Status::OK
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let meaning = match *self {
            Status::OK => "done",
            Status::EXPIRED => "expired before a worker took it",
            Status::IN_PARTS => "the end of what came in parts",
            Status::PARTS_LOST => "parts of the reply were lost",
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
