//! The pages of a version, from its manifest: the follower takes them as if the server had sent them.

use super::follower::size_of;
use super::pages::FOLLOW_ID;
use super::place::Place;
use super::record::{Known, Record};
use crate::digest::Digest;
use crate::filter::Excludes;
use crate::limits::CHANGES_PAGE_ENTRIES_MAX;
use crate::path::RelPath;
use crate::protocol::control::{Change, ChangesReply, FetchesFor, FollowState, FollowingReply, Reply, Request};
use crate::protocol::follow::{Cursor, Epoch};
use crate::transfer::Source;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A version that is to be put in place.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    digest: Digest,
    /// With paths as on the server.
    entries: Arc<[Change]>,
    /// The version before, and what was followed to get it.
    pub(super) seed: Option<(PathBuf, Source)>,
    /// The follower, which reports on another connection.
    pub(super) fetches_for: FetchesFor,
    given: usize,
    replies: VecDeque<Reply>,
}

impl Frozen {
    pub(super) fn new(
        digest: Digest,
        entries: Vec<Change>,
        seed: Option<(PathBuf, Source)>,
        fetches_for: FetchesFor,
    ) -> Frozen {
        Frozen { digest, entries: entries.into(), seed, fetches_for, given: 0, replies: VecDeque::new() }
    }

    fn cursor(&self, seq: u64) -> Cursor {
        let mut epoch = Epoch([0; 16]);
        epoch.0.iter_mut().zip(self.digest.0).for_each(|(to, from)| *to = from);
        Cursor { epoch, seq }
    }

    /// Takes a request of the follow.
    pub(super) fn ask(&mut self, request: &Request) {
        let head = self.entries.len() as u64;
        if matches!(request, Request::Follow(_)) {
            self.given = 0;
            self.replies.clear();
            let cursor = self.cursor(0);
            let begins = FollowingReply { id: FOLLOW_ID, state: FollowState::Full, cursor, head, server: None };
            self.replies.push_back(Reply::Following(begins));
        } else if self.given == self.entries.len() {
            // There is nothing more, ever.
            return;
        }
        let end = self.entries.len().min(self.given + CHANGES_PAGE_ENTRIES_MAX);
        let changes = self.entries.get(self.given..end).unwrap_or_default().to_vec();
        self.given = end;
        let (cursor, live) = (self.cursor(end as u64), end == self.entries.len());
        self.replies.push_back(Reply::Changes(ChangesReply {
            id: FOLLOW_ID,
            cursor,
            head,
            live,
            changes,
            unread: Vec::new(),
            unread_more: 0,
        }));
    }

    /// Files of pages that weren't asked for yet, and their bytes.
    pub(super) fn later(&self) -> (u64, u64) {
        let later = self.entries.get(self.given..).unwrap_or_default().iter().map(size_of);
        later.fold((0, 0), |sum, one| (sum.0 + one.0, u64::saturating_add(sum.1, one.1)))
    }

    pub(super) fn next_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    pub(super) fn has_reply(&self) -> bool {
        !self.replies.is_empty()
    }
}

/// Files of another version that are here.
#[derive(Debug)]
pub(super) struct Seed {
    place: Place,
    by_digest: HashMap<Digest, (RelPath, Known)>,
}

impl Seed {
    /// The entries that were put into a directory. Without its record nothing is known of it, and everything is fetched.
    pub(super) fn open(directory: &Path, source: &Source) -> Option<Seed> {
        let place = Place::of(directory).ok()?;
        let record = Record::open(&place.top().ok()?, source, &Excludes::default()).ok()?;
        let files = record.iter().filter_map(|(path, known)| Some((known.digest()?, (path.clone(), *known))));
        let by_digest = files.collect();
        Some(Seed { place, by_digest })
    }

    /// Copies a file of the content that a change has. Returns what is there then, if there is one.
    pub(super) fn copy(&self, digest: Digest, to: &Place, path: &RelPath, change: &Change) -> Option<Known> {
        let (from, known) = self.by_digest.get(&digest)?;
        to.copy_from(&self.place, from, known, path, change).unwrap_or_else(|error| {
            tracing::debug!(%path, %error, "content that is there can't be used");
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::{ChangeContent, FollowRequest, HolderName, ListTarget, WirePath};
    use crate::protocol::follow::FollowFrom;

    fn take(frozen: &mut Frozen) -> Vec<(usize, bool)> {
        std::iter::from_fn(|| frozen.next_reply())
            .filter_map(|reply| match reply {
                Reply::Changes(page) => Some((page.changes.len(), page.live)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn all_of_it_comes_in_pages() {
        let follow = Request::Follow(FollowRequest {
            id: FOLLOW_ID,
            target: ListTarget::Path(WirePath::default()),
            from: FollowFrom::Beginning,
        });
        let more = Request::More { id: FOLLOW_ID };
        for count in [0, 1, 1024, 1025] {
            let entry = |seq: usize| Change {
                seq: seq as u64,
                path: seq.to_string().into_bytes().into(),
                content: ChangeContent::Dir { mode: 0 },
            };
            let fetches_for = FetchesFor { name: HolderName::new("copy").unwrap(), copy: None };
            let mut frozen = Frozen::new(Digest([1; 32]), (1..=count).map(entry).collect(), None, fetches_for);
            // A connection that is lost begins it again.
            for _ in 0..2 {
                frozen.ask(&follow);
                assert_eq!(take(&mut frozen), [(count.min(1024), count <= 1024)]);
            }
            frozen.ask(&more);
            let rest = if count > 1024 { vec![(count - 1024, true)] } else { Vec::new() };
            assert_eq!(take(&mut frozen), rest);
            frozen.ask(&more);
            assert!(!frozen.has_reply());
        }
    }
}
