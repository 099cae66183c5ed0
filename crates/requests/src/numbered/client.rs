//! Records between a client and the broker.

use super::block::Block;
use super::field::{Content, Fields, PARTIAL, RESENT, VOLATILE, WireError, put_reason, put_service, records};
use super::{ClientId, Status};
use crate::body::Body;

const HELLO: u8 = 0x01;
const REQUEST: u8 = 0x02;
const CONFIRM: u8 = 0x03;
const CANCEL: u8 = 0x04;

const WELCOME: u8 = 0x41;
const REPLY: u8 = 0x42;
const ACCEPTED: u8 = 0x43;
const REFUSED: u8 = 0x44;

/// A record from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromClient<'a> {
    /// First record on a connection.
    Hello {
        /// Identity of the client, the same on all its connections.
        client: ClientId,
        /// Lowest number without an outcome. The broker may forget all lower ones.
        first: u64,
    },
    /// A request, possibly resent.
    Request {
        /// Number, greater than that of any earlier request unless resent.
        number: u64,
        /// Time to live in milliseconds. 0: the broker's default.
        ttl_ms: u32,
        /// Properties of the sending.
        sent: Sent,
        /// Name of the service.
        service: &'a [u8],
        /// Body.
        content: Content<'a>,
    },
    /// Acknowledges outcomes: the broker may forget these numbers.
    Confirm {
        /// First number.
        first: u64,
        /// Count of numbers.
        count: u32,
    },
    /// Cancels a request, which still gets an outcome.
    Cancel {
        /// Number of the request.
        number: u64,
    },
}

/// Properties of sending a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Not journalled.
    pub volatile: bool,
    /// Over an earlier connection too: a worker of another broker, or of this one before a restart, may have had it.
    pub resent: bool,
}

/// For the first time. True: not journalled.
impl From<bool> for Sent {
    fn from(volatile: bool) -> Sent {
        Sent { volatile, resent: false }
    }
}

impl<'a> FromClient<'a> {
    /// Whether the frame behind this block is a list of frames.
    pub fn announces_list(block: &'a [u8]) -> bool {
        records(block, FromClient::decode)
            .any(|record| matches!(record, FromClient::Request { content, .. } if content.is_attached_list()))
    }

    /// Decodes the first record of a block and advances past it.
    #[inline]
    pub fn decode(block: &mut &'a [u8]) -> Result<FromClient<'a>, WireError> {
        let mut fields = Fields(block);
        let record = match fields.u8()? {
            HELLO => FromClient::Hello { client: ClientId(fields.array()?), first: fields.u64()? },
            REQUEST => {
                let flags = fields.flags(VOLATILE | RESENT)?;
                let number = fields.u64()?;
                if number == 0 {
                    return Err(WireError::NumberZero);
                }
                FromClient::Request {
                    number,
                    ttl_ms: fields.u32()?,
                    sent: Sent { volatile: flags & VOLATILE != 0, resent: flags & RESENT != 0 },
                    service: fields.service()?,
                    content: fields.content(flags)?,
                }
            }
            CONFIRM => FromClient::Confirm { first: fields.u64()?, count: fields.u32()? },
            CANCEL => FromClient::Cancel { number: fields.u64()? },
            unknown => return Err(WireError::UnknownKind(unknown)),
        };
        *block = fields.0;
        Ok(record)
    }

    /// Appends [`FromClient::Hello`].
    pub fn hello(block: &mut Block, client: ClientId, first: u64) {
        block.record(|out| {
            out.push(HELLO);
            out.extend_from_slice(&client.0);
            out.extend_from_slice(&first.to_be_bytes());
        });
    }

    /// Appends [`FromClient::Request`].
    #[inline]
    pub fn request(block: &mut Block, number: u64, ttl_ms: u32, sent: impl Into<Sent>, service: &[u8], body: &Body) {
        let sent = sent.into();
        block.record_with(body, |out, flags| {
            let volatile = if sent.volatile { VOLATILE } else { 0 };
            let resent = if sent.resent { RESENT } else { 0 };
            out.extend_from_slice(&[REQUEST, flags | volatile | resent]);
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(&ttl_ms.to_be_bytes());
            put_service(out, service);
        });
    }

    /// Appends [`FromClient::Confirm`].
    pub fn confirm(block: &mut Block, first: u64, count: u32) {
        block.record(|out| put_range(out, CONFIRM, first, count));
    }

    /// Appends [`FromClient::Cancel`].
    pub fn cancel(block: &mut Block, number: u64) {
        block.record(|out| {
            out.push(CANCEL);
            out.extend_from_slice(&number.to_be_bytes());
        });
    }
}

fn put_range(out: &mut Vec<u8>, kind: u8, first: u64, count: u32) {
    out.push(kind);
    out.extend_from_slice(&first.to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
}

/// A record for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToClient<'a> {
    /// Answer to [`FromClient::Hello`].
    Welcome {
        /// Changes with every start of the broker.
        epoch: u64,
        /// Most requests that this client may have outstanding. More are refused.
        requests_max: u32,
        /// Most bytes of their bodies.
        bytes_max: u64,
        /// Whether requests are journalled, so that [`ToClient::Accepted`] will follow.
        journal: bool,
    },
    /// An outcome, or part of one.
    Reply {
        /// Number of the request.
        number: u64,
        /// Status of the outcome.
        status: Status,
        /// Part number, from 0; the final part has none. Numbers start over at 0 if the request is executed again.
        part: Option<u32>,
        /// Reply, or reason.
        content: Content<'a>,
    },
    /// These requests are durable in the journal.
    Accepted {
        /// First number.
        first: u64,
        /// Count of numbers.
        count: u32,
    },
    /// The request was refused, has no outcome, and may be resent.
    Refused {
        /// Number of the request.
        number: u64,
        /// Status that says why.
        status: Status,
        /// When to retry, in milliseconds. 0: never.
        retry_ms: u32,
        /// Reason for people.
        reason: &'a [u8],
    },
}

impl<'a> ToClient<'a> {
    /// Whether the frame behind this block is a list of frames.
    pub fn announces_list(block: &'a [u8]) -> bool {
        records(block, ToClient::decode)
            .any(|record| matches!(record, ToClient::Reply { content, .. } if content.is_attached_list()))
    }

    /// Decodes the first record of a block and advances past it.
    #[inline]
    pub fn decode(block: &mut &'a [u8]) -> Result<ToClient<'a>, WireError> {
        let mut fields = Fields(block);
        let record = match fields.u8()? {
            WELCOME => ToClient::Welcome {
                epoch: fields.u64()?,
                requests_max: fields.u32()?,
                bytes_max: fields.u64()?,
                journal: fields.u8()? & 1 != 0,
            },
            REPLY => {
                let flags = fields.flags(PARTIAL)?;
                ToClient::Reply {
                    number: fields.u64()?,
                    status: Status(fields.u16()?),
                    part: if flags & PARTIAL != 0 { Some(fields.u32()?) } else { None },
                    content: fields.content(flags)?,
                }
            }
            ACCEPTED => ToClient::Accepted { first: fields.u64()?, count: fields.u32()? },
            REFUSED => ToClient::Refused {
                number: fields.u64()?,
                status: Status(fields.u16()?),
                retry_ms: fields.u32()?,
                reason: fields.reason()?,
            },
            unknown => return Err(WireError::UnknownKind(unknown)),
        };
        *block = fields.0;
        Ok(record)
    }

    /// Appends [`ToClient::Welcome`].
    pub fn welcome(block: &mut Block, epoch: u64, requests_max: u32, bytes_max: u64, journal: bool) {
        block.record(|out| {
            out.push(WELCOME);
            out.extend_from_slice(&epoch.to_be_bytes());
            out.extend_from_slice(&requests_max.to_be_bytes());
            out.extend_from_slice(&bytes_max.to_be_bytes());
            out.push(u8::from(journal));
        });
    }

    /// Appends [`ToClient::Reply`].
    #[inline]
    pub fn reply(block: &mut Block, number: u64, status: Status, part: Option<u32>, body: &Body) {
        block.record_with(body, |out, flags| {
            out.extend_from_slice(&[REPLY, flags | if part.is_some() { PARTIAL } else { 0 }]);
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(&status.0.to_be_bytes());
            if let Some(part) = part {
                out.extend_from_slice(&part.to_be_bytes());
            }
        });
    }

    /// Appends [`ToClient::Accepted`].
    pub fn accepted(block: &mut Block, first: u64, count: u32) {
        block.record(|out| put_range(out, ACCEPTED, first, count));
    }

    /// Appends [`ToClient::Refused`], with at most 255 bytes of the reason.
    pub fn refused(block: &mut Block, number: u64, status: Status, retry_ms: u32, reason: &str) {
        block.record(|out| {
            out.push(REFUSED);
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(&status.0.to_be_bytes());
            out.extend_from_slice(&retry_ms.to_be_bytes());
            put_reason(out, reason);
        });
    }
}
