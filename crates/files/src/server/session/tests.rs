//! Sessions in virtual time: requests, credit, jobs and the socket in any order that chance finds.

mod single;

use super::*;
use crate::digest::{Digest, LeafSize};
use crate::limits::{CREDIT_BYTES_MAX, PIECE_COST_MIN};
use crate::protocol::control::{
    Compression, DigestWish, FetchFile, FetchRequest, FileAnswer, FileMetadata, FollowLinks, LeavesReply,
    LeavesRequest, ListRequest, ListTarget, Range, WirePath,
};
use crate::protocol::data::{Body, DataHeader};
use crate::protocol::plain::PlainRange;
use crate::server::chunks::{Extent, Layout};
use crate::server::jobs::*;
use crate::server::limits::*;
use crate::server::operations::Answered;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Chooses from what proptest made up, so that a failure shrinks.
struct Chance {
    tape: Vec<u32>,
    at: usize,
}

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.at += 1;
        let number = self.tape[self.at % self.tape.len()].wrapping_add((self.at / self.tape.len()) as u32);
        number as usize % bound.max(1)
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// A file is its number in the fetch; what it is follows from what was chosen for it.
#[derive(Clone, Debug)]
struct FakeFile {
    kind: Kind,
    size: u64,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Small,
    Large,
    /// Found to have changed, sooner or later.
    Changing,
    Missing,
    Same,
}

struct FetchModel {
    files: Vec<FakeFile>,
    wanted: Vec<Option<Vec<Range>>>,
    digest: DigestWish,
    answered: usize,
    /// Files that are over, in order.
    over: Vec<u32>,
    digests: BTreeSet<u32>,
    covered: BTreeMap<u32, Vec<(u64, u64)>>,
}

struct Simulation {
    session: Session<FakeFile>,
    open_files_max: usize,
    chance: Chance,
    /// Jobs that were asked for and are not done.
    jobs: Vec<(Ticket, Job<FakeFile>)>,
    /// Messages in the socket's queue, oldest first.
    socket: VecDeque<Outgoing<FakeFile>>,
    fetches: BTreeMap<u32, FetchModel>,
    /// Which fetch a ticket belongs to.
    tickets: HashMap<Ticket, u32>,
    listings: BTreeMap<u32, usize>,
    cancelled: BTreeSet<u32>,
    ended: Vec<u32>,
    given: u64,
    spent: u64,
    plain_asked: VecDeque<u64>,
    next_id: u32,
}

const SIZES: [u64; 8] = [0, 1, 255, 300, 4096, 5000, 20_000, 70_000];

impl Simulation {
    fn new(tape: Vec<u32>) -> Simulation {
        let mut chance = Chance { tape, at: 0 };
        // From none, when each client still may have one, to as many as there are.
        let open_files_max = [0, 1, 3, usize::MAX][chance.below(4)];
        Simulation {
            session: Session::new(Principal::Anonymous, Quotas::new(open_files_max).client()),
            open_files_max,
            chance,
            jobs: Vec::new(),
            socket: VecDeque::new(),
            fetches: BTreeMap::new(),
            tickets: HashMap::new(),
            listings: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            ended: Vec::new(),
            given: 0,
            spent: 0,
            plain_asked: VecDeque::new(),
            next_id: 0,
        }
    }

    fn give(&mut self, bytes: u64) {
        self.given += bytes;
        self.session.request(Vec::new(), Ok(Request::Credit { bytes, slow: None }));
    }

    fn fetch(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        let kinds = [Kind::Small, Kind::Small, Kind::Large, Kind::Large, Kind::Changing, Kind::Missing, Kind::Same];
        let count = 1 + self.chance.below(6);
        let mut model = FetchModel {
            files: Vec::new(),
            wanted: Vec::new(),
            digest: [DigestWish::Later, DigestWish::Now, DigestWish::None][self.chance.below(3)],
            answered: 0,
            over: Vec::new(),
            digests: BTreeSet::new(),
            covered: BTreeMap::new(),
        };
        for _ in 0..count {
            let kind = kinds[self.chance.below(kinds.len())];
            let size = SIZES[self.chance.below(SIZES.len())];
            let ranges = self.chance.one_in(3) && kind != Kind::Small;
            let ranges = ranges.then(|| {
                let offset = self.chance.below(10_000) as u64;
                vec![Range { offset, length: 1 + self.chance.below(5000) as u64 }]
            });
            model.files.push(FakeFile { kind, size });
            model.wanted.push(ranges);
        }
        let file = |ranges: &Option<Vec<Range>>| FetchFile {
            path: WirePath::from(b"f".to_vec()),
            ranges: ranges.clone(),
            unless: None,
        };
        let credit_bytes = if self.chance.one_in(2) { self.chance.below(30_000) as u64 } else { 0 };
        let request = FetchRequest {
            id,
            chunk_bytes: 4096,
            compress: self.chance.one_in(3).then_some(Compression::Zstd),
            digest: model.digest,
            credit_bytes,
            files: model.wanted.iter().map(file).collect(),
        };
        self.fetches.insert(id, model);
        let ended = self.ended.len();
        self.session.request(Vec::new(), Ok(Request::Fetch(request)));
        self.take_actions();
        // A refused request (too many) gives its credit all the same; it shows as an error later.
        assert_eq!(self.ended.len(), ended);
        self.given += credit_bytes;
    }

    fn list(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        let target = ListTarget::Path(WirePath::default());
        let request = ListRequest { id, target, recursive: true, digest: false, follow: FollowLinks::None };
        self.listings.insert(id, self.chance.below(4));
        self.session.request(Vec::new(), Ok(Request::List(request)));
    }

    fn ask_leaves(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        let path = WirePath::default();
        let request = LeavesRequest { id, path, digest: Digest([0; 32]), from: 0, count: 1 };
        self.session.request(Vec::new(), Ok(Request::Leaves(request)));
    }

    fn plain(&mut self) {
        let size = self.chance.below(300) as u64;
        let range = PlainRange { offset: self.chance.below(2) as u64, size };
        let path = Some(Bytes::from(vec![b'a' + self.chance.below(6) as u8]));
        self.plain_asked.push_back(size);
        self.session.plain_request(Vec::new(), Ok(PlainRequest { path, range: Some(range) }));
    }

    fn cancel(&mut self) {
        if self.next_id == 0 {
            return;
        }
        let id = self.chance.below(self.next_id as usize) as u32;
        self.cancelled.insert(id);
        self.session.request(Vec::new(), Ok(Request::Cancel { id }));
        self.take_actions();
    }

    fn take_actions(&mut self) {
        while let Some(action) = self.session.next_action() {
            match action {
                Action::Release { ticket, take_back } => {
                    if take_back {
                        // As the socket does: all that hasn't begun. The first message may have.
                        let begun = self.socket.pop_front();
                        let before = self.socket.len();
                        let mut refunded = 0;
                        self.socket.retain(|message| {
                            let keep = message.ticket != Some(ticket);
                            if !keep {
                                refunded += cost(message);
                            }
                            keep
                        });
                        let taken = before - self.socket.len();
                        self.socket.extend(begun);
                        self.socket.rotate_right(usize::from(!self.socket.is_empty()));
                        self.spent -= refunded;
                        self.session.taken_back(ticket, taken);
                    }
                }
                Action::Log(_) | Action::Have(_) | Action::FetchesFor(_) | Action::Holders(..) | Action::Hello(_) => {}
                Action::Start(ticket, job) => {
                    if let Job::Prepare(Prepare { request, .. }) = &job {
                        self.tickets.insert(ticket, request.id);
                    }
                    self.jobs.push((ticket, job));
                }
            }
        }
    }

    fn finish_job(&mut self) {
        let at = self.chance.below(self.jobs.len().max(1));
        let Some((ticket, job)) = (at < self.jobs.len()).then(|| self.jobs.swap_remove(at)) else { return };
        let answer = match job {
            Job::Prepare(Prepare { request, from, open_max }) => {
                let most = request.files.len() - from;
                let count = 1 + self.chance.below(most);
                let mut open = 0;
                let mut files = Vec::new();
                for n in from..from + count {
                    files.push(self.prepare(request.id, n as u32));
                    open += usize::from(matches!(files.last(), Some(Prepared::Large { .. })));
                    if open == open_max {
                        break;
                    }
                }
                Answer::Prepare(files)
            }
            Job::Hash(Hash { n, file }) => {
                let result = match file.kind {
                    Kind::Changing if self.chance.one_in(2) => Err(Failure::changed("hashing")),
                    _ => Ok(Digest([n as u8; 32])),
                };
                Answer::Hash(n, result)
            }
            Job::FindExtents(FindExtents { n, file, from }) => {
                let result = match file.kind {
                    Kind::Changing if self.chance.one_in(3) => Err(Failure::changed("looking")),
                    _ => Ok(self.layout(file.size, from)),
                };
                Answer::FindExtents(n, result)
            }
            Job::Load(Load { slot, file, length, how, .. }) => {
                let result = match (file.kind, how) {
                    (Kind::Changing, _) if self.chance.one_in(3) => Err(Failure::changed("loading")),
                    (_, LoadHow::Compressed) if length > 1 && self.chance.one_in(2) => {
                        Ok(Loaded::Packed(Bytes::from(vec![0; 1 + self.chance.below(length as usize - 1)])))
                    }
                    (_, how) if self.chance.one_in(2) => {
                        // The beginning of one that is cut, and what is left, cost no more than the whole.
                        let may_be_cut =
                            how != LoadHow::AnyVersion && length >= 2 * PIECE_COST_MIN && self.chance.one_in(2);
                        let least = if may_be_cut { PIECE_COST_MIN as usize } else { length as usize };
                        let most = if may_be_cut { length as usize - least } else { length as usize };
                        Ok(Loaded::Copied(Bytes::from(vec![0; least + self.chance.below(most - least + 1)])))
                    }
                    _ => Ok(Loaded::InPlace),
                };
                Answer::Load(slot, result)
            }
            Job::List(List { begin }) => {
                if let Some(request) = begin {
                    self.tickets.insert(ticket, request.id);
                }
                Answer::List(Ok(self.page(ticket)))
            }
            Job::Operation(operation) => {
                let reply = LeavesReply { id: operation.id(), from: 0, count: 0, total: 0 };
                Answer::Reply(Ok(Answered::new(Reply::Leaves(reply), Some(Bytes::new()))))
            }
            Job::Changes(_) | Job::Piece(_) | Job::Push(_) => return,
            Job::Open(_) => Answer::Open(Ok((FakeFile { kind: Kind::Large, size: 1000 }, 1000))),
        };
        self.session.finish(ticket, answer);
    }

    /// Data and a hole behind it, some of which somebody has found by now.
    fn layout(&mut self, size: u64, from: u64) -> Layout {
        let Some(left) = size.checked_sub(from).filter(|left| *left > 1 && !self.chance.one_in(3)) else {
            return Layout::without_holes();
        };
        let data = 1 + self.chance.below(left as usize - 1) as u64;
        let hole = 1 + self.chance.below((left - data) as usize) as u64;
        let until = from + data + hole;
        let data = Extent { offset: from, length: data, hole: false };
        let hole = Extent { offset: from + data.length, length: hole, hole: true };
        Layout { extents: vec![data, hole], until }
    }

    fn page(&mut self, ticket: Ticket) -> Page {
        let left = self.listings.get_mut(&self.tickets[&ticket]).unwrap();
        let more = *left > 0;
        *left = left.saturating_sub(1);
        let page = crate::protocol::control::ListPage {
            id: self.tickets[&ticket],
            base: crate::protocol::control::Base::Dir,
            dir: None,
            entries: Vec::new(),
            more,
        };
        Page { json: Reply::List(page).encode().into(), more }
    }

    fn prepare(&mut self, id: u32, n: u32) -> Prepared<FakeFile> {
        let model = &self.fetches[&id];
        let file = model.files[n as usize].clone();
        let wants = model.digest != DigestWish::None;
        let is_known = self.chance.one_in(3);
        let metadata = |digest| FileMetadata {
            n,
            size: file.size,
            mtime: Default::default(),
            mode: 0o644,
            digest,
            leaf_bytes: LeafSize::for_file(file.size).leaf_bytes(),
            sparse: false,
        };
        let digest = Digest([n as u8; 32]);
        match file.kind {
            Kind::Missing => {
                let (code, message) = (ErrorCode::NotFound, String::new());
                Prepared::Answer(FileAnswer::Error { n, code, message })
            }
            Kind::Same => Prepared::Answer(FileAnswer::Same { n }),
            Kind::Small => Prepared::Small {
                metadata: metadata(wants.then_some(digest)),
                body: Bytes::from(vec![0; file.size as usize]),
                packed: (file.size > 10 && is_known).then(|| Bytes::from_static(b"packed")),
            },
            Kind::Large | Kind::Changing => Prepared::Large {
                metadata: metadata((wants && is_known).then_some(digest)),
                layout: self.layout(file.size, 0),
                unless: None,
                file,
            },
        }
    }

    /// Hands messages to the socket, and checks each of them.
    fn pull(&mut self, most: usize) {
        for _ in 0..most {
            self.take_actions();
            let Some(message) = self.session.next_message() else { break };
            self.spent += cost(&message);
            assert!(self.spent <= self.given, "credit");
            self.check(&message);
            assert!(self.session.shared.quotas.open_files.used() <= self.open_files_max.max(1) as u64);
            self.socket.push_back(message);
            assert!(self.session.shared.in_socket_bytes <= PIPELINE_BYTES_MAX);
        }
        self.take_actions();
        self.session.still_queued(self.socket.len());
    }

    fn socket_sends(&mut self) {
        let Some(message) = self.socket.pop_front() else { return };
        for part in message.parts {
            if let Part::File { file, slot, .. } = part {
                let changed = file.kind == Kind::Changing && self.chance.one_in(2);
                let result = if changed { Err(Failure::changed("sent")) } else { Ok(()) };
                self.session.sent(slot, result);
            }
        }
    }

    fn check(&mut self, message: &Outgoing<FakeFile>) {
        let Some(Part::Bytes(first)) = message.parts.first() else {
            let Some(Part::File { length, .. }) = message.parts.first() else { panic!("a message without frames") };
            return self.check_plain(*length);
        };
        if first == crate::protocol::CONTROL_TAG.as_slice() {
            let Some(Part::Bytes(json)) = message.parts.get(1) else { panic!("control without JSON") };
            return self.check_reply(Reply::decode(json).unwrap());
        }
        // No frame that begins another message begins with a zero, as copied pieces do here.
        if first.first().is_none_or(|byte| *byte == 0) {
            return self.check_plain(first.len() as u64);
        }
        let header = DataHeader::decode(first).unwrap();
        assert!(!self.ended.contains(&header.id), "data after the end of its request");
        let model = self.fetches.get_mut(&header.id).unwrap();
        assert_eq!(message.parts.len(), header.entries.len() + 1);
        for (entry, part) in header.entries.iter().zip(&message.parts[1..]) {
            assert!((entry.n as usize) < model.answered, "metadata before data");
            assert!(model.over.iter().all(|over| *over < entry.n), "files in order");
            let length = match part {
                Part::Bytes(bytes) => bytes.len() as u64,
                Part::File { length, .. } => *length,
            };
            assert_eq!(length, entry.body_length);
            assert!(match entry.body {
                Body::Plain => length == entry.length,
                Body::Zstd => true,
                Body::Hole => length == 0,
            });
            let covered = model.covered.entry(entry.n).or_default();
            assert!(covered.last().is_none_or(|last| last.0 + last.1 <= entry.offset), "ascending");
            covered.push((entry.offset, entry.length));
            if entry.end {
                model.end(entry.n);
            }
        }
    }

    fn check_plain(&mut self, length: u64) {
        let asked = self.plain_asked.pop_front().expect("an answer for each request");
        assert!(length <= asked);
    }

    fn check_reply(&mut self, reply: Reply) {
        match reply {
            Reply::Files(files) => {
                assert!(!self.ended.contains(&files.id));
                let model = self.fetches.get_mut(&files.id).unwrap();
                for answer in files.files {
                    let n = match answer {
                        FileAnswer::Metadata(FileMetadata { n, digest, .. }) => {
                            assert!(model.digest != DigestWish::Now || digest.is_some());
                            n
                        }
                        FileAnswer::Same { n } | FileAnswer::Error { n, .. } => {
                            model.covered.insert(n, Vec::new());
                            n
                        }
                    };
                    assert_eq!(n as usize, model.answered, "answers in order, once");
                    model.answered += 1;
                }
            }
            Reply::Digest(digest) => {
                let model = self.fetches.get_mut(&digest.id).unwrap();
                assert!(!model.over.contains(&digest.n) && model.digests.insert(digest.n));
            }
            Reply::End { id, n } => {
                assert!(!self.ended.contains(&id));
                self.fetches.get_mut(&id).unwrap().end(n);
            }
            Reply::Void(void) => {
                assert!(!self.ended.contains(&void.id));
                let model = self.fetches.get_mut(&void.id).unwrap();
                assert_eq!(model.files[void.n as usize].kind, Kind::Changing);
                assert!(!model.over.contains(&void.n));
                model.over.push(void.n);
            }
            Reply::Done { id } => {
                let model = &self.fetches[&id];
                assert_eq!(model.answered, model.files.len());
                // Each file that was announced with metadata has ended, the others were answered.
                for (n, file) in model.files.iter().enumerate() {
                    let n = n as u32;
                    let is_over = model.over.iter().filter(|over| **over == n).count();
                    match file.kind {
                        Kind::Missing | Kind::Same => assert_eq!(is_over, 0),
                        // One whose hashing failed may have been answered with an error.
                        Kind::Changing => assert!(is_over <= 1),
                        Kind::Small | Kind::Large => assert_eq!(is_over, 1, "file {n}"),
                    }
                }
                self.end_request(id);
            }
            Reply::Error(error) => {
                assert_eq!(error.code, ErrorCode::Busy);
                self.end_request(error.id.unwrap());
            }
            Reply::Cancelled(cancelled) => {
                // A cancel of what is over is answered too.
                if !self.ended.contains(&cancelled.id) {
                    self.end_request(cancelled.id);
                }
            }
            Reply::List(page) => {
                assert!(!self.ended.contains(&page.id));
                if page.more && self.cancelled.contains(&page.id) {
                    // A client that has cancelled doesn't ask for more.
                } else if page.more {
                    self.session.request(Vec::new(), Ok(Request::More { id: page.id }));
                } else {
                    self.end_request(page.id);
                }
            }
            Reply::Leaves(leaves) => self.end_request(leaves.id),
            other => panic!("{other:?}"),
        }
    }

    fn end_request(&mut self, id: u32) {
        assert!(!self.ended.contains(&id), "{id} ended twice");
        self.ended.push(id);
    }

    fn step(&mut self) {
        match self.chance.below(16) {
            0 => self.fetch(),
            1 => self.list(),
            2 => self.ask_leaves(),
            3 => self.plain(),
            4 if self.chance.one_in(3) => self.cancel(),
            5 | 6 => {
                let bytes = [1, 255, 256, 1000, 4096, 50_000][self.chance.below(6)];
                self.give(bytes);
            }
            7..=9 => self.finish_job(),
            10 | 11 => self.socket_sends(),
            _ => {
                let most = 1 + self.chance.below(5);
                self.pull(most);
            }
        }
        self.take_actions();
    }

    /// With credit, time and a client that reads, everything ends.
    fn drain(&mut self) {
        self.give(1 << 30);
        for _ in 0..100_000 {
            self.pull(100);
            let is_idle = self.jobs.is_empty() && self.socket.is_empty();
            self.finish_job();
            self.socket_sends();
            self.take_actions();
            if is_idle && self.jobs.is_empty() && self.session.next_message().is_none() {
                return;
            }
        }
        panic!("it doesn't come to rest");
    }
}

impl FetchModel {
    /// A file is complete: what was wanted of it came, once.
    fn end(&mut self, n: u32) {
        assert!(!self.over.contains(&n), "file {n} ended twice");
        self.over.push(n);
        let size = self.files[n as usize].size;
        let wanted: u64 = match &self.wanted[n as usize] {
            None => size,
            Some(ranges) => ranges.iter().map(|range| range.end().min(size).saturating_sub(range.offset)).sum(),
        };
        let covered: u64 = self.covered.get(&n).into_iter().flatten().map(|(_, length)| length).sum();
        assert_eq!(covered, wanted, "file {n}");
    }
}

fn cost(message: &Outgoing<FakeFile>) -> u64 {
    match message.parts.first() {
        Some(Part::Bytes(first)) if message.ticket.is_some() => {
            DataHeader::decode(first).unwrap().entries.iter().map(|entry| entry.body_length.max(PIECE_COST_MIN)).sum()
        }
        _ => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_in_any_order_of_events(tape in proptest::collection::vec(any::<u32>(), 40..400)) {
        let steps = tape.len() * 2;
        let mut simulation = Simulation::new(tape);
        for _ in 0..steps {
            simulation.step();
        }
        simulation.drain();
        let mut ended = simulation.ended.clone();
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..simulation.next_id).collect::<Vec<_>>());
        prop_assert!(simulation.plain_asked.is_empty());
        // What wasn't spent is left, to the byte: nothing leaked.
        prop_assert_eq!(simulation.session.shared.credits.available(), simulation.given - simulation.spent);
        prop_assert!(simulation.session.shared.in_socket.is_empty());
        prop_assert_eq!(simulation.session.shared.reply_bytes, 0);
        prop_assert_eq!(simulation.session.shared.quotas.open_files.used(), 0);
    }
}
