//! The catalogue of a relay: another server's numbers.

use super::{Catalogue, Content, Entry, TooManyPaths};
use crate::limits::CATALOGUE_PATHS_MAX;
use crate::protocol::follow::{Cursor, Epoch, ServerId};
use std::sync::Arc;

impl Catalogue {
    /// A catalogue of what another server publishes. Nobody can follow it before [`Catalogue::reset`].
    pub fn relayed() -> Catalogue {
        Catalogue { is_relayed: true, is_awaiting: true, ..Catalogue::new(Epoch([0; 16])) }
    }

    /// The same of a relay that passes on versions and nothing else.
    pub fn relayed_versions() -> Catalogue {
        Catalogue { is_of_versions: true, ..Catalogue::relayed() }
    }

    /// Whether there is nothing but versions.
    pub fn is_of_versions(&self) -> bool {
        self.is_of_versions
    }

    /// Replaces everything by what the other server has at a cursor.
    ///
    /// # Errors
    /// There are too many paths.
    pub fn reset(
        &mut self,
        server: Option<ServerId>,
        cursor: Cursor,
        entries: Vec<(Arc<[u8]>, Entry)>,
    ) -> Result<(), TooManyPaths> {
        if entries.len() > CATALOGUE_PATHS_MAX {
            return Err(TooManyPaths);
        }
        // What was deleted before isn't known.
        let new = Catalogue::restored(cursor.epoch, cursor.seq, cursor.seq, entries);
        *self = Catalogue {
            server,
            is_relayed: true,
            is_complete: true,
            is_of_versions: self.is_of_versions,
            unread: std::mem::take(&mut self.unread),
            unread_more: self.unread_more,
            unread_changes: self.unread_changes,
            ..new
        };
        Ok(())
    }

    /// Takes what changed at the other server, up to a cursor.
    ///
    /// # Errors
    /// There are too many paths.
    pub fn advance(&mut self, cursor: Cursor, entries: Vec<(Arc<[u8]>, Entry)>) -> Result<(), TooManyPaths> {
        for (path, entry) in entries {
            if entry.seq <= self.head || entry.seq > cursor.seq {
                continue;
            }
            if entry.content != Content::Gone && self.get(&path).is_none() && self.len() >= CATALOGUE_PATHS_MAX {
                return Err(TooManyPaths);
            }
            self.replace_at(&path, entry);
        }
        self.head = self.head.max(cursor.seq);
        self.forget_tombstones();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{ChangesSince, Identity, PageLimits};
    use crate::protocol::control::FollowState;
    use crate::protocol::follow::FollowFrom;

    const EPOCH: Epoch = Epoch([3; 16]);
    const LIMITS: PageLimits = PageLimits { changes: 100, bytes: 100_000, examined: 100 };

    fn at(seq: u64) -> Cursor {
        Cursor { epoch: EPOCH, seq }
    }

    fn dir(path: &str, seq: u64) -> (Arc<[u8]>, Entry) {
        (path.as_bytes().into(), Entry { seq, content: Content::Dir { mode: 0 }, identity: Identity::default() })
    }

    fn gone(path: &str, seq: u64) -> (Arc<[u8]>, Entry) {
        (path.as_bytes().into(), Entry { seq, content: Content::Gone, identity: Identity::default() })
    }

    fn changes_since(catalogue: &Catalogue, from: FollowFrom) -> (FollowState, Vec<u64>, Cursor, bool) {
        let (position, state) = catalogue.begin(from).unwrap();
        match catalogue.changes_since(position, |_| true, LIMITS) {
            ChangesSince::Changes { changes, position, live } => {
                (state, changes.iter().map(|(_, entry)| entry.seq).collect(), position.cursor(), live)
            }
            ChangesSince::Restart => panic!("it begins again at once"),
        }
    }

    #[test]
    fn followers_of_the_origin_continue_here() {
        let mut relay = Catalogue::relayed();
        assert!(relay.begin(FollowFrom::Beginning).is_none() && relay.begin(FollowFrom::Cursor(at(5))).is_none());
        relay.reset(Some(ServerId([7; 16])), at(20), vec![dir("a", 3), dir("b", 17)]).unwrap();
        assert_eq!(changes_since(&relay, FollowFrom::Beginning), (FollowState::Full, vec![3, 17], at(20), true));
        assert_eq!(changes_since(&relay, FollowFrom::Cursor(at(20))), (FollowState::Changes, vec![], at(20), true));
        assert_eq!(relay.server, Some(ServerId([7; 16])));
        // What was deleted between isn't known here.
        assert_eq!(changes_since(&relay, FollowFrom::Cursor(at(18))).0, FollowState::Full);
        relay.advance(at(30), vec![gone("a", 25), dir("c", 28)]).unwrap();
        assert_eq!(
            changes_since(&relay, FollowFrom::Cursor(at(20))),
            (FollowState::Changes, vec![25, 28], at(30), true)
        );
        // One that is ahead of this relay waits, and never goes back.
        let ahead = FollowFrom::Cursor(at(40));
        assert_eq!(changes_since(&relay, ahead), (FollowState::Changes, vec![], at(40), true));
        let (position, _) = relay.begin(ahead).unwrap();
        relay.advance(at(50), vec![dir("d", 35), dir("e", 45)]).unwrap();
        let ChangesSince::Changes { changes, .. } = relay.changes_since(position, |_| true, LIMITS) else {
            panic!("it goes on")
        };
        assert_eq!(changes.iter().map(|(_, entry)| entry.seq).collect::<Vec<_>>(), [45]);
        // Another epoch starts over, also for followers in the middle.
        relay.reset(None, Cursor { epoch: Epoch([4; 16]), seq: 2 }, vec![dir("a", 1)]).unwrap();
        assert_eq!(relay.changes_since(position, |_| true, LIMITS), ChangesSince::Restart);
        assert_eq!(changes_since(&relay, ahead).0, FollowState::Full);
    }

    #[test]
    fn numbers_that_were_or_are_beyond_are_left_out() {
        let mut relay = Catalogue::relayed();
        relay.reset(None, at(20), vec![dir("a", 3)]).unwrap();
        relay.advance(at(22), vec![dir("old", 20), dir("new", 21), dir("beyond", 23)]).unwrap();
        assert_eq!(changes_since(&relay, FollowFrom::Beginning).1, [3, 21]);
    }
}
