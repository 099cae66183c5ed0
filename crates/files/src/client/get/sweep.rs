//! Deletes what isn't in the source, or says what would be deleted.

use std::time::Instant;

use super::super::output::Sink;
use super::super::plan::{Planned, PlannedChange, PlannedKind};
use super::super::sweep::{Candidate, Doomed, delete, find, is_too_much};
use super::Error;
use super::driver::Driver;
use crate::root::{FileKind, Root, RootError};

impl Driver<'_> {
    /// Deletes what is in the destination and not in the source, unless that is too much.
    pub(super) fn sweep(&mut self) -> Result<(), Error> {
        let Some(doomed) = self.doomed() else {
            self.transfer.swept(Vec::new(), Instant::now());
            return Ok(());
        };
        // The caller cancels the transfer.
        if self.cancel.is_cancelled() {
            return Ok(());
        }
        let cannot = |error| Error::unmet(format!("cannot look for what is to be deleted: {error}"));
        let doomed = doomed.map_err(cannot)?;
        let count = doomed.paths.len() as u64;
        let is_held = is_too_much(count, doomed.found, self.max_delete);
        if is_held {
            self.held = count;
        }
        let mut failures = Vec::new();
        for (local, is_dir) in doomed.paths.into_iter().filter(|_| !is_held) {
            if self.cancel.is_cancelled() {
                return Ok(());
            }
            self.progress.report(&self.transfer, Instant::now());
            match &mut self.sink {
                Sink::Plan(plan) => {
                    let kind = if is_dir { PlannedKind::Dir } else { PlannedKind::File(None) };
                    plan.report(&Planned { local, change: PlannedChange::Deleted, kind })?;
                    self.deleted += 1;
                }
                Sink::Disk(disk) => match delete(disk.root(), &local, is_dir) {
                    Ok(is_deleted) => self.deleted += u64::from(is_deleted),
                    Err(error) => failures.push((local, format!("cannot delete it: {error}"))),
                },
                _ => {}
            }
        }
        self.transfer.swept(failures, Instant::now());
        Ok(())
    }

    /// The paths to delete; `None` if there is no directory to look at.
    fn doomed(&mut self) -> Option<Result<Doomed, RootError>> {
        let Self { sink, transfer, filter, progress, cancel, .. } = self;
        let (sink, transfer) = (&*sink, &*transfer);
        let root: &Root = match sink {
            Sink::Disk(disk) => disk.root(),
            Sink::Plan(plan) => plan.root()?,
            _ => return None,
        };
        let is_wanted = |Candidate { local, stat }: Candidate<'_>| {
            // What has two names here, since the file system takes them for one, is kept.
            let is_one = stat.links == 1 || stat.kind == FileKind::Dir;
            transfer.is_listed(local) || matches!(sink, Sink::Disk(disk) if is_one && disk.is_of_another(stat, local))
        };
        let mut step = || {
            progress.report(transfer, Instant::now());
            // Any error: the transfer is over.
            if cancel.is_cancelled() { Err(RootError::NotFound) } else { Ok(()) }
        };
        Some(find(root, filter, &is_wanted, &mut step))
    }
}
