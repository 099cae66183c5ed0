//! Recovery of the segments at start.
//!
//! Only the last block of the last segment may be torn: a block is written when the previous one is durable, and a segment
//! is started when the whole previous one is. So a broken block is a torn end exactly if no later block follows; otherwise
//! it had been durable, and a person has to decide.

use super::JournalError;
use super::block::{BadHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::read::{Next, Reader};
use super::record::Record;
use super::storage::{Storage, StorageFile};
use super::types::CutTail;

/// A segment found on disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundSegment {
    pub(super) number: u32,
    pub(super) header: SegmentHeader,
    /// Offset behind its last block.
    pub(super) end: u64,
}

/// Everything about the segments but their records.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) segments: Vec<FoundSegment>,
    /// The last block, which may not be durable, and its offset in the last segment.
    pub(super) last_block: Option<LastBlock>,
    /// Sequence number of the next block.
    pub(super) sequence: u64,
    pub(super) next_id: u64,
    pub(super) cut: Option<CutTail>,
    /// Damaged bytes were marked as a gap, now or before.
    pub(super) has_gaps: bool,
}

#[derive(Debug)]
pub(super) struct LastBlock {
    pub(super) start: u64,
    pub(super) records: u32,
    pub(super) bytes: Vec<u8>,
}

/// File name of a segment.
pub(super) fn segment_name(number: u32) -> String {
    format!("{number:08x}.log")
}

fn segment_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".log")?;
    let number = u32::from_str_radix(digits, 16).ok()?;
    (segment_name(number) == name).then_some(number)
}

/// Reads all segments and calls `each` with each record and its segment's number. `repairs`: marks what is damaged as a gap.
pub(super) fn read_all<S: Storage>(
    storage: &S,
    repairs: bool,
    mut each: impl FnMut(&Record, u32),
) -> Result<Found, JournalError> {
    let names = storage.names().map_err(JournalError::io("list the journal", storage.path("")))?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    let headers: Vec<SegmentHeader> =
        numbers.iter().map(|number| read_header(storage, *number)).collect::<Result<_, _>>()?;

    let mut found = Found { next_id: 1, sequence: 1, ..Found::default() };
    for (index, header) in headers.iter().enumerate() {
        let next = headers.get(index + 1);
        let path = storage.path(&segment_name(header.number));
        let damaged = |offset, what| JournalError::Damaged { path: path.clone(), offset, what };
        if next.is_some_and(|next| next.number - 1 != header.number) {
            return Err(damaged(0, "the segment behind this one is missing"));
        }
        if index > 0 && header.sequence != found.sequence {
            return Err(damaged(32, "this segment does not follow the one before"));
        }
        let file = storage.open(&segment_name(header.number)).map_err(JournalError::io("open", &path))?;
        let length = file.length().map_err(JournalError::io("read", &path))?;
        let end = next.map_or(length, |next| next.previous_end);
        found.next_id = found.next_id.max(header.next_id);
        found.last_block = None;
        let mut reader = Reader::new(file, header, end);
        let bad = loop {
            let ended = match reader.next().map_err(JournalError::io("read", &path))? {
                Next::Block { start, records, bytes } => {
                    found.has_gaps |= records == 0 && !bytes.is_empty();
                    let mut rest = if records == 0 { &[][..] } else { bytes };
                    let mut count = 0;
                    while !rest.is_empty() {
                        // Its checksum is right, so the disk isn't to blame.
                        let record = Record::take(&mut rest).map_err(|what| damaged(start, what))?;
                        found.next_id = found.next_id.max(record.id.saturating_add(1));
                        each(&record, header.number);
                        count += 1;
                    }
                    if count != records {
                        return Err(damaged(start, "a block has not as many records as it says"));
                    }
                    if next.is_none() {
                        let last = found.last_block.get_or_insert(LastBlock { start, records, bytes: Vec::new() });
                        (last.start, last.records) = (start, records);
                        last.bytes.clear();
                        last.bytes.extend_from_slice(bytes);
                    }
                    continue;
                }
                Next::End => None,
                Next::Bad(what) => Some(what),
            };
            if !repairs || (next.is_some() && ended.is_none() && reader.offset() == end) {
                break ended;
            }
            let from = reader.offset();
            let later = reader.later_block().map_err(JournalError::io("read", &path))?;
            let Some((until, sequence)) = later.or(next.map(|next| (end, next.sequence))) else { break ended };
            if !reader.mark_gap(until, sequence).map_err(JournalError::io("repair", &path))? {
                break ended;
            }
            found.has_gaps = true;
            let (file, bytes, what) = (path.display(), until - from, ended.unwrap_or("blocks are missing"));
            tracing::warn!(%file, from, bytes, what, "what was written there is lost");
        };
        let ended = reader.offset();
        found.sequence = reader.sequence();
        if next.is_some() {
            if bad.is_some() || ended != end {
                return Err(damaged(ended, bad.unwrap_or("it ends before its end")));
            }
        } else {
            // Also after a proper end: zeros in the middle look like one.
            if reader.later_block().map_err(JournalError::io("read", &path))?.is_some() {
                return Err(damaged(ended, bad.unwrap_or("blocks are missing")));
            }
            if let Some(what) = bad {
                let bytes = reader.used_behind().map_err(JournalError::io("read", &path))?;
                found.cut = Some(CutTail { path: path.clone(), offset: ended, bytes, what, lost_requests: 0 });
            }
        }
        found.segments.push(FoundSegment { number: header.number, header: *header, end: ended });
    }
    Ok(found)
}

fn read_header<S: Storage>(storage: &S, number: u32) -> Result<SegmentHeader, JournalError> {
    let name = segment_name(number);
    let path = storage.path(&name);
    let file = storage.open(&name).map_err(JournalError::io("open", &path))?;
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let read = file.read_full_at(&mut bytes, 0).map_err(JournalError::io("read", &path))?;
    match SegmentHeader::decode(bytes.get(..read).unwrap_or_default()) {
        Ok(header) if header.number == number => Ok(header),
        Ok(_) => Err(JournalError::Damaged { path, offset: 16, what: "its number is not that of its name" }),
        Err(BadHeader::Version(version)) => Err(JournalError::UnknownVersion { path, version }),
        Err(BadHeader::Damaged(what)) => Err(JournalError::Damaged { path, offset: 0, what }),
    }
}
