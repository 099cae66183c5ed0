//! Holders, by their own reports.

use crate::digest::Digest;
use crate::limits::HOLDERS_MAX;
use crate::protocol::control::{Holder, HolderName, HoldersReply, HoldersRequest, HoldersWanted, KnownHolder};
use crate::protocol::follow::{CopyId, Epoch};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_quota::{Permit, Quota};
use towpath_sockets::{Page, PeerId};

/// Names that a tenant may have in any case, and at most.
const TENANT_NAMES_SURE: u64 = 16;
const TENANT_NAMES_MAX: u64 = HOLDERS_MAX as u64 / 2;

/// Time after which one that says nothing is forgotten: a copy that isn't there any more isn't missing for ever.
const SILENT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Names altogether: what each tenant may have in any case comes on top of what they share.
const NAMES_MAX: usize = 2 * HOLDERS_MAX;

/// A name belongs to the tenant that says it: nobody speaks for another one. It may have several copies.
type Key = (HolderName, Option<CopyId>, u64);

/// Last reports of holders, by name and copy. Each tenant has a share of the names; when it is used up, its
/// oldest name is forgotten; with too many tenants, the oldest of all.
#[derive(Debug)]
pub struct Holders {
    holders: BTreeMap<Key, Said>,
    tenants: HashMap<u64, Names>,
    by_turn: BTreeMap<u64, Key>,
    names: Arc<Quota>,
    /// Reports that aren't passed on yet, if they are to be.
    unsaid: Option<BTreeSet<Key>>,
    turn: u64,
}

/// A holder's last report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderStats {
    /// Its name and copy.
    pub name: String,
    /// Which copy.
    pub copy: Option<CopyId>,
    /// The user, or the name of the key, that said so.
    pub user: Option<String>,
    /// The relay that passed it on, by name.
    pub via: Option<String>,
    /// Everything up to this number is in place.
    pub seq: u64,
    /// Whether it is synced to the disk.
    pub durable: bool,
    /// The version that is in place.
    pub version: Option<Digest>,
    /// When it was said.
    pub said_at: Instant,
}

/// The origin of a holder's report.
#[derive(Clone, Copy, Debug)]
pub struct Reporter<'a> {
    /// Whose names these are.
    pub tenant: u64,
    /// Its user, or the name of its key.
    pub user: Option<&'a Arc<str>>,
    /// Its connection.
    pub peer: PeerId,
    /// The speaker's own name, if it speaks for another one.
    pub via: Option<&'a HolderName>,
}

#[derive(Debug)]
struct Said {
    holder: Holder,
    user: Option<Arc<str>>,
    /// The connection by which it speaks for itself, while that is there.
    peer: Option<PeerId>,
    via: Option<HolderName>,
    at: Instant,
    turn: u64,
    _permit: Permit,
}

#[derive(Debug)]
struct Names {
    share: Arc<Quota>,
    by_turn: BTreeMap<u64, (HolderName, Option<CopyId>)>,
}

impl Holders {
    /// Those who have a version, so that `lacks` says of it that there is a newer one, and what that is; so many at most, those first who have lacked it
    /// longest. With the connection by which each speaks for itself.
    pub fn with_old_version<T: Clone>(
        &self,
        lacks: impl Fn(Digest) -> Option<(u64, T)>,
        most: usize,
    ) -> Vec<(Option<PeerId>, HolderStats, u64, T)> {
        let mut last: Vec<(u64, T, &Said)> = Vec::new();
        for said in self.holders.values() {
            let Some((seq, newer)) = said.holder.version.and_then(&lacks) else { continue };
            let place = last.partition_point(|(other, ..)| *other <= seq);
            if place < most {
                last.insert(place, (seq, newer, said));
                last.truncate(most);
            }
        }
        last.into_iter().map(|(seq, newer, said)| (said.peer, said.stats(), seq, newer)).collect()
    }
}

impl Said {
    fn stats(&self) -> HolderStats {
        HolderStats {
            name: self.holder.name.as_str().to_owned(),
            copy: self.holder.copy,
            user: self.user.as_deref().map(str::to_owned),
            via: self.via.as_ref().map(|name| name.as_str().to_owned()),
            seq: self.holder.cursor.seq,
            durable: self.holder.durable,
            version: self.holder.version,
            said_at: self.at,
        }
    }
}

impl Default for Holders {
    fn default() -> Holders {
        Holders {
            holders: BTreeMap::new(),
            tenants: HashMap::new(),
            by_turn: BTreeMap::new(),
            names: Quota::new(HOLDERS_MAX as u64),
            unsaid: None,
            turn: 0,
        }
    }
}

impl Holders {
    /// Notes what a holder has.
    pub fn note(&mut self, reporter: Reporter<'_>, holder: Holder, now: Instant) {
        let Reporter { tenant, user, peer, via } = reporter;
        while let Some((_, key)) = self.by_turn.first_key_value()
            && self.holders.get(key).is_none_or(|said| now.saturating_duration_since(said.at) > SILENT_MAX)
        {
            self.forget_oldest();
        }
        let key = (holder.name.clone(), holder.copy, tenant);
        // What speaks for itself isn't spoken for: a relay may remember it from before.
        if via.is_some() && self.holders.get(&key).is_some_and(|said| said.peer.is_some()) {
            return;
        }
        let names = self.tenants.entry(tenant).or_insert_with(|| Names {
            share: self.names.share(TENANT_NAMES_SURE, TENANT_NAMES_MAX),
            by_turn: BTreeMap::new(),
        });
        let permit = match self.holders.remove(&key) {
            Some(said) => {
                names.by_turn.remove(&said.turn);
                self.by_turn.remove(&said.turn);
                Some(said._permit)
            }
            None => names.share.try_acquire(1),
        };
        let permit = permit.or_else(|| {
            // Its own oldest one makes way.
            let (turn, oldest) = names.by_turn.pop_first()?;
            self.by_turn.remove(&turn);
            let oldest = (oldest.0, oldest.1, tenant);
            self.unsaid.as_mut().map(|unsaid| unsaid.remove(&oldest));
            self.holders.remove(&oldest).map(|said| said._permit)
        });
        let Some(permit) = permit else { return };
        self.turn += 1;
        names.by_turn.insert(self.turn, (holder.name.clone(), holder.copy));
        let (peer, via) = (via.is_none().then_some(peer), via.cloned());
        let said = Said { holder, user: user.cloned(), peer, via, at: now, turn: self.turn, _permit: permit };
        if let Some(unsaid) = &mut self.unsaid {
            unsaid.insert(key.clone());
        }
        self.by_turn.insert(self.turn, key.clone());
        self.holders.insert(key, said);
        if self.holders.len() > NAMES_MAX {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((turn, key)) = self.by_turn.pop_first() else { return };
        self.holders.remove(&key);
        self.unsaid.as_mut().map(|unsaid| unsaid.remove(&key));
        if let Some(names) = self.tenants.get_mut(&key.2) {
            names.by_turn.remove(&turn);
            if names.by_turn.is_empty() {
                self.tenants.remove(&key.2);
            }
        }
    }

    /// One that speaks for itself has everything up to a number: there was nothing for it behind what it said.
    pub fn reach(&mut self, (name, copy): (&str, Option<CopyId>), tenant: u64, peer: PeerId, seq: u64) {
        let key = HolderName::new(name).map(|name| (name, copy, tenant));
        let said = key.ok().and_then(|key| self.holders.get_mut(&key)).filter(|said| said.peer == Some(peer));
        if let Some(said) = said.filter(|said| said.holder.version.is_none()) {
            said.holder.cursor.seq = said.holder.cursor.seq.max(seq);
        }
    }

    /// A connection has ended by which a holder spoke for itself.
    pub fn left(&mut self, (name, copy): (&str, Option<CopyId>), tenant: u64, peer: PeerId) {
        let key = HolderName::new(name).map(|name| (name, copy, tenant));
        if let Some(said) = key.ok().and_then(|key| self.holders.get_mut(&key)) {
            said.peer.take_if(|of| *of == peer);
        }
    }

    /// Number of known holders.
    pub fn count(&self) -> usize {
        self.holders.len()
    }

    /// The versions that holders have.
    pub fn versions(&self) -> impl Iterator<Item = Digest> {
        self.holders.values().filter_map(|said| said.holder.version)
    }

    /// A page of holders that aren't connected themselves.
    pub fn elsewhere(&self, from: u32) -> Page<HolderStats> {
        let numbered = (0..).zip(self.holders.values()).skip(from as usize);
        Page::of(numbered.map(|(number, said)| (number, said.peer.is_none().then(|| said.stats()))))
    }

    /// The same who lack a number of an epoch, so many at most, those who lack most first. Those who have versions aren't among them.
    pub fn elsewhere_without(&self, epoch: Epoch, seq: u64, most: usize) -> Vec<HolderStats> {
        let mut last: Vec<&Said> = Vec::new();
        let lacks = |said: &&Said| {
            let cursor = &said.holder.cursor;
            said.peer.is_none() && said.holder.version.is_none() && cursor.epoch == epoch && cursor.seq < seq
        };
        for said in self.holders.values().filter(lacks) {
            let place = last.partition_point(|other| other.holder.cursor.seq <= said.holder.cursor.seq);
            if place < most {
                last.insert(place, said);
                last.truncate(most);
            }
        }
        last.into_iter().map(Said::stats).collect()
    }

    /// The answer to `holders`.
    pub fn answer(&self, request: &HoldersRequest, epoch: Option<Epoch>, most: usize, now: Instant) -> HoldersReply {
        let holds = |holder: &Holder| match request.wanted {
            HoldersWanted::Seq(seq) => Some(holder.cursor.epoch) == epoch && holder.cursor.seq >= seq,
            HoldersWanted::Version(version) => holder.version == Some(version),
        };
        let as_u32 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let holding = self.holders.values().filter(|said| holds(&said.holder)).count();
        let page = self.holders.values().skip(request.from as usize).take(most.min(request.count as usize));
        let known = |said: &Said| KnownHolder {
            holder: said.holder.clone(),
            holds: holds(&said.holder),
            user: said.user.as_deref().map(str::to_owned),
            age_ms: u64::try_from(now.saturating_duration_since(said.at).as_millis()).unwrap_or(u64::MAX),
        };
        HoldersReply {
            id: request.id,
            holding: as_u32(holding),
            total: as_u32(self.holders.len()),
            holders: page.map(known).collect(),
        }
    }

    /// From now on, what is said is also to be passed on, and all that was said before.
    pub(super) fn pass_on(&mut self) {
        self.unsaid = Some(self.holders.keys().cloned().collect());
    }

    pub(super) fn has_said(&self) -> bool {
        self.unsaid.as_ref().is_some_and(|unsaid| !unsaid.is_empty())
    }

    /// Takes the reports to pass on.
    pub(super) fn take_said(&mut self, most: usize) -> Vec<Holder> {
        let Some(unsaid) = &mut self.unsaid else { return Vec::new() };
        let keys = std::iter::from_fn(|| unsaid.pop_first()).take(most);
        keys.filter_map(|key| Some(self.holders.get(&key)?.holder.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::protocol::follow::Cursor;

    const EPOCH: Epoch = Epoch([1; 16]);

    fn holder(name: &str, seq: u64) -> Holder {
        let version = (seq > 100).then_some(Digest([7; 32]));
        let name = HolderName::new(name).unwrap();
        Holder { name, copy: None, cursor: Cursor { epoch: EPOCH, seq }, durable: false, version }
    }

    fn by(tenant: u64) -> Reporter<'static> {
        Reporter { tenant, user: None, peer: PeerId::new(0, 0), via: None }
    }

    fn ask(holders: &Holders, wanted: HoldersWanted, now: Instant) -> HoldersReply {
        holders.answer(&HoldersRequest { id: 1, wanted, from: 0, count: 100 }, Some(EPOCH), 1000, now)
    }

    #[test]
    fn the_last_word_of_each_counts_and_nobody_speaks_for_another_tenant() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        let ann: Arc<str> = "ann".into();
        holders.note(Reporter { user: Some(&ann), ..by(1) }, holder("a", 5), now);
        holders.note(Reporter { user: Some(&ann), ..by(1) }, holder("a", 9), now + Duration::from_secs(1));
        holders.note(by(2), holder("a", 3), now);
        holders.note(by(2), holder("b", 150), now);
        let reply = ask(&holders, HoldersWanted::Seq(4), now + Duration::from_secs(3));
        assert_eq!((reply.holding, reply.total), (2, 3));
        let shown: Vec<_> =
            reply.holders.iter().map(|known| (known.holder.cursor.seq, known.holds, known.age_ms)).collect();
        assert_eq!(shown, [(9, true, 2000), (3, false, 3000), (150, true, 3000)]);
        assert_eq!(reply.holders[0].user.as_deref(), Some("ann"));
        assert_eq!(ask(&holders, HoldersWanted::Version(Digest([7; 32])), now).holding, 1);
        let of_another = holders.answer(
            &HoldersRequest { id: 1, wanted: HoldersWanted::Seq(0), from: 2, count: 9 },
            Some(Epoch([2; 16])),
            9,
            now,
        );
        assert_eq!((of_another.holding, of_another.holders.len()), (0, 1));
    }

    #[test]
    fn those_elsewhere_who_lack_most_come_first() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        for (name, seq) in [("a", 5), ("b", 3), ("c", 9), ("here", 1), ("versions", 150)] {
            let via = HolderName::new("relay").unwrap();
            let via = (name != "here").then_some(&via);
            holders.note(Reporter { via, ..by(1) }, holder(name, seq), now);
        }
        let names = |seq, most| -> Vec<_> {
            holders.elsewhere_without(EPOCH, seq, most).into_iter().map(|holder| holder.name).collect()
        };
        assert_eq!((names(9, 20), names(9, 1)), (vec!["b".to_owned(), "a".to_owned()], vec!["b".to_owned()]));
        assert!(holders.elsewhere_without(Epoch([2; 16]), 9, 20).is_empty());
        let old = |digest| (digest == Digest([7; 32])).then_some((100, "v2"));
        let old = holders.with_old_version(old, 20);
        assert_eq!((old.len(), old[0].1.name.as_str(), old[0].2, old[0].3), (1, "versions", 100, "v2"));
        assert!(holders.with_old_version(|_| None::<(u64, ())>, 20).is_empty());
    }

    #[test]
    fn two_copies_of_one_name_are_two_holders() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        let of_copy = |copy, seq| Holder { copy: Some(CopyId([copy; 16])), ..holder("host", seq) };
        holders.note(by(1), of_copy(1, 150), now);
        holders.note(by(1), of_copy(2, 5), now);
        let reply = ask(&holders, HoldersWanted::Version(Digest([7; 32])), now);
        assert_eq!((reply.holding, reply.total), (1, 2));
        holders.note(by(1), of_copy(2, 160), now);
        assert_eq!(ask(&holders, HoldersWanted::Version(Digest([7; 32])), now).holding, 2);
        // One of them is silent from now on.
        let later = now + SILENT_MAX + Duration::from_secs(1);
        holders.note(by(1), of_copy(2, 160), later - SILENT_MAX / 2);
        assert_eq!(ask(&holders, HoldersWanted::Seq(0), later).total, 2);
        holders.note(by(1), of_copy(2, 160), later);
        assert_eq!(ask(&holders, HoldersWanted::Seq(0), later).total, 1);
    }

    #[test]
    fn who_is_not_connected_is_listed_with_its_relay() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        let relay = HolderName::new("relay").unwrap();
        let peer = PeerId::new(3, 1);
        holders.note(Reporter { peer, ..by(1) }, holder("relay", 5), now);
        holders.note(Reporter { peer, via: Some(&relay), ..by(1) }, holder("a", 4), now);
        holders.note(Reporter { peer, via: Some(&relay), ..by(1) }, holder("b", 150), now);
        let listed = |holders: &Holders, from| {
            let entries = holders.elsewhere(from).entries.into_iter();
            entries.map(|(number, of)| (number, of.name, of.via)).collect::<Vec<_>>()
        };
        let via = Some("relay".to_owned());
        assert_eq!(listed(&holders, 0), [(0, "a".to_owned(), via.clone()), (1, "b".to_owned(), via.clone())]);
        assert_eq!(listed(&holders, 1), [(1, "b".to_owned(), via)]);
        assert_eq!((holders.count(), holders.versions().collect::<Vec<_>>()), (3, vec![Digest([7; 32])]));
        // It is connected again before the old connection's end is known.
        holders.note(Reporter { peer: PeerId::new(4, 0), ..by(1) }, holder("relay", 5), now);
        holders.left(("relay", None), 1, peer);
        assert_eq!(listed(&holders, 0).len(), 2);
        holders.left(("relay", None), 1, PeerId::new(4, 0));
        assert_eq!(listed(&holders, 2), [(2, "relay".to_owned(), None)]);
        // One that is connected by now isn't spoken for by the relay that remembers it.
        holders.note(Reporter { peer: PeerId::new(5, 1), ..by(1) }, holder("b", 160), now);
        holders.note(Reporter { peer, via: Some(&relay), ..by(1) }, holder("b", 150), now);
        assert!(listed(&holders, 0).iter().all(|(_, name, _)| name != "b"));
    }

    #[test]
    fn names_without_end_take_only_their_tenants_share() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        holders.note(by(1), holder("honest", 5), now);
        for index in 0..100_000_u64 {
            holders.note(by(2 + index % 3), holder(&format!("{:x}", index / 3), 5), now);
        }
        assert!(holders.holders.len() <= HOLDERS_MAX + 4 * TENANT_NAMES_SURE as usize);
        assert_eq!(holders.names.used(), holders.holders.len() as u64);
        assert!(holders.holders.contains_key(&(HolderName::new("honest").unwrap(), None, 1)));
        assert!(holders.holders.contains_key(&(HolderName::new(&format!("{:x}", 33_332)).unwrap(), None, 2)));
        // Others still get in, and the newest of each remain.
        holders.note(by(9), holder("late", 5), now);
        assert!(holders.holders.contains_key(&(HolderName::new("late").unwrap(), None, 9)));
    }

    #[test]
    fn tenants_without_end_take_only_so_much() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        holders.pass_on();
        let count = NAMES_MAX as u64 + 100;
        (0..count).for_each(|tenant| holders.note(by(tenant), holder("a", 5), now));
        let kept = |of: u64| holders.holders.contains_key(&(HolderName::new("a").unwrap(), None, of));
        assert!(!kept(0) && kept(100) && kept(count - 1));
        let unsaid = holders.unsaid.as_ref().unwrap().len();
        let counts = [holders.holders.len(), holders.tenants.len(), holders.by_turn.len(), unsaid];
        assert_eq!(counts, [NAMES_MAX; 4]);
        assert_eq!(holders.names.used(), NAMES_MAX as u64);
    }

    #[test]
    fn a_relay_passes_on_what_was_said_once() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        holders.note(by(1), holder("a", 5), now);
        assert!(holders.take_said(10).is_empty(), "no relay");
        holders.pass_on();
        holders.note(by(1), holder("b", 5), now);
        holders.note(by(1), holder("b", 6), now);
        assert_eq!(holders.take_said(1), [holder("a", 5)]);
        assert_eq!(holders.take_said(10), [holder("b", 6)]);
        assert!(!holders.has_said());
    }
}
