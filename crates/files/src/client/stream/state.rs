//! The decisions of a transfer to a writer: list, ask for the metadata with the digest, for the leaves, then for the data.

mod body;

use std::time::Duration;

use bytes::Bytes;

use super::StreamOptions;
use crate::client::assembler::Inbound;
use crate::client::idle_timer::tells_nothing;
use crate::client::transfer::{AGAIN_MAX, Credit, HASH_BYTES_PER_SECOND_MIN, Progress, TransferError, in_vain};
use crate::digest::{Digest, Leaf, LeafSize, merge_leaves};
use crate::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, LEAF_VALUE_BYTES, LEAVES_PAGE_MAX};
use crate::path::{Escaped, RelPath};
use crate::protocol::ErrorCode;
use crate::protocol::control::{
    Base, Compression, Confirm, ConfirmedFile, DigestWish, FetchFile, FetchRequest, FileAnswer, FileMetadata,
    LeavesReply, LeavesRequest, LinkTarget, ListRequest, ListTarget, Range, Reply, Request,
};
use crate::protocol::data::{Body, DataEntry};
use crate::root::Timestamp;
use body::Piece;

/// Largest leaf that is held in memory until it is checked: that of a file of 16 TiB.
const LEAF_HELD_BYTES_MAX: u64 = 16 << 20;
/// Zeros are written in pieces of this size.
const ZERO_BYTES: usize = 64 << 10;

/// Something to do.
#[derive(Debug)]
pub(super) enum Step {
    Send(Request),
    Write(Bytes),
    Finished,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Listing,
    Metadata,
    Leaves,
    Data,
    Over,
}

/// What the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    leaves: LeafSize,
    modified: Timestamp,
    digest: Option<Digest>,
}

/// The state.
#[derive(Debug)]
pub(super) struct Stream {
    path: RelPath,
    chunk_bytes: u64,
    compress: Option<Compression>,
    verify: bool,
    phase: Phase,
    /// Of the request under way. Whatever has another id is of an earlier one, and of no use.
    id: u32,
    credit: Credit,
    listed_bytes: u64,
    version: Option<FileVersion>,
    values: Vec<Leaf>,
    /// Bytes that were written. Always whole leaves, but at the end, where all is verified.
    written: u64,
    /// What has come of the leaf that is next.
    held: Vec<u8>,
    piece: Option<Piece>,
    /// Zeros of a hole that are still to be taken: a hole may be larger than memory.
    zeros_left: u64,
    received_bytes: u64,
    /// How often the leaf that is next was bad, and how often the file changed.
    bad: u32,
    restarts: u32,
    /// Nothing came of what came last.
    came_to_nothing: bool,
    steps: Vec<Step>,
}

fn told_changed(message: &str) -> String {
    format!("the server says: {message} ({})", ErrorCode::Changed)
}

impl Stream {
    pub(super) fn new(path: RelPath, options: &StreamOptions) -> Self {
        let window_bytes = options.window_bytes.max(CHUNK_BYTES_MIN);
        Self {
            path,
            chunk_bytes: options.chunk_bytes.min(window_bytes).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX),
            compress: options.compress,
            verify: options.verify,
            phase: Phase::Listing,
            id: 0,
            credit: Credit::new(window_bytes, options.chunk_bytes),
            listed_bytes: 0,
            version: None,
            values: Vec::new(),
            written: 0,
            held: Vec::new(),
            piece: None,
            zeros_left: 0,
            received_bytes: 0,
            bad: 0,
            restarts: 0,
            came_to_nothing: false,
            steps: Vec::new(),
        }
    }

    /// Whether what came last was of no use.
    pub(super) fn came_to_nothing(&self) -> bool {
        self.came_to_nothing
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// How much longer than usual the server may be silent: while it hashes.
    pub(super) fn patience(&self) -> Duration {
        // For the digest, and again for the leaves if it doesn't remember them.
        let hashing = self.verify && matches!(self.phase, Phase::Metadata | Phase::Leaves);
        Duration::from_secs(if hashing { self.listed_bytes / HASH_BYTES_PER_SECOND_MIN } else { 0 })
    }

    pub(super) fn progress(&self) -> Progress {
        let size = self.version.map_or(self.listed_bytes, |version| version.leaves.file_bytes());
        Progress {
            files_done: u64::from(self.phase == Phase::Over),
            files_total: 1,
            bytes_done: self.written,
            bytes_total: size,
            received_bytes: self.received_bytes,
            listed: self.phase != Phase::Listing,
            ..Progress::default()
        }
    }

    /// A connection, the first one or a new one: from the listing again, and from where the writer is.
    pub(super) fn connected(&mut self) -> Vec<Step> {
        if let Some(piece) = self.piece.take() {
            // The connection went in the middle of it.
            self.credit.release(piece.credit);
        }
        self.credit.reset();
        self.begin();
        std::mem::take(&mut self.steps)
    }

    /// What tells the server that no more is wanted.
    pub(super) fn cancel(&self) -> Option<Request> {
        (self.phase != Phase::Over && self.id != 0).then_some(Request::Cancel { id: self.id })
    }

    pub(super) fn inbound(&mut self, inbound: Inbound) -> Result<Vec<Step>, TransferError> {
        self.came_to_nothing = false;
        match inbound {
            Inbound::Control { json, attachment } => {
                let reply = Reply::decode(&json)?;
                self.came_to_nothing = tells_nothing(&reply);
                self.reply(reply, attachment)?;
            }
            Inbound::Header(header) => {
                if header.id > self.id {
                    return TransferError::protocol("data of a request that was not made");
                }
                let useless = header.id != self.id || self.phase != Phase::Data;
                let entry = DataEntry { n: 0, end: false, body: Body::Hole, offset: 0, length: 0, body_length: 0 };
                self.piece = Some(Piece { entry, useless, credit: 0, packed: Vec::new() });
            }
            Inbound::Body(entry) => self.body_begins(entry)?,
            Inbound::BodyData(data) => self.body_data(data)?,
            Inbound::BodyEnd => self.body_ends()?,
        }
        if self.phase == Phase::Data
            && let Some(bytes) = self.credit.take_if_worthwhile()
        {
            self.send(Request::Credit { bytes });
        }
        Ok(std::mem::take(&mut self.steps))
    }

    /// What is left to do after an event, to be asked for until it is nothing.
    pub(super) fn more(&mut self) -> Result<Vec<Step>, TransferError> {
        while self.zeros_left > 0 && self.steps.is_empty() {
            let now = usize::try_from(self.zeros_left).unwrap_or(ZERO_BYTES).min(ZERO_BYTES);
            self.zeros_left -= now as u64;
            self.take(Bytes::from_static(&[0; ZERO_BYTES]).slice(..now))?;
        }
        Ok(std::mem::take(&mut self.steps))
    }

    fn send(&mut self, request: Request) {
        self.steps.push(Step::Send(request));
    }

    fn next_id(&mut self) -> u32 {
        self.id += 1;
        self.id
    }

    fn begin(&mut self) {
        self.phase = Phase::Listing;
        self.zeros_left = 0;
        let id = self.next_id();
        let target = ListTarget::Path((&self.path).into());
        self.send(Request::List(ListRequest { id, target, recursive: false, digest: false }));
    }

    fn fetch(&mut self, ranges: Vec<Range>, digest: DigestWish, credit_bytes: u64) {
        let id = self.next_id();
        let files = vec![FetchFile { path: (&self.path).into(), ranges: Some(ranges), unless: None }];
        let (chunk_bytes, compress) = (self.chunk_bytes, self.compress);
        self.send(Request::Fetch(FetchRequest { id, chunk_bytes, compress, digest, credit_bytes, files }));
    }

    fn ask_for_data(&mut self) {
        let Some(version) = self.version else { return };
        self.phase = Phase::Data;
        self.held.clear();
        self.zeros_left = 0;
        let size = version.leaves.file_bytes();
        if self.written == size {
            return self.finish();
        }
        let rest = Range { offset: self.written, length: size - self.written };
        let credit = self.credit.take();
        self.fetch(vec![rest], DigestWish::None, credit);
    }

    fn finish(&mut self) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            let digest = self.version.and_then(|version| version.digest).filter(|_| self.verify);
            let file = ConfirmedFile { n: 0, path: (&self.path).into(), digest, durable: false };
            self.send(Request::Confirm(Confirm { id: self.id, files: vec![file] }));
            self.steps.push(Step::Finished);
        }
    }

    /// The file is another one now. If some of it was written already, nothing can be done about it.
    fn changed(&mut self, reason: &str) -> Result<(), TransferError> {
        self.restarts += 1;
        if self.written > 0 || self.restarts > AGAIN_MAX {
            let message = match self.written {
                0 => in_vain(reason, true),
                _ => format!("{reason}, when some of it was written already"),
            };
            return Err(TransferError::Unmet { code: ErrorCode::Changed, message });
        }
        self.version = None;
        self.values.clear();
        self.begin();
        Ok(())
    }

    fn reply(&mut self, reply: Reply, attachment: Option<Bytes>) -> Result<(), TransferError> {
        match reply {
            Reply::List(page) if page.id == self.id && self.phase == Phase::Listing => {
                let (is_file, entry) = (page.base == Base::File, page.entries.into_iter().next());
                let entry = entry.filter(|_| is_file || page.base == Base::Link);
                let refused = |message| Err(TransferError::Unmet { code: ErrorCode::NotAFile, message });
                let Some(entry) = entry else { return refused("not a single file".to_owned()) };
                if !is_file {
                    let target = entry.target.as_ref().map(LinkTarget::as_bytes).unwrap_or_default();
                    return refused(format!("a link to {}: ask for what it leads to", Escaped(target)));
                }
                if self.path.is_root() {
                    // The server serves one file, and its name is known now.
                    let Ok(path) = entry.path.to_rel_path() else {
                        return TransferError::protocol("a listed path that can't be one");
                    };
                    self.path = path;
                }
                self.listed_bytes = entry.size;
                self.phase = Phase::Metadata;
                let digest = if self.verify { DigestWish::Now } else { DigestWish::None };
                self.fetch(Vec::new(), digest, 0);
                Ok(())
            }
            Reply::Files(files) if files.id == self.id => files.files.into_iter().try_for_each(|answer| match answer {
                FileAnswer::Metadata(metadata) => self.metadata(&metadata),
                FileAnswer::Same { .. } => {
                    TransferError::protocol("a file is the same, but the same as what was not asked")
                }
                FileAnswer::Error { code: ErrorCode::Changed, message, .. } => self.changed(&told_changed(&message)),
                FileAnswer::Error { code, message, .. } => Err(TransferError::Refused { code, message }),
            }),
            Reply::Void(void) if void.id == self.id => self.changed(&told_changed(&void.message)),
            Reply::Done { id } if id == self.id && self.phase == Phase::Metadata => match self.version {
                Some(version) if self.verify && version.digest.is_none() => {
                    TransferError::protocol("no digest, though it was asked for")
                }
                Some(_) => {
                    self.ask_for_leaves();
                    Ok(())
                }
                None => TransferError::protocol("a request is done without an answer"),
            },
            Reply::Done { id } if id == self.id && self.phase == Phase::Data => {
                TransferError::protocol("a file ends before all that was asked for has come")
            }
            Reply::Leaves(leaves) if leaves.id == self.id && self.phase == Phase::Leaves => {
                self.leaves(leaves, attachment.as_deref().unwrap_or_default())
            }
            Reply::Error(error) if error.id.is_none() || error.id == Some(self.id) => match error.code {
                ErrorCode::Changed => self.changed(&told_changed(&error.message)),
                code => Err(TransferError::Refused { code, message: error.message }),
            },
            _ => Ok(()),
        }
    }

    fn metadata(&mut self, metadata: &FileMetadata) -> Result<(), TransferError> {
        let Ok(leaves) = LeafSize::announced(metadata.leaf_bytes, metadata.size) else {
            return TransferError::protocol("leaves of a size that they cannot have");
        };
        if self.verify && leaves.leaf_bytes().min(metadata.size) > LEAF_HELD_BYTES_MAX {
            let message = "the file is too large to be checked piece by piece".to_owned();
            return Err(TransferError::Unmet { code: ErrorCode::Unsupported, message });
        }
        let new = FileVersion { leaves, modified: metadata.mtime, digest: metadata.digest };
        let same = self.version.is_none_or(|old| {
            let digest_differs = old.digest.is_some() && new.digest.is_some() && old.digest != new.digest;
            (old.leaves, old.modified) == (leaves, new.modified) && !digest_differs
        });
        if !same {
            return self.changed("the file changed");
        }
        if self.phase == Phase::Metadata {
            self.version = Some(new);
        }
        Ok(())
    }

    /// Asks for leaves as far as they are missing, or for the data.
    fn ask_for_leaves(&mut self) {
        let Some(FileVersion { leaves, digest: Some(digest), .. }) = self.version.filter(|_| self.verify) else {
            return self.ask_for_data();
        };
        if leaves.count() == 1 {
            self.values = vec![digest.0];
        }
        let from = self.values.len() as u64;
        if from == leaves.count() {
            return self.ask_for_data();
        }
        self.phase = Phase::Leaves;
        let id = self.next_id();
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let count = small((leaves.count() - from).min(u64::from(LEAVES_PAGE_MAX)));
        self.send(Request::Leaves(LeavesRequest { id, path: (&self.path).into(), digest, from: small(from), count }));
    }

    fn leaves(&mut self, reply: LeavesReply, attachment: &[u8]) -> Result<(), TransferError> {
        let Some(FileVersion { leaves, digest, .. }) = self.version else { return Ok(()) };
        let (page, rest) = attachment.as_chunks::<LEAF_VALUE_BYTES>();
        let fits = reply.count > 0
            && rest.is_empty()
            && page.len() as u64 == u64::from(reply.count)
            && self.values.len() as u64 == u64::from(reply.from)
            && u64::from(reply.total) == leaves.count();
        if !fits {
            return TransferError::protocol("leaves that are not those that were asked for");
        }
        self.values.extend_from_slice(page);
        if self.values.len() as u64 == leaves.count() && merge_leaves(&self.values).ok() != digest {
            return TransferError::protocol("the leaves do not match the digest");
        }
        self.ask_for_leaves();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::connection::ConnectOptions;
    use crate::client::transfer::Source;
    use crate::protocol::control::{EntryKind, FilesReply, ListEntry, ListPage};

    #[test]
    fn a_server_that_hashes_for_the_digest_or_the_leaves_may_be_silent() {
        const SIZE: u64 = 400 << 20;
        let path: RelPath = "f".parse().unwrap();
        let options = StreamOptions {
            connect: ConnectOptions::new("tcp://127.0.0.1:1".parse().unwrap()),
            source: Source::Path(path.clone()),
            chunk_bytes: 1 << 20,
            window_bytes: 8 << 20,
            compress: None,
            verify: true,
        };
        let mut stream = Stream::new(path.clone(), &options);
        stream.connected();
        assert_eq!(stream.patience(), Duration::ZERO);
        let mtime = Timestamp::default();
        let entry = ListEntry {
            path: (&path).into(),
            kind: EntryKind::File,
            size: SIZE,
            mtime,
            mode: 0o644,
            allocated: None,
            target: None,
            digest: None,
            message: None,
        };
        let told = |stream: &mut Stream, reply: Reply| {
            stream.inbound(Inbound::Control { json: reply.encode().into(), attachment: None }).unwrap();
            stream.patience().as_secs()
        };
        let list = ListPage { id: stream.id, base: Base::File, dir: None, entries: vec![entry], more: false };
        assert_eq!(told(&mut stream, Reply::List(list)), 2);
        let digest = Some(Digest([1; 32]));
        let metadata =
            FileMetadata { n: 0, size: SIZE, mtime, mode: 0o644, digest, leaf_bytes: 1 << 20, sparse: false };
        let id = stream.id;
        let files = FilesReply { id, files: vec![FileAnswer::Metadata(metadata)] };
        told(&mut stream, Reply::Files(files));
        assert_eq!(told(&mut stream, Reply::Done { id }), 2);
        assert_eq!(stream.phase, Phase::Leaves);
    }
}
