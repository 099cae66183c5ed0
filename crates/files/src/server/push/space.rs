//! Content of the directory that takes pushes: how much of its limits is used, and incomplete files that nobody resumes.

use crate::digest::wall_clock;
use crate::path::{RelPath, is_reserved};
use crate::protocol::ErrorCode;
use crate::root::{Dir, FileKind, FileStat, Root, RootError};
use crate::server::Failure;
use std::time::{Duration, Instant};

/// Incomplete files that nothing was written to for so long are removed.
const KEPT_SECONDS: i64 = 24 * 60 * 60;
/// How often they are looked for.
const SURVEY_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Files are counted again before a refusal, but no more often than this, and a small part of the time.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Times as long as counting takes, between two counts.
const RECOUNT_REST: u32 = 10;
/// End of the names of incomplete files.
const PART_SUFFIX: &[u8] = b".part";
/// Entries that are looked at.
const ENTRIES_MAX: usize = 1 << 22;
/// Directories above an entry.
const DEPTH_MAX: usize = 1024;

/// The use of a directory's limits. Between two surveys what is added is counted, and what others remove isn't.
#[derive(Debug, Default)]
pub(super) struct Space {
    max_bytes: Option<u64>,
    max_files: Option<u64>,
    bytes: u64,
    files: u64,
    surveyed: Option<Instant>,
    /// How long the last survey took.
    took: Duration,
}

impl Space {
    pub(super) fn new(max_bytes: Option<u64>, max_files: Option<u64>) -> Space {
        Space { max_bytes, max_files, ..Space::default() }
    }

    /// When it is to be surveyed next.
    pub(super) fn due(&self) -> Instant {
        self.surveyed.map_or_else(Instant::now, |at| at + SURVEY_INTERVAL)
    }

    /// Whether it was surveyed.
    pub(super) fn is_known(&self) -> bool {
        self.surveyed.is_some()
    }

    /// An error if this many more bytes and files don't fit.
    pub(super) fn check(&mut self, root: &Root, bytes: u64, files: u64) -> Result<(), Failure> {
        let interval = RECOUNT_INTERVAL.max(self.took.saturating_mul(RECOUNT_REST));
        let is_recent = |at: Instant| at.elapsed() < interval;
        if self.excess(bytes, files).is_some() && !self.surveyed.is_some_and(is_recent) {
            self.survey(root, false);
        }
        match self.excess(bytes, files) {
            Some(message) => Err(Failure::new(ErrorCode::Full, message)),
            None => Ok(()),
        }
    }

    fn excess(&self, bytes: u64, files: u64) -> Option<String> {
        if let Some(max) = self.max_bytes
            && self.bytes.saturating_add(bytes) > max
        {
            let used = self.bytes;
            return Some(format!(
                "{bytes} bytes more don't fit: {used} of {max} are used; remove files there, or serve with a larger --push-max-bytes"
            ));
        }
        if let Some(max) = self.max_files
            && files > 0
            && self.files.saturating_add(files) > max
        {
            return Some(format!(
                "of {max} files and directories, there are {} already: remove some, or serve with a larger --push-max-files",
                self.files
            ));
        }
        None
    }

    /// Counts what comes.
    pub(super) fn add(&mut self, bytes: u64, files: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.files = self.files.saturating_add(files);
    }

    /// Counts no more what was added at this time, or a little before, and is gone again. A later survey hasn't counted it.
    pub(super) fn remove(&mut self, bytes: u64, files: u64, added: Instant) {
        if self.surveyed.is_some_and(|at| at > added) {
            return;
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        self.files = self.files.saturating_sub(files);
    }

    /// Counts what is there, and removes incomplete files that nobody has resumed for a day, if it may: not while one gets its time and name.
    pub(super) fn survey(&mut self, root: &Root, may_remove: bool) {
        let begun = Instant::now();
        self.count(root, may_remove);
        (self.surveyed, self.took) = (Some(Instant::now()), begun.elapsed());
    }

    fn count(&mut self, root: &Root, may_remove: bool) {
        (self.bytes, self.files) = (0, 0);
        let oldest = wall_clock().seconds - KEPT_SECONDS;
        let Ok(top) = root.open_dir(&RelPath::root()) else { return };
        // Each with the names that are still to be looked at. By descriptors, so that nothing that is renamed leads elsewhere.
        let mut dirs = vec![(names(&top), top)];
        for _ in 0..ENTRIES_MAX {
            let Some((left, dir)) = dirs.last_mut() else { return };
            let Some(name) = left.pop() else {
                dirs.pop();
                continue;
            };
            let Ok(stat) = dir.stat(&name) else { continue };
            if may_remove && is_left_over(&name, &stat, oldest) {
                match dir.remove_file(&name) {
                    Ok(()) => tracing::info!("removed an incomplete file that nobody resumed for a day"),
                    Err(RootError::NotFound) => {}
                    Err(error) => tracing::warn!(%error, "cannot remove an incomplete file that nobody resumed"),
                }
                continue;
            }
            // An incomplete file, too: otherwise there could be any number of them.
            self.files += u64::from(!is_reserved(&name) || name.ends_with(PART_SUFFIX));
            self.bytes += match stat.kind {
                FileKind::File if is_reserved(&name) => stat.allocated.min(stat.size),
                FileKind::File => stat.size,
                _ => 0,
            };
            if stat.kind == FileKind::Dir
                && dirs.len() < DEPTH_MAX
                && let Ok(below) = dirs.last().map_or(Err(RootError::NotFound), |(_, dir)| dir.open_dir(&name))
            {
                dirs.push((names(&below), below));
            }
        }
    }
}

fn names(dir: &Dir) -> Vec<Box<[u8]>> {
    dir.entries(ENTRIES_MAX).unwrap_or_default().into_iter().map(|entry| entry.name).collect()
}

/// Whether it is an incomplete file, or its state, that nothing was written to for long.
fn is_left_over(name: &[u8], stat: &FileStat, oldest: i64) -> bool {
    let is_partial = is_reserved(name) && (name.ends_with(PART_SUFFIX) || name.ends_with(b".state"));
    is_partial && stat.kind == FileKind::File && stat.modified.seconds < oldest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Links;

    #[test]
    fn incomplete_files_count_and_their_states_only_by_bytes() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", ".tow-0123456789abcdef.part", ".tow-0123456789abcdef.state"] {
            std::fs::write(folder.path().join(name), b"12345").unwrap();
        }
        let root = Root::directory(folder.path(), Links::Never).unwrap();
        for (max_bytes, max_files, bytes, files, fits) in
            [(15, 2, 0, 0, true), (15, 2, 0, 1, false), (15, 3, 0, 1, true), (15, 3, 1, 0, false), (16, 3, 1, 1, true)]
        {
            let mut space = Space::new(Some(max_bytes), Some(max_files));
            space.survey(&root, true);
            assert_eq!(space.check(&root, bytes, files).is_ok(), fits, "{max_bytes} {max_files} {bytes} {files}");
        }
    }
}
