//! The server's pages of changes, checked.

use super::Excludes;
use crate::error::Error;
use crate::path::{Escaped, RelPath};
use crate::protocol::control::{
    Change, ChangeContent, ChangesReply, EntryKind, FollowRequest, FollowState, FollowingReply, ListEntry, ListTarget,
    Request, Unread,
};
use crate::protocol::follow::{Cursor, FollowFrom};
use crate::root::Timestamp;
use crate::transfer::Source;
use crate::transfer::names;
use std::collections::HashSet;

/// Id of the follow: those of fetches are counted from 1.
pub(crate) const FOLLOW_ID: u32 = u32::MAX;
/// Mode bits that the follower needs to go on writing into a directory.
const OWNER_MODE: u32 = 0o700;

/// The warning that nothing is followed although something is there.
pub const ALL_EXCLUDED: &str = "all that is there is left out by --exclude";

/// Position of the follow.
#[derive(Debug)]
pub(super) struct Pages {
    source: Source,
    exclude: Excludes,
    /// The cursor of what is in place or has failed, and is tried again.
    at: Option<Cursor>,
    is_begun: bool,
    /// Pages that were asked for and haven't come.
    awaited: u32,
    /// The follow was cancelled, and nothing counts until the server has answered that.
    is_cancelled: bool,
    /// The number of the last change.
    last: u64,
    /// The last page had everything.
    pub(super) is_live: bool,
    /// The destination's paths of a full state, until it is complete.
    pub(super) seen: Option<HashSet<RelPath>>,
    /// Whether something in it was left out.
    has_excluded: bool,
}

/// A change with its paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) remote: RelPath,
    pub(super) local: RelPath,
    pub(super) change: Change,
}

/// A page, checked.
#[derive(Debug)]
pub(super) struct CheckedPage {
    pub(super) cursor: Cursor,
    pub(super) live: bool,
    pub(super) changes: Vec<Placed>,
    /// Warnings about paths that can't be followed.
    pub(super) warnings: Vec<String>,
    /// With `live`: what the server can't read of it, and how much more of all that it serves.
    pub(super) unread: Vec<(RelPath, bool)>,
    pub(super) unread_more: u64,
}

impl Pages {
    pub(super) fn new(source: Source, exclude: Excludes, at: Option<Cursor>) -> Pages {
        Pages {
            source,
            exclude,
            at,
            is_begun: false,
            awaited: 0,
            is_cancelled: false,
            last: 0,
            is_live: false,
            seen: None,
            has_excluded: false,
        }
    }

    /// The connection is lost, and the follow with it.
    pub(super) fn lost(&mut self) {
        (self.is_begun, self.awaited, self.is_cancelled) = (false, 0, false);
    }

    /// The full state is needed, and the follow is cancelled if there is one.
    pub(super) fn begin_anew(&mut self, is_cancelled: bool) {
        self.lost();
        (self.at, self.is_live, self.is_cancelled) = (None, false, is_cancelled);
    }

    /// The server has answered that the follow is cancelled.
    pub(super) fn cancelled(&mut self) {
        self.is_cancelled = false;
    }

    /// Whether what comes is of the follow that was cancelled.
    pub(super) fn is_stale(&self) -> bool {
        self.is_cancelled
    }

    /// The request to send if this many pages can be taken.
    pub(super) fn next_request(&mut self, pages: u32) -> Option<Request> {
        if self.awaited >= pages {
            return None;
        }
        self.awaited += 1;
        if std::mem::replace(&mut self.is_begun, true) {
            return Some(Request::More { id: FOLLOW_ID });
        }
        let target = match &self.source {
            Source::Path(path) => ListTarget::Path(path.into()),
            Source::Glob(glob) => ListTarget::Glob { glob: glob.clone() },
        };
        // A full state that was interrupted begins again: its pages before the interruption aren't known.
        let from = self.at.filter(|_| self.seen.is_none()).map_or(FollowFrom::Beginning, FollowFrom::Cursor);
        Some(Request::Follow(FollowRequest { id: FOLLOW_ID, target, from }))
    }

    /// The follow begins: whether with the full state.
    pub(super) fn following(&mut self, following: &FollowingReply) -> Result<bool, Error> {
        if !self.is_begun || self.awaited == 0 {
            return Error::protocol("a follow that wasn't asked for begins");
        }
        let is_full = following.state == FollowState::Full;
        if !is_full && self.at.is_none_or(|at| at != following.cursor) {
            return Error::protocol("changes since another time than was asked for");
        }
        self.last = following.cursor.seq;
        self.at = Some(following.cursor);
        self.is_live = false;
        self.seen = is_full.then(HashSet::new);
        self.has_excluded = false;
        Ok(is_full)
    }

    /// Takes a page.
    pub(super) fn page(&mut self, page: ChangesReply) -> Result<CheckedPage, Error> {
        let at = self.at.filter(|at| self.is_begun && at.epoch == page.cursor.epoch);
        if at.is_none() || self.awaited == 0 {
            return Error::protocol("a page of changes that wasn't asked for");
        }
        self.awaited -= 1;
        if page.changes.is_empty() && !page.live {
            return Error::protocol("an empty page of changes");
        }
        let (mut changes, mut warnings) = (Vec::with_capacity(page.changes.len()), Vec::new());
        for change in page.changes {
            if change.seq <= self.last || change.seq > page.cursor.seq {
                return Error::protocol("changes out of order");
            }
            self.last = change.seq;
            let shown = Escaped(change.path.as_bytes()).to_string();
            let remote = change.path.to_rel_path().map_err(|error| error.to_string());
            match remote.and_then(|remote| Ok((self.local(&remote, &change.content)?, remote))) {
                // The followed directory itself.
                Ok((None, _)) => {}
                Ok((Some(local), _))
                    if self.exclude.has(&local, matches!(change.content, ChangeContent::Dir { .. })) =>
                {
                    self.has_excluded |= change.content != ChangeContent::Gone;
                }
                Ok((Some(local), remote)) => changes.push(Placed { remote, local, change }),
                Err(reason) => warnings.push(format!("{shown}: refused: {reason}")),
            }
        }
        if page.cursor.seq < self.last {
            return Error::protocol("a cursor that goes back");
        }
        self.last = page.cursor.seq;
        self.is_live = page.live;
        self.at = Some(page.cursor);
        if let Some(seen) = &mut self.seen {
            let there = changes.iter().filter(|placed| placed.change.content != ChangeContent::Gone);
            seen.extend(there.map(|placed| placed.local.clone()));
            let gone = changes.iter().filter(|placed| placed.change.content == ChangeContent::Gone);
            gone.for_each(|placed| _ = seen.remove(&placed.local));
            if page.live && self.has_excluded && seen.is_empty() {
                warnings.push(ALL_EXCLUDED.to_owned());
            }
        }
        let wanted = |unread: &Unread| {
            let remote = unread.path.to_rel_path().ok()?;
            let local = remote.below(&self.base())?;
            let is_left_out = !local.is_root() && self.exclude.has(&local, unread.dir);
            (!is_left_out).then_some((remote, unread.dir))
        };
        let unread = page.unread.iter().filter_map(wanted).collect();
        let ChangesReply { cursor, live, unread_more, .. } = page;
        Ok(CheckedPage { cursor, live, changes, warnings, unread, unread_more })
    }

    fn base(&self) -> RelPath {
        match &self.source {
            Source::Path(path) => path.clone(),
            Source::Glob(glob) => names::glob_base(glob),
        }
    }

    /// Path of an entry in the destination; `None` for the followed directory.
    fn local(&self, remote: &RelPath, content: &ChangeContent) -> Result<Option<RelPath>, String> {
        let local = remote.below(&self.base()).ok_or("it is not below what is followed")?;
        if local.names().any(names::is_reserved) {
            return Err("it has the name of a file that transfers use".to_owned());
        }
        Ok(match content {
            _ if !local.is_root() => Some(local),
            ChangeContent::Dir { .. } => None,
            // A file that is followed has its own name.
            _ => names::own_name(remote),
        })
    }
}

impl CheckedPage {
    /// Adds the page after it.
    pub(super) fn merge(&mut self, next: CheckedPage) {
        let again: HashSet<_> = next.changes.iter().map(|placed| &placed.remote).collect();
        self.changes.retain(|placed| !again.contains(&placed.remote));
        self.changes.extend(next.changes);
        self.warnings.extend(next.warnings);
        (self.cursor, self.live) = (next.cursor, next.live);
        (self.unread, self.unread_more) = (next.unread, next.unread_more);
    }
}

impl Placed {
    /// The entry that a transfer puts in place; `None` for a deletion.
    pub(super) fn entry(&self, now: Timestamp) -> Option<ListEntry> {
        let entry = |kind, size, mtime, mode, target, digest| ListEntry {
            path: (&self.remote).into(),
            kind,
            size,
            mtime,
            mode,
            allocated: None,
            hard_link: None,
            target,
            digest,
            message: None,
        };
        match &self.change.content {
            &ChangeContent::File { size, mtime, mode, digest } => {
                Some(entry(EntryKind::File, size, mtime, mode, None, Some(digest)))
            }
            ChangeContent::Dir { mode } => Some(entry(EntryKind::Dir, 0, now, mode | OWNER_MODE, None, None)),
            ChangeContent::Link { target, mtime } => {
                Some(entry(EntryKind::Link, 0, *mtime, 0o777, Some(target.clone()), None))
            }
            ChangeContent::Gone => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::follow::Epoch;

    const EPOCH: Epoch = Epoch([5; 16]);

    fn cursor(seq: u64) -> Cursor {
        Cursor { epoch: EPOCH, seq }
    }

    fn gone(seq: u64, path: &[u8]) -> Change {
        Change { seq, path: path.to_vec().into(), content: ChangeContent::Gone }
    }

    fn dir(seq: u64, path: &[u8]) -> Change {
        Change { seq, path: path.to_vec().into(), content: ChangeContent::Dir { mode: 0 } }
    }

    fn page(seq: u64, live: bool, changes: Vec<Change>) -> ChangesReply {
        ChangesReply {
            id: FOLLOW_ID,
            cursor: cursor(seq),
            head: seq,
            live,
            changes,
            unread: Vec::new(),
            unread_more: 0,
        }
    }

    /// A follow that has begun with the full state.
    fn begun(source: &str) -> Pages {
        let mut pages = Pages::new(Source::Path(source.parse().unwrap()), Excludes::default(), None);
        assert!(matches!(pages.next_request(1), Some(Request::Follow(follow)) if follow.from == FollowFrom::Beginning));
        assert!(pages.next_request(1).is_none(), "one at a time");
        let following =
            FollowingReply { id: FOLLOW_ID, state: FollowState::Full, cursor: cursor(0), head: 9, server: None };
        assert_eq!(pages.following(&following), Ok(true));
        pages
    }

    #[test]
    fn what_breaks_the_order_ends_the_follow() {
        for (name, wrong) in [
            ("twice the same number", page(9, true, vec![dir(3, b"m/a"), dir(3, b"m/b")])),
            ("backwards", page(9, true, vec![dir(4, b"m/a"), dir(3, b"m/b")])),
            ("beyond the cursor", page(2, true, vec![dir(3, b"m/a")])),
            ("an empty page", page(9, false, vec![])),
            (
                "another epoch",
                ChangesReply { cursor: Cursor { epoch: Epoch([6; 16]), seq: 9 }, ..page(9, true, vec![]) },
            ),
        ] {
            assert!(begun("m").page(wrong).is_err(), "{name}");
        }
        let mut pages = begun("m");
        pages.page(page(5, false, vec![dir(5, b"m/a")])).unwrap();
        assert!(pages.page(page(9, true, vec![])).is_err(), "it wasn't asked for");
        let mut pages = begun("m");
        pages.page(page(5, false, vec![dir(5, b"m/a")])).unwrap();
        assert!(matches!(pages.next_request(1), Some(Request::More { .. })));
        assert!(pages.page(page(6, true, vec![dir(5, b"m/b")])).is_err(), "older than the page before");
        // Changes since another time than was asked for would be a gap.
        let mut pages = Pages::new(Source::Path("m".parse().unwrap()), Excludes::default(), Some(cursor(7)));
        pages.next_request(1).unwrap();
        let following =
            FollowingReply { id: FOLLOW_ID, state: FollowState::Changes, cursor: cursor(8), head: 9, server: None };
        assert!(pages.following(&following).is_err());
    }

    #[test]
    fn paths_that_lead_elsewhere_are_left_out() {
        let mut pages = begun("m");
        let paths: [&[u8]; 8] = [
            b"m/../x",
            b"/etc/passwd",
            b"m/a\0b",
            b"n/a",
            b"ma",
            b"",
            b"m/.tow-0123456789abcdef.part",
            b"m/.tow-0123456789abcdef.follow/x",
        ];
        let changes = (1..).zip(paths).map(|(seq, path)| dir(seq, path)).chain([dir(9, b"m/good"), gone(10, b"m/bad")]);
        let checked = pages.page(page(10, true, changes.collect())).unwrap();
        let local: Vec<_> = checked.changes.iter().map(|placed| placed.local.to_string()).collect();
        assert_eq!((local, checked.warnings.len()), (vec!["good".to_owned(), "bad".to_owned()], paths.len()));
        let seen = pages.seen.unwrap();
        assert!(seen.len() == 1 && seen.contains(&"good".parse().unwrap()), "what is gone isn't there");
    }

    #[test]
    fn an_interrupted_full_state_begins_anew_and_changes_go_on() {
        let mut pages = begun("m");
        pages.page(page(5, false, vec![dir(5, b"m/a")])).unwrap();
        assert!(!pages.is_live);
        pages.lost();
        assert!(matches!(pages.next_request(1), Some(Request::Follow(follow)) if follow.from == FollowFrom::Beginning));
        let following =
            FollowingReply { id: FOLLOW_ID, state: FollowState::Full, cursor: cursor(0), head: 9, server: None };
        pages.following(&following).unwrap();
        pages.page(page(9, true, vec![dir(5, b"m/a")])).unwrap();
        assert!(pages.is_live);
        pages.seen = None;
        pages.lost();
        assert!(
            matches!(pages.next_request(1), Some(Request::Follow(follow)) if follow.from == FollowFrom::Cursor(cursor(9)))
        );
    }

    #[test]
    fn pages_that_come_together_are_one() {
        let mut pages = begun("m");
        assert!(matches!(pages.next_request(3), Some(Request::More { .. })));
        assert!(matches!(pages.next_request(3), Some(Request::More { .. })) && pages.next_request(3).is_none());
        let mut first = pages.page(page(3, false, vec![dir(1, b"m/a"), dir(2, b"m/b"), gone(3, b"m/c")])).unwrap();
        first.merge(pages.page(page(6, false, vec![gone(4, b"m/b"), dir(5, b"m/c"), dir(6, b"m/d")])).unwrap());
        assert!(!first.live && pages.next_request(1).is_none(), "one is awaited");
        first.merge(pages.page(page(9, true, vec![])).unwrap());
        let seqs: Vec<_> = first.changes.iter().map(|placed| placed.change.seq).collect();
        assert_eq!((seqs, first.live, first.cursor), (vec![1, 4, 5, 6], true, cursor(9)));
    }
}
