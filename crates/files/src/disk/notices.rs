//! Minor problems, which fail nothing: reported once, at the end, with a count.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Notices of a destination in the summary of a transfer.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// Modes that could not be set.
    pub(super) modes: Notice,
    /// Times that could not be set.
    pub(super) times: Notice,
    /// Partial files, states and locks of other users.
    pub(super) foreign_parts: Notice,
    /// Files of other users, replaced though they look right.
    pub(super) foreign_files: Notice,
    /// Links that an object store can't have.
    pub(crate) left_out_links: Notice,
}

/// Something that happened several times.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    count: AtomicU64,
    first: OnceLock<String>,
}

impl Notice {
    pub(crate) fn add(&self, what: impl FnOnce() -> String) {
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            let _ = self.first.set(what());
        }
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn line(&self, one: &str, several: &str) -> Option<String> {
        let first = self.first.get()?;
        match self.count() {
            1 => Some(format!("{one}: {first}")),
            count => Some(format!("{several}, {count} times; the first: {first}")),
        }
    }
}

impl Notices {
    /// Modes and times that could not be set.
    pub(crate) fn metadata_refused(&self) -> u64 {
        self.modes.count() + self.times.count()
    }

    /// A line for each kind of notice.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = [
            self.modes.line("the destination refused to set a mode", "the destination refused to set modes"),
            self.times.line("the destination refused to set a time", "the destination refused to set times"),
            self.foreign_parts.line(
                "what had the name of a partial file was not this user's alone, and not used",
                "what had the names of partial files was not this user's alone, and not used",
            ),
            self.foreign_files.line(
                "a file of another user was replaced, though size and time were right",
                "files of other users were replaced, though size and time were right",
            ),
            self.left_out_links.line(
                "a link was left out, since there are none in an object store (--follow-links copies what it leads to)",
                "links were left out, since there are none in an object store (--follow-links copies what they lead to)",
            ),
        ];
        lines.into_iter().flatten().collect()
    }
}
