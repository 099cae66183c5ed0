//! Jobs that run in the pool of threads, since they may block: parts of fetches, listings and follows, a module each with its job, the answer, and
//! what happens between them; and [`operations`](super::operations), which have one answer each.

mod changes;
mod extents;
mod hash;
mod hasher;
pub(super) mod list;
mod load;
mod open;
mod pool;
mod prepare;
mod push;

#[cfg(test)]
pub(crate) use changes::PAGE_ENTRIES;
pub(super) use changes::{Changes, ChangesAnswer, ChangesBody, PageForm, ReadPiece, is_full};
pub(super) use extents::FindExtents;
pub(super) use hash::Hash;
pub(super) use list::{List, Page};
pub(super) use load::{Load, LoadHow, Loaded};
pub(super) use open::Open;
pub(super) use pool::{Context, Done, Pool, Requester};
pub(super) use prepare::{Prepare, Prepared};
pub(super) use push::{PushJob, PushSees, PushUpdate, PushWrite};

use super::Failure;
use super::chunks::Layout;
use super::client_root::ClientRoot;
use super::open_file::OpenFile;
use super::operations::{Answered, Operation};
use super::session::Slot;
use super::snapshot::RootSnapshot;
use crate::digest::Digest;
use bytes::Bytes;
use list::Listing;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;
use towpath_quota::Quota;
use towpath_rules::Permissions;

/// A job that a session asks for. `F` is an open file.
#[derive(Debug)]
pub(super) enum Job<F> {
    Prepare(Prepare),
    Hash(Hash<F>),
    FindExtents(FindExtents<F>),
    Load(Load<F>),
    List(List),
    Open(Open),
    Changes(Changes),
    Piece(ReadPiece),
    Push(PushJob),
    Operation(Box<dyn Operation>),
}

/// The answer to a job.
#[derive(Debug)]
pub(super) enum Answer<F> {
    /// At least one file, from the first of the job on.
    Prepare(Vec<Prepared<F>>),
    /// For the file of this number in its fetch.
    Hash(u32, Result<Digest, Failure>),
    /// For the file of this number in its fetch.
    FindExtents(u32, Result<Layout, Failure>),
    Load(Slot, Result<Loaded<F>, Failure>),
    List(Result<Page, Failure>),
    /// The file and its size.
    Open(Result<(F, u64), Failure>),
    Changes(Result<ChangesAnswer, Failure>),
    /// A piece of a published file.
    Piece(Result<Bytes, Failure>),
    /// Progress of a push.
    Push(PushUpdate),
    /// Reply of an operation.
    Reply(Result<Answered, Failure>),
}

/// State that the jobs of one request share.
#[derive(Debug)]
pub(super) struct RequestState {
    pub(super) cancel: CancelToken,
    begun: Instant,
    snapshot: Arc<RootSnapshot>,
    /// The client's permissions.
    permissions: Permissions,
    /// The client's share of [`Quotas::list_names`](super::quota::Quotas::list_names).
    list_names: Arc<Quota>,
    /// A listing between two pages.
    listing: Mutex<Option<Box<Listing>>>,
}

impl RequestState {
    pub(super) fn new(snapshot: Arc<RootSnapshot>, permissions: Permissions, list_names: &Arc<Quota>) -> RequestState {
        RequestState {
            cancel: CancelToken::new(),
            begun: Instant::now(),
            snapshot,
            permissions,
            list_names: Arc::clone(list_names),
            listing: Mutex::default(),
        }
    }

    /// The root that the request sees.
    pub(super) fn snapshot(&self) -> Arc<RootSnapshot> {
        Arc::clone(&self.snapshot)
    }

    /// How long ago it began.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The root that the request sees, as far as its client may see it. Blocks.
    pub(super) fn root(&self, context: &Context) -> ClientRoot {
        ClientRoot::new(self.snapshot.root(&context.served), self.permissions.clone())
    }

    /// Stops jobs of the request that run.
    pub(super) fn cancel(&self) {
        self.cancel.cancel();
    }

    fn listing(&self) -> MutexGuard<'_, Option<Box<Listing>>> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job<OpenFile> {
    /// Starts a job; its answer if it needs no thread.
    pub(super) fn start(
        self,
        pool: &mut Pool,
        requester: Requester,
        request: &Arc<RequestState>,
    ) -> Option<Answer<OpenFile>> {
        match self {
            Job::Prepare(job) => job.start(pool, requester, request),
            Job::Hash(job) => job.start(pool, requester),
            Job::FindExtents(job) => job.start(pool, requester),
            Job::Load(job) => return job.start(pool, requester).map(|(slot, loaded)| Answer::Load(slot, loaded)),
            Job::List(job) => job.start(pool, requester, request),
            Job::Changes(job) => job.start(pool, requester),
            Job::Push(job) => job.start(pool, requester),
            Job::Piece(job) => job.start(pool, requester, request),
            Job::Operation(job) => operate(job, pool, requester, request),
            Job::Open(job) => return job.start(pool, requester, request).map(Answer::Open),
        }
        None
    }
}

/// Runs an operation. It may hash, so it gives way to others.
fn operate(mut operation: Box<dyn Operation>, pool: &mut Pool, requester: Requester, request: &Arc<RequestState>) {
    let path = operation.path().to_rel_path().ok();
    let (_, group) = pool.group(requester, &request.snapshot, path.as_ref());
    let request = Arc::clone(request);
    let failed = |failure| Answer::Reply(Err(failure));
    pool.run_steps(&pool.hash, group, requester, failed, move |context| {
        operation.step(context, &request).transpose().map(Answer::Reply)
    });
}
