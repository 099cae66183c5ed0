//! The sink of a single file that goes to an output which can't take anything back, such as standard output: bytes are written in
//! order, and those of a leaf only after it was checked.

use std::io::{self, Write};
use std::sync::Arc;

use super::output::answer_without_effect;
use crate::digest::{Digest, Leaf, LeafHasher, LeafSize};
use crate::transfer::{ContentSpec, DiskCommand, DiskReport, SmallFile, SmallOutcome};
use towpath_blocking::CancelToken;

/// Zeros of a hole are written in pieces of this size.
const ZEROS: &[u8] = &[0; 64 << 10];

/// Writes one file. Blocks as long as its output does: what isn't written gives no credit back, so the server waits.
pub(crate) struct OrderedWriter {
    output: Box<dyn Write + Send>,
    /// Checked within holes, which may be of any size.
    cancel: CancelToken,
    content: Option<Content>,
    /// Bytes written to the output.
    written: u64,
}

struct Content {
    leaves: LeafSize,
    /// `None` if nothing is verified.
    values: Option<Arc<[Leaf]>>,
    /// Bytes of the next leaf, until it is complete: at most `LEAF_HELD_BYTES_MAX`.
    held: Vec<u8>,
}

/// Bytes that were taken of those on offer, and the values of the leaves that they completed. All of these leaves but the last are right
/// and written; the last one is too if it has the expected value.
type Taken = (u64, Vec<(u64, Leaf)>);

impl OrderedWriter {
    pub(crate) fn new(output: Box<dyn Write + Send>, cancel: CancelToken) -> Self {
        Self { output, cancel, content: None, written: 0 }
    }

    /// Carries out a command.
    ///
    /// # Errors
    /// The output failed.
    pub(crate) fn command(&mut self, command: DiskCommand) -> io::Result<Option<DiskReport>> {
        match command {
            DiskCommand::Begin(spec) => self.begin(spec).map(|()| None),
            DiskCommand::Abandon { .. } => {
                self.content = None;
                Ok(None)
            }
            DiskCommand::Write { content, part, data } => {
                let (length, leaves) = self.take(part.offset, &data)?;
                let (offset, credit) = (part.offset, part.credit);
                Ok(Some(DiskReport::Written { content, offset, length, credit, result: Ok(leaves) }))
            }
            DiskCommand::Zeros { content, offset, length, credit, .. } => {
                let (length, leaves) = self.take_zeros(offset, length)?;
                Ok(Some(DiskReport::Written { content, offset, length, credit, result: Ok(leaves) }))
            }
            DiskCommand::Small(small) => {
                let result = Ok(self.small(&small)?);
                Ok(Some(DiskReport::Small { file: small.file, credit: small.credit, result }))
            }
            DiskCommand::Install { .. } => {
                self.output.flush()?;
                Ok(answer_without_effect(command))
            }
            _ => Ok(answer_without_effect(command)),
        }
    }

    fn begin(&mut self, spec: ContentSpec) -> io::Result<()> {
        if self.written > 0 {
            // The transfer fails before it asks for this.
            return Err(io::Error::other("part of another version of the file is written already"));
        }
        self.content = Some(Content { leaves: spec.leaves, values: spec.values, held: Vec::new() });
        Ok(())
    }

    /// Takes bytes if they are the next ones; none if they follow something that is missing.
    fn take(&mut self, offset: u64, mut data: &[u8]) -> io::Result<Taken> {
        let (mut taken, mut completed) = (0, Vec::new());
        let Some(content) = &mut self.content else { return Ok((taken, completed)) };
        if offset != self.written + content.held.len() as u64 {
            return Ok((taken, completed));
        }
        let Some(values) = &content.values else {
            self.output.write_all(data)?;
            self.written += data.len() as u64;
            return Ok((data.len() as u64, completed));
        };
        while !data.is_empty() {
            let leaf = content.leaves.index_at(self.written);
            let Ok((_, length)) = content.leaves.range(leaf) else { break };
            let missing = usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(content.held.len());
            let (now, rest) = data.split_at(missing.min(data.len()));
            content.held.extend_from_slice(now);
            taken += now.len() as u64;
            data = rest;
            if (content.held.len() as u64) < length {
                break;
            }
            let value = value_of(content.leaves, leaf, &content.held)?;
            completed.push((leaf, value));
            if usize::try_from(leaf).ok().and_then(|leaf| values.get(leaf)) != Some(&value) {
                content.held.clear();
                break;
            }
            self.output.write_all(&content.held)?;
            self.written += length;
            content.held.clear();
        }
        Ok((taken, completed))
    }

    fn take_zeros(&mut self, offset: u64, length: u64) -> io::Result<Taken> {
        let (mut taken, mut completed) = (0, Vec::new());
        while taken < length && !self.cancel.is_cancelled() {
            let zeros = usize::try_from(length - taken).ok().and_then(|rest| ZEROS.get(..rest)).unwrap_or(ZEROS);
            let (now, leaves) = self.take(offset + taken, zeros)?;
            taken += now;
            completed.extend(leaves);
            if now < zeros.len() as u64 {
                break;
            }
        }
        Ok((taken, completed))
    }

    fn small(&mut self, small: &SmallFile) -> io::Result<SmallOutcome> {
        let data = small.data.concat();
        if small.digest.is_some_and(|digest| Digest::of(&data) != digest) {
            return Ok(SmallOutcome::Mismatch);
        }
        self.output.write_all(&data)?;
        self.written += data.len() as u64;
        self.output.flush()?;
        Ok(SmallOutcome::Installed)
    }
}

fn value_of(leaves: LeafSize, leaf: u64, bytes: &[u8]) -> io::Result<Leaf> {
    let mut hasher = LeafHasher::new(leaves, leaf).map_err(io::Error::other)?;
    hasher.update(bytes).map_err(io::Error::other)?;
    hasher.finish().map_err(io::Error::other)
}
