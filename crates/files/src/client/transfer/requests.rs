//! What was asked for, and how far the server is with it.

use super::command::FileKey;
use crate::protocol::control::Range;

/// A fetch under way.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) files: Vec<Asked>,
}

/// What was asked for of one file.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) file: FileKey,
    pub(super) state: AskedState,
    /// The ranges; of a whole file, known when its size is.
    pub(super) ranges: Option<Vec<Range>>,
    /// The range that the next piece is in, and where in the file it begins.
    pub(super) at: usize,
    pub(super) cursor: u64,
    /// The file is not what the ranges were chosen for: they are of no use.
    pub(super) useless: bool,
    /// The server has told its digest in this fetch.
    pub(super) digest_told: bool,
}

/// How far the server is with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskedState {
    /// Its metadata is to come.
    Awaited,
    /// Its data is to come.
    Coming,
    /// Nothing more comes.
    Over,
}

impl Asked {
    /// Its metadata came: now it is known which pieces are to come.
    pub(super) fn begin(&mut self, size: u64) {
        let whole = [Range { offset: 0, length: size }];
        let ranges = self.ranges.as_deref().unwrap_or(&whole);
        let cut =
            |range: &Range| Range { offset: range.offset, length: range.end().min(size).saturating_sub(range.offset) };
        let ranges: Vec<Range> = ranges.iter().map(cut).filter(|range| range.length > 0).collect();
        self.cursor = ranges.first().map_or(0, |range| range.offset);
        self.ranges = Some(ranges);
        self.state = AskedState::Coming;
    }

    /// Whether a piece is exactly what comes next.
    pub(super) fn accept(&mut self, offset: u64, length: u64) -> bool {
        if self.state != AskedState::Coming {
            return false;
        }
        if length == 0 {
            return true;
        }
        let Some(range) = self.ranges.as_deref().and_then(|ranges| ranges.get(self.at)) else { return false };
        if offset != self.cursor || length > range.end() - offset {
            return false;
        }
        self.cursor += length;
        if self.cursor == range.end() {
            self.at += 1;
            self.cursor = self.ranges.as_deref().and_then(|ranges| ranges.get(self.at)).map_or(0, |next| next.offset);
        }
        true
    }

    /// Whether all that was asked for has come.
    pub(super) fn is_whole(&self) -> bool {
        self.state == AskedState::Coming && self.ranges.as_ref().is_some_and(|ranges| self.at == ranges.len())
    }
}
