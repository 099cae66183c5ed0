//! A disk in memory that carries out commands in any order that is allowed.

use std::collections::{HashMap, HashSet, VecDeque};

use super::world::Draw;
use crate::digest::{Digest, Leaf, LeafHasher, merge_leaves};
use crate::protocol::control::Range;
use crate::transfer::ranges::RangeSet;
use crate::transfer::{ContentKey, ContentSpec, DiskCommand, DiskError, DiskReport, Found, SmallOutcome};

#[derive(Default)]
pub struct SimDisk {
    pub commands: VecDeque<DiskCommand>,
    pub installed: HashMap<Vec<u8>, Vec<u8>>,
    /// Files of which leaves may be copied.
    pub older: HashMap<Vec<u8>, Vec<u8>>,
    /// Results of inspecting; nothing without an entry.
    pub found: HashMap<Vec<u8>, Found>,
    pub free: Option<u64>,
    /// Writing this file, or making this directory, fails.
    pub broken: Option<Vec<u8>>,
    /// Directories that were made, and those that were finished.
    pub made: HashSet<Vec<u8>>,
    pub finished: HashSet<Vec<u8>>,
    /// The most contents that were open at a time.
    pub open_max: usize,
    left: HashMap<Vec<u8>, Open>,
    open: HashMap<ContentKey, (ContentSpec, Open)>,
    abandoned: HashSet<ContentKey>,
}

#[derive(Clone, Default)]
struct Open {
    content: Vec<u8>,
    written: RangeSet,
    values: HashMap<u64, Leaf>,
}

impl SimDisk {
    /// Leaves part of a file, as an earlier transfer would have.
    pub fn leave(&mut self, local: &[u8], content: &[u8], whole: &[(u64, Leaf)], tail: Option<Range>) {
        let mut open = Open { content: vec![0; content.len()], ..Open::default() };
        let ranges = whole.iter().map(|(leaf, _)| (leaf * (1 << 20), 1 << 20));
        for (offset, length) in ranges.chain(tail.map(|tail| (tail.offset, tail.length))) {
            let range = offset as usize..(offset + length) as usize;
            open.content[range.clone()].copy_from_slice(&content[range]);
            open.written.insert(offset, length);
        }
        open.values = whole.iter().copied().collect();
        self.left.insert(local.to_vec(), open);
    }

    /// Carries out one of the queued commands.
    pub fn step(&mut self, draw: &mut Draw) -> Option<DiskReport> {
        if self.commands.is_empty() {
            return None;
        }
        // Those of the same content stay in order, so that leaves are written from their beginning and nothing is
        // installed before it is written; others may overtake one another.
        let drawn = draw.below(self.commands.len());
        let chosen = content_of(&self.commands[drawn]);
        let index = match chosen {
            Some(content) => self.commands.iter().position(|command| content_of(command) == Some(content)).unwrap(),
            None => drawn,
        };
        let command = self.commands.remove(index).unwrap();
        self.check_order(&command);
        self.work(command)
    }

    /// Checks that a command doesn't depend on one that is still queued, since they may be carried out in any order.
    fn check_order(&mut self, command: &DiskCommand) {
        let waits = |which: &dyn Fn(&DiskCommand) -> bool| self.commands.iter().any(which);
        match command {
            // What stands in the place of a directory above would be found.
            DiskCommand::Inspect { local, .. } => {
                assert!(!waits(
                    &|other| matches!(other, DiskCommand::MakeDir { local: dir } if local.below(dir).is_some())
                ));
            }
            DiskCommand::MakeDir { local } => {
                assert!(!self.finished.contains(local.as_bytes()), "made when it was finished");
            }
            // With its mode, nothing below it may be reached.
            DiskCommand::FinishDir { local, .. } => {
                assert!(local.is_root() || self.made.contains(local.as_bytes()), "finished and never made");
                assert!(!waits(&|other| match other {
                    DiskCommand::FinishDir { local: dir, .. } => dir.below(local).is_some(),
                    // These have no reports.
                    DiskCommand::Abandon { .. } | DiskCommand::Leave { .. } => false,
                    _ => true,
                }));
                assert!(self.finished.insert(local.as_bytes().to_vec()), "finished twice");
            }
            _ => {}
        }
    }

    fn work(&mut self, command: DiskCommand) -> Option<DiskReport> {
        Some(match command {
            DiskCommand::Inspect { file, local, .. } => {
                let found = self.found.get(local.as_bytes()).cloned().unwrap_or(Found::Nothing);
                DiskReport::Inspected { file, found: Ok(found) }
            }
            DiskCommand::CheckSpace { .. } => DiskReport::Space { free: self.free },
            DiskCommand::MakeDir { local } => {
                let result = if self.broken.as_deref() == Some(local.as_bytes()) { Err(broken()) } else { Ok(()) };
                if result.is_ok() {
                    self.made.insert(local.as_bytes().to_vec());
                }
                DiskReport::Entry { local, result }
            }
            DiskCommand::MakeLink { local, .. } | DiskCommand::FinishDir { local, .. } => {
                DiskReport::Entry { local, result: Ok(()) }
            }
            DiskCommand::Touch { file, local, .. } => {
                // The right content was there, says what inspecting found.
                let _ = local;
                DiskReport::Installed { file, result: Ok(()) }
            }
            DiskCommand::HardLink { file, local, first, .. } => {
                let content = self.installed.get(first.as_bytes()).cloned();
                let is_broken = self.broken.as_deref() == Some(local.as_bytes());
                let result = content.filter(|_| !is_broken).ok_or_else(broken);
                let result = result.map(|content| drop(self.installed.insert(local.as_bytes().to_vec(), content)));
                DiskReport::Installed { file, result }
            }
            DiskCommand::Small(small) => {
                let result = if self.broken.as_deref() == Some(small.local.as_bytes()) {
                    Err(broken())
                } else if small.digest.is_some_and(|digest| digest != Digest::of(&small.data.concat())) {
                    Ok(SmallOutcome::Mismatch)
                } else {
                    assert_eq!(small.bytes(), small.version.size);
                    self.installed.insert(small.local.as_bytes().to_vec(), small.data.concat());
                    Ok(SmallOutcome::Installed)
                };
                DiskReport::Small { file: small.file, credit: small.credit, result }
            }
            DiskCommand::Begin(spec) => {
                let left = self.left.remove(spec.local.as_bytes()).filter(|_| spec.resume);
                assert_eq!(left.is_some(), spec.resume, "resumes what is not there");
                let mut open = left.unwrap_or_default();
                open.content.resize(spec.version.size as usize, 0);
                let former = self.open.insert(spec.content, (spec, open));
                assert!(former.is_none(), "begun twice");
                self.open_max = self.open_max.max(self.open.len());
                return None;
            }
            DiskCommand::NoteDigest { content, .. } => {
                assert!(self.open.contains_key(&content) || self.abandoned.contains(&content));
                return None;
            }
            DiskCommand::ForgetLeaves { content, leaves } => {
                let (_, open) = self.open.get_mut(&content).expect("a content that was begun");
                for leaf in leaves {
                    assert!(open.values.remove(&leaf).is_some(), "forgets what was not whole");
                }
                return None;
            }
            DiskCommand::Write { content, part, data } => {
                assert_eq!(part.length, data.len() as u64);
                let result = self.write(content, part.leaf, part.offset, &data);
                part.written(content, result)
            }
            DiskCommand::Zeros { content, leaf, offset, length, credit } => {
                let result = self.write(content, leaf, offset, &vec![0; length as usize]);
                DiskReport::Written { content, offset, length, credit, result }
            }
            DiskCommand::Reuse { content, leaves } => {
                let (spec, open) = self.open.get_mut(&content).unwrap();
                assert!(spec.reuse);
                let older = self.older.get(spec.local.as_bytes()).map(Vec::as_slice).unwrap_or_default();
                let mut copied = Vec::new();
                for (leaf, value) in leaves {
                    let (offset, length) = spec.leaves.range(leaf).unwrap();
                    let range = offset as usize..(offset + length) as usize;
                    let Some(bytes) = older.get(range.clone()) else { continue };
                    let mut hasher = LeafHasher::new(spec.leaves, leaf).unwrap();
                    hasher.update(bytes).unwrap();
                    if hasher.finish() == Ok(value) {
                        open.content[range].copy_from_slice(bytes);
                        open.written.insert(offset, length);
                        copied.push((leaf, value));
                    }
                }
                open.values.extend(copied.iter().copied());
                DiskReport::Reused { content, result: Ok(copied) }
            }
            DiskCommand::Install { file, content } => {
                let (spec, open) = self.open.remove(&content).unwrap();
                assert!(open.written.covers(spec.version.size), "installs what is not whole");
                // What is recorded beside it is what a later transfer would resume.
                if spec.verify {
                    let values = (0..spec.leaves.count()).map(|leaf| open.values[&leaf]).collect::<Vec<_>>();
                    assert_eq!(merge_leaves(&values), Ok(Digest::of(&open.content)));
                }
                self.installed.insert(spec.local.as_bytes().to_vec(), open.content);
                DiskReport::Installed { file, result: Ok(()) }
            }
            DiskCommand::Abandon { content } | DiskCommand::Leave { content } => {
                self.abandoned.insert(content);
                self.open.remove(&content).unwrap();
                return None;
            }
        })
    }

    fn write(
        &mut self,
        content: ContentKey,
        leaf: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<Vec<(u64, Leaf)>, DiskError> {
        let (spec, open) = self.open.get_mut(&content).unwrap();
        if self.broken.as_deref() == Some(spec.local.as_bytes()) {
            return Err(broken());
        }
        let (start, length) = spec.leaves.range(leaf).unwrap();
        assert!(start <= offset && offset < start + length, "not in that leaf");
        open.content[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        open.written.insert(offset, data.len() as u64);
        let end = offset + data.len() as u64;
        let mut whole = Vec::new();
        for leaf in leaf..spec.leaves.count() {
            let (start, length) = spec.leaves.range(leaf).unwrap();
            if start + length > end {
                break;
            }
            let mut hasher = LeafHasher::new(spec.leaves, leaf).unwrap();
            hasher.update(&open.content[start as usize..(start + length) as usize]).unwrap();
            whole.push((leaf, hasher.finish().unwrap()));
        }
        open.values.extend(whole.iter().copied());
        Ok(whole)
    }
}

fn broken() -> DiskError {
    DiskError { full: false, message: "broken".to_owned() }
}

fn content_of(command: &DiskCommand) -> Option<ContentKey> {
    match command {
        DiskCommand::Begin(spec) => Some(spec.content),
        DiskCommand::NoteDigest { content, .. }
        | DiskCommand::ForgetLeaves { content, .. }
        | DiskCommand::Write { content, .. }
        | DiskCommand::Reuse { content, .. }
        | DiskCommand::Zeros { content, .. }
        | DiskCommand::Install { content, .. }
        | DiskCommand::Abandon { content }
        | DiskCommand::Leave { content } => Some(*content),
        _ => None,
    }
}
