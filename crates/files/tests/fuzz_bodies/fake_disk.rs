//! A disk in memory that refuses to install what wasn't shown to be right.

use std::collections::{HashMap, VecDeque};
use towpath_files::digest::{Digest, LeafHasher, LeafSize};
use towpath_files::transfer::{ContentKey, ContentSpec, DiskCommand, DiskError, DiskReport, Found, SmallOutcome};

/// A size of files that don't fit.
pub const LARGE: u64 = 1 << 62;

struct Content {
    leaves: LeafSize,
    digest: Option<Digest>,
    bytes: Vec<u8>,
    /// Bytes of each leaf that were written.
    written: HashMap<u64, u64>,
}

pub struct FakeDisk {
    verify: bool,
    /// Files found at the destination, in turn.
    found: u8,
    inspected: u8,
    contents: HashMap<ContentKey, Content>,
    reports: VecDeque<DiskReport>,
}

impl FakeDisk {
    pub fn new(verify: bool, found: u8) -> FakeDisk {
        FakeDisk { verify, found, inspected: 0, contents: HashMap::new(), reports: VecDeque::new() }
    }

    pub fn next_report(&mut self) -> Option<DiskReport> {
        self.reports.pop_front()
    }

    pub fn carry_out(&mut self, command: DiskCommand) {
        let report = match command {
            DiskCommand::Inspect { file, .. } => {
                self.inspected = self.inspected.wrapping_add(1);
                let found = match (self.found + self.inspected) % 8 {
                    0 => Ok(Found::Same { touch: false }),
                    1 => Ok(Found::Same { touch: true }),
                    2 => Ok(Found::SameSize(Digest([7; 32]))),
                    3 => Err(failed()),
                    4 => Ok(Found::Older { bytes: 3 << 20 }),
                    _ => Ok(Found::Nothing),
                };
                DiskReport::Inspected { file, found }
            }
            DiskCommand::CheckSpace { .. } => DiskReport::Space { free: None },
            DiskCommand::MakeDir { local }
            | DiskCommand::MakeLink { local, .. }
            | DiskCommand::FinishDir { local, .. } => DiskReport::Entry { local, result: Ok(()) },
            DiskCommand::Touch { file, .. } | DiskCommand::HardLink { file, .. } => {
                DiskReport::Installed { file, result: Ok(()) }
            }
            DiskCommand::Small(small) => {
                assert_eq!(small.bytes(), small.version.size, "a whole file in one piece");
                assert!(small.digest.is_some() || !self.verify, "a file would be installed unchecked");
                let right =
                    small.digest.is_none_or(|digest| digest.0 == *blake3::hash(&small.data.concat()).as_bytes());
                let outcome = if right { SmallOutcome::Installed } else { SmallOutcome::Mismatch };
                DiskReport::Small { file: small.file, credit: small.credit, result: Ok(outcome) }
            }
            DiskCommand::Begin(spec) => return self.begin(&spec),
            DiskCommand::NoteDigest { content, digest } => {
                self.contents.get_mut(&content).expect("a content that was begun").digest = Some(digest);
                return;
            }
            DiskCommand::ForgetLeaves { content, leaves } => {
                assert!(self.contents.contains_key(&content), "a content that was begun");
                assert!(leaves.is_sorted());
                return;
            }
            DiskCommand::Write { content, part, data } => {
                let result = self.write(content, part.leaf, part.offset, part.length, Some(&data));
                part.written(content, result)
            }
            DiskCommand::Zeros { content, leaf, offset, length, credit } => {
                let result = self.write(content, leaf, offset, length, None);
                DiskReport::Written { content, offset, length, credit, result }
            }
            DiskCommand::Reuse { content, leaves } => {
                let result = self.reuse(content, &leaves);
                DiskReport::Reused { content, result }
            }
            DiskCommand::Install { file, content } => {
                self.check(content);
                DiskReport::Installed { file, result: Ok(()) }
            }
            DiskCommand::Abandon { content } => {
                assert!(self.contents.remove(&content).is_some(), "a content that was begun");
                return;
            }
            DiskCommand::Leave { content } => {
                assert!(self.contents.contains_key(&content), "a content that was begun");
                return;
            }
        };
        self.reports.push_back(report);
    }

    fn begin(&mut self, spec: &ContentSpec) {
        assert!(!spec.resume, "this disk never reported a part");
        assert_eq!(spec.leaves.file_bytes(), spec.version.size);
        let bytes = if spec.version.size < LARGE { vec![0; spec.version.size as usize] } else { Vec::new() };
        let content = Content { leaves: spec.leaves, digest: spec.digest, bytes, written: HashMap::new() };
        assert!(self.contents.insert(spec.content, content).is_none(), "a content is begun once");
    }

    /// Writes: returns the leaves that this completed, and their values.
    fn write(
        &mut self,
        content: ContentKey,
        leaf: u64,
        offset: u64,
        length: u64,
        data: Option<&[u8]>,
    ) -> Result<Vec<(u64, [u8; 32])>, DiskError> {
        let content = self.contents.get_mut(&content).expect("a content that was begun");
        let end = offset.checked_add(length).expect("within a file");
        assert!(end <= content.leaves.file_bytes(), "bytes beyond the end of the file");
        if content.bytes.is_empty() {
            return Err(failed());
        }
        let target = &mut content.bytes[offset as usize..end as usize];
        match data {
            Some(data) => target.copy_from_slice(data),
            None => target.fill(0),
        }
        let mut whole = Vec::new();
        let (mut leaf, mut at) = (leaf, offset);
        while at < end {
            let (start, leaf_length) = content.leaves.range(leaf).expect("a leaf of the file");
            assert!((start..start + leaf_length).contains(&at), "bytes of another leaf");
            let now = end.min(start + leaf_length) - at;
            // Bytes that start a leaf again come when it was wrong.
            let written = content.written.entry(leaf).or_default();
            if at == start {
                *written = 0;
            }
            *written += now;
            if *written == leaf_length {
                let mut hasher = LeafHasher::new(content.leaves, leaf).expect("a leaf of the file");
                let bytes = &content.bytes[start as usize..(start + leaf_length) as usize];
                hasher.update(bytes).expect("as long as the leaf");
                whole.push((leaf, hasher.finish().expect("as long as the leaf")));
            }
            at += now;
            leaf += 1;
        }
        assert!(data.is_none() || whole.len() <= 1);
        Ok(whole)
    }

    /// Copies leaves of an older file that is all zeros.
    fn reuse(&mut self, content: ContentKey, leaves: &[(u64, [u8; 32])]) -> Result<Vec<(u64, [u8; 32])>, DiskError> {
        let mut copied = Vec::new();
        for &(leaf, value) in leaves {
            let (offset, length) = self.contents[&content].leaves.range(leaf).expect("a leaf of the file");
            copied.extend(
                self.write(content, leaf, offset, length, None)?.into_iter().filter(|whole| *whole == (leaf, value)),
            );
        }
        Ok(copied)
    }

    /// Checks that what is installed has its digest.
    fn check(&mut self, content: ContentKey) {
        let content = self.contents.remove(&content).expect("a content that was begun");
        if self.verify {
            let digest = content.digest.expect("a digest to check against");
            assert_eq!(digest.0, *blake3::hash(&content.bytes).as_bytes(), "something unverified is installed");
        }
    }
}

fn failed() -> DiskError {
    DiskError { full: false, message: "as the script has it".to_owned() }
}
