//! Where a transfer's disk commands go: to the disk, or nowhere.

use std::collections::VecDeque;
use std::time::Duration;

use super::disk::Disk;
use super::transfer::{DiskCommand, DiskReport, SmallOutcome};

/// What carries out disk commands.
pub(super) enum Sink {
    /// The destination is not known yet.
    Nothing,
    /// A directory.
    Disk(Box<Disk>),
    /// Everything is taken for written and dropped: to measure what the wire alone can do.
    Discard(VecDeque<DiskReport>),
}

impl Sink {
    pub(super) fn command(&mut self, command: DiskCommand) {
        match self {
            Self::Nothing => {}
            Self::Disk(disk) => disk.command(command),
            Self::Discard(reports) => reports.extend(discarded(command)),
        }
    }

    /// Hands over what was gathered.
    pub(super) fn flush(&mut self) {
        if let Self::Disk(disk) = self {
            disk.flush();
        }
    }

    pub(super) fn next_report(&mut self) -> Option<DiskReport> {
        match self {
            Self::Nothing => None,
            Self::Disk(disk) => disk.next_report(),
            Self::Discard(reports) => reports.pop_front(),
        }
    }

    /// Something that grows as long as what is here already is being read.
    pub(super) fn pieces_read(&self) -> u64 {
        match self {
            Self::Disk(disk) => disk.pieces_read(),
            Self::Nothing | Self::Discard(_) => 0,
        }
    }

    /// Waits for a report while more than so much waits in memory.
    pub(super) fn wait_while_over(&mut self, bytes: u64, timeout: Duration) -> Option<DiskReport> {
        match self {
            Self::Disk(disk) if disk.queued_bytes() > bytes => {
                disk.flush();
                disk.wait_report(timeout)
            }
            _ => None,
        }
    }

    /// Waits until all that it was given is done. An error, the place, if nothing comes of it for so long: then it isn't waited for.
    pub(super) fn end(self, patience: Duration) -> Result<(), String> {
        match self {
            Self::Disk(disk) => disk.end(patience),
            Self::Nothing | Self::Discard(_) => Ok(()),
        }
    }

    /// Whether more than so much waits in memory.
    pub(super) fn is_over(&self, bytes: u64) -> bool {
        matches!(self, Self::Disk(disk) if disk.queued_bytes() > bytes)
    }
}

/// What a disk without end would report.
fn discarded(command: DiskCommand) -> Option<DiskReport> {
    let done = Ok(());
    Some(match command {
        DiskCommand::Inspect { file, .. } => DiskReport::Inspected { file, found: Ok(super::transfer::Found::Nothing) },
        DiskCommand::CheckSpace { .. } => DiskReport::Space { free: None },
        DiskCommand::MakeDir { local } | DiskCommand::MakeLink { local, .. } | DiskCommand::FinishDir { local, .. } => {
            DiskReport::Entry { local, result: done }
        }
        DiskCommand::Touch { file, .. } | DiskCommand::Install { file, .. } => {
            DiskReport::Installed { file, result: done }
        }
        DiskCommand::Small(small) => {
            DiskReport::Small { file: small.file, credit: small.credit, result: Ok(SmallOutcome::Installed) }
        }
        DiskCommand::Write { content, part, .. } => part.written(content, Ok(Vec::new())),
        DiskCommand::Zeros { content, offset, length, credit, .. } => {
            DiskReport::Written { content, offset, length, credit, result: Ok(Vec::new()) }
        }
        DiskCommand::Begin(_)
        | DiskCommand::NoteDigest { .. }
        | DiskCommand::ForgetLeaves { .. }
        | DiskCommand::Abandon { .. }
        | DiskCommand::Leave { .. } => return None,
    })
}
