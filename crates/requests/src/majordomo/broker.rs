//! Majordomo as the broker sees it.

use super::{CLIENT_01, CLIENT_02, CLIENT_03, Dialect, WORKER_01, WORKER_02, WORKER_03, command};
use crate::is_built_in;
use crate::limits::{BODY_FRAMES_MAX, SERVICE_BYTES_MAX};
use crate::numbered::{Status, Token};
use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Most frames of an envelope: those before the empty one, which a client gets back.
pub const ENVELOPE_FRAMES_MAX: usize = 16;

/// Most bytes of an envelope.
pub const ENVELOPE_BYTES_MAX: usize = 4_096;

/// Frames before a body.
pub type Head = SmallVec<[Bytes; 8]>;

/// A message from a stock peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromPeer {
    /// A client's request.
    Request {
        /// Dialect of the client.
        dialect: Dialect,
        /// Frames before the empty one, returned with the reply; in MDP/0.2 frames before the header, with the empty one if there is one.
        /// `None`: the header comes first.
        envelope: Option<Arc<[Bytes]>>,
        /// Name of the service.
        service: Bytes,
        /// Body of at least one frame.
        body: SmallVec<[Bytes; 2]>,
    },
    /// A client's request that can't be taken, to be answered with the reason.
    Refused {
        /// Dialect of the client.
        dialect: Dialect,
        /// As of [`FromPeer::Request`].
        envelope: Option<Arc<[Bytes]>>,
        /// The frame in the service's place, cut if it is long.
        service: Bytes,
        /// Malformed or too large.
        status: Status,
        /// Reason.
        reason: &'static str,
    },
    /// A worker's command.
    Worker {
        /// Dialect of the worker.
        dialect: Dialect,
        /// The command.
        command: WorkerCommand,
    },
}

/// A stock worker's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerCommand {
    /// Serves a service.
    Ready {
        /// Name of the service.
        service: Bytes,
    },
    /// A reply, or part of one.
    Reply {
        /// Client address of the request.
        address: Bytes,
        /// Whether more parts follow.
        partial: bool,
        /// Body of at least one frame.
        body: SmallVec<[Bytes; 2]>,
    },
    /// Heartbeat.
    Heartbeat,
    /// Leaves.
    Disconnect,
}

/// Longest part of an unknown header that is shown. Majordomo's have 6 bytes.
const HEADER_SHOWN_BYTES: usize = 16;

/// Beginning of an unknown header, printable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; HEADER_SHOWN_BYTES],
    /// Length of the whole header.
    length: usize,
}

impl Header {
    fn of(header: &[u8]) -> Header {
        let mut bytes = [0; HEADER_SHOWN_BYTES];
        bytes.iter_mut().zip(header).for_each(|(shown, byte)| *shown = *byte);
        Header { bytes, length: header.len() }
    }
}

impl std::fmt::Display for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.bytes.get(..self.length).unwrap_or(&self.bytes);
        let rest = if self.length > shown.len() { "..." } else { "" };
        write!(f, "{}{rest}", shown.escape_ascii())
    }
}

/// A message from a stock peer that can't be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MdpError {
    /// A dialect that isn't supported.
    #[error(
        "{0} is not supported; this broker speaks MDP/0.1, MDP/0.2, majortomo's shape of it and Towpath's numbered requests"
    )]
    Dialect(&'static str),
    /// Not Majordomo at all.
    #[error("not a Majordomo message: {0}")]
    NotMajordomo(&'static str),
    /// An unknown header in the place of Majordomo's.
    #[error("not a supported Majordomo message: an unknown header after the empty frame, \"{0}\"")]
    UnknownHeader(Header),
    /// A worker's message that is malformed.
    #[error("malformed: {why}")]
    Malformed {
        /// Reason.
        why: &'static str,
        /// Dialect of the worker, which should get a DISCONNECT.
        worker: Dialect,
    },
}

fn malformed<T>(why: &'static str, worker: Dialect) -> Result<T, MdpError> {
    Err(MdpError::Malformed { why, worker })
}

/// Longest beginning of an invalid service name that a refusal repeats. Clients compare the name in a reply with their own.
const REFUSED_SERVICE_BYTES_MAX: usize = 4_096;

/// Why a request or a reply is invalid.
type Invalid = (Status, &'static str);

/// Decodes a message from a stock peer.
pub fn decode(frames: &[Bytes]) -> Result<FromPeer, MdpError> {
    let first = frames.first().map_or(&b""[..], |frame| frame);
    match first {
        CLIENT_02 => return Ok(strict_request(None, &frames[1..])),
        WORKER_02 => return worker(Dialect::Mdp02, &frames[1..]),
        // A layout without an empty frame. Behind one, the peer took it for Majordomo.
        CLIENT_03 | WORKER_03 => return Err(MdpError::Dialect("the MDP/0.3 of opencmw-cpp")),
        [0xAA, 0xA4, ..] => return Err(MdpError::Dialect("the zproto codec of zeromq/majordomo")),
        CLIENT_01 | WORKER_01 => {
            return Err(MdpError::NotMajordomo(
                "MDP/0.1 has an empty frame before its header (a DEALER has to send it)",
            ));
        }
        _ => {}
    }
    // A proxy puts the id of its client before a message of MDP/0.2, and no empty frame.
    let is_end = |frame: &Bytes| frame.is_empty() || frame == CLIENT_02;
    let Some(delimiter) = frames.iter().take(ENVELOPE_FRAMES_MAX + 1).position(is_end) else {
        return Err(MdpError::NotMajordomo("no header, and no empty frame before one"));
    };
    if frames[..delimiter].iter().map(Bytes::len).sum::<usize>() > ENVELOPE_BYTES_MAX {
        return Err(MdpError::NotMajordomo("over 4096 bytes of envelope"));
    }
    // Copied: a slice would keep the read buffer alive as long as the request.
    let copy =
        |frames: &[Bytes]| -> Arc<[Bytes]> { frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect() };
    let rest = match &frames[delimiter..] {
        [header, rest @ ..] if header == CLIENT_02 => {
            return Ok(strict_request(Some(copy(&frames[..delimiter])), rest));
        }
        rest => rest,
    };
    let [_, header, rest @ ..] = rest else {
        return Err(MdpError::NotMajordomo("nothing after the empty frame"));
    };
    let envelope = || copy(&frames[..delimiter]);
    match &header[..] {
        CLIENT_01 => Ok(request(Dialect::Mdp01, Some(envelope()), rest)),
        CLIENT_02 => match rest {
            [command, rest @ ..] if command[..] == [command::REQUEST] => {
                Ok(request(Dialect::Majortomo, Some(envelope()), rest))
            }
            [command, ..] if command[..] == [1] => Ok(strict_request(Some(copy(&frames[..=delimiter])), rest)),
            _ => Err(MdpError::Dialect("the MDP/0.2 of zeromq/majordomo, whose clients send no command")),
        },
        WORKER_01 if delimiter == 0 => worker(Dialect::Mdp01, rest),
        WORKER_02 if delimiter == 0 => worker(Dialect::Majortomo, rest),
        WORKER_01 | WORKER_02 => Err(MdpError::NotMajordomo(
            "a worker behind an envelope; connect workers to the broker itself, not to a proxy",
        )),
        CLIENT_03 | WORKER_03 => Err(MdpError::Dialect("the MDP/0.3 of opencmw-cpp")),
        _ => Err(MdpError::UnknownHeader(Header::of(header))),
    }
}

fn strict_request(envelope: Option<Arc<[Bytes]>>, rest: &[Bytes]) -> FromPeer {
    match rest {
        [command, rest @ ..] if command[..] == [1] => request(Dialect::Mdp02, envelope, rest),
        _ => {
            let invalid = (Status::MALFORMED, "a client of MDP/0.2 sends the command 01");
            refused(Dialect::Mdp02, envelope, rest.get(1), invalid)
        }
    }
}

/// A client's request: service and body.
fn request(dialect: Dialect, envelope: Option<Arc<[Bytes]>>, frames: &[Bytes]) -> FromPeer {
    let checked = match frames {
        [] => Err((Status::MALFORMED, "no service")),
        // Some built-in services take no argument: an empty frame, or none.
        [service] if is_built_in(service) => check_service(service).map(|service| (service, smallvec![Bytes::new()])),
        [service, body @ ..] => check_service(service).and_then(|service| Ok((service, check_body(body)?))),
    };
    match checked {
        Ok((service, body)) => FromPeer::Request { dialect, envelope, service, body },
        Err(invalid) => refused(dialect, envelope, frames.first(), invalid),
    }
}

fn refused(
    dialect: Dialect,
    envelope: Option<Arc<[Bytes]>>,
    service: Option<&Bytes>,
    (status, reason): Invalid,
) -> FromPeer {
    let service = service.map(|service| service.slice(..service.len().min(REFUSED_SERVICE_BYTES_MAX)));
    FromPeer::Refused { dialect, envelope, service: service.unwrap_or_default(), status, reason }
}

fn check_service(service: &Bytes) -> Result<Bytes, Invalid> {
    match service.len() {
        0 => Err((Status::MALFORMED, "an empty service name")),
        1..=SERVICE_BYTES_MAX => Ok(service.clone()),
        _ => Err((Status::MALFORMED, "a service name of over 255 bytes")),
    }
}

fn check_body(body: &[Bytes]) -> Result<SmallVec<[Bytes; 2]>, Invalid> {
    match body.len() {
        0 => Err((Status::MALFORMED, "a body of no frames")),
        1..=BODY_FRAMES_MAX => Ok(body.iter().cloned().collect()),
        _ => Err((Status::TOO_LARGE, "a body of over 1000 frames")),
    }
}

fn worker(dialect: Dialect, rest: &[Bytes]) -> Result<FromPeer, MdpError> {
    let [command, rest @ ..] = rest else { return malformed("a worker's message without a command", dialect) };
    let &[command] = &command[..] else { return malformed("a command of other than one byte", dialect) };
    let command = match command {
        command::READY => match rest {
            [service] => match check_service(service) {
                Ok(service) => WorkerCommand::Ready { service },
                Err((_, why)) => return malformed(why, dialect),
            },
            [] => return malformed("READY without a service", dialect),
            _ => return malformed("READY with more than a service", dialect),
        },
        command::REPLY_01 => reply(dialect, rest, dialect != Dialect::Mdp01)?,
        command::FINAL if dialect != Dialect::Mdp01 => reply(dialect, rest, false)?,
        heartbeat if heartbeat == command::heartbeat(dialect) => WorkerCommand::Heartbeat,
        disconnect if disconnect == command::disconnect(dialect) => WorkerCommand::Disconnect,
        _ => return malformed("an unknown command of a worker", dialect),
    };
    Ok(FromPeer::Worker { dialect, command })
}

fn reply(dialect: Dialect, rest: &[Bytes], partial: bool) -> Result<WorkerCommand, MdpError> {
    let [address, delimiter, body @ ..] = rest else {
        return malformed("a reply without address, empty frame and body", dialect);
    };
    if !delimiter.is_empty() {
        return malformed("no empty frame after a reply's address", dialect);
    }
    match check_body(body) {
        Ok(body) => Ok(WorkerCommand::Reply { address: address.clone(), partial, body }),
        Err((_, why)) => malformed(why, dialect),
    }
}

/// Frames before the body of a request to a worker. The address is the token in hexadecimal, since some stock workers treat
/// it as text.
pub fn request_head(dialect: Dialect, token: &Token) -> Head {
    let mut head = worker_head(dialect, command::REQUEST);
    let mut address = Vec::with_capacity(32);
    for byte in token.0 {
        for digit in [byte >> 4, byte & 15] {
            address.push(b"0123456789abcdef"[usize::from(digit)]);
        }
    }
    head.push(address.into());
    head.push(Bytes::new());
    head
}

/// The token in a reply's address. `None`: not an address of this broker.
pub fn token_of(address: &[u8]) -> Option<Token> {
    let digits: &[u8; 32] = address.try_into().ok()?;
    let mut token = [0; 16];
    for (byte, pair) in token.iter_mut().zip(digits.chunks_exact(2)) {
        for &digit in pair {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            *byte = (*byte << 4) | value;
        }
    }
    Some(Token(token))
}

/// Frames before the body of a reply to a client.
pub fn reply_head(dialect: Dialect, envelope: Option<&Arc<[Bytes]>>, service: &Bytes, partial: bool) -> Head {
    let mut head = Head::new();
    if let Some(envelope) = envelope {
        head.extend(envelope.iter().cloned());
        if dialect != Dialect::Mdp02 {
            head.push(Bytes::new());
        }
    }
    let one = |byte: u8| Bytes::from(vec![byte]);
    match dialect {
        Dialect::Mdp01 => head.extend([Bytes::from_static(CLIENT_01), service.clone()]),
        Dialect::Mdp02 => {
            head.extend([Bytes::from_static(CLIENT_02), one(if partial { 2 } else { 3 }), service.clone()]);
        }
        Dialect::Majortomo => {
            let command = if partial { command::PARTIAL } else { command::FINAL };
            head.extend([Bytes::from_static(CLIENT_02), one(command)]);
        }
    }
    head
}

fn worker_head(dialect: Dialect, command: u8) -> Head {
    let command = Bytes::from(vec![command]);
    match dialect {
        Dialect::Mdp01 => smallvec![Bytes::new(), Bytes::from_static(WORKER_01), command],
        Dialect::Mdp02 => smallvec![Bytes::from_static(WORKER_02), command],
        Dialect::Majortomo => smallvec![Bytes::new(), Bytes::from_static(WORKER_02), command],
    }
}

/// A heartbeat for a worker.
pub fn heartbeat(dialect: Dialect) -> Head {
    worker_head(dialect, command::heartbeat(dialect))
}

/// Asks a worker to leave. It may come back on a new connection.
pub fn disconnect(dialect: Dialect) -> Head {
    worker_head(dialect, command::disconnect(dialect))
}
