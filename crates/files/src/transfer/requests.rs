//! Requests that the server hasn't finished: what was asked for, and how far the server is with it.
//!
//! Invariant: an id is given out once, and is that of one fetch, of one request for leaves, or of the listing.

use crate::error::Error;
use std::collections::HashMap;

use super::command::FileKey;
use super::keys::Counted;
use crate::protocol::control::{Range, Reply};

/// The open requests of a connection, but for the listing.
#[derive(Debug)]
pub(super) struct Requests {
    next_id: u32,
    fetches: HashMap<u32, Fetch, Counted>,
    /// Files whose leaves were asked for.
    leaves: HashMap<u32, FileKey, Counted>,
    /// The fetch of the data message that is arriving.
    data_id: u32,
}

/// An open fetch.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) files: Vec<RequestedFile>,
}

/// A file's part of a fetch.
#[derive(Debug)]
pub(super) struct RequestedFile {
    pub(super) file: FileKey,
    pub(super) state: RequestState,
    /// The ranges; of a whole file, known when its size is.
    pub(super) ranges: Option<Vec<Range>>,
    /// The range that the next piece is in, and where in the file it begins.
    at: usize,
    cursor: u64,
    /// The file isn't what the ranges were chosen for: they are of no use.
    pub(super) useless: bool,
    /// The server has sent the digest in this fetch.
    pub(super) digest_sent: bool,
}

/// The server's progress with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    /// Its metadata is to come.
    Awaited,
    /// Its data is to come.
    Coming,
    /// Nothing more follows.
    Over,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self { next_id: 1, fetches: HashMap::default(), leaves: HashMap::default(), data_id: 0 }
    }

    pub(super) fn next_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        id
    }

    pub(super) fn open_fetch(&mut self, id: u32, files: Vec<RequestedFile>) {
        self.fetches.insert(id, Fetch { files });
    }

    /// Opens a request for leaves.
    pub(super) fn open_leaves(&mut self, file: FileKey) -> u32 {
        let id = self.next_id();
        self.leaves.insert(id, file);
        id
    }

    pub(super) fn close_fetch(&mut self, id: u32) -> Option<Fetch> {
        self.fetches.remove(&id)
    }

    pub(super) fn close_leaves(&mut self, id: u32) -> Option<FileKey> {
        self.leaves.remove(&id)
    }

    /// The connection is lost: nothing is open any more.
    pub(super) fn lost(&mut self) {
        self.fetches.clear();
        self.leaves.clear();
    }

    pub(super) fn fetch(&self, id: u32) -> Option<&Fetch> {
        self.fetches.get(&id)
    }

    pub(super) fn fetches(&self) -> impl Iterator<Item = (u32, &Fetch)> {
        self.fetches.iter().map(|(id, fetch)| (*id, fetch))
    }

    pub(super) fn fetch_count(&self) -> usize {
        self.fetches.len()
    }

    /// Files whose leaves were asked for.
    pub(super) fn leaves(&self) -> impl Iterator<Item = FileKey> {
        self.leaves.values().copied()
    }

    /// File number `n` of a fetch.
    pub(super) fn asked(&mut self, id: u32, n: u32) -> Result<&mut RequestedFile, Error> {
        let fetch = self.fetches.get_mut(&id);
        let asked = fetch.and_then(|fetch| fetch.files.get_mut(usize::try_from(n).ok()?));
        asked.ok_or_else(|| Error::Protocol("a message about a file that wasn't requested".to_owned()))
    }

    /// Whether this is a digest that has come before.
    pub(super) fn is_known(&mut self, reply: &Reply) -> bool {
        let Reply::Digest(digest) = reply else { return false };
        self.asked(digest.id, digest.n).is_ok_and(|asked| asked.digest_sent)
    }

    /// Closes a file of a fetch: nothing more comes for it there.
    pub(super) fn close_file(&mut self, id: u32, n: u32) -> Result<FileKey, Error> {
        let asked = self.asked(id, n)?;
        if asked.state == RequestState::Over {
            return Error::protocol("a message about a file that has ended");
        }
        asked.state = RequestState::Over;
        Ok(asked.file)
    }

    /// A data message begins.
    pub(super) fn begin_data(&mut self, id: u32) -> Result<(), Error> {
        if !self.fetches.contains_key(&id) {
            return Error::protocol("data of a request that isn't open");
        }
        self.data_id = id;
        Ok(())
    }

    /// The fetch of the data message that is arriving.
    pub(super) fn data_id(&self) -> u32 {
        self.data_id
    }
}

impl RequestedFile {
    pub(super) fn new(file: FileKey, ranges: Option<Vec<Range>>) -> Self {
        Self { file, state: RequestState::Awaited, ranges, at: 0, cursor: 0, useless: false, digest_sent: false }
    }

    /// Its metadata came: now it is known which pieces are to come.
    pub(super) fn begin(&mut self, size: u64) {
        let whole = [Range { offset: 0, length: size }];
        let ranges = self.ranges.as_deref().unwrap_or(&whole);
        let cut =
            |range: &Range| Range { offset: range.offset, length: range.end().min(size).saturating_sub(range.offset) };
        let ranges: Vec<Range> = ranges.iter().map(cut).filter(|range| range.length > 0).collect();
        self.cursor = ranges.first().map_or(0, |range| range.offset);
        self.ranges = Some(ranges);
        self.state = RequestState::Coming;
    }

    /// Whether a piece is exactly what comes next.
    pub(super) fn accept(&mut self, offset: u64, length: u64) -> bool {
        if self.state != RequestState::Coming {
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
    pub(super) fn is_complete(&self) -> bool {
        self.state == RequestState::Coming && self.ranges.as_ref().is_some_and(|ranges| self.at == ranges.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_accepted_in_the_order_of_the_ranges_that_were_asked_for() {
        let mut asked = RequestedFile::new(FileKey(1), Some(vec![(0, 10).into(), (20, 10).into(), (40, 10).into()]));
        assert!(!asked.accept(0, 5), "before the metadata");
        // The file is shorter than when the ranges were chosen.
        asked.begin(25);
        for (offset, length) in [(1, 5), (0, 11), (20, 5)] {
            assert!(!asked.accept(offset, length), "{offset}, {length}");
        }
        assert!(asked.accept(0, 4) && asked.accept(4, 6) && !asked.is_complete());
        assert!(asked.accept(20, 5) && asked.is_complete() && !asked.accept(25, 1));
    }

    #[test]
    fn closed_and_lost_requests_take_nothing_more() {
        let mut requests = Requests::new();
        let (id, other) = (requests.next_id(), requests.open_leaves(FileKey(2)));
        assert_ne!(id, other);
        requests.open_fetch(id, vec![RequestedFile::new(FileKey(1), None)]);
        assert_eq!(requests.close_file(id, 0), Ok(FileKey(1)));
        assert!(requests.close_file(id, 0).is_err() && requests.asked(id, 1).is_err() && requests.asked(9, 0).is_err());
        assert!(requests.begin_data(id).is_ok() && requests.begin_data(other).is_err());
        requests.lost();
        assert!(requests.begin_data(id).is_err() && requests.close_fetch(id).is_none());
        assert_eq!((requests.close_leaves(other), requests.fetch_count()), (None, 0));
        assert!(requests.next_id() > other, "an id is never given out twice");
    }
}
