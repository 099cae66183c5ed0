//! The state of a partial file: an append-only log of the complete leaves.
// docs/formats/partial.md has the bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::digest::{DIGEST_BYTES, Digest, Leaf, LeafSize};
use crate::fields::take;
use crate::root::Timestamp;

/// The header of a state: the version of the file that it is of.
const MAGIC: &[u8; 8] = b"TOWPART1";
/// Bytes of the header.
pub(super) const HEADER_BYTES: usize = 104;
/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 48;
/// Bytes of the checksum at the end of the header and of each record.
const CHECK_BYTES: usize = 8;
/// The leaf values are real, as the transfer verified.
const FLAG_VERIFIED: u8 = 1;
/// The file has holes, or leaves of an older one: its length doesn't show how far it was written.
const FLAG_SPARSE: u8 = 2;
const KIND_LEAF: u8 = 1;
const KIND_DIGEST: u8 = 2;
/// Records of a state, at most: one for each leaf, and some more for leaves that were fetched again.
const RECORDS_MAX: u64 = 4 << 20;

/// Identifies a boot of the machine.
pub(super) type BootId = [u8; 16];

/// The header of a state: the version of the file that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) verified: bool,
    pub(super) sparse: bool,
    pub(super) modified: Timestamp,
    pub(super) leaves: LeafSize,
    /// Zeros if unknown, which match no boot.
    pub(super) boot: BootId,
    /// BLAKE3 of the path below the destination.
    pub(super) path: [u8; DIGEST_BYTES],
}

/// A state that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) header: Header,
    pub(super) digest: Option<Digest>,
    /// Complete leaves; the last record of each counts.
    pub(super) whole: BTreeMap<u64, Leaf>,
    /// Length up to the end of the last good record: what follows is torn.
    pub(super) length: u64,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let flags = if self.verified { FLAG_VERIFIED } else { 0 } | if self.sparse { FLAG_SPARSE } else { 0 };
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[flags, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&self.leaves.file_bytes().to_be_bytes());
        bytes.extend_from_slice(&self.modified.seconds.to_be_bytes());
        bytes.extend_from_slice(&self.modified.nanoseconds.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.leaves.leaf_bytes().to_be_bytes());
        bytes.extend_from_slice(&self.boot);
        bytes.extend_from_slice(&self.path);
        sealed(&bytes)
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let fields = &mut unsealed(bytes)?;
        let magic: [u8; 8] = take(fields)?;
        let [flags, reserved @ ..] = take::<8>(fields)?;
        let size = u64::from_be_bytes(take(fields)?);
        let seconds = i64::from_be_bytes(take(fields)?);
        let nanoseconds = u32::from_be_bytes(take(fields)?);
        let more_reserved: [u8; 4] = take(fields)?;
        let leaves = LeafSize::announced(u64::from_be_bytes(take(fields)?), size).ok()?;
        let known = flags & !(FLAG_VERIFIED | FLAG_SPARSE) == 0;
        if magic != *MAGIC || !known || reserved != [0; 7] || more_reserved != [0; 4] {
            return None;
        }
        Some(Self {
            verified: flags & FLAG_VERIFIED != 0,
            sparse: flags & FLAG_SPARSE != 0,
            modified: Timestamp { seconds, nanoseconds },
            leaves,
            boot: take(fields)?,
            path: take(fields)?,
        })
    }
}

/// The record of a complete leaf.
pub(super) fn leaf_record(leaf: u64, value: &Leaf) -> [u8; RECORD_BYTES] {
    record(KIND_LEAF, u32::try_from(leaf).unwrap_or(u32::MAX), value)
}

/// The record of the file's digest.
pub(super) fn digest_record(digest: Digest) -> [u8; RECORD_BYTES] {
    record(KIND_DIGEST, 0, &digest.0)
}

fn record(kind: u8, index: u32, value: &[u8; DIGEST_BYTES]) -> [u8; RECORD_BYTES] {
    let mut bytes = Vec::with_capacity(RECORD_BYTES);
    bytes.extend_from_slice(&[kind, 0, 0, 0]);
    bytes.extend_from_slice(&index.to_be_bytes());
    bytes.extend_from_slice(value);
    sealed(&bytes)
}

/// Appends the checksum: the first bytes of the BLAKE3 of what precedes it.
fn sealed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let check = blake3::hash(bytes);
    let mut sealed = [0; N];
    for (to, from) in sealed.iter_mut().zip(bytes.iter().chain(check.as_bytes().iter().take(CHECK_BYTES))) {
        *to = *from;
    }
    sealed
}

fn unsealed(bytes: &[u8]) -> Option<&[u8]> {
    let (content, check) = bytes.split_last_chunk::<CHECK_BYTES>()?;
    blake3::hash(content).as_bytes().starts_with(check).then_some(content)
}

/// Reads a state. `None` if it isn't one; a torn or damaged end is left out.
pub(super) fn read(file: &File) -> io::Result<Option<State>> {
    let length = file.metadata()?.len();
    let records = length.saturating_sub(HEADER_BYTES as u64) / RECORD_BYTES as u64;
    if length < HEADER_BYTES as u64 || records > RECORDS_MAX {
        return Ok(None);
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    let Some(header) = Header::decode(&header) else { return Ok(None) };
    let bytes = usize::try_from(records).unwrap_or(0) * RECORD_BYTES;
    let mut log = vec![0; bytes];
    file.read_exact_at(&mut log, HEADER_BYTES as u64)?;
    Ok(Some(State::new(header, &log)))
}

/// The body of the fuzz target `files_partial_state`, and of the test of its corpus.
#[cfg(any(test, fuzzing))]
pub fn fuzz_body(data: &[u8]) {
    let read = |bytes: &[u8]| {
        let (header, log) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        Some(State::new(Header::decode(header)?, log))
    };
    let _ = read(data);
    // No fuzzer guesses a hash, so the checksums are made right, and the first bytes too.
    let (header, records) = data.split_at(data.len().min(HEADER_BYTES - CHECK_BYTES - MAGIC.len()));
    let mut fields = [&MAGIC[..], header].concat();
    fields.resize(HEADER_BYTES - CHECK_BYTES, 0);
    let mut bytes = sealed::<HEADER_BYTES>(&fields).to_vec();
    for record in records.chunks(RECORD_BYTES - CHECK_BYTES) {
        bytes.extend(sealed::<RECORD_BYTES>(record));
    }
    let Some(state) = read(&bytes) else { return };
    assert_eq!(bytes.get(..HEADER_BYTES), Some(&state.header.encode()[..]), "a header has one form");
    assert!(state.whole.keys().all(|leaf| state.header.leaves.range(*leaf).is_ok()));
    assert!(state.length <= bytes.len() as u64);
    // Rewritten it says the same, and so does all of it that is good.
    let anew = read(&state.encode()).map(|anew| (anew.header, anew.digest, anew.whole));
    assert_eq!(anew, Some((state.header, state.digest, state.whole.clone())));
    let good = usize::try_from(state.length).ok().and_then(|length| bytes.get(..length));
    assert_eq!(good.and_then(read), Some(state));
}

impl State {
    /// The state in the bytes behind the header: a torn or damaged end is left out.
    fn new(header: Header, log: &[u8]) -> Self {
        let mut state = State { header, digest: None, whole: BTreeMap::new(), length: HEADER_BYTES as u64 };
        for record in log.as_chunks::<RECORD_BYTES>().0 {
            if state.apply(record).is_none() {
                break;
            }
            state.length += RECORD_BYTES as u64;
        }
        state
    }

    fn apply(&mut self, record: &[u8; RECORD_BYTES]) -> Option<()> {
        let fields = &mut unsealed(record)?;
        let [kind, ..] = take::<4>(fields)?;
        let leaf = u64::from(u32::from_be_bytes(take(fields)?));
        let value = take(fields)?;
        match kind {
            KIND_LEAF if leaf < self.header.leaves.count() => {
                self.whole.insert(leaf, value);
            }
            KIND_DIGEST => self.digest = Some(Digest(value)),
            _ => return None,
        }
        Some(())
    }

    /// The state as it would be rewritten.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.header.encode().to_vec();
        bytes.extend(self.digest.iter().flat_map(|digest| digest_record(*digest)));
        bytes.extend(self.whole.iter().flat_map(|(leaf, value)| leaf_record(*leaf, value)));
        bytes
    }
}

/// The boot of this machine; zeros if unknown.
pub(super) fn boot_id() -> BootId {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn header() -> Header {
        Header {
            verified: true,
            sparse: false,
            modified: Timestamp { seconds: -2, nanoseconds: 5 },
            leaves: LeafSize::for_file(10 << 20),
            boot: [7; 16],
            path: [9; 32],
        }
    }

    fn written(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn header_byte_by_byte() {
        let bytes = header().encode();
        let mut expected =
            b"TOWPART1\x01\0\0\0\0\0\0\0\0\0\0\0\0\xa0\0\0\xff\xff\xff\xff\xff\xff\xff\xfe\0\0\0\x05\0\0\0\0".to_vec();
        expected.extend_from_slice(b"\0\0\0\0\0\x10\0\0");
        expected.extend_from_slice(&[7; 16]);
        expected.extend_from_slice(&[9; 32]);
        assert_eq!(bytes[..HEADER_BYTES - CHECK_BYTES], expected);
        assert_eq!(Header::decode(&bytes), Some(header()));
    }

    #[test]
    fn torn_end_is_left_out() {
        let mut bytes = header().encode().to_vec();
        bytes.extend(digest_record(Digest([1; 32])));
        bytes.extend(leaf_record(3, &[3; 32]));
        bytes.extend(leaf_record(4, &[4; 32]));
        bytes.extend(leaf_record(3, &[5; 32]));
        let whole = read(&written(&bytes)).unwrap().unwrap();
        assert_eq!(whole.digest, Some(Digest([1; 32])));
        assert_eq!(whole.whole.into_iter().collect::<Vec<_>>(), vec![(3, [5; 32]), (4, [4; 32])]);
        for cut in 1..=RECORD_BYTES {
            let torn = read(&written(&bytes[..bytes.len() - cut])).unwrap().unwrap();
            assert_eq!(torn.whole.into_iter().collect::<Vec<_>>(), vec![(3, [3; 32]), (4, [4; 32])], "{cut}");
            assert_eq!(torn.length, (HEADER_BYTES + 3 * RECORD_BYTES) as u64);
        }
    }

    #[test]
    fn leaf_beyond_the_end_of_the_file_ends_the_log() {
        let mut bytes = header().encode().to_vec();
        bytes.extend(leaf_record(10, &[3; 32]));
        bytes.extend(leaf_record(1, &[3; 32]));
        assert!(read(&written(&bytes)).unwrap().unwrap().whole.is_empty());
    }

    #[test]
    fn fuzz_corpus_passes() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/files_partial_state");
        let inputs: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty());
        for path in inputs {
            println!("{}", path.display());
            fuzz_body(&std::fs::read(&path).unwrap());
        }
    }

    proptest! {
        #[test]
        fn random_states_decode_and_encode_alike(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            fuzz_body(&bytes);
        }

        /// A damaged byte takes away what follows it, and never changes what a record says.
        #[test]
        fn damaged_records_are_dropped(leaves in proptest::collection::vec((0u64..10, any::<[u8; 32]>()), 1..20), at in any::<prop::sample::Index>(), flip in 1u8..) {
            let mut bytes = header().encode().to_vec();
            bytes.extend(leaves.iter().flat_map(|(leaf, value)| leaf_record(*leaf, value)));
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            match read(&written(&bytes)).unwrap() {
                None => prop_assert!(at < HEADER_BYTES),
                Some(state) => {
                    let good = (at - HEADER_BYTES) / RECORD_BYTES;
                    let expected: BTreeMap<u64, Leaf> = leaves[..good].iter().copied().collect();
                    prop_assert_eq!(state.whole, expected);
                }
            }
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&written(&bytes));
        }
    }
}
