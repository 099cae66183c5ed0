//! A client's transfer as a pure state machine: without sockets, files, threads and clocks. Messages of a server,
//! reports of a disk and the time go in; requests and commands for the disk come out.
//!
//! A source yields entries (today `listing`). Their files are inspected on the disk unless the destination is
//! new, fetched in batches while the listing goes on, written as they come, checked against their digests, and
//! installed. Whatever a server says is checked against what it was asked for: what breaks the protocol ends the
//! transfer, what concerns one file ends that file.
//!
//! The driver calls [`Transfer::new`], then [`Transfer::connected`], and whatever happens after that:
//! [`Transfer::inbound`], [`Transfer::disk`], [`Transfer::arriving`], [`Transfer::reading`],
//! [`Transfer::disconnected`], and [`Transfer::tick`] at [`Transfer::deadline`]. After each it carries out all of
//! [`Transfer::next_output`]. [`Output::OpenDestination`] is answered by [`Transfer::destination`]; after
//! [`Output::Finished`] comes [`Transfer::into_outcome`].
//!
//! Parts that own their state: `listing` (the source), `entries::Tree` (directories, links, inspections),
//! `files` (the files that aren't over), `hard_links` (files with several names), `requests` (what the server hasn't finished), `credit`,
//! `concurrency`, `retry`, `acks`. What joins them are the methods of `Transfer`: here what the driver calls, in
//! `entries` what a source yields, in `fetching` what is asked for, in `answers` and `pieces` what the server sends,
//! in `checking` what the disk reports, in `reuse` what is copied of older files, in `in_order` what differs for an output that is written in order. Whatever
//! happened, `Transfer::pump` then does what has become possible.

mod acks;
mod answers;
mod checking;
mod command;
mod concurrency;
mod credit;
mod entries;
mod fetching;
mod file;
mod files;
mod hard_links;
pub(crate) mod idle_timer;
mod in_order;
mod keys;
mod listing;
pub(crate) mod names;
mod options;
mod outcome;
pub(crate) mod pacing;
mod pieces;
pub(crate) mod ranges;
pub(crate) mod reconnects;
mod requests;
mod retry;
mod reuse;
pub(crate) mod slowness;
pub(crate) mod tcp;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod window;

pub use command::{
    ContentKey, ContentSpec, DiskCommand, DiskError, DiskReport, FileKey, Found, Output, Part, Partial, SmallFile,
    SmallOutcome, Version, WrittenLeaves,
};
pub use listing::LIST_ENTRIES_MAX;
pub(crate) use listing::LISTING_BUSY_WAIT;
pub use options::{Placement, Source, TransferOptions};
pub use outcome::{Activity, FileFailure, Progress, Totals};
pub use pacing::BYTES_PER_SECOND_MIN;

use crate::error::Error;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use acks::Confirmations;
use concurrency::Concurrency;
use credit::Credit;
use entries::Tree;
use fetching::Space;
use files::FileTable;
use hard_links::HardLinks;
use listing::Listing;
use pieces::Piece;
use requests::Requests;
use retry::RetryQueue;
use reuse::ReuseQueue;

use crate::limits::CHUNK_BYTES_MIN;
use crate::path::RelPath;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{ListEntry, Reply, Request};
use idle_timer::{IdleTimer, is_no_progress};
use pacing::{Pacer, piece_bytes};
use reconnects::Reconnects;
use slowness::Slowness;
use window::Window;

/// First size of the credit window, in bytes: enough for a round trip of 50 ms at a Gbit/s.
pub const WINDOW_BYTES_FIRST: u64 = 8 << 20;
/// Chunk size, in bytes, down to which it is halved while connections break and nothing gets complete.
const CHUNK_BYTES_RECONNECT_MIN: u64 = 64 << 10;

/// Bytes of holes in all files, unless the limit of their bytes is set: a hole costs a server nothing, and this side the time to hash it.
pub const HOLE_BYTES_MAX: u64 = 1 << 40;

/// Retries of a file that changed, and of one whose content, or a leaf of it, was wrong.
const RETRIES_MAX: u32 = 3;
/// Files in progress, beyond which no page of the listing is requested.
const FILES_IN_PROGRESS_MAX: usize = 16_384;
/// The slowest that a server may hash, in bytes a second, before it counts as stalled.
pub(crate) const HASH_BYTES_PER_SECOND_MIN: u64 = 200 << 20;
/// How long to wait for a server that was lost with the last bytes, to confirm that they are in place.
const CONFIRMING_MAX: Duration = Duration::from_secs(2);
/// Largest idle timeout: ten years, which no clock overflows by.
const IDLE_TIMEOUT_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// All files are in place; the driver deletes what isn't in the source.
    Sweeping,
    /// All files are in place; directories are given their modes and times.
    FinishingDirs,
    /// All is in place, and there is no connection to confirm it on.
    Confirming,
    Over,
}

/// The state machine of one transfer. See the [module](self).
#[derive(Debug)]
pub struct Transfer {
    /// The time, as the driver knew it last.
    now: Instant,
    options: TransferOptions,
    stage: Stage,
    connected: bool,
    listing: Listing,
    /// The destination is new: nothing needs to be inspected.
    fresh: bool,
    files: FileTable,
    waiting: VecDeque<FileKey>,
    hard_links: HardLinks,
    requests: Requests,
    concurrency: Concurrency,
    retry: RetryQueue,
    /// Files whose leaves are to be requested.
    leaves_wanted: Vec<FileKey>,
    reuse_queue: ReuseQueue,
    credit: Credit,
    tree: Tree,
    space: Option<Space>,
    piece: Option<Piece>,
    confirmations: Confirmations,
    confirming_until: Option<Instant>,
    outputs: VecDeque<Output>,
    totals: Totals,
    failure: Option<Error>,
    idle: IdleTimer,
    reconnects: Reconnects,
    /// Entries come by [`Transfer::feed`].
    is_fed: bool,
    /// Some of them aren't in place yet.
    is_incomplete: bool,
    slowness: Slowness,
}

impl Transfer {
    /// A transfer that begins at `now`; nothing comes out before [`Transfer::connected`].
    pub fn new(options: TransferOptions, now: Instant) -> Self {
        let chunk_bytes =
            options.chunk_bytes.min(options.window_bytes).clamp(CHUNK_BYTES_MIN, crate::limits::CHUNK_BYTES_MAX);
        let options = TransferOptions {
            chunk_bytes: piece_bytes(options.bytes_per_second, chunk_bytes, CHUNK_BYTES_MIN),
            window_bytes: options.window_bytes.clamp(CHUNK_BYTES_MIN, crate::limits::CREDIT_BYTES_MAX),
            ..options
        };
        let pacer = options.bytes_per_second.map(|rate| Pacer::new(rate, options.chunk_bytes, now));
        let window = Window::new(WINDOW_BYTES_FIRST, options.window_bytes, Arc::clone(&options.windows));
        Self {
            now,
            stage: Stage::Running,
            connected: false,
            listing: Listing::new(
                options.source.clone(),
                options.follow,
                options.in_order,
                options.max_entries,
                options.filter.clone(),
            ),
            fresh: false,
            files: FileTable::default(),
            waiting: VecDeque::new(),
            hard_links: HardLinks::default(),
            requests: Requests::new(),
            concurrency: Concurrency::default(),
            retry: RetryQueue::default(),
            leaves_wanted: Vec::new(),
            reuse_queue: ReuseQueue::default(),
            credit: Credit::new(window, options.chunk_bytes, pacer),
            tree: Tree::default(),
            space: None,
            piece: None,
            confirmations: Confirmations::default(),
            confirming_until: None,
            outputs: VecDeque::new(),
            totals: Totals::default(),
            failure: None,
            idle: IdleTimer::new(now),
            reconnects: Reconnects::default(),
            is_fed: false,
            is_incomplete: false,
            slowness: Slowness::new(now),
            options,
        }
    }

    /// A transfer whose entries come by [`Transfer::feed`], and go below the destination. It doesn't end by itself.
    pub fn fed(options: TransferOptions, now: Instant) -> Self {
        let mut transfer = Self::new(options, now);
        transfer.is_fed = true;
        transfer.listing.expect_entries();
        transfer
    }

    /// Takes entries, of files with the digest that each must have. When all are in place or have failed, [`Output::InPlace`] says so.
    pub fn feed(&mut self, entries: Vec<ListEntry>, now: Instant) {
        self.progressed(now);
        self.listing.feed(entries);
        self.is_incomplete = true;
        self.space = None;
        match self.take_entries() {
            Ok(()) => self.pump(),
            Err(error) => self.fail(error),
        }
    }

    /// The entries that failed since the last call, if not too many did to be remembered; and how many did.
    pub fn take_failures(&mut self) -> (Vec<FileFailure>, u64) {
        (std::mem::take(&mut self.totals.failures), std::mem::take(&mut self.totals.failed))
    }

    /// A connection was made, the first or another one. That alone is no progress: a server that ends every connection
    /// before it has sent anything is given up, too.
    pub fn connected(&mut self) {
        self.connected = true;
        self.concurrency = Concurrency::default();
        self.credit.reset();
        self.slowness = Slowness::new(self.now);
        self.pump();
    }

    /// Sets the connection's round-trip time, as the kernel knows it: the window is to last for some.
    pub fn round_trip(&mut self, time: Duration) {
        self.credit.round_trip(time);
    }

    /// The connection is lost, and all requests with it. What is written stays.
    pub fn disconnected(&mut self) {
        self.connected = false;
        if self.is_unconfirmed() {
            return;
        }
        self.listing.interrupted();
        self.requests.lost();
        self.reuse_queue.interrupted();
        self.abort_piece();
        for key in self.files.keys() {
            if let Err(error) = self.file_interrupted(key) {
                self.fail(error);
            }
        }
        let progress = self.progress();
        if let Some(times) = self.reconnects.lost_at(progress.bytes_done + progress.files_done + progress.files_total)
            && !self.is_fed
        {
            self.fail(Error::Breaking { times });
        }
        // A compressed piece, or several small files in one message, are lost with their connection.
        if self.reconnects.is_without_progress() && self.options.chunk_bytes > CHUNK_BYTES_RECONNECT_MIN {
            self.options.chunk_bytes = (self.options.chunk_bytes / 2).max(CHUNK_BYTES_RECONNECT_MIN);
        }
    }

    /// Answers [`Output::OpenDestination`]. `fresh` if nothing is at the destination yet.
    pub fn destination(&mut self, placement: Placement, fresh: bool) {
        self.listing.place(placement);
        self.fresh = fresh;
        match self.take_entries() {
            Ok(()) => self.pump(),
            Err(error) => self.fail(error),
        }
    }

    /// Takes what the server sent.
    pub fn inbound(&mut self, inbound: Inbound, now: Instant) {
        if self.stage == Stage::Over {
            return;
        }
        // In the middle of a message nothing becomes possible.
        let ends_something = matches!(inbound, Inbound::Control { .. } | Inbound::BodyEnd);
        let reply = match inbound {
            Inbound::Control { ref json, .. } => Some(Reply::decode(json)),
            _ => None,
        };
        match &reply {
            Some(Ok(reply)) if is_no_progress(reply) || self.requests.is_known(reply) => self.idle.was_no_progress(),
            _ => self.progressed(now),
        }
        let result = match inbound {
            Inbound::Control { attachment, .. } => match reply {
                Some(Ok(reply)) => self.reply(reply, attachment),
                Some(Err(error)) => Err(error.into()),
                None => Ok(()),
            },
            Inbound::Header(header) => self.data_header(&header),
            Inbound::Body(entry) => self.body_begins(entry),
            Inbound::BodyData(data) => self.body_data(data),
            Inbound::BodyEnd => self.body_ends(),
        };
        match result {
            Ok(()) if ends_something => self.pump(),
            Ok(()) => {}
            Err(error) => self.fail(error),
        }
    }

    /// Takes a report of the disk.
    pub fn disk(&mut self, report: DiskReport, now: Instant) {
        if self.stage == Stage::Over {
            return;
        }
        self.progressed(now);
        match self.disk_report(report) {
            Ok(()) => self.pump(),
            Err(error) => self.fail(error),
        }
    }

    /// Does what is due, and fails if nothing happened for too long.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        let is_credit_due = self.credit_due().is_some_and(|at| at <= now);
        if self.stage != Stage::Over && (self.listing.is_due(now) | self.retry_files(now) | is_credit_due) {
            self.pump();
        }
        let is_fetching = self.connected && self.requests.fetch_count() > 0;
        let waits = self.credit.withheld_for(now).filter(|_| is_fetching);
        if self.slowness.note(waits, now) {
            self.send(Request::Credit { bytes: 0, slow: self.slowness.said() });
        }
        if self.is_unconfirmed() && now >= *self.confirming_until.get_or_insert(now + CONFIRMING_MAX) {
            self.over();
        }
        if self.stage != Stage::Over && now >= self.idle_deadline() {
            let seconds = now.saturating_duration_since(self.idle.since()).as_secs();
            self.fail(Error::Stalled { seconds, connected: self.connected });
        }
    }

    /// Bytes of an incomplete message arrived: the server isn't idle.
    pub fn arriving(&mut self, now: Instant) {
        self.idle.arriving(now);
    }

    /// The disk is reading existing files, which takes as long as it takes.
    pub fn reading(&mut self, now: Instant) {
        self.idle.progressed(now);
    }

    /// Latest time for the next [`Transfer::tick`].
    pub fn deadline(&self) -> Instant {
        let idle = self.idle_deadline();
        [self.listing.retry_at(), self.retry.at(), self.credit_due()].into_iter().flatten().fold(idle, Instant::min)
    }

    fn credit_due(&self) -> Option<Instant> {
        self.credit.next().filter(|_| self.connected && self.requests.fetch_count() > 0)
    }

    /// When the transfer fails unless something happens.
    fn idle_deadline(&self) -> Instant {
        // A server that has sent all of a file, and hashes it, may be silent meanwhile.
        let hashing = Duration::from_secs(self.bytes_hashed() / HASH_BYTES_PER_SECOND_MIN);
        self.idle.since() + self.options.idle_timeout.saturating_add(hashing).min(IDLE_TIMEOUT_MAX)
    }

    /// Whether the source has something that belongs at this path below the destination.
    pub fn is_listed(&self, local: &RelPath) -> bool {
        self.listing.is_listed(local)
    }

    /// Answers [`Output::Sweep`], with what could not be deleted.
    pub fn swept(&mut self, failures: Vec<(RelPath, String)>, now: Instant) {
        self.progressed(now);
        for (local, reason) in failures {
            self.totals.fail(self.listing.remote_path(&local), reason, None);
        }
        if self.stage == Stage::Sweeping {
            self.stage = Stage::FinishingDirs;
            self.pump();
        }
    }

    /// Cancels the transfer and its requests. What has arrived is kept for a later one.
    pub fn cancel(&mut self) {
        if self.stage != Stage::Over {
            let fetches = self.requests.fetches().map(|(id, _)| id);
            let ids = fetches.chain(self.listing.open_id()).collect::<Vec<_>>();
            for id in ids {
                self.send(Request::Cancel { id });
            }
            self.fail(Error::Cancelled);
        }
    }

    /// Whether all is in place and only unconfirmed: nothing that happens now is a failure.
    pub fn is_unconfirmed(&self) -> bool {
        self.stage == Stage::Confirming
    }

    /// The next thing to do.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The progress so far.
    pub fn progress(&self) -> Progress {
        self.totals.progress(self.listing.is_complete(), self.activity())
    }

    /// Why the transfer failed, if it did.
    pub fn failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// The totals, and why the transfer failed if it did: to be called after [`Output::Finished`].
    pub fn into_outcome(self) -> (Totals, Option<Error>) {
        (self.totals, self.failure)
    }

    fn progressed(&mut self, now: Instant) {
        self.now = now;
        self.idle.progressed(now);
    }

    fn send(&mut self, request: Request) {
        if self.connected {
            self.outputs.push_back(Output::Send(request));
        }
    }

    fn command(&mut self, command: DiskCommand) {
        self.outputs.push_back(Output::Disk(command));
    }

    fn warn(&mut self, text: String) {
        self.outputs.push_back(Output::Warn(text));
    }

    /// Does what has become possible.
    fn pump(&mut self) {
        if self.stage == Stage::Over {
            return;
        }
        if self.connected {
            self.pump_listing();
            self.pump_leaves();
            self.pump_fetches();
            if self.requests.fetch_count() > 0
                && let Some(bytes) = self.credit.take(self.now)
            {
                self.send(Request::Credit { bytes, slow: self.slowness.said() });
            }
            self.pump_confirmations();
        }
        self.pump_inspections();
        self.pump_links();
        self.pump_end();
    }

    fn pump_confirmations(&mut self) {
        for confirm in self.confirmations.take_due() {
            self.send(Request::Confirm(confirm));
        }
    }

    /// Whether what isn't in the source is deleted: not beside the one file of a source.
    fn sweeps(&self) -> bool {
        self.options.sweep && self.listing.is_tree()
    }

    fn pump_end(&mut self) {
        let idle = self.listing.is_complete() && self.files.is_empty() && self.tree.pending() == 0;
        if !idle || (self.is_fed && !self.is_incomplete) {
            return;
        }
        if self.stage == Stage::Running && self.sweeps() && self.totals.failed == 0 {
            self.stage = Stage::Sweeping;
            return self.outputs.push_back(Output::Sweep);
        }
        if self.stage == Stage::Running && self.sweeps() {
            self.warn("nothing is deleted, since not everything is in place".to_owned());
        }
        if self.stage == Stage::Sweeping {
            return;
        }
        self.stage = Stage::FinishingDirs;
        if self.pump_dirs() {
            if self.is_fed {
                (self.stage, self.is_incomplete) = (Stage::Running, false);
                return self.outputs.push_back(Output::InPlace);
            }
            if self.connected || !self.confirmations.are_due() {
                return self.over();
            }
            self.stage = Stage::Confirming;
        }
    }

    /// Ends the transfer by a failure, unless all of it is in place.
    pub fn fail(&mut self, error: Error) {
        if self.stage != Stage::Over {
            self.failure = Some(error).filter(|_| !self.is_unconfirmed());
            self.over();
        }
    }

    fn over(&mut self) {
        self.stage = Stage::Over;
        self.outputs.push_back(Output::Finished);
    }
}
