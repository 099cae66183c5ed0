//! Requests that have one answer each: a module for each, with its permission, its log line, its job and its answer.
//!
//! A new one is a module here that implements [`Operation`], its request and reply in [`crate::protocol::control`], and a line in
//! [`operation`].

mod leaves;
mod publish;
pub(super) mod publishers;

use super::Failure;
use super::access_log::ClientName;
use super::jobs::{Context, RequestState};
use super::stats::RequestKind;
use crate::protocol::control::{Reply, Request, WirePath};
use bytes::Bytes;
use std::fmt;
use towpath_rules::Permissions;

/// A request that has one answer.
pub(super) trait Operation: fmt::Debug + Send {
    /// Its kind in statistics and the log.
    fn kind(&self) -> RequestKind;

    /// The client's number for it.
    fn id(&self) -> u32;

    /// The path that it is about.
    fn path(&self) -> &WirePath;

    /// Why this client may not have it. Paths that a job resolves are checked by the job.
    fn check(&self, client: Client<'_>) -> Result<(), Failure>;

    /// Logs that it was requested.
    fn log(&self, client: &ClientName);

    /// Does a part of it, on a thread that may block: the answer, or `None` if there is more to do.
    fn step(&mut self, context: &Context, state: &RequestState) -> Result<Option<Answered>, Failure>;
}

/// A client, as far as operations ask about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client<'a> {
    pub(super) permissions: &'a Permissions,
    /// Where no rules say so: it may publish versions.
    pub(super) may_publish: bool,
}

/// A reply to a client.
#[derive(Debug)]
pub(super) struct Answered {
    reply: Reply,
    attachment: Option<Bytes>,
}

impl Answered {
    /// A reply, which has the request's id, and the frame behind it.
    pub(super) fn new(reply: Reply, attachment: Option<Bytes>) -> Answered {
        Answered { reply, attachment }
    }

    /// Its frames.
    pub(super) fn into_frames(self) -> (Bytes, Option<Bytes>) {
        (self.reply.encode().into(), self.attachment)
    }
}

/// The operation that a request asks for, if it has one answer.
pub(super) fn operation(request: Request) -> Result<Box<dyn Operation>, Request> {
    match request {
        Request::Leaves(request) => Ok(Box::new(leaves::Leaves::new(request))),
        Request::Publish(request) => Ok(Box::new(publish::Publish::new(request))),
        request => Err(request),
    }
}
