//! Reading a journal for people, and for a fuzzer.

use super::JournalError;
use super::block::SegmentHeader;
use super::index::Index;
use super::read::{Next, Reader};
use super::record::{Record, What};
use super::recover;
use super::storage::{DirStorage, StorageFile};
use super::types::CutTail;
use std::io;
use std::path::Path;

/// A record of the journal, needed or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// Number of its segment.
    pub segment: u32,
    /// Id of the request.
    pub id: u64,
    /// Size of the record in bytes.
    pub bytes: usize,
    /// Content of the record.
    pub kind: InspectedKind,
}

/// Content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InspectedKind {
    /// A request was accepted.
    Accepted {
        /// Client that sent it.
        client: [u8; 16],
        /// Number that the client gave it.
        number: u64,
        /// Name of the service.
        service: Vec<u8>,
        /// Expiry in milliseconds since 1970. 0: never.
        expires_unix_ms: u64,
        /// A dead letter, and the attempts before it: the client and the number are those of the request that it is a copy of.
        letter: Option<u16>,
        /// Bytes of the body.
        body_bytes: u64,
    },
    /// A dead letter is one for another service now.
    Moved {
        /// Name of the service.
        service: Vec<u8>,
    },
    /// The request has an outcome.
    Finished {
        /// Status of the outcome.
        status: u16,
        /// Bytes of the outcome's body.
        body_bytes: u64,
    },
    /// The request is no longer needed.
    Forgotten,
}

/// A segment of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedSegment {
    /// Number of the segment.
    pub number: u32,
    /// Offset behind the last block.
    pub end: u64,
    /// Bytes of records that are still needed.
    pub needed_bytes: u64,
}

/// Reads a journal that no process has open, without changing it, and calls `each` with every record in the order of
/// writing. Returns the segments, and the end that recovery would cut off.
///
/// Errors: like [`super::Journal::open`].
pub fn inspect(
    dir: &Path,
    mut each: impl FnMut(Inspected),
) -> Result<(Vec<InspectedSegment>, Option<CutTail>), JournalError> {
    let opened = super::directory::open(dir)?;
    let _lock = super::directory::lock_to_read(dir, &opened)?;
    let mut index = Index::default();
    let found = recover::read_all(&DirStorage::new(dir, opened, false), false, |record, segment| {
        index.apply(record, segment, |_| {});
        let kind = match record.what {
            What::Accepted { client, number, service, expires, letter, body, .. } => InspectedKind::Accepted {
                client,
                number,
                service: service.to_vec(),
                expires_unix_ms: expires.unix_ms,
                letter: letter.map(|letter| letter.attempts),
                body_bytes: body.length(),
            },
            What::Moved { service, .. } => InspectedKind::Moved { service: service.to_vec() },
            What::Finished { status, body } => InspectedKind::Finished { status, body_bytes: body.length() },
            What::Forgotten => InspectedKind::Forgotten,
        };
        each(Inspected { segment, id: record.id, bytes: record.bytes.len(), kind });
    })?;
    let described = |found: &recover::FoundSegment| InspectedSegment {
        number: found.number,
        end: found.end,
        needed_bytes: index.needed_of(found.number),
    };
    Ok((found.segments.iter().map(described).collect(), found.cut))
}

/// A read-only segment in memory.
struct SegmentBytes<'a>(&'a [u8]);

impl StorageFile for SegmentBytes<'_> {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_length(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..)).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads `data` as records, and as a segment with all checksums corrected, for a fuzzer. Decoded records must respect the
/// limits and stay the same when encoded again.
#[doc(hidden)]
pub fn fuzz_segment(data: &[u8]) {
    let mut rest = data;
    while let Ok(record) = Record::take(&mut rest) {
        check_record(&record);
    }
    let _ = SegmentHeader::decode(data);

    // Raw, and as one block with correct checksums.
    let header = SegmentHeader { number: 1, salt: 7, sequence: 1, previous_end: 64, next_id: 1 };
    let mut segment = header.encode().to_vec();
    segment.extend_from_slice(data);
    read_segment(&segment, &header);
    let mut block = vec![0; super::block::BLOCK_HEADER_BYTES];
    block.extend_from_slice(data);
    super::block::BlockHeader::seal(&mut block, header.salt, header.sequence, 1);
    segment.truncate(super::block::SEGMENT_HEADER_BYTES);
    segment.extend_from_slice(&block);
    assert_eq!(read_segment(&segment, &header), 1);
}

fn read_segment(segment: &[u8], header: &SegmentHeader) -> usize {
    let mut reader = Reader::new(SegmentBytes(segment), header, segment.len() as u64);
    let mut blocks = 0;
    while let Ok(Next::Block { mut bytes, .. }) = reader.next() {
        blocks += 1;
        while let Ok(record) = Record::take(&mut bytes) {
            check_record(&record);
        }
    }
    // Must end, whatever the bytes are.
    let _ = reader.later_block();
    blocks
}

fn check_record(record: &Record) {
    use super::record::Stored;
    use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX, SERVICE_BYTES_MAX};
    let mut copied = Vec::new();
    record.copy(&mut copied, true);
    assert_eq!(copied, record.bytes);
    copied.clear();
    record.copy(&mut copied, false);
    assert_eq!(copied.len(), record.bytes_without_body());
    let again = Record::take(&mut &copied[..]).map(|again| again.id);
    assert_eq!(again, Ok(record.id));
    let body = match record.what {
        What::Accepted { body, service, .. } => {
            assert!(service.len() <= SERVICE_BYTES_MAX);
            body
        }
        What::Finished { body, .. } => body,
        What::Moved { .. } | What::Forgotten => return,
    };
    if !matches!(body, Stored::File(_)) {
        let there = body.to_body();
        assert!(there.length() == body.length() && there.length() <= BODY_BYTES_MAX as u64);
        assert!(there.frames().is_some_and(|frames| frames.len() <= BODY_FRAMES_MAX));
    }
}
