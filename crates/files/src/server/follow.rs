//! The paths of a follow, and its pages.

use super::Failure;
use super::glob::Glob;
use super::stats::FollowStats;
use crate::catalogue::{Catalogue, Position};
use crate::path::{RelPath, VERSIONS_NAME};
use crate::protocol::ErrorCode;
use crate::protocol::control::{FollowState, ListTarget, WirePath};
use crate::protocol::follow::{Cursor, Epoch, FollowFrom};
use std::sync::OnceLock;
use towpath_rules::{Permissions, Verb};

/// Entries among which the newest is looked for that somebody may know.
const NEWEST_EXAMINED_MAX: usize = 1 << 16;

/// The paths of a follow.
#[derive(Debug)]
pub(super) struct Followed {
    target: ListTarget,
    /// The follower's permissions.
    permissions: Permissions,
    /// The number by which the epoch of cursors is changed.
    salt: u128,
    /// Compiled by the first job that needs it.
    filter: OnceLock<Result<Filter, Failure>>,
}

#[derive(Debug)]
pub(super) enum Filter {
    /// A path, and all below it.
    Path(RelPath),
    /// Matching paths, and all below a matching directory.
    Glob(Box<Glob>),
}

impl Followed {
    pub(super) fn new(target: ListTarget, permissions: Permissions) -> Followed {
        let salt = permissions.fingerprint(Verb::Follow);
        Followed { target, permissions, salt, filter: OnceLock::new() }
    }

    /// The path or glob.
    pub(super) fn path(&self) -> WirePath {
        match &self.target {
            ListTarget::Path(path) => path.clone(),
            ListTarget::Glob { glob } => glob.clone().into_bytes().into(),
        }
    }

    /// Statistics of a follow that is there.
    pub(super) fn stats(&self, at: Option<Position>) -> FollowStats {
        FollowStats {
            id: None,
            target: self.path().into_bytes(),
            is_glob: matches!(self.target, ListTarget::Glob { .. }),
            seq: at.map(|at| at.cursor().seq),
            page_seq: 0,
            is_live: false,
        }
    }

    /// Whether the follower may see a path.
    pub(super) fn may_see(&self, path: &[u8]) -> bool {
        self.permissions.may(Verb::Follow, path)
    }

    /// Where to begin, in a catalogue. Numbers that the follower may know nothing of are as if there were none: neither does it begin behind
    /// them, nor does it find out which there are.
    pub(super) fn begin(&self, from: FollowFrom, catalogue: &Catalogue) -> Option<(Position, FollowState)> {
        let from = self.inner_from(from);
        if self.permissions.is_unrestricted() {
            return catalogue.begin(from);
        }
        let newest = || catalogue.newest(NEWEST_EXAMINED_MAX, |path| self.may_see(path));
        match from {
            FollowFrom::Now => catalogue.begin(from).map(|(position, state)| (position.sent(newest()), state)),
            FollowFrom::Cursor(cursor) if cursor.seq > newest() => catalogue.begin(FollowFrom::Beginning),
            from => catalogue.begin(from),
        }
    }

    /// The cursor to send: valid only with the same permissions, so that a client that may follow more later gets all of it.
    pub(super) fn cursor(&self, at: Position) -> Cursor {
        let cursor = if self.permissions.is_unrestricted() { at.cursor() } else { at.sent_cursor() };
        salted(cursor, self.salt)
    }

    /// The newest number, as far as the follower may know it.
    pub(super) fn head(&self, at: Position, catalogue: &Catalogue) -> u64 {
        if self.permissions.is_unrestricted() { catalogue.head() } else { at.sent_cursor().seq }
    }

    /// The beginning in the catalogue's numbers.
    fn inner_from(&self, from: FollowFrom) -> FollowFrom {
        match from {
            FollowFrom::Cursor(cursor) => FollowFrom::Cursor(salted(cursor, self.salt)),
            other => other,
        }
    }

    /// The filter; an error if there can't be one. May take a while.
    pub(super) fn filter(&self) -> Result<&Filter, Failure> {
        let filter = self.filter.get_or_init(|| match &self.target {
            ListTarget::Path(path) => match path.to_rel_path() {
                Ok(path) => Ok(Filter::Path(path)),
                Err(error) => Err(Failure::new(ErrorCode::NotFound, error.to_string())),
            },
            ListTarget::Glob { glob } => Glob::new(glob).map(|glob| Filter::Glob(Box::new(glob))),
        });
        filter.as_ref().map_err(Clone::clone)
    }
}

impl Filter {
    /// Whether it is for versions.
    pub(super) fn is_of_versions(&self) -> bool {
        matches!(self, Filter::Path(above) if is_version(above.as_bytes()))
    }

    pub(super) fn wants(&self, path: &[u8]) -> bool {
        match self {
            // Versions are sent only to follows of this name.
            Filter::Path(above) if above.is_root() => !is_version(path),
            Filter::Glob(_) if is_version(path) => false,
            Filter::Path(above) => {
                let rest = path.strip_prefix(above.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            }
            Filter::Glob(glob) => {
                let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
                ends.chain([path.len()]).any(|end| glob.matches(path.get(..end).unwrap_or_default()))
            }
        }
    }
}

/// A cursor as those with certain permissions know it, or the other way round.
pub(super) fn salted(Cursor { epoch: Epoch(epoch), seq }: Cursor, salt: u128) -> Cursor {
    let epoch = u128::from_be_bytes(epoch) ^ salt;
    Cursor { epoch: Epoch(epoch.to_be_bytes()), seq }
}

fn is_version(path: &[u8]) -> bool {
    path.strip_prefix(VERSIONS_NAME).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_good_only_with_the_same_rights() {
        let follow = |rules: &str| {
            let rules = towpath_rules::Rules::parse(rules).unwrap();
            let permissions = rules.permissions(None, towpath_rules::Origin::Local);
            Followed::new(ListTarget::Path(Vec::new().into()), permissions)
        };
        let all = Followed::new(ListTarget::Path(Vec::new().into()), Permissions::unrestricted());
        let (catalogue, one, more) = (
            crate::catalogue::Catalogue::new(Epoch([7; 16])),
            follow("allow anyone to follow a\n"),
            follow("allow anyone to follow a b\n"),
        );
        let (at, _) = catalogue.begin(FollowFrom::Beginning).unwrap();
        assert_eq!(all.cursor(at), at.cursor());
        let from = FollowFrom::Cursor(one.cursor(at));
        assert_eq!(one.inner_from(from), FollowFrom::Cursor(at.cursor()));
        for other in [all, more] {
            assert_ne!(other.inner_from(from), FollowFrom::Cursor(at.cursor()));
        }
        assert!(one.may_see(b"a/x") && !one.may_see(b"b"));
    }

    #[test]
    fn numbers_of_what_is_hidden_are_not_shown_nor_found_out() {
        use crate::catalogue::{ChangesSince, Content, Identity, PageLimits};
        let rules = towpath_rules::Rules::parse("allow anyone to follow a\n").unwrap();
        let permissions = rules.permissions(None, towpath_rules::Origin::Local);
        let follow = Followed::new(ListTarget::Path(Vec::new().into()), permissions);
        let mut catalogue = Catalogue::new(Epoch([7; 16]));
        for path in ["hidden/1", "a", "hidden/2", "hidden/3"] {
            catalogue.put(&path.parse().unwrap(), Content::Dir { mode: 0 }, Identity::default()).unwrap();
        }
        catalogue.complete();
        let (at, _) = follow.begin(FollowFrom::Beginning, &catalogue).unwrap();
        let limits = PageLimits { changes: 10, bytes: 1000, examined: 100 };
        let ChangesSince::Changes { position, live: true, .. } =
            catalogue.changes_since(at, |path| follow.may_see(path), limits)
        else {
            panic!("all of it")
        };
        assert_eq!((follow.cursor(position).seq, follow.head(position, &catalogue)), (2, 2));
        let (now, _) = follow.begin(FollowFrom::Now, &catalogue).unwrap();
        assert_eq!((follow.cursor(now).seq, now.cursor().seq), (2, 4));
        // Whatever is asked for beyond, it is as if there were nothing.
        for (seq, state) in
            [(2, FollowState::Changes), (3, FollowState::Full), (4, FollowState::Full), (5, FollowState::Full)]
        {
            let from = FollowFrom::Cursor(Cursor { seq, ..follow.cursor(position) });
            assert_eq!(follow.begin(from, &catalogue).unwrap().1, state, "{seq}");
        }
    }

    #[test]
    fn what_is_below_is_wanted_too() {
        let wants = |target: ListTarget, path: &str| {
            Followed::new(target, Permissions::default()).filter().unwrap().wants(path.as_bytes())
        };
        let path = |text: &str| ListTarget::Path(text.as_bytes().to_vec().into());
        let glob = |text: &str| ListTarget::Glob { glob: text.to_owned() };
        for (target, yes, no) in [
            (path(""), &["a", "a/b", ".tow-versions-too"][..], &[".tow-versions/v1/manifest"][..]),
            (path(".tow-versions"), &[".tow-versions/v1/manifest"], &["a"]),
            (path("a"), &["a", "a/b/c"], &["ab", "b", "b/a"]),
            (glob("*.d"), &["x.d", "x.d/y/z"], &["x", "y/x.d"]),
            (glob("**/*.c"), &["a.c", "b/a.c", "b/a.c/d"], &["a", "b/a.cc", ".tow-versions/x.c/manifest"]),
        ] {
            assert!(yes.iter().all(|path| wants(target.clone(), path)), "{target:?}");
            assert!(!no.iter().any(|path| wants(target.clone(), path)), "{target:?}");
        }
        for wrong in [path("../a"), glob("[")] {
            assert!(Followed::new(wrong, Permissions::default()).filter().is_err());
        }
    }
}
