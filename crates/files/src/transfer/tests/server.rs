//! A server in memory that keeps to the protocol, except for the faults that it is given.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::world::{Draw, Faults, noise};
use crate::digest::{Digest, Leaf, LeafSize, TreeHasher};
use crate::protocol::ErrorCode;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::*;
use crate::protocol::data::{Body, DataEntry, DataHeader};
use crate::root::Timestamp;

/// Entries of a page: few, so that listings have several.
const PAGE_ENTRIES: usize = 4;

#[derive(Clone)]
pub struct SimFile {
    pub content: Vec<u8>,
    pub digest: Digest,
    leaves: Vec<Leaf>,
    pub modified: i64,
}

impl SimFile {
    pub fn new(content: Vec<u8>) -> Self {
        let mut hasher = TreeHasher::new(LeafSize::for_file(content.len() as u64));
        hasher.update(&content).unwrap();
        let (digest, leaves) = hasher.finish().unwrap();
        Self { content, digest, leaves, modified: 0 }
    }
}

#[derive(Default)]
pub struct SimServer {
    pub files: BTreeMap<String, SimFile>,
    /// Content that files had before they changed.
    pub former: Vec<(String, Vec<u8>)>,
    pub requests: VecDeque<Request>,
    pub window_bytes: u64,
    pub confirmed: Vec<ConfirmedFile>,
    pub cancelled: usize,
    pub silent: bool,
    /// The one file is what is listed, instead of the directory that it is in.
    pub is_file: bool,
    pub always_corrupt: Option<String>,
    pub always_void: Option<String>,
    pub has_no_leaves: bool,
    /// The fetches and files in each that it takes; more are refused as busy.
    pub space: Option<(usize, usize)>,
    pub refused: usize,
    /// Bytes of content that were sent.
    pub sent: u64,
    listings: HashMap<u32, Vec<ListEntry>>,
    fetches: Vec<SimFetch>,
    credit: u64,
    changes: i64,
    corrupted: HashMap<String, usize>,
    voided: HashMap<String, usize>,
}

struct SimFetch {
    request: FetchRequest,
    next: usize,
    current: Option<Sending>,
}

/// A file that is being sent, as it was when that began.
struct Sending {
    file: SimFile,
    ranges: VecDeque<Range>,
    digest_sent: bool,
}

fn control(reply: &Reply) -> Inbound {
    Inbound::Control { json: reply.encode().into(), attachment: None }
}

impl SimServer {
    pub fn add(&mut self, path: &str, content: Vec<u8>) {
        self.files.insert(path.to_owned(), SimFile::new(content));
    }

    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && (self.fetches.is_empty() || self.credit == 0)
    }

    pub fn cut(&mut self) {
        self.requests.clear();
        self.listings.clear();
        self.fetches.clear();
        self.credit = 0;
    }

    /// Gives a file another content of the same size.
    pub fn change_one(&mut self, draw: &mut Draw) {
        self.changes += 1;
        let index = draw.below(self.files.len());
        if let Some((path, file)) = self.files.iter_mut().nth(index) {
            self.former.push((path.clone(), file.content.clone()));
            *file = SimFile::new(noise(file.content.len(), self.changes as u64 + 1000));
            file.modified = self.changes;
        }
    }

    pub fn take(&mut self, request: Request, draw: &mut Draw) -> Vec<Inbound> {
        if self.silent {
            return Vec::new();
        }
        // Encoded and decoded, so that what is tested is what crosses the wire.
        match Request::decode(&request.encode()).unwrap() {
            Request::List(list) => {
                let entries = self.entries();
                self.listings.insert(list.id, entries);
                vec![self.page(list.id)]
            }
            Request::More { id } => vec![self.page(id)],
            Request::Fetch(fetch) => {
                self.add_credit(fetch.credit_bytes);
                if self.space.is_some_and(|(fetches, files)| self.fetches.len() >= fetches || fetch.files.len() > files)
                {
                    self.refused += 1;
                    let (code, message) = (ErrorCode::Busy, "no space".to_owned());
                    return vec![control(&Reply::Error(ErrorReply { id: Some(fetch.id), code, message }))];
                }
                self.fetches.push(SimFetch { request: fetch, next: 0, current: None });
                Vec::new()
            }
            Request::Credit { bytes, .. } => {
                self.add_credit(bytes);
                Vec::new()
            }
            Request::Leaves(leaves) => vec![self.leaves(&leaves, draw)],
            Request::Cancel { id } => {
                self.cancelled += 1;
                self.fetches.retain(|fetch| fetch.request.id != id);
                vec![control(&Reply::Cancelled(Cancelled { id }))]
            }
            Request::Confirm(confirm) => {
                self.confirmed.extend(confirm.files);
                Vec::new()
            }
            Request::Hello | Request::Follow(_) | Request::FetchesFor(_) | Request::Push(_) => Vec::new(),
            Request::Have(_) | Request::Holders(_) | Request::Publish(_) => Vec::new(),
        }
    }

    fn add_credit(&mut self, bytes: u64) {
        self.credit += bytes;
        assert!(self.credit <= self.window_bytes, "more credit than the window: {}", self.credit);
    }

    fn entries(&self) -> Vec<ListEntry> {
        let mut entries = Vec::new();
        let entry = |path: &str, kind, size, seconds| ListEntry {
            path: path.as_bytes().to_vec().into(),
            kind,
            size,
            mtime: Timestamp { seconds, nanoseconds: 1 },
            mode: 0o755,
            allocated: None,
            hard_link: None,
            target: None,
            digest: None,
            message: None,
        };
        let mut dirs = BTreeSet::new();
        for (path, file) in &self.files {
            for (end, _) in path.match_indices('/') {
                if dirs.insert(&path[..end]) {
                    entries.push(entry(&path[..end], EntryKind::Dir, 0, 0));
                }
            }
            entries.push(entry(path, EntryKind::File, file.content.len() as u64, file.modified));
        }
        entries
    }

    fn page(&mut self, id: u32) -> Inbound {
        let rest = self.listings.get_mut(&id).unwrap();
        let entries = rest.drain(..rest.len().min(PAGE_ENTRIES)).collect();
        let more = !rest.is_empty();
        let dir = Some(DirStat { mode: 0o750, mtime: Timestamp::default() });
        let (base, dir) = if self.is_file { (Base::File, None) } else { (Base::Dir, dir) };
        control(&Reply::List(ListPage { id, base, dir, entries, more }))
    }

    fn leaves(&self, request: &LeavesRequest, draw: &mut Draw) -> Inbound {
        if self.has_no_leaves {
            let (code, message) = (ErrorCode::Unsupported, "no leaves".to_owned());
            return control(&Reply::Error(ErrorReply { id: Some(request.id), code, message }));
        }
        let path = String::from_utf8(request.path.as_bytes().to_vec()).unwrap();
        let Some(file) = self.files.get(&path).filter(|file| file.digest == request.digest) else {
            let (code, message) = (ErrorCode::Changed, "another file now".to_owned());
            return control(&Reply::Error(ErrorReply { id: Some(request.id), code, message }));
        };
        // Sometimes fewer than were asked for.
        let count = request.count.min(1 + draw.below(3) as u32);
        let page = &file.leaves[request.from as usize..(request.from + count) as usize];
        let total = file.leaves.len() as u32;
        let reply = Reply::Leaves(LeavesReply { id: request.id, from: request.from, count, total });
        Inbound::Control { json: reply.encode().into(), attachment: Some(page.concat().into()) }
    }

    /// Sends the next thing of one of the fetches.
    pub fn send_some(&mut self, draw: &mut Draw, faults: &mut Faults) -> Vec<Inbound> {
        if self.fetches.is_empty() {
            return Vec::new();
        }
        let index = draw.below(self.fetches.len());
        let mut fetch = self.fetches.remove(index);
        let (sent, over) = self.send(&mut fetch, draw, faults);
        if !over {
            self.fetches.insert(index, fetch);
        }
        sent
    }

    fn send(&mut self, fetch: &mut SimFetch, draw: &mut Draw, faults: &mut Faults) -> (Vec<Inbound>, bool) {
        let id = fetch.request.id;
        let n = fetch.next as u32;
        let Some(asked) = fetch.request.files.get(fetch.next) else {
            return (vec![control(&Reply::Done { id })], true);
        };
        let path = String::from_utf8(asked.path.as_bytes().to_vec()).unwrap();
        let wish = fetch.request.digest;
        let Some(sending) = &mut fetch.current else {
            let Some(file) = self.files.get(&path).cloned() else {
                fetch.next += 1;
                let (code, message) = (ErrorCode::NotFound, "gone".to_owned());
                let files = vec![FileAnswer::Error { n, code, message }];
                return (vec![control(&Reply::Files(FilesReply { id, files }))], false);
            };
            if asked.unless == Some(Unless::Digest { digest: file.digest }) {
                fetch.next += 1;
                let files = vec![FileAnswer::Same { n }];
                return (vec![control(&Reply::Files(FilesReply { id, files }))], false);
            }
            let size = file.content.len() as u64;
            let is_within = |range: &Range| range.offset + range.length <= size;
            if !asked.ranges.iter().flatten().all(is_within) {
                fetch.next += 1;
                let (code, message) = (ErrorCode::Changed, "it is shorter".to_owned());
                let files = vec![FileAnswer::Error { n, code, message }];
                return (vec![control(&Reply::Files(FilesReply { id, files }))], false);
            }
            let whole = vec![Range { offset: 0, length: size }];
            let ranges = asked.ranges.clone().unwrap_or(whole).into_iter().filter(|range| range.length > 0).collect();
            let digest_sent = wish == DigestWish::Now || (wish == DigestWish::Later && draw.one_in(2));
            let metadata = FileMetadata {
                n,
                size,
                mtime: Timestamp { seconds: file.modified, nanoseconds: 1 },
                mode: 0o644,
                digest: digest_sent.then_some(file.digest),
                leaf_bytes: 1 << 20,
                sparse: false,
            };
            fetch.current = Some(Sending { file, ranges, digest_sent });
            let files = vec![FileAnswer::Metadata(metadata)];
            return (vec![control(&Reply::Files(FilesReply { id, files }))], false);
        };
        let changed = self.files.get(&path).is_none_or(|file| file.modified != sending.file.modified);
        let voids = self.voided.entry(path.clone()).or_default();
        let unlucky = faults.voids > 0 && *voids < 2 && draw.one_in(10);
        if changed || unlucky || self.always_void.as_ref() == Some(&path) {
            if unlucky && !changed {
                faults.voids -= 1;
                *voids += 1;
            }
            fetch.current = None;
            fetch.next += 1;
            let void = VoidReply { id, n, code: ErrorCode::Changed, message: "void".to_owned() };
            return (vec![control(&Reply::Void(void))], false);
        }
        if !sending.digest_sent && wish == DigestWish::Later && (sending.ranges.is_empty() || draw.one_in(3)) {
            sending.digest_sent = true;
            let digest = DigestReply { id, n, digest: sending.file.digest, leaf_bytes: 1 << 20 };
            return (vec![control(&Reply::Digest(digest))], false);
        }
        let Some(range) = sending.ranges.front_mut() else {
            fetch.current = None;
            fetch.next += 1;
            return (vec![control(&Reply::End { id, n })], false);
        };
        let chunk = fetch.request.chunk_bytes.min(self.credit);
        let length = range.length.min(chunk);
        if length == 0 || self.credit < 256 {
            return (Vec::new(), false);
        }
        let offset = range.offset;
        range.offset += length;
        range.length -= length;
        let range_over = range.length == 0;
        if range_over {
            sending.ranges.pop_front();
        }
        let mut piece = sending.file.content[offset as usize..(offset + length) as usize].to_vec();
        // A file that is corrupted again and again would fail.
        let corrupted = self.corrupted.entry(path.clone()).or_default();
        let always = self.always_corrupt.as_ref() == Some(&path) && offset == 0;
        if always || (faults.corruptions > 0 && *corrupted < 2 && draw.one_in(8)) {
            if !always {
                faults.corruptions -= 1;
                *corrupted += 1;
            }
            piece[length as usize / 2] ^= 0x10;
        }
        let packed = fetch.request.compress.and_then(|_| zstd::bulk::compress(&piece, 1).ok());
        let packed = packed.filter(|packed| packed.len() < piece.len());
        let (body, bytes) = packed.map_or((Body::Plain, piece), |packed| (Body::Zstd, packed));
        let end = sending.ranges.is_empty() && (sending.digest_sent || wish == DigestWish::None) && draw.one_in(2);
        let entry = DataEntry { n, end, body, offset, length, body_length: bytes.len() as u64 };
        self.credit -= entry.cost().min(self.credit);
        self.sent += length;
        if end {
            fetch.current = None;
            fetch.next += 1;
        }
        let header = DataHeader { id, entries: vec![entry] };
        let mut sent = vec![Inbound::Header(header), Inbound::Body(entry)];
        // Small frames come whole, others in pieces, but few enough for the steps of a test.
        let least = bytes.len().div_ceil(64).max(1);
        let cut = if bytes.len() <= 64 << 10 { bytes.len() } else { least + draw.below(bytes.len()) };
        sent.extend(bytes.chunks(cut).map(|part| Inbound::BodyData(part.to_vec().into())));
        sent.push(Inbound::BodyEnd);
        (sent, false)
    }
}
