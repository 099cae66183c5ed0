//! The thread that receives: pushes by number, each from the look at its path to the file under its name.

use super::admission::missing_names;
use super::known::Known;
use super::outcome::{conflict, failure};
use super::space::Space;
use super::store::{Arrived, StoreJobs};
use super::{Order, PushOptions};
use crate::digest::{Digest, Leaf, LeafSize, merge_leaves};
use crate::disk::{Disk, DiskOptions};
use crate::limits::HAVE_RANGES_MAX;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{PushRequest, Range};
use crate::root::{Links, Root};
use crate::server::Failure;
use crate::server::jobs::{PushJob, PushSees, PushUpdate, PushWrite, Requester};
use crate::server::session::Ticket;
use crate::server::watch::SharedCatalogue;
use crate::transfer::{
    ContentKey, ContentSpec, DiskCommand, DiskError, DiskReport, FileKey, Found, Part, Partial, Version,
};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Orders, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use towpath_quota::Permit;

/// Threads that hash, write and install.
const WORKERS: usize = 2;
/// How often idle pushes are looked for.
const TICK: Duration = Duration::from_secs(1);

/// A push.
#[derive(Debug)]
pub(super) struct Push {
    pub(super) requester: Requester,
    pub(super) request: PushRequest,
    pub(super) local: RelPath,
    /// Where it arrives.
    pub(super) staged: RelPath,
    /// Knowledge that the client may have of the file at its path.
    pub(super) sees: PushSees,
    /// Whether it may learn the content of what has arrived for it before.
    pub(super) sees_partial: bool,
    pub(super) leaves: LeafSize,
    pub(super) stage: Stage,
    /// Values of complete leaves.
    pub(super) values: BTreeMap<u64, Leaf>,
    /// Bytes that are to come.
    pub(super) left: u64,
    /// Writes that the disk hasn't reported.
    pub(super) writing: usize,
    /// When something of it was last done.
    pub(super) last: Instant,
    pub(super) _window: Permit,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The disk looks at its path.
    Inspecting,
    /// The disk finds out whether its path is as expected.
    Checking(Option<Partial>),
    Receiving,
    /// Getting its name.
    Putting,
    /// Over for its client; the disk still writes. Then what has arrived is kept, or removed.
    Over {
        is_kept: bool,
    },
}

impl Push {
    /// Its path from the root.
    pub(super) fn path(&self) -> RelPath {
        self.request.path.to_rel_path().unwrap_or_default()
    }

    /// Its client may learn all of what it has put there itself.
    pub(super) fn sees_all_if(&mut self, is_own: bool) {
        self.sees.existence |= is_own;
        self.sees.content |= is_own;
        self.sees_partial |= is_own;
    }
}

/// See the [module](self).
pub(super) struct Receiver {
    pub(super) options: PushOptions,
    pub(super) path: PathBuf,
    /// Where files arrive.
    pub(super) disk: Disk,
    pub(super) root: Root,
    /// Where they go from there, unless they stay.
    pub(super) store: Option<StoreJobs>,
    pub(super) space: Space,
    pub(super) pushes: BTreeMap<u64, Push>,
    /// Numbers of pushes that aren't over.
    pub(super) by_request: HashMap<(u64, Ticket), u64>,
    pub(super) next: u64,
    pub(super) known: Known,
    /// When idle pushes were last looked for.
    ticked: Instant,
    pub(super) published: Option<Arc<SharedCatalogue>>,
    pub(super) send_update: Box<dyn Fn(Requester, PushUpdate) + Send>,
    pub(super) orders: Sender<Order>,
}

impl Receiver {
    pub(super) fn new(
        options: PushOptions,
        path: PathBuf,
        published: Option<Arc<SharedCatalogue>>,
        store: Option<StoreJobs>,
        send_update: Box<dyn Fn(Requester, PushUpdate) + Send>,
        orders: Sender<Order>,
    ) -> Result<Receiver, String> {
        let (disk, root) = open(&path, &orders)?;
        root.open_dir(&RelPath::root()).and_then(|dir| dir.check_writable()).map_err(|error| error.to_string())?;
        let space = Space::new(options.max_bytes, options.max_files);
        let (pushes, by_request) = (BTreeMap::new(), HashMap::new());
        Ok(Receiver {
            options,
            path,
            disk,
            root,
            store,
            space,
            pushes,
            by_request,
            next: 0,
            known: Known::default(),
            ticked: Instant::now(),
            published,
            send_update,
            orders,
        })
    }

    pub(super) fn run(mut self, orders: &Orders<Order>) {
        loop {
            self.tick();
            match orders.recv_timeout(TICK) {
                Ok(Order::Job(requester, PushJob::Begin(request, sees, window))) => {
                    if let Err(failure) = self.begin(requester, *request, sees, window) {
                        (self.send_update)(requester, PushUpdate::Failed(failure));
                    }
                }
                Ok(Order::Job(requester, PushJob::Write(write))) => self.write(requester, write),
                Ok(Order::End(key, ticket)) => self.end(key, ticket),
                Ok(Order::Looked(number, found)) => self.looked(number, found),
                Ok(Order::Stored(number, outcome)) => self.stored(number, outcome),
                Ok(Order::Reports) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return self.end_puts(orders),
            }
            while let Some(report) = self.disk.next_report() {
                self.report(report);
            }
        }
    }

    /// Ends pushes that nothing comes of, and counts what is there once in a while.
    fn tick(&mut self) {
        if self.ticked.elapsed() < TICK && self.space.is_known() {
            return;
        }
        self.ticked = Instant::now();
        self.note_puts();
        if self.space.due() <= Instant::now() {
            let is_putting = self.pushes.values().any(|push| matches!(push.stage, Stage::Putting));
            self.space.survey(&self.root, !is_putting);
        }
        let timeout = self.options.idle_timeout;
        let is_idle =
            |push: &Push| matches!(push.stage, Stage::Receiving) && push.writing == 0 && push.last.elapsed() >= timeout;
        let idle: Vec<u64> = self.pushes.iter().filter(|(_, push)| is_idle(push)).map(|(number, _)| *number).collect();
        for number in idle {
            let message = format!("nothing of it came for {} s; what has arrived is kept", timeout.as_secs());
            self.fail(number, Failure::new(ErrorCode::Io, message), true);
        }
    }

    fn number(&self, requester: Requester) -> Option<u64> {
        self.by_request.get(&(requester.key, requester.ticket)).copied()
    }

    fn write(&mut self, requester: Requester, PushWrite { offset, data, credit }: PushWrite) {
        let Some(number) = self.number(requester) else { return };
        let length = data.len() as u64;
        if let Err(failure) = self.space.check(&self.root, length, 0) {
            return self.fail(number, failure, true);
        }
        self.space.add(length, 0);
        let Some(push) = self.pushes.get_mut(&number) else { return };
        push.left = push.left.saturating_sub(length);
        push.last = Instant::now();
        // Those of a leaf go to the same thread.
        let (mut at, mut rest, mut credit) = (offset, data, credit);
        while !rest.is_empty() {
            let leaf = push.leaves.index_at(at);
            let end = push.leaves.range(leaf).map_or(u64::MAX, |(offset, length)| offset + length);
            let now = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).clamp(1, rest.len());
            let data: Bytes = rest.split_to(now);
            let part = Part { leaf, offset: at, length: now as u64, credit: std::mem::take(&mut credit) };
            push.writing += 1;
            self.disk.command(DiskCommand::Write { content: ContentKey(number), part, data });
            at += now as u64;
        }
    }

    fn end(&mut self, key: u64, ticket: Option<Ticket>) {
        let ended = self.by_request.iter().filter(|((of, _), _)| *of == key);
        let ended = ended.filter(|((_, of), _)| ticket.is_none_or(|ticket| ticket == *of));
        let ended: Vec<u64> = ended.map(|(_, number)| *number).collect();
        ended.into_iter().for_each(|number| self.over(number, true));
    }

    fn report(&mut self, report: DiskReport) {
        match report {
            DiskReport::Inspected { file, found } => self.inspected(file.0, found),
            DiskReport::Checked { file, result } => self.checked(file.0, result),
            DiskReport::Written { content, credit, result, .. } => self.written(content.0, credit, result),
            DiskReport::Put { file, result } => self.put(file.0, result),
            _ => {}
        }
    }

    fn inspected(&mut self, number: u64, found: Result<Found, DiskError>) {
        let Some(push) = self.pushes.get_mut(&number) else { return };
        if let Stage::Over { .. } = push.stage {
            self.forget(number);
            return;
        }
        let partial = match found {
            Err(error) => {
                push.stage = Stage::Receiving;
                return self.fail(number, failure(error), true);
            }
            Ok(Found::SameSize(digest)) if digest == push.request.digest && push.sees.content => {
                return self.same(number);
            }
            Ok(Found::Partial(partial))
                if push.sees_partial
                    && partial.digest == Some(push.request.digest)
                    && partial.leaves == push.leaves =>
            {
                Some(partial)
            }
            Ok(_) => None,
        };
        if push.request.content.is_some() {
            // Its path is looked at when it is put there.
            if let Err(failure) = self.put_content(number) {
                self.fail(number, failure, false);
            }
            return;
        }
        if self.store.is_some() {
            push.stage = Stage::Receiving;
            if let Err(failure) = self.receive(number, partial) {
                self.fail(number, failure, true);
            }
            return;
        }
        push.stage = Stage::Checking(partial);
        self.disk.check(FileKey(number), push.local.clone(), push.request.expected);
    }

    fn checked(&mut self, number: u64, result: Result<bool, DiskError>) {
        let Some(push) = self.pushes.get_mut(&number) else { return };
        let partial = match std::mem::replace(&mut push.stage, Stage::Receiving) {
            Stage::Checking(partial) => partial,
            _ => {
                self.forget(number);
                return;
            }
        };
        match result {
            Ok(true) => {}
            Ok(false) => {
                let expected = push.request.expected;
                return self.fail(number, conflict(expected), true);
            }
            Err(error) => return self.fail(number, failure(error), true),
        }
        if let Err(failure) = self.receive(number, partial) {
            self.fail(number, failure, true);
        }
    }

    /// Puts a file in place that came with its request.
    pub(super) fn put_content(&mut self, number: u64) -> Result<(), Failure> {
        let Some(push) = self.pushes.get_mut(&number) else { return Ok(()) };
        push.stage = Stage::Receiving;
        let Some(content) = push.request.content.take() else { return Ok(()) };
        if Digest::of(&content) != push.request.digest {
            return Err(not_as_announced());
        }
        if self.store.is_some() {
            self.put_into_store(number, Arrived::Bytes(content));
            return Ok(());
        }
        self.make_space(number, false)?;
        self.space.add(content.len() as u64, 0);
        let Some(push) = self.pushes.get_mut(&number) else { return Ok(()) };
        push.stage = Stage::Putting;
        let PushRequest { expected, durable, .. } = push.request;
        self.disk.put_small(FileKey(number), spec(number, push, false), content, (expected, durable));
        Ok(())
    }

    /// Checks that there is space for what is to come of a push, and counts its file unless an incomplete one was counted.
    fn make_space(&mut self, number: u64, is_begun: bool) -> Result<(), Failure> {
        let Some(push) = self.pushes.get_mut(&number) else { return Ok(()) };
        let files = if is_begun { 0 } else { missing_names(&self.root, &push.staged) };
        self.space.check(&self.root, push.left, files)?;
        let top = self.root.open_dir(&RelPath::root()).and_then(|dir| dir.free_bytes());
        if let Some(free) = top.ok().filter(|free| *free < push.left) {
            let message = format!("{} bytes are needed, {free} are free on the server's disk", push.left);
            return Err(Failure::new(ErrorCode::Full, message));
        }
        self.space.add(0, files);
        self.known.begin(&push.local, push.requester.tenant, push.request.digest);
        push.last = Instant::now();
        Ok(())
    }

    /// Lets the client send what is missing.
    fn receive(&mut self, number: u64, partial: Option<Partial>) -> Result<(), Failure> {
        let Some(push) = self.pushes.get_mut(&number) else { return Ok(()) };
        let is_begun = partial.is_some();
        push.values = partial.map(|partial| partial.whole.into_iter().collect()).unwrap_or_default();
        let have = have(&push.values, push.leaves).unwrap_or_else(|| {
            push.values.clear();
            Vec::new()
        });
        let resume = !push.values.is_empty();
        push.left = push.request.size - have.iter().map(|range| range.length).sum::<u64>();
        self.make_space(number, is_begun)?;
        let Some(push) = self.pushes.get_mut(&number) else { return Ok(()) };
        self.disk.command(DiskCommand::Begin(spec(number, push, resume)));
        (self.send_update)(push.requester, PushUpdate::Begun { have });
        self.finish_if_whole(number);
        Ok(())
    }

    fn written(&mut self, number: u64, credit: u64, result: Result<Vec<(u64, Leaf)>, DiskError>) {
        let Some(push) = self.pushes.get_mut(&number) else { return };
        push.writing -= 1;
        push.last = Instant::now();
        match (&push.stage, result) {
            (Stage::Over { is_kept }, _) => {
                let is_kept = *is_kept;
                self.over(number, is_kept);
            }
            (_, Ok(leaves)) => {
                push.values.extend(leaves);
                if credit > 0 {
                    (self.send_update)(push.requester, PushUpdate::Written { credit });
                }
                self.finish_if_whole(number);
            }
            (_, Err(error)) => self.fail(number, failure(error), true),
        }
    }

    /// Gives the file its name if all of it has arrived, and is what was announced.
    fn finish_if_whole(&mut self, number: u64) {
        let Some(push) = self.pushes.get_mut(&number) else { return };
        if push.left > 0 || push.writing > 0 || !matches!(push.stage, Stage::Receiving) {
            return;
        }
        let values: Vec<Leaf> = push.values.values().copied().collect();
        let digest = match push.request.size {
            0 => Ok(Digest::of(b"")),
            _ => merge_leaves(&values),
        };
        if digest != Ok(push.request.digest) {
            return self.fail(number, not_as_announced(), false);
        }
        if self.store.is_some() {
            if let Some(staged) = self.disk.staged(ContentKey(number)) {
                self.put_into_store(number, Arrived::Staged(staged, values));
            }
            return;
        }
        push.stage = Stage::Putting;
        self.disk.put(FileKey(number), ContentKey(number), push.request.expected, push.request.durable);
    }

    pub(super) fn fail(&mut self, number: u64, failure: Failure, is_kept: bool) {
        if let Some(push) = self.pushes.get(&number) {
            (self.send_update)(push.requester, PushUpdate::Failed(failure));
        }
        self.over(number, is_kept);
    }

    /// Releases a push as soon as the disk has done its work.
    fn over(&mut self, number: u64, is_kept: bool) {
        let Some(push) = self.pushes.get_mut(&number) else { return };
        self.by_request.remove(&(push.requester.key, push.requester.ticket));
        match push.stage {
            // It gets its name, though no client waits.
            Stage::Putting => return,
            Stage::Inspecting | Stage::Checking(_) => {
                push.stage = Stage::Over { is_kept };
                return;
            }
            Stage::Receiving | Stage::Over { .. } => push.stage = Stage::Over { is_kept },
        }
        if push.writing == 0 {
            let content = ContentKey(number);
            let command = if is_kept { DiskCommand::Leave { content } } else { DiskCommand::Abandon { content } };
            self.disk.command(command);
            self.forget(number);
        }
    }

    /// Removes all that is known of a push.
    pub(super) fn forget(&mut self, number: u64) -> Option<Push> {
        let push = self.pushes.remove(&number)?;
        self.by_request.remove(&(push.requester.key, push.requester.ticket));
        self.disk.forget_partial(&push.staged);
        Some(push)
    }
}

pub(super) fn open(path: &Path, orders: &Sender<Order>) -> Result<(Disk, Root), String> {
    let orders = orders.clone();
    // Fails if the thread has ended.
    let wake = move || drop(orders.send(Order::Reports));
    let disk = Disk::start(path, DiskOptions::of_pushes(WORKERS), wake).map_err(|error| error.to_string())?;
    let root = Root::directory(path, Links::Never).map_err(|error| error.to_string())?;
    Ok((disk, root))
}

fn not_as_announced() -> Failure {
    let message = "what arrived doesn't have the digest that was announced: was the file changed meanwhile?";
    Failure::new(ErrorCode::Changed, message)
}

fn spec(number: u64, push: &Push, resume: bool) -> ContentSpec {
    ContentSpec {
        content: ContentKey(number),
        local: push.staged.clone(),
        version: version(&push.request),
        leaves: push.leaves,
        verify: true,
        digest: Some(push.request.digest),
        values: None,
        resume,
        reuse: false,
    }
}

/// The version of a file that is pushed. It is as long as it will be from the beginning, and its space isn't reserved: a client may announce
/// more than it sends.
pub(super) fn version(request: &PushRequest) -> Version {
    Version { size: request.size, modified: request.mtime, mode: request.mode, sparse: true }
}

/// The ranges of complete leaves, joined; `None` if they are too many for an answer. A part of them won't do: the client would send the others
/// again, over leaves that are recorded as complete.
fn have(values: &BTreeMap<u64, Leaf>, leaves: LeafSize) -> Option<Vec<Range>> {
    let mut have: Vec<Range> = Vec::new();
    for (offset, length) in values.keys().filter_map(|leaf| leaves.range(*leaf).ok()) {
        let count = have.len();
        match have.last_mut() {
            Some(last) if last.end() == offset => last.length += length,
            _ if count == HAVE_RANGES_MAX => return None,
            _ => have.push(Range { offset, length }),
        }
    }
    Some(have)
}
