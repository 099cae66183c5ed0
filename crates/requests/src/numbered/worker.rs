//! Records between a worker and the broker.

use super::block::Block;
use super::field::{Content, Fields, PARTIAL, WireError, put_reason, put_service, records};
use super::{RequestId, Status, Token};
use crate::body::Body;

const READY: u8 = 0x81;
const REPLY: u8 = 0x82;
const CREDIT: u8 = 0x83;
const LEAVING: u8 = 0x84;
const RETURN: u8 = 0x85;

const WELCOME: u8 = 0xC1;
const REQUEST: u8 = 0xC2;
const CANCEL: u8 = 0xC3;
const LEAVE: u8 = 0xC4;
const IDENTITY: u8 = 0xC5;

/// A record from a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromWorker<'a> {
    /// First record on a connection.
    Ready {
        /// Most requests at a time.
        credit: u32,
        /// Service that it serves.
        service: &'a [u8],
    },
    /// A reply, or part of one. The final part returns its credit.
    Reply {
        /// Token of the request.
        token: Token,
        /// Status of the outcome.
        status: Status,
        /// Part number, from 0; the final part has none.
        part: Option<u32>,
        /// Reply, or reason.
        content: Content<'a>,
    },
    /// Changes the worker's credit.
    Credit {
        /// Most requests at a time, including those that it holds.
        credit: u32,
    },
    /// Takes no more requests; those that it holds are finished.
    Leaving,
    /// Gives a request back that it can't begin, through no fault of the request. The worker rests.
    Return {
        /// Token of the request.
        token: Token,
        /// Reason for people.
        reason: &'a [u8],
    },
}

impl<'a> FromWorker<'a> {
    /// Whether the frame behind this block is a list of frames.
    pub fn announces_list(block: &'a [u8]) -> bool {
        records(block, FromWorker::decode)
            .any(|record| matches!(record, FromWorker::Reply { content, .. } if content.is_attached_list()))
    }

    /// Decodes the first record of a block and advances past it.
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
            RETURN => FromWorker::Return { token: Token(fields.array()?), reason: fields.reason()? },
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

    /// Appends [`FromWorker::Return`], with at most 255 bytes of the reason.
    pub fn give_back(block: &mut Block, token: Token, reason: &str) {
        block.record(|out| {
            out.push(RETURN);
            out.extend_from_slice(&token.0);
            put_reason(out, reason);
        });
    }
}

/// A record for a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToWorker<'a> {
    /// Answer to [`FromWorker::Ready`].
    Welcome {
        /// Changes with every start of the broker.
        epoch: u64,
    },
    /// A request.
    Request {
        /// Token that the reply must return.
        token: Token,
        /// Attempt, from 1, counted over brokers and dead-letter queues. Over 1, an earlier worker may have died over it or executed it.
        attempt: u16,
        /// Milliseconds left. 0: no limit.
        ttl_ms: u32,
        /// Body.
        content: Content<'a>,
    },
    /// The outcome isn't wanted any more. No reply is needed; the credit is returned.
    Cancel {
        /// Token of the request.
        token: Token,
    },
    /// The broker is stopping. Requests that it has sent still arrive, and replies are accepted for a while.
    Leave,
    /// The id of the request that comes next, for a worker that has asked for ids.
    Identity {
        /// Token of the request.
        token: Token,
        /// Its id.
        id: RequestId,
    },
}

impl<'a> ToWorker<'a> {
    /// Whether the frame behind this block is a list of frames.
    pub fn announces_list(block: &'a [u8]) -> bool {
        records(block, ToWorker::decode)
            .any(|record| matches!(record, ToWorker::Request { content, .. } if content.is_attached_list()))
    }

    /// Decodes the first record of a block and advances past it.
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
            IDENTITY => ToWorker::Identity { token: Token(fields.array()?), id: RequestId(fields.array()?) },
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

    /// Appends [`ToWorker::Identity`].
    pub fn identity(block: &mut Block, token: Token, id: RequestId) {
        block.record(|out| {
            out.push(IDENTITY);
            out.extend_from_slice(&token.0);
            out.extend_from_slice(&id.0);
        });
    }

    /// Appends [`ToWorker::Leave`].
    pub fn leave(block: &mut Block) {
        block.record(|out| out.push(LEAVE));
    }
}
