//! Data messages: each piece is compared with what was asked for, cut at the borders of leaves, and passed to the
//! disk.

use crate::error::Error;
use bytes::Bytes;

use super::command::{ContentKey, DiskCommand, FileKey, Part, SmallFile};
use super::fetching::SMALL_FILE_BYTES;
use super::file::Phase;
use super::requests::RequestState;
use super::{HOLE_BYTES_MAX, RETRIES_MAX, Transfer};
use crate::digest::LeafSize;
use crate::protocol::data::{Body, DataEntry, DataHeader};

/// Leaves of zeros in one command, so that its report stays small.
const ZERO_LEAVES_MAX: u64 = 1024;

/// A smaller piece of a small file is copied until the rest is here, in bytes: it may keep a buffer of the connection
/// from being reused, and a file that arrives slowly has more pieces than there are buffers.
const KEPT_BYTES_MIN: u64 = 128 << 10;

/// A piece whose body is arriving.
#[derive(Debug)]
pub(super) struct Piece {
    id: u32,
    entry: DataEntry,
    file: FileKey,
    /// Dropped: only its credit counts.
    useless: bool,
    /// Bytes of it that were passed on.
    passed: u64,
    /// Its credit, less what was passed on with bytes.
    credit: u64,
    /// A compressed body, until it is complete.
    packed: Vec<u8>,
    /// Pieces of a small file, until it is complete.
    gathered: Vec<Bytes>,
}

impl Transfer {
    pub(super) fn data_header(&mut self, header: &DataHeader) -> Result<(), Error> {
        self.requests.begin_data(header.id)
    }

    pub(super) fn body_begins(&mut self, entry: DataEntry) -> Result<(), Error> {
        let (id, chunk_bytes) = (self.requests.data_id(), self.options.chunk_bytes);
        let asked = self.requests.asked(id, entry.n)?;
        if asked.state == RequestState::Awaited {
            return Error::protocol("data came before the metadata");
        }
        if entry.body != Body::Hole && entry.length > chunk_bytes {
            return Error::protocol("a piece that is larger than the chunk size");
        }
        if !asked.accept(entry.offset, entry.length) {
            return Error::protocol("a piece that wasn't requested, or is out of order");
        }
        let (file, useless) = (asked.file, asked.useless);
        if entry.body == Body::Hole {
            self.totals.hole_bytes = self.totals.hole_bytes.saturating_add(entry.length);
            let max = self.options.max_bytes.unwrap_or(HOLE_BYTES_MAX);
            if self.totals.hole_bytes > max {
                return Err(Error::Limit(format!("the files have holes of more than {max} bytes in all")));
            }
        }
        let credit = entry.cost();
        if self.credit.spend(credit).is_none() {
            return Error::protocol("more data than there is credit for");
        }
        // A file that failed meanwhile, or was asked for again.
        let useless = useless || self.files.get(file).is_none_or(|task| task.last_request != (id, entry.n));
        self.piece =
            Some(Piece { id, entry, file, useless, passed: 0, credit, packed: Vec::new(), gathered: Vec::new() });
        Ok(())
    }

    pub(super) fn body_data(&mut self, data: Bytes) -> Result<(), Error> {
        self.totals.received_bytes += data.len() as u64;
        let Some(piece) = &mut self.piece else { return Error::protocol("bytes outside of a piece") };
        if piece.useless || piece.entry.body == Body::Plain {
            self.pass(data);
        } else {
            // Bounded by the chunk size: the header was checked, and the body is as long as it says.
            piece.packed.extend_from_slice(&data);
        }
        Ok(())
    }

    pub(super) fn body_ends(&mut self) -> Result<(), Error> {
        let Some(piece) = &mut self.piece else {
            return Error::protocol("the end of a piece that did not begin");
        };
        if !piece.useless {
            match piece.entry.body {
                Body::Plain => {}
                Body::Zstd => {
                    let packed = std::mem::take(&mut piece.packed);
                    let length = usize::try_from(piece.entry.length).unwrap_or(usize::MAX);
                    // Not on the disk's threads: a piece may span two leaves, which are hashed apart.
                    match zstd::bulk::decompress(&packed, length) {
                        Ok(data) if data.len() == length => self.pass(data.into()),
                        _ => self.drop_broken_piece()?,
                    }
                }
                Body::Hole => self.pass_hole(),
            }
        }
        if let Some(piece) = self.piece.take() {
            self.credit.release(piece.credit, self.now);
            if piece.entry.end {
                return self.asked_over(piece.id, piece.entry.n);
            }
        }
        Ok(())
    }

    /// The connection is lost in the middle of a piece.
    pub(super) fn abort_piece(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.credit.release(piece.credit, self.now);
        }
    }

    /// Drops the rest of the current piece, if it is of this file.
    pub(super) fn drop_piece_of(&mut self, key: FileKey) {
        if let Some(piece) = self.piece.as_mut().filter(|piece| piece.file == key) {
            piece.useless = true;
        }
    }

    /// Drops a compressed body that is broken: it is fetched again with whatever else is missing.
    fn drop_broken_piece(&mut self) -> Result<(), Error> {
        let Some(piece) = &self.piece else { return Ok(()) };
        let key = piece.file;
        if self.options.in_order {
            return self.fetch_rest(key);
        }
        // Otherwise, with nothing written, the whole file would count as not begun.
        self.files.ensure_content(key);
        let Some(task) = self.files.get_mut(key) else { return Ok(()) };
        task.mismatches += 1;
        if task.mismatches > RETRIES_MAX {
            let reason = "a compressed piece can't be decompressed, though it was sent several times".to_owned();
            return self.file_failed(key, Error::unmet(reason));
        }
        Ok(())
    }

    /// Passes uncompressed bytes of the current piece to the disk.
    fn pass(&mut self, data: Bytes) {
        let Some((key, entry)) = self.piece.as_ref().map(|piece| (piece.file, piece.entry)) else { return };
        let is_small = self.is_whole_small_file(key, &entry);
        let Some(piece) = &mut self.piece else { return };
        let length = data.len() as u64;
        let offset = entry.offset + piece.passed;
        piece.passed += length;
        let last = piece.passed == entry.length || entry.body == Body::Zstd;
        if is_small && !piece.useless {
            let is_all = length == entry.length;
            piece.gathered.push(if is_all || length >= KEPT_BYTES_MIN { data } else { Bytes::copy_from_slice(&data) });
            if last {
                let (data, credit) = (std::mem::take(&mut piece.gathered), std::mem::take(&mut piece.credit));
                self.pass_small(key, data, credit);
            }
            return;
        }
        let credit = if last { piece.credit } else { length.min(piece.credit) };
        piece.credit -= credit;
        if piece.useless {
            self.credit.release(credit, self.now);
        } else {
            self.pass_to_content(key, offset, data, credit);
        }
    }

    /// Whether a piece is the whole of a small file whose digest is known, so that it can be installed at once. This
    /// can't change while the piece arrives.
    fn is_whole_small_file(&self, key: FileKey, entry: &DataEntry) -> bool {
        let Some(task) = self.files.get(key) else { return false };
        let size = task.version.size;
        let ready = task.digest.is_some() || !self.options.verify;
        let whole = entry.end && entry.offset == 0 && entry.length == size;
        whole && ready && size <= SMALL_FILE_BYTES && task.content.is_none()
    }

    fn pass_small(&mut self, key: FileKey, data: Vec<Bytes>, credit: u64) {
        let verify = self.options.verify;
        let Some(task) = self.files.get_mut(key) else { return };
        task.phase = Phase::Installing;
        let (local, version) = (task.local.clone(), task.version);
        let digest = task.digest.filter(|_| verify);
        self.command(DiskCommand::Small(SmallFile { file: key, local, version, digest, data, credit }));
    }

    fn pass_to_content(&mut self, key: FileKey, offset: u64, mut data: Bytes, credit: u64) {
        let Some((content, leaves)) = self.content_to_write(key) else {
            self.credit.release(credit, self.now);
            return;
        };
        for part in parts(leaves, offset, data.len() as u64, credit) {
            self.count_pending(key);
            let data = data.split_to(usize::try_from(part.length).unwrap_or(usize::MAX).min(data.len()));
            self.command(DiskCommand::Write { content, part, data });
        }
    }

    /// Passes a hole to the disk: zeros up to the border of a leaf, whole leaves, and the beginning of another.
    fn pass_hole(&mut self) {
        let Some(piece) = &mut self.piece else { return };
        let (key, entry) = (piece.file, piece.entry);
        let Some((content, leaves)) = self.content_to_write(key) else { return };
        let (mut offset, end) = (entry.offset, entry.offset + entry.length);
        while offset < end {
            let leaf = leaves.index_at(offset);
            let Ok((start, length)) = leaves.range(leaf) else { return };
            let leaf_end = start + length;
            let whole_leaves = if offset == start { (end - offset) / leaves.leaf_bytes() } else { 0 };
            let now = match whole_leaves.min(ZERO_LEAVES_MAX) {
                0 => leaf_end.min(end) - offset,
                count => count * leaves.leaf_bytes(),
            };
            self.count_pending(key);
            self.command(DiskCommand::Zeros { content, leaf, offset, length: now, credit: 0 });
            offset += now;
        }
    }

    pub(super) fn count_pending(&mut self, key: FileKey) {
        if let Some(content) = self.files.get_mut(key).and_then(|task| task.content.as_mut()) {
            content.pending += 1;
        }
    }

    /// The content that bytes of a file go to. `None` if they are of no use.
    fn content_to_write(&mut self, key: FileKey) -> Option<(ContentKey, LeafSize)> {
        self.files.ensure_content(key);
        let leaves = self.files.get(key)?.leaves;
        Some((self.begin(key)?, leaves))
    }

    /// The content of a file, which the disk learns of. If nothing was written of it yet, it is a partial file.
    pub(super) fn begin(&mut self, key: FileKey) -> Option<ContentKey> {
        let (content, spec) = self.files.begin(key, self.options.verify)?;
        if let Some(spec) = spec {
            self.command(DiskCommand::Begin(spec));
        }
        Some(content)
    }
}

/// Bytes of a file, cut at the borders of leaves. The last part gets the rest of the credit.
fn parts(leaves: LeafSize, offset: u64, length: u64, mut credit: u64) -> Vec<Part> {
    let (mut at, end, mut parts) = (offset, offset + length, Vec::new());
    while at < end {
        let leaf = leaves.index_at(at);
        let border = leaves.range(leaf).map_or(end, |(start, length)| start + length);
        let border = if border > at { border.min(end) } else { end };
        let cost = if border == end { credit } else { credit.min(border - at) };
        credit -= cost;
        parts.push(Part { leaf, offset: at, length: border - at, credit: cost });
        at = border;
    }
    parts
}
