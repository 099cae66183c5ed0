//! Followers that an operator should look at: those that fail, or lack something.

use super::versions::NewestVersion;
use crate::digest::Digest;
use crate::path::RelPath;
use crate::protocol::follow::Epoch;
use crate::relay::{HolderStats, Holders, Known, Presence};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// Followers that lack a version and are given with it.
const LACKING_MAX: usize = 20;

/// Followers that fail or lack something, and who has the newest version of each path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FollowersLook {
    /// Those with an error, the first one that failed first.
    pub failing: Vec<HolderStats>,
    /// Those without an error that lack something, the last one first. Of connected ones only those that follow versions.
    pub behind: Vec<Lagging>,
    /// Those that are to be there, and have never been.
    pub never_seen: Vec<String>,
    /// Since when something can be known of them: the server's start.
    pub since: Option<Instant>,
    /// The newest versions that not all of their followers have, by path.
    pub versions: Vec<VersionLook>,
}

/// A follower that lacks something.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lagging {
    /// Its last report.
    pub holder: HolderStats,
    /// Everything up to this number it has, or doesn't need.
    pub has: u64,
    /// The label of the newest version, if it is this that it lacks.
    pub version: Option<String>,
}

/// A version, and who lacks it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VersionLook {
    /// The path that it is of.
    pub of: RelPath,
    /// The version.
    pub version: NewestVersion,
    /// How many of its followers have it.
    pub holding: usize,
    /// How many are to have it.
    pub expected: usize,
    /// How many of those that lack it have an error.
    pub failing: usize,
    /// Since when the first of those that lack it is known.
    pub lacking_since: Option<Instant>,
    /// Some that lack it: first those with an error, then those that are gone.
    pub lacking: Vec<HolderStats>,
    /// Some that are to have it and have never been seen.
    pub never_seen: Vec<String>,
}

impl FollowersLook {
    /// `newest`: versions by path; `newer`: for each other version the number of the next one, and the label of the newest.
    pub(super) fn new(
        holders: &Holders,
        (epoch, head): (Epoch, u64),
        newest: &HashMap<RelPath, NewestVersion>,
        newer: &HashMap<Digest, (u64, String)>,
        most: usize,
        now: Instant,
    ) -> FollowersLook {
        let mut look = FollowersLook { since: Some(holders.started()), ..FollowersLook::default() };
        let mut paths: BTreeMap<&RelPath, Followed<'_>> = BTreeMap::new();
        let (mut failing, mut behind) = (Vec::new(), Vec::new());
        for known in holders.known(now).filter(|known| known.presence() != Presence::Ended) {
            let holder = known.holder();
            let is_expected = known.presence() == Presence::Here || holders.is_expected(&holder.name);
            if !is_expected {
                continue;
            }
            let wanted = holder.versions_of.as_ref().and_then(|of| newest.get_key_value(of.path()));
            if let Some((of, version)) = wanted {
                paths.entry(of).or_default().add(known, version);
            }
            if holder.error.is_some() {
                failing.push(known);
                continue;
            }
            let lacks = match wanted {
                Some((_, version)) if holder.version != Some(version.digest) => {
                    let next = holder.version.and_then(|has| newer.get(&has)).map_or(version.seq, |(next, _)| *next);
                    Some((next.saturating_sub(1), Some(&version.label)))
                }
                _ if holder.versions_of.is_some() || known.peer().is_some() => None,
                _ => {
                    let seq = holder.cursor.filter(|cursor| cursor.epoch == epoch).map_or(0, |cursor| cursor.seq);
                    (seq < head).then_some((seq, None))
                }
            };
            behind.extend(lacks.map(|(has, version)| (has, version, known)));
        }
        failing.sort_by_key(Known::fails_since);
        look.failing = failing.into_iter().take(most).map(|known| known.stats()).collect();
        behind.sort_by_key(|(has, ..)| *has);
        let stats = |(has, version, known): (u64, Option<&String>, Known<'_>)| Lagging {
            holder: known.stats(),
            has,
            version: version.cloned(),
        };
        look.behind = behind.into_iter().take(most).map(stats).collect();
        look.never_seen = holders.never_seen().take(most).map(|name| name.as_str().to_owned()).collect();
        let never_seen = holders.never_seen().count();
        for (of, version) in newest {
            let followed = paths.remove(of).unwrap_or_default();
            let expected = followed.expected + never_seen;
            if followed.holding < expected {
                let never_seen = look.never_seen.iter().take(LACKING_MAX).cloned().collect();
                look.versions.push(followed.look((of.clone(), version.clone()), expected, never_seen));
            }
        }
        look.versions.sort_by(|a, b| a.of.cmp(&b.of));
        look
    }
}

/// Followers of the versions of a path.
#[derive(Default)]
struct Followed<'a> {
    expected: usize,
    holding: usize,
    failing: usize,
    lacking_since: Option<Instant>,
    /// Some of each: with an error, gone, others.
    lacking: [Vec<Known<'a>>; 3],
}

impl<'a> Followed<'a> {
    fn add(&mut self, known: Known<'a>, version: &NewestVersion) {
        self.expected += 1;
        if known.holder().version == Some(version.digest) {
            self.holding += 1;
            return;
        }
        self.lacking_since = Some(self.lacking_since.map_or(known.since(), |first| first.min(known.since())));
        let [failing, gone, others] = &mut self.lacking;
        let of_kind = match known.presence() {
            _ if known.holder().error.is_some() => {
                self.failing += 1;
                failing
            }
            Presence::Gone => gone,
            _ => others,
        };
        if of_kind.len() < LACKING_MAX {
            of_kind.push(known);
        }
    }

    fn look(self, (of, version): (RelPath, NewestVersion), expected: usize, never_seen: Vec<String>) -> VersionLook {
        let Followed { holding, failing, lacking_since, lacking, .. } = self;
        let lacking = lacking.into_iter().flatten().take(LACKING_MAX).map(|known| known.stats()).collect();
        VersionLook { of, version, holding, expected, failing, lacking_since, lacking, never_seen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::{ErrorText, Holder, HolderError, HolderName, Left, VersionsOf};
    use crate::protocol::follow::Cursor;
    use crate::relay::Reporter;
    use std::time::Duration;
    use towpath_sockets::{PeerId, Tenant};

    const EPOCH: Epoch = Epoch([1; 16]);

    fn name(name: &str) -> HolderName {
        HolderName::new(name).unwrap()
    }

    /// A holder of a version of `models`.
    fn of_versions(called: &str, version: Option<u8>) -> Holder {
        let versions_of = VersionsOf::new(&"models".parse().unwrap());
        let cursor = Some(Cursor { epoch: EPOCH, seq: 9 });
        Holder { versions_of, cursor, version: version.map(|of| Digest([of; 32])), ..Holder::new(name(called)) }
    }

    fn note(holders: &mut Holders, peer: u32, holder: Holder, now: Instant) {
        let peer = PeerId::new(peer, 0);
        holders.note(Reporter { whose: &Tenant::Inproc, tenant: 1, user: None, peer, via: None }, holder, now);
    }

    fn look(holders: &Holders, now: Instant) -> FollowersLook {
        let newest = NewestVersion { label: "v2".to_owned(), digest: Digest([2; 32]), seq: 8 };
        let newest = HashMap::from([("models".parse().unwrap(), newest)]);
        let newer = HashMap::from([(Digest([1; 32]), (8, "v2".to_owned()))]);
        FollowersLook::new(holders, (EPOCH, 9), &newest, &newer, 100, now)
    }

    #[test]
    fn who_lacks_a_version_is_named_unless_it_has_ended() {
        let (mut holders, start) = (Holders::default(), Instant::now());
        let later = start + Duration::from_secs(60);
        let error = HolderError { text: ErrorText::near("no space left"), tries: 9, since_ms: 5000 };
        note(&mut holders, 1, of_versions("has", Some(2)), start);
        note(&mut holders, 2, Holder { error: Some(error), ..of_versions("full", Some(1)) }, start);
        note(&mut holders, 3, of_versions("gone", Some(1)), start);
        note(&mut holders, 4, Holder { left: Some(Left::Ended), ..of_versions("ended", Some(1)) }, start);
        note(&mut holders, 5, of_versions("new", None), start);
        let mut plain = Holder::new(name("plain"));
        plain.cursor = Some(Cursor { epoch: EPOCH, seq: 4 });
        note(&mut holders, 6, plain, start);
        for (called, peer) in [("gone", 3), ("ended", 4), ("plain", 6)] {
            holders.left((called, None), 1, PeerId::new(peer, 0), start);
        }
        let shown = look(&holders, later);
        let names = |of: &[HolderStats]| of.iter().map(|of| of.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&shown.failing), ["full"]);
        let lagging: Vec<_> =
            shown.behind.iter().map(|of| (of.holder.name.as_str(), of.has, of.version.as_deref())).collect();
        assert_eq!(lagging, [("plain", 4, None), ("gone", 7, Some("v2")), ("new", 7, Some("v2"))]);
        let version = &shown.versions[0];
        assert_eq!((version.holding, version.expected, version.failing), (1, 4, 1));
        assert_eq!(names(&version.lacking), ["full", "gone", "new"]);

        // Of those that are listed, one is missed that has never been; others aren't missed once they are gone.
        holders.set_listed(["has", "full", "never"].map(name).into());
        let shown = look(&holders, later);
        assert_eq!((names(&shown.failing), shown.never_seen), (vec!["full".to_owned()], vec!["never".to_owned()]));
        let version = &shown.versions[0];
        assert_eq!((version.holding, version.expected), (1, 4), "the new one is here");
        assert_eq!(
            (names(&version.lacking), &version.never_seen[..]),
            (vec!["full".to_owned(), "new".to_owned()], &["never".to_owned()][..])
        );

        // All have it.
        let mut holders = Holders::default();
        note(&mut holders, 1, of_versions("has", Some(2)), start);
        assert_eq!(look(&holders, later).versions, []);
    }
}
