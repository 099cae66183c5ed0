//! A pushed file, for the thread that receives them.

use super::Answer;
use super::pool::{Done, Pool, Requester};
use crate::digest::Digest;
use crate::protocol::ErrorCode;
use crate::protocol::control::{PushRequest, Range};
use crate::server::Failure;
use bytes::Bytes;
use towpath_quota::Permit;

/// A job for a push.
#[derive(Debug)]
pub(crate) enum PushJob {
    /// Begin it. The permit is for the pieces that aren't written yet.
    Begin(Box<PushRequest>, PushSees, Permit),
    /// Write a piece.
    Write(PushWrite),
}

/// Knowledge that a client may have of the path that it pushes to, beside what it has put there itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PushSees {
    /// Whether something is there.
    pub(crate) existence: bool,
    /// The file's content.
    pub(crate) content: bool,
}

/// A piece to write.
#[derive(Debug)]
pub(crate) struct PushWrite {
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
    /// Credit that is free again when it is written.
    pub(crate) credit: u64,
}

/// Progress of a push.
#[derive(Debug)]
pub(crate) enum PushUpdate {
    /// The content may be sent, but for these ranges, which ascend.
    Begun { have: Vec<Range> },
    /// A part of it was written.
    Written { credit: u64 },
    /// All of it has arrived, and is on its way to its place.
    OnItsWay,
    /// Over: the file is in place, or was already.
    InPlace { digest: Digest, durable: bool, seq: Option<u64>, same: bool },
    /// Over, with a failure.
    Failed(Failure),
}

impl PushJob {
    pub(super) fn start(self, pool: &Pool, requester: Requester) {
        match &pool.pushes {
            Some(pushes) => pushes.start_job(requester, self),
            None => {
                let failure = Failure::new(ErrorCode::Unsupported, "this server takes no pushes");
                let failed = Answer::Push(PushUpdate::Failed(failure));
                pool.answer(Done::Answer(requester, failed));
            }
        }
    }
}
