//! Decides what is requested of a file that is read, and checks what comes. Without I/O: messages go in, requests and verified leaves come out.
//!
//! First come the digest and the values of the leaves, whose merge must be the digest. Then runs of leaves are fetched, from where the reader
//! is, as far ahead as it may be. Each leaf is compared with its value before the reader gets it.

use crate::digest::{Digest, Leaf, LeafHasher, LeafSize, merge_leaves};
use crate::error::Error;
use crate::limits::{CHUNK_BYTES_DEFAULT, LEAF_VALUE_BYTES, LEAVES_PAGE_MAX, PIECE_COST_MIN};
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{
    DigestWish, FetchFile, FetchRequest, FileAnswer, FileMetadata, LeavesReply, LeavesRequest, Range, Reply, Request,
};
use crate::protocol::data::{Body, DataEntry};
use crate::root::Timestamp;
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops;
use std::time::{Duration, Instant};

/// Largest leaf, in bytes: that of a file of 16 TiB.
const LEAF_BYTES_MAX: u64 = 16 << 20;
/// Requests that may be open, cancelled ones included.
const OPEN_MAX: usize = 32;
/// Fetches of a leaf whose content was wrong.
const RETRIES_MAX: u32 = 3;
/// Until a server that is too busy is asked again.
const BUSY_WAIT: Duration = Duration::from_secs(1);
/// Pieces of a fetch that may cost more than their bytes.
const SMALL_PIECES_MAX: u64 = 16;

/// The metadata of a file before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) size: u64,
    pub(super) modified: Timestamp,
    pub(super) digest: Digest,
    pub(super) leaves: LeafSize,
}

/// A file that is read.
#[derive(Debug)]
pub(super) struct Reading {
    path: RelPath,
    /// Most bytes that are held or on their way.
    window: u64,
    next_id: u32,
    stage: Stage,
    /// Values of the leaves, from this one on.
    values_from: u64,
    values: Vec<Leaf>,
    /// The leaf at which reading ends.
    until: u64,
    /// Fetches that aren't over, by their ids.
    fetches: BTreeMap<u32, Fetch>,
    /// Cancelled requests that the server may still be answering.
    cancelled: HashSet<u32>,
    /// The request of the data message that arrives, and its piece, if that is of use.
    data_id: u32,
    is_of_use: bool,
    /// Leaves that are fetched again, one by one.
    again: VecDeque<u64>,
    /// How often each of these was wrong.
    wrong: BTreeMap<u64, u32>,
    /// When the server is asked again, as it was too busy.
    retry_at: Option<Instant>,
    /// The reason that it gave.
    busy: Option<String>,
    requests: VecDeque<Request>,
    /// Verified leaves that the reader hasn't taken.
    ready: BTreeMap<u64, Vec<u8>>,
    /// The leaf that the reader needs next. None before it has read anything.
    wanted: Option<u64>,
    /// All from `wanted` up to this leaf was requested.
    requested: u64,
    /// How far ahead of the reader bytes are fetched: it grows while the reader goes on from leaf to leaf.
    ahead: u64,
    /// Bytes that arrived.
    received: u64,
}

#[derive(Debug)]
enum Stage {
    /// Its metadata is awaited, by the request of this id.
    Metadata(u32),
    /// The values of its leaves are.
    Values(Info, u32),
    Open(Info),
}

/// A run of leaves that was requested.
#[derive(Debug)]
struct Fetch {
    /// The metadata came, and is what it was.
    has_begun: bool,
    /// Where the next piece begins.
    at: u64,
    end: u64,
    /// Bytes of the leaf that arrives.
    held: Vec<u8>,
}

impl Fetch {
    /// Bytes that it holds, or will.
    fn bytes(&self) -> u64 {
        self.end - self.at + self.held.len() as u64
    }
}

/// The size of a file's leaves, unless one of them is more than what is kept in memory.
pub(super) fn leaves_announced(leaf_bytes: u64, size: u64) -> Result<LeafSize, Error> {
    let Ok(leaves) = LeafSize::announced(leaf_bytes, size) else {
        return Error::protocol("an impossible leaf size");
    };
    if leaf_bytes.min(size) > LEAF_BYTES_MAX {
        let message = "the file is too large to be read in parts".to_owned();
        return Err(Error::Unmet { code: ErrorCode::Unsupported, message });
    }
    Ok(leaves)
}

impl Reading {
    pub(super) fn new(path: RelPath, window: u64) -> Self {
        Self {
            path,
            window,
            next_id: 0,
            stage: Stage::Metadata(0),
            values_from: 0,
            values: Vec::new(),
            until: u64::MAX,
            fetches: BTreeMap::new(),
            cancelled: HashSet::new(),
            data_id: 0,
            is_of_use: false,
            again: VecDeque::new(),
            wrong: BTreeMap::new(),
            retry_at: None,
            busy: None,
            requests: VecDeque::new(),
            ready: BTreeMap::new(),
            wanted: None,
            requested: 0,
            ahead: 0,
            received: 0,
        }
    }

    /// Some leaves of a file whose metadata and values of these leaves are known. They are requested at once, and nothing else.
    pub(super) fn of_leaves(path: RelPath, info: Info, leaves: ops::Range<u64>, values: &[Leaf]) -> Self {
        let window = (leaves.end - leaves.start).saturating_mul(info.leaves.leaf_bytes()).saturating_mul(2);
        let ops::Range { start, end } = leaves;
        Self {
            stage: Stage::Open(info),
            values_from: start,
            values: values.to_vec(),
            until: end,
            wanted: Some(start),
            requested: start,
            ahead: window,
            ..Self::new(path, window)
        }
    }

    /// The values of all leaves of a file whose metadata is known, and not its content.
    pub(super) fn of_values(path: RelPath, info: Info) -> Self {
        Self { stage: Stage::Values(info, 0), until: 0, ..Self::new(path, 0) }
    }

    /// The values that came, which are right.
    pub(super) fn into_values(self) -> Vec<Leaf> {
        self.values
    }

    /// The metadata of the file, once it can be read.
    pub(super) fn info(&self) -> Option<Info> {
        match self.stage {
            Stage::Open(info) => Some(info),
            _ => None,
        }
    }

    /// Bytes that arrived.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Whether the server is to answer something.
    pub(super) fn is_waiting(&self) -> bool {
        self.retry_at.is_some() || !self.fetches.is_empty() || !self.cancelled.is_empty()
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// The error of a server that did nothing for too long, which may be that it was too busy.
    pub(super) fn stalled(&mut self, error: Error) -> Error {
        match (error, self.busy.take()) {
            (Error::Stalled { connected: true, .. }, Some(message)) => {
                Error::Refused { code: ErrorCode::Busy, message }
            }
            (error, _) => error,
        }
    }

    /// Takes a leaf if it is there. Otherwise it is what is fetched next.
    pub(super) fn take(&mut self, leaf: u64) -> Option<Vec<u8>> {
        let Stage::Open(info) = self.stage else { return None };
        let is_coming = self.wanted.is_some_and(|wanted| (wanted..self.requested).contains(&leaf));
        if !is_coming && self.wanted != Some(leaf) {
            let fetches = std::mem::take(&mut self.fetches);
            self.requests.extend(fetches.keys().map(|id| Request::Cancel { id: *id }));
            self.cancelled.extend(fetches.into_keys());
            self.ready.clear();
            self.again.clear();
            (self.requested, self.ahead) = (leaf, info.leaves.leaf_bytes());
        }
        self.wanted = Some(leaf);
        // Those that were passed over.
        self.ready = self.ready.split_off(&leaf);
        let taken = self.ready.remove(&leaf)?;
        self.wrong.remove(&leaf);
        self.wanted = Some(leaf + 1);
        self.ahead = (self.ahead * 2).min(self.window);
        Some(taken)
    }

    /// There is a connection: asks anew for what isn't here.
    pub(super) fn connected(&mut self) {
        match self.stage {
            Stage::Metadata(_) => self.ask_for_metadata(),
            Stage::Values(..) => self.ask_for_values(),
            Stage::Open(_) => {}
        }
    }

    /// The connection is lost, and what was asked for doesn't come.
    pub(super) fn lost(&mut self) {
        self.requests.clear();
        self.cancelled.clear();
        let ids: Vec<u32> = self.fetches.keys().copied().collect();
        ids.into_iter().for_each(|id| self.give_up(id));
    }

    /// The requests to send.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<Request> {
        if self.retry_at.take_if(|at| *at <= now).is_some() {
            self.connected();
        }
        if self.requests.is_empty() && self.retry_at.is_none() {
            self.fetch();
        }
        self.requests.pop_front()
    }

    fn id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    fn ask_for_metadata(&mut self) {
        let id = self.id();
        self.stage = Stage::Metadata(id);
        let request = self.fetch_request(id, Vec::new(), DigestWish::Now);
        self.requests.push_back(request);
    }

    fn fetch_request(&self, id: u32, ranges: Vec<Range>, digest: DigestWish) -> Request {
        let bytes: u64 = ranges.iter().map(|range| range.length).sum();
        let files = vec![FetchFile { path: (&self.path).into(), ranges: Some(ranges), unless: None }];
        let credit_bytes = if bytes == 0 { 0 } else { bytes + SMALL_PIECES_MAX * PIECE_COST_MIN };
        let chunk_bytes = CHUNK_BYTES_DEFAULT;
        Request::Fetch(FetchRequest { id, chunk_bytes, compress: None, digest, credit_bytes, files })
    }

    fn ask_for_values(&mut self) {
        let id = self.id();
        let Stage::Values(info, awaited) = &mut self.stage else { return };
        *awaited = id;
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let from = self.values.len() as u64;
        let count = (info.leaves.count() - from).min(LEAVES_PAGE_MAX.into());
        let (path, digest) = ((&self.path).into(), info.digest);
        let request = LeavesRequest { id, path, digest, from: small(from), count: small(count) };
        self.requests.push_back(Request::Leaves(request));
    }

    /// Requests the next run of leaves, if there is space for it.
    fn fetch(&mut self) {
        let (Stage::Open(info), Some(wanted)) = (&self.stage, self.wanted) else { return };
        let leaves = info.leaves;
        self.again.retain(|leaf| *leaf >= wanted);
        let again = self.again.front().copied();
        let first = again.unwrap_or(self.requested.max(wanted));
        if first >= self.until {
            return;
        }
        let Ok((offset, _)) = leaves.range(first) else { return };
        let count =
            if again.is_some() { 1 } else { (self.ahead / 2 / leaves.leaf_bytes()).clamp(1, self.until - first) };
        let end = leaves.file_bytes().min(offset.saturating_add(count.saturating_mul(leaves.leaf_bytes())));
        let held = self.ready.values().map(|leaf| leaf.len() as u64).sum::<u64>()
            + self.fetches.values().map(Fetch::bytes).sum::<u64>();
        let has_space = held == 0 || again.is_some() || held + (end - offset) <= self.ahead;
        if end == offset || !has_space || self.fetches.len() + self.cancelled.len() >= OPEN_MAX {
            return;
        }
        match again {
            Some(_) => _ = self.again.pop_front(),
            None => self.requested = first + count,
        }
        let id = self.id();
        self.fetches.insert(id, Fetch { has_begun: false, at: offset, end, held: Vec::new() });
        let request = self.fetch_request(id, vec![Range { offset, length: end - offset }], DigestWish::None);
        self.requests.push_back(request);
    }

    /// Ends a fetch: what it lacks is fetched again.
    fn give_up(&mut self, id: u32) {
        let (Some(fetch), Stage::Open(info)) = (self.fetches.remove(&id), &self.stage) else { return };
        if fetch.bytes() > 0 {
            let last = info.leaves.index_at(fetch.end - 1);
            self.again.extend(info.leaves.index_at(fetch.at - fetch.held.len() as u64)..=last);
        }
    }

    /// Takes what the server sent; whether it is progress.
    pub(super) fn inbound(&mut self, inbound: Inbound, now: Instant) -> Result<bool, Error> {
        match inbound {
            Inbound::Control { json, attachment } => self.reply(Reply::decode(&json)?, attachment, now),
            Inbound::Header(header) => {
                self.data_id = header.id;
                self.check_open(header.id).map(|()| false)
            }
            Inbound::Body(entry) => self.body(entry),
            Inbound::BodyData(data) => {
                self.received += data.len() as u64;
                if self.is_of_use { self.bytes(&data).map(|()| true) } else { Ok(false) }
            }
            Inbound::BodyEnd => Ok(true),
        }
    }

    fn check_open(&self, id: u32) -> Result<(), Error> {
        match self.fetches.contains_key(&id) || self.cancelled.contains(&id) {
            true => Ok(()),
            false => Error::protocol("an answer to a request that isn't open"),
        }
    }

    fn body(&mut self, entry: DataEntry) -> Result<bool, Error> {
        let Some(fetch) = self.fetches.get(&self.data_id) else {
            self.is_of_use = false;
            return Ok(false);
        };
        self.is_of_use = true;
        let is_next = fetch.has_begun && entry.offset == fetch.at && entry.length <= fetch.end - fetch.at;
        if entry.n != 0 || !is_next || entry.body == Body::Zstd {
            return Error::protocol("a piece that wasn't requested, or is out of order");
        }
        if entry.body == Body::Hole {
            // No longer than the run of leaves.
            let mut left = entry.length;
            let zeros = [0; 64 << 10];
            while left > 0 {
                let now = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
                self.bytes(zeros.get(..now).unwrap_or_default())?;
                left -= now as u64;
            }
        }
        Ok(true)
    }

    /// Takes bytes of the piece, and checks the leaves that they complete.
    fn bytes(&mut self, mut data: &[u8]) -> Result<(), Error> {
        let Stage::Open(Info { leaves, .. }) = self.stage else { return Ok(()) };
        while !data.is_empty() {
            let Some(fetch) = self.fetches.get_mut(&self.data_id) else { return Ok(()) };
            let leaf = leaves.index_at(fetch.at);
            let Ok((offset, length)) = leaves.range(leaf) else { return Error::protocol("bytes past the end") };
            let missing = usize::try_from(offset + length - fetch.at).unwrap_or(usize::MAX);
            let (now, rest) = data.split_at(missing.min(data.len()));
            fetch.held.extend_from_slice(now);
            fetch.at += now.len() as u64;
            data = rest;
            if fetch.at < offset + length {
                return Ok(());
            }
            let held = std::mem::take(&mut fetch.held);
            let at = leaf.checked_sub(self.values_from).and_then(|at| usize::try_from(at).ok());
            let wanted = at.and_then(|at| self.values.get(at));
            if wanted.is_none() || wanted != value(leaves, leaf, &held).as_ref() {
                self.again.push_back(leaf);
                let times = self.wrong.entry(leaf).or_default();
                *times += 1;
                if *times > RETRIES_MAX {
                    return Err(Error::Protocol(format!("content does not match its digest, {times} times")));
                }
                tracing::warn!(path = %self.path, leaf, "content does not match its digest; fetching it again");
            } else if self.wanted.is_some_and(|wanted| wanted <= leaf) {
                self.ready.insert(leaf, held);
            }
        }
        Ok(())
    }

    fn reply(&mut self, reply: Reply, attachment: Option<Bytes>, now: Instant) -> Result<bool, Error> {
        match reply {
            Reply::Files(files) if self.cancelled.contains(&files.id) => Ok(false),
            Reply::Files(files) => {
                let [answer] = files.files.as_slice() else { return Error::protocol("not one file") };
                match answer {
                    FileAnswer::Metadata(metadata) => self.metadata(files.id, metadata),
                    FileAnswer::Error { code, message, .. } => self.refused(files.id, *code, message.clone(), now),
                    FileAnswer::Same { .. } => Error::protocol("`same` for a file that wasn't compared"),
                }
            }
            Reply::Leaves(leaves) => self.leaves(leaves, attachment),
            Reply::Void(void) if self.cancelled.contains(&void.id) => Ok(false),
            Reply::Void(void) => self.refused(void.id, void.code, void.message, now),
            Reply::End { id, .. } | Reply::Done { id } => {
                match self.fetches.get(&id) {
                    Some(fetch) if fetch.at < fetch.end => {
                        return Error::protocol("a file ended before all of it arrived");
                    }
                    _ if matches!(reply, Reply::End { .. }) => return Ok(self.fetches.contains_key(&id)),
                    _ => {}
                }
                Ok(self.cancelled.remove(&id) | self.fetches.remove(&id).is_some())
            }
            Reply::Cancelled(cancelled) => Ok(self.cancelled.remove(&cancelled.id)),
            Reply::Error(error) => match error.id {
                Some(id) if self.cancelled.remove(&id) => Ok(false),
                Some(id) => self.refused(id, error.code, error.message, now),
                None => Err(Error::Refused { code: error.code, message: error.message }),
            },
            _ => Ok(false),
        }
    }

    fn metadata(&mut self, id: u32, metadata: &FileMetadata) -> Result<bool, Error> {
        let FileMetadata { size, mtime, digest, leaf_bytes, .. } = *metadata;
        match self.stage {
            Stage::Metadata(awaited) if awaited == id => {
                let Some(digest) = digest else { return Error::protocol("no digest, although it was requested") };
                let leaves = leaves_announced(leaf_bytes, size)?;
                let info = Info { size, modified: mtime, digest, leaves };
                if leaves.count() == 1 {
                    self.values = vec![digest.0];
                    self.stage = Stage::Open(info);
                } else {
                    self.stage = Stage::Values(info, 0);
                    self.ask_for_values();
                }
                Ok(true)
            }
            Stage::Open(info) => {
                let Some(fetch) = self.fetches.get_mut(&id).filter(|fetch| !fetch.has_begun) else {
                    return Error::protocol("metadata of a file that wasn't requested");
                };
                fetch.has_begun = true;
                self.busy = None;
                match (size, mtime, leaf_bytes) == (info.size, info.modified, info.leaves.leaf_bytes()) {
                    true => Ok(true),
                    false => Err(changed("it is another version than at first")),
                }
            }
            _ => Error::protocol("metadata of a file that wasn't requested"),
        }
    }

    fn leaves(&mut self, reply: LeavesReply, attachment: Option<Bytes>) -> Result<bool, Error> {
        let Stage::Values(info, awaited) = self.stage else {
            return Error::protocol("leaf values that weren't requested");
        };
        let (page, rest) = attachment.as_deref().unwrap_or_default().as_chunks::<LEAF_VALUE_BYTES>();
        let total = info.leaves.count();
        let fits = reply.id == awaited
            && reply.count > 0
            && page.len() as u64 == u64::from(reply.count)
            && rest.is_empty()
            && self.values.len() as u64 == u64::from(reply.from)
            && u64::from(reply.total) == total
            && (self.values.len() + page.len()) as u64 <= total;
        if !fits {
            return Error::protocol("leaf values other than those requested");
        }
        self.values.extend_from_slice(page);
        if (self.values.len() as u64) < total {
            self.ask_for_values();
        } else if merge_leaves(&self.values) == Ok(info.digest) {
            self.stage = Stage::Open(info);
        } else {
            return Error::protocol("the leaf values don't match the digest");
        }
        Ok(true)
    }

    /// The server doesn't do what it was asked for.
    fn refused(&mut self, id: u32, code: ErrorCode, message: String, now: Instant) -> Result<bool, Error> {
        match code {
            ErrorCode::Busy => {
                self.give_up(id);
                (self.retry_at, self.busy) = (Some(now + BUSY_WAIT), Some(message));
                Ok(false)
            }
            ErrorCode::Changed => Err(changed(&message)),
            code => Err(Error::Refused { code, message }),
        }
    }
}

pub(super) fn changed(why: &str) -> Error {
    Error::Unmet { code: ErrorCode::Changed, message: format!("the file changed while it was read: {why}") }
}

/// The value of a leaf of these bytes.
fn value(leaves: LeafSize, leaf: u64, bytes: &[u8]) -> Option<Leaf> {
    let mut hasher = LeafHasher::new(leaves, leaf).ok()?;
    hasher.update(bytes).ok()?;
    hasher.finish().ok()
}
