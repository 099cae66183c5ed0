//! Pushes into a store: what has arrived whole in a directory of this machine is put there.
//!
//! Requests to the store may take long, so they are jobs of a pool.

use super::Order;
use super::receiver::{Push, Receiver, Stage};
use crate::digest::{Digest, Digested, Leaf, LeafSize, wall_clock};
use crate::disk::Staged;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Expected, PushRequest, Range};
use crate::root::RootError;
use crate::server::client_root::ClientRoot;
use crate::server::jobs::{Context, PushUpdate, Requester};
use crate::server::open_file::OpenFile;
use crate::server::push::admission::check_condition;
use crate::server::push::known::Placed;
use crate::server::push::outcome::conflict;
use crate::server::source::{Attributes, NewContent, NewFile, Put, Replaced, Source, Stored};
use crate::server::{Failure, RECEIPTS};
use crate::transfer::{ContentKey, DiskCommand};
use bytes::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Orders, Sender};
use std::time::{Duration, Instant};
use towpath_blocking::{BlockingPool, PoolLimits};
use towpath_rules::Permissions;

/// Threads for looks and small files, which take a few round trips each unless an object has to be hashed. One user leaves some to others.
const SHORT: PoolLimits = PoolLimits { name: "tow-push-short", threads_max: 32, hung_max: 0, per_group_max: 24 };
/// Threads for files that came in pieces.
const LONG: PoolLimits = PoolLimits { name: "tow-push-long", threads_max: 8, hung_max: 0, per_group_max: 6 };
/// How often clients learn that their files are on their way into the store.
const ALIVE_EVERY: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
/// Time in which files that are being put are given up when the server ends.
pub(super) const END_WITHIN: Duration = Duration::from_secs(10);

/// The store that files are put into.
pub(super) struct StoreJobs {
    shared: Arc<Shared>,
    short: BlockingPool,
    long: BlockingPool,
    orders: Sender<Order>,
}

struct Shared {
    source: Arc<dyn Source>,
    root: ClientRoot,
    context: Arc<Context>,
    has_ended: AtomicBool,
}

/// A file that has arrived.
#[derive(Debug)]
pub(super) enum Arrived {
    /// With its push.
    Bytes(Bytes),
    /// In a file, with the values of its leaves.
    Staged(Staged, Vec<Leaf>),
}

/// A file that is to be put.
struct Putting {
    path: RelPath,
    expected: Expected,
    size: u64,
    modified: crate::root::Timestamp,
    mode: u32,
    digest: Digest,
    leaves: LeafSize,
}

impl StoreJobs {
    pub(super) fn start(
        source: Arc<dyn Source>,
        context: Arc<Context>,
        orders: Sender<Order>,
    ) -> std::io::Result<StoreJobs> {
        let root = ClientRoot::new(Arc::clone(&source), Permissions::unrestricted());
        let shared = Shared { source, root, context, has_ended: AtomicBool::new(false) };
        // Each with a first thread, so that each job has an end.
        let (short, long) = (BlockingPool::started(SHORT)?, BlockingPool::started(LONG)?);
        Ok(StoreJobs { shared: Arc::new(shared), short, long, orders })
    }

    /// Fails if no such file can be put.
    pub(super) fn check(&self, path: &RelPath, size: u64) -> Result<(), Failure> {
        self.shared.store()?.check(path, size).map_err(|why| Failure::new(ErrorCode::Denied, why))
    }

    /// Looks at the path of a push. Report: [`Order::Looked`].
    fn look(&self, number: u64, push: &Push) {
        let (shared, orders) = (Arc::clone(&self.shared), self.orders.clone());
        let (path, size, may_know) = (push.path(), push.request.size, push.sees.content);
        let has_condition = matches!(push.request.expected, Expected::Digest(_));
        let look = move || {
            let found = or_failed(|| shared.look(&path, |there| may_know && (has_condition || there.size == size)));
            let _ = orders.send(Order::Looked(number, found));
        };
        // Fails only without any thread.
        let _ = self.short.submit(0, push.requester.tenant, look);
    }

    /// Puts a file. Report: [`Order::Stored`].
    fn put(&self, number: u64, push: &Push, arrived: Arrived) {
        let (shared, orders) = (Arc::clone(&self.shared), self.orders.clone());
        let request = &push.request;
        let putting = Putting {
            path: push.path(),
            expected: request.expected,
            size: request.size,
            modified: request.mtime,
            mode: request.mode & 0o777,
            digest: request.digest,
            leaves: push.leaves,
        };
        let pool = if let Arrived::Bytes(_) = arrived { &self.short } else { &self.long };
        let put = move || {
            let outcome = or_failed(|| shared.put(&putting, &arrived));
            drop(arrived);
            let _ = orders.send(Order::Stored(number, outcome));
        };
        let _ = pool.submit(0, push.requester.tenant, put);
    }
}

impl Shared {
    fn store(&self) -> Result<&dyn crate::server::source::Store, Failure> {
        self.source.store().ok_or_else(|| Failure::new(ErrorCode::Unsupported, "what is served takes no files"))
    }

    /// The file at a path, with its digest if the store has that, or it is wanted.
    fn look(&self, path: &RelPath, is_wanted: impl Fn(&Attributes) -> bool) -> Result<Option<Stored>, Failure> {
        let Some(mut there) = self.store()?.look(path).map_err(failure)? else { return Ok(None) };
        if there.digest.is_none() && is_wanted(&there.attributes) {
            there.digest = self.hash(path, &there.attributes)?;
        }
        Ok(Some(there))
    }

    /// The digest of a file; `None` if another one is there by now.
    fn hash(&self, path: &RelPath, there: &Attributes) -> Result<Option<Digest>, Failure> {
        let file = match OpenFile::open_quietly(&self.root, path) {
            Err(RootError::NotFound | RootError::NotAFile | RootError::Changed) => return Ok(None),
            file => file.map_err(failure)?,
        };
        if file.attributes.validator != there.validator {
            return Ok(None);
        }
        let mut progress = None;
        loop {
            match self.context.hasher.slice(&file, &file.attributes, &mut progress, || self.has_ended()) {
                Ok(Some(digested)) => return Ok(Some(digested.digest)),
                Ok(None) => {}
                Err(crate::digest::HashError::Changed) => return Ok(None),
                Err(crate::digest::HashError::GivenUp) => return Err(ending()),
                Err(crate::digest::HashError::Refused(error)) => return Err(failure(error)),
                Err(error) => return Err(Failure::new(ErrorCode::Io, error.to_string())),
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Puts a file; false if its path isn't as expected.
    fn put(&self, putting: &Putting, arrived: &Arrived) -> Result<bool, Failure> {
        let Some(replaced) = self.replaced(putting)? else { return Ok(false) };
        let put = |content: NewContent<'_>| {
            let Putting { size, modified, mode, digest, .. } = *putting;
            let file = NewFile { content, size, modified, mode, digest };
            self.store()?.put(&putting.path, &file, &replaced, &|| self.has_ended()).map_err(failure)
        };
        let put = match arrived {
            Arrived::Bytes(bytes) => put(NewContent::Bytes(bytes.clone())),
            Arrived::Staged(staged, _) => staged
                .with_file(|file| put(NewContent::File(file)))
                .unwrap_or_else(|error| Err(super::outcome::failure(error))),
        };
        match put? {
            Put::InPlace(attributes) => {
                if let Some(attributes) = attributes {
                    self.remember(putting, arrived, &attributes);
                }
                Ok(true)
            }
            // Perhaps by this file: its answer was lost, and so the request was repeated.
            Put::NotAsExpected => {
                let there = self.look(&putting.path, |_| false)?;
                Ok(there.is_some_and(|there| there.digest == Some(putting.digest)))
            }
        }
    }

    /// The version that is to be replaced; `None` if the path isn't as expected.
    fn replaced(&self, putting: &Putting) -> Result<Option<Replaced>, Failure> {
        match putting.expected {
            Expected::Anything => Ok(Some(Replaced::Anything)),
            // Not all stores know conditions.
            Expected::Nothing => Ok(self.look(&putting.path, |_| false)?.is_none().then_some(Replaced::Nothing)),
            Expected::Digest(digest) => {
                let there = self.look(&putting.path, |_| true)?.filter(|there| there.digest == Some(digest));
                Ok(there.map(|there| there.tag.map_or(Replaced::Anything, Replaced::Tag)))
            }
        }
    }

    /// Remembers the digest, so that the file needn't be read to be sent.
    fn remember(&self, putting: &Putting, arrived: &Arrived, attributes: &Attributes) {
        let leaves: Box<[Leaf]> = match arrived {
            Arrived::Staged(_, values) if values.len() > 1 => values.clone().into(),
            _ => Box::new([putting.digest.0]),
        };
        let digested = Digested { digest: putting.digest, leaf_size: putting.leaves, leaves };
        self.context.hasher.cache.remember(attributes, Arc::new(digested), wall_clock());
    }
}

impl Receiver {
    /// Looks at the path of a push in the store, if there is one.
    pub(super) fn look_in_store(&self, number: u64) -> bool {
        let (Some(store), Some(push)) = (&self.store, self.pushes.get(&number)) else { return false };
        store.look(number, push);
        true
    }

    /// Goes on with a push once it is known what is at its path in the store.
    pub(super) fn looked(&mut self, number: u64, found: Result<Option<Stored>, Failure>) {
        let Some(push) = self.pushes.get_mut(&number) else { return };
        if let Stage::Over { .. } = push.stage {
            self.forget(number);
            return;
        }
        let goes_on = found.and_then(|there| {
            let digest = there.as_ref().and_then(|there| there.digest);
            let is_own = digest
                .is_some_and(|digest| self.known.has_put(&push.local, push.requester.tenant, &Placed::Stored(digest)));
            push.sees_all_if(is_own);
            check_condition(push.request.expected, push.sees)?;
            if digest == Some(push.request.digest) && push.sees.content {
                return Ok(false);
            }
            let is_as_expected = match push.request.expected {
                Expected::Anything => true,
                Expected::Nothing => there.is_none(),
                Expected::Digest(expected) => digest == Some(expected),
            };
            if is_as_expected { Ok(true) } else { Err(conflict(push.request.expected)) }
        });
        match goes_on {
            Err(failure) => {
                push.stage = Stage::Receiving;
                self.fail(number, failure, true);
            }
            Ok(false) => self.same(number),
            Ok(true) if push.request.content.is_some() => {
                if let Err(failure) = self.put_content(number) {
                    self.fail(number, failure, false);
                }
            }
            Ok(true) => self.inspect(number),
        }
    }

    /// Puts a file into the store, if there is one.
    pub(super) fn put_into_store(&mut self, number: u64, arrived: Arrived) {
        let (Some(store), Some(push)) = (&self.store, self.pushes.get_mut(&number)) else { return };
        push.stage = Stage::Putting;
        push.last = Instant::now();
        store.put(number, push, arrived);
    }

    /// Lets a client wait for a file of its own that is on its way into the store: its connection was lost, and it has come again. Returns whether
    /// that is so.
    pub(super) fn take_over(&mut self, requester: Requester, request: &PushRequest, local: &RelPath) -> bool {
        let is_its = |push: &Push| {
            let of = |request: &PushRequest| {
                (request.digest, request.expected, request.mtime, request.mode, request.durable)
            };
            let is_same = push.requester.tenant == requester.tenant && of(&push.request) == of(request);
            push.local == *local && push.is_on_its_way() && is_same && request.content.is_none()
        };
        let Some((number, push)) =
            self.pushes.iter_mut().find(|(_, push)| is_its(push)).filter(|_| self.store.is_some())
        else {
            return false;
        };
        let before = std::mem::replace(&mut push.requester, requester);
        self.by_request.remove(&(before.key, before.ticket));
        self.by_request.insert((requester.key, requester.ticket), *number);
        let failure = Failure::new(ErrorCode::Conflict, "the same file is pushed over another connection");
        (self.send_update)(before, PushUpdate::Failed(failure));
        (self.send_update)(requester, PushUpdate::Begun { have: vec![Range { offset: 0, length: request.size }] });
        true
    }

    /// Reports the result of putting a file into the store. What the store couldn't take is kept, and put by the next push of it.
    pub(super) fn stored(&mut self, number: u64, outcome: Result<bool, Failure>) {
        let content = ContentKey(number);
        let is_kept = outcome.as_ref().is_err_and(|failure| failure.code != ErrorCode::Changed);
        self.disk.command(if is_kept { DiskCommand::Leave { content } } else { DiskCommand::Abandon { content } });
        let Some(push) = self.forget(number) else { return };
        let update = match outcome {
            Ok(true) => {
                let digest = push.request.digest;
                self.known.put(&push.local, push.requester.tenant, Placed::Stored(digest));
                let durable = push.request.durable;
                tracing::info!(target: RECEIPTS, durable, "pushed {} {digest}", push.path());
                PushUpdate::InPlace { digest, durable, seq: None, same: false }
            }
            Ok(false) => PushUpdate::Failed(conflict(push.request.expected)),
            Err(failure) => PushUpdate::Failed(failure),
        };
        (self.send_update)(push.requester, update);
    }

    /// Lets clients know that their files are on their way into the store.
    pub(super) fn note_puts(&mut self) {
        if self.store.is_none() {
            return;
        }
        let is_due = |push: &&mut Push| push.is_on_its_way() && push.last.elapsed() >= ALIVE_EVERY;
        for push in self.pushes.values_mut().filter(is_due) {
            push.last = Instant::now();
            (self.send_update)(push.requester, PushUpdate::OnItsWay);
        }
    }

    /// Gives up what is being put, and waits for that.
    pub(super) fn end_puts(&mut self, orders: &Orders<Order>) {
        let Some(store) = &self.store else { return };
        store.shared.has_ended.store(true, Ordering::Relaxed);
        let until = Instant::now() + END_WITHIN;
        while self.pushes.values().any(|push| matches!(push.stage, Stage::Putting)) {
            match orders.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Order::Stored(number, outcome)) => self.stored(number, outcome),
                Ok(_) => {}
                Err(_) => {
                    tracing::warn!("the store hasn't answered in time: parts of unfinished uploads may be left there");
                    return;
                }
            }
        }
    }
}

impl Push {
    /// Whether all of it came in pieces, and is being put into the store.
    fn is_on_its_way(&self) -> bool {
        matches!(self.stage, Stage::Putting) && self.left == 0 && self.request.size > 0
    }
}

/// A job has an outcome in any case, or its push and its path would wait for ever.
fn or_failed<T>(job: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| {
        tracing::error!("a job of the store panicked");
        Err(Failure::new(ErrorCode::Io, "the server failed: see its log"))
    })
}

fn ending() -> Failure {
    Failure::new(ErrorCode::Busy, "the server ends")
}

/// The failure for a client, who mustn't take the store's refusal for one of the server's rules.
fn failure(error: RootError) -> Failure {
    match error {
        RootError::NotAFile => {
            Failure::new(ErrorCode::Conflict, "a directory is at this path; with a / at its end, the file goes into it")
        }
        RootError::Denied => Failure::new(ErrorCode::Io, "the store doesn't allow that to the server: see its log"),
        RootError::Changed => Failure::new(
            ErrorCode::Changed,
            "what was kept of it on the server isn't what had arrived, and is discarded: push it again",
        ),
        error @ RootError::Busy(_) => error.into(),
        error => Failure::new(ErrorCode::Io, error.to_string()),
    }
}
