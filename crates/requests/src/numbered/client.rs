//! Between a client and the broker.

use super::block::Block;
use super::field::{Content, Fields, PARTIAL, VOLATILE, WireError, put_service, records};
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

/// What a client says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromClient<'a> {
    /// The first record on a connection.
    Hello {
        /// Who it is, on this and all its other connections.
        client: ClientId,
        /// Its lowest number that isn't settled: whatever is lower may be forgotten.
        first: u64,
    },
    /// A request, or one once more.
    Request {
        /// Its number: greater than that of any request before it, unless it is sent again.
        number: u64,
        /// Milliseconds until it expires; 0: as the broker does by default.
        ttl_ms: u32,
        /// It needn't be journalled.
        volatile: bool,
        /// Which service.
        service: &'a [u8],
        /// The body.
        content: Content<'a>,
    },
    /// The outcomes of these have arrived, and may be forgotten.
    Confirm {
        /// The first number.
        first: u64,
        /// How many.
        count: u32,
    },
    /// The outcome of this one isn't wanted any more. It has one all the same.
    Cancel {
        /// Its number.
        number: u64,
    },
}

impl<'a> FromClient<'a> {
    /// Whether the frame behind this block is a list of frames.
    pub fn announces_list(block: &'a [u8]) -> bool {
        records(block, FromClient::decode)
            .any(|record| matches!(record, FromClient::Request { content, .. } if content.is_attached_list()))
    }

    /// Takes the next record off the front of a block.
    #[inline]
    pub fn decode(block: &mut &'a [u8]) -> Result<FromClient<'a>, WireError> {
        let mut fields = Fields(block);
        let record = match fields.u8()? {
            HELLO => FromClient::Hello { client: ClientId(fields.array()?), first: fields.u64()? },
            REQUEST => {
                let flags = fields.flags(VOLATILE)?;
                let number = fields.u64()?;
                if number == 0 {
                    return Err(WireError::NumberZero);
                }
                FromClient::Request {
                    number,
                    ttl_ms: fields.u32()?,
                    volatile: flags & VOLATILE != 0,
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
    pub fn request(block: &mut Block, number: u64, ttl_ms: u32, volatile: bool, service: &[u8], body: &Body) {
        block.record_with(body, |out, flags| {
            out.extend_from_slice(&[REQUEST, flags | if volatile { VOLATILE } else { 0 }]);
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

/// What a client hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToClient<'a> {
    /// The answer to [`FromClient::Hello`].
    Welcome {
        /// Another one after every start of the broker.
        epoch: u64,
        /// Requests that this client may have outstanding: more are refused.
        requests_max: u32,
        /// Bytes of all their bodies.
        bytes_max: u64,
        /// Whether requests are journalled, so that [`ToClient::Accepted`] will come.
        journal: bool,
    },
    /// An outcome, or part of one.
    Reply {
        /// The request's number.
        number: u64,
        /// How it ended.
        status: Status,
        /// A part, numbered from 0; the last one has no such number. They begin again at 0 when the request is executed again.
        part: Option<u32>,
        /// The reply, or the reason.
        content: Content<'a>,
    },
    /// These are in the journal, and on the disk.
    Accepted {
        /// The first number.
        first: u64,
        /// How many.
        count: u32,
    },
    /// The request was not taken, and has no outcome. It may be sent again.
    Refused {
        /// Its number.
        number: u64,
        /// Why.
        status: Status,
        /// When to try again, in milliseconds; 0: never, it would be refused again.
        retry_ms: u32,
        /// Why, for people.
        reason: &'a [u8],
    },
}

impl<'a> ToClient<'a> {
    /// Whether the frame behind this block is a list of frames.
    pub fn announces_list(block: &'a [u8]) -> bool {
        records(block, ToClient::decode)
            .any(|record| matches!(record, ToClient::Reply { content, .. } if content.is_attached_list()))
    }

    /// Takes the next record off the front of a block.
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
                reason: {
                    let length = fields.u8()?;
                    fields.bytes(usize::from(length))?
                },
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

    /// Appends [`ToClient::Refused`]; of the reason the first 255 bytes.
    pub fn refused(block: &mut Block, number: u64, status: Status, retry_ms: u32, reason: &str) {
        block.record(|out| {
            out.push(REFUSED);
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(&status.0.to_be_bytes());
            out.extend_from_slice(&retry_ms.to_be_bytes());
            let reason = &reason.as_bytes()[..reason.len().min(255)];
            out.push(reason.len() as u8);
            out.extend_from_slice(reason);
        });
    }
}
