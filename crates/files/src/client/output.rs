//! Destinations of content: a directory, an object store, an output, or none.

use std::io;
use std::time::Duration;

use super::objects::Objects;
use super::ordered_writer::OrderedWriter;
use super::plan::Plan;
use crate::disk::Disk;
use crate::error::Error;
use crate::transfer::{DiskCommand, DiskReport, Found, SmallOutcome};

/// Bytes that may be queued for the disk; beyond it the connection isn't read. Compressed bodies count as they are in
/// the file, so that a server can't fill the memory with zeros.
pub(super) const DISK_QUEUE_BYTES_MAX: u64 = 64 << 20;

/// Executor of disk commands.
pub(super) enum Sink {
    /// A directory that isn't known yet.
    Unopened,
    /// A directory. Its workers report later.
    Disk(Box<Disk>),
    /// An object store. Its threads report later.
    Objects(Box<Objects>),
    /// An output that a single file is written to.
    Writer(Box<OrderedWriter>),
    /// A directory that is only looked at.
    Plan(Box<Plan>),
    /// Everything is dropped, to measure what the wire alone can do.
    Discard,
}

impl Sink {
    /// Carries out a command. Sinks without threads of their own return its report.
    ///
    /// # Errors
    /// The output failed.
    pub(super) fn command(&mut self, command: DiskCommand) -> io::Result<Option<DiskReport>> {
        match self {
            Self::Unopened => Ok(None),
            Self::Disk(disk) => {
                disk.command(command);
                Ok(None)
            }
            Self::Objects(objects) => {
                objects.command(command);
                Ok(None)
            }
            Self::Writer(writer) => writer.command(command),
            Self::Plan(plan) => plan.command(command),
            Self::Discard => Ok(answer_without_effect(command)),
        }
    }

    /// Forgets what was installed: from now on others may rename and remove it.
    pub(super) fn forget_installed(&self) {
        if let Self::Disk(disk) = self {
            disk.forget_installed();
        }
    }

    /// Hands over what was gathered.
    pub(super) fn flush(&mut self) {
        if let Self::Disk(disk) = self {
            disk.flush();
        }
    }

    /// The next report of the disk's workers.
    pub(super) fn next_report(&mut self) -> Option<DiskReport> {
        match self {
            Self::Disk(disk) => disk.next_report(),
            Self::Objects(objects) => objects.next_report(),
            Self::Unopened | Self::Writer(_) | Self::Plan(_) | Self::Discard => None,
        }
    }

    /// Pieces of existing files that were read, or requests of an object store: grows while those work without reporting.
    pub(super) fn pieces_read(&self) -> u64 {
        match self {
            Self::Disk(disk) => disk.pieces_read(),
            Self::Objects(objects) => objects.alive(),
            Self::Unopened | Self::Writer(_) | Self::Plan(_) | Self::Discard => 0,
        }
    }

    /// Waits for a report while more than `bytes` are queued in memory.
    pub(super) fn wait_while_over(&mut self, bytes: u64, timeout: Duration) -> Option<DiskReport> {
        match self {
            Self::Disk(disk) if disk.queued_bytes() > bytes => {
                disk.flush();
                disk.wait_report(timeout)
            }
            Self::Objects(objects) if objects.is_over() => objects.wait_report(timeout),
            _ => None,
        }
    }

    /// Why nothing more can be put there, if that is so.
    pub(super) fn failure(&self) -> Option<Error> {
        match self {
            Self::Objects(objects) => objects.failure(),
            _ => None,
        }
    }

    /// Waits until all commands are carried out.
    ///
    /// # Errors
    /// The disk did nothing for `timeout`: its place, for people. Its threads are left to themselves.
    pub(super) fn end(self, timeout: Duration) -> Result<(), String> {
        match self {
            Self::Disk(disk) => disk.end(timeout),
            // Whatever the time: nothing but this removes parts that were put.
            Self::Objects(objects) => objects.end(),
            Self::Unopened | Self::Writer(_) | Self::Plan(_) | Self::Discard => Ok(()),
        }
    }

    /// Whether more than `bytes` are queued in memory.
    pub(super) fn is_over(&self, bytes: u64) -> bool {
        match self {
            Self::Disk(disk) => disk.queued_bytes() > bytes,
            Self::Objects(objects) => objects.is_over(),
            _ => false,
        }
    }
}

/// The report of a command that succeeds and does nothing.
pub(super) fn answer_without_effect(command: DiskCommand) -> Option<DiskReport> {
    let done = Ok(());
    Some(match command {
        DiskCommand::Inspect { file, .. } => DiskReport::Inspected { file, found: Ok(Found::Nothing) },
        DiskCommand::CheckSpace { .. } => DiskReport::Space { free: None },
        DiskCommand::MakeDir { local } | DiskCommand::MakeLink { local, .. } | DiskCommand::FinishDir { local, .. } => {
            DiskReport::Entry { local, result: done }
        }
        DiskCommand::Touch { file, .. } | DiskCommand::Install { file, .. } | DiskCommand::HardLink { file, .. } => {
            DiskReport::Installed { file, result: done }
        }
        DiskCommand::Small(small) => {
            DiskReport::Small { file: small.file, credit: small.credit, result: Ok(SmallOutcome::Installed) }
        }
        DiskCommand::Write { content, part, .. } => part.written(content, Ok(Vec::new())),
        DiskCommand::Reuse { content, .. } => DiskReport::Reused { content, result: Ok(Vec::new()) },
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
