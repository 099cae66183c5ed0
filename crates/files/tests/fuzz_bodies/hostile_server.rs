//! A server that says anything in any order, to a client with an honest disk. The input bytes are the server's script.
//!
//! Most steps fit what the client asked for, or a run would end at its first message; each can be wrong in some way.

use super::fake_disk::{FakeDisk, LARGE};
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_files::client::Filter;
use towpath_files::digest::{Digest, LeafHasher, LeafSize};
use towpath_files::path::RelPath;
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::assembler::{Assembler, Inbound};
use towpath_files::protocol::control::{
    Base, DigestReply, ErrorReply, FileAnswer, FileMetadata, FilesReply, FollowLinks, LeavesReply, LeavesRequest,
    Range, Reply, Request, VoidReply,
};
use towpath_files::protocol::data::{Body, DataEntry, DataHeader};
use towpath_files::root::Timestamp;
use towpath_files::transfer::{DiskReport, LIST_ENTRIES_MAX, Output, Placement, Source, Transfer, TransferOptions};
use towpath_quota::Quota;

/// Names that the server has, or claims to have.
const NAMES: [&str; 8] = ["a", "b", "d/x", "d/y", "../out", "/etc/passwd", "d/../../out", "c"];
const SIZES: [u64; 8] = [0, 1, 100, 64 << 10, (64 << 10) + 1, 1 << 20, (2 << 20) + 5, LARGE];
const STEPS_MAX: usize = 300;
const CHUNK_BYTES: u64 = 256 << 10;

pub fn run(data: &[u8]) {
    let [knobs, script @ ..] = data else { return };
    let mut play = Play::new(*knobs);
    let mut script = script.iter().copied();
    for _ in 0..STEPS_MAX {
        let Some(step) = script.next() else { break };
        play.step(step, &mut script);
        play.settle();
        if play.over {
            break;
        }
    }
    play.finish();
}

/// A file of a fetch that the client made, as the server sees it.
struct Asked {
    name: usize,
    ranges: Option<Vec<Range>>,
    size: u64,
}

struct Fetch {
    id: u32,
    files: Vec<Asked>,
}

struct Play {
    transfer: Transfer,
    assembler: Assembler,
    disk: FakeDisk,
    now: Instant,
    list: Option<u32>,
    /// Of each name, the size that was listed first.
    sizes: [Option<u64>; NAMES.len()],
    fetches: VecDeque<Fetch>,
    leaves: VecDeque<LeavesRequest>,
    over: bool,
    fresh: bool,
}

impl Play {
    fn new(knobs: u8) -> Play {
        let now = Instant::now();
        let verify = knobs & 1 == 0;
        let options = TransferOptions {
            source: if knobs & 2 == 0 { Source::Path(RelPath::root()) } else { Source::Glob("*".to_owned()) },
            window_bytes: 8 << 20,
            windows: Quota::new(0),
            chunk_bytes: CHUNK_BYTES,
            compress: None,
            verify,
            check: false,
            durable: knobs & 4 != 0,
            bytes_per_second: None,
            idle_timeout: Duration::from_secs(30),
            follow: if knobs & 8 == 0 { FollowLinks::None } else { FollowLinks::All },
            in_order: knobs & 0xf0 == 0xf0,
            objects: knobs & 0xf0 == 0xe0,
            max_bytes: None,
            max_entries: LIST_ENTRIES_MAX,
            filter: Filter::default(),
            sweep: false,
        };
        let mut play = Play {
            transfer: Transfer::new(options, now),
            assembler: Assembler::default(),
            disk: FakeDisk::new(verify, knobs >> 4),
            now,
            list: None,
            sizes: [None; NAMES.len()],
            fetches: VecDeque::new(),
            leaves: VecDeque::new(),
            over: false,
            fresh: knobs & 8 == 0,
        };
        play.transfer.connected();
        play.settle();
        play
    }

    fn step(&mut self, step: u8, script: &mut impl Iterator<Item = u8>) {
        let mut operand = || script.next().unwrap_or(0);
        match step % 10 {
            0 => self.list_page(step, &mut operand),
            1 => self.metadata(step, &mut operand),
            2 => self.piece(step, &mut operand),
            3 => {
                let entry = DataEntry {
                    n: u32::from(operand() % 3),
                    end: step & 0x80 != 0,
                    body: if step & 0x40 != 0 { Body::Hole } else { Body::Plain },
                    offset: u64::from(operand()) << (operand() % 60),
                    length: u64::from(operand()),
                    body_length: u64::from(operand()),
                };
                self.send_piece(entry, Bytes::from(vec![0; entry.body_length as usize]));
            }
            4 => self.about_file(step, &mut operand),
            5 => self.leaves_page(step),
            6 => {
                let length = usize::from(operand());
                let json: Vec<u8> = std::iter::repeat_with(&mut operand).take(length).collect();
                self.send_frames(&[b"TOW1", &json]);
            }
            7 => {
                self.transfer.disconnected();
                self.assembler = Assembler::default();
                self.list = None;
                self.fetches.clear();
                self.leaves.clear();
                self.transfer.connected();
            }
            8 => self.disk_works(1 + usize::from(step >> 4)),
            _ => {
                self.now += Duration::from_millis(u64::from(operand()) * 50);
                self.transfer.tick(self.now);
            }
        }
    }

    fn list_page(&mut self, step: u8, operand: &mut impl FnMut() -> u8) {
        // A page that nobody requested ends the run, so the script has to want it.
        let Some(id) = self.list.or((step & 0x40 != 0).then_some(7)) else { return };
        let mut entries = Vec::new();
        for _ in 0..(step >> 4) % 4 {
            let (name, shape) = (usize::from(operand()) % NAMES.len(), operand());
            let kind = ["file", "file", "file", "file", "file", "dir", "link", "error"][usize::from(shape >> 5)];
            let size = SIZES[usize::from(shape) % SIZES.len()];
            let mtime = (shape >> 3) & 1;
            self.sizes[name].get_or_insert(size);
            entries.push(format!(
                r#"{{"path":"{}","type":"{kind}","size":{size},"mtime":[{mtime},0],"mode":420,"target":"a"}}"#,
                NAMES[name]
            ));
        }
        let base = ["dir", "dir", "file", "glob"][usize::from(operand()) % 4];
        let more = step & 0x80 != 0;
        self.list = self.list.filter(|_| more);
        let json =
            format!(r#"{{"re":"list","id":{id},"base":"{base}","entries":[{}],"more":{more}}}"#, entries.join(","));
        self.send_frames(&[b"TOW1", json.as_bytes()]);
    }

    /// Metadata of the files of a fetch: right, or with another size, time, digest or division.
    fn metadata(&mut self, step: u8, operand: &mut impl FnMut() -> u8) {
        let Some(fetch) = self.fetches.front_mut() else { return };
        let wrong = if step & 0x80 != 0 { operand() } else { 0 };
        let mut answers = Vec::new();
        for (n, asked) in (0..).zip(&mut fetch.files).skip(usize::from(wrong >> 6)) {
            if wrong & 1 != 0 {
                asked.size = SIZES[usize::from(operand()) % SIZES.len()];
            }
            let leaves = LeafSize::for_file(asked.size);
            let leaf_bytes = if wrong & 2 != 0 { 1 << (operand() % 64) } else { leaves.leaf_bytes() };
            let mut digest = (step & 0x40 == 0 && asked.size < LARGE).then(|| digest_of(asked.name, asked.size));
            if wrong & 4 != 0 {
                digest = Some(Digest([wrong; 32]));
            }
            answers.push(match operand() {
                255 => FileAnswer::Same { n },
                254 => FileAnswer::Error { n, code: ErrorCode::Changed, message: "no".to_owned() },
                253 => FileAnswer::Error { n, code: ErrorCode::Denied, message: "no".to_owned() },
                _ => FileAnswer::Metadata(FileMetadata {
                    n,
                    size: asked.size,
                    mtime: Timestamp { seconds: i64::from(wrong & 8), nanoseconds: 0 },
                    mode: 0o644,
                    digest,
                    leaf_bytes,
                    sparse: wrong & 16 != 0,
                }),
            });
        }
        let id = fetch.id;
        self.send(&Reply::Files(FilesReply { id, files: answers }), None);
    }

    /// The next piece of a file: right, or damaged, compressed, a hole, or not where it should be.
    fn piece(&mut self, step: u8, operand: &mut impl FnMut() -> u8) {
        let shape = operand();
        let Some(asked) = self.fetches.front_mut().and_then(|fetch| fetch.files.get_mut(usize::from(shape & 3))) else {
            return;
        };
        let whole = vec![Range { offset: 0, length: asked.size }];
        let ranges = asked.ranges.get_or_insert(whole);
        ranges.retain(|range| range.length > 0);
        let (mut offset, mut length) = (0, 0);
        if let Some(range) = ranges.first_mut() {
            let size = asked.size.saturating_sub(range.offset);
            (offset, length) = (range.offset, range.length.min(CHUNK_BYTES).min(size));
            if shape & 0x20 != 0 && step & 0x40 != 0 {
                length = range.length;
            }
            range.offset += length;
            range.length -= length;
        }
        let last = ranges.iter().all(|range| range.length == 0);
        let mut entry = DataEntry {
            n: u32::from(shape & 3),
            end: last && step & 0x80 == 0,
            body: Body::Plain,
            offset,
            length,
            body_length: length,
        };
        if shape & 0x20 != 0 && length > 0 {
            entry.body = Body::Hole;
            entry.body_length = 0;
            return self.send_piece(entry, Bytes::new());
        }
        let mut bytes = vec![byte_of(asked.name, asked.size); length as usize];
        if shape & 0x40 != 0
            && let Some(byte) = bytes.last_mut()
        {
            *byte ^= 1;
        }
        if shape & 0x10 != 0 && length > 0 {
            let mut packed = zstd::bulk::compress(&bytes, 1).expect("compressing in memory");
            if shape & 0x80 != 0 {
                packed.truncate(packed.len() / 2 + 1);
            }
            entry.body = Body::Zstd;
            entry.body_length = packed.len() as u64;
            bytes = packed;
        }
        self.send_piece(entry, bytes.into());
    }

    fn about_file(&mut self, step: u8, operand: &mut impl FnMut() -> u8) {
        let Some(fetch) = self.fetches.front() else { return };
        let (id, n) = (fetch.id, u32::from(operand() & 3));
        let asked = fetch.files.get(n as usize).filter(|asked| asked.size < LARGE);
        let (name, size) = asked.map_or((0, 0), |asked| (asked.name, asked.size));
        let message = "so it is".to_owned();
        let reply = match (step >> 4) % 8 {
            0 | 1 => Reply::End { id, n },
            2 => Reply::Void(VoidReply { id, n, code: ErrorCode::Changed, message }),
            3 | 4 => {
                let leaf_bytes = LeafSize::for_file(size).leaf_bytes();
                Reply::Digest(DigestReply { id, n, digest: digest_of(name, size), leaf_bytes })
            }
            5 => Reply::Digest(DigestReply { id, n, digest: Digest([n as u8; 32]), leaf_bytes: 1 << 20 }),
            6 => Reply::Error(ErrorReply { id: Some(id), code: ErrorCode::Io, message }),
            _ => Reply::Done { id },
        };
        if matches!(reply, Reply::Done { .. } | Reply::Error(_)) {
            self.fetches.pop_front();
        }
        self.send(&reply, None);
    }

    /// Leaves that were asked for: of what the file is, or other ones.
    fn leaves_page(&mut self, step: u8) {
        let Some(request) = self.leaves.pop_front() else { return };
        if step & 0x40 != 0 {
            let message = "not this".to_owned();
            let error = ErrorReply { id: Some(request.id), code: ErrorCode::Changed, message };
            return self.send(&Reply::Error(error), None);
        }
        let name = name_of(request.path.as_bytes());
        let known = SIZES.iter().filter(|size| **size < LARGE).find(|size| digest_of(name, **size) == request.digest);
        let size = *known.unwrap_or(&1);
        let leaves = LeafSize::for_file(size);
        let mut values = leaf_values(name, size, leaves);
        if step & 0x80 != 0
            && let Some(value) = values.last_mut()
        {
            value[0] ^= 1;
        }
        let count = u32::try_from(values.len()).expect("few leaves");
        let reply = LeavesReply { id: request.id, from: request.from, count, total: request.from + count };
        self.send(&Reply::Leaves(reply), Some(values.concat()));
    }

    fn send(&mut self, reply: &Reply, attachment: Option<Vec<u8>>) {
        let json = reply.encode();
        match attachment {
            Some(attachment) => self.send_frames(&[b"TOW1", &json, &attachment]),
            None => self.send_frames(&[b"TOW1", &json]),
        }
    }

    fn send_frames(&mut self, frames: &[&[u8]]) {
        let mut inbound = Vec::new();
        let assembled = frames
            .iter()
            .try_for_each(|frame| self.assembler.whole_frame(Bytes::copy_from_slice(frame), &mut inbound))
            .and_then(|()| self.assembler.message_end(&mut inbound));
        self.deliver(inbound);
        if let Err(error) = assembled {
            self.transfer.fail(error.into());
        }
    }

    fn send_piece(&mut self, entry: DataEntry, body: Bytes) {
        let id = self.fetches.front().map_or(1, |fetch| fetch.id);
        // What can't even be written can't arrive.
        if let Ok(header) = (DataHeader { id, entries: vec![entry] }).encode() {
            self.send_frames(&[&header, &body]);
        }
    }

    fn deliver(&mut self, inbound: Vec<Inbound>) {
        for part in inbound {
            self.transfer.inbound(part, self.now);
            self.settle();
        }
    }

    /// Takes what the client wants from the server and the disk.
    fn settle(&mut self) {
        while let Some(output) = self.transfer.next_output() {
            assert!(!self.over, "something after the end: {output:?}");
            match output {
                Output::Send(request) => self.asked(request),
                Output::OpenDestination { base, name, .. } => {
                    let placement = match (base, name) {
                        (Base::File | Base::Link, Some(name)) => Placement::As(name),
                        _ => Placement::Below,
                    };
                    self.transfer.destination(placement, self.fresh);
                }
                Output::Disk(command) => self.disk.carry_out(command),
                Output::InPlace | Output::Sweep => {}
                Output::Warn(text) => assert!(!text.chars().any(char::is_control), "a terminal would obey {text:?}"),
                Output::Finished => self.over = true,
            }
        }
    }

    fn asked(&mut self, request: Request) {
        assert_eq!(Request::decode(&request.encode()).as_ref(), Ok(&request), "a request that no server would take");
        match request {
            Request::List(list) => self.list = Some(list.id),
            Request::More { id } => assert_eq!(self.list, Some(id)),
            Request::Leaves(leaves) => self.leaves.push_back(leaves),
            Request::Fetch(fetch) => {
                let files = fetch.files.into_iter().map(|file| {
                    let name = name_of(file.path.as_bytes());
                    let size = self.sizes[name].unwrap_or(100);
                    Asked { name, ranges: file.ranges, size }
                });
                self.fetches.push_back(Fetch { id: fetch.id, files: files.collect() });
            }
            Request::Hello
            | Request::Follow(_)
            | Request::Push(_)
            | Request::Have(_)
            | Request::Holders(_)
            | Request::Publish(_)
            | Request::Credit { .. }
            | Request::Cancel { .. }
            | Request::FetchesFor(_)
            | Request::Confirm(_) => {}
        }
    }

    fn disk_works(&mut self, reports: usize) {
        for _ in 0..reports {
            let Some(report) = self.disk.next_report() else { break };
            self.report(report);
        }
    }

    fn report(&mut self, report: DiskReport) {
        self.transfer.disk(report, self.now);
        self.settle();
    }

    /// The server is silent: the client must come to an end, whatever state it is in.
    fn finish(mut self) {
        for _ in 0..100_000 {
            match self.disk.next_report() {
                Some(report) => self.report(report),
                None if self.over => {
                    self.transfer.progress();
                    let (totals, failure) = self.transfer.into_outcome();
                    assert!(failure.is_some() || totals.unfinished_bytes == 0, "{totals:?}");
                    return;
                }
                None => {
                    self.now = self.now.max(self.transfer.deadline());
                    self.transfer.tick(self.now);
                    self.settle();
                }
            }
        }
        panic!("the transfer does not end");
    }
}

fn name_of(path: &[u8]) -> usize {
    NAMES.iter().position(|name| name.as_bytes() == path).unwrap_or(0)
}

/// The byte that fills a file.
fn byte_of(name: usize, size: u64) -> u8 {
    (name as u8) << 4 | (size as u8 & 7)
}

fn digest_of(name: usize, size: u64) -> Digest {
    let bytes = vec![byte_of(name, size); size as usize];
    Digest(*blake3::hash(&bytes).as_bytes())
}

fn leaf_values(name: usize, size: u64, leaves: LeafSize) -> Vec<[u8; 32]> {
    let value = |index| {
        let (_, length) = leaves.range(index).expect("a leaf of the file");
        let mut hasher = LeafHasher::new(leaves, index).expect("a leaf of the file");
        hasher.update(&vec![byte_of(name, size); length as usize]).expect("as long as the leaf");
        hasher.finish().expect("as long as the leaf")
    };
    (0..leaves.count()).map(value).collect()
}
