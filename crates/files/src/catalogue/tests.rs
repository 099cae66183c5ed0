//! Followers against a simple model: whatever happens, one that is up to date has what the tree has.

use super::*;
use crate::digest::Digest;
use crate::path::RelPath;
use crate::root::Timestamp;
use proptest::prelude::*;
use std::collections::BTreeSet;

const EPOCH: Epoch = Epoch([7; 16]);

fn path(text: &str) -> RelPath {
    text.parse().unwrap()
}

fn file(byte: u8) -> Content {
    let modified = Timestamp { seconds: byte.into(), nanoseconds: 0 };
    Content::File { size: byte.into(), modified, mode: 0o644, digest: Digest([byte; 32]) }
}

fn page(changes: usize) -> PageLimits {
    PageLimits { changes, bytes: 1 << 19, examined: 1000 }
}

/// A tree as a map, and what replaces what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model(BTreeMap<String, Content>);

impl Model {
    fn put(&mut self, path: &str, content: Content) {
        if self.0.get(path) == Some(&content) {
            return;
        }
        if !matches!(content, Content::Dir { .. }) {
            self.remove_below(path);
        }
        self.0.insert(path.to_owned(), content);
    }

    fn remove_below(&mut self, path: &str) {
        self.0.retain(|other, _| !other.starts_with(&format!("{path}/")));
    }

    fn remove(&mut self, path: &str) {
        self.remove_below(path);
        self.0.remove(path);
    }

    fn filtered(&self, prefix: &str) -> BTreeMap<String, Content> {
        self.0.iter().filter(|(path, _)| path.starts_with(prefix)).map(|(path, c)| (path.clone(), c.clone())).collect()
    }
}

/// A follower that mirrors, and stores its cursor now and then.
#[derive(Debug, Default)]
struct Follower {
    prefix: &'static str,
    tree: BTreeMap<String, Content>,
    position: Option<Position>,
    /// Paths of the full state so far.
    seen: Option<BTreeSet<String>>,
    last_seq: u64,
    /// The cursor and the tree as they were stored together.
    stored: Option<(Cursor, BTreeMap<String, Content>)>,
}

impl Follower {
    fn begin(&mut self, catalogue: &Catalogue, from: FollowFrom) {
        let Some((position, state)) = catalogue.begin(from) else { return };
        self.seen = (state == FollowState::Full).then(BTreeSet::new);
        self.last_seq = position.cursor().seq;
        self.position = Some(position);
    }

    /// Takes a page: whether it is up to date.
    fn step(&mut self, catalogue: &Catalogue, limits: PageLimits) -> Result<bool, TestCaseError> {
        let Some(at) = self.position else {
            self.begin(catalogue, FollowFrom::Beginning);
            return Ok(false);
        };
        let prefix = self.prefix;
        match catalogue.changes_since(at, |path| path.starts_with(prefix.as_bytes()), limits) {
            ChangesSince::Restart => {
                self.begin(catalogue, FollowFrom::Beginning);
                Ok(false)
            }
            ChangesSince::Changes { changes, position, live } => {
                prop_assert!(changes.len() <= limits.changes.max(1));
                for (path, entry) in changes {
                    prop_assert!(entry.seq > self.last_seq && entry.seq <= position.cursor().seq);
                    self.last_seq = entry.seq;
                    let path = String::from_utf8(path.to_vec()).unwrap();
                    if let Some(seen) = &mut self.seen {
                        seen.insert(path.clone());
                    }
                    match entry.content {
                        Content::Gone => _ = self.tree.remove(&path),
                        content => _ = self.tree.insert(path, content),
                    }
                }
                prop_assert!(position.cursor().seq >= self.last_seq);
                self.last_seq = position.cursor().seq;
                self.position = Some(position);
                if live && let Some(seen) = self.seen.take() {
                    self.tree.retain(|path, _| seen.contains(path));
                }
                if self.seen.is_none() {
                    self.stored = Some((position.cursor(), self.tree.clone()));
                }
                Ok(live)
            }
        }
    }

    /// Kills the follower, which continues where it was.
    fn restart(&mut self, catalogue: &Catalogue) {
        let stored = self.stored.clone();
        self.tree = stored.as_ref().map_or_else(|| self.tree.clone(), |(_, tree)| tree.clone());
        let from = stored.map_or(FollowFrom::Beginning, |(cursor, _)| FollowFrom::Cursor(cursor));
        self.begin(catalogue, from);
    }
}

#[derive(Clone, Debug)]
enum Step {
    File(&'static str, u8),
    Dir(&'static str),
    Remove(&'static str),
    Page {
        follower: usize,
        changes: usize,
        examined: usize,
    },
    Restart(usize),
    /// The server has forgotten its numbers.
    NewEpoch,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let paths = || proptest::sample::select(vec!["a", "b", "b/x", "b-", "b0", "b/x/y", "c", "c/d", "c/e"]);
    let step = prop_oneof![
        4 => (paths(), 0u8..4).prop_map(|(path, byte)| Step::File(path, byte)),
        2 => paths().prop_map(Step::Dir),
        4 => paths().prop_map(Step::Remove),
        4 => (0usize..3, 1usize..4, 1usize..6)
            .prop_map(|(follower, changes, examined)| Step::Page { follower, changes, examined }),
        1 => (0usize..3).prop_map(Step::Restart),
        1 => Just(Step::NewEpoch),
    ];
    proptest::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn followers_that_are_up_to_date_have_what_the_tree_has(steps in steps(), tombstones in 0usize..4) {
        let new = |epoch| {
            let mut catalogue = Catalogue::new(Epoch([epoch; 16]));
            catalogue.tombstones_min = tombstones;
            catalogue.complete();
            catalogue
        };
        let mut epoch = 0;
        let (mut catalogue, mut model) = (new(epoch), Model::default());
        let mut followers = ["", "b", "c/"].map(|prefix| Follower { prefix, ..Follower::default() });
        for step in steps {
            match step {
                Step::File(at, byte) => {
                    model.put(at, file(byte));
                    catalogue.put(&path(at), file(byte), Identity::default()).unwrap();
                }
                Step::Dir(at) => {
                    model.put(at, Content::Dir { mode: 0o755 });
                    catalogue.put(&path(at), Content::Dir { mode: 0o755 }, Identity::default()).unwrap();
                }
                Step::Remove(at) => {
                    // Of what isn't known nothing is done, as below a directory that isn't.
                    if model.0.contains_key(at) {
                        model.remove(at);
                    }
                    catalogue.remove(at.as_bytes());
                }
                Step::Page { follower, changes, examined } => {
                    followers[follower].step(&catalogue, PageLimits { examined, ..page(changes) })?;
                }
                Step::Restart(follower) => followers[follower].restart(&catalogue),
                Step::NewEpoch => {
                    epoch += 1;
                    catalogue = new(epoch);
                    for (at, content) in &model.0 {
                        catalogue.put(&path(at), content.clone(), Identity::default()).unwrap();
                    }
                    for follower in &mut followers {
                        follower.restart(&catalogue);
                    }
                }
            }
            let live: BTreeMap<_, _> =
                catalogue.below(b"").map(|(path, entry)| (String::from_utf8(path.to_vec()).unwrap(), entry.content.clone())).collect();
            prop_assert_eq!(&live, &model.0);
            prop_assert_eq!(catalogue.len(), live.len());
            prop_assert!(catalogue.tombstones.len() <= tombstones.max(live.len()));
            prop_assert_eq!(catalogue.by_seq.len(), catalogue.entries.len());
            for dir in ["", "b", "c"] {
                let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
                let is_child = |path: &&String| path.strip_prefix(&prefix).is_some_and(|name| !name.contains('/'));
                let expected: Vec<_> = live.keys().filter(is_child).cloned().collect();
                let children = catalogue.children(dir.as_bytes());
                let children: Vec<_> = children.iter().map(|(path, _)| String::from_utf8(path.to_vec()).unwrap()).collect();
                prop_assert_eq!(children, expected);
            }
        }
        for mut follower in followers {
            let mut left = 200;
            while !follower.step(&catalogue, page(3))? {
                left -= 1;
                prop_assert!(left > 0, "it is never up to date");
            }
            prop_assert_eq!(&follower.tree, &model.filtered(follower.prefix));
        }
    }
}

#[test]
fn a_cursor_is_good_down_to_the_last_forgotten_deletion() {
    let mut catalogue = Catalogue::new(EPOCH);
    catalogue.tombstones_min = 1;
    assert_eq!(catalogue.begin(FollowFrom::Now), None);
    catalogue.complete();
    for name in ["a", "b", "c"] {
        catalogue.put(&path(name), file(1), Identity::default()).unwrap();
        catalogue.remove(name.as_bytes());
    }
    // The deletions have numbers 2, 4 and 6; the first two are forgotten.
    let state = |seq| catalogue.begin(FollowFrom::Cursor(Cursor { epoch: EPOCH, seq })).unwrap().1;
    assert_eq!([3, 4, 6, 7].map(state), {
        use FollowState::{Changes, Full};
        [Full, Changes, Changes, Full]
    });
    let other = Cursor { epoch: Epoch([8; 16]), seq: 6 };
    assert_eq!(catalogue.begin(FollowFrom::Cursor(other)).unwrap().1, FollowState::Full);
    assert_eq!(catalogue.begin(FollowFrom::Now).unwrap().0.cursor().seq, 6);
}

#[test]
fn nobody_is_up_to_date_before_the_tree_was_read() {
    let mut catalogue = Catalogue::new(EPOCH);
    catalogue.put(&path("a"), file(1), Identity::default()).unwrap();
    let (position, _) = catalogue.begin(FollowFrom::Beginning).unwrap();
    let is_live = |catalogue: &Catalogue| {
        matches!(catalogue.changes_since(position, |_| true, page(9)), ChangesSince::Changes { live: true, .. })
    };
    assert!(!is_live(&catalogue));
    catalogue.complete();
    assert!(is_live(&catalogue));
}

#[test]
fn a_page_has_at_most_the_bytes_it_may_have_and_at_least_one_change() {
    let mut catalogue = Catalogue::new(EPOCH);
    for index in 0..10 {
        catalogue.put(&path(&format!("{index}\u{1}")), file(1), Identity::default()).unwrap();
    }
    let (position, _) = catalogue.begin(FollowFrom::Beginning).unwrap();
    let count = |bytes| match catalogue.changes_since(position, |_| true, PageLimits { bytes, ..page(100) }) {
        ChangesSince::Changes { changes, .. } => changes.len(),
        ChangesSince::Restart => 0,
    };
    let cost = file(1).cost("0\u{1}".as_bytes());
    assert_eq!([0, cost, 2 * cost - 1, 3 * cost].map(count), [1, 1, 1, 3]);
}
