//! Between a worker and the broker.

use super::block::Block;
use super::field::{Content, Fields, PARTIAL, WireError, put_service, records};
use super::{Status, Token};
use crate::body::Body;

const READY: u8 = 0x81;
const REPLY: u8 = 0x82;
const CREDIT: u8 = 0x83;
const LEAVING: u8 = 0x84;

const WELCOME: u8 = 0xC1;
const REQUEST: u8 = 0xC2;
const CANCEL: u8 = 0xC3;
const LEAVE: u8 = 0xC4;

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromWorker<'a> {
    /// The first record on a connection.
    Ready {
        /// How many requests it takes at a time.
        credit: u32,
        /// The service that it works for.
        service: &'a [u8],
    },
    /// A reply, or part of one. The last one gives its credit back.
    Reply {
        /// The request's token.
        token: Token,
        /// How it went.
        status: Status,
        /// A part, numbered from 0; the last one has no such number.
        part: Option<u32>,
        /// The reply, or the reason.
        content: Content<'a>,
    },
    /// How many requests it takes at a time from now on.
    Credit {
        /// The number; what it holds already counts.
        credit: u32,
    },
    /// It takes no more requests, and finishes those that it holds.
    Leaving,
}

impl<'a> FromWorker<'a> {
    /// Whether the frame behind this block is a list of frames.
    pub fn announces_list(block: &'a [u8]) -> bool {
        records(block, FromWorker::decode)
            .any(|record| matches!(record, FromWorker::Reply { content, .. } if content.is_attached_list()))
    }

    /// Takes the next record off the front of a block.
    #[inline]
    pub fn decode(block: &mut &'a [u8]) -> Result<FromWorker<'a>, WireError> {
        let mut fields = Fields(block);
        let record = match fields.u8()? {
            READY => FromWorker::Ready { credit: fields.u32()?, service: fields.service()? },
            REPLY => {
                let flags = fields.flags(PARTIAL)?;
                FromWorker::Reply {
                    token: Token(fields.array()?),
                    status: Status(fields.u16()?),
                    part: if flags & PARTIAL != 0 { Some(fields.u32()?) } else { None },
                    content: fields.content(flags)?,
                }
            }
            CREDIT => FromWorker::Credit { credit: fields.u32()? },
            LEAVING => FromWorker::Leaving,
            unknown => return Err(WireError::UnknownKind(unknown)),
        };
        *block = fields.0;
        Ok(record)
    }

    /// Appends [`FromWorker::Ready`].
    pub fn ready(block: &mut Block, credit: u32, service: &[u8]) {
        block.record(|out| {
            out.push(READY);
            out.extend_from_slice(&credit.to_be_bytes());
            put_service(out, service);
        });
    }

    /// Appends [`FromWorker::Reply`].
    #[inline]
    pub fn reply(block: &mut Block, token: Token, status: Status, part: Option<u32>, body: &Body) {
        block.record_with(body, |out, flags| {
            out.extend_from_slice(&[REPLY, flags | if part.is_some() { PARTIAL } else { 0 }]);
            out.extend_from_slice(&token.0);
            out.extend_from_slice(&status.0.to_be_bytes());
            if let Some(part) = part {
                out.extend_from_slice(&part.to_be_bytes());
            }
        });
    }

    /// Appends [`FromWorker::Credit`].
    pub fn credit(block: &mut Block, credit: u32) {
        block.record(|out| {
            out.push(CREDIT);
            out.extend_from_slice(&credit.to_be_bytes());
        });
    }

    /// Appends [`FromWorker::Leaving`].
    pub fn leaving(block: &mut Block) {
        block.record(|out| out.push(LEAVING));
    }
}

/// What a worker hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToWorker<'a> {
    /// The answer to [`FromWorker::Ready`].
    Welcome {
        /// Another one after every start of the broker.
        epoch: u64,
    },
    /// A request.
    Request {
        /// What the reply must bring back.
        token: Token,
        /// Which attempt this is, from 1: over 1, a worker may have died over it, or have executed it already.
        attempt: u16,
        /// Milliseconds that are left of its time; 0: there is no limit.
        ttl_ms: u32,
        /// The body.
        content: Content<'a>,
    },
    /// The outcome of this one isn't wanted any more. No reply is needed; its credit is back.
    Cancel {
        /// The request's token.
        token: Token,
    },
    /// The broker is stopping: what it has taken still comes, and replies are awaited for a while.
    Leave,
}

impl<'a> ToWorker<'a> {
    /// Whether the frame behind this block is a list of frames.
    pub fn announces_list(block: &'a [u8]) -> bool {
        records(block, ToWorker::decode)
            .any(|record| matches!(record, ToWorker::Request { content, .. } if content.is_attached_list()))
    }

    /// Takes the next record off the front of a block.
    #[inline]
    pub fn decode(block: &mut &'a [u8]) -> Result<ToWorker<'a>, WireError> {
        let mut fields = Fields(block);
        let record = match fields.u8()? {
            WELCOME => ToWorker::Welcome { epoch: fields.u64()? },
            REQUEST => {
                let flags = fields.flags(0)?;
                ToWorker::Request {
                    token: Token(fields.array()?),
                    attempt: fields.u16()?,
                    ttl_ms: fields.u32()?,
                    content: fields.content(flags)?,
                }
            }
            CANCEL => ToWorker::Cancel { token: Token(fields.array()?) },
            LEAVE => ToWorker::Leave,
            unknown => return Err(WireError::UnknownKind(unknown)),
        };
        *block = fields.0;
        Ok(record)
    }

    /// Appends [`ToWorker::Welcome`].
    pub fn welcome(block: &mut Block, epoch: u64) {
        block.record(|out| {
            out.push(WELCOME);
            out.extend_from_slice(&epoch.to_be_bytes());
        });
    }

    /// Appends [`ToWorker::Request`].
    #[inline]
    pub fn request(block: &mut Block, token: Token, attempt: u16, ttl_ms: u32, body: &Body) {
        block.record_with(body, |out, flags| {
            out.extend_from_slice(&[REQUEST, flags]);
            out.extend_from_slice(&token.0);
            out.extend_from_slice(&attempt.to_be_bytes());
            out.extend_from_slice(&ttl_ms.to_be_bytes());
        });
    }

    /// Appends [`ToWorker::Cancel`].
    pub fn cancel(block: &mut Block, token: Token) {
        block.record(|out| {
            out.push(CANCEL);
            out.extend_from_slice(&token.0);
        });
    }

    /// Appends [`ToWorker::Leave`].
    pub fn leave(block: &mut Block) {
        block.record(|out| out.push(LEAVE));
    }
}
