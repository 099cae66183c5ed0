//! A client's transfer as a pure state machine: no socket, file, thread or clock. Messages of a server, reports of a disk and
//! the time go in; requests and work for the disk come out.
//!
//! A listing tells what there is. Its files are inspected on the disk (unless the destination is new), asked for in batches
//! while the listing goes on, written as they come, checked against their digests, and installed. Whatever a server says is
//! checked against what it was asked; what breaks the protocol ends the transfer, what concerns one file ends that file.

mod acks;
mod answers;
mod checking;
mod command;
mod concurrency;
mod credit;
mod fetching;
mod file;
mod in_order;
mod keys;
mod listing;
mod outcome;
mod pieces;
mod requests;
mod retry;
#[cfg(test)]
mod tests;

pub use command::{
    ContentKey, ContentSpec, DiskCommand, DiskError, DiskReport, FileKey, Found, Output, Part, Partial, SmallFile,
    SmallOutcome, Version,
};
pub(super) use listing::LISTING_BUSY_WAIT;
pub use outcome::{FileFailure, Progress, Totals, TransferError};

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use acks::Confirmations;
use concurrency::Concurrency;
use credit::Credit;
use fetching::Space;
use file::FileTask;
use keys::Counted;
use listing::{ListedDir, Listing};
use pieces::Piece;
use requests::Fetch;
use retry::RetryQueue;

use super::assembler::Inbound;
use super::idle_timer::{IdleTimer, tells_nothing};
use super::reconnects::Reconnects;
use crate::path::RelPath;
use crate::protocol::WireError;
use crate::protocol::control::{Compression, Reply, Request};

/// Where connections break before anything is whole, pieces become smaller, down to this.
const CHUNK_BYTES_BREAKING_MIN: u64 = 64 << 10;

/// How often a file is asked for again, because it changed, and how often because its content, or a leaf of it, was wrong.
const AGAIN_MAX: u32 = 3;
/// Files that are under way at a time; the listing waits for them.
const FILES_UNDER_WAY_MAX: usize = 16_384;
/// What a server is given for hashing a file before it counts as stalled, in bytes a second.
pub(super) const HASH_BYTES_PER_SECOND_MIN: u64 = 200 << 20;
/// How long a server that went away with the last bytes is waited for, so that it hears that they are in place.
const CONFIRMING_MAX: Duration = Duration::from_secs(2);
/// The longest that nothing may happen, whatever it was set to: ten years, which no clock overflows by.
const PATIENCE_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What to transfer, and how.
#[derive(Clone, Debug)]
pub struct TransferOptions {
    /// What to get.
    pub source: Source,
    /// Credit, in bytes.
    pub window_bytes: u64,
    /// Largest body frame to ask for, in bytes; cut to the window.
    pub chunk_bytes: u64,
    /// Whether to ask for compressed bodies.
    pub compress: Option<Compression>,
    /// Whether to check content against digests.
    pub verify: bool,
    /// Told to the server when files are confirmed; the disk sees to it.
    pub durable: bool,
    /// How long nothing may happen before the transfer is given up.
    pub idle_timeout: Duration,
    /// Deliver a single file from its beginning to its end, and nothing of it that wasn't checked: for an output that can't take
    /// anything back. What fails the file fails the transfer.
    pub in_order: bool,
}

/// What to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file, a link, or a directory with all below it.
    Path(RelPath),
    /// All that a pattern matches; it goes to its path below the part of the pattern that has no wildcard.
    Glob(String),
}

/// Where files go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The one file or link of the source, under this name.
    As(RelPath),
    /// Whatever is below the source, with the same path below the destination.
    Below,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// All files are in place; directories get their modes and times.
    FinishingDirs,
    /// All is in place, and there is no connection to tell it by.
    Confirming,
    Over,
}

/// The state machine. See the [module](self).
#[derive(Debug)]
pub struct Transfer {
    options: TransferOptions,
    stage: Stage,
    connected: bool,
    next_id: u32,
    next_key: u64,
    listing: Listing,
    placement: Option<Placement>,
    /// Nothing is at the destination, so that nothing need be inspected.
    fresh: bool,
    files: HashMap<FileKey, FileTask, Counted>,
    contents: HashMap<ContentKey, FileKey, Counted>,
    waiting: VecDeque<FileKey>,
    fetches: HashMap<u32, Fetch, Counted>,
    concurrency: Concurrency,
    retry: RetryQueue,
    /// Files whose leaves are to be asked for.
    leaves_wanted: Vec<FileKey>,
    /// Requests for leaves under way.
    leaf_requests: HashMap<u32, FileKey, Counted>,
    credit: Credit,
    /// Files that the disk is asked about, or will be.
    inspecting: usize,
    /// Those that it will be asked about once the directories and links that were listed before them are made.
    to_inspect: Vec<FileKey>,
    space: Option<Space>,
    /// Fetch that the data message under way belongs to.
    data_id: u32,
    piece: Option<Piece>,
    /// Directories and links that the disk is making, or directories that it is finishing.
    entries_pending: usize,
    /// Directories that could not be made, which is told once.
    failed_dirs: HashSet<RelPath>,
    confirmations: Confirmations,
    confirming_until: Option<Instant>,
    outputs: VecDeque<Output>,
    totals: Totals,
    failure: Option<TransferError>,
    idle: IdleTimer,
    breaks: Reconnects,
}

impl Transfer {
    /// Begins; nothing comes out before [`Transfer::connected`].
    pub fn new(options: TransferOptions, now: Instant) -> Self {
        let options = TransferOptions {
            chunk_bytes: options
                .chunk_bytes
                .min(options.window_bytes)
                .clamp(crate::limits::CHUNK_BYTES_MIN, crate::limits::CHUNK_BYTES_MAX),
            window_bytes: options.window_bytes.clamp(crate::limits::CHUNK_BYTES_MIN, crate::limits::CREDIT_BYTES_MAX),
            ..options
        };
        Self {
            stage: Stage::Running,
            connected: false,
            next_id: 1,
            next_key: 1,
            listing: Listing::default(),
            placement: None,
            fresh: false,
            files: HashMap::default(),
            contents: HashMap::default(),
            waiting: VecDeque::new(),
            fetches: HashMap::default(),
            concurrency: Concurrency::default(),
            retry: RetryQueue::default(),
            leaves_wanted: Vec::new(),
            leaf_requests: HashMap::default(),
            credit: Credit::new(options.window_bytes, options.chunk_bytes),
            inspecting: 0,
            to_inspect: Vec::new(),
            space: None,
            data_id: 0,
            piece: None,
            entries_pending: 0,
            failed_dirs: HashSet::new(),
            confirmations: Confirmations::default(),
            confirming_until: None,
            outputs: VecDeque::new(),
            totals: Totals::default(),
            failure: None,
            idle: IdleTimer::new(now),
            breaks: Reconnects::default(),
            options,
        }
    }

    /// There is a connection, the first one or a new one. That alone is no progress: a server that ends every connection before
    /// it has sent anything is given up, too.
    pub fn connected(&mut self) {
        self.connected = true;
        self.concurrency = Concurrency::default();
        self.credit.reset();
        self.pump();
    }

    /// The connection is gone, and with it all requests. What is written stays.
    pub fn disconnected(&mut self) {
        self.connected = false;
        if self.is_whole() {
            return;
        }
        self.listing.interrupted();
        self.fetches.clear();
        self.leaf_requests.clear();
        self.abort_piece();
        let mut keys: Vec<FileKey> = self.files.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            if let Err(error) = self.file_interrupted(key) {
                self.fail(error);
            }
        }
        let progress = self.progress();
        if let Some(times) = self.breaks.broke_at(progress.bytes_done + progress.files_done + progress.files_total) {
            self.fail(TransferError::Breaking { times });
        }
        // What comes as one piece is lost with its connection: several small files, or what is compressed.
        if self.breaks.is_stuck() && self.options.chunk_bytes > CHUNK_BYTES_BREAKING_MIN {
            self.options.chunk_bytes = (self.options.chunk_bytes / 2).max(CHUNK_BYTES_BREAKING_MIN);
        }
    }

    /// Where the files go: the answer to [`Output::OpenDestination`]. `fresh` if nothing is there yet.
    pub fn destination(&mut self, placement: Placement, fresh: bool) {
        self.placement = Some(placement);
        self.fresh = fresh;
        match self.take_listed_entries() {
            Ok(()) => self.pump(),
            Err(error) => self.fail(error),
        }
    }

    /// Something arrived from the server.
    pub fn inbound(&mut self, inbound: Inbound, now: Instant) {
        if self.stage == Stage::Over {
            return;
        }
        // In the middle of a message nothing becomes possible that wasn't before.
        let ends_something = matches!(inbound, Inbound::Control { .. } | Inbound::BodyEnd);
        let reply = match inbound {
            Inbound::Control { ref json, .. } => Some(Reply::decode(json)),
            _ => None,
        };
        match &reply {
            Some(Ok(reply)) if tells_nothing(reply) => self.idle.came_to_nothing(),
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

    /// The server sent something that is not even a message of the protocol.
    pub fn broken_wire(&mut self, error: &WireError) {
        self.fail(TransferError::Protocol(error.to_string()));
    }

    /// The disk did something.
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

    /// Time has passed: gives up if nothing happened for too long.
    pub fn tick(&mut self, now: Instant) {
        if self.stage != Stage::Over && (self.listing.is_due(now) | self.ask_later_ones(now)) {
            self.pump();
        }
        if self.is_whole() && now >= *self.confirming_until.get_or_insert(now + CONFIRMING_MAX) {
            self.over();
        }
        if self.stage != Stage::Over && now >= self.idle_deadline() {
            let seconds = now.saturating_duration_since(self.idle.since()).as_secs();
            self.fail(TransferError::Stalled { seconds, connected: self.connected });
        }
    }

    /// Bytes come of something that isn't whole yet: nobody is idle.
    pub fn arriving(&mut self, now: Instant) {
        self.idle.arriving(now);
    }

    /// What is here already is being read: it takes as long as it takes.
    pub fn reading(&mut self, now: Instant) {
        self.idle.progressed(now);
    }

    /// When [`Transfer::tick`] has to be called at the latest.
    pub fn deadline(&self) -> Instant {
        let idle = self.idle_deadline();
        [self.listing.again_at(), self.retry.again_at()].into_iter().flatten().fold(idle, Instant::min)
    }

    /// When too little has happened for too long.
    fn idle_deadline(&self) -> Instant {
        // A server that has sent all of a file, and only hashes it, may be silent for as long as that takes.
        let hashing = Duration::from_secs(self.bytes_hashed() / HASH_BYTES_PER_SECOND_MIN);
        self.idle.since() + self.options.idle_timeout.saturating_add(hashing).min(PATIENCE_MAX)
    }

    /// Ends the transfer early: tells the server, and leaves what is there for another time.
    pub fn cancel(&mut self) {
        if self.stage != Stage::Over {
            let ids = self.fetches.keys().chain(self.listing.open_id()).copied().collect::<Vec<_>>();
            for id in ids {
                self.send(Request::Cancel { id });
            }
            self.fail(TransferError::Cancelled);
        }
    }

    /// All is in place, and only the server doesn't know: whatever happens now is no failure.
    pub fn is_whole(&self) -> bool {
        self.stage == Stage::Confirming
    }

    /// The next thing to do.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.totals.progress(self.listing.is_complete())
    }

    /// What it came to, and why it ended early if it did. Of use after [`Output::Finished`].
    pub fn into_outcome(self) -> (Totals, Option<TransferError>) {
        (self.totals, self.failure)
    }

    fn progressed(&mut self, now: Instant) {
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

    fn fresh_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        id
    }

    fn fresh_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    /// Does whatever has become possible.
    fn pump(&mut self) {
        if self.stage == Stage::Over {
            return;
        }
        if self.connected {
            self.pump_listing();
            self.pump_leaves();
            self.pump_fetches();
            if !self.fetches.is_empty()
                && let Some(bytes) = self.credit.take_if_worthwhile()
            {
                self.send(Request::Credit { bytes });
            }
            self.pump_confirmations();
        }
        self.pump_inspections();
        self.pump_end();
    }

    fn pump_confirmations(&mut self) {
        for confirm in self.confirmations.take_due() {
            self.send(Request::Confirm(confirm));
        }
    }

    fn pump_end(&mut self) {
        let idle = self.listing.is_complete() && self.files.is_empty() && self.entries_pending == 0;
        if !idle {
            return;
        }
        self.stage = Stage::FinishingDirs;
        // The deepest first: what is in a directory may not be reached any more once it has its mode.
        while self.entries_pending == 0 {
            let Some(dirs) = self.listing.take_deepest_dirs() else {
                if self.connected || !self.confirmations.are_due() {
                    return self.over();
                }
                self.stage = Stage::Confirming;
                return;
            };
            for ListedDir { local, mode, modified } in dirs {
                if !self.failed_dirs.contains(&local) {
                    self.entries_pending += 1;
                    self.command(DiskCommand::FinishDir { local, mode, modified });
                }
            }
        }
    }

    /// The transfer cannot go on.
    fn fail(&mut self, error: TransferError) {
        if self.stage != Stage::Over {
            self.failure = Some(error).filter(|_| !self.is_whole());
            self.over();
        }
    }

    fn over(&mut self) {
        self.stage = Stage::Over;
        self.outputs.push_back(Output::Finished);
    }
}
